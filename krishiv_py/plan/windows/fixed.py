"""Tumbling and hopping windows (SEMANTICS §3.1, §3.2), all lengths in microseconds.

Rows are kept once per *slice*: the stretch of time between two neighbouring window bounds. Every window is a run of
slices, so a row is stored once however many windows it belongs to::

    size 60, slide 25:   |----a----|----b----|      window [0,60)  = slices a+b+c
    slices of 25:        0   10   25   35   50  60  window [25,85) = ...
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from krishiv_py.errors import PlanError
from krishiv_py.plan.checks import a_number, a_switch
from krishiv_py.plan.durations import Duration, show_instant, show_us, to_us
from krishiv_py.plan.operation import Grid
from krishiv_py.plan.windows.base import Window

MAX_OVERLAP: Final = 100_000
"""How many windows a row may be in, unless ``max_overlap`` says otherwise."""


@attrs.frozen
class HoppingWindow(Window):
    """Every window ``[offset + k*slide, offset + k*slide + size)`` that holds the row."""

    kind: ClassVar[str] = "hopping"
    size_us: int
    slide_us: int
    offset_us: int = 0

    @property
    def route(self) -> str:
        return "fixed"

    @property
    def length_us(self) -> int:
        return self.size_us

    @property
    def grid(self) -> Grid:
        return Grid(self.size_us, self.slide_us, self.offset_us)

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


def tumbling(size: Duration, offset: Duration = 0) -> TumblingWindow:
    """A checked :class:`TumblingWindow`."""
    size_us = to_us(size, "size")
    return TumblingWindow(size_us, size_us, to_us(offset, "offset", allow_zero=True, allow_negative=True) % size_us)


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
    """A checked :class:`HoppingWindow`; ``slide > size`` only with `allow_gaps`, ``size / slide`` at most `max_overlap`."""
    size_us, slide_us = to_us(size, "size"), to_us(slide, "slide")
    a_switch(allow_gaps, "allow_gaps")
    if slide_us > size_us and not allow_gaps:
        raise PlanError(
            f"`slide` ({show_us(slide_us)}) is longer than `size` ({show_us(size_us)}): events between windows "
            "would belong to none. Hint: make `slide` at most `size`, or pass allow_gaps=True if rows between "
            "windows may be left out"
        )
    check_overlap(size_us, slide_us, f"`size` {show_us(size_us)}, `slide` {show_us(slide_us)}", max_overlap)
    return HoppingWindow(size_us, slide_us, to_us(offset, "offset", allow_zero=True, allow_negative=True) % slide_us)
