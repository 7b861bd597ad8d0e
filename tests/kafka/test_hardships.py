"""What happens to topics and brokers while a query runs: nothing is read in place of something else, nothing waits for ever."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from krishiv_py import KafkaSink, OperatorError, SourceError, count
from krishiv_py.cli.main import main
from krishiv_py.connectors import Malformed, Source, kafka_source
from krishiv_py.connectors.kafka.client import admin_module
from krishiv_py.connectors.kafka.source import KafkaSource
from krishiv_py.connectors.publish import OutputOf, TablePublisher
from krishiv_py.connectors.source import Planned
from krishiv_py.errors import ColumnError, EnvironmentSetupError, PlanError
from krishiv_py.testing import Driver, micro_batches, stream_of
from krishiv_py.testing.broker import JARS, Broker
from tests.kafka.conftest import send
from tests.kafka.test_planning import numbers, taken
from tests.kafka.test_sink import committed

Topic = Callable[..., str]
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])


def source_of(broker: Broker, topic: str, **more: Any) -> KafkaSource:
    """A topic of numbers."""
    return kafka_source(topic, bootstrap_servers=broker.address, schema="n bigint", timeout="10 s", **more)


def planned(source: Source, last: Any = None) -> Planned:
    """The next batch."""
    actual = source.plan(json.loads(json.dumps(last)))
    assert actual is not None
    return actual


def read(source: Source, batch: Planned) -> list[int]:
    """The numbers of a batch."""
    return [n for r in batch.ranges for b in source.read(r, ["n"]) if not isinstance(b, Malformed) for n in b["n"].to_pylist()]


def counted(parts: Iterable[Any]) -> int:
    """The number of rows."""
    return sum(part.num_rows for part in parts)


def make_again(broker: Broker, topic: str, partitions: int = 1) -> None:
    """Delete a topic, and make one of the same name."""
    requested = admin_module().AdminClient({"bootstrap.servers": broker.address})
    requested.delete_topics([topic])[topic].result()
    until = time.monotonic() + 20
    while True:
        try:
            requested.create_topics([admin_module().NewTopic(topic, partitions, 1)])[topic].result()
            return
        except confluent_kafka.KafkaException:
            assert time.monotonic() < until
            time.sleep(0.1)


def expire(broker: Broker, topic: str, before: int) -> None:
    """Let all records before an offset go."""
    requested = admin_module().AdminClient({"bootstrap.servers": broker.address})
    for done in requested.delete_records([confluent_kafka.TopicPartition(topic, 0, before)]).values():
        done.result()


def test_a_topic_made_again_is_not_read_as_the_one_before(broker: Broker, topic: Topic) -> None:
    name = topic()
    numbers(broker, name, 0, 5)
    source = source_of(broker, name)
    first = planned(source)
    make_again(broker, name)
    numbers(broker, name, 100, 9)
    with pytest.raises(SourceError, match=rf"was deleted and made again .*{name}"):
        planned(source_of(broker, name), first.position)
    with pytest.raises(SourceError, match=rf"was deleted and made again .*{name}.*records that are gone"):
        read(source, first)
    noted = {key: value for key, value in first.position.items() if key != "ids"}  # type: ignore[union-attr]
    assert read(source, planned(source, noted)) == [105, 106, 107, 108], "a checkpoint of a version before, which had no ids"


def test_a_topic_made_again_with_fewer_partitions_says_so(broker: Broker, topic: Topic) -> None:
    name = topic(3)
    send(broker, name, [(n, json.dumps({"n": n}).encode()) for n in range(3)])
    first = planned(source_of(broker, name))
    make_again(broker, name, 2)
    numbers(broker, name, 0, 1)
    for source in (source_of(broker, name), source_of(broker, f"^{name}$")):
        begun = time.monotonic()
        with pytest.raises(SourceError, match=r"deleted and made again") as problem:
            planned(source, first.position)
        assert time.monotonic() - begun < 8 and "see that the broker runs" not in str(problem.value)


def ids(batch: Planned) -> dict[str, str]:
    """The ids that a position notes."""
    position: Any = batch.position
    return dict(position["ids"])


def test_topics_of_a_pattern_come_and_go(broker: Broker, topic: Topic) -> None:
    begin = f"pattern-{time.monotonic_ns()}"
    requested = admin_module().AdminClient({"bootstrap.servers": broker.address})

    def make(name: str, partitions: int = 1) -> str:
        requested.create_topics([admin_module().NewTopic(f"{begin}-{name}", partitions, 1)])[f"{begin}-{name}"].result()
        return f"{begin}-{name}"

    def gone(name: str) -> None:
        requested.delete_topics([name])[name].result()
        time.sleep(0.5)

    def look(source: Any) -> Any:
        source._looked.at_s = 0.0
        return source

    with pytest.raises(SourceError, match="no topic fits the pattern"):
        source_of(broker, f"^{begin}-.*")
    with pytest.raises(PlanError, match="`topics` is not a pattern"):
        source_of(broker, "^(")
    with pytest.raises(PlanError, match="a pattern in a list"):
        kafka_source(["^a", "b"], bootstrap_servers=broker.address, schema="n bigint")
    first_name, other = make("a"), topic()
    numbers(broker, first_name, 0, 3)
    numbers(broker, other, 100, 3)
    source = source_of(broker, f"^{begin}-.*", starting="latest", on_lost="warn")
    assert source.topics == (first_name,)
    first = planned(source)
    assert read(source, first) == []
    second_name = make("b", 2)
    numbers(broker, second_name, 10, 2)
    numbers(broker, first_name, 3, 1)
    second = planned(look(source), first.position)
    assert sorted(read(source, second)) == [3, 10, 11] and set(ids(second)) == {first_name, second_name}
    numbers(broker, first_name, 4, 1)
    third = planned(source, second.position)
    gone(first_name)
    unread = source_of(broker, f"^{begin}-.*", on_lost="warn", options={"client.id": "one that has fetched nothing ahead"})
    with pytest.warns(RuntimeWarning, match="has gone before it was read: 1 offsets are lost"):
        assert read(unread, third) == []
    numbers(broker, second_name, 12, 1)
    with pytest.warns(RuntimeWarning, match=rf"the topic {first_name} has gone"):
        fourth = planned(source, third.position)  # the list of topics is older: the topic goes while it is planned
    assert read(source, fourth) == [12] and set(ids(fourth)) == {first_name, second_name}
    make("a")
    numbers(broker, first_name, 50, 2)
    with pytest.raises(SourceError, match=rf"was deleted and made again .*{first_name}"):
        planned(source_of(broker, f"^{begin}-.*"), fourth.position)
    again = source_of(broker, f"^{begin}-.*", on_lost="warn")
    with pytest.warns(RuntimeWarning, match=r"was deleted and made again: it is read from its first record"):
        fifth = planned(again, fourth.position)
    assert read(again, fifth) == [50, 51] and ids(fifth)[first_name] != ids(fourth)[first_name]
    assert again.plan(json.loads(json.dumps(fifth.position))) is None
    ended = source_of(broker, f"^{begin}-.*", ending="latest")
    assert sorted(n for table in micro_batches(ended) for n in table["n"].to_pylist()) == [10, 11, 12, 50, 51]


def test_records_of_a_planned_batch_that_expired_are_passed_over(broker: Broker, topic: Topic) -> None:
    name = topic()
    numbers(broker, name, 0, 10)
    source = source_of(broker, name, max_offsets_per_batch=5, on_lost="warn")
    first = planned(source)
    expire(broker, name, 3)
    with pytest.warns(RuntimeWarning, match="3 offsets are passed over, the next one is 3"):
        assert read(source, first) == [3, 4]
    expire(broker, name, 7)
    with pytest.warns(RuntimeWarning, match="5 offsets are passed over, the next one is 7"):
        assert read(source, first) == []
    with pytest.warns(RuntimeWarning, match="2 offsets are passed over"):
        assert read(source, planned(source, first.position)) == [7, 8, 9]


def test_ranges_are_read_side_by_side(broker: Broker, topic: Topic) -> None:
    name = topic()
    numbers(broker, name, 0, 30_000)
    source = source_of(broker, name)
    slow, quick = (source.read([name, 0, *ends], ["n"]) for ends in ((0, 25_000), (25_000, 30_000)))
    begun = next(slow)
    assert counted(quick) == 5_000
    assert counted([begun, *slow]) == 25_000
    actual: dict[int, bool] = {}

    def all_of_it(number: int) -> None:
        actual[number] = taken(source_of(broker, name, max_offsets_per_batch=7_000)) == list(range(30_000))

    threads = [threading.Thread(target=all_of_it, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert actual == dict.fromkeys(range(3), True)


def test_small_batches_do_not_wait_for_one_another(broker: Broker, topic: Topic) -> None:
    name = topic()
    numbers(broker, name, 0, 40)
    begun = time.monotonic()
    assert taken(source_of(broker, name, max_offsets_per_batch=1)) == list(range(40))
    assert time.monotonic() - begun < 10, "each waited half a second for a request that was on its way"


def publisher(broker: Broker, topic: str, **more: Any) -> TablePublisher:
    """A query that writes."""
    sink = KafkaSink(topic, bootstrap_servers=broker.address, **{"timeout": "10 s", **more})
    return TablePublisher(sink, OutputOf(topic, "a query", "results", SCHEMA))


def rows(*pairs: tuple[str, int]) -> list[pa.Table]:
    """A batch."""
    return [pa.Table.from_pylist([{"k": k, "n": n} for k, n in pairs], SCHEMA)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_what_a_topic_does_not_take_is_reported_with_what_helps(broker: Broker, topic: Topic, delivery: str) -> None:
    with pytest.raises(OperatorError, match=r"Message size too large.*message\.max\.bytes"):
        publisher(broker, topic(), delivery=delivery).publish(0, rows(("x" * 2_000_000, 1)), is_replay=False)
    small = topic(max_message_bytes="10000")
    with pytest.raises(OperatorError, match=r"Message size too large.*message\.max\.bytes"):
        publisher(broker, small, delivery=delivery).publish(0, rows(("x" * 20_000, 1), ("b", 2)), is_replay=False)
    if delivery == "exactly_once":
        assert committed(broker, small) == []
    with pytest.raises(OperatorError, match=r"failed to validate record.*key="):
        publisher(broker, topic(cleanup_policy="compact"), delivery=delivery).publish(0, rows(("a", 1)), is_replay=False)
    if delivery == "exactly_once":
        longer = {"transaction.timeout.ms": 10_000_000}
        with pytest.raises(OperatorError, match=r"(?s)did not take a batch.*Transaction timeout.*Hint: leave the option"):
            publisher(broker, topic(), options=longer).publish(0, rows(("a", 1)), is_replay=False)


def test_a_sink_that_cannot_write_is_refused_before_the_first_row(broker: Broker, topic: Topic) -> None:
    plan = stream_of("n bigint").watermark("n", 0).tumbling_window(1).agg(count())
    with pytest.raises(OperatorError, match=r"topic cannot be read.*nowhere.*nothing can be written"):
        Driver(plan, sink=KafkaSink("nowhere", bootstrap_servers=broker.address, timeout="2 s"))
    with pytest.raises(OperatorError, match=r"no Kafka broker answers.*nothing can be written"):
        Driver(plan, sink=KafkaSink("t", bootstrap_servers="127.0.0.1:1", timeout="1 s"))
    with pytest.raises(ColumnError, match="there is no column 'user'"):
        Driver(plan, sink=KafkaSink(topic(), bootstrap_servers=broker.address, key="user"))


@contextlib.contextmanager
def away(broker: Broker) -> Iterator[None]:
    """Kill the broker for the time of the body."""
    broker.kill()
    try:
        yield
    finally:
        broker.start()


@pytest.mark.slow
def test_a_broker_that_goes_away_before_a_commit_is_an_error_in_time(broker: Broker, topic: Topic) -> None:
    name = topic()
    publisher(broker, name).publish(0, rows(("a", 0)), is_replay=False)
    dying = publisher(broker, name, timeout="3 s")
    batch, sink = dying.output.batch(1, is_replay=False), dying.sink
    assert isinstance(sink, KafkaSink)
    sink.last_committed(batch)
    sink.begin(batch)
    sink.write(batch, rows(("b", 1))[0])
    with away(broker):
        begun = time.monotonic()
        with pytest.raises(OperatorError, match="did not take a batch"):
            sink.commit(batch)
        sink.abort(batch)
        assert time.monotonic() - begun < 30, "librdkafka waits for as long as a transaction may be open"
    publisher(broker, name, timeout="60 s").publish(1, rows(("b", 1)), is_replay=True)
    assert [json.loads(m.value())["n"] for m in committed(broker, name)] == [0, 1]


def test_tombstones_of_a_compacted_topic_are_distinguished(broker: Broker, topic: Topic) -> None:
    name = topic(cleanup_policy="compact")
    send(broker, name, [(0, b'{"n": 1}'), (0, None), (0, b'{"n": 2}')], key="k")
    (batch,) = micro_batches(source_of(broker, name, key="key", on_malformed="side_output"))
    assert batch.table.to_pylist() == [{"n": 1, "key": "k"}, {"n": 2, "key": "k"}]
    assert [(m.offset, m.key, m.value, m.problem) for m in batch.malformed] == [(1, b"k", None, "no value (a tombstone)")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (whole,) = micro_batches(kafka_source(name, bootstrap_servers=broker.address, value_format="bytes", key="key"))
    assert whole["value"].to_pylist() == [b'{"n": 1}', None, b'{"n": 2}']


def test_a_broker_does_not_start_on_a_port_that_is_taken(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentSetupError, match=rf"the port is taken .*{broker.port}"):
        Broker(tmp_path, broker.port).start()


def test_the_command_fetches_what_a_broker_needs(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["broker", "--fetch"]) == 0
    assert capsys.readouterr().out.startswith(f"{len(JARS.pinned())} jars in ")
