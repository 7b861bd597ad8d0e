"""A topic on a real broker: the three engines give the same rows, over restarts, with what is not a row set aside."""

from __future__ import annotations

import builtins
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from prometheus_client import CollectorRegistry

from krishiv_py import Batches, MemorySink, ParquetSink, ResultStream, Session, SideOutputLateEventHandler, Stream, count, sum
from krishiv_py.api.query import NoRunner
from krishiv_py.connectors import Source, kafka_source
from krishiv_py.connectors.kafka import backlog
from krishiv_py.connectors.kafka import source as planning
from krishiv_py.connectors.ranges import node_of
from krishiv_py.metrics import register
from krishiv_py.testing import Driver, micro_batches
from krishiv_py.testing.broker import Broker
from tests.kafka.conftest import Record, send
from tests.spark.conftest import sorted_rows
from tests.spark.test_own_sinks import take_back

pytestmark = pytest.mark.two_tasks

DDL = "user string, at bigint, amount bigint"
Topic = Callable[..., str]


def event(number: int) -> bytes:
    """One of many, a little out of order."""
    moment = number * 10 - number * 7_919 % 300
    return json.dumps({"user": f"u{number % 7}", "at": moment, "amount": number}).encode()


def hostile(number: int) -> list[bytes | None]:
    """What is not a row."""
    return [
        b"",
        b"{",
        b"\xff\xfe\x00" + bytes([number % 256]),
        b'{"user": "u1", "at": 1.5, "amount": 1}',
        b'{"user": "u1", "at": 1, "amount": 1}{"user": "u1", "at": 1, "amount": 1}',
        b'[{"user": "u1", "at": 1, "amount": 1}]',
        b'{"other": 1}',
        None,
    ]


def per_second(stream: Stream) -> ResultStream:
    """Counts and sums."""
    return stream.watermark("at", 200).key_by("user").tumbling_window("1 s").agg(count(), sum("amount"))


def by_the_driver(source: Source) -> tuple[list[Any], list[Any]]:
    """Results and late rows."""
    node = node_of(source, None)
    plan = per_second(Stream(node, node.schema, NoRunner()))
    driver = Driver(plan.with_late_event_handler(SideOutputLateEventHandler(MemorySink())), idle_batches=False)
    outs = [*(driver.send(rows) for rows in micro_batches(source)), driver.close()]
    return sorted_rows(pa.concat_tables([o.results for o in outs])), sorted_rows(pa.concat_tables([o.late for o in outs]))


def test_the_three_engines_are_equal_over_restarts(session: Session, broker: Broker, topic: Topic, tmp_path: Path) -> None:
    name = topic(3)
    values: list[bytes | None] = [event(n) for n in range(3_000)]
    values[1_500:1_500] = hostile(7)
    send(broker, name, [(n % 3, v) for n, v in enumerate(values)], key=b"k")
    given: dict[str, Any] = {
        "bootstrap_servers": broker.address,
        "schema": DDL,
        "max_offsets_per_batch": 500,
        "on_malformed": "side_output",
        "ending": "latest",
    }
    results, late = by_the_driver(kafka_source(name, **given))
    malformed = [row for row in late if "malformed" in row]
    assert len(malformed) == len(hostile(7))
    assert {row[7] for row in malformed} == set(hostile(7)), "values are there whole"
    assert len(late) > len(malformed), "the test would prove little without late rows"
    stream = session.read_kafka(name, **given)
    kept = MemorySink()
    whole = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(kept)).run()
    assert (sorted_rows(whole.table), sorted_rows(whole.late)) == (results, late)
    out, aside, checkpoint = tmp_path / "out", tmp_path / "late", tmp_path / "checkpoint"
    plan = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(ParquetSink(aside)))
    query = plan.start(ParquetSink(out), checkpoint=str(checkpoint))
    while query.progress.batch_id < 2:
        assert query.status == "running"
        time.sleep(0.05)
    query.stop()
    take_back(checkpoint, 1)
    query = plan.start(ParquetSink(out), checkpoint=str(checkpoint), batches=Batches.available_now())
    query.await_termination()
    assert sorted_rows(pq.read_table(out)) == results
    assert sorted_rows(pq.read_table(aside)) == late


@pytest.mark.slow
def test_a_backlog_is_a_metric_that_falls_to_zero(session: Session, broker: Broker, topic: Topic, tmp_path: Path) -> None:
    name, registry = topic(2), CollectorRegistry()
    records: list[Record] = [(n % 2, event(n)) for n in range(900)]
    send(broker, name, records)
    read: dict[str, Any] = {"bootstrap_servers": broker.address, "schema": DDL, "max_offsets_per_batch": 300}
    plan = per_second(session.read_kafka(name, **read))

    def run(seen: set[float]) -> None:
        with plan.start(ParquetSink(tmp_path / "out"), checkpoint=str(tmp_path / "checkpoint"), name="waits") as query:
            register(query, registry)
            until = time.monotonic() + 60
            while query.progress.rows < expected or backlogs(registry) != {0.0}:
                assert query.status == "running" and time.monotonic() < until, (query.progress, backlogs(registry))
                seen |= backlogs(registry)
                time.sleep(0.02)

    expected, before, after = 900, set[float](), set[float]()
    run(before)
    assert len(before - {0.0}) > 1 and max(before) <= 900, "what no batch has taken"
    send(broker, name, records)
    expected = 1_800
    run(after)
    assert len(after - {0.0}) > 1 and max(after) <= 900, "of the new ones only"


def backlogs(registry: CollectorRegistry) -> set[float]:
    """What the metrics of all queries say is waiting."""
    return {sample.value for m in registry.collect() for sample in m.samples if sample.name == "krishiv_window_source_backlog"}


@pytest.mark.slow  # a flush on Spark is in tests/spark, and one of a topic in tests/kafka/test_in_process.py
def test_a_flush_fires_what_is_open(session: Session, broker: Broker, topic: Topic, tmp_path: Path) -> None:
    name = topic(2)
    send(broker, name, [(n % 2, event(n)) for n in range(1_000)])
    given: dict[str, Any] = {"bootstrap_servers": broker.address, "schema": DDL, "max_offsets_per_batch": 300}
    whole, late = by_the_driver(kafka_source(name, ending="latest", **given))  # late: batches end where records' clock says
    plan, out, checkpoint = per_second(session.read_kafka(name, **given)), tmp_path / "out", str(tmp_path / "checkpoint")
    plan.start(ParquetSink(out), checkpoint=checkpoint, batches=Batches.available_now()).await_termination()
    assert len(sorted_rows(pq.read_table(out))) < len(whole), "no window was open"
    plan.start(ParquetSink(out), checkpoint=checkpoint, batches=Batches.available_now(flush=True)).await_termination()
    assert sorted_rows(pq.read_table(out)) == whole
    send(broker, name, [(0, event(1_000))])
    with pytest.warns(UserWarning, match="by available_now"):
        query = plan.start(ParquetSink(out), checkpoint=checkpoint, batches=Batches.available_now())
    query.await_termination()
    assert query.progress.late["late"] == len(late) + 1, "every window had been fired"
    assert sorted_rows(pq.read_table(out)) == whole


def drifting(broker: Broker, name: str, *, imported: bool) -> int:
    """Write events 4 s out of order into partitions of very different sizes, and return how many there are.

    A record of a live topic has the time of its event. A topic that was `imported` has the partitions one after the other, and
    the times of the import.
    """
    draw, parts = random.Random(5), dict[int, list[tuple[int, int]]]()
    for n in range(3_000):
        parts.setdefault(draw.choice([0, 0, 0, 0, 0, 0, 0, 1, 1, 2]), []).append((n * 200, n * 200 + draw.randrange(4_000)))
    to, begin_ms = Producer({"bootstrap.servers": broker.address}), int(time.time() * 1_000) - 600_000
    for partition in sorted(parts):
        for moment, place in parts[partition]:
            value = json.dumps({"user": "u", "at": place, "amount": 1}).encode()
            written_ms = begin_ms + (partition * 1_000 if imported else moment)
            to.produce(name, value, partition=partition, timestamp=written_ms)
    assert to.flush(30) == 0
    return len([row for rows in parts.values() for row in rows])


def windows(stream: Stream) -> ResultStream:
    """Count by the minute, with a lag of 10 s."""
    return stream.watermark("at", "10 s").key_by("user").tumbling_window("1 minute").late_rule("event").agg(count())


def on_the_driver(source: Source) -> tuple[list[Any], int]:
    """Results, and how many rows are late."""
    node = node_of(source, None)
    driver = Driver(windows(Stream(node, node.schema, NoRunner())))
    outs = [*(driver.send(rows) for rows in micro_batches(source)), driver.close()]
    return sorted_rows(pa.concat_tables([o.results for o in outs])), driver.progress.late["late"]


@pytest.mark.slow
@pytest.mark.parametrize("imported", [False, True], ids=["live", "imported"])
def test_no_row_of_a_backlog_is_late(
    session: Session, broker: Broker, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imported: bool
) -> None:
    """Disorder of 4 s and a lag of 10 s; of an imported topic with a watermark for each partition."""
    name = topic(3)
    n = drifting(broker, name, imported=imported)
    given: dict[str, Any] = {
        "bootstrap_servers": broker.address,
        "schema": DDL,
        "max_offsets_per_batch": 500,
        "partitions_as_sources": imported,
    }
    expected, late = on_the_driver(kafka_source(name, ending="latest", **given))
    assert late == 0 and builtins.sum(row[-1] for row in expected) == n
    whole = windows(session.read_kafka(name, ending="latest", **given)).run()
    assert sorted_rows(whole.table) == expected
    plan, out, checkpoint = windows(session.read_kafka(name, **given)), tmp_path / "out", str(tmp_path / "c")
    query = plan.start(ParquetSink(out), checkpoint=checkpoint, batches=Batches.available_now(flush=True))
    query.await_termination()
    assert query.progress.late["late"] == 0 and sorted_rows(pq.read_table(out)) == expected
    if not imported:
        monkeypatch.setattr(planning, "in_time_order", lambda waiting, most, *_: (backlog.shares(waiting, most), None))
    other = kafka_source(name, ending="latest", **{**given, "partitions_as_sources": False})
    assert on_the_driver(other)[1] > 10, "the test would prove little"
