"""Watermarks of Spark's own before and behind ours: refused, or a query that stops, never one that waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from krishiv_py import MemorySink, Sender, Session, SideOutputLateEventHandler, Stream
from krishiv_py.connectors import Sink
from krishiv_py.errors import DurationError, PlanError
from tests.spark.conftest import per_second, row


def test_a_frame_with_a_watermark_is_refused(session: Session) -> None:
    marked = session.spark.readStream.format("rate").load().withWatermark("timestamp", "5 seconds")
    lost = marked.select(F.unix_millis("timestamp").alias("at"))  # the mark on the column is gone, the watermark is not
    for frame, got in (
        (marked, "column 'timestamp'"),
        (marked.select(F.col("timestamp").alias("t")), "column 't'"),
        (lost, "on a column below"),
    ):
        with pytest.raises(PlanError, match=rf"has a watermark of its own .*{got}.*Hint: .*\.watermark\("):
            session.from_dataframe(frame)
    assert session.rate().schema.names == ["timestamp", "value"]


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
        for at in (1_000, 100_000, 200_000):
            sender.send([row("a", at), row("b", at)])
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
