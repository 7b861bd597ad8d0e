"""The session of a Spark in this process, begun before the rest of the library is loaded: the JVM takes seconds to start."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from krishiv_py.ending import heed
from krishiv_py.errors import users_line
from krishiv_py.redaction import shown_setting
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


def session(
    master: str | None, app: str, settings: dict[str, str], meanwhile: Callable[[], object] = lambda: None
) -> tuple[SparkSession, bool]:
    """Return a local session, or the running one; and whether it was started here. While the JVM starts, `meanwhile` is
    done.
    """
    heed()  # the start of a JVM takes long enough for a SIGTERM
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
