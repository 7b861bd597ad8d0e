"""A keyed stream with its windows, ready for aggregates."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pyarrow as pa
from typing_extensions import Self

from krishiv_py.api.options import OptionMethods
from krishiv_py.api.runner import Runner
from krishiv_py.api.stages.aggregated import AggregatedStream, as_aggs
from krishiv_py.api.stages.order import ON_WINDOWED, RESULTS, instead, needs
from krishiv_py.plan.aggregates import AggCall
from krishiv_py.plan.nodes import AssignWatermark, WindowAggregate
from krishiv_py.plan.options.late import LateEventHandler
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.windows import Window
from krishiv_py.redaction import shown_text


@instead(ON_WINDOWED)
@needs(".agg(...)", *(r for r in RESULTS if r != "collect_with_aggs"))
@attrs.frozen(eq=False)
class WindowedStream(OptionMethods):
    """Rows grouped by key and window."""

    input: AssignWatermark = attrs.field(repr=shown_text)
    keys: tuple[str, ...]
    window: Window
    options: QueryOptions
    late_handler: LateEventHandler
    runner: Runner

    def _with_options(self, options: QueryOptions) -> Self:
        return attrs.evolve(self, options=self.window.settled(options))

    def _with_handler(self, handler: LateEventHandler) -> Self:
        return attrs.evolve(self, late_handler=handler)

    def agg(self, *aggs: AggCall | Sequence[AggCall]) -> AggregatedStream:
        """Aggregate every window: ``.agg(count(), sum(col("x")))`` or ``.agg([count(), ...])``; `aggs` are at least one.

        Raises
        ------
        PlanError
            For no aggregates, unknown columns, values an aggregate cannot take, or names that clash.
        """
        node = WindowAggregate(self.input, self.keys, self.window, as_aggs(aggs), self.options)
        return AggregatedStream(node, self.late_handler, self.runner)

    def collect_with_aggs(self, aggs: Sequence[AggCall]) -> pa.Table:
        """``.agg(aggs).collect()``: aggregate every window by `aggs`, at least one, over a finite input."""
        return self.agg(aggs).collect()
