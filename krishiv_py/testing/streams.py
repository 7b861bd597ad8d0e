"""Streams without a session, for tests.

Define what a driver is given to run, as a plan and the sinks of its outputs.

A user's source without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs
import pyarrow as pa

from krishiv_py.api import others
from krishiv_py.api.query import NoRunner
from krishiv_py.api.stages.running import Output, RunMethods, named_outputs
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors.malformed import Malformed
from krishiv_py.connectors.ranges import next_ranges, node_of, read_range, tell_finished
from krishiv_py.connectors.source import Source
from krishiv_py.errors import PlanError, shown
from krishiv_py.in_process.outputs import AnySink
from krishiv_py.plan.checks import is_collection
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.plan.schema import SchemaLike, as_schema
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.several import several


def run_by_driver(given: RunMethods | Iterable[Output], sink: AnySink | None) -> tuple[PhysicalPlan, list[AnySink | None]]:
    """Return the plan, and a sink for each of its outputs.

    Raises
    ------
    PlanError
        For a value that is not a pipeline, for outputs that cannot be one query, and for a `sink` next to those of outputs.
    """
    if isinstance(given, RunMethods):
        return given._plan("driver", late="shown"), [sink]
    if not is_collection(given):
        raise PlanError("a Driver runs an aggregated stream", got=shown(given), hint="end the pipeline with .agg(...)")
    outputs = named_outputs(given, "Driver")
    if sink is not None:
        raise PlanError("outputs have sinks of their own", got=shown(sink), hint="leave sink out: .to(sink)")
    plan = several([(name, output.stream._plan("driver", late="shown")) for name, output in outputs.items()])
    return plan, [output.sink for output in outputs.values()]


def stream_of(schema: SchemaLike) -> Stream:
    """Return a stream of this schema that belongs to no session; run it with :class:`~krishiv_py.testing.Driver`.

    Examples
    --------
    >>> from krishiv_py.testing import Driver, stream_of
    >>> Driver(stream_of("price double").filter("price > 1")).send([{"price": 0.5}, {"price": 2.0}]).results.to_pylist()
    [{'price': 2.0}]
    """
    checked = as_schema(schema)
    return Stream(MemorySource("test", checked, ""), checked, NoRunner())


def union_of(streams: Mapping[str, Stream], *, source_column: str = "source") -> Stream:
    """Several streams as one, as :meth:`krishiv_py.Session.union` makes it; a driver takes their rows by their names.

    Parameters
    ----------
    streams : dict of str to Stream
        Streams of the same columns, by name.
    source_column : str
        The column with the name of the stream that a row is from.

    Raises
    ------
    PlanError
        For no streams, and for what is none.
    SchemaError
        For streams with other columns.

    Examples
    --------
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import Driver, stream_of, union_of
    >>> both = union_of({"web": stream_of("at bigint"), "app": stream_of("at bigint")})
    >>> driver = Driver(both.watermark("at", 0).key_by("source").tumbling_window(10).agg(count()))
    >>> _ = driver.send({"web": [{"at": 1}, {"at": 2}], "app": [{"at": 3}]})
    >>> sorted((row["source"], row["count"]) for row in driver.close().results.to_pylist())
    [('app', 1), ('web', 2)]
    """
    return others.union_of(streams, source_column, NoRunner())


@attrs.frozen(eq=False)
class MicroBatch:
    """A micro-batch of a source that puts aside what is not a row.

    Attributes
    ----------
    table : pyarrow.Table
        The rows.
    malformed : tuple of Malformed
        What is not a row.

    Examples
    --------
    >>> import pyarrow as pa
    >>> from krishiv_py.connectors import Malformed, Planned, Source
    >>> from krishiv_py.testing import micro_batches
    >>> class Lines(Source):
    ...     schema = pa.schema([("n", pa.int64())])
    ...     on_malformed = "side_output"
    ...
    ...     def plan(self, last):
    ...         return Planned("all", ["a.txt"]) if last is None else None
    ...
    ...     def read(self, planned, columns):
    ...         yield pa.record_batch({"n": [0]})
    ...         yield Malformed(file=planned, line=2, text="?", problem="no number")
    >>> [(batch.table.to_pylist(), batch.malformed[0].where) for batch in micro_batches(Lines())]
    [([{'n': 0}], 'a.txt, line 2')]
    """

    table: pa.Table
    malformed: tuple[Malformed, ...]


def micro_batches(source: Source) -> Iterator[pa.Table]:
    """Yield the micro-batches of a `source`, planned and read as a query would, until it plans nothing; for ``Driver.send``.

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

    Examples
    --------
    >>> import pyarrow as pa
    >>> from krishiv_py.connectors import Planned, Source
    >>> from krishiv_py.testing import micro_batches
    >>> class Numbers(Source):
    ...     schema = pa.schema([("n", pa.int64())])
    ...
    ...     def plan(self, last):
    ...         return Planned("all", ["0 to 2"]) if last is None else None
    ...
    ...     def read(self, planned, columns):
    ...         yield pa.record_batch({"n": [0, 1]})
    >>> [table.to_pylist() for table in micro_batches(Numbers())]
    [[{'n': 0}, {'n': 1}]]
    """
    node, position = node_of(source, None), None
    while (planned := next_ranges(source, node.name, position)) is not None:
        position = planned.position
        parts = [b for r in planned.ranges for b in read_range(source, node.name, r, node.schema)]
        rows = [part for part in parts if not isinstance(part, Malformed)]
        table = pa.Table.from_batches(rows, node.schema)
        yield MicroBatch(table, tuple(p for p in parts if isinstance(p, Malformed))) if node.puts_aside else table
        tell_finished(source, node.name, position)
