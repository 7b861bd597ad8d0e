"""The arguments of a start with a history: where the past of sources is, up to when, and whether its results are published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors.kafka.source import KafkaSource
from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import a_switch, a_text
from krishiv_py.plan.durations import TimePoint, time_point_us
from krishiv_py.plan.nodes import FrameSource, Stage, UnionSource, source_of
from krishiv_py.planner import history

if TYPE_CHECKING:
    from krishiv_py.planner.physical import PhysicalPlan, SourceRead

KafkaOffsets: TypeAlias = "Mapping[int, int] | Mapping[str, Mapping[int, int]]"
"""The offset at which the live source begins, by partition; of several topics by topic, then by partition."""
Until: TypeAlias = "TimePoint | Mapping[str, TimePoint | KafkaOffsets]"
"""The end of the history: an event time for all sources, or for each source an event time or offsets."""


@attrs.frozen(eq=False)
class GivenHistory:
    """Holds what a start was given of a history, for a plan; see :class:`krishiv_py.transfers.history.History`."""

    archives: dict[int, history.Archive]
    seam: dict[str, int]
    offsets: dict[int, dict[str, dict[str, int]]]
    publish: bool


def history_of(
    plan: PhysicalPlan, bootstrap: Mapping[str, Stream] | None, until: Until | None, publish: bool
) -> GivenHistory | None:
    """Return the history of a query; None where it begins without one.

    Raises
    ------
    PlanError
        For names that no source of the query has, for anything else than an archive, and for a wrong end.
    DurationError
        For an end that is out of range.
    """
    a_switch(publish, "publish")
    if bootstrap is None:
        if until is not None or not publish:
            got = "until" if until is not None else "publish"
            hint = 'pass bootstrap={"orders": archive}, too'
            raise PlanError(f"`{got}` belongs to a history", got=f"{got} without bootstrap", hint=hint)
        return None
    if not isinstance(bootstrap, Mapping) or not bootstrap:
        hint = 'write bootstrap={"orders": session.read_parquet("archive")}'
        raise PlanError("bootstrap is a dictionary of archives by source", got=shown(bootstrap), hint=hint)
    archives = {}
    for name, archive in bootstrap.items():
        number = history.read_called(plan, a_text(name, "bootstrap", "write the name of a source"), "bootstrap")
        if number in archives:
            raise PlanError("a source has one archive", got=repr(name), hint="name each source once")
        archives[number] = _archive(name, archive)
    given = GivenHistory(archives, {}, {}, publish)
    if isinstance(until, Mapping):
        for name, end in until.items():
            number = history.read_called(plan, a_text(name, "until", "write the name of a source"), "until")
            if number not in archives:
                raise PlanError("`until` names a source without an archive", got=repr(name), hint="give it one in bootstrap")
            read = plan.reads[number]
            if isinstance(end, Mapping):
                given.offsets[number] = _offsets(name, end, read)
            else:
                given.seam[history.names_of(read)[0]] = time_point_us(end, "until")
    elif until is not None:
        us = time_point_us(until, "until")
        given.seam.update({history.names_of(plan.reads[number])[0]: us for number in archives})
    return given


def _archive(name: str, archive: object) -> history.Archive:
    if not isinstance(archive, Stream):
        hint = "pass a stream before its watermark, such as session.read_parquet(path)"
        raise PlanError(f"the archive of {name!r} cannot be read as rows", got=shown(archive), hint=hint)
    source = source_of(archive._node)
    if isinstance(source, (UnionSource, Stage)):
        hint = "pass rows of one source, with or without steps"
        raise PlanError(f"the archive of {name!r} is not one source", got=source.title, hint=hint)
    if isinstance(source, FrameSource):
        hint = "read the files, the table or the topic with session.read_parquet, read_delta, read_iceberg or read_kafka"
        raise PlanError(f"the archive of {name!r} is a DataFrame, and a history runs without Spark", got="a frame", hint=hint)
    return history.Archive(archive._node, archive.schema)


def _offsets(name: str, given: Mapping[Any, Any], read: SourceRead) -> dict[str, dict[str, int]]:
    """Return offsets by topic and partition."""
    source = read.source.source if isinstance(read.source, RangeSource) else None
    if not isinstance(source, KafkaSource):
        hint = "pass an event time, or read the source with read_kafka"
        raise PlanError(f"offsets are of a topic, and {name!r} is none", got=read.source.title, hint=hint)
    hint = 'write until={"orders": {0: 1_200, 1: 1_180}}: the offset that comes next, by partition'
    by_topic = given
    if given and all(not isinstance(each, Mapping) for each in given.values()) and len(source.topics) == 1:
        by_topic = {source.topics[0]: given}
    result: dict[str, dict[str, int]] = {}
    for topic, each in by_topic.items():
        if not isinstance(each, Mapping) or topic not in source.topics:
            raise PlanError(f"no offsets of {name!r}", got=shown(given), hint=hint)
        for partition, offset in each.items():
            for number in (partition, offset):
                if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                    raise PlanError(f"no offsets of {name!r}", got=shown(given), hint=hint)
            result.setdefault(topic, {})[str(partition)] = offset
    if not result:
        raise PlanError(f"no offsets of {name!r}", got=shown(given), hint=hint)
    return result
