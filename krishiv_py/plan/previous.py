"""Rows with values of the rows of their key before and after them (SEMANTICS §15)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs
import pyarrow as pa

from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.operation import LateBy, Operation, OperationTraits, ResultTime, passing, refuse_firings
from krishiv_py.plan.options.query import ExplicitOptions, QueryOptions
from krishiv_py.plan.patterns import Prev
from krishiv_py.plan.processing import waiting_rows

KNOWN: Final = "known_at"
"""The time of the row for which a row has waited: the event time of results."""


@attrs.frozen(eq=False)
class PreviousRows(Operation):
    """Every row gets columns of rows of its key before and after it, in event time.

    ::

        price       5   7   4
        prev        ·   5   7
        next        7   4   ·

    Attributes
    ----------
    time : str
        The column of the event time.
    columns : tuple of (str, Expr)
        The new columns, of the row and hidden columns of other rows.
    before : tuple of (str, Prev)
        These values of other rows, by the name of their hidden column.
    fields : pyarrow.Schema
        The new columns with their types.
    order_by : tuple of str
        The columns that order rows of equal time, nulls last.
    """

    kind: ClassVar[str] = "previous"
    nature: ClassVar[OperationTraits] = OperationTraits("Previous")
    remembers: ClassVar[bool] = True
    late_by: ClassVar[LateBy] = "time"
    time: str
    columns: tuple[tuple[str, Expr], ...]
    before: tuple[tuple[str, Prev], ...]
    fields: pa.Schema
    order_by: tuple[str, ...] = ()

    @property
    def ahead(self) -> int:
        """Return for how many rows of its key a row waits."""
        return max([0, *(-node.rows for _, node in self.before)])

    @property
    def waiting(self) -> tuple[str, str]:  # type: ignore[override]
        """Return what waits, without rows that are not settled and with them."""
        unsettled = "rows wait until no row before them can come"
        if not self.ahead:
            return "nothing waits: all rows are settled", unsettled
        last = "the last row of each key waits" if self.ahead == 1 else f"the last {self.ahead} rows of each key wait"
        return f"{last} for the rows after", f"{unsettled}, and {last} for the rows after"

    @property
    def by_clock(self) -> bool:  # type: ignore[override]
        """Return whether it sees the largest event time at the end of input."""
        return self.ahead > 0

    def identity(self) -> dict[str, str]:
        return {"before": repr([repr(node) for _, node in self.before]), "order_by": repr(self.order_by)}

    def describe(self) -> str:
        where = "before" if not self.ahead else "after" if all(node.rows < 0 for _, node in self.before) else "before and after"
        return f"rows with {', '.join(self.fields.names)} of rows {where} them"

    def settled(self, explicit: ExplicitOptions) -> ExplicitOptions:
        return explicit.filled(emit="final")

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options`: see :class:`~krishiv_py.plan.operation.Operation`."""
        refuse_firings(options, "with_previous", "a row is given once, and is never taken back")

    def result_time(self, time_column: str) -> ResultTime | None:
        return ResultTime("row", KNOWN if self.ahead else time_column)

    def key_text(self, row: Mapping[str, Any]) -> str | None:
        return waiting_rows(row["state_held_rows" if "state_held_rows" in row else "held_rows"])

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        return tuple(f.name for f in passing(row) if f.name not in self.keys or pa.types.is_floating(f.type))

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        return [*passing(row), *self.fields, *([pa.field(KNOWN, row.field(self.time).type)] if self.ahead else [])]
