"""Watermarks of Spark's own before and behind ours: refused, or a query that stops, never one that waits for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from krishiv_py import (
    Batches,
    MemorySink,
    ResultStream,
    Sender,
    Session,
    SideOutputLateEventHandler,
    Stream,
    WatermarkSpec,
    count,
    sum,
)
from krishiv_py.connectors import Sink
from krishiv_py.errors import DurationError, PlanError
from krishiv_py.testing import Driver, stream_of
from tests.spark.conftest import per_second, row


def seconds(*values: float | None) -> pa.Table:
    """Rows at these seconds since 1970, each with its place as `n`."""
    moment = pa.array([None if v is None else round(v * 1_000_000) for v in values], pa.int64())
    return pa.table({"at": moment.cast(pa.timestamp("us", "UTC")), "n": pa.array(range(len(values)), pa.int64())})


def files(session: Session, folder: Path) -> tuple[DataFrame, Callable[[int, pa.Table], None]]:
    """A stream of files, one a batch, and what puts one there."""
    folder.mkdir()
    reader = session.spark.readStream.schema("at timestamp, n bigint").option("maxFilesPerTrigger", 1)

    def put(number: int, rows: pa.Table) -> None:
        pq.write_table(rows, folder / "_hidden")
        os.utime(folder / "_hidden", (1_000 + number,) * 2)
        os.rename(folder / "_hidden", folder / f"{number}.parquet")

    return reader.parquet(str(folder)), put


def test_the_lag_of_a_frame_is_taken(session: Session) -> None:
    marked = session.spark.readStream.format("rate").load().withWatermark("timestamp", "5 seconds")
    stream = session.from_dataframe(marked.withColumnRenamed("timestamp", "t"))
    assert (
        "with a watermark of its own"
        in stream.rename(t="at").filter("value > 0").watermark("at").count_window(1).agg(count()).explain()
    )
    assert stream.rename(t="at").watermark("at")._draft.input.spec == WatermarkSpec.fixed_lag("5 s")
    missing = marked.select(F.unix_millis("timestamp").alias("at"))  # the mark on the column is gone, the watermark is not
    for other, column in (
        (session.from_dataframe(missing), "at"),
        (stream.with_column("t", "t + INTERVAL '1' SECOND"), "t"),
        (session.rate(), "timestamp"),
    ):
        with pytest.raises(DurationError, match=r"the watermark has no `lag` .*Hint: .*\.watermark\("):
            other.watermark(column)
    with pytest.raises(PlanError, match=r"DataFrame with a watermark of its own .*checkpoint="):
        stream.watermark("t").tumbling_window("1 s").agg(count()).to_dataframe()


def chained(stream: Stream, late: MemorySink) -> ResultStream:
    """Windows of a second, and how many rows two of them have."""
    first = stream.watermark("at", "1 s").tumbling_window("1 s").agg(count(), sum("n"))
    return first.with_late_event_handler(SideOutputLateEventHandler(late)).tumbling_window("2 s").agg(sum("count"))


@pytest.mark.slow
def test_windows_over_a_frame_with_a_watermark(session: Session, tmp_path: Path) -> None:
    batches = [seconds(*s) for s in ((-3, 0.2, 1.5), (0.9, 4.1, None), (2.2, 3.0, 4.2), (9.0,))]
    late, wanted, out = MemorySink(), MemorySink(), MemorySink()
    driver, results = Driver(chained(stream_of(batches[0].schema), wanted)), list[dict[str, Any]]()
    frame, put = files(session, tmp_path / "in")
    marked = session.from_dataframe(frame.withWatermark("at", "1 day").withColumn("at", F.expr("at + INTERVAL '0' SECOND")))
    for part in (range(0, 2), range(2, 4)):
        with chained(marked, late).start(out, checkpoint=str(tmp_path / "cp")) as query:
            for n in part:
                put(n, batches[n])
                results += driver.send(batches[n]).results.to_pylist()
                query.process_all_available()
                assert query.results().to_pylist() == results  # without any other input
    assert len(results) == 3
    tables = late.table(), wanted.table()
    assert tables[0] is not None and tables[1] is not None
    assert sorted(map(str, tables[0].to_pylist())) == sorted(map(str, tables[1].to_pylist()))


@pytest.mark.slow
def test_operators_of_spark_stand_before_windows(session: Session, tmp_path: Path) -> None:
    frame, put = files(session, tmp_path / "in")
    once = frame.withWatermark("at", "2 seconds").dropDuplicatesWithinWatermark(["n"])
    ten = once.groupBy(F.window("at", "10 seconds")).agg(F.sum("n").alias("n")).select("n", F.window_time("window").alias("at"))
    plan = session.from_dataframe(ten).watermark("at", 0).tumbling_window("20 s").agg(sum("n"))
    actual: list[tuple[Any, ...]] = []
    for last, part in enumerate((((1.0, 2.0, 11.0), (1.0, 5.0, 23.0)), ((30.0,), (44.0, 45.0, 70.0)))):
        for rows in part:
            put(len(os.listdir(tmp_path / "in")), seconds(*rows))
        until = Batches.available_now(flush=bool(last))
        with plan.start(MemorySink(), checkpoint=str(tmp_path / "cp"), batches=until) as query:
            assert query.await_termination("60 s")
        actual += [tuple(r.values()) for r in query.results().to_pylist()]
    assert [(start.second, end.second, n) for start, end, n in actual] == [(0, 20, 3), (20, 40, 0), (40, 0, 1)]


def test_in_a_bounded_frame_a_watermark_means_nothing(session: Session) -> None:
    frame = session.spark.range(3).selectExpr("timestamp_seconds(id) AS at").withWatermark("at", "1 second")
    assert session.from_dataframe(frame).schema.names == ["at"]


def test_a_watermark_behind_to_dataframe_stops_the_query(session: Session, memory: Callable[[], tuple[Stream, Sender]]) -> None:
    stream, sender = memory()
    frame = per_second(stream).to_dataframe()
    again = frame.withColumn("t", F.timestamp_millis("window_end")).withWatermark("t", "0 seconds")
    counted = again.groupBy(F.window("t", "1 minute")).count()
    query = counted.writeStream.format("noop").outputMode("append").start()
    try:
        for moment in (1_000, 100_000, 200_000):
            sender.send([row("a", moment), row("b", moment)])
        with pytest.raises(StreamingQueryException, match=r"another watermark holds back the one of to_dataframe\(\)"):
            query.processAllAvailable()
    finally:
        query.stop()


def test_a_sink_nobody_writes_to_is_refused(memory: Callable[[], tuple[Stream, Sender]]) -> None:
    class Own(Sink):
        """Nobody knows it."""

    stream, _ = memory()
    with pytest.raises(PlanError, match=r"results cannot go to this sink .*Hint: .*ForeachBatchSink"):
        per_second(stream).start(Own())
    with pytest.raises(PlanError, match="late rows cannot go to this sink"):
        SideOutputLateEventHandler(Own())


@pytest.mark.parametrize("timeout", [2])
def test_a_time_to_wait_needs_a_unit(memory: Callable[[], tuple[Stream, Sender]], timeout: Any) -> None:
    stream, _ = memory()
    with per_second(stream).start(MemorySink()) as query:
        with pytest.raises(DurationError, match=r'`timeout` has no unit .*Hint: write "2 s"'):
            query.await_termination(timeout)
        assert not query.await_termination("1 ms")
