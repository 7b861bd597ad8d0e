"""A broker that ends and comes back while a job reads from it and writes to it: every row is there once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from krishiv_py import KafkaSink, Session, count
from krishiv_py.connectors.kafka.client import admin_module
from krishiv_py.errors import SourceError
from krishiv_py.testing.broker import Broker, free_ports, running

pytestmark = [pytest.mark.filterwarnings("ignore:.*(tries|is tried) again"), pytest.mark.xdist_group("kafka")]


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    """A broker that a test may stop."""
    with running() as broker:
        admin = admin_module().AdminClient({"bootstrap.servers": broker.address})
        for made in admin.create_topics([admin_module().NewTopic(name, 1, 1) for name in ("in", "out")]).values():
            made.result()
        yield broker


def sent(broker: Broker, moments: range, topic: str = "in") -> None:
    """Send rows of these times."""
    producer = Producer({"bootstrap.servers": broker.address})
    for moment in moments:
        producer.produce(topic, json.dumps({"at": moment}).encode())
    assert producer.flush(60) == 0


def counts(broker: Broker, number: int, topic: str = "out") -> list[tuple[int, int]]:
    """Read so many committed results."""
    settings = {"bootstrap.servers": broker.address, "group.id": "test", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": "false"})
    consumer.subscribe([topic])
    rows, until = list[tuple[int, int]](), time.monotonic() + 90
    while len(rows) < number and time.monotonic() < until:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            row = json.loads(message.value() or b"")
            rows.append((row["window_start"], row["count"]))
    rows += [
        (row["window_start"], row["count"])
        for message in iter(lambda: consumer.poll(2.0), None)
        if message.error() is None
        for row in [json.loads(message.value() or b"")]
    ]
    consumer.close()
    return rows


@pytest.mark.slow
def test_a_broker_that_restarts_has_every_row_once(own_broker: Broker, tmp_path: Path) -> None:
    sent(own_broker, range(0, 100, 5))
    with Session.builder().engine("in-process").retry_for("3 min").get_or_create() as session:
        stream = session.read_kafka(
            "in", bootstrap_servers=own_broker.address, schema="at bigint", starting="earliest", timeout="2 s"
        )
        plan = stream.watermark("at", 0).tumbling_window(10).agg(count())
        sink = KafkaSink("out", bootstrap_servers=own_broker.address, timeout="10 s")
        query = plan.start(sink, checkpoint=str(tmp_path / "check"))
        query.process_all_available()
        own_broker.kill()
        until = time.monotonic() + 120
        while not query.progress.trouble and time.monotonic() < until:
            time.sleep(0.1)
        assert query.progress.trouble and query.status == "running" and "away" in query.progress.stuck
        own_broker.start()
        sent(own_broker, range(100, 200, 5))
        until = time.monotonic() + 120
        while query.progress.rows < 40 and time.monotonic() < until:
            query.process_all_available()
        query.stop()
    assert counts(own_broker, 19) == [(start, 2) for start in range(0, 190, 10)]


def test_a_job_is_made_once_the_broker_answers(own_broker: Broker, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with Session.in_process() as session, pytest.raises(SourceError) as away:
        session.read_kafka("in", bootstrap_servers=f"127.0.0.1:{port}", schema="at bigint", timeout="1 s")
    assert away.value.transient
    with Session.in_process() as session, pytest.raises(SourceError) as refused:
        session.read_kafka("in", bootstrap_servers=own_broker.address, schema="at bigint", options={"no.such": "option"})
    assert not refused.value.transient
    own_broker.kill()
    back = threading.Thread(target=own_broker.start)
    with Session.builder().engine("in-process").retry_for("2 min").get_or_create() as session:
        stream, _ = session.memory_stream("at bigint")
        back.start()
        stream.start(KafkaSink("out", bootstrap_servers=own_broker.address, timeout="1 s")).stop()
    back.join()


@pytest.mark.slow
def test_on_spark_a_broker_that_restarts_has_every_row_once(own_broker: Broker, session: Session) -> None:
    admin = admin_module().AdminClient({"bootstrap.servers": own_broker.address})
    for made in admin.create_topics([admin_module().NewTopic(name, 1, 1) for name in ("spark_in", "spark_out")]).values():
        made.result()
    sent(own_broker, range(0, 100, 5), "spark_in")
    before, session._runner.retry_s = session._runner.retry_s, 180.0
    stream = session.read_kafka(
        "spark_in", bootstrap_servers=own_broker.address, schema="at bigint", starting="earliest", timeout="2 s"
    )
    sink = KafkaSink("spark_out", bootstrap_servers=own_broker.address, timeout="10 s")
    query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(sink)
    session._runner.retry_s = before
    query.process_all_available()
    own_broker.kill()
    until = time.monotonic() + 120
    while not query.progress.trouble and time.monotonic() < until:
        time.sleep(0.1)
    assert query.progress.trouble and query.status == "running"
    own_broker.start()
    sent(own_broker, range(100, 200, 5), "spark_in")
    until = time.monotonic() + 120
    while query.progress.rows < 40 and query.status == "running" and time.monotonic() < until:
        query.process_all_available()
    query.stop()
    assert counts(own_broker, 19, "spark_out") == [(start, 2) for start in range(0, 190, 10)]
