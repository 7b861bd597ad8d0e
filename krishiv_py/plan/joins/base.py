"""Define what all joins of two streams share (SEMANTICS §9)."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError
from krishiv_py.plan.joins.sides import JoinColumns
from krishiv_py.plan.operation import Nature, Operation, ResultTime
from krishiv_py.plan.options.explicit import ExplicitOptions
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.options.triggers import Trigger

JoinType: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]


@attrs.frozen
class Join(Operation):
    """Two streams in one layout, whose rows meet.

    Attributes
    ----------
    sides : JoinColumns
        Where the columns of each side are.
    how : str
        Which rows are given.
    """

    nature: ClassVar[Nature] = Nature("Join", joins=True)
    sides: JoinColumns
    how: JoinType

    @property
    def left_only(self) -> bool:
        """Return whether results are rows of the left side alone."""
        return self.how in ("semi", "anti")

    @property
    def has_time(self) -> bool:
        """Return whether results have a column for the time of both rows."""
        return not self.left_only

    def settled(self, explicit: ExplicitOptions) -> ExplicitOptions:
        return explicit.filled(emit="final")  # what is given never changes

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options`: see :class:`~krishiv_py.plan.operation.Operation`."""
        fires = options.trigger != Trigger() or options.accumulation != "accumulating" or options.pane
        if options.emit_mode != "final" or fires:
            raise PlanError(
                "joins know neither triggers nor emit modes",
                got=options.describe(),
                then="a result of a join is given once, and never changes",
                hint="leave .trigger, .accumulation, .with_pane and .emit out",
            )

    def carried(self, row: pa.Schema) -> tuple[str, ...]:
        return (self.sides.side, *self.sides.left, *(() if self.left_only else self.sides.right))

    def result_fields(self, row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        fields = [*map(row.field, self.keys), *map(row.field, self.sides.left)]
        if self.left_only:
            return fields
        fields += map(row.field, self.sides.right)
        return [*fields, pa.field(self.sides.time, bound)] if self.has_time else fields

    def result_time(self, time_column: str) -> ResultTime | None:
        """Return the result column with the event time of a result (SEMANTICS §9.1)."""
        return ResultTime("row", self.sides.time if self.has_time else self.sides.left_time)
