"""Windows over a Kafka topic in Quix Streams: its own windows, RocksDB state without a changelog topic, at least once.

Quix keeps state by the key of a record and its partition, so it is given a topic whose records have their key and lie in the
partition of the key (``kafka/topics.py``); from any other it would write all of them to a second topic first. Windows close by
the time of their partition. It never says that input has ended, so it is stopped after the last record.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition
from quixstreams import Application
from quixstreams.dataframe.windows import Count, Sum

from benchmarks.kafka.task import task_of
from benchmarks.peers.common import file_next_to, unsupported

NAME = "kafka_quix"
SCHEMA = pa.schema([(n, pa.int64()) for n in ("user_id", "window_start", "window_end", "count", "sum_amount")])
Row = tuple[int, int, int, int, int]


class Results:
    """The rows of the results, written in chunks; times in microseconds."""

    def __init__(self, path: Path) -> None:
        self.writer, self.rows = pq.ParquetWriter(path, SCHEMA), list[Row]()

    def add(self, window: dict[str, int], key: bytes, time: int, headers: Any) -> None:
        """Take a result."""
        self.rows.append((int(key), window["start"] * 1_000, window["end"] * 1_000, window["count"], window["sum_amount"]))
        if len(self.rows) >= 100_000:
            self.flush()

    def flush(self) -> None:
        """Write what is held."""
        if self.rows:
            columns = [pa.array(column, pa.int64()) for column in zip(*self.rows, strict=True)]
            self.writer.write_table(pa.table(columns, schema=SCHEMA))
            self.rows = []

    def close(self) -> None:
        """Write the rest."""
        self.flush()
        self.writer.close()


def waiting(address: str, topic: str) -> int:
    """How many records the topic has."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": NAME})
    partitions = consumer.list_topics(topic).topics[topic].partitions
    bounds = [consumer.get_watermark_offsets(TopicPartition(topic, number)) for number in partitions]
    consumer.close()
    return sum(high - low for low, high in bounds)


def event_time(value: dict[str, int], headers: Any, timestamp: float, kind: Any) -> int:
    """Time of a record."""
    return value["event_time"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one job to the end that the topic has now."""
    given = task_of(argv, NAME)
    job, left = given.task.job, waiting(given.address, given.topic)
    if job.kind != "tumbling":
        raise unsupported(NAME, job, "its sessions end elsewhere")

    def processed(topic: str, partition: int, offset: int) -> None:
        nonlocal left
        left -= 1
        if not left:
            app.stop()

    app = Application(
        given.address,
        consumer_group=given.topic,
        auto_offset_reset="earliest",
        use_changelog_topics=False,
        state_dir=file_next_to(given.task.out, "checkpoint"),
        on_message_processed=processed,
        loglevel="ERROR",
    )
    events = app.dataframe(app.topic(given.topic, timestamp_extractor=event_time))
    windows = events.tumbling_window(job.size_ms, grace_ms=job.lag_ms, on_late=lambda *_: False)
    results = Results(given.task.out / "result.parquet")
    totals = windows.agg(count=Count(), sum_amount=Sum("amount")).final(closing_strategy="partition")
    totals.update(results.add, metadata=True)
    app.run()
    results.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
