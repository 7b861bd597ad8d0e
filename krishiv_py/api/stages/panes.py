"""A keyed stream with SPL's time-interval panes."""

from __future__ import annotations

import attrs

from krishiv_py.api.stages.aggregated import AggregatedStream
from krishiv_py.api.stages.windowed import WindowedStream
from krishiv_py.errors import PlanError, message, shown
from krishiv_py.plan.aggregates import collect_list
from krishiv_py.plan.expressions.expr import Func, col, lit
from krishiv_py.plan.nodes import WindowAggregate
from krishiv_py.plan.windows.panes import PaneHandler, PaneWindow, TimeIntervalWindowOptions, handler_ref
from krishiv_py.planner.check import row_schema


@attrs.frozen(eq=False)
class PaneStream(WindowedStream):
    """Rows in time-interval panes, ready for aggregates or for a handler of pane events (SEMANTICS §3.6).

    Results have the columns ``pane_timing`` (``early``, ``on_complete``, ``late``) and ``pane_index``.
    """

    def on_events(self, handler: PaneHandler) -> AggregatedStream:
        """Tell `handler` every event of every pane, in SPL's order.

        Parameters
        ----------
        handler : PaneHandler
            Gets the events; in a trigger with all tuples of the partition as an Arrow table.

        Returns
        -------
        AggregatedStream
            One result per trigger, with the column ``tuples``: the partition's tuples as a list of structs, by event time.
        """
        assert isinstance(self.window, PaneWindow)
        window = attrs.evolve(self.window, handler=handler_ref(handler))
        node = WindowAggregate(self.input, self.keys, window, (), self.options)
        whole = Func("named_struct", tuple(e for name in row_schema(node).names for e in (lit(name), col(name))))
        node = attrs.evolve(node, aggs=(collect_list(whole).alias("tuples"),))
        return AggregatedStream(node, self.late_handler, self.runner)


def checked_options(options: object) -> PaneWindow:
    """The window of SPL's options object."""
    if not isinstance(options, TimeIntervalWindowOptions):
        raise PlanError(
            message(
                "not TimeIntervalWindowOptions",
                shown(options),
                "no pane is defined",
                "pass TimeIntervalWindowOptions(interval_duration=10.0)",
            )
        )
    return options.window()
