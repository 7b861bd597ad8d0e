"""Distinct-set sliding windows (KIP-450, SEMANTICS §3.5): one window per distinct set of rows that lie within `size`.

Both bounds are inclusive::

    size 10       t=3        t=8
    own    [-7 ───● 3]
    own        [-2 ──────────● 8]
    right            [4 ─────●────── 14]     comes into being because a row lies in it
"""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import attrs

from krishiv_py.errors import DurationError, PlanError, shown
from krishiv_py.plan.checks import a_switch, microseconds, one_of
from krishiv_py.plan.durations import MAX_TIME_US, Duration, show_us, to_us
from krishiv_py.plan.operation import LateBy, ResultTime
from krishiv_py.plan.options.explicit import ExplicitOptions
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.windows.base import Window

Direction: TypeAlias = Literal["backward", "forward"]


def _whole_ms(value: Duration, name: str) -> int:
    us = to_us(value, name, allow_zero=True)
    if us % 1_000:
        raise DurationError(f"`{name}` is finer than a millisecond", got=shown(value), hint="round it to whole milliseconds")
    return us


@attrs.frozen
class DistinctWindows(Window):
    """The windows of :class:`SlidingWindows` in a plan."""

    kind: ClassVar[str] = "distinct"
    inclusive: ClassVar[bool] = True
    late_by: ClassVar[LateBy] = "state"
    size_us: int
    grace_us: int = 0
    direction: Direction = "backward"
    clamp_zero: bool = False

    @property
    def length_us(self) -> int:
        return self.size_us

    def settled(self, explicit: ExplicitOptions) -> ExplicitOptions:
        """Return what was `told`, with grace as allowed lateness unless that is longer, and one final result unless
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
            raise PlanError(
                "distinct-set sliding windows fire with the watermark or with every row",
                got=options.describe(),
                hint='use Trigger.on_every_element(), leave the trigger out, or emit("final")',
            )

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
            raise PlanError(
                "`clamp_zero` has no meaning for forward windows",
                got="direction='forward'",
                then="none of them begins before its row",
                hint="leave clamp_zero out",
            )

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
        """
        return cls(_whole_ms(size, "size"), 0, direction, clamp_zero)

    def grace(self, after_window_end: Duration) -> SlidingWindows:
        """The same windows, kept (and rows for them accepted) until the watermark is that far beyond their end.

        Parameters
        ----------
        after_window_end : int or timedelta or str
            How far, in whole milliseconds; ``int`` is milliseconds, 0 the default.
        """
        return attrs.evolve(self, grace_us=_whole_ms(after_window_end, "grace"))

    @property
    def size(self) -> int:
        """The length in milliseconds."""
        return self.size_us // 1_000

    @property
    def grace_period_ms(self) -> int:
        """The grace period in milliseconds."""
        return self.grace_us // 1_000

    def windows_for(self, timestamp: int) -> dict[int, tuple[int, int]]:
        """The windows that a row creates, as ``{start: (start, end)}`` in milliseconds, both bounds inclusive.

        Parameters
        ----------
        timestamp : int
            Event time of the row, milliseconds since the epoch.

        Returns
        -------
        dict
            The row's own window; for ``"backward"`` also the one right behind the row, which exists as soon as a row of the
            key lies in it. (A row counts in every window that contains it, also in those of other rows.)

        Examples
        --------
        >>> SlidingWindows.of(10).windows_for(15)
        {5: (5, 15), 16: (16, 26)}
        >>> SlidingWindows.of(10, direction="forward").windows_for(15)
        {15: (15, 25)}
        """
        if isinstance(timestamp, bool) or not isinstance(timestamp, int):
            raise DurationError(
                "`timestamp` is not a point in time", got=shown(timestamp), hint="pass whole milliseconds since the epoch"
            )
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
