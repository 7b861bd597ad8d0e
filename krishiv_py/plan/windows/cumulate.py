"""Cumulating windows (SEMANTICS §11.1): windows of one start that grow by a step until they have their size.

::

    step 10, size 30:   [0, 10)  [0, 20)  [0, 30)   then   [30, 40)  [30, 50)  [30, 60)   ...
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

import attrs
import numpy as np

from krishiv_py.errors import PlanError
from krishiv_py.plan.assigner import Assigned, Times, WindowAssigner
from krishiv_py.plan.durations import Duration, show_us, to_us
from krishiv_py.plan.windows.assigned import AssignedWindow, assigned
from krishiv_py.plan.windows.fixed import MAX_OVERLAP, check_overlap


@attrs.frozen
class Cumulate(WindowAssigner):
    """Windows ``[s, s + k * step)`` with k from 1 to ``size / step``; a row is in those that end after it."""

    step_us: int
    size_us: int
    offset_us: int = 0

    @property
    def name(self) -> str:
        """Return what errors and ``explain()`` call it."""
        return "cumulate"

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


def cumulate(step: Duration, size: Duration, offset: Duration = 0, *, max_overlap: int = MAX_OVERLAP) -> AssignedWindow:
    """Checked cumulating windows; `size` is a multiple of `step`, ``size / step`` at most `max_overlap`."""
    step_us, size_us = to_us(step, "step"), to_us(size, "size")
    if size_us % step_us:
        raise PlanError(
            "`size` is not a multiple of `step`",
            got=f"size {show_us(size_us)}, step {show_us(step_us)}",
            then="the last window would be longer than its size",
            hint="write for instance cumulate_window(step='10 minutes', size='1 hour')",
        )
    check_overlap(size_us, step_us, f"size {show_us(size_us)}, step {show_us(step_us)}", max_overlap)
    offset_us = to_us(offset, "offset", allow_zero=True, allow_negative=True) % size_us
    return assigned(Cumulate(step_us, size_us, offset_us))
