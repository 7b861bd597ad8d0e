"""The base of all windows: operations that aggregate the rows that belong together."""

from __future__ import annotations

from typing import ClassVar

from krishiv_py.plan.operation import LateBy, Operation, ResultTime


class Window(Operation):
    """Base of the window kinds: bounds, and aggregates of the rows between them."""

    __slots__ = ()
    heading: ClassVar[str] = "WindowAggregate"
    gives_rows: ClassVar[bool] = False
    opens_windows: ClassVar[bool] = True
    late_by: ClassVar[LateBy] = "windows"

    def result_time(self, time_column: str) -> ResultTime | None:
        return ResultTime("before_end")
