"""Look-back windows (SEMANTICS §3.4): one per row, over the rows of its key around it.

::

    one-sided   [t - size, t]          ├──────────●            emitted when W > t
    two-sided   [t - size, t + size]   ├──────────●──────────┤ emitted when W > t + size

On arrival (§11.4) a row has its result at once, over what has arrived before it.

Distinct-set sliding windows (KIP-450, SEMANTICS §3.5): one window per distinct set of rows that lie within `size`.

Both bounds are inclusive::

    size 10       t=3        t=8
    own    [-7 ───● 3]
    own        [-2 ──────────● 8]
    right            [4 ─────●────── 14]     comes into being because a row lies in it
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import DurationError, ExpressionError, PlanError, shown
from krishiv_py.plan.checks import a_switch, microseconds, one_of
from krishiv_py.plan.durations import MAX_TIME_US, Duration, show_us, to_us
from krishiv_py.plan.expressions.expr import Expr, python_text
from krishiv_py.plan.operation import LATER, Apart, LateBy, ResultTime, WindowExtent
from krishiv_py.plan.options.query import ExplicitOptions, QueryOptions
from krishiv_py.plan.options.triggers import Trigger
from krishiv_py.plan.windows.window import EITHER_BOUND, WindowOperation
from krishiv_py.types import condition_hint, type_text

LookBackOutput: TypeAlias = Literal["aggregates", "matches", "pairs"]
LookBackEmit: TypeAlias = Literal["watermark", "arrival"]
ROW, MATCHES = "row", "matches"


@attrs.frozen
class LookBackWindow(WindowOperation):
    """Both ends are inclusive; `output` says whether a result aggregates, lists or pairs the rows met."""

    kind: ClassVar[str] = "lookback"
    remembers: ClassVar[bool] = True
    late_by: ClassVar[LateBy] = "time"
    size_us: int
    two_sided: bool = False
    max_rows_per_key: int | None = None
    output: LookBackOutput = "aggregates"
    condition: Expr | None = attrs.field(default=None, eq=repr)
    with_row: bool = attrs.field(default=False, metadata=LATER)
    exclude_self: bool = attrs.field(default=False, metadata=LATER)
    emit: LookBackEmit = attrs.field(default="watermark", metadata=LATER)
    max_rows_per_window: int | None = attrs.field(default=None, metadata=LATER)

    @property
    def goes_by_arrival(self) -> bool:
        return self.emit == "arrival"

    @property
    def route(self) -> str:
        """See :class:`~krishiv_py.plan.operation.Operation`."""
        return "lookback on arrival" if self.emit == "arrival" else self.kind

    @property
    def extent(self) -> WindowExtent:
        return WindowExtent(self.size_us, inclusive=True, looks_back_us=self.size_us)

    @property
    def apart_by(self) -> Apart | None:
        """Return the bounds where rows of one time and key have one result; else each row has its own."""
        own_row = self.output != "aggregates" or self.with_row or self.exclude_self or self.emit == "arrival"
        return None if own_row else EITHER_BOUND

    @property
    def changing(self) -> tuple[str, ...]:
        """Return the aggregates, or the rows met; a pair never changes."""
        return (MATCHES,) if self.output == "matches" else super().changing

    @property
    def after_us(self) -> int:
        """Return how far a window reaches beyond its row. A pair is complete with its later row, on whichever side one
        looks.
        """
        return self.size_us if self.two_sided and self.output != "pairs" else 0

    def result_time(self, time_column: str) -> ResultTime | None:
        later = ResultTime("row", f"right_{time_column}")  # the later row of a pair
        return later if self.output == "pairs" else ResultTime("end", after_us=self.after_us)

    def hold_back_us(self, options: QueryOptions) -> int:
        waits_us = 0 if self.emit == "arrival" else self.after_us
        return options.allowed_lateness_us + waits_us

    def describe(self) -> str:
        side = " on both sides" if self.two_sided else ""
        limit = f", at most {self.max_rows_per_key} rows a key" if self.max_rows_per_key else ""
        limit += f", at most {self.max_rows_per_window} rows a window" if self.max_rows_per_window else ""
        side += ", on arrival" * (self.emit == "arrival")
        side += ", with the row" * self.with_row + ", without the row itself" * self.exclude_self
        what = {"aggregates": "", "matches": ", rows met", "pairs": f", pairs with {self.condition!r}"}[self.output]
        return f"look-back {show_us(self.size_us)}{side}{limit}{what}"

    def settled(self, explicit: ExplicitOptions) -> ExplicitOptions:
        """A result on arrival is the only one of its row; see :class:`~krishiv_py.plan.operation.Operation`."""
        if self.emit != "arrival":
            return explicit
        if explicit.emit not in (None, "final"):
            hint = 'leave emit(...) out, or leave emit="arrival" out of lookback_window(...)'
            raise PlanError("a result on arrival never changes", got=f"emit({explicit.emit!r})", hint=hint)
        return explicit.filled(emit="final")

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options`: see :class:`~krishiv_py.plan.operation.Operation`."""
        if options.trigger != Trigger() or options.accumulation != "accumulating":
            then = "a row has its result when no row it could meet is expected any more"
            hint = "leave trigger and accumulation out"
            raise PlanError("look-back windows know no trigger but on_watermark", got=options.describe(), then=then, hint=hint)
        if options.pane and self.output != "aggregates":
            raise PlanError("pane columns go with aggregates only", got=self.describe(), hint="leave with_pane out")
        often = options.emit_mode == "retractions" and options.allowed_lateness_us > 0
        if self.max_rows_per_key is not None and often:
            then = "a retraction could have another value than the result it retracts"
            hint = 'use emit("updates") or emit("final")'
            raise PlanError("retractions do not work with a row limit", got=self.describe(), then=then, hint=hint)
        if self.max_rows_per_key is not None and self.emit == "arrival" and self.output == "pairs":
            then = "a pair that was given could be one too many when rows between its two come later"
            hint = 'use max_rows_per_window, or leave emit="arrival" out'
            raise PlanError("pairs on arrival do not work with max_rows_per_key", got=self.describe(), then=then, hint=hint)

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        return tuple(n for n in row.names if n not in self.keys) if self.with_row and self.output == "aggregates" else ()

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        if self.output == "aggregates":
            return None
        if self.output == "pairs":
            return pair_fields(row)
        whole = pa.struct([(f.name, f.type) for f in row])
        return [
            *map(row.field, self.keys),
            pa.field("window_start", bound),
            pa.field("window_end", bound),
            pa.field(ROW, whole),
            pa.field(MATCHES, pa.list_(whole)),
        ]


def pair_fields(row: pa.Schema) -> list[pa.Field]:
    """Return the columns of a pair: both rows' own, the earlier row's first."""
    return [pa.field(f"{side}_{f.name}", f.type) for side in ("left", "right") for f in row]


def lookback(
    size: Duration,
    *,
    two_sided: bool = False,
    max_rows_per_key: int | None = None,
    with_row: bool = False,
    exclude_self: bool = False,
    emit: LookBackEmit = "watermark",
    max_rows_per_window: int | None = None,
) -> LookBackWindow:
    """Return a checked :class:`LookBackWindow`; of size 0 it holds the rows of one instant.

    Examples
    --------
    >>> from krishiv_py import windows
    >>> windows.lookback("30 s", two_sided=True).describe()
    'look-back 30 s on both sides'
    """
    size_us = to_us(size, "size", allow_zero=True)
    for name, switch in (("two_sided", two_sided), ("with_row", with_row), ("exclude_self", exclude_self)):
        a_switch(switch, name)
    for name, limit in (("max_rows_per_key", max_rows_per_key), ("max_rows_per_window", max_rows_per_window)):
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit < 1 << 31):
            hint = "pass a positive whole number, or None for no limit"
            raise PlanError(f"`{name}` is not a number of rows", got=shown(limit), hint=hint)
    one_of(emit, "emit", ("watermark", "arrival"))
    return LookBackWindow(
        size_us,
        two_sided,
        max_rows_per_key,
        with_row=with_row,
        exclude_self=exclude_self,
        emit=emit,
        max_rows_per_window=max_rows_per_window,
    )


def checked_condition(type_: pa.DataType, condition: Expr) -> Expr:
    """Return a pair condition of this type, if it can be true or false."""
    if not pa.types.is_boolean(type_):
        hint = condition_hint(python_text(condition), type_)
        raise ExpressionError("a condition must be true or false", got=f"{condition!r} of type {type_text(type_)}", hint=hint)
    return condition


Direction: TypeAlias = Literal["backward", "forward"]


def _whole_ms(value: Duration, name: str) -> int:
    us = to_us(value, name, allow_zero=True)
    if us % 1_000:
        raise DurationError(f"`{name}` is finer than a millisecond", got=shown(value), hint="round it to whole milliseconds")
    return us


@attrs.frozen
class DistinctWindows(WindowOperation):
    """The windows of :class:`SlidingWindows` in a plan."""

    kind: ClassVar[str] = "distinct"
    late_by: ClassVar[LateBy] = "state"
    size_us: int
    grace_us: int = 0
    direction: Direction = "backward"
    clamp_zero: bool = False

    @property
    def extent(self) -> WindowExtent:
        return WindowExtent(self.size_us, inclusive=True)

    def settled(self, explicit: ExplicitOptions) -> ExplicitOptions:
        """Return what was given, with grace as allowed lateness unless that is longer, and one final result unless
        more is wanted.
        """
        lateness_us = max(explicit.allowed_lateness_us or 0, self.grace_us)
        return attrs.evolve(explicit.filled(emit="final"), allowed_lateness_us=lateness_us)

    def result_time(self, time_column: str) -> ResultTime | None:
        return ResultTime("end")

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options`: see :class:`~krishiv_py.plan.operation.Operation`."""
        if options.emit_mode == "final":
            return
        by_count = options.trigger.early not in (None, 1) or options.trigger.late not in (None, 1, "batch")
        if by_count or options.accumulation != "accumulating":
            what = "distinct-set sliding windows fire with the watermark or with every row"
            hint = 'use Trigger.on_every_element(), leave the trigger out, or emit("final")'
            raise PlanError(what, got=options.describe(), hint=hint)

    def describe(self) -> str:
        clamp = ", none below 0" if self.clamp_zero else ""
        grace = f", grace {show_us(self.grace_us)}" if self.grace_us else ""
        return f"sliding {show_us(self.size_us)} {self.direction}, one window per distinct set of rows{clamp}{grace}"


@attrs.frozen(repr=False)
class SlidingWindows:
    """Kafka's sliding windows, made by :meth:`of` and handed to ``windowed_by``.

    A window has one result, when ``end < W - grace`` and it can no longer change; rows outside grace are late. With
    ``emit("updates")`` or ``emit("retractions")`` the result comes when ``end < W``, or with every row, and again when rows
    within grace change it.

    Attributes
    ----------
    size_us : int
        The length, in microseconds.
    grace_us : int
        How far beyond the end of a window rows for it are accepted, in microseconds.
    direction : {"backward", "forward"}
        Which side of a row its own window is on.
    clamp_zero : bool
        No window begins below time 0.

    Notes
    -----
    SEMANTICS §3.5, after KIP-450 and Kafka as released. With ``direction="forward"``, the KIP's literal form, every distinct
    time `t` has the one window ``[t, t + size]``. With ``clamp_zero=True``, Kafka as released, no window begins below 0: rows
    with ``0 <= t < size`` share ``[0, size]``.

    Examples
    --------
    >>> ten = SlidingWindows.of(10_000).grace("5 s")
    >>> ten, ten.size, ten.grace_period_ms
    (SlidingWindows.of(10000).grace(5000), 10000, 5000)
    >>> ten == SlidingWindows.of("10 s").grace(5_000), ten == SlidingWindows.of("10 s")
    (True, False)
    """

    size_us: int
    grace_us: int = 0
    direction: Direction = "backward"
    clamp_zero: bool = False

    def __attrs_post_init__(self) -> None:
        microseconds(self.size_us, "size_us", 0, MAX_TIME_US)
        microseconds(self.grace_us, "grace_us", 0, MAX_TIME_US)
        one_of(self.direction, "direction", ("backward", "forward"))
        a_switch(self.clamp_zero, "clamp_zero")
        if self.clamp_zero and self.direction == "forward":
            then = "none of them begins before its row"
            hint = "leave clamp_zero out"
            raise PlanError("`clamp_zero` does not apply to forward windows", got="direction='forward'", then=then, hint=hint)

    @classmethod
    def of(cls, size: Duration, *, direction: Direction = "backward", clamp_zero: bool = False) -> SlidingWindows:
        """Windows of a length.

        Parameters
        ----------
        size : int or timedelta or str
            How far apart two rows of one window can be, in whole milliseconds; 0 leaves rows of the same instant.
        direction : {"backward", "forward"}
            Whether windows end, or begin, with a row.
        clamp_zero : bool
            Let no window begin below time 0; for ``"backward"`` only.

        Raises
        ------
        DurationError
            For negative, float or boolean sizes, unreadable text, and lengths that are not whole milliseconds.

        Examples
        --------
        >>> from krishiv_py import SlidingWindows
        >>> SlidingWindows.of("10 s", direction="forward")
        SlidingWindows.of(10000, direction='forward')
        """
        return cls(_whole_ms(size, "size"), 0, direction, clamp_zero)

    def grace(self, after_window_end: Duration) -> SlidingWindows:
        """Return the same windows, kept (and rows for them accepted) until the watermark is that far beyond their end.

        Parameters
        ----------
        after_window_end : int or timedelta or str
            How far, in whole milliseconds; ``int`` is milliseconds, 0 the default.

        Examples
        --------
        >>> from krishiv_py import SlidingWindows
        >>> SlidingWindows.of("10 s").grace("1 min").grace_period_ms
        60000
        """
        return attrs.evolve(self, grace_us=_whole_ms(after_window_end, "grace"))

    @property
    def size(self) -> int:
        """The length in milliseconds.

        Examples
        --------
        >>> from krishiv_py import SlidingWindows
        >>> SlidingWindows.of("10 s").size
        10000
        """
        return self.size_us // 1_000

    @property
    def grace_period_ms(self) -> int:
        """The grace period in milliseconds.

        Examples
        --------
        >>> from krishiv_py import SlidingWindows
        >>> SlidingWindows.of("10 s").grace("5 s").grace_period_ms
        5000
        """
        return self.grace_us // 1_000

    def windows_for(self, timestamp: int) -> dict[int, tuple[int, int]]:
        """Return the windows that a row creates, as ``{start: (start, end)}`` in milliseconds, both bounds inclusive.

        Parameters
        ----------
        timestamp : int
            Event time of the row, milliseconds since the epoch.

        Returns
        -------
        dict
            The row's own window; for ``"backward"`` also the one right after the row, which exists as soon as a row of the
            key lies in it. (A row counts in every window that contains it, also in those of other rows.)

        Examples
        --------
        >>> SlidingWindows.of(10).windows_for(15)
        {5: (5, 15), 16: (16, 26)}
        >>> SlidingWindows.of(10, direction="forward").windows_for(15)
        {15: (15, 25)}
        """
        if isinstance(timestamp, bool) or not isinstance(timestamp, int):
            hint = "pass whole milliseconds since the epoch"
            raise DurationError("`timestamp` is not a point in time", got=shown(timestamp), hint=hint)
        if self.direction == "forward":
            return {timestamp: (timestamp, timestamp + self.size)}
        own = 0 if self.clamp_zero and 0 <= timestamp < self.size else timestamp - self.size
        return {start: (start, start + self.size) for start in (own, timestamp + 1)}

    def _window(self) -> DistinctWindows:
        """Return the window as a plan has it."""
        return DistinctWindows(self.size_us, self.grace_us, self.direction, self.clamp_zero)

    def __repr__(self) -> str:
        more = ", direction='forward'" if self.direction == "forward" else ", clamp_zero=True" if self.clamp_zero else ""
        grace = f".grace({self.grace_period_ms})" if self.grace_us else ""
        return f"SlidingWindows.of({self.size}{more}){grace}"
