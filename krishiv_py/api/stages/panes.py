"""A keyed stream with SPL's time-interval panes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from krishiv_py.api.stages.order import instead
from krishiv_py.api.stages.windowed import WindowedStream, aggregated
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.aggregates.selections import collect_list
from krishiv_py.plan.expressions.expr import Expr, Func, col, lit
from krishiv_py.plan.schema import as_schema
from krishiv_py.plan.windows.panes import Pane, PaneHandler, PaneWindow, Submitted, TimeIntervalWindowOptions, handlers_of

if TYPE_CHECKING:
    from krishiv_py.api.stages.results import ResultStream


@instead({"get_window_data": "a timeInterval window has no storage of its own: read pane.data in a handler of .on_events(...)"})
@attrs.frozen(eq=False, repr=False)
class PaneStream(WindowedStream):
    """Rows in time-interval panes, ready for aggregates or for a handler of pane events (SEMANTICS §3.6).

    Results have the columns ``pane_timing`` (``early``, ``on_complete``, ``late``) and ``pane_index``.

    Examples
    --------
    >>> from krishiv_py import TimeIntervalWindowOptions, count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> panes = stream_of("at bigint").watermark("at", 0).time_interval_window(TimeIntervalWindowOptions("10 s"))
    >>> driver = Driver(panes.agg(count()))
    >>> driver.send([{"at": 1_000}, {"at": 12_000}]).results.to_pylist()
    [{'window_start': 0, 'window_end': 10000, 'count': 1, 'pane_timing': 'on_complete', 'pane_index': 0}]
    """

    def on_events(
        self,
        *handlers: PaneHandler,
        aggs: Sequence[Expr] = (),
        submits: pa.Schema | str | None = None,
        before_tuple_insertion: Callable[[Pane, dict[str, Any]], None] | None = None,
        after_tuple_insertion: Callable[[Pane, dict[str, Any]], None] | None = None,
        window_initial_full: Callable[[Pane], Submitted] | None = None,
        window_trigger: Callable[[Pane], Submitted] | None = None,
        window_close: Callable[[Pane], Submitted] | None = None,
    ) -> ResultStream:
        """Tell handlers every event of every pane, in SPL's order.

        Parameters
        ----------
        *handlers : PaneHandler
            Each gets the events; in a trigger with all tuples of the partition as an Arrow table. At an event they are called
            in this order, then the single function for it.
        aggs : sequence of Expr
            Aggregates, and what is computed of them, next to the tuples, as columns of the results.
        submits : pyarrow.Schema or str, optional
            The columns of tuples that handlers submit: what ``window_initial_full``, ``window_trigger`` and ``window_close``
            return, a dict or a list of dicts, are the results, instead of one row a trigger.
        before_tuple_insertion, after_tuple_insertion : callable, optional
            A single function for this event, of pane and row.
        window_initial_full, window_trigger, window_close : callable, optional
            A single function for this event, of the pane.

        Returns
        -------
        ResultStream
            One result per trigger, with the column ``tuples``: the partition's tuples as a list of structs, by event time,
            and those of `aggs`. With `submits` one result per submitted tuple: keys, ``window_start``, ``window_end``, its
            columns, ``pane_timing`` and ``pane_index`` (null but for triggers).

        Raises
        ------
        PlanError
            For no handler, for what is none, and for aggregates next to `submits`.

        Examples
        --------
        >>> from krishiv_py import TimeIntervalWindowOptions
        >>> from krishiv_py.testing import Driver, stream_of
        >>> panes = stream_of("at bigint").watermark("at", 0).time_interval_window(TimeIntervalWindowOptions(1.0))
        >>> sizes = panes.on_events(window_trigger=lambda pane: {"n": pane.data.num_rows}, submits="n bigint")
        >>> driver = Driver(sizes)
        >>> _ = driver.send([{"at": 10}, {"at": 20}])
        >>> driver.close().results.select(["window_start", "window_end", "n"]).to_pylist()
        [{'window_start': 0, 'window_end': 1000, 'n': 2}]
        """
        assert isinstance(self._window, PaneWindow)
        functions = {
            "before_tuple_insertion": before_tuple_insertion,
            "after_tuple_insertion": after_tuple_insertion,
            "window_initial_full": window_initial_full,
            "window_trigger": window_trigger,
            "window_close": window_close,
        }
        wanted = [] if isinstance(aggs, (tuple, list)) and not aggs else [aggs]
        schema = None if submits is None else as_schema(submits)
        if schema is not None and wanted:
            raise PlanError(
                "aggregates cannot be combined with submitted tuples",
                got=shown(aggs),
                hint="leave aggs out, or work them out of pane.data",
            )
        taken = {n.lower() for n in (*self._draft.keys, "window_start", "window_end", "pane_timing", "pane_index", "op")}
        clash = [n for n in (schema.names if schema is not None else ()) if n.lower() in taken]
        if clash:
            raise PlanError("a submitted column is named like another", got=clash[0], hint="name it otherwise")
        window = attrs.evolve(self._window, handler=handlers_of(handlers, functions), submits=schema)
        names = self._row_schema().names
        whole = Func("named_struct", tuple(e for name in names for e in (lit(name), col(name))))
        tuples = collect_list(whole).alias("tuples")
        draft = aggregated(self._draft.doing(window), self._row_schema(), [tuples, *wanted])
        return self._results(draft)


def checked_options(options: object) -> PaneWindow:
    """Return the window of SPL's options object."""
    if not isinstance(options, TimeIntervalWindowOptions):
        raise PlanError(
            "not TimeIntervalWindowOptions", got=shown(options), hint="pass TimeIntervalWindowOptions(interval_duration=10.0)"
        )
    return options._window()
