"""The input of a driver: streams without a session, rows that are sent, batches of a capture, and a clock that is moved."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.api import sources
from krishiv_py.api.query import NoRunner
from krishiv_py.api.stages.running import Output, RunMethods, named_outputs
from krishiv_py.api.stages.stream import Stream
from krishiv_py.arrays.capsules import ArrowRows
from krishiv_py.connectors.fit import SOURCE, fitted_batch
from krishiv_py.connectors.lookup_table import LookupTable
from krishiv_py.connectors.ranges import next_ranges, node_of, read_range, tell_finished
from krishiv_py.connectors.source import Malformed, Source
from krishiv_py.display.html import rows_html
from krishiv_py.engine.stage import StageOperator
from krishiv_py.errors import PlanError, shown
from krishiv_py.in_process.core import StreamRows
from krishiv_py.in_process.outputs import AnySink
from krishiv_py.in_process.sources import ClockControl, controls_of
from krishiv_py.kernels.prepare import as_batches
from krishiv_py.kernels.watermark import ClockInput
from krishiv_py.plan.checks import is_collection, microseconds
from krishiv_py.plan.durations import MAX_TIME_US, Duration, TimePoint, show_instant, time_point_us, to_us
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.plan.schema import SchemaLike, as_schema
from krishiv_py.planner.cut import Branch, StagePlan
from krishiv_py.planner.history import names_of
from krishiv_py.planner.physical import PhysicalPlan, SourceRead, lookup_tables, table_names
from krishiv_py.planner.several import several
from krishiv_py.runtime.capture import CapturedBatch, OpenCapture
from krishiv_py.runtime.reading import ScannedRows


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
    return sources.union_of(streams, source_column, NoRunner())


@attrs.frozen(eq=False)
class MicroBatch(ArrowRows):
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

    def _arrow(self) -> pa.Table:
        return self.table


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


Takers: TypeAlias = "list[tuple[int, StageOperator]]"


class DriverInput:
    """Says where rows enter a driver: the stages that read a source, each with what it does first with the rows of a stream."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self._streams = {r.name: _takers(r.takers) for r in plan.reads if r.name is not None}
        self._joins = len(plan.reads) > 1 and any(_is_join(plan.stages[n]) for n in plan.roots)
        self._whole = self._plain(plan)

    def _plain(self, plan: PhysicalPlan) -> Takers | None:
        """Return who takes rows that name no stream; None where they must.

        A union may read one stream several times, and each of its rows is then read as often, as with a sender.
        """
        if len({id(read.source) for read in plan.reads}) > 1 or self._joins:
            return None
        return [taker for read in plan.reads for taker in _takers(read.takers)]

    def sent(self, rows: Any) -> dict[int, StreamRows]:
        """Return the rows of a batch, in the order in which they arrive, as each of the stages reads them, by its number.

        Raises
        ------
        PlanError
            For names of streams that there are not, and for rows of several streams without any.
        """
        sent_by_source: dict[int, StreamRows] = {}
        for takers, part in self._parts(rows):
            bad: tuple[Malformed, ...] = ()
            if isinstance(part, MicroBatch):
                part, bad = part.table, part.malformed
            read = [ScannedRows(batch) for batch in as_batches(part, takers[0][1].spec.source_schema)]
            for number, stage in takers:
                sent_by_source.setdefault(number, []).append(
                    (stage, [ScannedRows(None, malformed=bad), *read] if bad else read)
                )
        return sent_by_source

    def _parts(self, rows: Any) -> list[tuple[Takers, Any]]:
        if isinstance(rows, Mapping) and self._streams:
            for name in rows:
                if name not in self._streams:
                    known = ", ".join(map(repr, self._streams))
                    raise PlanError("no such stream", got=shown(name), hint=f"the streams are called {known}")
            return [(self._streams[name], part) for name, part in rows.items()]
        if self._whole is None:
            if isinstance(rows, list) and not rows:  # a batch without rows
                return []
            names = ", ".join(f'"{name}": [...]' for name in self._streams)
            which = "rows of a join belong to one of its sides" if self._joins else "rows belong to one of several streams"
            raise PlanError(which, got=type(rows).__name__, hint=f"send {{{names}}}")
        return [(self._whole, rows)]


def _is_join(stage: StagePlan) -> bool:
    return bool(stage.after) or stage.spec.operation.nature.joins


def _takers(takers: Sequence[tuple[int, Branch]]) -> Takers:
    return [(number, StageOperator(branch.spec)) for number, branch in takers]


@attrs.frozen(eq=False, repr=False)
class StepOutput(ArrowRows):
    """The output of one call.

    Attributes
    ----------
    results : pyarrow.Table
        Results, in firing order.
    late : pyarrow.Table
        Rows that entered no window, with ``reason``, ``watermark``, ``lateness``. They are whole rows if the late handler
        wants whole rows. Otherwise computed columns that nothing needs are missing.
    watermark_us : int
        The watermark afterwards, µs.
    late_by_stage : dict
        Late rows by the name of their stage; `late` has those of the first one.
    by_output : dict
        Results by the name of their output; `results` has those of the first one.

    Examples
    --------
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> driver = Driver(stream_of("at bigint").watermark("at", 0).tumbling_window("10 s").agg(count()))
    >>> out = driver.send([{"at": 12_000}, {"at": None}])
    >>> out.results.num_rows, out.late.column("reason").to_pylist(), out.watermark_us
    (0, ['null_time'], 12000000)
    """

    results: pa.Table
    late: pa.Table
    watermark_us: int
    late_by_stage: dict[str, pa.Table] = attrs.field(factory=dict)
    by_output: dict[str, pa.Table] = attrs.field(factory=dict)

    def _arrow(self) -> pa.Table:
        return self.results

    def __repr__(self) -> str:
        rows = _rows(self.by_output, self.results, "result"), _rows(self.late_by_stage, self.late, "late row")
        return f"<StepOutput {'; '.join(rows)}; watermark {show_instant(self.watermark_us)}>"

    def _repr_html_(self) -> str:
        """Return the results and late rows as tables, of each output and stage."""
        late = {f"late rows of {name}": table for name, table in self.late_by_stage.items()} or {"late rows": self.late}
        aside = f"watermark {show_instant(self.watermark_us)}"
        return rows_html("Output of a step", aside, {**(self.by_output or {"results": self.results}), **late})


def _rows(named: dict[str, pa.Table], first: pa.Table, what: str) -> str:
    """Return how many there are, by name where there are several tables."""
    total = sum(table.num_rows for table in named.values()) if named else first.num_rows
    text = f"{total} {what}{'' if total == 1 else 's'}"
    return text if len(named) < 2 else f"{text} ({', '.join(f'{name}: {table.num_rows}' for name, table in named.items())})"


@attrs.define
class ManualClock:
    """Processing time for tests: intervals, TTL by wall clock, rows ahead of the clock (SEMANTICS §4.4, §5.3, §6.1).

    Attributes
    ----------
    now_us : int
        µs since the epoch; 0 at first.

    Examples
    --------
    >>> clock = ManualClock()
    >>> clock.advance("5 s")
    5000000
    """

    now_us: int = attrs.field(default=0)
    _advanced_us: int = attrs.field(default=0, init=False, eq=False, repr=False)
    _set: bool = attrs.field(default=False, init=False, eq=False, repr=False)

    @now_us.validator
    def _in_range(self, _attribute: object, value: object) -> None:
        microseconds(value, "now_us", -MAX_TIME_US, MAX_TIME_US)

    def advance(self, by: Duration) -> int:
        """Move on by a duration (``int`` is milliseconds); returns the new time in µs."""
        by_us = to_us(by, "by")
        self.now_us += by_us
        self._advanced_us += by_us
        return self.now_us

    def set(self, to: TimePoint) -> int:
        """Move to a point in time (ms since the epoch, or a datetime); a wall clock may go back, and so may this one.

        Examples
        --------
        >>> from krishiv_py.testing import ManualClock
        >>> clock = ManualClock()
        >>> clock.set("2024-06-01T00:00:00Z"), clock.is_set
        (1717200000000000, True)
        """
        self.now_us = time_point_us(to, "to")
        self._set = True
        return self.now_us

    @property
    def is_set(self) -> bool:
        """Return whether it shows a point in time: one that was only moved on by :meth:`advance` does not.

        Examples
        --------
        >>> from krishiv_py.testing import ManualClock
        >>> clock = ManualClock()
        >>> _ = clock.advance("5 s")
        >>> clock.is_set
        False
        """
        return self._set or self.now_us != self._advanced_us


@attrs.frozen(eq=False)
class BatchInput:
    """Holds a batch, its rows as each stage reads them, what it says of the watermark, and the tables it looks rows up in.

    With them the partitions that its streams know of, by the clocks that go by these.
    """

    batch: CapturedBatch
    sent: dict[int, StreamRows]
    controls: list[ClockControl]
    tables: CapturedTables
    partitions: list[tuple[tuple[ClockInput, ...], list[str]]] = attrs.field(factory=list)


@attrs.define(eq=False)
class CapturedTables:
    """The lookup tables of a plan as the batches of a capture had them.

    A table that the capture does not have, by its name and columns, is loaded once.
    """

    captured: OpenCapture
    tables: dict[str, tuple[str, LookupTable]]
    """The tables of the plan by their tokens, with their names."""
    files: Mapping[str, str] = attrs.field(factory=dict)
    """The files of the batch in hand, by the names of tables."""
    mark: str = attrs.field(factory=lambda: uuid.uuid4().hex)
    _loaded: dict[str, pa.Table] = attrs.field(factory=dict)

    @classmethod
    def of(cls, captured: OpenCapture, plan: PhysicalPlan) -> CapturedTables:
        """Return those of a plan."""
        tables = lookup_tables(plan)
        return cls(captured, {table.token: (name, table) for name, table in zip(table_names(tables), tables, strict=True)})

    def name(self, token: str) -> str:
        """See :class:`~krishiv_py.connectors.lookup_table.Versions`."""
        return f"{self.mark} {self.files.get(self.tables[token][0])}"

    def table(self, token: str) -> pa.Table:
        """See :class:`~krishiv_py.connectors.lookup_table.Versions`."""
        name, table = self.tables[token]
        if (file := self.files.get(name)) is not None:
            if file not in self._loaded:
                self._loaded[file] = self.captured.table(file)
            if self._loaded[file].schema.equals(table.schema):
                return self._loaded[file]
        if token not in self._loaded:
            self._loaded[token] = table.loaded()
        return self._loaded[token]


class Turns(Protocol):
    """Gives batches, one after the other."""

    @property
    def left(self) -> int:
        """Return how many batches are to come."""

    def next(self) -> BatchInput | None:
        """Return the next batch; None after the last one."""


class Feed:
    """Gives the batches of a capture, one after the other.

    Raises
    ------
    PlanError
        When the plan reads a source that the capture does not have.
    """

    def __init__(self, captured: OpenCapture, plan: PhysicalPlan) -> None:
        self.captured, self._plan, self._next = captured, plan, 0
        self._tables = CapturedTables.of(captured, plan)
        self._sources = [_source(read, captured, len(plan.reads)) for read in plan.reads]

    @property
    def left(self) -> int:
        """Return how many batches are to come."""
        return len(self.captured.batches) - self._next

    def next(self) -> BatchInput | None:
        """Return the next batch; None after the last one."""
        if not self.left:
            return None
        batch = self.captured.batches[self._next]
        self._next += 1
        turn = BatchInput(batch, {}, [], attrs.evolve(self._tables, files=batch.tables))
        for read, source in zip(self._plan.reads, self._sources, strict=True):
            if known := batch.partitions.get(str(source)):
                turn.partitions.append((self._plan.clock_inputs(read), known))
            scanned = self.captured.read(batch, source)
            if not scanned:
                continue
            turn.controls.extend(controls_of(scanned, self._plan.clock_inputs(read)))
            rows = picked(scanned, read)
            for number, branch in read.takers:
                turn.sent.setdefault(number, []).append((StageOperator(branch.spec), rows))
        return turn


def _source(read: SourceRead, captured: OpenCapture, count: int) -> int:
    if count == 1 and len(captured.sources) == 1:
        return 0
    names = names_of(read)
    matches = [number for number, known in enumerate(captured.sources) if set(known[:1]) & set(names)]
    matches = matches or [number for number, known in enumerate(captured.sources) if set(known) & set(names)]
    if len(matches) == 1:
        return matches[0]
    known = ", ".join(repr(each[0]) for each in captured.sources)
    raise PlanError("the capture has no source of this name", got=repr(names[0]), hint=f"the sources are {known}")


def picked(scanned: Sequence[ScannedRows], read: SourceRead) -> list[ScannedRows]:
    """Return rows with the columns that the plan reads; what was left out of the capture is null.

    Raises
    ------
    PlanError
        For a column that the capture lacks.
    SchemaError
        For one that it has in a type whose values do not fit that of the plan.
    """
    schema = pa.schema([read.source.schema.field(name).with_nullable(True) for name in read.needs_columns])
    result = []
    for one in scanned:
        if one.batch is None:
            result.append(one)
            continue
        missing = [name for name in schema.names if name not in one.batch.schema.names]
        if missing:
            hint = "use a column that the source had, or make the capture again"
            raise PlanError("the capture lacks a column that the pipeline reads", got=missing[0], hint=hint)
        batch = fitted_batch(one.batch, schema, SOURCE, "the capture does not run under this plan")
        result.append(attrs.evolve(one, batch=batch))
    return result
