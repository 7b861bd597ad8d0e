"""The topic that jobs read, and what they must give: by the test driver, and once more in plain Python."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from typing import Any, Final

import attrs
import pyarrow as pa
from confluent_kafka import IsolationLevel, Producer, TopicPartition

from krishiv_py import MemorySink, SideOutputLateEventHandler
from krishiv_py.api.query import NoRunner
from krishiv_py.api.stages.stream import Stream
from krishiv_py.compat import changes, fold
from krishiv_py.connectors import kafka_source
from krishiv_py.connectors.kafka.client import admin_module
from krishiv_py.connectors.ranges import node_of
from krishiv_py.testing import Driver, MicroBatch, micro_batches
from tests.kills.job import BATCH, GAP_MS, LAG_MS, LATENESS_MS, SCHEMA, plan

PARTITIONS, PORTION = 3, 100
LATE: Final = ("user", "at", "amount", "reason", "watermark", "malformed_partition", "malformed_offset")
"""Columns of late rows that are compared: those that every target writes alike."""
Rows = Counter[tuple[Any, ...]]


@attrs.frozen
class Expected:
    """What the targets must hold: the change log, the table it tells, late rows, and the counts of the query."""

    log: Rows
    table: Rows
    late: Rows
    counts: str
    batches: int


def counted(rows: list[dict[str, Any]], columns: tuple[str, ...] | None = None) -> Rows:
    """Every row, and how often."""
    return Counter(tuple(row[name] for name in columns or sorted(row)) for row in rows)


def make_topics(broker: str, names: dict[str, int]) -> None:
    """Topics with so many partitions."""
    admin = admin_module().AdminClient({"bootstrap.servers": broker})
    new = [admin_module().NewTopic(name, partitions, 1) for name, partitions in names.items()]
    for made in admin.create_topics(new).values():
        made.result()


def fill(broker: str, topic: str, seed: int, portions: int) -> None:
    """Transactions, of which one in six is taken back: rows out of order, late ones, some without a time, some no JSON."""
    make_topics(broker, {topic: PARTITIONS})
    seeded = random.Random(seed)
    to = Producer({"bootstrap.servers": broker, "transactional.id": topic})
    to.init_transactions(60)
    for number in range(portions):
        to.begin_transaction()
        for _ in range(PORTION):
            row = value(seeded, number)
            text = '{"user": 1, "at": ' if row is None else json.dumps(row)
            to.produce(topic, text, partition=seeded.randrange(PARTITIONS))
        if seeded.random() < 1 / 6 and number:
            to.flush()
            to.abort_transaction(60)
        else:
            to.commit_transaction(60)
    await_markers(broker, topic)


def await_markers(broker: str, topic: str) -> None:
    """Until all markers are there: a transaction counts as committed before, and then batches would be cut elsewhere."""
    admin = admin_module().AdminClient({"bootstrap.servers": broker})
    requested = {TopicPartition(topic, number): admin_module().OffsetSpec.latest() for number in range(PARTITIONS)}
    until = time.monotonic() + 60
    while True:
        ends = [
            [actual.result().offset for actual in admin.list_offsets(requested, isolation_level=level).values()]
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        ]
        if ends[0] == ends[1]:
            return
        assert time.monotonic() < until, ends
        time.sleep(0.05)


def value(seeded: random.Random, number: int) -> dict[str, int | None] | None:
    """A row of a portion; None for a value that is not a row."""
    kind, i = seeded.random(), number * 1_000 + seeded.randrange(1_500)
    if kind < 0.01:
        return None
    time = None if kind < 0.02 else i - seeded.randrange(1_000, 12_000) if kind < 0.1 else i
    return {"user": seeded.randrange(40), "at": time, "amount": seeded.randrange(1_000)}


def expected(broker: str, topic: str) -> Expected:
    """What the driver gives for the batches of a query; what a plain computation gives must be the same."""
    source = kafka_source(
        topic, bootstrap_servers=broker, schema=SCHEMA, max_offsets_per_batch=BATCH, on_malformed="side_output"
    )
    batches: list[Any] = list(micro_batches(source))
    node = node_of(source, None)
    stream = Stream(node, node.schema, NoRunner())
    driver = Driver(plan(stream, SideOutputLateEventHandler(MemorySink())), idle_batches=False)
    done = [*(driver.send(batch) for batch in batches), driver.tick(), driver.close()]
    given = pa.concat_tables(step.results for step in done)
    log = given.to_pylist()
    late = [row for step in done for row in step.late.to_pylist()]
    actual = driver.progress.late
    table = fold(changes(given))
    plain_table, plain_late = plain(batches)
    assert counted(table, ("user", "window_start", "window_end", "count", "sum_amount")) == plain_table
    assert counted([row for row in late if row["reason"] != "malformed"], ("user", "at", "amount")) == plain_late
    assert {"-U", "-D"} & {row["op"] for row in log} and {"late", "null_time", "malformed"} <= {r["reason"] for r in late}
    counts = f"{driver.progress.rows} {actual['late']} {actual['malformed']}"
    return Expected(counted(log), counted(table), counted(late, LATE), counts, len(batches))


def plain(batches: list[MicroBatch]) -> tuple[Rows, Rows]:
    """Sessions of all rows that are not late (SEMANTICS §3.3, §4.2), and those that are."""
    kept: dict[int, list[tuple[int, int]]] = {}
    late: Rows = Counter()
    seen: int | None = None
    for batch in batches:
        rows = batch.table.to_pylist()
        for row in rows:
            moment = row["at"]
            if moment is None or (seen is not None and moment < seen - LAG_MS - LATENESS_MS):
                late[row["user"], moment, row["amount"]] += 1
            else:
                kept.setdefault(row["user"], []).append((moment, row["amount"]))
        seen = max([row["at"] for row in rows if row["at"] is not None] + ([] if seen is None else [seen]), default=None)
    table: Rows = Counter()
    for user, actual in kept.items():
        actual.sort()
        begin = 0
        for end in range(1, len(actual) + 1):
            if end == len(actual) or actual[end][0] - actual[end - 1][0] >= GAP_MS:
                whole = actual[begin:end]
                table[user, whole[0][0], whole[-1][0] + GAP_MS, len(whole), sum(amount for _, amount in whole)] += 1
                begin = end
    return table, late
