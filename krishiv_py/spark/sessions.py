"""Sessions of a Spark in this process and of a Spark Connect server.

The first begins before the rest of the library is loaded: the JVM takes seconds to start. That a server answers is seen before
PySpark's client asks, which would wait for minutes.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from krishiv_py.errors import EnvironmentSetupError, PlanError, require_extra, shown, users_line
from krishiv_py.failures.redaction import redacted, shown_setting
from krishiv_py.spark import internals
from krishiv_py.spark.setup.config import JVM_OPTIONS, cores_of, is_here, own_folder, session_settings, settings_while_running
from krishiv_py.spark.setup.jvm import (
    archive_options,
    end_jvm,
    forget_dead_jvm,
    not_started,
    quiet_jvm,
    require_java,
    running_session,
)
from krishiv_py.spark.setup.workers import begin_workers, choose_worker_python


def embedded(
    master: str | None, app: str, settings: dict[str, str], meanwhile: Callable[[], object] = lambda: None
) -> tuple[SparkSession, bool]:
    """Return a local session, or the running one; and whether it was started here. While the JVM starts, `meanwhile` is
    done.
    """
    forget_dead_jvm()
    running = running_session()
    if running is not None:
        _adjust(running, settings)
        return running, False
    java = require_java()
    here = is_here(master)
    choose_worker_python(here=here)
    builder = SparkSession.builder.appName(app).master(master or "local[*]")
    ours = session_settings(cores_of(master), here=here)
    ours[JVM_OPTIONS] += archive_options(java)
    every = {**ours, **own_folder(master), **settings}
    for key, value in every.items():
        builder = builder.config(key, value)
    with quiet_jvm({**every, "spark.app.name": app, "spark.master": master or "local[*]"}, meanwhile):
        spark = _begun(builder, master or "local[*]")
    spark.sparkContext.setLogLevel(settings.get("krishiv.log.level", "ERROR"))
    if here:
        begin_workers(spark)
    return spark, True


def _begun(builder: SparkSession.Builder, master: str) -> SparkSession:
    try:
        spark = builder.getOrCreate()
        spark.conf.get("spark.sql.shuffle.partitions")  # only now Spark reads the settings of SQL
    except (Py4JError, PySparkException) as problem:
        java = getattr(problem, "java_exception", None)
        reason = str(problem if java is None else java.toString()).partition("\n")[0]
        end_jvm()  # an exception of Java's cannot be shown after that
        raise not_started(master, reason) from None
    return spark


def _adjust(running: SparkSession, settings: dict[str, str]) -> None:
    """Apply settings to a session that is running already; those fixed at its start stay, with a warning."""
    for key, value in settings.items():
        try:
            for name in settings_while_running(key):
                running.conf.set(name, value)
        except AnalysisException:
            warnings.warn(
                f"Spark runs already, and {key!r} can only be set before it starts: it stays "
                f"{shown_setting(key, running.conf.get(key, 'unset'))!r}. Hint: stop the running session first",
                stacklevel=users_line(),
            )


_MODULES: Final = ("grpc", "grpc_status", "google.rpc", "zstandard")
"""Modules that PySpark's client imports, and the extra `connect` installs."""
_ANSWER_S: Final = 30.0
"""The time that a server may take to answer; one that is being started takes a few seconds."""
_TRIES: Final = 6
_PAUSE_MS: Final = 2_000
"""The number of further calls to a server of this process, and the longest pause: one that does not answer has died, and
PySpark's client would go on for ten minutes."""
_FREE: Final = {"spark.connect.grpc.binding.port": "0", "spark.connect.grpc.binding.address": "127.0.0.1"}
"""The place where a server of this process listens: PySpark would have it on port 15002, one on a machine."""
_OWN: Final = "SPARK_LOCAL_REMOTE"
"""PySpark's note of a server that this process has, which a session's ``stop()`` ends."""
_CONNECT: Final = "SPARK_CONNECT_MODE_ENABLED"
"""PySpark's note that sessions are those of a client."""


def connected(url: str) -> SparkSession:
    """Return a session on the server at `url`, or on one started for ``local[2]``.

    Raises
    ------
    EnvironmentSetupError
        When no server answers, or this one cannot make a session, or this process has a Spark session of its own.
    PlanError
        For an address that is none.
    """
    require_extra("Spark Connect's client", _MODULES, "connect", "no server can be talked to")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # read by a server started for "local"
    try:
        if url.startswith("sc://"):
            _require_answer(url)
        elif _OWN not in os.environ:
            return _serve(url)
        return SparkSession.builder.remote(url).getOrCreate()
    except PySparkException as problem:
        said, what = redacted(" ".join(str(problem).split())[:500]), "no session of Spark Connect could be made"
        if problem.getCondition() in ("SESSION_OR_CONTEXT_EXISTS", "SESSION_ALREADY_EXIST"):
            hint = "stop the Spark session of this process first, or go on with it: Session.embedded()"
            raise EnvironmentSetupError(what, got=said, then="a process has one of them", hint=hint) from problem
        raise _away(what, said) from problem


def _serve(master: str) -> SparkSession:
    """Start a server in this process, as PySpark does but on a port that is free, and return a session on it."""
    remote: Any = importlib.import_module("pyspark.sql.connect.session").SparkSession
    os.environ[_OWN] = "1"
    try:
        settings = {**session_settings(cores_of(master)), **own_folder(master), **_FREE}
        settings[JVM_OPTIONS] += archive_options(require_java())
        port = internals.start_connect_server(master, settings)
    except BaseException:
        del os.environ[_OWN]
        raise
    os.environ[_CONNECT] = "1"
    address = f"sc://localhost:{port}"  # by this name a token is sent without TLS
    client: Any = remote.builder.remote(address).getOrCreate()
    retries: Any = importlib.import_module("pyspark.sql.connect.client.retries")
    client.client.set_retry_policies([retries.DefaultPolicy(max_retries=_TRIES, max_backoff=_PAUSE_MS)])
    session: SparkSession = client
    return session


def _away(what: str, got: str) -> EnvironmentSetupError:
    hint = "start it with start-connect-server.sh of its Spark, or see that address, port, token and certificate are right"
    return EnvironmentSetupError(what, got=got, hint=hint)


def _require_answer(url: str) -> None:
    grpc: Any = importlib.import_module("grpc")
    core: Any = importlib.import_module("pyspark.sql.connect.client.core")  # it needs grpc, which is optional
    try:
        address = core.DefaultChannelBuilder(url)
        channel = address.toChannel()
    except (PySparkException, ValueError) as problem:
        hint = 'write Session.connect("sc://host:15002"), with parameters after /; as in sc://host:15002/;use_ssl=true'
        got = redacted(f"{shown(url)}: {problem}")
        raise PlanError("not a Spark Connect address", got=got, hint=hint) from None
    try:
        grpc.channel_ready_future(channel).result(timeout=_ANSWER_S)
    except grpc.FutureTimeoutError:
        raise _away(f"no Spark Connect server answers within {_ANSWER_S:.0f} s", address.endpoint) from None
    finally:
        channel.close()
