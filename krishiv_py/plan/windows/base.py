"""What all window kinds share."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError
from krishiv_py.plan.durations import show_us
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.options.told import ToldOptions
from krishiv_py.plan.windows.assigner import WindowAssigner

LATER: Final = {"later": True}
"""Metadata of attributes that windows of older releases have not: checkpoints of such windows have their defaults."""


LateBy: TypeAlias = Literal["windows", "state", "time", "never"]
ResultTime: TypeAlias = Literal["before_end", "end", "row"]


@attrs.frozen
class Grid:
    """Windows ``[offset + k*slide, offset + k*slide + size)`` for every whole k, of times in µs or of numbers."""

    size_us: int
    slide_us: int
    offset_us: int = 0

    @property
    def has_gaps(self) -> bool:
        """Whether there are times in no window."""
        return self.slide_us > self.size_us

    @property
    def tiles(self) -> bool:
        """Whether every time is in exactly one window."""
        return self.slide_us == self.size_us


class Window:
    """Base of the window kinds; a frozen value that says which rows belong together.

    The rest of the library asks a window for the facts below, and does not test of which class it is.

    Attributes
    ----------
    kind : str
        Its name in checkpoints.
    heading : str
        What ``explain()`` calls a stage with it.
    by_time : bool
        Whether the windows of a row follow from its event time alone.
    numbered : bool
        Whether bounds are row numbers, not times.
    inclusive : bool
        Whether both bounds belong to the window.
    late_by : {"windows", "state", "time", "never"}
        What decides under ``late_rule("window")`` that a row is late: the windows of its time, windows that only the state
        knows, its time as under ``"event"``, or nothing.
    gap_column : str or None
        A column with the length of each row's own window.
    assigner : WindowAssigner or None
        A user's, which gives rows the bounds of their windows.
    fires_anyway : bool
        Whether triggers count even with ``emit("final")``.
    submits : pyarrow.Schema or None
        What a handler of its events gives as results, instead of aggregates.
    gives_rows : bool
        Whether rows come out instead of aggregates, of which there are none.
    keeps_carried : bool
        Whether columns that come out with a result (see :meth:`carried`) are in state.
    """

    __slots__ = ()
    kind: ClassVar[str]
    heading: ClassVar[str] = "WindowAggregate"
    by_time: ClassVar[bool] = False
    numbered: ClassVar[bool] = False
    inclusive: ClassVar[bool] = False
    late_by: ClassVar[LateBy] = "windows"
    fires_anyway: ClassVar[bool] = False
    gap_column: str | None = None
    assigner: WindowAssigner | None = None
    submits: pa.Schema | None = None
    gives_rows: ClassVar[bool] = False
    keeps_carried: ClassVar[bool] = True
    hides_time: bool = False

    @property
    def route(self) -> str:
        """Which operators run it, by their name in the registry of kernels."""
        return self.kind

    @property
    def length_us(self) -> int:
        """How long a window is, or can be, where that is known; else 0."""
        return 0

    @property
    def grid(self) -> Grid | None:
        """Size and distance of windows that lie at equal distances; None for all others."""
        return None

    @property
    def sums(self) -> bool:
        """Whether rows need not be told apart once their windows overlap."""
        return False

    def fires_plainly(self, options: QueryOptions) -> bool:
        """Whether windows fire under these `options` as they do without any, so that no log of firings is kept."""
        return options.fires_once

    @property
    def result_time(self) -> ResultTime | None:
        """Where the event time of a result is, for a stage that follows (SEMANTICS §7.1); None if it has none.

        One tick before the window's end, :attr:`after_us` before the end, or the column :meth:`row_time` of the result.
        """
        return "before_end"

    @property
    def after_us(self) -> int:
        """How far a window reaches beyond the row it belongs to, where that row has the event time of the result, µs."""
        return 0

    def row_time(self, time_column: str) -> str:
        """The result column with the event time of the row; `time_column` is that of the rows."""
        return time_column

    def hold_back_us(self, options: QueryOptions) -> int:
        """How far, with these `options`, the watermark handed to the next stage is behind this one's, µs (SEMANTICS §7.2)."""
        return options.allowed_lateness_us

    def identity(self) -> dict[str, str]:
        """Its parameters as a checkpoint notes them, by name."""
        of_class: Any = type(self)
        fields = [f for f in attrs.fields(of_class) if not (f.metadata.get("later") and getattr(self, f.name) == f.default)]
        return {f.name: repr(getattr(self, f.name)) for f in fields}

    def unwaiting(self) -> str | None:
        """What windows wait for that do not wait for the watermark; None for all that do."""
        return None

    @property
    def gives_as_it_fires(self) -> bool:
        """Whether every firing gives its own rows, under ``emit("final")`` too."""
        return False

    def no_end(self, end_us: int) -> str | None:
        """What to say if no window can end at `end_us`; None if one can, or if that depends on the rows."""
        return None

    def describe(self) -> str:
        """One line for ``explain()``."""
        raise NotImplementedError

    def result_fields(self, keys: list[pa.Field], row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        """The result columns before ``op``; None for keys, bounds and aggregates (SEMANTICS §5.5).

        Parameters
        ----------
        keys : list of pyarrow.Field
            The key columns.
        row : pyarrow.Schema
            The rows.
        bound : pyarrow.DataType
            The type of window bounds.
        """
        return None

    def bound_type(self, bound: pa.DataType) -> pa.DataType:
        """The type of ``window_start`` and ``window_end``, `bound` being that of the event time."""
        return bound

    def columns(self) -> tuple[str, ...]:
        """Columns of a row the window itself reads, besides keys and event time."""
        return ()

    def carried(self, keys: tuple[str, ...], row: pa.Schema) -> tuple[str, ...]:
        """Columns of `row`, besides its `keys`, that come out with its result, after the aggregates."""
        return ()

    def check_columns(self, schema: pa.Schema) -> None:
        """Refuse a `schema` of rows without the columns the window reads."""

    def settled(self, told: ToldOptions) -> ToldOptions:
        """What was `told`, with the holes filled that this window fills, or a refusal of what contradicts it."""
        return told

    def following(self, told: ToldOptions) -> Window:
        """This window with its own holes filled by what was `told`."""
        return self

    def check_over(self, over_us: int) -> None:
        """Refuse an aggregate that looks back `over_us` µs only: other windows have no row to look back from."""
        raise PlanError(
            "an aggregate has a range of its own in look-back windows only",
            got=f"over({show_us(over_us)!r}) in {self.describe()}",
            then="these windows belong to no row that it could look back from",
            hint="leave .over(...) out, or use .lookback_window(...)",
        )

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options` that rows in such a window cannot follow; called when the plan is complete."""

    def forgets_early(self, ttl_us: int, lateness_us: int) -> str | None:
        """What to say if state that lives `ttl_us` is gone before `lateness_us` after its window; None if it is not."""
        if ttl_us >= self.length_us + lateness_us:
            return None
        return "shorter than the window and the allowed lateness: windows of quiet keys are lost"

    def warnings(self) -> tuple[str, ...]:
        """What a user should know before running this window."""
        return ()
