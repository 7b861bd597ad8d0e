"""Generated events as JSON in topics: row i of the input is record ``i // PARTITIONS`` of partition ``i % PARTITIONS``.

So the parts of the input are ranges of offsets that are equally long in each partition, and a batch of k parts holds the same
rows on every side: the connector shares a limit of records among partitions by what waits in them, and so does the library
where all records were written at one time. Therefore all have one. In a topic by
key the records have their user as key, and its number says the partition; no side with batches reads that.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from confluent_kafka import Producer

from benchmarks.data import parts_of
from krishiv_py.connectors.kafka.client import admin_module

PARTITIONS = 4


def values(table: pa.Table) -> list[bytes]:
    """The rows as JSON objects; event time in milliseconds."""
    millis = pc.divide(table["event_time"].cast(pa.int64()), 1_000)
    texts = [column.cast(pa.string()) for column in (table["user_id"], millis, table["amount"])]
    pieces: list[Any] = ['{"user_id":', texts[0], ',"event_time":', texts[1], ',"amount":', texts[2], "}"]
    joined: list[bytes] = pc.binary_join_element_wise(*pieces, "").cast(pa.binary()).to_pylist()
    return joined


def made(address: str) -> str:
    """A new topic."""
    topic = f"events-{uuid.uuid4().hex[:8]}"
    admin = admin_module().AdminClient({"bootstrap.servers": address})  # it must outlive what it was asked for
    for future in admin.create_topics([admin_module().NewTopic(topic, PARTITIONS, 1)]).values():
        future.result()
    return topic


def fill(address: str, folder: Path, parts: int | None = None, *, by_key: bool = False) -> tuple[str, int]:
    """Make a topic of the first parts of a data folder; its name and how many records it has."""
    topic = made(address)
    producer = Producer(
        {"bootstrap.servers": address, "linger.ms": 50, "batch.size": 1 << 18, "queue.buffering.max.messages": 500_000}
    )
    sent, written_ms = 0, int(time.time() * 1_000)
    for path in parts_of(folder)[:parts]:
        table = pq.read_table(path, partitioning=None)
        if table.num_rows % PARTITIONS:
            raise SystemExit(f"a part has {table.num_rows} events, no multiple of {PARTITIONS}: batches would differ by side")
        for value, user in zip(values(table), table["user_id"].to_pylist(), strict=True):
            place = {"key": str(user), "partition": user % PARTITIONS} if by_key else {"partition": sent % PARTITIONS}
            while True:
                try:
                    producer.produce(topic, value, timestamp=written_ms, **place)
                    break
                except BufferError:
                    producer.poll(0.1)
            sent += 1
        producer.poll(0)
    if left := producer.flush(120):
        raise SystemExit(f"{left} records did not reach the broker")
    return topic, sent
