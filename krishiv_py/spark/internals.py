"""PySpark's private names: what this library needs of PySpark, and PySpark offers under no public name.

No other file uses a name of PySpark's that begins with an underscore, and tests see to it. Each function here has a test, which
``nox -s matrix`` runs with every version of PySpark that is supported. Over Spark Connect the JVM is in another process, so
most of these are for the classic session only.
"""

from __future__ import annotations

import importlib
import subprocess
import threading
from collections.abc import Mapping
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

STATE_CLIENTS: Final = ("_statefulProcessorApiClient", "statefulProcessorApiClient")
"""Attributes where a handle of Spark's state keeps its connection to the JVM, for a class that travels alone."""
STATE_SOCKET: Final = "_client_socket"
"""The attribute in which that connection keeps its socket."""


def gateway() -> Any:  # py4j's, which has no types
    """Return py4j's gateway to the JVM of this process; None while there is none."""
    return SparkContext._gateway


def jvm_process() -> subprocess.Popen[bytes] | None:
    """Return the process of the JVM that this process started; None where there is none, or spark-submit started it."""
    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    return process


def use_gateway(opened: object) -> None:
    """Let PySpark use a gateway that was opened for it."""
    of_context: Any = SparkContext
    of_context._ensure_initialized(gateway=opened)


def forget_gateway() -> None:
    """Let PySpark know neither a context nor a JVM: the next session starts one."""
    of_context: Any = SparkContext
    of_context._active_spark_context = of_context._gateway = of_context._jvm = None
    of_session: Any = SparkSession
    of_session._instantiatedSession = None


def active_context() -> SparkContext | None:
    """Return the context of this process, whichever thread made it; None while there is none."""
    return SparkContext._active_spark_context


def first_session() -> SparkSession | None:
    """Return the session that the context of this process was begun with."""
    begun: SparkSession | None = SparkSession._instantiatedSession
    return begun


def context_of(spark: SparkSession) -> SparkContext | None:
    """Return the context of a session, of a stopped one too; None over Spark Connect."""
    return getattr(spark, "_sc", None)


def java_context(context: SparkContext) -> Any:  # an object of Java's
    """Return Java's ``JavaSparkContext``; None for a context that was stopped."""
    return context._jsc


def java(context: SparkContext) -> Any:  # packages and classes of Java's, by name
    """Return py4j's view of the JVM's classes."""
    return context._jvm


def checkpoint_manager(spark: SparkSession) -> Any | None:  # public in no version
    """Return Spark's means of spreading the state of a checkpoint over other tasks; None before Spark 4.2."""
    return getattr(spark, "_streamingCheckpointManager", None)


def stop_accumulators_apart(context: SparkContext) -> None:
    """Let PySpark's server of accumulators end by itself: it looks once a second whether it should, and stop() waits for it."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.shutdown = threading.Thread(target=server.shutdown, name="krishiv-accumulators", daemon=True).start


def analysed_plan(frame: DataFrame) -> str:
    """Return the analysed plan of a frame as text, over Spark Connect together with the other plans."""
    own: Any = frame
    if hasattr(own, "_explain_string"):  # Spark Connect
        return str(own._explain_string(extended=True))
    return str(own._jdf.queryExecution().analyzed().toString())


def start_connect_server(master: str, settings: Mapping[str, str]) -> int:
    """Start a server of Spark Connect in the JVM of this process, and return its port."""
    remote: Any = importlib.import_module("pyspark.sql.connect.session").SparkSession
    remote._start_connect_server(master, dict(settings))
    own: Any = SparkContext._active_spark_context
    service = getattr(java(own), "org.apache.spark.sql.connect.service.SparkConnectService$")
    return int(getattr(service, "MODULE$").localPort())


def stack_trace(problem: BaseException) -> str:
    """Return what an exception of PySpark's and all that caused it say, with Java's stack traces."""
    current: BaseException | None = problem
    said: list[str] = []
    while current is not None:
        said += [str(current), str(getattr(current, "_stackTrace", None) or "")]
        current = getattr(current, "_cause", None) or current.__cause__
    return "\n".join(said)
