"""Window joins (SEMANTICS §9.3): rows of two streams meet when they are in one window, tumbling or hopping.

::

    left     ──●1───●2──┊───●3──────┊──     results   1a, 2a  │  3b, 3c
    right    ────●a─────┊──●b──●c───┊──
"""

from __future__ import annotations

from typing import ClassVar

import attrs
import pyarrow as pa

from krishiv_py.plan.joins.base import Join
from krishiv_py.plan.operation import Extent, LateBy, Nature, ResultTime
from krishiv_py.plan.windows.fixed import HoppingWindow


@attrs.frozen
class WindowJoin(Join):
    """Rows of equal key and equal window meet once the window is final."""

    kind: ClassVar[str] = "window join"
    nature: ClassVar[Nature] = attrs.evolve(Join.nature, opens_windows=True)
    late_by: ClassVar[LateBy] = "windows"
    window: HoppingWindow

    @property
    def has_time(self) -> bool:
        return False  # a result has the time of its window

    @property
    def extent(self) -> Extent:
        return self.window.extent

    def describe(self) -> str:
        return f"{self.how} join in windows, {self.window.describe()}"

    def no_end(self, end_us: int) -> str | None:
        return self.window.no_end(end_us)

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        plain, n = super().result_fields(row, bound) or [], len(self.keys)
        bounds = [pa.field("window_start", bound), pa.field("window_end", bound)]
        return [*plain[:n], *bounds, *plain[n:]]

    def result_time(self, time_column: str) -> ResultTime | None:
        return ResultTime("before_end")

    def warnings(self) -> tuple[str, ...]:
        return self.window.warnings()
