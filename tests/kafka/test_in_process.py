"""A topic into a topic in this process, without Spark: every row once, over restarts and through transactions."""

from __future__ import annotations

import builtins
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from krishiv_py import Batches, KafkaSink, KrishivError, MemorySink, Session, SideOutputLateEventHandler
from krishiv_py.connectors import kafka_source
from krishiv_py.testing.broker import Broker
from tests.kafka.conftest import send
from tests.kafka.test_source import DDL, by_the_driver, event, hostile, per_second
from tests.spark.conftest import sorted_rows

Topic = Callable[..., str]
FLUSH = Batches.available_now(flush=True)


def read_committed(broker: Broker, name: str) -> list[dict[str, Any]]:
    """All committed messages of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([name])
    rows, ended = [], False
    while not ended:
        message = consumer.poll(10)
        assert message is not None, "the topic does not end"
        if message.error() is None:
            rows.append(json.loads(message.value() or b"{}"))
        else:
            ended = True
    consumer.close()
    return rows


def test_a_topic_is_read_as_by_the_driver(broker: Broker, topic: Topic) -> None:
    name = topic(3)
    values: list[bytes | None] = [event(n) for n in range(3_000)]
    values[1_500:1_500] = hostile(7)
    send(broker, name, [(n % 3, v) for n, v in enumerate(values)])
    read: dict[str, Any] = {
        "bootstrap_servers": broker.address,
        "schema": DDL,
        "max_offsets_per_batch": 500,
        "on_malformed": "side_output",
        "ending": "latest",
    }
    results, late = by_the_driver(kafka_source(name, **read))
    with Session.in_process() as session:
        plan = per_second(session.read_kafka(name, **read))
        query = plan.with_late_event_handler(SideOutputLateEventHandler(MemorySink())).start(MemorySink(), batches=FLUSH)
        assert query.await_termination("120 s")
        assert sorted_rows(query.results()) == results
        assert sorted_rows(query.late_rows()) == late
        whole = plan.with_late_event_handler(SideOutputLateEventHandler(MemorySink())).run()
        assert (sorted_rows(whole.table), sorted_rows(whole.late)) == (results, late)


def test_a_topic_goes_into_a_topic_once(broker: Broker, topic: Topic, tmp_path: Path) -> None:
    name, out = topic(2), topic(1)
    send(broker, name, [(n % 2, event(n)) for n in range(2_000)])
    with Session.in_process(profile="single-node-durable") as session:
        stream = session.read_kafka(name, bootstrap_servers=broker.address, schema=DDL, max_offsets_per_batch=300)
        plan, checkpoint = per_second(stream), str(tmp_path / "checkpoint")
        for part in range(3):
            query = plan.start(KafkaSink(out, bootstrap_servers=broker.address), checkpoint=checkpoint)
            query.process_all_available()
            send(broker, name, [(n % 2, event(n)) for n in range(2_000 + 500 * part, 2_500 + 500 * part)])
            query.process_all_available()
            query.stop()
        last = plan.start(KafkaSink(out, bootstrap_servers=broker.address), checkpoint=checkpoint, batches=FLUSH)
        assert last.await_termination("120 s")
        assert last.progress.rows == 3_500
        got = [(row["user"], row["window_start"], row["count"]) for row in read_committed(broker, out)]
    assert len(set(got)) == len(got)
    assert builtins.sum(n for *_, n in got) == 3_500 - last.progress.late["late"]


def test_a_query_goes_on_when_a_commit_was_lost(broker: Broker, topic: Topic, tmp_path: Path) -> None:
    """The batch was published, and its state was not committed: it is run again, and nothing is in the topic twice."""
    name, out, checkpoint = topic(1), topic(1), tmp_path / "checkpoint"
    send(broker, name, [(0, event(n)) for n in range(1_000)])
    with Session.in_process() as session:
        plan = per_second(session.read_kafka(name, bootstrap_servers=broker.address, schema=DDL, max_offsets_per_batch=200))
        query = plan.start(KafkaSink(out, bootstrap_servers=broker.address), checkpoint=str(checkpoint))
        query.process_all_available()
        query.stop()
        before = read_committed(broker, out)
        last = max((checkpoint / "krishiv" / "state").glob("*.state"))
        last.unlink()
        (checkpoint / "commits" / str(int(last.stem))).unlink()
        query = plan.start(KafkaSink(out, bootstrap_servers=broker.address), checkpoint=str(checkpoint))
        query.process_all_available()
        query.stop()
        assert query.progress.rows == 1_000
    assert read_committed(broker, out) == before
    assert before


def test_a_broker_that_does_not_answer_is_an_error_of_ours() -> None:
    with Session.in_process() as session, pytest.raises(KrishivError, match=r"127\.0\.0\.1:1"):
        session.read_kafka("nothing", bootstrap_servers="127.0.0.1:1", schema=DDL, timeout="1 s").start(MemorySink())


def test_a_topic_is_the_archive_of_a_changed_plan_and_its_own(broker: Broker, topic: Topic, tmp_path: Path) -> None:
    """A history of the topic up to offsets, then live; what a savepoint lacks is rebuilt from the topic, which has grown."""
    name = topic(1)
    values = [event(n) for n in range(2_000)]
    send(broker, name, [(0, value) for value in values[:1_000]])
    read: dict[str, Any] = {"bootstrap_servers": broker.address, "schema": DDL, "max_offsets_per_batch": 500}

    def drained(sink: MemorySink) -> list[str]:
        rows = sink.table()
        return [] if rows is None else sorted(map(str, rows.to_pylist()))

    with Session.in_process() as session:
        long, archived, kept, new = (MemorySink() for _ in range(4))
        live = session.read_kafka(name, **read)
        archive = session.read_kafka(name, ending="latest", **read)
        given: dict[str, Any] = {"batches": Batches.available_now()}
        per_second(live).start(long, checkpoint=str(tmp_path / "long"), **given).await_termination()
        session.start(
            [per_second(live).to(archived)],
            checkpoint=str(tmp_path / "archived"),
            bootstrap={name: archive},
            until={name: {0: 500}},
            **given,
        ).await_termination()
        assert drained(archived) == drained(long)
        savepoint = session.savepoint(str(tmp_path / "archived"), str(tmp_path / "savepoint"))
        send(broker, name, [(0, value) for value in values[1_000:]])
        per_second(live).start(long, checkpoint=str(tmp_path / "long"), **given).await_termination()
        outputs = [per_second(live).to(kept, name="old"), per_second(live).named("again").to(new, name="new")]
        session.start(
            outputs, checkpoint=str(tmp_path / "new"), savepoint=savepoint, bootstrap={name: archive}, **given
        ).await_termination()
        assert sorted(drained(archived) + drained(kept)) == drained(long)
        assert drained(new) == drained(long)
