"""A consumer goes on where a range ended. Nothing that it fetched ahead is read in place of what was planned."""

from __future__ import annotations

import gc
import json
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import confluent_kafka
import pytest

from krishiv_py.connectors.kafka import fetching, making, reading
from krishiv_py.connectors.kafka.client import Connection, PooledClients, admin_module
from krishiv_py.connectors.kafka.fetching import Range
from krishiv_py.connectors.kafka.making import kafka_source
from krishiv_py.connectors.kafka.source import KafkaSource
from krishiv_py.errors import SourceError
from krishiv_py.testing.broker import Broker
from tests.kafka.test_avro_schemas import Message
from tests.kafka.test_hardships import away, expire, make_again, planned, read, source_of
from tests.kafka.test_planning import numbers, taken

Topic = Callable[..., str]
_END = confluent_kafka.KafkaError._PARTITION_EOF


@attrs.define(eq=False)
class Consumers:
    """What consumers were made, and what they fetch: topic, partition, and from which offset."""

    made: int = 0
    closed: int = 0
    fetched_from: list[tuple[str, int, int]] = attrs.field(factory=list)


class Counted:
    """A consumer that notes what it fetches."""

    def __init__(self, consumer: Any, notes: Consumers) -> None:
        self._consumer, self._notes = consumer, notes
        notes.made += 1

    def incremental_assign(self, places: list[Any]) -> None:
        self._notes.fetched_from += [(p.topic, p.partition, p.offset) for p in places]
        self._consumer.incremental_assign(places)

    def close(self) -> None:
        self._notes.closed += 1
        self._consumer.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


@pytest.fixture
def consumers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Consumers]:
    """Counts consumers; those of other tests are not used."""
    notes, connected = Consumers(), fetching._connected
    monkeypatch.setattr(fetching, "_connected", lambda connection: Counted(connected(connection), notes))
    monkeypatch.setattr(fetching, "_fetchers", pooled())
    yield notes
    monkeypatch.undo()


def pooled(idle_s: float = 60.0) -> PooledClients:
    """A pool of its own."""
    return PooledClients(fetching._Fetchers, end=lambda fetchers: fetchers.end(), idle_s=idle_s)


def idle(source: KafkaSource) -> list[fetching.Fetcher]:
    """Those with which nobody reads."""
    fetchers: list[fetching.Fetcher] = fetching._fetchers(source.connection)._idle
    return fetchers


def wait(until: Callable[[], bool]) -> None:
    """Wait for something that takes no second."""
    deadline = time.monotonic() + 10
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_next_range_of_each_partition_is_there(broker: Broker, topic: Topic, consumers: Consumers) -> None:
    name = topic(3)
    source, position, got = source_of(broker, name), None, list[int]()
    for batch in range(5):
        numbers(broker, name, 12 * batch, 12, 3)
        position = (now := planned(source, position)).position
        got += read_together(source, now)
    assert sorted(got) == list(range(60))
    assert consumers.made == 1 and sorted(consumers.fetched_from) == [(name, number, 0) for number in range(3)]


def test_a_batch_that_is_read_again_and_one_after_a_restart_are_the_same(
    broker: Broker, topic: Topic, consumers: Consumers
) -> None:
    name = topic()
    numbers(broker, name, 0, 10)
    source = source_of(broker, name, max_offsets_per_batch=4)
    first = planned(source)
    second = planned(source, first.position)
    for batch, expected in ((first, [0, 1, 2, 3]), (first, [0, 1, 2, 3]), (second, [4, 5, 6, 7]), (first, [0, 1, 2, 3])):
        assert read(source, batch) == expected
    assert read(source_of(broker, name), second) == [4, 5, 6, 7], "another query"
    assert consumers.fetched_from == [(name, 0, offset) for offset in (0, 0, 0)], "to go back, and never to go on"


def test_records_of_a_topic_made_again_are_its_own(broker: Broker, topic: Topic, consumers: Consumers) -> None:
    name = topic()
    numbers(broker, name, 0, 5)
    source = source_of(broker, name)
    first = planned(source)
    assert read(source, first) == [0, 1, 2, 3, 4]
    numbers(broker, name, 5, 5)
    time.sleep(0.3)  # they are fetched ahead
    make_again(broker, name)
    numbers(broker, name, 100, 10)
    noted: Any = {key: value for key, value in first.position.items() if key != "ids"}  # type: ignore[union-attr]
    assert read(source, planned(source, noted)) == [105, 106, 107, 108, 109]


def test_a_topic_made_again_after_the_plan_is_an_error_though_records_are_there(
    broker: Broker, topic: Topic, consumers: Consumers
) -> None:
    name = topic()
    numbers(broker, name, 0, 5)
    source = source_of(broker, name)
    first = planned(source)
    read(source, first)
    numbers(broker, name, 5, 5)
    second = planned(source, first.position)
    time.sleep(0.3)
    make_again(broker, name)
    with pytest.raises(SourceError, match=rf"was deleted and made again .*{name}.*records that are gone"):
        read(source, second)
    assert consumers.closed == consumers.made == 1 and not idle(source)


def test_a_topic_that_says_nothing_of_itself_is_fetched_for_one_range(
    broker: Broker, topic: Topic, consumers: Consumers
) -> None:
    name = topic()
    numbers(broker, name, 0, 6)
    source = source_of(broker, name)
    for begin in (0, 2, 4):
        assert read(source, attrs.evolve(planned(source), ranges=[[name, 0, begin, begin + 2, None]])) == [begin, begin + 1]
    assert consumers.fetched_from == [(name, 0, begin) for begin in (0, 2, 4)] and consumers.made == 1


def transactions(broker: Broker, name: str, *ended: tuple[list[int], bool]) -> None:
    """Transactions with numbers, which are committed or not."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "transactional.id": name})
    producer.init_transactions(30)
    for values, well in ended:
        producer.begin_transaction()
        for value in values:
            producer.produce(name, json.dumps({"n": value}).encode(), partition=0)
        producer.flush(30)
        producer.commit_transaction(30) if well else producer.abort_transaction(30)
    time.sleep(0.3)  # the broker writes the end of the last one


@pytest.mark.one_in(3)
@pytest.mark.parametrize("most", [1, 2, 5, None])
def test_ranges_that_end_at_markers_or_are_nothing_else(
    broker: Broker, topic: Topic, consumers: Consumers, most: int | None
) -> None:
    name = topic()
    ended = [([0], True), ([1, 2], True), ([3, 4], False), ([5], False), ([6, 7, 8], True), ([9], False)]
    transactions(broker, name, *ended)
    assert taken(source_of(broker, name, max_offsets_per_batch=most, ending="latest")) == [0, 1, 2, 6, 7, 8]
    assert consumers.fetched_from == [(name, 0, 0)], "it went on over markers without help"
    source = source_of(broker, name)
    first = planned(source)
    assert read(source, first) == [0, 1, 2, 6, 7, 8]
    transactions(broker, name, ([10], False), ([11], True))
    assert read(source, planned(source, first.position)) == [11]


def test_records_that_expired_are_not_waited_for(broker: Broker, topic: Topic, consumers: Consumers) -> None:
    name = topic()
    numbers(broker, name, 0, 5)
    source = source_of(broker, name, on_lost="warn")
    first = planned(source)
    read(source, first)
    numbers(broker, name, 5, 5)
    expire(broker, name, 8)
    with pytest.warns(RuntimeWarning, match="3 offsets are passed over, the next one is 8"):
        second = planned(source, first.position)
    assert read(source, second) == [8, 9]
    numbers(broker, name, 10, 5)
    third = planned(source, second.position)
    time.sleep(0.3)
    expire(broker, name, 13)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read(source, third) == [10, 11, 12, 13, 14], "they were fetched ahead"
    with pytest.warns(RuntimeWarning, match="3 offsets are passed over, the next one is 13"):
        assert read(source, third) == [13, 14]
    assert consumers.made == 1


def test_a_partition_that_is_added_is_fetched_with_the_others(broker: Broker, topic: Topic, consumers: Consumers) -> None:
    name = topic()
    numbers(broker, name, 0, 4)
    source = source_of(broker, name)
    first = planned(source)
    read(source, first)
    requested = admin_module().AdminClient({"bootstrap.servers": broker.address})
    requested.create_partitions([admin_module().NewPartitions(name, 2)])[name].result()
    numbers(broker, name, 4, 4, 2)
    source._looked.at_s = 0.0
    wait(lambda: len(planned(source_of(broker, name)).ranges) == 2)
    assert sorted(read(source, planned(source, first.position))) == [4, 5, 6, 7]
    assert consumers.fetched_from == [(name, 0, 0), (name, 1, 0)]


def test_a_large_turn_is_fetched_one_partition_after_the_other(
    broker: Broker, topic: Topic, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(2)
    numbers(broker, name, 0, 40, 2)
    monkeypatch.setattr(fetching, "CHUNK", 15)
    source = source_of(broker, name)
    first = planned(source)
    assert sorted(read_together(source, first)) == list(range(40))
    (fetcher,) = idle(source)
    assert fetcher.fetched == {}, "what was fetched ahead of such ranges is not kept"
    numbers(broker, name, 40, 4, 2)
    second = planned(source, first.position)
    assert sorted(read_together(source, second)) == [40, 41, 42, 43]
    assert set(fetcher.fetched) == {(name, 0), (name, 1)}


def read_together(source: KafkaSource, batch: Any) -> list[int]:
    """The numbers of a batch whose ranges one task reads."""
    with source._reading(batch.ranges) as rows:
        return [n for one in batch.ranges for n in numbers_in(rows(one, ["n"]))]


def numbers_in(parts: Iterable[Any]) -> list[int]:
    """The numbers of rows."""
    return [n for part in parts for n in part["n"].to_pylist()]


def test_fetchers_that_nobody_uses_are_closed(
    broker: Broker, topic: Topic, consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_fetchers", pooled(0.3))
    name = topic()
    numbers(broker, name, 0, 8)
    source = source_of(broker, name, max_offsets_per_batch=4)
    first = planned(source)
    with source._reading(first.ranges) as rows:
        longest = rows(first.ranges[0], ["n"])
        read(source, planned(source, first.position))
        wait(lambda: consumers.closed == 1)
        assert consumers.made == 2, "one reads for longer than others are kept"
        assert numbers_in(longest) == [0, 1, 2, 3]
    assert consumers.closed == 2
    assert read(source, first) == [0, 1, 2, 3] and consumers.made == 3
    wait(lambda: consumers.closed == 3)


def test_the_number_of_consumers_has_a_bound(broker: Broker, topic: Topic, consumers: Consumers) -> None:
    name = topic()
    numbers(broker, name, 0, 4)
    source = source_of(broker, name)
    batch, together = planned(source), threading.Barrier(7)
    results: list[list[int]] = []

    def one() -> None:
        with source._reading(batch.ranges) as rows:
            together.wait(30)
            results.append(numbers_in(rows(batch.ranges[0], ["n"])))

    threads = [threading.Thread(target=one) for _ in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [[0, 1, 2, 3]] * 7 and consumers.made == 7
    assert consumers.closed == 7 - fetching._KEPT and len(idle(source)) == fetching._KEPT
    for number in range(6):
        other = topic()
        numbers(broker, other, number, 1)
        fresh = source_of(broker, other)
        assert read(fresh, planned(fresh)) == [number]
    assert consumers.made == 7, "one of those that read something else is taken"


@pytest.mark.slow
def test_a_broker_that_was_away_is_waited_for(broker: Broker, topic: Topic, consumers: Consumers) -> None:
    name = topic()
    numbers(broker, name, 0, 5)
    source = source_of(broker, name)
    first = planned(source)
    read(source, first)
    with away(broker):
        time.sleep(1)
    numbers(broker, name, 5, 5)
    assert read(source, planned(source, first.position)) == [5, 6, 7, 8, 9]


class Event:
    """A record, or the end of a partition, as librdkafka says them."""

    def __init__(self, offset: int, code: int | None = None, partition: int = 0) -> None:
        self._offset, self._code, self._partition = offset, code, partition

    def __len__(self) -> int:
        return 10

    def topic(self) -> str | None:
        return "t" if self._partition >= 0 else None

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> Any:
        return None if self._code is None else confluent_kafka.KafkaError(self._code)


class Scripted:
    """A consumer that gives what a test says, and nothing else."""

    def __init__(self, *messages: Event) -> None:
        self.messages = list(messages)
        self.fetched_from: list[int] = []

    def consume(self, most: int, timeout: float) -> list[Event]:
        given, self.messages = self.messages[:most], self.messages[most:]
        return given

    def incremental_assign(self, places: list[Any]) -> None:
        self.fetched_from += [place.offset for place in places]

    def incremental_unassign(self, places: list[Any]) -> None:
        gone = {place.partition for place in places}
        self.messages = [message for message in self.messages if message.partition() not in gone]


def scripted(*messages: Event) -> tuple[fetching.Fetcher, Scripted]:
    consumer = Scripted(*messages)
    return fetching.Fetcher(Connection("x:1"), consumer), consumer


def ranges_of(fetcher: fetching.Fetcher, *bounds: tuple[int, int]) -> list[list[list[int]]]:
    """The offsets of each chunk of some ranges, each a turn."""
    given = []
    for begin, end in bounds:
        wanted = Range(("t", 0), begin, end, "an id")
        fetcher.begin([wanted])
        given.append([[m.offset() for m in chunk] for chunk in fetcher.read(wanted, 0.5)])
        fetcher.end()
    return given


def test_the_end_of_a_partition_is_kept_for_the_range_that_needs_it() -> None:
    fetcher, consumer = scripted(Event(0), Event(1), Event(6, _END), Event(6), Event(7, _END))
    assert ranges_of(fetcher, (0, 3), (3, 5), (5, 6), (6, 7)) == [[[0, 1]], [], [], [[6]]]
    assert consumer.fetched_from == [0]


@pytest.mark.parametrize("most", [1_000, 10_000])
def test_what_is_held_of_other_partitions_has_a_bound(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(fetching, "_HELD_BYTES", most)
    others = [Event(offset, partition=1) for offset in range(3)]
    fetcher, consumer = scripted(*others, Event(0), Event(1))
    wanted = [Range(("t", 0), 0, 2, "an id"), Range(("t", 1), 0, 3, "an id")]
    fetcher.begin(wanted)
    assert [m.offset() for chunk in fetcher.read(wanted[0], 0.5) for m in chunk] == [0, 1]
    assert (("t", 1) in fetcher.fetched) is (most > 3 * 510)
    if most < 3 * 510:
        consumer.messages = others
    assert [m.offset() for chunk in fetcher.read(wanted[1], 0.5) for m in chunk] == [0, 1, 2]
    assert consumer.fetched_from == ([0, 0] if most > 3 * 510 else [0, 0, 0])


def test_records_that_came_in_parts_are_a_chunk() -> None:
    fetcher, _ = scripted(Event(0), Event(1, _END), Event(1), Event(2, _END), Event(2), Event(3), Event(4, _END))
    assert ranges_of(fetcher, (0, 3), (3, 4)) == [[[0, 1, 2]], [[3]]]


def test_what_went_wrong_before_a_turn_is_tried_again_and_in_it_is_an_error() -> None:
    gone = confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART
    fetcher, consumer = scripted(Event(0), Event(1), Event(2, gone))
    assert ranges_of(fetcher, (0, 2)) == [[[0, 1]]]
    wanted = Range(("t", 0), 2, 4, "an id")
    fetcher.begin([wanted])
    read_on = fetcher.read(wanted, 0.5)
    with pytest.raises(SourceError, match=r"records of a topic do not come .*offsets 2 to 4"):
        next(read_on)
    assert consumer.fetched_from == [0, 2]
    away = [Event(-1, confluent_kafka.KafkaError._AUTHENTICATION, -1)] * 2
    fetcher, consumer = scripted(Event(0), *away, Event(1))
    assert ranges_of(fetcher, (0, 1), (1, 2)) == [[[0]], [[1]]]
    fetcher, consumer = scripted(*away)
    with pytest.raises(SourceError, match=r"a topic can no longer be read .*offset 0"):
        ranges_of(fetcher, (0, 2))
    fetcher, consumer = scripted(Event(0), Event(1, gone))
    with pytest.raises(SourceError, match=r"a topic can no longer be read .*offset 1"):
        ranges_of(fetcher, (0, 2))


@pytest.fixture(params=[True, False])
def enabled(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether garbage is collected, as somebody else has set it."""
    before, wanted = gc.isenabled(), bool(request.param)
    gc.enable() if wanted else gc.disable()
    yield wanted
    gc.enable() if before else gc.disable()


def test_no_collection_runs_while_there_are_messages_and_the_collector_is_as_before(enabled: bool) -> None:
    fetcher, consumer = scripted(Event(0), Event(1))
    seen, consume = list[bool](), consumer.consume

    def noted(most: int, timeout: float) -> list[Event]:
        if not timeout:
            seen.append(gc.isenabled())
        return consume(most, timeout)

    consumer.consume = noted  # type: ignore[method-assign]
    wanted = Range(("t", 0), 0, 2, "an id")
    fetcher.begin([wanted])
    for chunk in fetcher.read(wanted, 0.5):
        seen.append(gc.isenabled())
        assert len(chunk) == 2
    assert gc.isenabled() is enabled and len(seen) > 1 and not any(seen)


def test_a_reader_that_stops_early_leaves_the_collector_as_it_was(enabled: bool) -> None:
    fetcher, _ = scripted(Event(0), Event(1))
    reads: Any = fetcher.read(Range(("t", 0), 0, 2, "an id"), 0.5)
    next(reads)
    reads.close()
    assert gc.isenabled() is enabled


def test_messages_are_dropped_before_the_next_ones_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "partitions", lambda *_: [("t", 0)])
    source, left = kafka_source("t", bootstrap_servers="x:1", schema="n bigint", offset="at"), list[bool]()

    def chunks() -> Iterator[list[Message]]:
        for begin in range(0, 8, 2):
            messages = [Message(n, None, b'{"n": %d}' % n) for n in range(begin, begin + 2)]
            alive = [weakref.ref(message) for message in messages]
            yield messages
            del messages
            left.append(any(one() is not None for one in alive))

    assert len(list(reading.rows(source, ("t", 0), chunks(), ("n", "at")))) == 4
    assert left == [False] * 4
