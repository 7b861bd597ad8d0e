"""The base of all windows: their operation, their bounds as a value, and lengths that are finer than the time column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.aggregates.outputs import Output, identity_of_aggs, identity_of_columns
from krishiv_py.plan.durations import show_us
from krishiv_py.plan.operation import GROUPING, Apart, LateBy, Operation, OperationTraits, ResultTime
from krishiv_py.plan.options.query import ExplicitOptions
from krishiv_py.plan.options.triggers import Trigger

EITHER_BOUND: Final[Apart] = (("window_start",), ("window_end",))


@attrs.frozen
class WindowOperation(Operation):
    """Base of the window kinds: bounds, and aggregates of the rows between them.

    A window of :mod:`krishiv_py.windows` has neither keys nor aggregates yet; in a plan it is the whole aggregation.
    """

    aggs: tuple[AggCall, ...] = attrs.field(default=(), kw_only=True, repr=False, metadata=GROUPING, eq=identity_of_aggs)
    result_columns: Output | None = attrs.field(
        default=None, kw_only=True, repr=False, metadata=GROUPING, eq=identity_of_columns
    )
    nature: ClassVar[OperationTraits] = OperationTraits("WindowAggregate", gives_rows=False, opens_windows=True)
    late_by: ClassVar[LateBy] = "windows"

    @property
    def apart_by(self) -> Apart | None:
        """Return the start, or the end: each says which window of a key it is."""
        return None if self.handled == "results" else EITHER_BOUND

    def result_time(self, time_column: str) -> ResultTime | None:
        return ResultTime("before_end")

    def over_changes(self, explicit: ExplicitOptions) -> ExplicitOptions:
        options = explicit.options()
        fires = options.trigger != Trigger() or options.accumulation != "accumulating" or options.pane
        by_state = self.late_by == "state" and options.late_rule == "window"
        if fires or options.ttl is not None or options.late_by_batch_before or by_state or explicit.emit == "updates":
            then = "a row that is taken back may leave a window empty, which only a withdrawal can say"
            hint = 'leave triggers, panes, times to live and presets out, and write .emit("retractions") or .emit("final")'
            if by_state:
                then, hint = "a row that is taken back may part a session that had left", 'leave .late_rule("window") out'
            got = f"{self.describe()}, {options.describe()}"
            raise PlanError("windows over rows that change fire by the watermark alone", got=got, then=then, hint=hint)
        return explicit.filled(emit="retractions") if options.allowed_lateness_us else explicit


_MS: Final = 1_000
_NO_BOUND: Final = ("discard_age_us", "longest_us")
"""Of what no bound of a window is made."""


def finer_than_ms(window: WindowOperation) -> dict[str, int]:
    """Return the lengths of a window that are not whole milliseconds, by name, µs."""
    finer: dict[str, int] = {}
    for part in (window, window.extent.assigner):
        of_class: Any = type(part)
        fields = attrs.fields(of_class) if attrs.has(of_class) else ()
        for name in (f.name for f in fields if f.name.endswith("_us") and f.name not in _NO_BOUND):
            value = getattr(part, name)
            if isinstance(value, int) and value % _MS:
                finer[name.removesuffix("_us")] = value
    return finer


def check_ticks(finer: dict[str, int], times: pa.DataType, column: str) -> None:
    """Refuse lengths that are `finer` than a time column: bounds of results have its type.

    Raises
    ------
    PlanError
        For a ``bigint`` column, which has whole milliseconds.
    """
    if finer and pa.types.is_int64(times):
        raise PlanError(
            "windows are finer than the time column",
            got=", ".join(f"{name} {show_us(us)}" for name, us in finer.items()),
            then=f"{column!r} has whole milliseconds, so a bound of a result would be another one than that of its window",
            hint="use whole milliseconds, or a timestamp column",
        )


@attrs.frozen(order=True)
class Window:
    """The bounds of one window, as :func:`~krishiv_py.compat.changes` and pane handlers give them.

    Windows are equal if their bounds are, can be keys of a dict, and are sorted by start, then end.

    Attributes
    ----------
    start, end
        In the type of the time column: ``int`` milliseconds or ``datetime``; of count windows row numbers.

    Examples
    --------
    >>> window = Window(0, 60_000)
    >>> window.length, window == Window(0, 60_000)
    (60000, True)
    """

    start: Any
    end: Any

    @property
    def length(self) -> Any:
        """``end - start``: ``int`` milliseconds or ``timedelta``."""
        return self.end - self.start


def window_of(row: object) -> Window | None:
    """Return the window of a result row; None for rows without both bounds."""
    if not isinstance(row, Mapping) or "window_start" not in row or "window_end" not in row:
        return None
    return Window(row["window_start"], row["window_end"])
