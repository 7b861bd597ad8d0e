"""A user's source without Spark."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pyarrow as pa

from krishiv_py.connectors.malformed import Malformed
from krishiv_py.connectors.ranges import next_ranges, node_of, read_range, tell_finished
from krishiv_py.connectors.source import Source


@attrs.frozen(eq=False)
class MicroBatch:
    """A micro-batch of a source that puts aside what is not a row.

    Attributes
    ----------
    table : pyarrow.Table
        The rows.
    malformed : tuple of Malformed
        What is not a row.
    """

    table: pa.Table
    malformed: tuple[Malformed, ...]


def micro_batches(source: Source) -> Iterator[pa.Table]:
    """The micro-batches of a `source`, planned and read as a query would, until it plans nothing; for ``Driver.send``.

    Those of a source with ``on_malformed="side_output"`` are a :class:`MicroBatch` each, which ``Driver.send`` takes as well.
    Position and ranges pass through JSON, and every batch is held to the schema, so a source that works here works in a query.

    Raises
    ------
    PlanError
        When it is not a source, or what it states does not fit together.
    SourceError
        When it cannot plan or be read, naming position or range.
    SchemaError
        When a batch does not have the columns of the schema.
    """
    node, position = node_of(source, None), None
    while (planned := next_ranges(source, node.name, position)) is not None:
        position = planned.position
        parts = [b for r in planned.ranges for b in read_range(source, node.name, r, node.schema)]
        rows = [part for part in parts if not isinstance(part, Malformed)]
        table = pa.Table.from_batches(rows, node.schema)
        yield MicroBatch(table, tuple(p for p in parts if isinstance(p, Malformed))) if node.puts_aside else table
        tell_finished(source, node.name, position)
