"""Questions to a broker: partitions and offsets. A process keeps one client for each connection while it is in use.

A client of librdkafka connects again for as long as it lives, also to a broker that has ended. So none is kept for longer.
"""

from __future__ import annotations

import importlib
import os
import re
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import TimeoutError as NoAnswer
from typing import Any, Final, Literal, TypeAlias

from krishiv_py.connectors.kafka.settings import Connection
from krishiv_py.errors import SourceError, require_extra

IDLE_S: Final = 60.0
"""For how long a client may be unused."""


class PooledClients:
    """Clients by what they were made of; each is ended when it was unused for `idle_s` seconds.

    Clients of a process that this one was forked from are neither used nor ended.
    """

    def __init__(self, make: Callable[..., Any], end: Callable[[Any], object] | None = None, idle_s: float = IDLE_S) -> None:
        self._make, self._end, self._idle_s = make, end, idle_s
        self._lock = threading.Lock()
        self._clients: dict[tuple[int, tuple[Hashable, ...]], tuple[Any, float]] = {}
        self._watched: set[int] = set()
        """Processes in which a timer runs."""

    def __call__(self, *key: Hashable) -> Any:
        """Return the client that was made of `key`, or a new one."""
        process = os.getpid()
        with self._lock:
            client = self._clients[process, key][0] if (process, key) in self._clients else self._make(*key)
            self._clients[process, key] = client, time.monotonic()
            if process not in self._watched:
                self._watched.add(process)
                self._look_again(self._idle_s)
        return client

    def _look_again(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._sweep)
        timer.name, timer.daemon = "krishiv_py Kafka clients", True
        timer.start()

    def _sweep(self) -> None:
        """End what was unused for too long; come back when the next may be."""
        process, now = os.getpid(), time.monotonic()
        with self._lock:
            own = {key: used for key, (_, used) in self._clients.items() if key[0] == process}
            unused = [self._clients.pop(key)[0] for key, used in own.items() if now - used >= self._idle_s]
            if left := [used for used in own.values() if now - used < self._idle_s]:
                self._look_again(min(left) + self._idle_s - now)
            else:
                self._watched.discard(process)
        for client in unused:
            if self._end is not None:
                self._end(client)


Place: TypeAlias = tuple[str, int]
"""A topic and one of its partitions."""
Offsets: TypeAlias = dict[Place, int]
When: TypeAlias = "Literal['earliest', 'latest'] | int"
"""An offset to look up: the first, the one after the last, or the first at a time, ms since the epoch."""
_ASK_S: Final = 5.0
_MADE_S: Final = 1.0
"""For how long a topic may be unknown: brokers tell of one that was made just now a moment later."""
_OPEN_S: Final = 5.0
"""For how long to wait for the end of transactions: a broker writes that of a committed one a moment after it said so."""


class NoTopicError(SourceError):
    """A topic is not there, or may not be seen."""


def kafka() -> Any:
    """Return the module ``confluent_kafka``.

    Raises
    ------
    MissingExtraError
        When it is not installed.
    """
    require_extra("Kafka", ("confluent_kafka",), "kafka", "no topic can be read or written")
    import confluent_kafka

    return confluent_kafka


def admin_module() -> Any:
    """Return the module ``confluent_kafka.admin``."""
    kafka()
    return importlib.import_module("confluent_kafka.admin")


def _new_admin(connection: Connection) -> Any:
    own = {k: v for k, v in connection.config().items() if k != "isolation.level"}
    return admin_module().AdminClient(own)


_admin = PooledClients(_new_admin)


def admin(connection: Connection) -> Any:
    """Return the admin client of this process.

    Raises
    ------
    SourceError
        When librdkafka refuses a setting.
    """
    try:
        return _admin(connection)
    except kafka().KafkaException as problem:
        raise connection.failed("a setting of Kafka is refused", problem, "see the settings of librdkafka") from None


def partitions(connection: Connection, topics: Iterable[str], within_s: float, so: str = "there are no rows") -> list[Place]:
    """Return the partitions of topics; without them something cannot be done, and the error says `so`.

    Raises
    ------
    SourceError
        When a topic does not exist, or no broker answers within so many seconds.
    """
    until, partitions = time.monotonic() + within_s, []
    for topic in topics:
        numbers = _metadata(connection, topic, until, so)
        partitions += [(topic, number) for number in sorted(numbers)]
    return partitions


def _metadata(connection: Connection, topic: str, until: float, so: str) -> Mapping[int, Any]:
    client, made = admin(connection), min(until, time.monotonic() + _MADE_S)
    while True:
        try:
            answer = client.list_topics(topic, timeout=min(_ASK_S, max(until - time.monotonic(), 0.1))).topics[topic]
        except kafka().KafkaException as problem:
            if time.monotonic() > until:
                hint = "see that the broker runs and can be reached, and that security options fit"
                raise connection.failed("no Kafka broker answers", problem, hint, so) from None
            continue
        if answer.error is None:
            partitions: Mapping[int, Any] = answer.partitions
            return partitions
        unknown = answer.error.code() == kafka().KafkaError.UNKNOWN_TOPIC_OR_PART
        if not (answer.error.retriable() or unknown) or time.monotonic() > (made if unknown else until):
            raise _no_topic(connection, topic, answer.error, so)
        time.sleep(0.1)


def matching(connection: Connection, pattern: str, within_s: float) -> list[str]:
    """Return the topics whose names begin as a regular expression says, as consumers of librdkafka match them.

    Topics of the broker itself, which begin with two underscores, belong only to a pattern that begins so.

    Raises
    ------
    SourceError
        When no broker answers within so many seconds.
    """
    until, own = time.monotonic() + within_s, pattern.startswith("^__")
    while True:
        try:
            topics = admin(connection).list_topics(timeout=min(_ASK_S, max(until - time.monotonic(), 0.1))).topics
            return sorted(name for name in topics if re.match(pattern, name) and (own or not name.startswith("__")))
        except kafka().KafkaException as problem:
            if time.monotonic() > until:
                hint = "see that the broker runs and can be reached, and that security options fit"
                raise connection.failed("no Kafka broker answers", problem, hint) from None


def _no_topic(connection: Connection, topic: str, error: Any, so: str) -> SourceError:
    got = f"{topic!r} at {connection.servers}: {error.str()}"
    hint = "create it, or see how its name is written and whether you may read it"
    return NoTopicError("a topic cannot be read", got=got, then=so, hint=hint)


def _check_partitions(places: Iterable[Place], there: list[Place]) -> None:
    """Refuse partitions that a topic does not have any more: nothing but a new topic of the same name has fewer."""
    for topic, number in places:
        if (topic, number) not in there:
            n = sum(place[0] == topic for place in there)
            raise SourceError(
                "a topic has fewer partitions than before: it was deleted and made again",
                got=f"{topic} has {n}, and partition {number} was read",
                then="its offsets mean other records than those that were read",
                hint="begin with a new checkpoint; what the old topic held and was not read is lost",
            )


def offsets(connection: Connection, places: Mapping[Place, When], within_s: float, *, uncommitted: bool = False) -> Offsets:
    """Offsets of partitions; of a time after the last record, the one after the last.

    The last one is that before the first open transaction, but for `uncommitted` ones and where those are read.

    Raises
    ------
    SourceError
        When a partition does not exist, or no broker answers within so many seconds.
    """
    module, spec = kafka(), admin_module().OffsetSpec
    specs = {"earliest": spec.earliest(), "latest": spec.latest()}
    committed = not uncommitted and _reads_committed(connection)
    level = module.IsolationLevel.READ_COMMITTED if committed else module.IsolationLevel.READ_UNCOMMITTED
    until = time.monotonic() + within_s
    request = {
        module.TopicPartition(*place): specs[when] if isinstance(when, str) else spec.for_timestamp(when)
        for place, when in places.items()
    }
    while request:
        try:
            answer = admin(connection).list_offsets(request, isolation_level=level, request_timeout=_ASK_S)
            by_partition = {(p.topic, p.partition): future.result(timeout=_ASK_S + 1).offset for p, future in answer.items()}
            break
        except (module.KafkaException, NoAnswer) as problem:
            if time.monotonic() > until:
                hint = "see that the broker runs, and that all partitions of the topics have a leader"
                raise connection.failed("the offsets of a topic are not known", problem, hint) from None
            there = partitions(connection, {topic for topic, _ in places}, max(until - time.monotonic(), 0.1))
            _check_partitions(places, there)
    else:
        return {}
    without_offset = {place: "latest" for place, offset in by_partition.items() if offset < 0}
    last = offsets(connection, without_offset, within_s, uncommitted=uncommitted) if without_offset else {}  # type: ignore[arg-type]  # a literal
    return {place: last.get(place, offset) for place, offset in by_partition.items()}


def _reads_committed(connection: Connection) -> bool:
    return dict(connection.settings).get("isolation.level", "read_committed") == "read_committed"


def wait_for_commits(connection: Connection, places: Iterable[Place], within_s: float) -> None:
    """Wait until all that was committed before this call can be read; for transactions that stay open, 5 seconds.

    The answer comes before the broker has written it into the partitions. Until then their records cannot be read.

    Raises
    ------
    SourceError
        When no broker answers within so many seconds.
    """
    if not _reads_committed(connection):
        return
    until, open_ = time.monotonic() + _OPEN_S, offsets(connection, dict.fromkeys(places, "latest"), within_s, uncommitted=True)
    while True:
        now = offsets(connection, dict.fromkeys(open_, "latest"), within_s)
        open_ = {place: end for place, end in open_.items() if now[place] < end}
        if not open_ or time.monotonic() > until:
            return
        time.sleep(0.05)


def identities(connection: Connection, topics: Iterable[str], within_s: float) -> dict[str, str]:
    """Return what tells topics from others of the same name, made before or after; brokers before Kafka 2.8 do not say it.

    Raises
    ------
    SourceError
        When a topic does not exist, or no broker answers within so many seconds.
    """
    module, names, until = kafka(), list(topics), time.monotonic() + within_s
    if not names:
        return {}
    while True:
        try:
            answer = admin(connection).describe_topics(module.TopicCollection(names), request_timeout=_ASK_S)
            ids = {topic: future.result(timeout=_ASK_S + 1).topic_id for topic, future in answer.items()}
            break
        except (module.KafkaException, NoAnswer) as problem:
            if time.monotonic() > until:
                raise connection.failed("the topics are not known", problem, "see that the broker runs") from None
            partitions(connection, names, max(until - time.monotonic(), 0.1))
            time.sleep(0.1)
    known = {topic: id_ for topic, id_ in ids.items() if id_ is not None}
    return {
        topic: str(id_) for topic, id_ in known.items() if id_.get_most_significant_bits() or id_.get_least_significant_bits()
    }


def _new_committer(connection: Connection, group: str) -> Any:
    module = kafka()

    def done(error: Any, _places: Any) -> None:
        if error is not None:
            text = f"offsets are not committed for the group {group!r}: {connection.clean(error.str())}"
            warnings.warn(f"{text}. Hint: the query goes on; see to the rights of its user", RuntimeWarning, stacklevel=2)

    return module.Consumer({**connection.config(group_id=group, enable_auto_commit="false"), "on_commit": done})


_committer = PooledClients(_new_committer, end=lambda consumer: consumer.close())


def commit(connection: Connection, group: str, offsets: Offsets) -> None:
    """Commit offsets in the name of a group, in the background: only monitors read them."""
    module = kafka()
    try:
        consumer = _committer(connection, group)
    except module.KafkaException as problem:
        what = f"offsets are not committed for the group {group!r}"
        warnings.warn(
            str(connection.failed(what, problem, "the query goes on", "monitors see old ones")), RuntimeWarning, stacklevel=2
        )
        return
    consumer.poll(0)
    consumer.commit(offsets=[module.TopicPartition(*place, offset) for place, offset in offsets.items()], asynchronous=True)
