"""Fetches ranges of partitions. A consumer goes on where a range ended, so that the next range is there when it is read."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import attrs

from krishiv_py.connectors.kafka.client import Connection, NoTopicError, Place, PooledClients, kafka, partitions
from krishiv_py.errors import SourceError

CHUNK: Final = 20_000
"""Records that are decoded at a time: more do not stay in the caches of a processor, and cost a quarter more."""
_WAIT_S: Final = 0.1
_LOOK_S: Final = 2.0
"""The time between two looks for a topic while nothing comes, and for how long one is trusted that fetched on by itself."""
_KEPT: Final = 4
"""The number of fetchers of a connection that wait for another turn."""
_QUEUED_KB: Final = 8 << 10
"""Bytes in KB that a consumer has fetched and not given to us, at most, but for one answer of a broker."""
_HELD_BYTES: Final = 8 << 20
"""Bytes that a fetcher holds of other partitions than the one that is read, at most."""
_MESSAGE_BYTES: Final = 500
"""Bytes that a message takes next to its value."""
_AHEAD_BYTES: Final = 16 << 10, 256 << 10
"""Bytes that a consumer asks of a partition at a time, for one record and for many: what it fetches after them is lost."""


@attrs.frozen
class Range:
    """A range of a partition.

    Attributes
    ----------
    place : (str, int)
        Topic and partition.
    begin, end : int
        The first offset, and the one after the last.
    topic_id : str or None
        Which of all topics of this name it was planned for; None where nobody knows.
    """

    place: Place
    begin: int
    end: int
    topic_id: str | None = None

    def __str__(self) -> str:
        return f"{self.place[0]}, partition {self.place[1]}"


@attrs.define(eq=False)
class _FetchedRows:
    """Holds what was fetched of a partition and not read.

    Attributes
    ----------
    next : int
        The first offset of which nothing was read.
    topic_id : str or None
        Which of all topics of its name it is.
    is_old : bool
        Whether it was fetched since an earlier turn: then what went wrong may be over by now.
    messages : list
        Records and events, in their order.
    nbytes : int
        What these take in memory, about, where there are other partitions.
    """

    next: int
    topic_id: str | None
    is_old: bool = False
    messages: list[Any] = attrs.field(factory=list)
    nbytes: int = 0

    def goes_on_with(self, wanted: Range) -> bool:
        """Return whether what it fetches next is a range."""
        known = wanted.topic_id is not None or not self.is_old
        return known and (self.next, self.topic_id) == (wanted.begin, wanted.topic_id)

    def missing(self, end: int) -> int:
        """Return how many offsets before `end` are not there yet, none where there is a problem; negative beyond the end."""
        if not self.messages:
            return end - self.next
        last = self.messages[-1]
        return 0 if _is_problem(last.error()) else int(end - last.offset() - (last.error() is None))

    def take(self, end: int) -> tuple[list[Any], Any]:
        """Return the next records before an offset; or where an event is next, no records and the error that it is."""
        held, good = self.messages, _good(self.messages)
        if good < len(held):
            held = self._without_ends()
            good = _good(held)
        upto = good if not good or held[good - 1].offset() < end else bisect_left(held, end, 0, good, key=lambda m: m.offset())
        records, self.messages = held[:upto], held[upto:]
        self.nbytes = sum(map(_nbytes, self.messages))
        if upto < good:  # between them lie markers of transactions, or what compaction removed
            self.next = end
        elif records:
            self.next = records[-1].offset() + 1
        return records, self._event(end) if self.messages and not good else None

    def _without_ends(self) -> list[Any]:
        """Return what is held without ends of the partition that have a record after them: it went on since."""
        last = max((i for i, message in enumerate(self.messages) if message.error() is None), default=-1)
        kept = [m for m in self.messages[: last + 1] if m.error() is None or _is_problem(m.error())]
        return kept + self.messages[last + 1 :]

    def _event(self, end: int) -> Any:
        error = self.messages[0].error()
        if error.code() == kafka().KafkaError._PARTITION_EOF:
            self.next = max(self.next, min(self.messages[0].offset(), end))
            if self.messages[0].offset() > end:  # it is said once, and the next range needs it too
                return error
        del self.messages[0]
        return error


def _good(messages: Sequence[Any]) -> int:
    """Return how many messages are records, up to the first event."""
    errors = [message.error() for message in messages]
    return next(i for i, error in enumerate(errors) if error is not None) if any(errors) else len(errors)


def _nbytes(message: Any) -> int:
    return len(message) + _MESSAGE_BYTES


@attrs.define(eq=False)
class Fetcher:
    """A consumer and the partitions that it fetches. One at a time reads with it, a turn of ranges.

    The ranges of a small turn are fetched together, and go on being fetched. Those of a large one are fetched one by one.
    """

    connection: Connection
    consumer: Any
    fetched: dict[Place, _FetchedRows] = attrs.field(factory=dict)
    _together: bool = True
    _used: bool = False

    def begin(self, ranges: Sequence[Range]) -> None:
        """Begin a turn. What went wrong since the last one with connections, and not with a partition, counts no more."""
        if self._used:
            with _no_collections():
                self._share(self.consumer.consume(CHUNK, 0), None)
        self._used = True
        for each in self.fetched.values():
            each.is_old = True
        self._together = len(ranges) == 1 or sum(r.end - r.begin for r in ranges) <= CHUNK
        if self._together:
            self._fetch_from({r.place: _FetchedRows(r.begin, r.topic_id) for r in ranges if not self.goes_on_with(r)})

    def end(self) -> None:
        """End a turn: only partitions that may go on with another one are fetched any longer."""
        self._drop([place for place, each in self.fetched.items() if each.topic_id is None or not self._together])

    def forget(self) -> None:
        """Fetch nothing any longer."""
        self._drop(list(self.fetched))

    def goes_on_with(self, wanted: Range) -> bool:
        """Return whether what it fetches next of a partition is a range."""
        return wanted.place in self.fetched and self.fetched[wanted.place].goes_on_with(wanted)

    def read(self, wanted: Range, within_s: float, *, pass_over: bool = False, may_go: bool = False) -> Iterator[list[Any]]:
        """Yield the records of a range, in chunks of messages; none has an error.

        There may be fewer than offsets: markers of transactions and what compaction removed are not records. Expired ones
        are passed over with a warning where `pass_over` says so, and so is a topic that has gone, with `may_go`.

        Raises
        ------
        SourceError
            When records have expired, the topic has gone, or nothing comes within so many seconds.
        """
        if wanted.begin >= wanted.end:
            return
        if not self._together:
            self._drop([place for place in self.fetched if place != wanted.place])
        if not self.goes_on_with(wanted):
            self._fetch_from({wanted.place: _FetchedRows(wanted.begin, wanted.topic_id)})
        until, look = time.monotonic() + within_s, time.monotonic() + _LOOK_S
        while (place := self.fetched[wanted.place]).next < wanted.end:
            with _no_collections():
                self._fetch(place, wanted.end)
                records, error = place.take(wanted.end)
                came = bool(records)
                if came:
                    yield records
                del records
            if came:
                until, look = time.monotonic() + within_s, time.monotonic() + _LOOK_S
                continue
            if place.is_old and (_is_problem(error) or (error is None and time.monotonic() > look)):
                self._fetch_from({wanted.place: _FetchedRows(place.next, wanted.topic_id)})
            elif _is_problem(error) and pass_over and _is_expired(error):
                self._pass_over(wanted, within_s)
            elif _is_problem(error) and may_go and error.code() in _unknown():
                _warn_gone(wanted, place.next)
                return
            elif _is_problem(error):
                _check(self.connection, error, wanted, place.next)
            if error is not None:
                until, look = time.monotonic() + within_s, time.monotonic() + _LOOK_S
            elif may_go and time.monotonic() > look:  # librdkafka does not say for half a minute that a topic is unknown
                look = time.monotonic() + _LOOK_S
                if _has_gone(self.connection, wanted.place[0]):
                    _warn_gone(wanted, place.next)
                    return
            elif time.monotonic() > until:
                raise SourceError(
                    "records of a topic do not come",
                    got=f"{wanted}, offsets {place.next} to {wanted.end}, for {within_s:g} s",
                    then="the batch cannot be finished",
                    hint="see to the broker, then start the query again: it goes on with this batch",
                    transient=True,
                )

    def _fetch(self, place: _FetchedRows, end: int) -> None:
        """Wait a moment for as many records of a partition as are decoded at a time, or those up to `end`, or an event."""
        until = time.monotonic() + _WAIT_S
        while (most := min(place.missing(end), CHUNK - len(place.messages))) > 0 and (left_s := until - time.monotonic()) > 0:
            messages = self.consumer.consume(most, 0) or self.consumer.consume(1, left_s)
            if len(self.fetched) == 1:
                place.messages += messages
            else:
                self._share(messages, place)
                self._keep_within(place)

    def _share(self, messages: Sequence[Any], place: _FetchedRows | None) -> None:
        """Give messages to their partitions, and what is of none to the one that is read."""
        for message in messages:
            topic = message.topic()
            to = place if topic is None else self.fetched.get((topic, message.partition()))
            if to is not None:
                to.messages.append(message)
                to.nbytes += _nbytes(message)

    def _keep_within(self, place: _FetchedRows) -> None:
        """Drop partitions of which too much is held; who reads them fetches them again."""
        others = {name: each.nbytes for name, each in self.fetched.items() if each is not place}
        while sum(others.values()) > _HELD_BYTES:
            largest = max(others, key=lambda name: others[name])
            self._drop([largest])
            del others[largest]

    def _fetch_from(self, places: Mapping[Place, _FetchedRows]) -> None:
        """Fetch partitions from where they say, and nothing of them that was fetched before."""
        self._drop([place for place in places if place in self.fetched])
        if places:
            try:
                self.consumer.incremental_assign([kafka().TopicPartition(*place, each.next) for place, each in places.items()])
            except kafka().KafkaException as problem:
                raise self.connection.failed("a topic cannot be read", problem, "start the query again") from None
            self.fetched.update(places)

    def _drop(self, places: Iterable[Place]) -> None:
        if places := list(places):
            self.consumer.incremental_unassign([kafka().TopicPartition(*place) for place in places])
            for place in places:
                del self.fetched[place]

    def _pass_over(self, wanted: Range, within_s: float) -> None:
        """Go on with the first record that is kept.

        Raises
        ------
        SourceError
            When the broker does not say which one it is, or it lies before: then it is not that records expired.
        """
        position = first = self.fetched[wanted.place].next
        try:
            first, _ = self.consumer.get_watermark_offsets(kafka().TopicPartition(*wanted.place), timeout=within_s)
        except kafka().KafkaException:
            pass
        if first <= position:
            raise expired(str(wanted), f"offset {position} of a batch up to {wanted.end}")
        warn_passed(str(wanted), min(first, wanted.end) - position, first)
        self._fetch_from({wanted.place: _FetchedRows(first, wanted.topic_id)})


@attrs.define(eq=False)
class _Fetchers:
    """The fetchers of a connection that nobody reads with, the one that was used longest ago first."""

    connection: Connection
    settings: Mapping[str, str] = attrs.field(factory=dict)
    _idle: list[Fetcher] = attrs.field(factory=list)
    _ended: bool = False
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def take(self, ranges: Sequence[Range]) -> Fetcher:
        """Return the one that fetches most of some ranges; or one that fetches nothing, which may be a new one."""

        def fits(fetcher: Fetcher) -> int:
            return sum(fetcher.goes_on_with(r) + (r.place in fetcher.fetched) for r in ranges)

        with self._lock:
            best = max(self._idle, key=fits, default=None)
            if best is None or not fits(best):
                unused = [fetcher for fetcher in self._idle if not fetcher.fetched]
                best = unused[0] if unused else self._idle[0] if len(self._idle) >= _KEPT else None
            if best is None:
                return Fetcher(self.connection, _connected(self.connection, **self.settings))
            self._idle.remove(best)
        if not fits(best):
            best.forget()
        return best

    def put(self, fetcher: Fetcher) -> None:
        """Keep one for another turn, if there is room."""
        with self._lock:
            kept = not self._ended and len(self._idle) < _KEPT
            if kept:
                self._idle.append(fetcher)
        if not kept:
            fetcher.consumer.close()

    def end(self) -> None:
        """Close them; those that are read with are closed when that is over."""
        with self._lock:
            self._ended, idle, self._idle = True, self._idle, []
        for fetcher in idle:
            fetcher.consumer.close()


_fetchers = PooledClients(_Fetchers, end=lambda fetchers: fetchers.end())
_looking = PooledClients(
    lambda connection, nbytes: _Fetchers(
        connection, {"max_partition_fetch_bytes": str(nbytes), "queued_min_messages": "1", "fetch_wait_max_ms": "5"}
    ),
    end=lambda fetchers: fetchers.end(),
)


@contextmanager
def turn(connection: Connection, ranges: Sequence[Range], *, ahead: bool = False) -> Iterator[Fetcher]:
    """Give a fetcher for some ranges, which are read one after the other in the body, and by nobody else.

    One that reads `ahead` fetches little, and nothing that another one has fetched.
    """
    many = any(one.end - one.begin > 1 for one in ranges)
    fetchers = _looking(connection, _AHEAD_BYTES[many]) if ahead else _fetchers(connection)
    fetcher = fetchers.take(ranges)
    try:
        fetcher.begin(ranges)
        yield fetcher
        fetcher.end()
    except BaseException:
        fetcher.consumer.close()
        raise
    fetchers.put(fetcher)


def _connected(connection: Connection, **more: str) -> Any:
    own = {
        "fetch_queue_backoff_ms": "5",
        "fetch_wait_max_ms": "20",  # a request that waits holds up another partition, and the news that one ends
        "max_partition_fetch_bytes": str(4 << 20),
        "queued_max_messages_kbytes": str(_QUEUED_KB),
        "enable_partition_eof": "true",
        "auto_offset_reset": "error",
        "enable_auto_commit": "false",
        **more,
    }
    try:
        return kafka().Consumer(connection.config(group_id="krishiv", **own))
    except kafka().KafkaException as problem:
        raise connection.failed("a setting of Kafka is refused", problem, "see the settings of librdkafka") from None


@contextmanager
def _no_collections() -> Iterator[None]:
    """Let no garbage collection run while there are the messages of a chunk, which whoever reads it drops before the next.

    No message is garbage, but in CPython 3.10 and 3.11 thousands of new objects let collections run, whole ones among them:
    two fifths of the time to fetch and decode. Where another thread is here already, it alone lets them run again.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _is_problem(error: Any) -> bool:
    return error is not None and error.code() != kafka().KafkaError._PARTITION_EOF


def _has_gone(connection: Connection, topic: str) -> bool:
    try:
        partitions(connection, [topic], _LOOK_S)
    except NoTopicError:
        return True
    except SourceError:  # no broker answers: whoever waits for records sees to that
        return False
    return False


def _unknown() -> tuple[Any, ...]:
    codes = kafka().KafkaError
    return codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION


def _warn_gone(wanted: Range, position: int) -> None:
    missing = wanted.end - position
    warnings.warn(f"topic {wanted} has gone before it was read: {missing} offsets are lost", RuntimeWarning, stacklevel=2)


def _is_expired(error: Any) -> bool:
    codes = kafka().KafkaError
    return bool(error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE))


def warn_passed(where: str, missing: int, first: int) -> None:
    """Say that records expired and are passed over."""
    warnings.warn(
        f"records of topic {where} expired before they were read: {missing} offsets are passed over, the next one is {first}. "
        "Hint: keep records for longer",
        RuntimeWarning,
        stacklevel=3,
    )


def _check(connection: Connection, error: Any, wanted: Range, position: int) -> None:
    """Raise what will not pass by itself."""
    codes = kafka().KafkaError
    if _is_expired(error):
        raise expired(str(wanted), f"offset {position} of a batch up to {wanted.end}")
    if error.fatal() or error.code() in (
        *_unknown(),
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes._AUTHENTICATION,
        codes.SASL_AUTHENTICATION_FAILED,
    ):
        raise SourceError(
            "a topic can no longer be read",
            got=f"{wanted}, offset {position}: {connection.clean(error.str())}",
            then="the batch cannot be finished",
            hint="put the topic or the right to read it back, then start the query again; or begin with a new checkpoint",
        )


def expired(where: str, got: str) -> SourceError:
    """Return the error for records that are not kept any more."""
    return SourceError(
        f"records of topic {where} are not there any more",
        got=got,
        then="they were never read, and are lost",
        hint='keep them for longer; on_lost="warn" goes on with what is left',
    )
