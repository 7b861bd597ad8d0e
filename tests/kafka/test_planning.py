"""Where a topic is read from and to, and what happens to a topic meanwhile; no Spark is needed for that."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import MultiSourceWatermarkSpec, WatermarkSpec, count
from krishiv_py.api.query import NoRunner
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors import Malformed, Source, kafka_source
from krishiv_py.connectors.kafka import client
from krishiv_py.connectors.kafka.backlog import shares
from krishiv_py.connectors.kafka.client import admin_module
from krishiv_py.connectors.ranges import node_of
from krishiv_py.connectors.source import Planned
from krishiv_py.errors import PlanError, SchemaError, SourceError
from krishiv_py.testing import Driver, micro_batches
from krishiv_py.testing.broker import Broker
from tests.kafka.conftest import send

Topic = Callable[..., str]


def numbers(broker: Broker, topic: str, first: int, n: int, partitions: int = 1) -> None:
    """Write numbers."""
    send(broker, topic, [(i % partitions, json.dumps({"n": i}).encode()) for i in range(first, first + n)])


def numbers_at(broker: Broker, topic: str, partition: int, times: range) -> None:
    """Write numbers that are also the times of their records, in ms after some moment."""
    to = confluent_kafka.Producer({"bootstrap.servers": broker.address})
    for moment in times:
        to.produce(topic, json.dumps({"n": moment}).encode(), partition=partition, timestamp=1_700_000_000_000 + moment)
    assert to.flush(30) == 0


def taken(source: Source) -> list[int]:
    """All numbers that a source gives."""
    return [n for table in micro_batches(source) for n in table["n"].to_pylist()]


def places(planned: Planned) -> list[Any]:
    """Topic, partition, first offset and end of what is read."""
    ranges: Any = planned.ranges
    return [each[:4] for each in ranges]


def test_a_query_begins_where_it_says(broker: Broker, topic: Topic) -> None:
    name, stated = topic(), {"bootstrap_servers": broker.address, "schema": "n bigint"}
    numbers(broker, name, 0, 10)
    time.sleep(0.02)
    between = dt.datetime.now(dt.timezone.utc)
    time.sleep(0.02)
    numbers(broker, name, 10, 10)
    later = int(time.time() * 1_000) + 3_600_000
    for starting, expected in (
        ("earliest", range(20)),
        ("latest", []),
        (between, range(10, 20)),
        (later, []),
        ({0: 7}, range(7, 20)),
        ({name: {0: "latest"}}, []),
        ({0: 20}, []),
    ):
        assert taken(kafka_source(name, starting=starting, ending="latest", **stated)) == list(expected), starting  # type: ignore[arg-type]
    assert taken(kafka_source(name, ending=between, **stated)) == list(range(10))  # type: ignore[arg-type]
    assert taken(kafka_source(name, ending={0: 4}, max_offsets_per_batch=3, **stated)) == [0, 1, 2, 3]  # type: ignore[arg-type]
    latest = kafka_source(name, starting="latest", **stated)  # type: ignore[arg-type]
    first = latest.plan(None)
    assert first is not None, "where it begins is noted although nothing is there"
    numbers(broker, name, 20, 5)
    again = kafka_source(name, starting="latest", **stated).plan(first.position)  # type: ignore[arg-type]
    assert again is not None and places(again) == [[name, 0, 20, 25]]
    with pytest.raises(SourceError, match=r"`starting` lies after the last record.*offset 99"):
        kafka_source(name, starting={0: 99}, **stated).plan(None)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"`ending` lies before `starting`.*from offset 7 to 4"):
        kafka_source(name, starting={0: 7}, ending={0: 4}, **stated).plan(None)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"names a partition that does not exist.*partition 3"):
        kafka_source(name, starting={3: 0}, **stated).plan(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kafka_options",
    [
        {"topics": []},
        {"topics": ["t", "t"]},
        {"starting": "now"},
        {"starting": True},
        {"starting": {0: -1}},
        {"starting": {"other": {0: 1}}},
        {"starting": -5},
        {"max_offsets_per_batch": 0},
        {"value_format": "xml"},
        {"schema": None},
        {"key": "n"},
        {"timestamp": 5},
        {"timeout": 5},
        {"on_lost": "ignore"},
        {"options": {"group.id": "mine"}},
        {"options": {"x": None}},
        {"options": [1]},
        {"options": {"no.such.setting": 1}},
        {"bootstrap_servers": ""},
        {"topics": "no-such-topic", "timeout": "1 s"},
    ],
)
def test_what_means_nothing_is_refused_at_the_call(broker: Broker, topic: Topic, kafka_options: dict[str, Any]) -> None:
    given_ = {"topics": "t", "bootstrap_servers": broker.address, "schema": "n bigint", **kafka_options}
    with pytest.raises((PlanError, SchemaError, SourceError)):
        kafka_source(**given_)


def test_secrets_are_never_shown(broker: Broker, topic: Topic) -> None:
    name = topic()
    secret = {"sasl.password": "hunter2", "ssl.key.pem": "hunter2", "sasl.oauthbearer.config": "hunter2"}
    source = kafka_source(name, bootstrap_servers=broker.address, schema="n bigint", options={"client.id": "me", **secret})
    node = node_of(source, None)
    assert "hunter2" not in repr(source) + repr(node) + node.detail()
    assert "me" in repr(source)
    with pytest.raises(SourceError) as refused:
        kafka_source(
            name, bootstrap_servers=broker.address, schema="n bigint", options={"sasl.password": "hunter2", "acks": "hunter2"}
        )
    assert "hunter2" not in str(refused.value)


def test_no_broker_is_an_error_in_time() -> None:
    begun = time.monotonic()
    with pytest.raises(SourceError, match=r"no Kafka broker answers.*127\.0\.0\.1:1"):
        kafka_source("t", bootstrap_servers="127.0.0.1:1", schema="n bigint", timeout="1 s")
    assert time.monotonic() - begun < 10


def test_new_partitions_are_found_and_read_from_their_first_record(broker: Broker, topic: Topic) -> None:
    name = topic(1)
    numbers(broker, name, 0, 5)
    source = kafka_source(name, bootstrap_servers=broker.address, schema="n bigint", starting="latest")
    first = source.plan(None)
    assert first is not None
    more = admin_module().NewPartitions(name, 3)
    requested = admin_module().AdminClient({"bootstrap.servers": broker.address})
    for made in requested.create_partitions([more]).values():
        made.result()
    numbers(broker, name, 5, 6, partitions=3)
    source._looked.at_s = 0.0
    rows: list[int] = []
    moment = first.position
    until = time.monotonic() + 20
    while len(rows) < 6 and time.monotonic() < until:
        source._looked.at_s = 0.0
        planned = source.plan(moment)
        if planned is not None:
            moment = planned.position
            rows += [
                n
                for r in planned.ranges
                for b in source.read(r, ["n"])
                if isinstance(b, pa.RecordBatch)
                for n in b["n"].to_pylist()
            ]
    assert sorted(rows) == list(range(5, 11))


def test_what_expired_or_went_is_reported(broker: Broker, topic: Topic) -> None:
    name = topic(1)
    numbers(broker, name, 0, 10)
    stated: dict[str, Any] = {"bootstrap_servers": broker.address, "schema": "n bigint", "timeout": "3 s"}
    source = kafka_source(name, **stated)
    first = source.plan(None)
    assert first is not None
    numbers(broker, name, 10, 5)
    requested = admin_module().AdminClient({"bootstrap.servers": broker.address})
    for done in requested.delete_records([confluent_kafka.TopicPartition(name, 0, 12)]).values():
        done.result()
    with pytest.raises(SourceError, match=r"are not there any more .*offset 10 is next, and the first one kept is 12"):
        source.plan(first.position)
    with pytest.raises(SourceError, match=r"are not there any more .*offset 0 of a batch up to 10"):
        list(source.read(first.ranges[0], ["n"]))
    patient = kafka_source(name, on_lost="warn", **stated)
    with pytest.warns(RuntimeWarning, match="2 offsets are passed over, the next one is 12"):
        planned = patient.plan(first.position)
    assert planned is not None and places(planned) == [[name, 0, 12, 15]]
    for done in requested.delete_topics([name]).values():
        done.result()
    time.sleep(0.5)
    source._looked.at_s = 0.0
    with pytest.raises(SourceError, match=name):
        source.plan(planned.position)
    with pytest.raises(SourceError, match=name):
        list(source.read([name, 0, 12, 15], ["n"]))
    for done in requested.create_topics([admin_module().NewTopic(name, 1, 1)]).values():
        done.result()
    with pytest.raises(SourceError, match=r"a topic is shorter than what was read of it"):
        kafka_source(name, **stated).plan(planned.position)


def test_transactions_are_read_when_they_are_committed(broker: Broker, topic: Topic) -> None:
    name = topic(1)
    to = confluent_kafka.Producer({"bootstrap.servers": broker.address, "transactional.id": name})
    to.init_transactions(30)
    for n in range(3):
        to.begin_transaction()
        to.produce(name, json.dumps({"n": n}).encode())
        to.flush()
        if n % 2:
            to.abort_transaction(10)
        else:
            to.commit_transaction(10)
    source = kafka_source(name, bootstrap_servers=broker.address, schema="n bigint", max_offsets_per_batch=1)
    assert taken(source.until_now()) == [0, 2]


def test_the_end_waits_for_commits_on_their_way(broker: Broker, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    name = topic(1)
    to = confluent_kafka.Producer({"bootstrap.servers": broker.address, "transactional.id": name})
    to.init_transactions(30)
    to.begin_transaction()
    to.produce(name, b'{"n": 0}')
    to.flush()
    late = threading.Timer(0.5, to.commit_transaction)
    late.start()
    stated: Any = {"bootstrap_servers": broker.address, "schema": "n bigint", "ending": "latest"}
    assert taken(kafka_source(name, **stated)) == [0]
    late.join()
    to.begin_transaction()
    to.produce(name, b'{"n": 1}')
    to.flush()
    monkeypatch.setattr(client, "_OPEN_S", 0.3)
    send(broker, name, [(0, b'{"n": 2}')])
    assert taken(kafka_source(name, **stated)) == [0]  # an open transaction hides what follows it
    assert taken(kafka_source(name, **stated, options={"isolation.level": "read_uncommitted"})) == [0, 1, 2]
    to.abort_transaction(10)
    assert taken(kafka_source(name, **stated)) == [0, 2]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("most", [pytest.param(7, marks=pytest.mark.slow), 100, 900])
def test_a_backlog_is_read_in_the_order_of_time(broker: Broker, topic: Topic, most: int) -> None:
    """One partition has a tenth of the records, one was silent for half of the time, one is empty, one was written last."""
    name = topic(4, retention_ms="-1")  # else records of 1970 go when the broker looks for old ones
    of = {0: range(0, 10_000, 20), 1: range(0, 10_000, 200), 2: range(5_000, 10_000, 10)}
    for partition, times in of.items():
        numbers_at(broker, name, partition, times)
    source = kafka_source(
        name, bootstrap_servers=broker.address, schema="n bigint", max_offsets_per_batch=most, ending="latest"
    )
    batches = [table["n"].to_pylist() for table in micro_batches(source)]
    assert sorted(n for batch in batches for n in batch) == sorted(n for times in of.values() for n in times)
    highest = -1
    for batch in batches:
        assert len(batch) <= most
        assert min(batch, default=highest) >= highest
        highest = max(batch, default=highest)


def transactions_at(broker: Broker, topic: str, partition: int, times: range, aborted: bool = False) -> None:
    """Write numbers as :func:`numbers_at` does, in transactions of 50, each after one that is aborted if it is said so."""
    to = confluent_kafka.Producer({"bootstrap.servers": broker.address, "transactional.id": f"{topic}-{partition}"})
    to.init_transactions(30)
    for begin in range(0, len(times), 50):
        if aborted:
            to.begin_transaction()
            to.produce(topic, b'{"n": -1}', partition=partition, timestamp=1_700_000_000_000 + times[-1] + 5)
            to.flush(30)
            to.abort_transaction(30)
        to.begin_transaction()
        for moment in times[begin : begin + 50]:
            value = json.dumps({"n": moment}).encode()
            to.produce(topic, value, partition=partition, timestamp=1_700_000_000_000 + moment)
        to.commit_transaction(30)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("aborted", [False, True], ids=["committed", "some aborted"])
def test_times_are_those_of_records_that_are_read(broker: Broker, topic: Topic, aborted: bool) -> None:
    """The end of a transaction has the broker's clock as its time, an aborted record the last one: all are passed over."""
    name = topic(3, retention_ms="-1")
    of = {0: range(0, 10_000, 20), 1: range(0, 10_000, 20), 2: range(0, 10_000, 200)}
    numbers_at(broker, name, 0, of[0])
    transactions_at(broker, name, 1, of[1], aborted)
    transactions_at(broker, name, 2, of[2], aborted)
    stated: dict[str, Any] = {"bootstrap_servers": broker.address, "schema": "n bigint"}
    written = sorted(n for times in of.values() for n in times)
    for most in (70, 400):
        source = kafka_source(name, max_offsets_per_batch=most, ending="latest", **stated)
        batches = [table["n"].to_pylist() for table in micro_batches(source)]
        assert sorted(n for batch in batches for n in batch) == written
        highest = -1
        for batch in batches:
            assert len(batch) <= most and min(batch, default=highest) >= highest
            highest = max(batch, default=highest)
        assert len(batches) <= 2 * 1_300 // most + 5, "batches are about half full at least"
    moment = 1_700_000_000_000 + 5_001
    assert sorted(taken(kafka_source(name, starting=moment, ending="latest", **stated))) == [n for n in written if n > 5_000]
    assert sorted(taken(kafka_source(name, ending=moment, **stated))) == [n for n in written if n <= 5_000]
    uncommitted = {"isolation.level": "read_uncommitted"}
    read = taken(kafka_source(name, max_offsets_per_batch=70, ending="latest", options=uncommitted, **stated))
    assert sorted(n for n in read if n >= 0) == written and (-1 in read) == aborted


def test_partitions_are_watermark_sources(broker: Broker, topic: Topic) -> None:
    name = topic(2)
    send(broker, name, [(0, b'{"n": 100}'), (1, b'{"n": 5}'), (0, b'{"n": 101}')])
    source = kafka_source(
        name, bootstrap_servers=broker.address, schema="n bigint", partitions_as_sources=True, ending="latest"
    )
    node = node_of(source, None)
    spec = MultiSourceWatermarkSpec.new().unknown("register", WatermarkSpec.fixed_lag(0))
    for each in source.watermark_sources:
        spec = spec.source(each, WatermarkSpec.fixed_lag(0))
    timed = Stream(node, node.schema, NoRunner()).with_watermark(spec, "n", source_column="kafka_source")
    driver = Driver(timed.tumbling_window(10).agg(count()))
    for rows in micro_batches(source):
        driver.send(rows)
    assert driver.watermark_us == 5_000
    assert driver.source_watermarks_us == {f"{name}-0": 101_000, f"{name}-1": 5_000}


def test_columns_next_to_the_value(broker: Broker, topic: Topic) -> None:
    name = topic(1, retention_ms="-1")  # else a record of 2020 goes at once
    send(broker, name, [(0, b"\xff\x00")], key="ключ".encode(), headers=[("a", b"1"), ("a", None)], timestamp=1_600_000_000_123)
    send(broker, name, [(0, None)], key=b"\xff")
    named = {what: what for what in ("key", "timestamp", "headers", "topic", "partition", "offset")}
    stated: dict[str, Any] = {"bootstrap_servers": broker.address, "value_format": "bytes", "ending": "latest", **named}
    (table,) = micro_batches(kafka_source(name, key_format="bytes", **stated))
    first, second = table.to_pylist()
    assert first["value"] == b"\xff\x00" and first["key"] == "ключ".encode() and first["timestamp"].year == 2020
    assert first["timestamp"].microsecond == 123_000
    assert first["headers"] == [{"name": "a", "value": b"1"}, {"name": "a", "value": None}]
    assert (first["topic"], first["partition"], first["offset"]) == (name, 0, 0)
    assert second["value"] is None and second["key"] == b"\xff"
    (put_aside,) = micro_batches(kafka_source(name, on_malformed="side_output", **stated))
    assert put_aside.table["key"].to_pylist() == ["ключ"]
    (bad,) = put_aside.malformed
    assert isinstance(bad, Malformed) and (bad.offset, bad.key) == (1, b"\xff") and "UTF-8" in bad.problem
    with pytest.raises(SourceError, match=rf"topic {name}, partition 0, offset 1: its key is not UTF-8"):
        list(micro_batches(kafka_source(name, **stated)))


def test_offsets_are_committed_for_monitors(broker: Broker, topic: Topic) -> None:
    name = topic(1)
    numbers(broker, name, 0, 7)
    source = kafka_source(name, bootstrap_servers=broker.address, schema="n bigint", commit_group=name, ending="latest")
    assert len(taken(pickle.loads(pickle.dumps(source)))) == 7
    reader = confluent_kafka.Consumer({"bootstrap.servers": broker.address, "group.id": name})
    until = time.monotonic() + 10
    while (actual := reader.committed([confluent_kafka.TopicPartition(name, 0)], 10)[0].offset) != 7:
        assert time.monotonic() < until, actual
    reader.close()


@pytest.mark.slow
def test_a_broker_that_restarts_is_waited_for(broker: Broker, topic: Topic) -> None:
    name = topic(1)
    numbers(broker, name, 0, 1_000)
    source = kafka_source(name, bootstrap_servers=broker.address, schema="n bigint", max_offsets_per_batch=100, ending="latest")
    rows: list[int] = []
    moment = None
    while (planned := source.plan(moment)) is not None:
        if moment is None:
            broker.kill()
            broker.start()
        moment = planned.position
        for each in planned.ranges:
            rows += [n for b in source.read(each, ["n"]) if isinstance(b, pa.RecordBatch) for n in b["n"].to_pylist()]
    assert rows == list(range(1_000))


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**6)), min_size=1, max_size=8),
    st.one_of(st.none(), st.integers(1, 10**6)),
)
def test_shares_are_whole_fair_and_never_more_than_was_given(waiting: list[tuple[int, int]], most: int | None) -> None:
    ranges = {("t", n): (begin, begin + size) for n, (begin, size) in enumerate(waiting)}
    actual = shares(ranges, most)
    total = sum(size for _, size in waiting)
    assert list(actual) == list(ranges)
    assert sum(end - begin for begin, end in actual.values()) == (total if most is None else min(most, total))
    for place, (begin, end) in actual.items():
        assert begin == ranges[place][0] and begin <= end <= ranges[place][1]
        if most is not None and total > most:
            assert abs((end - begin) - (ranges[place][1] - begin) * most / total) < 1
