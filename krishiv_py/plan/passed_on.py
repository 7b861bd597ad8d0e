"""Rows as they are: the window of a stream without windows (SEMANTICS §7.4)."""

from __future__ import annotations

from typing import ClassVar, Literal

import attrs
import pyarrow as pa

from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.windows.base import LateBy, Window


@attrs.frozen
class RowsAsTheyAre(Window):
    """Every row is given in the micro-batch in which it arrives; nothing is kept."""

    kind: ClassVar[str] = "rows"
    heading: ClassVar[str] = "Rows"
    late_by: ClassVar[LateBy] = "time"
    gives_rows: ClassVar[bool] = True
    keeps_carried: ClassVar[bool] = False

    def unwaiting(self) -> str | None:
        return "rows without windows do not wait for a watermark: a row is given in the micro-batch in which it arrives"

    @property
    def result_time(self) -> Literal["row"]:
        """See :class:`~krishiv_py.plan.windows.base.Window`."""
        return "row"

    def hold_back_us(self, options: QueryOptions) -> int:
        """See :class:`~krishiv_py.plan.windows.base.Window`."""
        return 0

    def describe(self) -> str:
        return "rows as they are"

    def carried(self, keys: tuple[str, ...], row: pa.Schema) -> tuple[str, ...]:
        return tuple(row.names)

    def result_fields(self, keys: list[pa.Field], row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        return list(row)
