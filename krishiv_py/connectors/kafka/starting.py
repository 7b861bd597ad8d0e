"""Determine where a source begins and ends: what a user may tell, and the offsets it means."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

from krishiv_py.connectors.kafka.client import Offsets, Place, When, offsets
from krishiv_py.connectors.kafka.settings import Connection
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.durations import time_point_us

KafkaPosition: TypeAlias = (
    "Literal['earliest', 'latest'] | int | dt.datetime | Mapping[int, int | str] | Mapping[str, Mapping[int, int | str]]"
)
"""Where to begin or end: a word, a time (``int`` is ms since the epoch), or offsets by partition (or by topic)."""
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


def resolved(connection: Connection, wanted: Where, places: Sequence[Place], name: str, within_s: float) -> Offsets:
    """Return the offset of each partition; one that is not named begins at its first record, or ends after its last one.

    Raises
    ------
    PlanError
        For a partition that does not exist.
    """
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
