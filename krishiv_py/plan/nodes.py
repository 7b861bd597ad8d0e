"""Nodes of the logical plan: a chain from a source to a windowed aggregation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.plan.aggregates import AggCall
from krishiv_py.plan.expressions.expr import Col, Expr
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec
from krishiv_py.plan.windows import Window
from krishiv_py.redaction import redacted, shown_settings, shown_text

BatchFunction: TypeAlias = Callable[[pa.RecordBatch], "pa.RecordBatch | pa.Table"]

FileFormat: TypeAlias = Literal["parquet", "json", "csv"]
OnMalformed: TypeAlias = Literal["fail", "side_output"]
MissingColumns: TypeAlias = Literal["fail", "null"]


class Node:
    """Base of all logical nodes."""

    __slots__ = ()
    title: ClassVar[str]

    @property
    def child(self) -> Node | None:
        """The node whose rows this one takes; None for sources."""
        return getattr(self, "input", None)

    def detail(self) -> str:
        """What ``explain()`` shows behind the title."""
        return ""


class Source(Node):
    """A node rows come from."""

    __slots__ = ()
    schema: pa.Schema
    bounded: bool


@attrs.frozen(eq=False)
class MemorySource(Source):
    """Batches handed over by a sender and spooled as parquet files, one per micro-batch."""

    title: ClassVar[str] = "MemoryStream"
    name: str
    schema: pa.Schema
    spool: str
    bounded: bool = True

    def detail(self) -> str:
        return f"{self.name} ({len(self.schema)} columns)"


@attrs.frozen(eq=False)
class FileSource(Source):
    """Files below a path; `literal` if it is one as it stands, though it may look like a pattern."""

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

    def detail(self) -> str:
        limit = f", {self.max_files_per_batch} files a batch" if self.max_files_per_batch else ""
        return f"{self.format} {redacted(self.path)} ({'bounded' if self.bounded else 'streaming'}{limit})"


@attrs.frozen(eq=False)
class FrameSource(Source):
    """Any Spark DataFrame, streaming or not."""

    title: ClassVar[str] = "DataFrame"
    frame: Any = attrs.field(repr=False)
    schema: pa.Schema
    bounded: bool

    def detail(self) -> str:
        return f"{'bounded' if self.bounded else 'streaming'} ({len(self.schema)} columns)"


@attrs.frozen(eq=False)
class UnionSource(Source):
    """Several streams as one; a column names the stream a row came from."""

    title: ClassVar[str] = "Union"
    parts: tuple[tuple[str, Node], ...]
    source_column: str
    schema: pa.Schema
    bounded: bool

    def detail(self) -> str:
        return ", ".join(f"{name}: {source_of(node).title} {source_of(node).detail()}" for name, node in self.parts)


@attrs.frozen(eq=False)
class Project(Node):
    """Compute the output columns, in order."""

    title: ClassVar[str] = "Project"
    input: Node
    columns: tuple[tuple[str, Expr], ...]
    picks: bool = False
    """Whether its author named every column there is to be, as in ``select``."""

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
class MapBatches(Node):
    """Apply a function to every Arrow batch."""

    title: ClassVar[str] = "MapBatches"
    input: Node
    function: BatchFunction
    schema: pa.Schema

    def detail(self) -> str:
        return getattr(self.function, "__name__", repr(self.function))


@attrs.frozen(eq=False)
class AssignWatermark(Node):
    """Declare the event-time column and how the watermark follows it."""

    title: ClassVar[str] = "Watermark"
    input: Node
    column: str
    spec: AnyWatermarkSpec
    source_column: str | None = None

    def detail(self) -> str:
        by = f" by {self.source_column}" if self.source_column else ""
        return f"{self.column}{by}: {self.spec.describe()}"


@attrs.frozen(eq=False)
class WindowAggregate(Node):
    """Group by keys and window, aggregate, judge lateness, emit."""

    title: ClassVar[str] = "WindowAggregate"
    input: AssignWatermark
    keys: tuple[str, ...]
    window: Window
    aggs: tuple[AggCall, ...]
    options: QueryOptions
    output: tuple[tuple[str, str], ...] | None = None
    """Result columns as (name, what it is called otherwise); None for keys, bounds and aggregates (SEMANTICS §5.5)."""

    @property
    def shown_keys(self) -> str:
        """The keys for people."""
        return ", ".join(self.keys) or "(one global key)"

    @property
    def shown_aggs(self) -> str:
        """The aggregates for people, and the result columns where the plan names them."""
        shown = [name if name == source else f"{source} AS {name}" for name, source in self.output or ()]
        output = f"; columns {', '.join(shown)}" if shown else ""
        return ", ".join(map(str, self.aggs)) + output

    def detail(self) -> str:
        return f"{self.window.describe()} by {self.shown_keys}: {self.shown_aggs} [{self.options.describe()}]"


Prefix: TypeAlias = "Project | Filter | MapBatches"


def chain(node: Node) -> Iterator[Node]:
    """The node and everything below it, top first."""
    at: Node | None = node
    while at is not None:
        yield at
        at = at.child


def source_of(node: Node) -> Source:
    """The source at the bottom of the chain."""
    bottom = list(chain(node))[-1]
    assert isinstance(bottom, Source)
    return bottom


def puts_aside(node: Node) -> bool:
    """Whether a source below a node puts malformed input aside."""
    source = source_of(node)
    if isinstance(source, UnionSource):
        return any(puts_aside(part) for _, part in source.parts)
    return isinstance(source, FileSource) and source.on_malformed == "side_output"


def prefix_of(node: Node) -> tuple[Prefix, ...]:
    """The stateless steps between source and watermark, first applied first."""
    return tuple(n for n in reversed(list(chain(node))) if isinstance(n, (Project, Filter, MapBatches)))
