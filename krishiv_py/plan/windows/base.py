"""The base of all windows: operations that aggregate the rows that belong together."""

from __future__ import annotations

from typing import ClassVar

import attrs

from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.aggregates.outputs import Output, identity_of_aggs, identity_of_columns
from krishiv_py.plan.operation import GROUPING, LateBy, Nature, Operation, ResultTime


@attrs.frozen
class WindowOperation(Operation):
    """Base of the window kinds: bounds, and aggregates of the rows between them.

    A window of :mod:`krishiv_py.windows` has neither keys nor aggregates yet; in a plan it is the whole aggregation.
    """

    aggs: tuple[AggCall, ...] = attrs.field(default=(), kw_only=True, repr=False, metadata=GROUPING, eq=identity_of_aggs)
    result_columns: Output | None = attrs.field(
        default=None, kw_only=True, repr=False, metadata=GROUPING, eq=identity_of_columns
    )
    nature: ClassVar[Nature] = Nature("WindowAggregate", gives_rows=False, opens_windows=True)
    late_by: ClassVar[LateBy] = "windows"

    def result_time(self, time_column: str) -> ResultTime | None:
        return ResultTime("before_end")
