"""Python worker processes: how many there are is memory, and CPU to start them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyarrow as pa
import pyspark
import pytest
from pyspark.serializers import CPickleSerializer
from pyspark.sql import SparkSession

from krishiv_py import Batches, MemorySink, Sender, Session, Stream, count
from krishiv_py.errors import OperatorError
from krishiv_py.spark.setup.workers import WORKER, choose_worker_python
from krishiv_py.spark.tasks import daemon
from krishiv_py.spark.tasks.processor import BucketProcessor
from krishiv_py.spark.tasks.rows import NO_ANSWER, carried
from krishiv_py.testing import stream_of
from tests.spark.conftest import per_second, row

pytestmark = pytest.mark.two_tasks

Memory = Callable[[], tuple[Stream, Sender]]


def test_all_tasks_share_one_pool_of_workers(memory: Memory) -> None:
    # Spark keeps a pool for every environment of variables: settings that differ between kinds of tasks make a second one.
    stream, sender = memory()
    sender.send([row("a", 100), row("a", 5_000)])
    query = per_second(stream).start(MemorySink(), batches=Batches.available_now())
    query.await_termination()
    assert query.results().num_rows == 1
    assert len(daemons()) == 1


def test_tasks_open_no_port_where_a_stranger_could_call(memory: Memory) -> None:
    # The first that calls is taken for the worker: with a stranger's bytes Spark's server of the state of a task ends, unheard.
    stream, sender = memory()
    query = per_second(stream).start(MemorySink())
    sender.send([row("a", 100)])
    query.process_all_available()
    before, opened, over = listening(), set[int](), threading.Event()

    def watch() -> None:
        while not over.is_set():
            opened.update(listening() - before)

    watching = threading.Thread(target=watch)
    watching.start()
    for i in range(3):
        sender.send([row("a", i * 1_000)])
        query.process_all_available()
    over.set()
    watching.join()
    query.stop()
    assert query.results().num_rows == 1
    assert opened == set()


def test_workers_find_the_installed_pyspark(session: Session) -> None:
    # An archive's modules are compiled again in every process.
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"file": [pyspark.__file__] * batch.num_rows})

    running = SparkSession.getActiveSession()
    assert running is not None
    actual = running.range(1).mapInArrow(where, "file string").collect()
    assert [r.file for r in actual] == [pyspark.__file__]


def test_a_python_the_user_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/chosen/python")
    choose_worker_python()
    assert os.environ["PYSPARK_PYTHON"] == "/chosen/python"


@pytest.mark.parametrize("home", ["/another/spark", None])
def test_the_archive_goes_where_it_is_of_the_pyspark_installed(home: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "")  # noted, so that it is put back
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("SPARK_HOME", home or str(Path(pyspark.__file__).parent))
    choose_worker_python()
    assert (os.environ["PYSPARK_PYTHON"] == sys.executable) == (home is not None)


def test_the_worker_script_takes_nothing_else_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [str(tmp_path / "with a space"), str(tmp_path / "pyspark.zip")]
    archives = ["/opt/x/python/lib/pyspark.zip", "/opt/x/python/lib/py4j-1-src.zip"]
    monkeypatch.setenv("PYTHONPATH", ":".join([archives[0], others[0], archives[1], others[1]]))
    monkeypatch.setenv("KRISHIV_WORKER_PYTHON", sys.executable)
    code = "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:], sep='|')"
    ran = subprocess.run([WORKER, "-c", code, "a b", "*"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "|".join([":".join(others), "a b", "*"])


def test_workers_are_forked_from_a_process_that_has_loaded_what_tasks_need(session: Session) -> None:
    def look(_: int) -> tuple[int, bool, float]:
        import numpy

        return os.getppid(), "krishiv_py.spark.tasks.processor" in sys.modules, float(numpy.random.random())

    seen = session.spark.sparkContext.parallelize(range(2), 2).map(look).collect()
    assert {loaded for _, loaded, _ in seen} == {True}
    assert len({number for _, _, number in seen}) == 2  # chance is not inherited
    (forking,) = {parent for parent, _, _ in seen}
    assert len(os.listdir(f"/proc/{forking}/task")) == 1  # a process with threads must not fork


@pytest.mark.one_in(2)
@pytest.mark.parametrize("fault", ["no library", "a thread", None])
def test_what_cannot_be_loaded_before_is_loaded_by_workers(fault: str | None, tmp_path: Path) -> None:
    env = {**os.environ, "KRISHIV_WORKER_PYTHON": sys.executable, "PYTHONPATH": str(Path(WORKER).parents[3])}
    if fault == "no library":
        (tmp_path / "krishiv_py").mkdir()
        (tmp_path / "krishiv_py/__init__.py").write_text("raise ImportError")
    if fault == "a thread":
        (tmp_path / "sitecustomize.py").write_text(
            "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
        )
    if fault is not None:
        env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    call = [str(WORKER), "-m", "pyspark.daemon", "pyspark.worker"]
    with subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=tmp_path) as process:
        assert process.stdin is not None and process.stdout is not None
        port = int.from_bytes(process.stdout.read(4), "big")
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().split("\0")
        process.stdin.close()
        process.wait(30)
    assert 1_024 < port < 65_536
    assert ("-c" in words) == (fault != "a thread") and "pyspark.daemon" in words


def test_the_worker_on_the_driver_loads_no_kernels() -> None:
    plan = per_second(stream_of("user string, at bigint, amount bigint"))._plan("streaming")
    packed = CPickleSerializer().dumps(carried(BucketProcessor(plan.stage.spec)))  # type: ignore[no-untyped-call]
    code = (
        "import pickle, sys; from pyspark.sql.streaming import transform_with_state_driver_worker\n"
        "before = {*sys.modules}\n"  # Spark 4.1 loads NumPy itself
        "found = pickle.load(sys.stdin.buffer)\n"
        "more = sorted(m for m in {*sys.modules} - before if m.split('.')[0] in ('krishiv_py', 'pyarrow', 'numpy'))\n"
        "print(type(found).__name__, more)"
    )
    ran = subprocess.run([sys.executable, "-c", code], input=packed, capture_output=True, check=True, cwd="/")
    assert ran.stdout.decode().split() == ["Operator", "[]"]


def test_a_server_of_the_state_that_gives_no_answer_ends_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("krishiv_py.spark.tasks.rows.ANSWER_S", 0.2)
    plan = per_second(stream_of("user string, at bigint, amount bigint"))._plan("streaming")
    operator = carried(BucketProcessor(plan.stage.spec))
    for answer in (b"", b"okay"):
        mine, theirs = socket.socketpair()
        with mine, theirs, mine.makefile("rb") as answers:
            client = SimpleNamespace(_client_socket=mine)
            handle: Any = SimpleNamespace(_statefulProcessorApiClient=client, getMapState=lambda *_, a=answers: a.read(4))
            theirs.sendall(answer)
            if answer:
                operator.init(handle)
                assert mine.gettimeout() is None, "later answers may take as long as they need"
            else:
                with pytest.raises(RuntimeError, match=r"gave no answer .got: none in 0.2 s.*Hint: start the query again"):
                    operator.init(handle)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("failures", [1, 2])
def test_a_batch_without_an_answer_of_the_state_is_run_again_once(session: Session, tmp_path: Path, failures: int) -> None:
    def no_answer(rows: pa.RecordBatch) -> pa.RecordBatch:
        if 20 in rows["at"].to_pylist() and len(list(tmp_path.glob("failed-*"))) < failures:
            (tmp_path / f"failed-{uuid.uuid4()}").touch()
            raise RuntimeError(f"{NO_ANSWER} (got: none)")
        return rows

    stream, sender = session.memory_stream("user string, at bigint")
    plan = stream.map_batches(no_answer).watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
    query = plan.start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
    sender.send([{"user": "a", "at": 1}, {"user": "b", "at": 2}])
    query.process_all_available()
    sender.send([{"user": "a", "at": 3}, {"user": "a", "at": 20}])
    with pytest.warns(RuntimeWarning, match="gave no answer to a task; the batch is run again"):
        if failures == 1:
            query.process_all_available()
        else:
            with pytest.raises(OperatorError, match=NO_ANSWER):
                query.process_all_available()
    if failures == 1:
        query.stop()
        assert sorted((r["user"], r["count"]) for r in query.results().to_pylist()) == [("a", 2), ("b", 1)]


def listening() -> set[int]:
    """The ports of TCP at which the JVM and its processes wait for calls."""
    ports: set[int] = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # others end meanwhile
            ports.update(c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
    return ports


def daemons() -> list[psutil.Process]:
    """The processes workers are forked from; each is a child of the JVM."""
    actual = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # others end meanwhile
            parent = process.parent()
            if parent is not None and parent.name() == "java" and "pyspark.daemon" in process.cmdline():
                actual.append(process)
    return actual


def test_a_worker_whose_spark_has_ended_leaves_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[int] = []

    def broken(sock: socket.socket, authenticated: bool) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(daemon, "_WORKER", broken)
    monkeypatch.setattr("os._exit", left.append)
    with socket.socket() as sock:
        daemon._one(sock, True)
    assert left == [0]
