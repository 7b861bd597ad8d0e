"""Ctrl-C is one KeyboardInterrupt, at once and quietly; a JVM that was killed is reported in our words."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import Batches, MemorySink, Session, Stream
from krishiv_py.errors import SessionClosedError
from tests.spark.conftest import calm, per_second, row

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
LONG_S = 300
KILLED = "-- the JVM is killed --"


@pytest.mark.slow
def test_a_session_that_is_interrupted_and_then_loses_its_jvm(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.test_interrupts", str(tmp_path)]
    # a process group of its own, as a terminal's job has: Ctrl-C goes to all of it
    run = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**calm(), "TMPDIR": str(tmp_path)},
    )
    out, err = run.communicate(timeout=LONG_S - 60)
    assert run.returncode == 0 and out.split() == ["interrupted"] * 3 + ["cancelled", "running", "gone", "again"], (out, err)
    assert err.partition(KILLED)[0] == "" and KILLED in err  # what py4j logs once nobody answers is its own
    assert not list(tmp_path.glob("krishiv-*/session-*")) and not list(tmp_path.glob("spark-*"))


@pytest.mark.parametrize(
    ("file", "raised", "shown"),
    [
        ("py4j/java_gateway.py", "KeyboardInterrupt", False),
        ("py4j/java_gateway.py", "ValueError", True),
        ("app.py", "KeyboardInterrupt", True),
    ],
)
def test_only_py4j_keeps_quiet_about_ctrl_c(file: str, raised: str, shown: bool, caplog: pytest.LogCaptureFixture) -> None:
    from krishiv_py.spark.setup.jvm import hush_py4j  # loads Spark

    hush_py4j()
    log = f"import logging\ntry:\n    raise {raised}\nexcept BaseException:\n    logging.exception('while sending')"
    exec(compile(log, file, "exec"), {})
    assert ("while sending" in caplog.text) == shown


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Tell that the task has begun, then outlast the test; only for rows of the slow user."""
    for folder in batch["user"].to_pylist():
        if folder != "quick":
            Path(folder, "begun").touch()
            time.sleep(LONG_S)
    return batch


def interrupt_when(begun: Path | None) -> None:
    """Press Ctrl-C once the file is there."""

    def press() -> None:
        while begun is not None and not begun.exists():
            time.sleep(0.05)
        time.sleep(0.5)
        os.killpg(os.getpgid(0), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


def slow_plan(session: Session, folder: Path) -> Stream:
    pq.write_table(pa.table({"user": [str(folder)], "at": [1], "amount": [1]}, schema=SCHEMA), folder / "slow.parquet")
    return session.read_parquet(str(folder / "slow.parquet")).map_batches(slow, SCHEMA)


def main(folder: Path) -> None:
    """Interrupt a bounded run and both ways to wait for a query; kill the JVM; start with a new checkpoint."""
    with Session.builder().master("local[2]").get_or_create() as session:
        stream, sender = session.memory_stream(SCHEMA)
        query = per_second(stream).start(MemorySink(), name="lives on")
        sender.send([row("quick", 10)])
        query.process_all_available()
        for wait, begun in (
            (per_second(slow_plan(session, folder)).collect, folder / "begun"),
            (query.await_termination, None),
            (query.process_all_available, None),
        ):
            interrupt_when(begun)
            try:
                while True:
                    wait()  # process_all_available() has nothing to wait for
            except KeyboardInterrupt:
                print("interrupted")
        tracker, end = session.spark.sparkContext.statusTracker(), time.monotonic() + 60
        while tracker.getActiveJobsIds() and time.monotonic() < end:
            time.sleep(0.1)
        print("cancelled" if not tracker.getActiveJobsIds() else "still running")
        sender.send([row("quick", 5_000)])
        query.process_all_available()
        print(query.status)
        gone(session, query, stream)
    with Session.builder().master("local[2]").get_or_create() as session:
        stream, sender = session.memory_stream(SCHEMA)
        sender.send([row("quick", 10)])
        assert per_second(stream).collect().num_rows == 1
        print("again")


def gone(session: Session, query: object, stream: Stream) -> None:
    """What is said when nobody answers any more."""
    from krishiv_py.spark.query import StreamQuery  # loads Spark, and this module is also imported by workers

    assert isinstance(query, StreamQuery)
    print(KILLED, file=sys.stderr, flush=True)
    os.kill(session.spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
    session.spark.sparkContext._gateway.proc.wait()
    assert query.status == "failed" and "failed" in repr(query) and "JVM has gone" in query._repr_html_()
    assert query.progress.rows == 2 and query.id and "transformWithState" in query.explain()
    assert isinstance(query.exception(), SessionClosedError)
    plan = per_second(stream)
    for call in (
        query.await_termination,
        query.process_all_available,
        plan.collect,
        lambda: plan.start(MemorySink()),
        lambda: plan.start(MemorySink(), batches=Batches.available_now(flush=True)),
    ):
        with pytest.raises(SessionClosedError):
            call()
    query.stop()
    query.stop()
    print("gone")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
