"""A topic as a source: where it begins and ends, how its batches are planned, and the columns next to the value of a record."""

from __future__ import annotations

import datetime as dt
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.connectors.kafka import fetching, reading
from krishiv_py.connectors.kafka.backlog import Ranges, RecordTimes, TimeCut, Times, in_time_order
from krishiv_py.connectors.kafka.client import (
    Connection,
    NoTopicError,
    Offsets,
    Place,
    When,
    commit,
    identities,
    matching,
    offsets,
    partitions,
    wait_for_commits,
)
from krishiv_py.connectors.polling import PollBackoff
from krishiv_py.connectors.source import JsonValue, Malformed, Planned, ReadRange, Source
from krishiv_py.errors import PlanError, SourceError, shown
from krishiv_py.plan.durations import time_point_us
from krishiv_py.plan.options.late import OnMalformed
from krishiv_py.storage.datasets import Dataset

if TYPE_CHECKING:
    from krishiv_py.connectors.kafka.formats.protobuf import MessageType


KafkaPosition: TypeAlias = (
    "Literal['earliest', 'latest'] | int | dt.datetime | Mapping[int, int | str] | Mapping[str, Mapping[int, int | str]]"
)
"""The place to begin or end at: a word, a time (``int`` is ms since the epoch), or offsets by partition (or by topic)."""
Where: TypeAlias = "When | tuple[tuple[Place, int | str], ...]"
"""The same as a value: a word, ms since the epoch, or one of these for each partition."""
_WORDS: Final = ("earliest", "latest")


def where(value: object, name: str, topics: Sequence[str]) -> Where:
    """Return what a user gave.

    Raises
    ------
    PlanError
        For anything else, and for topics that are not read.
    """
    if isinstance(value, str) and value in _WORDS:
        return value  # type: ignore[return-value]  # one of the words
    if isinstance(value, dt.datetime) or (isinstance(value, int) and not isinstance(value, bool)):
        at_ms = -(-time_point_us(value, name) // 1_000)
        if at_ms < 0:
            raise _refused(value, name, "records have no time before 1970")
        return at_ms
    if isinstance(value, Mapping) and value:
        by_topic = value if all(isinstance(v, Mapping) for v in value.values()) else {topics[0]: value}
        if by_topic is value or len(topics) == 1:
            return tuple(
                (_place(topic, number, topics, value, name), _offset(offset_found, value, name))
                for topic, offsets_of in by_topic.items()
                for number, offset_found in offsets_of.items()
            )
    raise _refused(value, name, "no record is meant")


def _place(topic: object, number: object, topics: Sequence[str], value: object, name: str) -> Place:
    if (
        not isinstance(topic, str)
        or topic not in topics
        or isinstance(number, bool)
        or not isinstance(number, int)
        or number < 0
    ):
        raise _refused(value, name, "no partition that is read is meant")
    return topic, number


def _offset(answer: object, value: object, name: str) -> int | str:
    if (isinstance(answer, str) and answer in _WORDS) or (
        isinstance(answer, int) and not isinstance(answer, bool) and answer >= 0
    ):
        return answer
    raise _refused(value, name, "an offset is a whole number from 0")


def _refused(value: object, name: str, consequence: str) -> PlanError:
    hint = (
        'write "earliest", "latest", a time (datetime, or int ms), or offsets: {0: 15, 1: 20}; of several topics {"a": {0: 15}}'
    )
    return PlanError(f"`{name}` is not a place in a topic", got=shown(value), then=consequence, hint=hint)


def resolved(
    connection: Connection, wanted: Where, places: Sequence[Place], times: RecordTimes, name: str, within_s: float
) -> Offsets:
    """Return the offset of each partition; one that is not named begins at its first record, or ends after its last one.

    Raises
    ------
    PlanError
        For a partition that does not exist.
    """
    if isinstance(wanted, int):
        begin = offsets(connection, dict.fromkeys(places, wanted), within_s)
        latest = offsets(connection, dict.fromkeys(places, "latest"), within_s)
        return times.first(wanted, {p: (offset, max(latest[p], offset)) for p, offset in begin.items()})
    if not isinstance(wanted, tuple):
        return offsets(connection, dict.fromkeys(places, wanted), within_s)
    given = dict(wanted)
    for place in given:
        if place not in places:
            raise PlanError(
                f"`{name}` names a partition that does not exist",
                got=f"{place[0]}, partition {place[1]}",
                hint=f"the topic has {sum(p[0] == place[0] for p in places)} partitions, from 0",
            )
    default: When = "earliest" if name == "starting" else "latest"
    words: dict[Place, When] = {p: given.get(p, default) for p in places if isinstance(given.get(p, default), str)}  # type: ignore[misc]
    looked_up = offsets(connection, words, within_s)
    return {p: looked_up[p] if p in looked_up else int(given[p]) for p in places}


Meta: TypeAlias = Literal["key", "timestamp", "headers", "topic", "partition", "offset", "source"]
Tombstones: TypeAlias = Literal["malformed", "null"]
"""The meaning of a record without a value: no row, or one whose value has nulls."""
KeyFormat: TypeAlias = Literal["string", "bytes", "json", "avro"]
TIME: Final = pa.timestamp("us", "UTC")
HEADERS: Final = pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())]))


def meta_type(what: Meta, key_format: KeyFormat) -> pa.DataType:
    """Return the type of a column next to the value."""
    types: dict[Meta, pa.DataType] = {
        "key": pa.string() if key_format == "string" else pa.binary(),
        "timestamp": TIME,
        "headers": HEADERS,
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "source": pa.string(),
    }
    return types[what]


def meta_column(what: Meta, type_: pa.DataType, values: Sequence[Any], topic: str, partition: int) -> pa.Array:
    """Return a column of messages.

    Raises
    ------
    UnicodeDecodeError
        For a key that is not a text.
    """
    if what == "key":
        return _keys([m.key() for m in values], type_)
    if what == "timestamp":
        return pa.array([_ms(m) for m in values], pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(type_)
    if what == "headers":
        named = [[{"name": n, "value": v} for n, v in m.headers() or ()] for m in values]
        return pa.array(named, type_)
    if what == "offset":
        return pa.array([m.offset() for m in values], type_)
    texts: dict[Meta, Any] = {"topic": topic, "partition": partition, "source": f"{topic}-{partition}"}
    return pa.repeat(pa.scalar(texts[what], type_), len(values))


def _keys(keys: list[bytes | None], type_: pa.DataType) -> pa.Array:
    if pa.types.is_binary(type_):
        return pa.array(keys, type_)
    return pa.array([None if k is None else k.decode() for k in keys], type_)


def _ms(value: Any) -> int | None:
    """Return when a record was written; None if its writer gave no time."""
    kind, at_ms = value.timestamp()
    return None if kind == 0 else at_ms


ValueFormat: TypeAlias = Literal["json", "avro", "protobuf", "arrow", "bytes"]
OnLost: TypeAlias = Literal["fail", "warn"]
_LEAST_POLL_S: Final = 0.005
_LOOK_S = 5.0
"""The time between two looks for new partitions."""
_AHEAD_MS = 3_600_000
"""The most by which timestamps of records may be ahead of the driver's clock; brokers refuse more by default."""


@attrs.define(eq=False)
class _ClusterFacts:
    """Holds what the driver knows of the cluster for a while. It stays behind when a source is sent to a task."""

    places: list[Place] = attrs.field(factory=list)
    at_s: float = float("-inf")
    cut: TimeCut | None = None
    times: RecordTimes | None = None
    gone: set[str] = attrs.field(factory=set)
    backoff: PollBackoff = attrs.field(factory=lambda: PollBackoff(_LEAST_POLL_S))
    latest: Offsets | None = None

    def __reduce__(self) -> tuple[type[_ClusterFacts], tuple[()]]:
        return _ClusterFacts, ()


@attrs.frozen(eq=False)
class KafkaSource(Source):
    """Made by ``session.read_kafka`` and :func:`krishiv_py.connectors.kafka_source`.

    Attributes
    ----------
    topics : tuple of str
        What it reads; of a pattern, what was there when the source was made.
    pattern : str or None
        Which topics belong to it, those that are made later too: a regular expression for the begin of their names.
    connection : Connection
        Where.
    schema : pyarrow.Schema
        Columns of the value, then of the key, then those next to them.
    known : tuple of str
        The columns of the value.
    key_known : tuple of str
        The columns that are decoded from the key.
    meta : tuple of (str, str)
        Columns next to the value: what each has, and what it is called.
    """

    topics: tuple[str, ...]
    connection: Connection
    schema: pa.Schema
    known: tuple[str, ...]
    meta: tuple[tuple[Meta, str], ...]
    value_format: ValueFormat
    key_format: KeyFormat
    starting: Where
    ending: Where | None
    most: int | None
    on_malformed: OnMalformed
    on_lost: OnLost
    within_s: float
    parallelism: int
    source_column: str | None
    watermark_sources: tuple[str, ...]
    commit_group: str | None = None
    registry: Connection | None = None
    avro_schema: str | None = None
    avro_reader_schema: str | None = None
    protobuf: MessageType | None = None
    pattern: str | None = None
    key_known: tuple[str, ...] = ()
    avro_key_schema: str | None = None
    tombstones: Tombstones = "malformed"
    until: tuple[tuple[Place, int], ...] | None = None
    _looked: _ClusterFacts = attrs.field(factory=_ClusterFacts, repr=False)

    @property
    def finite(self) -> bool:  # type: ignore[override]  # follows from where it ends
        """Return whether it ends."""
        return self.ending is not None

    @property
    def may_go(self) -> bool:
        """Return whether a topic whose records are in a planned batch may have gone: that is a warning."""
        return self.pattern is not None and self.on_lost == "warn"

    def plan(self, last: JsonValue) -> Planned | None:
        """Return the next offsets of every partition. The first batch notes where the source begins, even if nothing is
        there.
        """
        planned = self._planned(last)
        if planned is not None:
            self._looked.backoff.found()
        return planned

    @property
    def poll_seconds(self) -> float:  # type: ignore[override]  # follows from when there was something
        """Return how long to wait for records: a moment where there were some just now."""
        return self._looked.backoff.wait_s

    def _planned(self, last: JsonValue) -> Planned | None:
        if last is None:
            return self._first()
        assert isinstance(last, dict)
        begin, ends = _noted(last["at"]), _noted(last["ends"]) if "ends" in last else None
        ids: Any = last.get("ids", {})  # checkpoints of versions before did not note them
        if self.pattern is None:
            return self._next(begin, ends, ids, always=False)
        try:
            return self._next_of_those_there(begin, ends, ids)
        except NoTopicError:  # one went since the topics were listed
            self._looked.at_s = float("-inf")
            return self._next_of_those_there(begin, ends, ids)

    def _next_of_those_there(self, begin: Offsets, ends: Offsets | None, ids: Mapping[str, str]) -> Planned | None:
        """Plan over the topics of the pattern that are there. The positions of others stay, in case they come back."""
        there = {topic for topic, _ in self._places()}
        gone = {topic for topic, _ in begin} - there
        for topic in sorted(gone - self._looked.gone):
            warnings.warn(
                f"the topic {topic} has gone: what it held and was not read is lost. Hint: the query goes on with the other "
                f"topics of {self.pattern}",
                RuntimeWarning,
                stacklevel=2,
            )
        self._looked.gone = gone
        ids_now = identities(self.connection, sorted(there & {topic for topic, _ in begin}), self.within_s)
        again = {topic for topic, one in ids_now.items() if ids.get(topic, one) != one}
        if again and self.on_lost == "fail":
            raise _made_again(min(again), "its offsets mean other records than those that were read")
        if again and self._looked.times is not None:
            self._looked.times.forget()
        for topic in sorted(again):
            warnings.warn(
                f"the topic {topic} was deleted and made again: it is read from its first record, and what the old one held "
                "and was not read is lost",
                RuntimeWarning,
                stacklevel=2,
            )
        read = {place: offset for place, offset in begin.items() if place[0] in there - again}
        kept = {place: offset for place, offset in begin.items() if place[0] in gone}
        planned = self._next(read, ends, {topic: one for topic, one in ids.items() if topic not in again | gone}, always=False)
        if planned is None or not kept:
            return planned
        position: Any = planned.position
        left = {topic: one for topic, one in ids.items() if topic in gone}
        both = {**position, "at": {**position["at"], **_written(kept)}, "ids": {**position["ids"], **left}}
        return Planned(both, planned.ranges)

    def _first(self) -> Planned | None:
        places = self._places()
        begin = resolved(self.connection, self.starting, places, self._times, "starting", self.within_s)
        ends = None
        if self.ending is not None:
            wait_for_commits(self.connection, places, self.within_s)
            ends = resolved(self.connection, self.ending, places, self._times, "ending", self.within_s)
        for offsets_, name in ((begin, "starting"), (ends or {}, "ending")):
            self._exist(offsets_, name)
        self._in_order(begin, ends or {})
        return self._next(begin, ends, {}, always=True)

    def _in_order(self, begin: Offsets, ends: Offsets) -> None:
        """Refuse an end before the beginning; after records that have expired, "earliest" may be."""
        for place, end in ends.items():
            start = dict(self.starting).get(place, "earliest") if isinstance(self.starting, tuple) else self.starting
            if start != "earliest" and begin[place] > end:
                raise SourceError(
                    "`ending` lies before `starting`",
                    got=f"{place[0]}, partition {place[1]}: from offset {begin[place]} to {end}",
                    hint="see which of the two is meant otherwise",
                )

    def _exist(self, given: Offsets, name: str) -> None:
        """Refuse offsets after the last record: which records will come there, nobody knows."""
        latest = offsets(self.connection, dict.fromkeys(given, "latest"), self.within_s)
        for place, offset in given.items():
            if offset > latest[place]:
                raise SourceError(
                    f"`{name}` lies after the last record",
                    got=f"{place[0]}, partition {place[1]}: offset {offset}, and it ends at {latest[place]}",
                    hint=f'use at most {latest[place]}, or "latest"',
                )

    def _next(self, positions: Offsets, ends: Offsets | None, ids: Mapping[str, str], *, always: bool) -> Planned | None:
        bounds = dict(self.until) if self.until is not None else ends
        known = list(positions)
        if ends is not None:
            ends = {place: end for place, end in ends.items() if place in positions}
        else:
            new = [place for place in self._places() if place not in positions]
            positions = {**positions, **offsets(self.connection, dict.fromkeys(new, "earliest"), self.within_s)}
        latest = offsets(self.connection, dict.fromkeys(positions, "latest"), self.within_s)
        goals = (
            latest if bounds is None else {p: max(min(latest[p], bounds.get(p, positions[p])), positions[p]) for p in positions}
        )
        self._looked.latest = goals
        positions = self._kept(
            positions if ends is None else {p: max(o, ends.get(p, o)) for p, o in positions.items()}, positions, latest, goals
        )
        ranges = self._shared({p: (positions[p], max(goals[p], positions[p])) for p in positions})
        full = [(place, begin, end) for place, (begin, end) in ranges.items() if end > begin]
        if not full and not (always or len(positions) > len(known)):
            return None
        shown = full or [(place, begin, begin) for place, (begin, _) in ranges.items()][:1]
        topics = sorted({topic for topic, _ in positions})
        ids_now = identities(self.connection, topics, self.within_s)  # after the offsets, so these are of the same topics
        for topic, known_id in ids.items():
            if ids_now.get(topic, known_id) != known_id:
                raise _made_again(topic, "its offsets mean other records than those that were read")
        position: dict[str, Any] = {"at": _written({p: end for p, (_, end) in ranges.items()}), "ids": {**ids, **ids_now}}
        if ends is not None:
            position["ends"] = _written(ends)
        return Planned(position, [[topic, number, begin, end, ids_now.get(topic)] for (topic, number), begin, end in shown])

    def _kept(self, needed: Offsets, begin: Offsets, latest: Offsets, goals: Offsets) -> Offsets:
        """Return where to go on: what has expired before it was read is an error, or is passed over with a warning.

        Each partition must reach to what is `needed` of it.
        """
        unread = [p for p in begin if goals[p] > begin[p]]
        earliest = offsets(self.connection, dict.fromkeys(unread, "earliest"), self.within_s) if unread else {}
        gone = {p: first for p, first in earliest.items() if first > begin[p]}
        back = {p: end for p, end in latest.items() if end < needed[p]}
        if not gone and not back:
            return begin
        place, to = next(iter((gone or back).items()))
        where = f"{place[0]}, partition {place[1]}"
        if back and not gone:
            raise SourceError(
                "a topic is shorter than what was read of it",
                got=f"{where}: it was known up to offset {needed[place]}, and ends at {to}",
                then="it was made again, or lost records, and nobody knows which were read",
                hint="begin with a new checkpoint",
            )
        if self.on_lost == "fail":
            raise fetching.expired(where, f"offset {begin[place]} is next, and the first one kept is {to}")
        fetching.warn_passed(where, sum(first - begin[p] for p, first in gone.items()), to)
        return {**begin, **gone}

    def _shared(self, waiting: dict[Place, tuple[int, int]]) -> dict[Place, tuple[int, int]]:
        """Return what the next batch reads of all that waits: records in the order of their timestamps."""

        def at_time(at_ms: int) -> Offsets:
            return offsets(self.connection, dict.fromkeys(waiting, at_ms), self.within_s)

        limit = int(time.time() * 1_000) + _AHEAD_MS
        ranges, self._looked.cut = in_time_order(waiting, self.most, at_time, self._times, limit, self._looked.cut)
        return ranges

    @property
    def _times(self) -> RecordTimes:
        """Return the times of records that this process has looked at."""
        if self._looked.times is None:
            self._looked.times = RecordTimes(self._times_of)
        return self._looked.times

    def _times_of(self, ranges: Ranges) -> dict[Place, Times]:
        """Fetch the records of ranges for their times alone."""
        wanted = [fetching.Range(place, begin, end) for place, (begin, end) in ranges.items()]
        with fetching.turn(self.connection, wanted, ahead=True) as fetcher:
            return {one.place: reading.times(self._fetched(fetcher, one)) for one in wanted}

    def _places(self) -> list[Place]:
        if time.monotonic() > self._looked.at_s + _LOOK_S:
            topics = self.topics if self.pattern is None else matching(self.connection, self.pattern, self.within_s)
            self._looked.places = partitions(self.connection, topics, self.within_s)
            self._looked.at_s = time.monotonic()
        return self._looked.places

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch | Malformed]:
        """Fetch and decode the records of a range."""
        with self._reading([planned]) as read:
            yield from read(planned, columns)

    @contextmanager
    def _reading(self, planned: Sequence[JsonValue]) -> Iterator[ReadRange]:
        """See Source: all ranges are fetched by one consumer, and when they are read their topics are still those planned."""
        ranges = [_range(one) for one in planned]
        wanted = [one for one in ranges if one.end > one.begin]
        if not wanted:
            yield lambda planned, columns: iter(())
            return
        with fetching.turn(self.connection, wanted) as fetcher:
            yield lambda planned, columns: self._rows(fetcher, _range(planned), columns)
            for topic in sorted({one.place[0] for one in wanted if one.topic_id is not None}):
                self._check_same(topic, {one.topic_id for one in wanted if one.place[0] == topic})

    def _rows(
        self, fetcher: fetching.Fetcher, planned: fetching.Range, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch | Malformed]:
        return reading.rows(self, planned.place, self._fetched(fetcher, planned), tuple(columns))

    def _fetched(self, fetcher: fetching.Fetcher, planned: fetching.Range) -> Iterator[list[Any]]:
        return fetcher.read(planned, self.within_s, pass_over=self.on_lost == "warn", may_go=self.may_go)

    def _check_same(self, topic: str, known: Set[str | None]) -> None:
        try:
            now = identities(self.connection, [topic], self.within_s).get(topic)
        except NoTopicError:
            if not self.may_go:
                raise
            return
        if now is not None and known - {now, None}:
            raise _made_again(topic, "the batch was planned over records that are gone")

    def describe(self) -> str:
        """Return the order in which partitions are read, and what their watermark is."""
        how = (
            "all that waits in a batch" if self.most is None else f"up to {self.most} offsets a batch, by the times of records"
        )
        return f"{how}, {'a watermark for each partition' if self.source_column else 'one watermark for all partitions'}"

    def datasets(self) -> tuple[Dataset, ...]:
        """Return its topics."""
        return tuple(self.connection.dataset(topic) for topic in self.topics)

    def finished(self, position: JsonValue) -> None:
        """Commit the offsets of a published batch, where a group was given; a failure is a warning."""
        if self.commit_group is not None:
            assert isinstance(position, dict)
            commit(self.connection, self.commit_group, _noted(position["at"]))

    def partition_of(self, planned: JsonValue) -> str:
        """Return the partition of a range, named as in the column ``kafka_source``."""
        noted: Any = planned
        return f"{noted[0]}-{noted[1]}"

    def partitions_at(self, position: JsonValue) -> list[str]:
        """Return the partitions that are read, in the order of their names."""
        assert isinstance(position, dict)
        return [f"{topic}-{number}" for topic, number in sorted(_noted(position["at"]))]

    def backlog(self, position: JsonValue) -> dict[str, int] | None:
        """Return the records of each partition up to its end, or to where reading ends, when the driver last looked."""
        goals = self._looked.latest
        if goals is None or not isinstance(position, dict):
            return None
        begin = _noted(position["at"])
        return {f"{topic}-{number}": max(end - begin.get((topic, number), 0), 0) for (topic, number), end in goals.items()}

    def until_now(self) -> KafkaSource:
        """Up to the records there are now, or where reading ends if that is known."""
        if self.until is not None or self.ending is not None:
            return self
        wait_for_commits(self.connection, self._places(), self.within_s)
        now = offsets(self.connection, dict.fromkeys(self._places(), "latest"), self.within_s)
        return attrs.evolve(self, until=tuple(now.items()))


def _range(planned: Any) -> fetching.Range:
    topic, number, begin, end, *ids = planned
    return fetching.Range((topic, number), begin, end, ids[0] if ids else None)


def _made_again(topic: str, consequence: str) -> SourceError:
    return SourceError(
        "a topic was deleted and made again",
        got=topic,
        then=consequence,
        hint="begin with a new checkpoint; what the old topic held and was not read is lost",
    )


def _written(by_partition: Offsets) -> dict[str, dict[str, int]]:
    written: dict[str, dict[str, int]] = {}
    for (topic, number), offset in by_partition.items():
        written.setdefault(topic, {})[str(number)] = offset
    return written


def _noted(written: Any) -> Offsets:
    return {(topic, int(number)): offset for topic, by_number in written.items() for number, offset in by_number.items()}
