"""The specification of an operator, one picklable value, and the moment that a step of it runs at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import Final

import attrs
import pyarrow as pa

from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.aggregates.outputs import Output
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.nodes import Prefix
from krishiv_py.plan.operation import Operation
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec
from krishiv_py.plan.schema import TimeKind


@attrs.frozen(eq=False, slots=False)
class OperatorSpec:
    """A windowed aggregation, checked.

    Attributes
    ----------
    name : str
        Shown in errors, metrics and ``explain()``.
    source_schema, row_schema : pyarrow.Schema
        Before and after the stateless steps.
    prefix : tuple of nodes
        The stateless steps.
    time_column, time_kind : str
        The event-time column and how it is read.
    watermark, source_column
        How the watermark follows event times; with several sources, the column that names them.
    needs_columns : tuple of str
        Source columns the stateless steps and the aggregation read.
    late_columns : tuple of str
        Columns of a late row its handler wants: all for a side output, the keys for counting by key, none for counting.
    output : tuple of (str, Expr) or None
        Result columns, computed of those of the layout of SEMANTICS §5.5; None for that layout.
    malformed : tuple of (str, pyarrow.DataType)
        What the late output tells of malformed input: none, unless a source puts it aside and whole rows are wanted.
    after : tuple of nodes
        Stateless steps over the results.
    followed : bool
        Whether results have the columns that a following stage needs: event time, and what their order goes by.
    arrives_by : tuple of str
        Columns of rows that a stage before gave, which say in which order they arrive.
    changes : str
        The column of rows that says whether they are added or taken back; empty where all are added.
    row_ids : tuple of str
        The columns that tell rows that change apart, for windows over them; empty where nothing known does.
    wholes : tuple of (str, tuple of str)
        Hidden aggregates that are false in windows with rows from before a savepoint, and the aggregates that came after it.
    blind_us : int
        Windows that begin before this time may lack rows, for the stage began with a savepoint; ``UNSET`` where it did not.
    early_us : int
        Windows that end up to here may have early results that state does not hold, for their trigger was removed.
    given_us : int
        Windows that end up to here had a result before results became final; of use once results are not final any more.
    stream : str
        The lane that rows of this stream are of, with the row clock; empty where their source is one lane.
    """

    name: str
    source_schema: pa.Schema
    row_schema: pa.Schema
    prefix: tuple[Prefix, ...]
    time_column: str
    time_kind: TimeKind
    watermark: AnyWatermarkSpec
    source_column: str | None
    operation: Operation
    options: QueryOptions
    needs_columns: tuple[str, ...]
    late_columns: tuple[str, ...]
    output: Output | None = None
    malformed: tuple[tuple[str, pa.DataType], ...] = ()
    after: tuple[Prefix, ...] = ()
    followed: bool = False
    arrives_by: tuple[str, ...] = ()
    changes: str = ""
    row_ids: tuple[str, ...] = ()
    wholes: tuple[tuple[str, tuple[str, ...]], ...] = ()
    blind_us: int = UNSET
    early_us: int = UNSET
    given_us: int = UNSET
    stream: str = ""

    @property
    def plain(self) -> OperatorSpec:
        """The operator without what is done to its results."""
        return attrs.evolve(self, output=None, after=(), followed=False)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that part the rows."""
        return self.operation.keys

    @cached_property
    def label(self) -> str:
        """The stage in errors: its name, with what it does where that is a number."""
        numbered = self.options.named is None and self.name.startswith("stage ")
        return f"{self.name} ({self.operation.title})" if numbered else self.name

    @cached_property
    def step(self) -> str:
        """The part of a batch in which rows meet state, and results are made, in errors."""
        windows = self.operation.nature.opens_windows and not self.operation.nature.joins
        return "window step" if windows else f"{self.operation.kind} step"

    @property
    def aggs(self) -> tuple[AggCall, ...]:
        """The aggregates of windows."""
        return self.operation.aggs

    @property
    def tick_us(self) -> int:
        """Resolution of the time column in microseconds."""
        return 1_000 if self.time_kind == "bigint_ms" else 1


@attrs.frozen
class Times:
    """The clocks of which the watermark of a stage follows the least.

    Attributes
    ----------
    clocks : tuple of (int, int)
        The number of each, and how much lower the stage is, µs.
    floor_us : int
        Where the watermark of the stage was before a change of its plan, µs: it never moves back (SEMANTICS §12.3).
    """

    clocks: tuple[tuple[int, int], ...] = ((0, 0),)
    floor_us: int = UNSET
    first_alone: bool = attrs.field(init=False, eq=False, repr=False)
    """True where the stage follows the first clock as it is."""

    @first_alone.default
    def _follows_first_alone(self) -> bool:
        return self.clocks == ((0, 0),) and self.floor_us == UNSET

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.clocks)

    def least(self, every: Sequence[int]) -> int:
        """Return the watermark of the stage when the clocks show `every`; the infinities stay what they are."""
        reached = (every[clock] for clock, _ in self.clocks)
        lower = (w if w in (UNSET, END_OF_TIME) else w - by_us for w, (_, by_us) in zip(reached, self.clocks, strict=True))
        return max(min(lower), self.floor_us)


FIRST_CLOCK: Final = Times()
STOPWATCH: Final[ContextVar[Callable[[], float]]] = ContextVar("stopwatch", default=float)
"""Measures how long calls of users' functions take, s: kernels know no clock, so the engine gives one."""


@attrs.frozen
class Moment:
    """Holds what is in force in one step of an operator.

    Attributes
    ----------
    watermark_us : int
        The watermark, µs since the epoch (SEMANTICS §2.3); ``UNSET`` or ``END_OF_TIME`` where it is infinite.
    now_us : int or None
        Processing time, µs since the epoch; needed by triggers that go by the clock and a processing-time TTL only.
    calls_triggers : bool
        Whether a user's trigger may be asked: not while windows fire before the rows of the batch are taken in.
    begun_us : int or None
        The clock of the machine when the batch began, µs since the epoch, for rows that are held against it; None where nobody
        set a clock. It is on record before the batch runs.
    before : tuple of int or None
        What was in force in the batch before, by every clock, for plans that judge rows by it (SEMANTICS §4.6); None where that
        makes no difference.
    alone_us : int or None
        What the row of a step is classified by, where it comes alone: the windows of its key leave by this first.
    newest_us : int
        The largest event time of all sources, once the input has ended; ``UNSET`` until then.
    others : tuple of int
        Of a plan with several clocks, what is in force by the other clocks; `watermark_us` is by the first.
    """

    watermark_us: int
    now_us: int | None = None
    calls_triggers: bool = True
    others: tuple[int, ...] = ()
    begun_us: int | None = None
    before: tuple[int, ...] | None = None
    newest_us: int = UNSET
    alone_us: int | None = None

    def at(self, times: Times) -> Moment:
        """Return the moment of a stage that follows the clocks by these `times`; the infinities stay what they are."""
        if times.first_alone and not self.others:
            return self
        before = None if self.before is None else (times.least(self.before),)
        return attrs.evolve(self, watermark_us=times.least(self.every), others=(), before=before)

    @property
    def every(self) -> tuple[int, ...]:
        """Return what is in force, by every clock."""
        return (self.watermark_us, *self.others)

    @property
    def without_rows(self) -> Moment:
        """The moment for a step without rows next to one with some."""
        return attrs.evolve(self, calls_triggers=False, alone_us=None)

    @property
    def classified_us(self) -> int:
        """Return the watermark that the rows of the step are classified by."""
        return self.watermark_us if self.alone_us is None else max(self.watermark_us, self.alone_us)

    @property
    def late_moment(self) -> Moment:
        """The moment for rows that are classified by the batch before."""
        if self.before is None:
            return self
        return attrs.evolve(self, watermark_us=self.before[0], others=self.before[1:], before=None)

    def later(self, before: Moment) -> bool:
        """Return whether any clock has gone on since the moment `before`."""
        return (self.watermark_us, self.others) != (before.watermark_us, before.others)

    @property
    def ended(self) -> bool:
        """Return whether the input has ended, by every clock."""
        return all(w == END_OF_TIME for w in self.every)
