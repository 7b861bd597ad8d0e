"""The logical plan: ``Source``, ``Project``, ``Filter``, ``MapBatches``, ``Watermark`` and ``Stage``.

A stage does what needs state: it aggregates windows, joins, drops duplicates. Its results are rows again, so it is at the
bottom of a chain as a source does, and a plan of several stages is one tree. A stage that two others read is one node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.failures.redaction import redacted, shown_settings, shown_text
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.durations import show_us
from krishiv_py.plan.expressions.expr import Col, Expr
from krishiv_py.plan.operation import Operation, ResultTime
from krishiv_py.plan.options.late import (
    OF_FILES,
    AfterRead,
    Fields,
    LateEventHandler,
    MissingColumns,
    Nanoseconds,
    OnError,
    OnMalformed,
)
from krishiv_py.plan.options.query import ExplicitOptions, QueryOptions, preset_of
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec, MultiSourceWatermarkSpec, WatermarkSpec, lag_text, least_of
from krishiv_py.plan.schema import in_order_of

BatchFunction: TypeAlias = Callable[[pa.RecordBatch], "pa.RecordBatch | pa.Table"]

OnFail: TypeAlias = Literal["fail", "drop", "side_output"]
FileFormat: TypeAlias = Literal["parquet", "json", "csv"]


class Node:
    """Base of all logical nodes."""

    __slots__ = ()
    title: ClassVar[str]

    @property
    def child(self) -> Node | None:
        """The node whose rows this one takes; None for sources."""
        return getattr(self, "input", None)

    @property
    def heading(self) -> str:
        """Return what ``explain()`` calls it."""
        return self.title

    def detail(self) -> str:
        """Return what ``explain()`` shows after the heading."""
        return ""


class SourceNode(Node):
    """A node rows come from."""

    __slots__ = ()
    schema: pa.Schema
    bounded: bool
    malformed_fields: ClassVar[Fields] = OF_FILES

    @property
    def named_sources(self) -> tuple[str, tuple[str, ...]] | None:
        """The column that names watermark sources, and the names that come in it, where that is known before any row."""
        return None

    @property
    def partitioned(self) -> bool:
        """Return whether its rows say which partition they are of."""
        return False

    @property
    def lacks_order(self) -> str | None:
        """Say why its rows come in no order; None where they do."""
        return None

    @property
    def puts_aside(self) -> bool:
        """Return whether malformed input goes to the late rows."""
        return False

    @property
    def watermarked(self) -> bool:
        """Return whether it brings a watermark of Spark's own."""
        return False

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """The paths it reads from, each with a name for people."""
        return ()

    @property
    def envelope(self) -> tuple[str, ...]:
        """The columns that go with its rows through every step, whether or not a step names them."""
        return ()


@attrs.frozen(eq=False)
class MemorySource(SourceNode):
    """Batches that a sender hands over and keeps in a folder, one per micro-batch or several."""

    title: ClassVar[str] = "MemoryStream"
    name: str
    schema: pa.Schema
    spool: str
    bounded: bool = True

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """The folder of the sends; none of a stream of the test driver."""
        return ((f"the memory stream {self.name!r}", self.spool),) if self.spool else ()

    def detail(self) -> str:
        return f"{self.name} ({len(self.schema)} columns)"


@attrs.frozen(eq=False)
class FileSource(SourceNode):
    """Files below a path; `literal` if it is one as it is, though it may look like a pattern."""

    title: ClassVar[str] = "Files"
    path: str = attrs.field(repr=shown_text)
    format: FileFormat
    schema: pa.Schema
    bounded: bool
    max_files_per_batch: int | None = None
    options: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=shown_settings)
    literal: bool = False
    missing_columns: MissingColumns = "fail"
    on_malformed: OnMalformed = "fail"
    after_read: AfterRead = "keep"
    archive: str | None = attrs.field(default=None, repr=shown_text)
    nanoseconds: Nanoseconds = "fail"
    only: frozenset[str] | None = attrs.field(default=None, repr=False)
    """The paths of the files that are read, of those that are there; None for all."""

    @property
    def puts_aside(self) -> bool:
        """Return whether malformed lines and files go to the late rows."""
        return self.on_malformed == "side_output"

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """The path."""
        return (("the source", self.path),)

    def detail(self) -> str:
        limit = f", {self.max_files_per_batch} files a batch" if self.max_files_per_batch else ""
        return f"{self.format} {redacted(self.path)} ({'bounded' if self.bounded else 'streaming'}{limit})"


@attrs.frozen(eq=False)
class FrameSource(SourceNode):
    """Any Spark DataFrame, streaming or not; of one with a watermark of its own, the lags of its columns, µs."""

    title: ClassVar[str] = "DataFrame"
    frame: Any = attrs.field(repr=False)
    schema: pa.Schema
    bounded: bool
    lags_us: dict[str, int] | None = None

    @property
    def lacks_order(self) -> str | None:
        """Say why its rows come in no order."""
        return "the rows of a DataFrame come in none"

    def __reduce__(self) -> tuple[type[FrameSource], tuple[Any, ...]]:
        """In another process without the frame, which is one of its session's."""
        return FrameSource, (None, self.schema, self.bounded, self.lags_us)

    @property
    def watermarked(self) -> bool:
        """Return whether Spark's watermark is its own."""
        return self.lags_us is not None

    def detail(self) -> str:
        own = ", with a watermark of its own" if self.watermarked else ""
        return f"{'bounded' if self.bounded else 'streaming'} ({len(self.schema)} columns{own})"


@attrs.frozen(eq=False)
class UnionSource(SourceNode):
    """Several streams as one; a column names the stream a row came from. Those of a join, or connected ones, may be results."""

    title: ClassVar[str] = "Union"
    parts: tuple[tuple[str, Node], ...]
    source_column: str
    schema: pa.Schema
    bounded: bool
    changes: bool = False
    """True if its rows say whether they are added or taken back."""

    @property
    def envelope(self) -> tuple[str, ...]:
        """The order of results, where sides of a join are results, and whether they are added or taken back."""
        return (*(("op",) if self.changes else ()), *in_order_of(self.schema.names))

    @property
    def named_sources(self) -> tuple[str, tuple[str, ...]] | None:
        """Its source column, and the names of its streams."""
        return self.source_column, tuple(name for name, _ in self.parts)

    @property
    def puts_aside(self) -> bool:
        """Return whether one of its streams does."""
        return any(source_of(node).puts_aside for _, node in self.parts)

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """Those of its streams."""
        return tuple(place for _, node in self.parts for place in source_of(node).places)

    def detail(self) -> str:
        return ", ".join(f"{name}: {_as_read(node)}" for name, node in self.parts)


@attrs.frozen(eq=False)
class Project(Node):
    """Compute the output columns, in order."""

    title: ClassVar[str] = "Project"
    input: Node
    columns: tuple[tuple[str, Expr], ...]
    picks: bool = False
    """True if its author named all columns of its result, as in ``select``."""
    computes: tuple[str, ...] = ()
    """Columns that keys, identities or gaps by expression are; state depends on how they are computed."""
    envelope: tuple[str, ...] = ()
    """Columns that go along, where rows have them and the step computes none of these names: see :func:`prefix_of`."""
    aligns: bool = False
    """True if it gives the sides of a join the same columns, their order among them, so nothing goes along."""

    def along(self, names: Sequence[str]) -> list[str]:
        """Return which columns of rows with these `names` go along."""
        computed = {name for name, _ in self.columns}
        return [name for name in self.envelope if name in names and name not in computed]

    def detail(self) -> str:
        shown = [n if isinstance(e, Col) and e.name == n else f"{e!r} AS {n}" for n, e in self.columns]
        return ", ".join(shown[:12]) + (f", … ({len(shown)} in all)" if len(shown) > 12 else "")


@attrs.frozen(eq=False)
class Filter(Node):
    """Keep the rows for which the condition is true."""

    title: ClassVar[str] = "Filter"
    input: Node
    condition: Expr

    def detail(self) -> str:
        return repr(self.condition)


@attrs.frozen(eq=False)
class Expect(Filter):
    """Keep the rows for which the condition is true, and say what becomes of the others."""

    title: ClassVar[str] = "Expect"
    name: str = attrs.field(kw_only=True)
    on_fail: OnFail = attrs.field(kw_only=True)

    def detail(self) -> str:
        fate = {"fail": "else fail", "drop": "else drop and count", "side_output": "else to the late output"}[self.on_fail]
        named = "" if self.name == repr(self.condition) else f"{self.name}: "
        return f"{named}{self.condition!r}, {fate}"


@attrs.frozen(eq=False)
class FunctionCheck(Filter):
    """Keep the rows for which functions in aggregates do not raise; the planner puts it after the other steps.

    Attributes
    ----------
    calls : tuple of AggCall
        The aggregates whose functions are tried with each row.
    """

    title: ClassVar[str] = "Tried"
    calls: tuple[AggCall, ...] = attrs.field(kw_only=True)

    def detail(self) -> str:
        return ", ".join(repr(call) for call in self.calls) + ", else to the late output"


@attrs.frozen(eq=False)
class MapBatches(Node):
    """Apply a function to every Arrow batch."""

    title: ClassVar[str] = "MapBatches"
    input: Node
    function: BatchFunction
    schema: pa.Schema
    on_error: OnError = "fail"
    shown: tuple[str, ...] | None = None
    """The columns that the function gets, of results: it gives a row for each row. None where it gets rows as they are."""
    envelope: tuple[str, ...] = ()
    """Columns that go along, where rows have them and the step makes none of these names."""

    def along(self, names: Sequence[str]) -> list[str]:
        """Return which columns of rows with these `names` go along."""
        return [name for name in self.envelope if name in names and name not in self.schema.names]

    def detail(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


@attrs.frozen(eq=False)
class Watermark(Node):
    """Declare the event-time column and how the watermark follows it; without a column, rows need no event time."""

    title: ClassVar[str] = "Watermark"
    input: Node
    column: str
    spec: AnyWatermarkSpec
    source_column: str | None = None

    @property
    def heading(self) -> str:
        return self.title if self.column else ""  # nothing to show

    def detail(self) -> str:
        by = f" by {self.source_column}" if self.source_column else ""
        if isinstance(source_of(self.input), Stage) and isinstance(self.spec, WatermarkSpec):
            lag = f", less {show_us(self.spec.lag_us)}" if self.spec.lag_us else ""
            return f"{self.column}: that of the stage before{lag}"
        return f"{self.column}{by}: {self._of_sides() or self.spec._describe()}"

    def _of_sides(self) -> str:
        """Return what the watermark of a join follows where sides are results of stages; empty for any other."""
        source = source_of(self.input)
        parts = source.parts if isinstance(source, UnionSource) else ()
        results = [name for name, part in parts if isinstance(source_of(part), Stage)]
        if not results or not isinstance(self.spec, MultiSourceWatermarkSpec):
            return ""
        texts = []
        for name, spec in self.spec.sources:
            less = f", less {show_us(spec.lag_us)}" if spec.lag_us else ""
            texts.append(f"that of {name}{less}" if name in results else lag_text(name, spec.lag_us))
        return least_of(self.spec, texts)


@attrs.frozen(eq=False)
class Stage(SourceNode):
    """An operation with state over rows that have event time; its results are the rows of those who read it (SEMANTICS §7).

    Attributes
    ----------
    input : Watermark
        The rows, with event time.
    operation : Operation
        Windows with their aggregates, a join, deduplication.
    options : QueryOptions
        How rows are classified and when results are given.
    late : LateEventHandler
        Who takes its late rows.
    schema : pyarrow.Schema
        What a stage that follows gets: its results, their event time, and what their order goes by.
    time_column : str
        The event time of results.
    """

    title: ClassVar[str] = "Stage"
    input: Watermark
    operation: Operation
    options: QueryOptions
    late: LateEventHandler
    schema: pa.Schema = attrs.field(factory=lambda: pa.schema([]))
    time_column: str = ""

    @property
    def time(self) -> ResultTime | None:
        """Return where its results have their event time; None if they have none."""
        return self.operation.result_time(self.input.column)

    @property
    def time_of_row(self) -> bool:
        """Return whether its results have their event time as a column of their own."""
        return self.time is not None and self.time.of_row

    @property
    def envelope(self) -> tuple[str, ...]:
        """The columns of its results that go along: whether they are withdrawn, their event time, their order."""
        names = self.schema.names
        op = ("op",) if "op" in names and self.options.emit_mode == "retractions" else ()
        return (*op, *([self.time_column] if self.time_column in names else []), *in_order_of(names))

    @property
    def inputs(self) -> tuple[tuple[str | None, Node], ...]:
        """The streams it reads: of a join or a union each with its name."""
        return streams_of(self.input)

    @property
    def bounded(self) -> bool:  # type: ignore[override]
        """Return whether its rows end."""
        return source_of(self.input).bounded

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """Return the places of the source that the stages begin with."""
        return root_of(self.input).places

    @property
    def heading(self) -> str:
        return self.operation.nature.heading

    @property
    def shown_keys(self) -> str:
        """The keys for people."""
        return ", ".join(self.operation.keys) or "(one global key)"

    @property
    def shown_aggs(self) -> str:
        """The aggregates for people, and the result columns where the plan names them."""
        shown = [n if isinstance(e, Col) and e.name == n else f"{e!r} AS {n}" for n, e in self.operation.result_columns or ()]
        output = f"; columns {', '.join(shown)}" if shown else ""
        return ", ".join(map(str, self.operation.aggs)) + output

    def detail(self) -> str:
        if self.operation.nature.stateless:
            return self.operation.describe()
        given = f": {self.shown_aggs}" if self.shown_aggs else ""
        return f"{self.operation.describe()} by {self.shown_keys}{given} [{self.options.describe()}]"


Prefix: TypeAlias = "Project | Filter | MapBatches"


def chain(node: Node) -> Iterator[Node]:
    """Yield the node and those below it, top first, down to a source or a stage whose results these are."""
    current: Node | None = node
    while current is not None:
        yield current
        current = None if isinstance(current, SourceNode) else current.child


def source_of(node: Node) -> SourceNode:
    """Return where the rows of a node come from: a source, or a stage whose results they are."""
    *_, bottom = chain(node)
    assert isinstance(bottom, SourceNode)
    return bottom


def _as_read(node: Node) -> str:
    """Return where the rows of a node come from, and the steps of users that they take."""
    source = source_of(node)
    shown = [step for step in prefix_of(node) if not (isinstance(step, Project) and step.aligns)]
    steps = [f"{step.title} {step.detail()}".rstrip() for step in shown]
    return " → ".join([f"{source.title} {source.detail()}".rstrip(), *steps])


def root_of(node: Node) -> SourceNode:
    """Return the source that the first stage reads; of a join with results of stages, both sides as they are named there."""
    node_of_rows = source_of(node)
    return root_of(node_of_rows.input) if isinstance(node_of_rows, Stage) else node_of_rows


def prefix_of(node: Node) -> tuple[Prefix, ...]:
    """Return the stateless steps between source and watermark, first applied first; each hands the envelope of rows on."""
    bottom, *above = reversed(list(chain(node)))
    assert isinstance(bottom, SourceNode)
    steps = tuple(step for step in above if isinstance(step, (Project, Filter, MapBatches)))
    return tuple(with_envelope(step, bottom.envelope) for step in steps) if bottom.envelope else steps


def with_envelope(step: Prefix, names: tuple[str, ...]) -> Prefix:
    """Return a step along with which the columns of these `names` go."""
    if isinstance(step, Filter) or (isinstance(step, Project) and step.aligns):
        return step
    return attrs.evolve(step, envelope=names)


def names_time(node: Node) -> bool:
    """Return whether the event time of the rows of a node is one of their columns, and did not only go along."""
    source = source_of(node)
    if not isinstance(source, Stage):
        return True
    nature = source.operation.nature
    named = source.time_of_row and (nature.joins or not nature.gives_rows or names_time(source.input))
    for step in prefix_of(node):
        if isinstance(step, Project):
            named = any(name == source.time_column for name, _ in step.columns)
        elif isinstance(step, MapBatches):
            named = source.time_column in step.schema.names
    return named


def streams_of(node: Node) -> tuple[tuple[str | None, Node], ...]:
    """Return the streams that a node reads: the parts of a union or of a join by name, or the only one."""
    source = source_of(node)
    return source.parts if isinstance(source, UnionSource) else ((None, source),)


def stages_read(node: Node) -> tuple[tuple[str | None, Stage], ...]:
    """Return the stages whose results a node reads: of a join those of a side, with its name."""
    return tuple((name, stage) for name, part in streams_of(node) if isinstance(stage := source_of(part), Stage))


def only_results(node: Node) -> bool:
    """Return whether a node reads results of stages and no rows of a source; of a join on both sides."""
    return len(stages_read(node)) == len(streams_of(node))


def stages_of(node: Stage) -> list[Stage]:
    """Return the stages of a plan, each once, after those whose results it reads."""
    stages: dict[int, Stage] = {}
    for _, before in stages_read(node.input):
        stages |= {id(stage): stage for stage in stages_of(before)}
    return [*stages.values(), node]


def computed_in(node: Node) -> dict[str, Expr]:
    """Return the columns of keys, identities and gaps that are expressions, by name, of all streams that a node reads."""
    computed: dict[str, Expr] = {}
    for side, part in streams_of(node):
        computed |= {f"{name} of {side}": expr for name, expr in computed_in(part).items()} if side is not None else {}
    for step in prefix_of(node):
        if isinstance(step, Project):
            computed |= {name: expr for name, expr in step.columns if name in step.computes}
    return computed


@attrs.frozen(eq=False)
class FilterAfter(Filter):
    """Keep the rows for which the condition is true, after the watermark: the others still move it (SEMANTICS §2.7)."""

    def detail(self) -> str:
        return f"{self.condition!r}, after the watermark: rows that it leaves out move the watermark"


def filters_after(node: Node, base: Node) -> Node:
    """Return the steps over a `base` with filters after its watermark; as they are if functions over batches are among them."""
    steps: list[Filter | Project] = []
    current = node
    while current is not base:
        if not isinstance(current, (Filter, Project)):
            return node
        steps.append(current)
        current = current.input
    for step in reversed(steps):
        if isinstance(step, Filter) and not isinstance(step, Expect):  # a row that Expect takes out is not a row
            current = FilterAfter(current, step.condition)
        else:
            current = attrs.evolve(step, input=current)
    return current


@attrs.frozen(eq=False)
class StageDraft:
    """A query as it was given so far.

    Nothing is filled in before it is asked for, so the order of the steps makes no difference. Then the preset fills what is
    unset, the operation fills what is still unset or refuses what contradicts it, and defaults fill the rest.
    """

    input: Watermark = attrs.field(repr=shown_text)
    late_handler: LateEventHandler
    keys: tuple[str, ...] = ()
    explicit: ExplicitOptions = attrs.field(factory=ExplicitOptions)
    operation: Operation | None = None

    def doing(self, operation: Operation) -> StageDraft:
        """Return the draft with its `operation`, which gets the keys."""
        return attrs.evolve(self, operation=attrs.evolve(operation, keys=self.keys))

    @property
    def options(self) -> QueryOptions:
        """The options in force.

        Raises
        ------
        PlanError
            For options that contradict the operation.
        """
        return self._filled.options()

    @property
    def _filled(self) -> ExplicitOptions:
        explicit = preset_of(self.explicit)
        if self.operation is None:
            return explicit
        settled = self.operation.settled(explicit)
        return self.operation.over_changes(settled) if "op" in source_of(self.input).envelope else settled

    def node(self) -> Stage:
        """Return the stage of a draft that has its operation."""
        assert self.operation is not None
        explicit, mark = self._filled, self.input
        if explicit.initial_us is not None:
            mark = attrs.evolve(mark, spec=mark.spec._starting(explicit.initial_us))
        options = explicit.options()
        options = attrs.evolve(options, emit=options.emit_mode)  # said or not, it is the same stage
        return Stage(mark, self.operation.following(explicit), options, self.late_handler)
