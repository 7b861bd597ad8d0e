"""Results that are handed over to plain Spark: with a watermark, before every operator that Spark has."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from krishiv_py import Batches, ResultStream, Sender, Session, Stream, count, sum
from krishiv_py.connectors.sink import OutputBatch
from krishiv_py.errors import CheckpointError, PlanError
from krishiv_py.spark.frames import HandOver, ResultTimes, folder_below
from krishiv_py.testing import stream_of
from tests.spark.conftest import DDL, per_second, row

Memory = Callable[[], tuple[Stream, Sender]]


def chain(stream: Stream) -> ResultStream:
    """Windows of a second by user, and sums of five."""
    return per_second(stream, 0).key_by("user").tumbling_window(5_000).agg(sum("count").alias("n"))


@contextmanager
def reading(frame: DataFrame, name: str, checkpoint: Path | None = None) -> Iterator[Any]:
    """A query of plain Spark into a memory table, or files next to the checkpoint."""
    writer = frame.writeStream.outputMode("append")
    if checkpoint is None:
        query = writer.format("memory").queryName(name).start()
    else:
        query = writer.format("parquet").option("checkpointLocation", str(checkpoint)).start(str(checkpoint) + "-out")
    try:
        yield query
    finally:
        query.stop()


def through(session: Session, query: Any) -> None:
    """Let both queries do what there is."""
    session.queries[-1].process_all_available()
    query.processAllAvailable()


def at(ms: int) -> dt.datetime:
    """As rows of Spark show it in UTC."""
    return dt.datetime.fromtimestamp(ms / 1_000, dt.timezone.utc).replace(tzinfo=None)


@pytest.mark.slow
def test_every_operator_of_spark_follows_a_chain(session: Session, memory: Memory) -> None:
    session.spark.conf.set("spark.sql.session.timeZone", "UTC")
    stream, sender = memory()
    frame = chain(stream).to_dataframe(checkpoint=session.temporary_folder("cp"), watermark="0 s")
    assert frame.columns == ["user", "window_start", "window_end", "n", "window_time"] and frame.isStreaming
    frame = frame.filter("user <> 'c'")  # which Spark would push below the watermark
    once = frame.dropDuplicatesWithinWatermark(["user", "window_end"])
    ten = once.groupBy(F.window("window_time", "10 seconds"), "user").agg(F.sum("n").alias("n"))
    sender.send([row(user, t) for t in (5_100, 10_100) for user in "abbc"])
    sender.send([row(user, 15_100) for user in "abbc"])
    session.queries[-1].process_all_available()
    with reading(ten, "ten") as query:
        through(session, query)
        given = session.spark.table("ten").selectExpr("window.end", "user", "n").collect()
        assert sorted(map(tuple, given)) == [(at(10_000), "a", 1), (at(10_000), "b", 2)]  # although no result came behind it
        sender.close()
        through(session, query)
    given = session.spark.table("ten").selectExpr("window.end", "user", "n").collect()
    assert sorted(map(tuple, given))[2:] == [(at(20_000), "a", 2), (at(20_000), "b", 4)]


@pytest.mark.slow
def test_rows_ahead_of_their_watermark_make_none_late(session: Session, memory: Memory) -> None:
    stream, sender = memory()
    once = stream.watermark("at", "100 s").drop_duplicates("user", "at", within="10 s")
    frame = once.to_dataframe(checkpoint=session.temporary_folder("cp"), watermark=0)
    counted = frame.groupBy(F.window("window_time", "10 seconds")).count().selectExpr("unix_seconds(window.end)", "count")
    with reading(counted, "ahead") as query:
        for seconds in ((90,), (5, 3), (120, 25)):  # 120 makes the watermark 20
            sender.send([row("a", second * 1_000) for second in seconds])
            through(session, query)
        assert [tuple(r) for r in session.spark.table("ahead").collect()] == [(10, 2)]
        sender.close()
        through(session, query)
    assert sorted(tuple(r) for r in session.spark.table("ahead").collect()) == [(10, 2), (30, 1), (100, 1), (130, 1)]


def test_both_queries_go_on_exactly_once(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(DDL, spool=str(tmp_path / "spool"))
    ours, theirs = str(tmp_path / "ours"), tmp_path / "theirs"
    for half in (range(1, 3), range(4, 6)):
        frame = chain(stream).to_dataframe(checkpoint=ours, name="handing over")
        with pytest.raises(CheckpointError, match="handing over"):
            chain(stream).to_dataframe(checkpoint=ours)
        windows = frame.withWatermark("window_time", "1 second").groupBy(F.window("window_time", "10 seconds")).agg(F.sum("n"))
        for n in half:
            sender.send([row("a", n * 5_000 + i) for i in range(n + 1)])
        session.queries[-1].process_all_available()
        with reading(windows, "", theirs) as query:
            through(session, query)
        if half[0] == 1:
            sender.send([row("a", 20_000)])  # while nobody reads
        session.queries[-1].process_all_available()
        session.queries[-1].stop()
    done = session.spark.read.parquet(f"{theirs}-out").selectExpr("unix_millis(window.end)", "`sum(n)`").collect()
    assert sorted(map(tuple, done)) == [(10_000, 2), (20_000, 3)]


@pytest.mark.slow
def test_what_failed_is_reported_to_the_reader_and_taken_back(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(DDL, spool=str(tmp_path / "spool"))
    broken = tmp_path / "broken"

    def strict(batch: Any) -> Any:
        if broken.exists():
            raise ValueError("out of order")
        return batch

    def frame() -> DataFrame:
        plan = stream.map_batches(strict).watermark("at", 0).tumbling_window(1_000).agg(count())
        actual: DataFrame = plan.to_dataframe(checkpoint=str(tmp_path / "ours"), clean=True)
        return actual.filter("count > 0").select("window_end", "count")

    broken.touch()
    sender.send([row("a", 1), row("a", 1_001)])
    failed = pytest.raises(StreamingQueryException, match=r"(?s)hands results over to this one, failed: .*out of order")
    with reading(frame(), "", tmp_path / "theirs") as query, failed:
        query.awaitTermination(30)
    broken.unlink()
    with reading(frame(), "", tmp_path / "theirs") as query:
        sender.close()
        through(session, query)
        session.queries[-1].stop()
    done = session.spark.read.parquet(str(tmp_path / "theirs-out")).collect()
    assert sorted(map(tuple, done)) == [(1_000, 1), (2_000, 1)]


def test_a_folder_that_was_moved_is_refused(tmp_path: Path) -> None:
    plan = per_second(stream_of(DDL))._plan("streaming")
    schema = plan.outputs[0].schema

    def sink(name: str) -> HandOver:
        times = ResultTimes.of(plan.stages[-1], schema)
        return HandOver(folder_below(str(tmp_path / name)), schema, plan.stages[-1], times, None)

    sink("a").check("results", schema)
    os.rename(tmp_path / "a", tmp_path / "b")
    sink("b").check("results", schema)  # nothing was handed over
    batch = OutputBatch("0a1b", "q", "results", 7, False, schema)
    sink("b").write_tables(batch, [schema.empty_table()])
    assert sink("b").last_committed(batch) is None, "nothing to tell"
    one = pa.Table.from_pylist([{"user": "a", "window_start": 0, "window_end": 1_000, "count": 1, "sum_amount": None}], schema)
    sink("b").write_tables(batch, [one])
    assert sink("b").last_committed(batch) == 7
    sink("b").check("results", schema)
    os.rename(tmp_path / "b", tmp_path / "a")
    with pytest.raises(
        CheckpointError, match=r"was moved, .*/a/krishiv/handed, before .*/b/krishiv/handed.*Hint: move it back"
    ):
        sink("a").check("results", schema)


def test_what_cannot_be_handed_over_is_refused(session: Session, memory: Memory) -> None:
    stream, _ = memory()
    folder = session.temporary_folder("cp")
    with pytest.raises(PlanError, match=r"watermark=...\) needs a checkpoint"):
        per_second(stream).to_dataframe(watermark=0)
    with pytest.raises(PlanError, match="early results"):
        per_second(stream).to_dataframe(checkpoint=folder, batches=Batches.available_now(snapshot=True))
    for plan in (
        stream.select("at"),
        per_second(stream).select("user"),
        stream.watermark("at", 0).count_window(2).agg(count()),
    ):
        with pytest.raises(PlanError, match="the results have no event time"):
            plan.to_dataframe(checkpoint=folder, watermark=0)


@pytest.mark.slow
def test_streams_are_joined_when_all_there_is_is_handed_over(session: Session, memory: Memory) -> None:
    stream, sender = memory()
    sender.send([row("a", 100), row("a", 200), row("b", 5_000), row("a", 1_500)])
    frame = per_second(stream).to_dataframe(
        checkpoint=session.temporary_folder("cp") + "/a[1]*", watermark="1 s", batches=Batches.available_now(flush=True)
    )
    left = frame.select("user", "count", F.col("window_time").alias("l"))
    right = frame.select(F.col("user").alias("other"), F.col("count").alias("m"), F.col("window_time").alias("r"))
    met = left.join(right, F.expr("user = other AND r BETWEEN l - interval 5 seconds AND l - interval 1 second"), "leftOuter")
    query = met.writeStream.trigger(availableNow=True).format("memory").queryName("at_once").start()
    assert query.awaitTermination(60)
    actual = [tuple(r) for r in session.spark.table("at_once").select("user", "count", "m").collect()]
    assert sorted(actual, key=repr) == [("a", 1, 2), ("a", 2, None), ("b", 1, None)]
