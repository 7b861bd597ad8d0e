"""Sinks that a user wrote, on Spark: results and late rows, exactly once over repeated batches, restarts and kills."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import MemorySink, Sender, Session, SideOutputLateEventHandler, Stream
from krishiv_py.connectors import FrameSink, OutputBatch, TableSink
from krishiv_py.errors import OperatorError, PlanError
from krishiv_py.testing import Driver
from tests.connectors.sinks import CsvSink, SqliteSink
from tests.spark.conftest import DDL, per_second, row, sorted_rows

ROOT = Path(__file__).parents[2]


def read(sink: SqliteSink, name: str) -> list[tuple[Any, ...]]:
    with sink.opened() as database:
        return sorted(database.execute(f"SELECT * FROM {name}"), key=repr)


def take_back(checkpoint: Path, batches: int) -> None:
    """Remove the last commits, as a crash before them would leave the checkpoint."""
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    for commit in commits[-batches:]:
        commit.unlink()
        (commit.parent / f".{commit.name}.crc").unlink(missing_ok=True)


def test_a_transactional_sink_has_every_row_once(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(DDL)
    sink, checkpoint = SqliteSink(tmp_path / "out.db"), tmp_path / "checkpoint"
    plan = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(sink))
    kept = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(MemorySink()))
    driver, results, late = Driver(kept), [], []
    for batch in ([row("a", 10), row("a", 5_000)], [row("a", 20), row("b", 9_000)], [row("b", 30), row("a", 9_100)]):
        query = plan.start(sink, checkpoint=str(checkpoint))
        sender.send(batch)
        query.process_all_available()
        query.stop()
        take_back(checkpoint, 1)
        step = driver.send(batch)
        results += sorted_rows(step.results)
        late += sorted_rows(step.late)
    query = plan.start(sink, checkpoint=str(checkpoint))
    sender.close()
    query.process_all_available()
    query.stop()
    results += sorted_rows(driver.close().results)
    assert read(sink, "results") == sorted(results, key=repr)
    assert read(sink, "late_rows") == sorted(late, key=repr)
    assert len(late) == 2, "the test would prove little without late rows"


def test_files_of_a_users_own_kind_are_written_by_tasks(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(DDL)
    out, late, checkpoint = CsvSink(str(tmp_path / "out")), CsvSink(str(tmp_path / "late")), tmp_path / "checkpoint"
    plan = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(late))
    for batch in ([row("a", 10), row("a", 5_000)], [row("a", 20), row("b", 9_000)]):
        query = plan.start(out, checkpoint=str(checkpoint))
        sender.send(batch)
        query.process_all_available()
        query.stop()
        take_back(checkpoint, 1)
    query = plan.start(out, checkpoint=str(checkpoint))
    query.process_all_available()
    query.stop()
    lines = sorted(line for f in (tmp_path / "out").glob("part-*.csv") for line in f.read_text().splitlines())
    assert lines == ['"a",0,1000,1,1', '"a",5000,6000,1,1']
    (refused,) = [line for f in (tmp_path / "late").glob("part-*.csv") for line in f.read_text().splitlines()]
    assert refused.startswith('"a",20,1,"late",')
    sender.close()
    assert plan.run().late.num_rows == 1  # a bounded run writes them next to those of the query
    assert len(list((tmp_path / "late").glob("part-*.csv"))) == 2


@pytest.mark.slow
def test_a_frame_and_tables_know_their_batch(memory: Callable[[], tuple[Stream, Sender]], tmp_path: Path) -> None:
    seen: list[tuple[Any, ...]] = []

    class Frames(FrameSink):
        """Counts rows on the cluster."""

        def write_frame(self, batch: OutputBatch, frame: Any) -> None:
            assert frame.schema.names == batch.schema.names
            seen.append((batch.output, batch.batch_id, batch.is_replay, batch.query, frame.count()))

    class Tables(TableSink):
        """Counts rows on the driver."""

        def write_tables(self, batch: OutputBatch, tables: Any) -> None:
            seen.append((batch.output, batch.batch_id, batch.is_replay, batch.query, sum(t.num_rows for t in tables)))

    stream, sender = memory()
    plan, checkpoint = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(Tables())), tmp_path / "checkpoint"
    for batch in ([row("a", 10), row("b", 5_000)], [row("a", 20)]):
        sender.send(batch)
        with plan.start(Frames(), checkpoint=str(checkpoint), name="seen") as query:
            query.process_all_available()
    take_back(checkpoint, 1)
    before = len(seen)
    with plan.start(Frames(), checkpoint=str(checkpoint), name="seen") as query:
        query.process_all_available()
    assert [s[2] for s in seen[:before]] == [False] * before
    last = seen[before - 2 : before]
    assert seen[before:] == [(o, n, True, *rest) for o, n, _, *rest in last]
    assert sum(s[4] for s in seen[:before] if s[0] == "results") == 1
    assert sum(s[4] for s in seen[:before] if s[0] == "late_rows") == 1


def test_what_a_sink_raises_fails_the_query_by_name(memory: Callable[[], tuple[Stream, Sender]], tmp_path: Path) -> None:
    stream, sender = memory()
    sender.send([row("a", 10), row("b", 5_000)])
    query = per_second(stream).start(SqliteSink(tmp_path / "missing" / "out.db"))
    with pytest.raises(OperatorError, match=r"the sink SqliteSink failed .*batch 0.*unable to open"):
        query.process_all_available()
    for wrong in (5, SqliteSink, object()):
        with pytest.raises(PlanError, match=r"results cannot go to this sink .*Hint: "):
            per_second(stream).start(wrong)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_process_killed_inside_a_transaction_goes_on_exactly(tmp_path: Path) -> None:
    """Killed between write and commit, then after the commit but before the checkpoint says so."""
    source, work = tmp_path / "in", tmp_path / "work"
    source.mkdir()
    work.mkdir()
    schema = pa.schema([("user", pa.string()), ("n", pa.int64())])
    arrived = [[("a", 1), ("b", 25)], [("a", 2), ("b", 47)], [("a", 30), ("a", 61)]]
    for number, rows in enumerate(arrived):
        path = source / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist([{"user": u, "n": n} for u, n in rows], schema), path)
        os.utime(path, (1_600_000_000 + number,) * 2)
    for point, batch, code in (("written", 1, -9), ("committed", 2, -9), ("never", 0, 0)):
        command = [sys.executable, "-m", "tests.spark.own_sink_job", str(source), str(work), point, str(batch)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
        assert done.returncode == code, done.stderr[-3_000:]
    sink = SqliteSink(work / "out.db")
    assert read(sink, "results") == [("a", 0, 10, 1), ("a", 60, 70, 1), ("b", 20, 30, 1), ("b", 40, 50, 1)]
    assert [late[:3] for late in read(sink, "late_rows")] == [("a", 2, "late"), ("a", 30, "late")]
