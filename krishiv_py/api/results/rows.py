"""A checked stage out of which rows come instead of aggregates: deduplicated or joined ones."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pyarrow as pa

from krishiv_py.api.stages.aggregated import AggregatedStream
from krishiv_py.api.stages.order import needs
from krishiv_py.errors import OrderError, message
from krishiv_py.plan.expressions.expr import Expr


@needs(".tumbling_window(...) or another window", "agg", "aggregate", "count", "sum", "min", "max", "avg", "mean", "reduce")
@attrs.frozen(eq=False, repr=False)
class RowStream(AggregatedStream):
    """Rows that went through a step with state and stayed rows. It can be run, as aggregates can."""

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        assert self.node.window.gives_rows

    def collect_with_aggs(self, aggs: Sequence[Expr]) -> pa.Table:
        """Always refused, for any `aggs`: there is no window whose rows they could aggregate."""
        raise OrderError(
            message(
                ".collect_with_aggs() is not a step of this stage",
                f"a {type(self).__name__}",
                "its results are rows, and no window says which of them belong together",
                "call .tumbling_window(...) or another window first, or .collect() for the rows",
            )
        )
