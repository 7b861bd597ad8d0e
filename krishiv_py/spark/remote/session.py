"""The session of a Spark Connect server: that it answers is seen before PySpark's client asks, which would wait for minutes."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Final

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from krishiv_py.ending import heed
from krishiv_py.errors import EnvironmentSetupError, PlanError, require_extra, shown
from krishiv_py.redaction import redacted
from krishiv_py.spark.setup.config import JVM_OPTIONS, cores_of, own_folder, session_settings
from krishiv_py.spark.setup.jvm import archive_options, require_java

_MODULES: Final = ("grpc", "grpc_status", "google.rpc", "zstandard")
"""What PySpark's client imports, and the extra `connect` installs."""
_ANSWER_S: Final = 30.0
"""How long a server may take to answer; one that is being started takes a few seconds."""
_TRIES: Final = 6
_PAUSE_MS: Final = 2_000
"""How often a call to a server of this process is made again, and the longest pause: one that does not answer has died, and
PySpark's client would go on for ten minutes."""
_FREE: Final = {"spark.connect.grpc.binding.port": "0", "spark.connect.grpc.binding.address": "127.0.0.1"}
"""Where a server of this process listens: PySpark would have it on port 15002, one on a machine."""
_OWN: Final = "SPARK_LOCAL_REMOTE"
"""PySpark's note of a server that this process has, which a session's ``stop()`` ends."""
_CONNECT: Final = "SPARK_CONNECT_MODE_ENABLED"
"""PySpark's note that sessions are those of a client."""


def session(url: str) -> SparkSession:
    """Return a session on the server at `url`, or on one started for ``local[2]``.

    Raises
    ------
    EnvironmentSetupError
        When no server answers, or this one cannot make a session, or this process has a Spark session of its own.
    PlanError
        For an address that is none.
    """
    heed()
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
        remote._start_connect_server(master, settings)
    except BaseException:
        del os.environ[_OWN]
        raise
    context: Any = SparkContext._active_spark_context
    service = getattr(context._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
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
