"""The operation of a stage, and the two without windows and sides: rows that pass without state, and deduplication (§8).

The planner, the engines and the kernels ask an operation for the facts below, and do not test of which class it is. To add
one: a subclass, an operator in the kernels with a line in :mod:`krishiv_py.kernels.registry`, and a method of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final, Literal, TypeAlias, cast

import attrs
import pyarrow as pa
from typing_extensions import Self

from krishiv_py.errors import PlanError
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.aggregates.outputs import Output
from krishiv_py.plan.checks import one_of
from krishiv_py.plan.described import WindowAssigner
from krishiv_py.plan.durations import Duration, show_us, to_us
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.options.query import ExplicitOptions, QueryOptions
from krishiv_py.plan.options.triggers import Trigger
from krishiv_py.plan.row_classes import RecordClass
from krishiv_py.plan.schema import RESERVED

LATER: Final = {"later": True}
"""Metadata of attributes that operations of older releases lack: checkpoints of such operations have their defaults."""

GROUPING: Final = {"grouping": True}
"""Metadata of attributes that say what an operation works on; a checkpoint notes them by themselves."""

Apart: TypeAlias = "tuple[tuple[str, ...], ...]"
Handled: TypeAlias = Literal["", "events", "results"]
LateBy: TypeAlias = Literal["windows", "state", "time", "never"]


@attrs.frozen
class Grid:
    """Windows ``[offset + k*slide, offset + k*slide + size)`` for every whole k, of times in µs or of numbers."""

    size_us: int
    slide_us: int
    offset_us: int = 0

    @property
    def has_gaps(self) -> bool:
        """Return whether there are times in no window."""
        return self.slide_us > self.size_us

    @property
    def tiles(self) -> bool:
        """Return whether every time is in exactly one window."""
        return self.slide_us == self.size_us


@attrs.frozen
class WindowExtent:
    """Says where the windows of an operation lie: in time, or in row numbers of a key.

    Attributes
    ----------
    length_us : int
        The length of a window, or the longest there can be, where that is known; else 0.
    grid : Grid or None
        Size and distance of windows that lie at equal distances; None for all others.
    numbered, inclusive : bool
        Whether bounds are row numbers, not times; whether both bounds belong to the window.
    looks_back_us : int or None
        How far an aggregate with a range of its own can look back; None where no row is there to look back from.
    gap_column : str or None
        A column with the length of each row's own window.
    assigner : WindowAssigner or None
        A user's, which gives rows the bounds of their windows.
    """

    length_us: int = 0
    grid: Grid | None = None
    numbered: bool = False
    inclusive: bool = False
    looks_back_us: int | None = None
    gap_column: str | None = None
    assigner: WindowAssigner | None = None


@attrs.frozen
class ResultTime:
    """Says where results have their event time, for a stage that follows (SEMANTICS §7.1).

    Attributes
    ----------
    of : {"before_end", "end", "row"}
        One tick before the end of the window, `after_us` before the end, or that of a row, in a column of the results.
    column : str
        The column it is computed of, or is.
    after_us : int
        How far a window reaches beyond the row it belongs to, where that row has the event time of the result, µs.
    """

    of: Literal["before_end", "end", "row"]
    column: str = "window_end"
    after_us: int = 0

    @property
    def of_row(self) -> bool:
        """Return whether the results have it as a column."""
        return self.of == "row"

    def before_us(self, tick_us: int) -> int:
        """Return how far it is before the column, of times with a resolution of `tick_us`, µs."""
        return tick_us if self.of == "before_end" else self.after_us


@attrs.frozen
class OperationTraits:
    """The properties that all operations of a class share.

    Attributes
    ----------
    heading : str
        The name of a stage with such an operation in ``explain()``.
    joins : bool
        Whether the rows of two streams meet in it.
    stateless : bool
        Whether rows pass as they are: without a watermark, a shuffle and state.
    gives_rows : bool
        Whether rows come out, and no aggregates.
    opens_windows : bool
        Whether there are windows that are open, and can be shown before they fire.
    keeps_carried : bool
        Whether columns that come out with a result (:meth:`Operation.carried`) are in state.
    fires_anyway : bool
        Whether triggers count even with ``emit("final")``.
    """

    heading: str
    joins: bool = False
    stateless: bool = False
    gives_rows: bool = True
    opens_windows: bool = False
    keeps_carried: bool = True
    fires_anyway: bool = False


@attrs.frozen
class Operation:
    """Base of the operations: a frozen value that says which rows belong together and what comes of them.

    Attributes
    ----------
    keys : tuple of str
        The columns that part the rows; of deduplication those that make two rows the same.
    aggs : tuple of AggCall
        The aggregates of windows.
    result_columns : tuple of (str, Expr) or None
        Result columns of windows, computed of keys, bounds and aggregates; None for all of these (SEMANTICS §5.5).
    kind : str
        Its name in checkpoints.
    nature : Nature
        Properties that all operations of its class share.
    remembers : bool
        Whether its state changes as the watermark passes, though nothing waits for it: rows go, or join what they belong to.
    waiting : tuple of str
        The texts for results that wait: without anything in state, and with it.
    by_clock : bool
        Whether it sees the processing time on record, and the largest event time at the end of input.
    late_by : {"windows", "state", "time", "never"}
        What decides under ``late_rule("window")`` that a row is late: the windows of its time, windows that only the state
        knows, its time as under ``"event"``, or nothing.
    handled : {"", "events", "results"}
        Whether a user's handler gets the events of its windows, and whether it gives their results instead of aggregates.
    late_side : str or None
        The side of a join whose late rows are put aside, and taken nevertheless: they count for rows that are not decided.
    moves : bool
        Whether a result may get other bounds, or be gone, once it was given.
    condition : Expr or None
        Which pairs of rows are results, by the columns of these.
    state : RecordClass or None
        The class of the value that a user keeps for each key.
    """

    keys: tuple[str, ...] = attrs.field(default=(), kw_only=True, repr=False, metadata=GROUPING)
    kind: ClassVar[str]
    nature: ClassVar[OperationTraits]
    remembers: ClassVar[bool] = False
    by_clock: ClassVar[bool] = False
    waiting: ClassVar[tuple[str, str]] = ("no window waits: no row of an open one is in state", "the windows of rows wait")
    late_by: ClassVar[LateBy] = "time"
    aggs = cast("tuple[AggCall, ...]", ())  # not annotated: operations that have them have a field of the name
    result_columns = cast("Output | None", None)
    condition = cast("Expr | None", None)
    state = cast("RecordClass | None", None)
    handled: ClassVar[Handled] = ""
    late_side: ClassVar[str | None] = None
    moves: ClassVar[bool] = False

    @staticmethod
    def free_name(name: str, taken: Iterable[str]) -> str:
        """Return the name of a column of the state table, or one like it that no column has."""
        others = {other.lower() for other in taken}
        while name in others:
            name = f"state_{name}"
        return name

    @property
    def takes_changes(self) -> bool:
        """Return whether rows may change: it knows what to do with those that are withdrawn (SEMANTICS §16)."""
        return False

    @property
    def gives_table(self) -> bool:
        """Return whether its results are a table that changes (SEMANTICS §16.3)."""
        return False

    def change_time(self, time_column: str) -> str | None:
        """Return the column of results that change with their event time, of rows with `time_column`; None without any."""
        return None

    @property
    def changes_rows(self) -> tuple[str, ...]:
        """Return the columns that say what its rows do to a table: whether they delete, and their sequence; none if nothing."""
        return ()

    @property
    def goes_by_arrival(self) -> bool:
        """Return whether its results depend on the order in which rows come."""
        return False

    @property
    def reads_marks(self) -> bool:
        """Return whether, with the row clock, its operator gets the watermark of each row with it (SEMANTICS §2.8)."""
        return False

    @property
    def takes_late(self) -> bool:
        """Return whether the operator gets late rows, too, and says itself what becomes of them."""
        return False

    def open_windows(self, by_bucket: Iterable[int]) -> int:
        """Return how many windows are open, of their number in each bucket of keys.

        Windows of a grid or an assigner are stretches of time that all keys share: of the buckets, the one with the most says
        it, which is too few only where keys of several buckets have rows at other times. Of other windows, and of joins, it is
        what waits to become a result of a key.
        """
        shared = not self.nature.joins and (self.extent.grid is not None or self.extent.assigner is not None)
        return max(by_bucket, default=0) if shared else sum(by_bucket)

    @property
    def title(self) -> str:
        """Return the name of a stage that has no other: in errors, titles, logs and metrics."""
        windows = self.nature.opens_windows and not self.nature.joins
        return "window-aggregate" if windows else self.kind.replace(" ", "-")

    @property
    def route(self) -> str:
        """Return which operators run it, by their name in the registry of kernels."""
        return self.kind

    def takes_turns(self, options: QueryOptions) -> bool:
        """Return whether it matters to a row behind the watermark of those before what has left state by then.

        With the row clock such rows come one by one. Before each, the windows of its key leave that are over by then; those of
        other keys may be of lanes that are behind.
        """
        return self.late_by == "state" and options.late_rule == "window"

    def row_by_row(self, options: QueryOptions) -> Operation:
        """Return the operation as it runs where each row is classified by those before it (SEMANTICS §2.8).

        Raises
        ------
        PlanError
            Where a batch, and not a row, says for which windows a row is late.
        """
        grid = self.extent.grid
        if options.late_rule == "window" and grid is not None and grid.slide_us < grid.size_us and not self.extent.numbered:
            raise PlanError(
                'clock="row" judges each row before its windows are known',
                got=f'late_rule("window") over {self.describe()}',
                hint='leave late_rule out, or write clock="batch"',
            )
        return self

    def describe(self) -> str:
        """Return one line for ``explain()``."""
        raise NotImplementedError

    def identity(self) -> dict[str, str]:
        """Return its parameters as a checkpoint notes them, by name."""
        of_class: Any = type(self)
        own = [f for f in attrs.fields(of_class) if not f.metadata.get("grouping")]
        fields = [f for f in own if not (f.metadata.get("later") and getattr(self, f.name) == f.default)]
        return {f.name: repr(getattr(self, f.name)) for f in fields}

    # ---- times

    @property
    def extent(self) -> WindowExtent:
        """Return where its windows lie."""
        return WindowExtent()

    def result_time(self, time_column: str) -> ResultTime | None:
        """Return where results have their event time, `time_column` being that of the rows; None if they have none."""
        return ResultTime("row", time_column)

    def hold_back_us(self, options: QueryOptions) -> int:
        """Return how far, with these `options`, the watermark of the next stage is below this one's, µs (SEMANTICS §7.2)."""
        return options.allowed_lateness_us

    # ---- columns

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        """Return the columns of `row`, besides the keys, that come out with its result, after the aggregates."""
        return ()

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        """Return the result columns before ``op``; None for keys, bounds and aggregates (SEMANTICS §5.5).

        Parameters
        ----------
        row : pyarrow.Schema
            The rows.
        bound : pyarrow.DataType
            The type of window bounds.
        """
        return None

    @property
    def apart_by(self) -> Apart | None:
        """Return the bounds that tell the results of a key apart, each group of them alone; None where nothing known does."""
        return None

    @property
    def row_key(self) -> tuple[str, ...] | None:
        """Return the columns that tell results apart where the keys have no part in it; None where they do, or nothing does."""
        return None

    @property
    def changing(self) -> tuple[str, ...]:
        """Return the result columns that may have another value when a result is given again."""
        return tuple(call.output_name for call in self.aggs)

    @property
    def state_fields(self) -> tuple[pa.Field, ...]:
        """Return the fields of the value that a user keeps for each key."""
        return () if self.state is None else tuple(self.state.schema)

    @property
    def renamed_fields(self) -> Mapping[str, str]:
        """Return former names of fields of this value, with those that they have now."""
        return {}

    @property
    def initial(self) -> pa.Table | None:
        """Return states that keys have when a query begins: the columns of the key, and those of the state."""
        return None

    @property
    def tables(self) -> tuple[Callable[[], object], ...]:
        """Return what gives the tables that it looks at, in the version that a batch has."""
        return ()

    @property
    def begins_everywhere(self) -> bool:
        """Return whether each bucket has something to do before a row of it has come."""
        return self.initial is not None

    @property
    def has_clock_deadlines(self) -> bool:
        """Return whether something may be due at a processing time, though no row comes."""
        return False

    def check_columns(self, schema: pa.Schema) -> None:
        """Refuse a `schema` of rows without the columns that it reads."""

    # ---- options

    def settled(self, explicit: ExplicitOptions) -> ExplicitOptions:
        """Return the options that were given with the holes filled that it fills, or refuse what contradicts it."""
        return explicit

    def over_changes(self, explicit: ExplicitOptions) -> ExplicitOptions:
        """Return :meth:`settled` options as they are over rows that change, or refuse what cannot be said of these."""
        return explicit

    def following(self, explicit: ExplicitOptions) -> Self:
        """Return the operation with its own holes filled by the options that were given."""
        return self

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options` that rows cannot follow in it; called when the plan is complete."""

    def fires_plainly(self, options: QueryOptions) -> bool:
        """Return whether it fires under these `options` as without any, so that no log of firings is kept."""
        return options.fires_once

    @property
    def sums(self) -> bool:
        """Return whether rows need not be distinguished once their windows overlap."""
        return False

    # ---- texts

    def unwaiting(self) -> str | None:
        """Return the text for results that do not wait for the watermark; None for all that do."""
        return None

    def key_text(self, row: Mapping[str, Any]) -> str | None:
        """Return what a `row` of the table of its state says of its key; None where that is in windows."""
        return None

    def no_end(self, end_us: int) -> str | None:
        """Return the text for an `end_us` at which no window can end; None if one can, or if that depends on the rows."""
        return None

    def forgets_early(self, ttl_us: int, lateness_us: int) -> str | None:
        """Return the text for state that lives `ttl_us`, which is too short with `lateness_us`; None if it is long enough."""
        if ttl_us >= self.extent.length_us + lateness_us:
            return None
        return "shorter than the window and the allowed lateness: windows of quiet keys are lost"

    def warnings(self) -> tuple[str, ...]:
        """Return the sentences that a user should know before running it."""
        return ()


@attrs.frozen
class PlainRows(Operation):
    """Every row is given in the micro-batch in which it arrives; nothing is kept (SEMANTICS §7.4)."""

    kind: ClassVar[str] = "rows"
    nature: ClassVar[OperationTraits] = OperationTraits("Rows", stateless=True, keeps_carried=False)

    def unwaiting(self) -> str | None:
        return "rows without windows do not wait for a watermark: a row is given in the micro-batch in which it arrives"

    def hold_back_us(self, options: QueryOptions) -> int:
        return 0

    def describe(self) -> str:
        return "rows as they are"

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        return tuple(row.names)

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        return list(row)


Duplicates: TypeAlias = Literal["count", "side_output"]
DUPLICATE: Final = "duplicate"
"""The reason of duplicates among late rows."""


@attrs.frozen
class Deduplication(Operation):
    """Rows pass unless a row with equal keys passed less than `within_us` before or after them, by event time.

    ::

        within         ├────────┤
        rows           ●   ×   ×●   ×      a row is compared with rows that passed, not with duplicates

    Attributes
    ----------
    within_us : int
        The length of time, µs.
    duplicates : {"count", "side_output"}
        Whether duplicates are only counted, or also handed to the late handler.
    hidden : tuple of str
        Columns that were computed to compare rows by, and are not columns of the rows that pass.
    """

    kind: ClassVar[str] = "deduplication"
    nature: ClassVar[OperationTraits] = OperationTraits("Deduplicate", keeps_carried=False)
    remembers: ClassVar[bool] = True
    within_us: int
    duplicates: Duplicates = "count"
    hidden: tuple[str, ...] = ()

    @property
    def goes_by_arrival(self) -> bool:
        return True

    def identity(self) -> dict[str, str]:
        return {"within_us": repr(self.within_us)}  # who gets the duplicates may change

    def unwaiting(self) -> str | None:
        return "deduplicated rows do not wait for the watermark: a row passes in the micro-batch in which it arrives"

    def describe(self) -> str:
        aside = ", duplicates to the late output" if self.duplicates == "side_output" else ""
        return f"first row within {show_us(self.within_us)}{aside}"

    def settled(self, explicit: ExplicitOptions) -> ExplicitOptions:
        return explicit.filled(emit="final")  # a row passes once, whatever the allowed lateness

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options`: see :class:`~krishiv_py.plan.operation.Operation`."""
        refuse_firings(options, "deduplication", "a row passes once, when it arrives, and is never taken back")

    def forgets_early(self, ttl_us: int, lateness_us: int) -> str | None:
        """Return what to say of state that lives `ttl_us`, with the allowed `lateness_us`; None if it lives long enough."""
        if ttl_us >= self.within_us + lateness_us:
            return None
        return "shorter than `within` and the allowed lateness: after a pause of its key a duplicate passes"

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        # keys of floating point are compared by their normal form, and come out as they came
        return tuple(f.name for f in self._given(row) if f.name not in self.keys or pa.types.is_floating(f.type))

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        return self._given(row)

    def _given(self, row: pa.Schema) -> list[pa.Field]:
        return [f for f in passing(row) if f.name not in self.hidden]


def refuse_firings(options: QueryOptions, operation: str, then: str) -> None:
    """Refuse `options` of windows that fire, where an `operation` gives each result once."""
    fires = options.trigger != Trigger() or options.accumulation != "accumulating" or options.pane
    if fires or options.emit_mode != "final":
        hint = "leave .trigger, .accumulation, .with_pane and .emit out, and presets that set them"
        raise PlanError(f"{operation} knows neither triggers nor emit modes", got=options.describe(), then=then, hint=hint)


def passing(row: pa.Schema) -> list[pa.Field]:
    """Return the columns of a `row` that are its own."""
    return [f for f in row if not f.name.startswith(RESERVED)]


def deduplication(within: Duration, duplicates: Duplicates = "count", hidden: tuple[str, ...] = ()) -> Deduplication:
    """Return a checked :class:`Deduplication`."""
    if within is None:
        then = "every row would be kept in state for ever"
        hint = 'write within="10 minutes", as far apart as duplicates can be'
        raise PlanError("drop_duplicates needs a length of time", got="within=None", then=then, hint=hint)
    one_of(duplicates, "duplicates", ("count", "side_output"))
    return Deduplication(to_us(within, "within"), duplicates, hidden)
