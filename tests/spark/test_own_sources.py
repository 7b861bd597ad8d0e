"""A user's source on Spark: bounded, streaming and restarted give what the driver gives."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from examples.counter_source import CounterSource, per_ten_seconds
from krishiv_py import Batches, MemorySink, ParquetSink, Session, SideOutputLateEventHandler, count
from krishiv_py.api.query import NoRunner
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors import JsonValue, Planned, Source
from krishiv_py.connectors.ranges import RangeSource, node_of
from krishiv_py.errors import CheckpointError, OperatorError, PlanError, SourceError
from krishiv_py.runtime.checkpoint.sparklog import batches_of, offsets_of
from krishiv_py.runtime.ranges.log import RangeReader
from krishiv_py.spark.scan import own_files
from krishiv_py.storage.files import store_at
from krishiv_py.testing import Driver, micro_batches
from tests.spark.conftest import sorted_rows
from tests.spark.test_own_sinks import take_back

COUNTER = CounterSource(900, 150, 7)


def set_end(known: Path, end: int) -> None:
    """Let the source find so many rows; a file that is written in place is empty for a moment."""
    whole = known.with_suffix(".new")
    whole.write_text(str(end))
    whole.replace(known)


class Ticks(Source):
    """Endless: as many rows as were asked for, one range a batch."""

    schema = pa.schema([("at", pa.int64())])

    def __init__(self, known: Path) -> None:
        self.known = known

    def plan(self, last: JsonValue) -> Planned | None:
        """All rows there are after the last ones."""
        begin, end = last if isinstance(last, int) else 0, int(self.known.read_text())
        if end < 0:
            raise ConnectionError("the broker is gone")
        return Planned(end, [[begin, end]]) if end > begin else None

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """One row a second."""
        assert isinstance(planned, list)
        assert list(columns) == ["at"]
        yield pa.record_batch({"at": pa.array(range(*planned), pa.int64())})


def by_the_driver(source: Source) -> tuple[list[Any], list[Any], int]:
    """Results, late rows, and how many batches."""
    node = node_of(source, None)
    plan = per_ten_seconds(Stream(node, node.schema, NoRunner()))
    driver = Driver(plan.with_late_event_handler(SideOutputLateEventHandler(MemorySink())), idle_batches=False)
    outs = [*(driver.send(rows) for rows in micro_batches(source)), driver.close()]
    return (
        sorted_rows(pa.concat_tables([o.results for o in outs])),
        sorted_rows(pa.concat_tables([o.late for o in outs])),
        len(outs),
    )


def sources_of(checkpoint: Path) -> set[int]:
    """Return how many sources of files the batches of a checkpoint have."""
    store, root = store_at(str(checkpoint))
    return {len(offsets_of(store, f"{root}/offsets/{n}")) for n in batches_of(str(checkpoint))}


def shuffled(spark: SparkSession, source: RangeSource, schema: pa.Schema) -> tuple[DataFrame, RangeReader]:
    """Give tasks their ranges by a shuffle, as versions did that wrote checkpoints before."""
    tasks = source.source.parallelism
    frame = own_files(spark, source.log or "", streaming=True, max_files=1)
    named = ", ".join(map(str, range(tasks)))
    frame = frame.selectExpr("path", f"explode(array({named})) AS task").repartition(tasks, "task")
    return frame, RangeReader(schema, source.source, source.name, tasks)


@pytest.mark.parametrize("before", [None, pytest.param(shuffled, marks=pytest.mark.slow)], ids=["new", "shuffled"])
def test_bounded_streaming_and_driver_are_equal_over_restarts(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Any
) -> None:
    """Checkpoints of the plan that shared out ranges by a shuffle go on."""
    if before is not None:
        monkeypatch.setattr("krishiv_py.spark.scan.range_frame", before)
    results, late, batches = by_the_driver(COUNTER)
    assert batches == 7 and len(late) > 5, "the test would prove little without late rows"
    stream = session.read_source(COUNTER, name="counter")
    kept = MemorySink()
    whole = per_ten_seconds(stream).with_late_event_handler(SideOutputLateEventHandler(kept)).run()
    assert (sorted_rows(whole.table), sorted_rows(whole.late)) == (results, late)
    out, aside, checkpoint = tmp_path / "out", tmp_path / "late", tmp_path / "checkpoint"
    plan = per_ten_seconds(stream).with_late_event_handler(SideOutputLateEventHandler(ParquetSink(aside)))
    query = plan.start(ParquetSink(out), checkpoint=str(checkpoint))
    assert "Source counter (finite, 3 columns)" in query.explain()
    written = "ParquetSink (files that tasks write, a repeated batch is replaced)"
    assert f"outputs: results to {written}; late rows to {written}" in query.explain()
    while query.progress.batch_id < 2:
        assert query.status == "running"
        time.sleep(0.05)
    query.stop()
    assert sources_of(checkpoint) == {1}
    monkeypatch.undo()
    take_back(checkpoint, 1)
    moved = tmp_path / "moved"
    checkpoint.rename(moved)  # the log of ranges goes with its checkpoint
    query = plan.start(ParquetSink(out), checkpoint=str(moved), batches=Batches.available_now())
    query.await_termination()
    assert query.progress.rows == 2_700
    assert sources_of(moved) == {1}
    assert sorted_rows(pq.read_table(out)) == results
    assert sorted_rows(pq.read_table(aside)) == late
    query = plan.start(ParquetSink(out), checkpoint=str(moved), batches=Batches.available_now())
    query.await_termination()  # nothing is left
    assert sorted_rows(pq.read_table(out)) == results


@pytest.mark.slow
def test_an_endless_source_is_tried_again(session: Session, tmp_path: Path) -> None:
    known = tmp_path / "known"
    set_end(known, 5)
    source = Ticks(known)
    plan = session.read_source(source).watermark("at", 0).tumbling_window(10).agg(count())
    for refused in (plan.collect, plan.to_dataframe):
        with pytest.raises(PlanError, match=r"collect\(\) needs an end|to_dataframe\(\) needs a log"):
            refused()
    out = MemorySink()
    query = plan.start(out, checkpoint=str(tmp_path / "checkpoint"))
    for end in (12, 25, 40):
        set_end(known, end)
        while query.progress.rows < end:
            assert query.status == "running"
            time.sleep(0.02)
    query.process_all_available()
    assert [(r["window_start"], r["count"]) for r in query.results().to_pylist()] == [(0, 10), (10, 10), (20, 10)]
    set_end(known, -1)
    with pytest.raises((OperatorError, SourceError), match=r"the source Ticks cannot plan .*position 40.*the broker is gone"):
        query.await_termination("60 s")
    set_end(known, 55)
    query = plan.start(out, checkpoint=str(tmp_path / "checkpoint"), batches=Batches.available_now())
    query.await_termination()
    assert [(r["window_start"], r["count"]) for r in query.results().to_pylist()][3:] == [(30, 10), (40, 10)]
    ranges = sorted((tmp_path / "checkpoint" / "krishiv" / "ranges" / "0").glob("*.parquet"))
    assert 1 <= len(ranges) <= 5
    ranges[-1].unlink()
    with pytest.raises(CheckpointError, match=rf"{ranges[-1].name}.* is missing"):
        plan.start(out, checkpoint=str(tmp_path / "checkpoint"))


def test_a_source_next_to_a_memory_stream(session: Session, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text("30")
    sent, sender = session.memory_stream("at bigint")
    both = session.union({"sent": sent, "ticks": session.read_source(Ticks(known))})
    query = both.watermark("at", 0).tumbling_window(10).agg(count()).start(MemorySink())
    sender.send([{"at": 5}, {"at": 100}])
    query.process_all_available()
    while query.progress.rows < 32:
        assert query.status == "running"
        time.sleep(0.02)
    query.process_all_available()
    query.stop()
    assert query.progress.counters["rows"] == 32
    assert sum(query.results()["count"].to_pylist()) + query.progress.late["late"] == 31


class Broken(CounterSource):
    """Cannot read its second batch."""

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Fail, or read."""
        if isinstance(planned, dict) and planned["begin"]:
            raise OSError("connection reset")
        yield from super().read(planned, columns)


def test_what_cannot_be_read_fails_the_query_by_name(session: Session) -> None:
    plan = per_ten_seconds(session.read_source(Broken(300, 150, 7)))
    query = plan.start(MemorySink())
    said = r"the source Broken cannot be read .*begin.: 150.*connection reset"
    with pytest.raises(SourceError, match=said):
        query.await_termination("60 s")
    with pytest.raises(SourceError, match=said):
        plan.collect()
    empty = per_ten_seconds(session.read_source(CounterSource(0, 1, 7)))
    assert empty.collect().num_rows == 0
