"""Count windows (SEMANTICS §3.7): rows of a key by their number in order of arrival, counted from 0."""

from __future__ import annotations

from typing import ClassVar

import attrs

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.operation import LateBy, ResultTime, WindowExtent
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.options.triggers import CustomTrigger, Interval
from krishiv_py.plan.windows.fixed import MAX_OVERLAP, check_overlap
from krishiv_py.plan.windows.window import WindowOperation


@attrs.frozen
class CountWindow(WindowOperation):
    """``[k * slide, k * slide + size)`` in row numbers of the key.

    Attributes
    ----------
    size, slide : int
        Rows in a window, and rows between two starts.
    """

    extent: ClassVar[WindowExtent] = WindowExtent(numbered=True)
    kind: ClassVar[str] = "count"
    late_by: ClassVar[LateBy] = "never"
    size: int
    slide: int

    @property
    def goes_by_arrival(self) -> bool:
        return True

    def fires_plainly(self, options: QueryOptions) -> bool:
        return options.fires_by_default

    def unwaiting(self) -> str | None:
        return (
            f"count windows do not wait for the watermark: one fires when {self.size} rows of its key are there, "
            "or at the end of input"
        )

    def result_time(self, time_column: str) -> ResultTime | None:
        return None

    def describe(self) -> str:
        return f"every {self.size} rows" + ("" if self.slide == self.size else f", every {self.slide} rows again")

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options`: see :class:`~krishiv_py.plan.operation.Operation`."""
        trigger = options.trigger
        if isinstance(trigger.early, (Interval, CustomTrigger)) and not options.fires_by_default:
            how = "by the clock" if isinstance(trigger.early, Interval) else "when a trigger of your own says so"
            hint = "use Trigger.on_count(n) or on_every_element()"
            raise PlanError(f"count windows do not fire {how}", got=trigger._describe(), hint=hint)

    def warnings(self) -> tuple[str, ...]:
        return (
            "count windows fire by rows, not by the watermark: a key that stops short of a full window keeps it open "
            "until the end of input, and every key ever seen keeps its row number",
        )


def _rows(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
        raise PlanError(f"`{name}` is not a number of rows", got=shown(value), hint="pass a whole number from 1")
    return value


def count_rows(size: int, slide: int | None = None, *, max_overlap: int = MAX_OVERLAP) -> CountWindow:
    """Return a checked :class:`CountWindow`; `slide` is `size` unless given.

    Examples
    --------
    >>> from krishiv_py import count, windows
    >>> from krishiv_py.testing import Driver, stream_of
    >>> threes = stream_of("at bigint").watermark("at", 0).window(windows.count_rows(3)).agg(count())
    >>> Driver(threes).send([{"at": at} for at in range(7)]).results.to_pylist()
    [{'window_start': 0, 'window_end': 3, 'count': 3}, {'window_start': 3, 'window_end': 6, 'count': 3}]
    """
    checked, step = _rows(size, "size"), _rows(size if slide is None else slide, "slide")
    if step > checked:
        raise PlanError(
            f"`slide` ({step} rows) is larger than `size` ({checked} rows): rows between windows would belong to "
            "none. Hint: make `slide` at most `size`"
        )
    check_overlap(checked, step, f"`size` {checked} rows, `slide` {step}", max_overlap)
    return CountWindow(checked, step)
