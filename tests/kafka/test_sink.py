"""A topic as a sink: every row once for who reads committed records, wherever the process is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from krishiv_py import KafkaSink, MemorySink, Session, SideOutputLateEventHandler, count, sum
from krishiv_py.connectors.kafka.client import admin_module, connection
from krishiv_py.connectors.kafka.sink import Writer
from krishiv_py.connectors.publish import OutputOf, TablePublisher
from krishiv_py.errors import CheckpointError, ColumnError, OperatorError, PlanError
from krishiv_py.testing import Driver, stream_of
from krishiv_py.testing.broker import Broker, running
from tests.spark.conftest import DDL, per_second, row, sorted_rows
from tests.spark.test_own_sinks import take_back

Topic = Callable[..., str]
ROOT = Path(__file__).parents[2]


def committed(broker: Broker, topic: str) -> list[Any]:
    """All records that a reader of committed ones sees, by partition and offset."""
    requested = {"bootstrap.servers": broker.address, "group.id": "reader", "isolation.level": "read_committed"}
    reader = confluent_kafka.Consumer({**requested, "enable.partition.eof": "true", "enable.auto.commit": "false"})
    numbers = reader.list_topics(topic, 10).topics[topic].partitions
    reader.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in numbers])
    records: list[Any] = []
    ended: set[int | None] = set()
    while len(ended) < len(numbers):
        for m in reader.consume(1_000, 1):
            error = m.error()
            if error is None:
                records.append(m)
            else:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
                ended.add(m.partition())
    reader.close()
    return sorted(records, key=lambda m: (m.partition(), m.offset()))


def headers(message: Any) -> dict[str, str]:
    """Headers as text."""
    return {name: value.decode() for name, value in message.headers()}


@pytest.mark.parametrize(("point", "at"), [("written", 3), pytest.param("committed", 1, marks=pytest.mark.slow)])
def test_a_kill_at_any_point_leaves_every_row_once(broker: Broker, topic: Topic, tmp_path: Path, point: str, at: int) -> None:
    name = topic(2)
    job = [sys.executable, "-m", "tests.kafka.sink_job", broker.address, name, str(tmp_path / "checkpoint")]
    assert subprocess.run([*job, point, str(at)], cwd=ROOT, timeout=60).returncode == -9
    subprocess.run([*job, "nowhere", "0"], cwd=ROOT, timeout=60, check=True)
    records = committed(broker, name)
    assert sorted(json.loads(m.value())["n"] for m in records) == [0, 1, 2, 3, 4, 5, 6]
    given = sorted((int(headers(m)["krishiv-batch"]), int(headers(m)["krishiv-row"])) for m in records)
    assert given == [(0, 0), (0, 1), (0, 2), (1, 0), (3, 0), (3, 1), (4, 0)]


def test_a_checkpoint_of_an_older_copy_is_recognised(broker: Broker, topic: Topic) -> None:
    sink = KafkaSink(topic(), bootstrap_servers=broker.address)
    table = pa.table({"n": [1]})
    output = OutputOf("older", "a query", "results", table.schema)
    publisher = TablePublisher(sink, output)
    for number in range(3):
        publisher.publish(number, [table], is_replay=False)
    with pytest.raises(CheckpointError, match="holds batch 2 of this query already"):
        TablePublisher(sink, output).publish(1, [table], is_replay=False)
    with pytest.raises(OperatorError, match="another process goes on with this query"):  # the one before is fenced off
        publisher_two = TablePublisher(KafkaSink(sink.topic, bootstrap_servers=broker.address), output)
        publisher_two.publish(3, [table], is_replay=False)
        TablePublisher.publish(_with_begun(TablePublisher(sink, output), 2), 4, [table], is_replay=False)


def _with_begun(publisher: TablePublisher, last: int) -> TablePublisher:
    publisher._begun, publisher._last = True, last
    return publisher


def test_a_note_that_cannot_be_stated_yet_is_not_taken_for_none() -> None:
    place, error = confluent_kafka.TopicPartition("t", 0), confluent_kafka.KafkaError
    answers = [
        [SimpleNamespace(offset=-1001, error=error(error.UNSTABLE_OFFSET_COMMIT))],
        confluent_kafka.KafkaException(error(error.COORDINATOR_LOAD_IN_PROGRESS)),
        [SimpleNamespace(offset=6, error=None)],
        [SimpleNamespace(offset=-1001, error=error(error.GROUP_AUTHORIZATION_FAILED))],
    ]

    def committed(requested: list[Any], _within_s: float) -> Any:
        assert requested == [place]
        given = answers.pop(0)
        if isinstance(given, BaseException):
            raise given
        return given

    writer = Writer(connection("h:1", None), "t", "krishiv-q-results", True, 5, group=SimpleNamespace(committed=committed))
    assert writer.last() == 5
    with pytest.raises(OperatorError, match="Kafka did not take a batch"):
        writer.last()


def test_a_fatal_error_is_reported_with_what_helps_whichever_call_it_comes_out_of() -> None:
    error = confluent_kafka.KafkaError

    def fatal(*_: object, **__: object) -> Any:
        raise confluent_kafka.KafkaException(error(error._FENCED, "fenced", True))

    sound = SimpleNamespace(produce=lambda *_, **__: None, poll=lambda _wait_s: 0, flush=lambda _wait_s: 0)
    for bad in ("poll", "flush", "produce"):
        writer = Writer(connection("h:1", None), "t", "krishiv-q-results", True, 5)
        writer._producer = SimpleNamespace(**{**vars(sound), bad: fatal})
        writer._failed = [error(error._PURGE_QUEUE)]
        with pytest.raises(OperatorError, match="another process goes on with this query"):
            writer.write([(b"v", None, [])])
            writer.flush()


@pytest.mark.slow
def test_a_broker_that_is_killed_and_comes_back_gets_every_batch_once() -> None:
    with running() as mine:
        requested = admin_module().AdminClient({"bootstrap.servers": mine.address})
        for made in requested.create_topics([admin_module().NewTopic("out", 2, 1)]).values():
            made.result()
        table = pa.table({"n": [1, 2]})
        publisher = TablePublisher(
            KafkaSink("out", bootstrap_servers=mine.address), OutputOf("mark", "a query", "results", table.schema)
        )
        for number in range(4):
            if number == 2:  # librdkafka never finds the coordinator of the group again, and heeds no time-out
                mine.kill()
                mine.start()
            publisher.publish(number, [table], is_replay=False)
        given = [(int(headers(m)["krishiv-batch"]), int(headers(m)["krishiv-row"])) for m in committed(mine, "out")]
    assert sorted(given) == [(batch, row) for batch in range(4) for row in range(2)]


def test_a_change_log_folds_to_the_table_it_tells(broker: Broker, topic: Topic) -> None:
    name = topic(3)
    sink = KafkaSink(name, bootstrap_servers=broker.address, key=["user", "window_start"], upsert=True, headers={"who": "user"})
    stream = stream_of(DDL).watermark("at", 0).allowed_lateness(60_000).key_by("user").session_window(1_000)
    driver = Driver(stream.agg(count(), sum("amount")).emit("retractions"), sink=sink)
    for batch in (
        [row("a", 10), row("b", 20), row(None, 30)],
        [row("a", 5_000)],
        [row("a", 1_700), row("a", 900)],  # the session of a grows, and has the start that it had: its key gets the new row
        [row("b", 700, 5), row("b", 5)],  # that of b begins earlier: the key that it had gets a tombstone
    ):
        driver.send(batch)
    driver.close()
    table: dict[bytes, Any] = {}
    tombstones = 0
    for m in committed(broker, name):
        who = dict(m.headers())["who"]
        assert json.loads(m.key())["user"] == (None if who is None else who.decode())
        if m.value() is None:
            tombstones += 1
            table.pop(m.key(), None)
        else:
            table[m.key()] = json.loads(m.value())
            assert "op" not in table[m.key()]
    whole = Driver(stream.agg(count(), sum("amount")).emit("final"))
    rows = [row("a", 10), row("b", 20), row(None, 30), row("a", 900), row("a", 1_700), row("b", 700, 5), row("b", 5)]
    final = [whole.send(rows)]
    final += [whole.send([row("a", 5_000)]), whole.close()]
    expected = [r for step in final for r in step.results.to_pylist()]
    assert sorted(table.values(), key=repr) == sorted(expected, key=repr)
    assert tombstones


def test_what_means_nothing_is_refused(broker: Broker, topic: Topic) -> None:
    for given in (
        {"delivery": "twice"},
        {"upsert": True},
        {"format": "bytes"},
        {"value": "x"},
        {"key": 5},
        {"headers": {"krishiv-row": "n"}},
        {"options": {"transactional.id": "mine"}},
    ):
        with pytest.raises(PlanError):
            KafkaSink("t", bootstrap_servers=broker.address, **given)
    shown = repr(KafkaSink("t", bootstrap_servers="host:1", options={"sasl.password": "hunter2"}))
    assert "hunter2" not in shown
    with pytest.raises(OperatorError, match=r"topic cannot be read.*nowhere.*nothing can be written"):
        sink = KafkaSink("nowhere", bootstrap_servers=broker.address, timeout="2 s")
        Driver(stream_of("n bigint").watermark("n", 0).tumbling_window(1).agg(count()), sink=sink).send([{"n": 1}, {"n": 9}])
    with pytest.raises(ColumnError, match="there is no column 'user'"):
        sink = KafkaSink(topic(), bootstrap_servers=broker.address, key="user")
        Driver(stream_of("n bigint").watermark("n", 0).tumbling_window(1).agg(count()), sink=sink).send([{"n": 1}, {"n": 9}])


def test_results_and_late_rows_of_a_query_over_restarts(session: Session, broker: Broker, topic: Topic, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(DDL)
    out, late, checkpoint = topic(2), topic(1), tmp_path / "checkpoint"
    to = KafkaSink(out, bootstrap_servers=broker.address, key="user")
    aside = KafkaSink(late, bootstrap_servers=broker.address)
    plan = per_second(stream).with_late_event_handler(SideOutputLateEventHandler(aside))
    driver = Driver(per_second(stream).with_late_event_handler(SideOutputLateEventHandler(MemorySink())))
    results, refused = [], []
    for batch in ([row("a", 10), row("a", 5_000)], [row("a", 20), row("b", 9_000)]):
        with plan.start(to, checkpoint=str(checkpoint)) as query:
            sender.send(batch)
            query.process_all_available()
        take_back(checkpoint, 1)  # as a kill between publish and commit leaves it
        step = driver.send(batch)
        results += sorted_rows(step.results)
        refused += [r["at"] for r in step.late.to_pylist()]
    sender.close()
    with plan.start(to, checkpoint=str(checkpoint)) as query:
        query.process_all_available()
    results += sorted_rows(driver.close().results)
    assert sorted(tuple(json.loads(m.value()).values()) for m in committed(broker, out)) == sorted(results)
    assert sorted(json.loads(m.value())["at"] for m in committed(broker, late)) == sorted(refused)
    assert {m.key() for m in committed(broker, out)} == {b"a", b"b"}
