"""Archives as sources of a run in this process: whether they are the place of a live source, where they end, and no outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import attrs
import pyarrow as pa

from krishiv_py.connectors.kafka.source import KafkaSource
from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.connectors.sink import OnRepeat, OutputBatch, TableSink
from krishiv_py.connectors.tables.delta.source import DeltaSource
from krishiv_py.connectors.tables.iceberg.source import IcebergSource
from krishiv_py.plan.nodes import FileSource, MemorySource, Node, SourceNode
from krishiv_py.planner.history import Archive


def same_place(archive: SourceNode, live: SourceNode) -> bool:
    """Return whether a live source is what its archive is: then it goes on where that ended."""
    if isinstance(archive, FileSource) and isinstance(live, FileSource):
        return (archive.path.rstrip("/"), archive.format) == (live.path.rstrip("/"), live.format)
    if isinstance(archive, MemorySource) and isinstance(live, MemorySource):
        return archive.spool == live.spool
    if not isinstance(archive, RangeSource) or not isinstance(live, RangeSource):
        return False
    past, now = archive.source, live.source
    if isinstance(past, KafkaSource) and isinstance(now, KafkaSource):
        return (past.connection.servers, past.topics, past.pattern) == (now.connection.servers, now.topics, now.pattern)
    if isinstance(past, DeltaSource) and isinstance(now, DeltaSource):
        return past.table == now.table
    if isinstance(past, IcebergSource) and isinstance(now, IcebergSource):
        return past.name == now.name
    return past is now


def replaced(archive: Archive, source: SourceNode) -> Archive:
    """Return an archive over another source: the same steps."""
    return attrs.evolve(archive, node=_over(archive.node, source))


def ended_at(archive: Archive, offsets: Mapping[str, Mapping[str, int]]) -> Archive:
    """Return an archive up to `offsets`, the next ones by topic and partition; other archives stay as they are."""
    source = archive.source
    if not isinstance(source, RangeSource) or not isinstance(source.source, KafkaSource):
        return archive
    places = tuple(((topic, int(n)), offset) for topic, each in offsets.items() for n, offset in each.items())
    return replaced(archive, attrs.evolve(source, source=attrs.evolve(source.source, until=places)))


def _over(node: Node, source: SourceNode) -> Node:
    """Return a chain of steps over another source."""
    below = node.child
    return source if below is None else attrs.evolve(node, input=_over(below, source))  # type: ignore[misc]  # a step


@attrs.frozen(eq=False)
class NoSink(TableSink):
    """A sink that keeps nothing: results of a history that are kept back."""

    on_repeat: ClassVar[OnRepeat] = "skip"

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """Keep nothing."""
