"""Tumbling and hopping windows (SEMANTICS §3.1, §3.2), all lengths in microseconds.

Rows are kept once per *slice*: the stretch of time between two neighbouring window bounds. Every window is a run of
slices, so a row is stored once however many windows it belongs to::

    size 60, slide 25:   |----a----|----b----|      window [0,60)  = slices a+b+c
    slices of 25:        0   10   25   35   50  60  window [25,85) = ...

The windows of a user's assigner, as a value of the plan (SEMANTICS §3.9).

Cumulating windows (SEMANTICS §11.1): windows of one start that grow by a step until they have their size.

::

    step 10, size 30:   [0, 10)  [0, 20)  [0, 30)   then   [30, 40)  [30, 50)  [30, 60)   ...
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs
import numpy as np

from krishiv_py.errors import RAISED, PlanError
from krishiv_py.plan.checks import a_number, a_switch
from krishiv_py.plan.described import Assigned, Times, WindowAssigner, attribute_of, description_of
from krishiv_py.plan.durations import Duration, show_instant, show_us, to_us
from krishiv_py.plan.operation import Apart, Grid, WindowExtent
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.windows.window import WindowOperation

MAX_OVERLAP: Final = 100_000
"""The number of windows that a row may be in, unless ``max_overlap`` says otherwise."""


@attrs.frozen
class HoppingWindow(WindowOperation):
    """Every window ``[offset + k*slide, offset + k*slide + size)`` that holds the row."""

    route: ClassVar[str] = "fixed"
    kind: ClassVar[str] = "hopping"
    size_us: int
    slide_us: int
    offset_us: int = 0

    @property
    def takes_changes(self) -> bool:
        return True

    @property
    def grid(self) -> Grid:
        """Return size and distance of the windows."""
        return Grid(self.size_us, self.slide_us, self.offset_us)

    @property
    def extent(self) -> WindowExtent:
        return WindowExtent(self.size_us, self.grid)

    def row_by_row(self, options: QueryOptions) -> WindowOperation:
        """Return the windows with bounds of their own: of two that share rows, one may have left before a row came."""
        if options.late_rule != "window" or self.slide_us >= self.size_us:
            return self
        own: Any = attrs.fields(WindowOperation)
        grouping = {field.name: getattr(self, field.name) for field in own if field.metadata.get("grouping")}
        return attrs.evolve(assigned(Hops(self.size_us, self.slide_us, self.offset_us)), **grouping)

    def no_end(self, end_us: int) -> str | None:
        over_us = (end_us - self.offset_us - self.size_us) % self.slide_us
        if not over_us:
            return None
        before, after = show_instant(end_us - over_us), show_instant(end_us - over_us + self.slide_us)
        return f"no window ends at {show_instant(end_us)}: the nearest end at {before} and at {after}"

    def describe(self) -> str:
        offset = f", offset {show_us(self.offset_us)}" if self.offset_us else ""
        return f"hopping {show_us(self.size_us)} every {show_us(self.slide_us)}{offset}"

    def warnings(self) -> tuple[str, ...]:
        if self.slide_us > self.size_us:
            gap = show_us(self.slide_us - self.size_us)
            return (f"rows in the gaps of {gap} between windows belong to none; they are counted as `unassigned`",)
        return ()


@attrs.frozen
class TumblingWindow(HoppingWindow):
    """Windows that touch and never overlap: every row is in exactly one."""

    kind: ClassVar[str] = "tumbling"

    def describe(self) -> str:
        offset = f", offset {show_us(self.offset_us)}" if self.offset_us else ""
        return f"tumbling {show_us(self.size_us)}{offset}"


def _offset_us(offset: Duration, every_us: int) -> int:
    """Return how far after a multiple of `every_us` windows start, as it was given where that is within one."""
    us = to_us(offset, "offset", allow_zero=True, allow_negative=True)
    return us if 0 <= us < every_us else us % every_us


def tumbling(size: Duration, offset: Duration = 0) -> TumblingWindow:
    """Return a checked :class:`TumblingWindow`.

    Examples
    --------
    >>> from krishiv_py import windows
    >>> windows.tumbling("1 min", offset="15 s").describe()
    'tumbling 1 min, offset 15 s'
    """
    size_us = to_us(size, "size")
    return TumblingWindow(size_us, size_us, _offset_us(offset, size_us))


def check_overlap(size: int, slide: int, shown: str, most: int) -> None:
    """Refuse windows of which a row would be in more than `most`."""
    overlap = -(-size // slide)
    if overlap > a_number(most, "max_overlap", 1, "write max_overlap=200_000", most=1 << 62):
        raise PlanError(
            f"every row would be in {overlap:,} windows, more than {most:,}",
            got=shown,
            then="each of them has a result for its key, so no query would keep up",
            hint="start windows less often, or use a look-back "
            f"window, which has one result a row; if it has to be, pass max_overlap={overlap}",
        )


def hopping(
    size: Duration, slide: Duration, offset: Duration = 0, *, allow_gaps: bool = False, max_overlap: int = MAX_OVERLAP
) -> HoppingWindow:
    """Return a checked :class:`HoppingWindow`; ``slide > size`` only with `allow_gaps`, ``size / slide`` at most `max_overlap`.

    Examples
    --------
    >>> from krishiv_py import windows
    >>> windows.hopping("1 hour", "10 min").describe()
    'hopping 1 h every 10 min'
    """
    size_us, slide_us = to_us(size, "size"), to_us(slide, "slide")
    a_switch(allow_gaps, "allow_gaps")
    if slide_us > size_us and not allow_gaps:
        raise PlanError(
            f"`slide` ({show_us(slide_us)}) is longer than `size` ({show_us(size_us)}): events between windows "
            "would belong to none. Hint: make `slide` at most `size`, or pass allow_gaps=True if rows between "
            "windows may be left out"
        )
    check_overlap(size_us, slide_us, f"`size` {show_us(size_us)}, `slide` {show_us(slide_us)}", max_overlap)
    return HoppingWindow(size_us, slide_us, _offset_us(offset, slide_us))


@attrs.frozen
class AssignedWindow(WindowOperation):
    """The windows of an assigner."""

    kind: ClassVar[str] = "assigned"
    assigner: WindowAssigner = attrs.field(eq=False)
    longest_us: int
    name: str
    parameters: tuple[tuple[str, str], ...]

    @property
    def takes_changes(self) -> bool:
        return True

    @property
    def extent(self) -> WindowExtent:
        return WindowExtent(self.longest_us, assigner=self.assigner)

    @property
    def apart_by(self) -> Apart | None:
        return self.assigner._apart_by

    def no_end(self, end_us: int) -> str | None:
        try:
            given = self.assigner.assign(np.array([end_us - 1], np.int64))
        except RAISED:  # user code: the query says so, this is only about words
            return None
        if not isinstance(given, tuple) or len(given) != 2:
            return None
        start, end = int(given[0][0]), int(given[1][0])
        if end == end_us:
            return None
        return f"no window ends at {show_instant(end_us)}: the one there is {show_instant(start)} to {show_instant(end)}"

    def identity(self) -> dict[str, str]:
        """Return the class of the assigner and its parameters: what a checkpoint notes."""
        return {"assigner": type(self.assigner).__qualname__, **{f"parameter {name}": text for name, text in self.parameters}}

    def describe(self) -> str:
        return f"{self.assigner.describe()}, windows of at most {show_us(self.longest_us)}"


def assigned(assigner: WindowAssigner) -> AssignedWindow:
    """Return the checked windows of an `assigner`."""
    longest = attribute_of(assigner, "longest", "window assigner", "a checkpoint could not note it")
    description = description_of(assigner, "window assigner")
    return AssignedWindow(assigner, to_us(longest, "longest"), description.name, description.parameters)


@attrs.frozen
class Cumulate(WindowAssigner):
    """Windows ``[s, s + k * step)`` with k from 1 to ``size / step``; a row is in those that end after it."""

    name: ClassVar[str] = "cumulate"
    _apart_by: ClassVar[Apart] = (("window_end",),)

    step_us: int
    size_us: int
    offset_us: int = 0

    @property
    def longest(self) -> Duration:
        """The whole size."""
        return dt.timedelta(microseconds=self.size_us)

    def parameters(self) -> Mapping[str, object]:
        """Step, size and offset, µs."""
        return {"step": self.step_us, "size": self.size_us, "offset": self.offset_us}

    def describe(self) -> str:
        """One line for ``explain()``."""
        offset = f", offset {show_us(self.offset_us)}" if self.offset_us else ""
        return f"cumulating every {show_us(self.step_us)}{offset}"

    def assign(self, times: Times) -> Assigned:
        """See WindowAssigner."""
        inside = (times - self.offset_us) % self.size_us
        first = inside // self.step_us + 1
        n = self.size_us // self.step_us - first + 1
        rows = np.repeat(np.arange(len(times)), n)
        nth = np.arange(len(rows)) - np.repeat(np.cumsum(n) - n, n)
        starts = (times - inside)[rows]
        return rows, starts, starts + (first[rows] + nth) * self.step_us


@attrs.frozen
class Hops(WindowAssigner):
    """The windows of a hopping window, each with bounds of its own."""

    name: ClassVar[str] = "hops"

    size_us: int
    slide_us: int
    offset_us: int = 0

    @property
    def longest(self) -> Duration:
        """The size."""
        return dt.timedelta(microseconds=self.size_us)

    def parameters(self) -> Mapping[str, object]:
        """Size, slide and offset, µs."""
        return {"size": self.size_us, "slide": self.slide_us, "offset": self.offset_us}

    def describe(self) -> str:
        """One line for ``explain()``."""
        return HoppingWindow(self.size_us, self.slide_us, self.offset_us).describe()

    def assign(self, times: Times) -> Assigned:
        """See WindowAssigner."""
        last = times - (times - self.offset_us) % self.slide_us
        n = (self.size_us - 1 - (times - last)) // self.slide_us + 1
        rows = np.repeat(np.arange(len(times)), n)
        nth = np.arange(len(rows)) - np.repeat(np.cumsum(n) - n, n)
        starts = (last - (n - 1) * self.slide_us)[rows] + nth * self.slide_us
        return rows, starts, starts + self.size_us


def cumulate(step: Duration, size: Duration, offset: Duration = 0, *, max_overlap: int = MAX_OVERLAP) -> AssignedWindow:
    """Checked cumulating windows; `size` is a multiple of `step`, ``size / step`` at most `max_overlap`.

    Examples
    --------
    >>> from krishiv_py import windows
    >>> windows.cumulate(step="1 hour", size="1 day").describe()
    'cumulating every 1 h, windows of at most 1 d'
    """
    step_us, size_us = to_us(step, "step"), to_us(size, "size")
    if size_us % step_us:
        raise PlanError(
            "`size` is not a multiple of `step`",
            got=f"size {show_us(size_us)}, step {show_us(step_us)}",
            then="the last window would be longer than its size",
            hint="write for instance cumulate_window(step='10 minutes', size='1 hour')",
        )
    check_overlap(size_us, step_us, f"size {show_us(size_us)}, step {show_us(step_us)}", max_overlap)
    return assigned(Cumulate(step_us, size_us, _offset_us(offset, size_us)))
