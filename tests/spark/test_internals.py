"""PySpark's private names, each on a real session: a version that has another name for one of them fails here first."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.connect.dataframe import DataFrame as RemoteFrame
from pyspark.sql.connect.session import SparkSession as RemoteSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient

from krishiv_py.session import Session
from krishiv_py.spark import internals

IN_A_PROCESS = """
import sys
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from krishiv_py.spark import internals as i

assert (i.gateway(), i.jvm_process(), i.active_context(), i.first_session()) == (None,) * 4
opened = launch_gateway(SparkConf().set("spark.master", "local[1]").set("spark.ui.enabled", "false"))
i.use_gateway(opened)
assert i.gateway() is opened and i.jvm_process() is opened.proc
spark = SparkSession.builder.getOrCreate()
assert i.gateway() is opened and i.first_session() is spark
context = i.active_context()
assert context is spark.sparkContext and i.context_of(spark) is context
server = context._accumulatorServer
i.stop_accumulators_apart(context)
spark.stop()
assert server.shutdown.__func__.__qualname__ == "Thread.start"
assert i.context_of(spark) is context and i.java_context(context) is None and i.active_context() is None
first = i.jvm_process()
first.kill()
first.wait()
i.forget_gateway()
assert (i.gateway(), i.jvm_process(), i.active_context(), i.first_session()) == (None,) * 4
again = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
assert again.range(3).count() == 3 and i.jvm_process().pid != first.pid
again.stop()
print("done")
"""

SERVER = """
import os
from pyspark.sql.connect.session import SparkSession
from krishiv_py.spark import internals as i
os.environ["SPARK_LOCAL_REMOTE"] = "1"  # as PySpark does
free = {"spark.connect.grpc.binding.port": "0", "spark.connect.grpc.binding.address": "127.0.0.1"}
port = i.start_connect_server("local[1]", {"spark.ui.enabled": "false", **free})
os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
remote = SparkSession.builder.remote(f"sc://localhost:{port}").getOrCreate()
assert i.context_of(remote) is None
assert "Range (0, 5" in i.analysed_plan(remote.range(5))
i.jvm_process().kill()  # it would keep the pipes of this process open
print("done", flush=True)
os._exit(0)
"""


def classic(session: Session) -> SparkSession:
    if not isinstance(session.spark, SparkSession) or "connect" in type(session.spark).__module__:
        pytest.skip("over Spark Connect the JVM is in another process")
    return session.spark


def of_own_process(program: str) -> None:
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert run.stdout.split()[-1:] == ["done"], run.stderr


@pytest.mark.slow
def test_a_jvm_that_is_started_stopped_and_forgotten() -> None:
    of_own_process(IN_A_PROCESS)


@pytest.mark.slow
def test_a_server_of_connect_in_this_process() -> None:
    of_own_process(SERVER)


def test_what_a_running_session_has(session: Session) -> None:
    spark = classic(session)
    context = internals.active_context()
    assert context is not None and context is spark.sparkContext is internals.context_of(spark)
    process = internals.jvm_process()
    assert process is not None and process.poll() is None
    assert os.path.basename(os.readlink(f"/proc/{process.pid}/exe")) == "java"
    assert internals.first_session() is not None
    assert not internals.java_context(context).sc().isStopped()
    assert internals.java_context(context).hadoopConfiguration().get("io.file.buffer.size")
    assert internals.java(context).java.lang.Math.max(3, 4) == 4


def test_the_analysed_plan_names_the_watermark(session: Session) -> None:
    spark = classic(session)
    frame = spark.readStream.format("rate").load().withWatermark("timestamp", "5 seconds")
    assert "EventTimeWatermark" in internals.analysed_plan(frame)
    assert "EventTimeWatermark" not in internals.analysed_plan(spark.range(3))


def test_state_is_spread_from_spark_4_2_on(session: Session) -> None:
    known = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
    assert (internals.checkpoint_manager(classic(session)) is not None) == known


def test_the_connection_of_a_handle_of_state_has_a_socket() -> None:
    handle: Any = StatefulProcessorHandle("client")  # type: ignore[arg-type]
    assert [getattr(handle, name) for name in internals.STATE_CLIENTS if hasattr(handle, name)] == ["client"]
    assert f"self.{internals.STATE_SOCKET} = " in inspect.getsource(StatefulProcessorApiClient)


def test_stack_traces_of_java_are_read_with_their_causes(session: Session) -> None:
    spark = classic(session)
    with pytest.raises(Exception) as caught:
        spark.range(1).selectExpr("raise_error('of the test')").collect()
    text = internals.stack_trace(caught.value)
    assert "of the test" in text and "\tat org.apache.spark" in text
    caught.value.__cause__ = ValueError("a cause of Python's")
    assert "of the test" in internals.stack_trace(caught.value)


def test_names_that_spark_connect_has_too() -> None:
    assert callable(RemoteFrame._explain_string) and callable(RemoteSession._start_connect_server)
