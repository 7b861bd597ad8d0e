"""Spark Connect: bounded runs, streaming DataFrames, and queries with both outputs, restarted from their checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import Session
from krishiv_py.errors import EnvironmentSetupError
from krishiv_py.spark.remote.steps import take_server

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
pytest.importorskip("grpc", reason="the `connect` extra is not installed")

PROGRAM = textwrap.dedent("""
    import tempfile
    import warnings
    from pyarrow.parquet import read_table
    from krishiv_py import MemorySink, ParquetSink, Session, SideOutputLateEventHandler, count
    from krishiv_py.errors import PlanError

    with warnings.catch_warnings(record=True) as said:
        session = Session.connect("local[2]")
    assert not said, said[0].message
    session.spark.conf.set("spark.sql.shuffle.partitions", "1")
    stream, sender = session.memory_stream("user string, at bigint")
    plan = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
    sender.send([{"user": "a", "at": 1}, {"user": "a", "at": 2}, {"user": "b", "at": 20}])
    print(sorted(tuple(r.values()) for r in plan.collect().to_pylist()))
    query = plan.to_dataframe().writeStream.format("memory").queryName("out").outputMode("append").start()
    query.processAllAvailable()
    print([tuple(r) for r in session.spark.table("out").collect()])
    query.stop()
    folder, rows = tempfile.mkdtemp(), MemorySink()
    kept = plan.with_late_event_handler(SideOutputLateEventHandler(ParquetSink(f"{folder}/late")))
    with kept.start(rows, checkpoint=f"{folder}/checkpoint") as query:
        query.process_all_available()
        seen = query.progress
        print(sorted(tuple(r.values()) for r in query.results().to_pylist()), seen.rows, seen.watermark_us, seen.batch_id)
    sender.send([{"user": "b", "at": 30}, {"user": "a", "at": 5}])
    with kept.start(rows, checkpoint=f"{folder}/checkpoint") as query:
        query.process_all_available()
        print(sorted(tuple(r.values()) for r in rows.table().to_pylist()), query.progress.late["late"])
    print(read_table(f"{folder}/late").to_pylist())
    visits, sender = session.memory_stream("user string, at bigint")
    with visits.watermark("at", 0).key_by("user").session_window(10).agg(count()).start(MemorySink()) as query:
        sender.send([{"user": user, "at": 0} for user in "ab"])
        query.process_all_available()
        query.close_key("a")
        sender.send([{"user": user, "at": 5} for user in "ab"])
        sender.close()
        query.process_all_available()
        print(sorted(tuple(r.values()) for r in query.results().to_pylist()), query.progress.counters["close_key_dropped"])
    marked = session.spark.readStream.format("rate").load().withWatermark("timestamp", "5 seconds")
    for frame in (marked.selectExpr("timestamp AS at"), marked.selectExpr("unix_millis(timestamp) AS at")):
        windows = session.from_dataframe(frame).watermark("at", 0).tumbling_window(1_000).agg(count())
        try:
            windows.to_dataframe()
        except PlanError as refused:
            print(refused)
    session.stop()
""")


@pytest.mark.slow
def test_connect() -> None:
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # PySpark's port is taken, by this program or by another one
            held.enter_context(socket.create_server(("", 15_002)))
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3_000:]
    lines = done.stdout.splitlines()
    assert lines[0] == "[('a', 0, 10, 2), ('b', 20, 30, 1)]"
    assert lines[1] == "[('a', 0, 10, 2)]"
    assert lines[2] == "[('a', 0, 10, 2)] 3 20000 1", "that of the batch without rows"
    assert lines[3] == "[('a', 0, 10, 2), ('b', 20, 30, 1)] 1"
    assert lines[4] == "[{'user': 'a', 'at': 5, 'reason': 'late', 'watermark': 20, 'lateness': 15}]"
    assert lines[5] == "[('a', 5, 15, 1), ('b', 0, 15, 2)] 1", "a key is closed in the next batch"
    assert ["to_dataframe() of a DataFrame with a watermark of its own" in line for line in lines[6:8]] == [True, True]


def test_a_process_with_a_session_of_its_own_says_so(session: Session) -> None:
    assert session.spark.range(1).count() == 1
    with pytest.raises(EnvironmentSetupError, match=r"a process has one of them. Hint: stop the Spark session"):
        Session.connect("local[2]")
    assert session.spark.range(2).count() == 2, "it goes on"


@pytest.mark.slow
def test_golden_cases() -> None:
    """Two of them; `nox -s goldens` runs all."""
    some = ("la-own-retract-session", "so-own-quiet-goes-on")
    command = [sys.executable, "-m", "tests.goldens", "--engine", "connect", "--only", ",".join(some)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-3_000:]
    assert f"{len(some)} passed" in done.stdout


KILLED = textwrap.dedent("""
    import os
    import sys
    import time
    from pyspark import SparkContext
    from krishiv_py import Session, count
    from krishiv_py.connectors import TableSink
    from krishiv_py.errors import KrishivError

    work = sys.argv[1]

    class Files(TableSink):
        def write_tables(self, batch, tables):
            if batch.batch_id == 1 and os.path.exists(f"{work}/hold"):
                open(f"{work}/holding", "w").close()
                time.sleep(600)
            with open(f"{work}/out/{batch.batch_id}", "w") as out:
                out.writelines(f"{row}\\n" for t in tables for row in t.to_pylist())

    with Session.connect("local[1]") as session:
        with open(f"{work}/jvm", "w") as out:
            out.write(str(SparkContext._active_spark_context._gateway.proc.pid))
        session.spark.conf.set("spark.sql.shuffle.partitions", "1")
        stream = session.read_parquet(f"{work}/in", "user string, n bigint", streaming=True, max_files_per_batch=1)
        plan = stream.watermark("n", 0).key_by("user").tumbling_window(10).agg(count())
        query = plan.start(Files(), checkpoint=f"{work}/checkpoint", name="killed")
        try:
            query.process_all_available()
        except KrishivError as problem:
            print(type(problem).__name__, query.status, query.progress.batch_id, flush=True)
            query.stop()
            sys.exit(3)
        print(query.status, query.progress.batch_id, query.progress.rows)
        query.stop()
""")


@pytest.mark.slow
def test_a_killed_server_frees_its_checkpoint_within_seconds(tmp_path: Path) -> None:
    """Killed in the middle of a batch: its Python process, which writes that batch, does not hold the checkpoint longer."""
    for folder in ("in", "out"):
        (tmp_path / folder).mkdir()
    for number, i in enumerate((1, 25, 47)):
        path = tmp_path / "in" / f"{number}.parquet"
        pq.write_table(pa.table({"user": ["a", "a"], "n": [i, i + 1]}), path)
        os.utime(path, (1_600_000_000 + number,) * 2)
    (tmp_path / "hold").touch()
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
        end = time.monotonic() + 200
        while not (tmp_path / "holding").exists() and client.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        try:
            os.kill(int((tmp_path / "jvm").read_text()), signal.SIGKILL)
            began = time.monotonic()
            take_server(str(tmp_path / "checkpoint"), "the next", 30).release()
            freed = time.monotonic() - began
            said, complaints = client.communicate(timeout=60)
            ended = time.monotonic() - began
        finally:
            client.kill()
    assert freed < 15, f"the checkpoint was freed after {freed:.0f} s"
    assert (client.returncode, said.split()[1:]) == (3, ["failed", "0"]), complaints[-3_000:]
    assert ended < 30, f"the client ended after {ended:.0f} s"
    (tmp_path / "hold").unlink()
    again = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert again.returncode == 0, again.stderr[-3_000:]
    assert again.stdout.split()[0::2] == ["running", "6"]
    fired = [line for out in (tmp_path / "out").iterdir() for line in out.read_text().splitlines()]
    assert sorted(fired) == [f"{{'user': 'a', 'window_start': {n}, 'window_end': {n + 10}, 'count': 2}}" for n in (0, 20)]


def over_connect(*tests: str) -> None:
    """Tests of other files, with a client's session in place of one of this process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    where = {**os.environ, "KRISHIV_SESSION": "connect"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=Path(__file__).parents[2], env=where)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6_000:]
    assert f"{len(tests)} passed" in done.stdout


@pytest.mark.slow
def test_sources_that_the_library_plans() -> None:
    """Planned in the server's process: next to a memory stream, and made to wait over a restart. `nox -s goldens` has Kafka."""
    sources, drift = "tests/spark/test_own_sources.py", "tests/spark/test_max_drift.py"
    over_connect(
        f"{sources}::test_a_source_beside_a_memory_stream",
        f"{drift}::test_memory_streams_wait_too_over_a_restart_and_none_loses_a_send",
    )
