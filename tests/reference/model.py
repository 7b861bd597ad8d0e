"""What goes into the reference and what comes out of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tests.reference.count import CountWindow
    from tests.reference.lateness import FutureRule
    from tests.reference.run import Kind

Key = str | int | tuple[object, ...] | None
Watermark = int | float  # an integer, or one of the two infinities below; Python compares int and inf exactly
UNSET: Watermark = -math.inf  # §2.2: no row seen yet
END: Watermark = math.inf  # §2.5: end of input

Op = Literal["+I", "-U", "+U", "-D"]
Pane = Literal["early", "on_time", "late", "final"]
Reason = Literal["late", "null_time", "future"]


@dataclass(frozen=True)
class Row:
    """One input row; ``t`` None is a null event time, ``gap`` a session gap of its own (§3.3)."""

    key: Key
    t: int | None
    value: int | None = None
    gap: int | None = None
    source: str | None = None

    @property
    def time(self) -> int:
        """The event time of a row known to have one."""
        if self.t is None:
            raise ValueError("a row without event time belongs to no window (§1.3)")
        return self.t


@dataclass(frozen=True)
class Seen:
    """An accepted row: its number in arrival order and the watermark it was classified by."""

    number: int
    row: Row
    under: Watermark

    @property
    def t(self) -> int:
        """Its event time."""
        return self.row.time


@dataclass(frozen=True)
class Window:
    """A window with its rows; ``anchor``, the row a look-back window is for, tells apart those of equal rows.

    ``carries_row``: the result has that row with it. ``leaves_row_out``: aggregates do without it (§11.4).
    """

    key: Key
    start: int
    end: int
    rows: tuple[Seen, ...]
    anchor: int | None = None
    carries_row: bool = False
    leaves_row_out: bool = False

    @property
    def identity(self) -> tuple[Key, int, int, int | None]:
        """What makes it the same window as another."""
        return (self.key, self.start, self.end, self.anchor)

    def result(self, rows: Sequence[Seen] | None = None) -> Result:
        """The result over its rows, or over some of them."""
        counted = [s for s in (self.rows if rows is None else rows) if not (self.leaves_row_out and s.number == self.anchor)]
        actual = result_of(self.key, self.start, self.end, counted)
        if not self.carries_row:
            return actual
        (own,) = (s.row for s in self.rows if s.number == self.anchor)
        return replace(actual, row=(own.time, own.value))


@dataclass(frozen=True)
class Batch:
    """A micro-batch of rows, perhaps empty; ``now`` is processing time (§2.4, §4.4)."""

    rows: Sequence[Row] = ()
    now: int | None = None


@dataclass(frozen=True)
class Advance:
    """A batch without rows that brings the watermark of one source, or of all, to at least ``to``."""

    to: int
    source: str | None = None
    now: int | None = None


@dataclass(frozen=True)
class Close:
    """End of input: the watermark goes to plus infinity (§2.5)."""

    now: int | None = None


Step = Batch | Advance | Close


@dataclass(frozen=True)
class WatermarkSpec:
    """§2: one lag, or a lag per source, with the knobs on which engines differ."""

    lag: int = 0
    sources: Mapping[str, int] | None = None
    initial: int | None = None
    idle_timeout: int | None = None
    idle_advance: int | None = None
    start_now: int | None = None
    policy: Literal["min", "max"] = "min"
    all_idle: Literal["hold", "max"] = "hold"
    idle_resume: Literal["hold", "align"] = "hold"


@dataclass(frozen=True)
class Facts:
    """§5.7: what a trigger of the user sees of one window; ``new_rows`` are those no firing has shown."""

    key: Key
    start: int
    end: int
    rows: int
    new_rows: int
    firings: int
    newest: int
    watermark: Watermark


@dataclass(frozen=True)
class Trigger:
    """§5.1, §5.2: ``early`` and ``late`` fire after that many rows of a window (1: every row), or never (None).

    ``late="batch"``: once per batch for windows that mildly late rows changed. ``asked``: a trigger of the user says of one
    window whether it fires early; ``waiting``: of all windows with new rows, not only those that rows came to.
    """

    early: int | None = None
    on_time: bool = True
    late: int | Literal["batch"] | None = "batch"
    accumulation: Literal["accumulating", "discarding"] = "accumulating"
    decides: Callable[[Facts], bool] | None = None
    waiting: bool = False


@dataclass(frozen=True)
class Config:
    """A whole query."""

    window: Kind | CountWindow
    watermark: WatermarkSpec = field(default_factory=WatermarkSpec)
    allowed_lateness: int = 0
    late_rule: Literal["event", "window"] = "event"
    emit: Literal["final", "updates", "retractions"] = "final"
    trigger: Trigger = field(default_factory=Trigger)
    future: FutureRule | None = None


@dataclass(frozen=True)
class Result:
    """A window and what its rows come to.

    ``values``: all values, sorted, nulls first. ``listed``: ``collect_list``. ``row``: time and value of the row that a
    look-back result carries.
    """

    key: Key
    start: int
    end: int
    values: tuple[int | None, ...]
    listed: tuple[int, ...] = ()
    row: tuple[int, int | None] | None = None

    @property
    def distinct(self) -> tuple[int, ...]:
        """``collect_set``."""
        return collect_set(self.listed)


@dataclass(frozen=True)
class Emission:
    """One line of the output log."""

    step: int
    op: Op
    pane: Pane
    result: Result


@dataclass(frozen=True)
class Late:
    """A row that entered no window."""

    step: int
    row: Row
    reason: Reason


@dataclass
class Observed:
    """All that can be seen from outside."""

    emissions: list[Emission] = field(default_factory=list)
    late: list[Late] = field(default_factory=list)
    unassigned: list[tuple[int, Row]] = field(default_factory=list)
    watermark_after: list[Watermark] = field(default_factory=list)
    closed: list[Result] = field(default_factory=list)
    still_open: list[Result] = field(default_factory=list)


def sorted_values(values: Iterable[int | None]) -> tuple[int | None, ...]:
    """Values in order, nulls first."""
    return tuple(sorted(values, key=lambda v: (v is not None, v or 0)))


def collect_list(rows: Iterable[tuple[int, int, int | None]]) -> tuple[int, ...]:
    """§5.6, from time, number of arrival and value of rows: the values by time, then arrival, without nulls."""
    return tuple(value for _, _, value in sorted(rows, key=lambda r: r[:2]) if value is not None)


def collect_set(values: Iterable[int]) -> tuple[int, ...]:
    """§5.6: every value once, in ascending order."""
    return tuple(sorted(set(values)))


def result_of(key: Key, start: int, end: int, rows: Sequence[Seen]) -> Result:
    """The result over some rows of a window."""
    listed = collect_list((s.t, s.number, s.row.value) for s in rows)
    return Result(key, start, end, sorted_values(s.row.value for s in rows), listed)


def order_of(window: Window) -> tuple[int, int, str, int]:
    """§5.1: windows fire in ascending end order; the rest only makes it definite."""
    return (window.end, window.start, repr(window.key), window.anchor or 0)
