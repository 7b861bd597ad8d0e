"""A keyed stream with its windows, ready for aggregates; also with look-back windows, and with SPL's panes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from krishiv_py.api.options import OptionMethods
from krishiv_py.api.planning import evaluate
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.aggregates.numbers import count
from krishiv_py.plan.aggregates.outputs import BOUNDS, outputs
from krishiv_py.plan.aggregates.selections import COMPLETE, Then, bottom_k, collect_list, top_k, whole_since
from krishiv_py.plan.aggregates.user import Reduce, udaf
from krishiv_py.plan.changes import RunningAggregation
from krishiv_py.plan.checks import a_switch, column_name, expression, is_collection
from krishiv_py.plan.expressions.expr import Expr, Func, StructOf, col, lit, name_of
from krishiv_py.plan.nodes import StageDraft
from krishiv_py.plan.options.late import OnError
from krishiv_py.plan.schema import RESERVED, as_schema, require_columns
from krishiv_py.plan.windows import WindowOperation
from krishiv_py.plan.windows.lookback import MATCHES, LookBackWindow, checked_condition, pair_fields
from krishiv_py.plan.windows.panes import Pane, PaneHandler, PaneWindow, Submitted, TimeIntervalWindowOptions, handlers_of

if TYPE_CHECKING:
    from krishiv_py.api.stages.results import ResultStream


def _checked(item: object) -> Expr:
    if not isinstance(item, Expr):
        hint = 'pass calls such as count() or sum("x"), or expressions of them: (sum("x") / count()).alias("mean")'
        raise PlanError("not an aggregate", got=shown(item), hint=hint)
    return item


def aggregated(
    draft: StageDraft, rows: pa.Schema, aggs: Sequence[Expr | Sequence[Expr]], named: Mapping[str, Expr] | None = None
) -> StageDraft:
    """Return a draft with the columns `aggs`, varargs or one list, and the `named` ones, over the `rows` of its window."""
    items: list[Expr] = []
    for given in aggs:
        listed = given if not isinstance(given, Expr) and is_collection(given) else [given]
        items += map(_checked, listed)
    items += [_checked(item).alias(column_name(name, "agg")) for name, item in (named or {}).items()]
    if not items:
        raise PlanError("agg() got no aggregate", got="0 aggregates", hint="write .agg(count())")
    operation = draft.operation
    assert isinstance(operation, (WindowOperation, RunningAggregation))
    bounds = BOUNDS if operation.nature.opens_windows else ()
    calls, output = outputs(items, draft.keys, rows.names, operation.carried(rows), bounds)
    return draft.doing(attrs.evolve(operation, aggs=calls, result_columns=output))


@attrs.frozen(eq=False, repr=False)
class WindowedStream(OptionMethods):
    """Rows grouped by key and window.

    Examples
    --------
    >>> from krishiv_py import count, max
    >>> from krishiv_py.testing import Driver, stream_of
    >>> rows = stream_of("user string, n bigint, at bigint").watermark("at", 0)
    >>> minutes = rows.key_by("user").tumbling_window("1 min")
    >>> driver = Driver(minutes.agg(count(), max("n")))
    >>> _ = driver.send([{"user": "ann", "n": 3, "at": 1_000}, {"user": "ann", "n": 8, "at": 2_000}])
    >>> driver.close().results.to_pylist()
    [{'user': 'ann', 'window_start': 0, 'window_end': 60000, 'count': 2, 'max_n': 8}]
    """

    _kind = "windowed"

    def __attrs_post_init__(self) -> None:
        self._window.settled(
            self._draft.explicit
        )  # what contradicts it is refused at the call; a preset may still be outweighed

    @property
    def _window(self) -> WindowOperation:
        """The window as it was given."""
        assert isinstance(self._draft.operation, WindowOperation)
        return self._draft.operation

    def agg(self, *aggs: Expr | Sequence[Expr], completeness: bool = False, **named: Expr) -> ResultStream:
        """Aggregate every window.

        Parameters
        ----------
        *aggs : Expr or sequence of Expr
            Aggregates, and what is computed of them, of keys and of the bounds of the window (``window_start`` and
            ``window_end``); varargs or one list. A column has the name of its alias, else a name such as ``sum_x``; what is
            computed has its text as its name.
        completeness : bool
            Add the column ``complete``: false where an aggregate is null because it came to the plan after rows of the window
            (SEMANTICS §12.2).
        **named : Expr
            More by the names of their columns: ``total=sum("amount")``.

        Raises
        ------
        PlanError
            For no aggregates, unknown columns, values an aggregate cannot take, or names that clash.
        ColumnError
            For a column that is neither a key nor a part of an aggregate.

        Examples
        --------
        >>> from krishiv_py import avg, count, sum, when
        >>> from krishiv_py.testing import Driver, stream_of
        >>> windows = stream_of("user string, n bigint, at bigint").watermark("at", 0).key_by("user").tumbling_window(10)
        >>> size = when(count() > 1, "many").otherwise("one")
        >>> means = windows.agg(avg("n").round(1).alias("mean"), total=sum("n"), size=size)
        >>> driver = Driver(means.select("user", "mean", "total", "size"))
        >>> _ = driver.send([{"user": user, "n": n, "at": 1} for user, n in [("a", 1), ("a", 2), ("b", 4), ("a", 2)]])
        >>> driver.close().results.to_pylist()
        [{'user': 'a', 'mean': 1.7, 'total': 5, 'size': 'many'}, {'user': 'b', 'mean': 4.0, 'total': 4, 'size': 'one'}]
        """
        a_switch(completeness, "completeness")
        shown = [whole_since(0, COMPLETE)] if completeness else []
        return self._results(aggregated(self._draft, self._row_schema(), [*aggs, *shown], named))

    def top_rows(
        self, k: int, by: Expr | str, *columns: Expr | str, rank: str = "rank", smallest: bool = False, then: Then = ()
    ) -> ResultStream:
        """Give the first rows of every window as rows of their own, each with its rank (SEMANTICS §5.6).

        Parameters
        ----------
        k : int
            How many rows of a key and window at most, 1 to 10 000.
        by : Expr or str
            What ranks rows, the largest first. Nulls come last, NaN is above all numbers; equal rows go by event time, then by
            arrival.
        *columns : Expr or str
            More columns of the row to keep in the result, after keys, bounds and `by`; all columns if none is named.
        rank : str
            The column with the rank, ``int64``, from 1 on; it is the last one.
        smallest : bool
            Whether the smallest `by` comes first; nulls still come last.
        then : sequence of (Expr or str, {"smallest", "largest"}), optional
            What ranks rows whose `by` is equal, as in :func:`~krishiv_py.top_k`; columns of results after `by`.

        Raises
        ------
        PlanError
            For a `k` out of range.
        ExpressionError, SchemaError
            For columns of one name, and values that have no order.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> bids = stream_of("item string, at bigint, bid bigint").watermark("at", 0)
        >>> best = bids.tumbling_window("1 min").top_rows(2, "bid", "item")
        >>> driver = Driver(best)
        >>> _ = driver.send([{"item": item, "at": at, "bid": bid} for item, at, bid in [("a", 1, 5), ("b", 2, 9), ("c", 3, 7)]])
        >>> [(row["rank"], row["item"], row["bid"]) for row in driver.close().results.to_pylist()]
        [(1, 'b', 9), (2, 'c', 7)]
        """
        ranked = bottom_k if a_switch(smallest, "smallest") else top_k
        call = ranked(k, by, *columns, then=then)
        if not columns:
            given = {name_of(by) if isinstance(by, Expr) else by, *(name_of(c) if isinstance(c, Expr) else c for c, _ in then)}
            taken = {n.lower() for n in (*self._draft.keys, *given, "window_start", "window_end", "window_time", rank)}
            names = self._row_schema().names
            call = ranked(k, by, *(n for n in names if n.lower() not in taken and not n.startswith(RESERVED)), then=then)
        name = f"{RESERVED}ranked"
        return self.agg(call.alias(name)).unnest(name, rank=rank)

    def count(self) -> ResultStream:
        """Count the rows of every window, as ``.agg(count())`` does (KIP-450).

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> counts = stream_of("at bigint").watermark("at", 0).tumbling_window(10).count()
        >>> Driver(counts).send([{"at": 1}, {"at": 2}, {"at": 12}]).results.to_pylist()
        [{'window_start': 0, 'window_end': 10, 'count': 2}]
        """
        return self.agg(count())

    def reduce(self, column: Expr | str, function: Callable[[Any, Any], Any]) -> ResultStream:
        """Combine the values of every window two by two (KIP-450).

        Parameters
        ----------
        column : Expr or str
            What is combined; nulls are skipped.
        function : callable
            Of two values, the earlier one first (see :meth:`krishiv_py.Aggregator.merge`); it has to be associative. It is
            pickled to the workers, and slow as all Python is: ``sum``, ``max`` and the like are much faster.

        Returns
        -------
        ResultStream
            Results have a column ``reduce_`` and the name of the column, of its type; null where all values are.

        Raises
        ------
        PlanError
            For a value that is not a function.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> words = stream_of("at bigint, word string").watermark("at", 0).tumbling_window(10)
        >>> joined = words.reduce("word", lambda a, b: a + b)
        >>> driver = Driver(joined)
        >>> _ = driver.send([{"at": 1, "word": "ab"}, {"at": 2, "word": "c"}])
        >>> driver.close().results.to_pylist()
        [{'window_start': 0, 'window_end': 10, 'reduce_word': 'abc'}]
        """
        value = col(column) if isinstance(column, str) else expression(column, "reduce")
        return self.agg(udaf(Reduce(function), value, evaluate.expr_type(value, self._row_schema())))

    def collect_with_aggs(self, aggs: Sequence[Expr]) -> pa.Table:
        """``.agg(aggs).collect()``: aggregate every window by `aggs`, at least one, over a finite input.

        Examples
        --------
        >>> from krishiv_py import Session, sum
        >>> with Session.in_process() as session:
        ...     stream, sender = session.memory_stream("n bigint, at bigint")
        ...     _ = sender.send([{"n": 4, "at": 1}, {"n": 5, "at": 12}])
        ...     sender.close()
        ...     stream.watermark("at", 0).tumbling_window(10).collect_with_aggs([sum("n")]).to_pylist()
        [{'window_start': 0, 'window_end': 10, 'sum_n': 4}, {'window_start': 10, 'window_end': 20, 'sum_n': 5}]
        """
        return self.agg(aggs).collect()


@attrs.frozen(eq=False, repr=False)
class LookBackStream(WindowedStream):
    """Rows grouped by key, each with the rows in its look-back window (SEMANTICS §3.4).

    Examples
    --------
    >>> from krishiv_py import count, sum
    >>> from krishiv_py.testing import Driver, stream_of
    >>> last_minute = stream_of("amount bigint, at bigint").watermark("at", "5 min").lookback_window("1 min")
    >>> driver = Driver(last_minute.agg(count(), sum("amount")))
    >>> _ = driver.send([{"amount": 5, "at": 0}, {"amount": 7, "at": 40_000}, {"amount": 1, "at": 90_000}])
    >>> [(row["count"], row["sum_amount"]) for row in driver.close().results.to_pylist()]
    [(1, 5), (2, 12), (2, 8)]
    """

    def matches(self) -> ResultStream:
        """List, for every row, the other rows of its key in its window.

        Returns
        -------
        ResultStream
            Results have the key columns, ``window_start`` and ``window_end``, ``row`` (the row itself, a struct of all its
            columns) and ``matches`` (a list of such structs in order of time; ties in order of arrival). Rows of equal time
            see each other. Look-back windows list earlier rows only; ``two_sided=True`` lists both sides.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> met = stream_of("id bigint, at bigint").watermark("at", 0).lookback_window("30 s").matches()
        >>> result = Driver(met).send([{"id": 1, "at": 0}, {"id": 2, "at": 20_000}, {"id": 3, "at": 40_000}]).results
        >>> [(r["row"]["id"], [m["id"] for m in r["matches"]]) for r in result.to_pylist()]
        [(1, []), (2, [1])]
        """
        return self._rows(attrs.evolve(self._look_back, output="matches"))

    def pairs(self, condition: Expr | str | None = None) -> ResultStream:
        """List every two rows of a key that are within the window size of each other, once.

        A pair is emitted when the watermark has passed its later row (and the allowed lateness, with ``emit("final")``). With
        ``emit("updates")`` a mildly late row adds pairs at once. Pairs are never retracted.

        Parameters
        ----------
        condition : Expr or str, optional
            Keep only pairs for which this is true, over the columns ``left_*`` of the earlier row (of two rows of equal
            time: the one that came first) and ``right_*`` of the later one.

        Returns
        -------
        ResultStream
            Results have the columns of both rows, ``left_*`` and ``right_*``.

        Examples
        --------
        >>> from krishiv_py.testing import Driver, stream_of
        >>> close = (stream_of("id bigint, at bigint").watermark("at", 0).lookback_window("30 s")
        ...          .pairs("left_id <> right_id"))
        >>> rows = [{"id": 1, "at": 0}, {"id": 1, "at": 10_000}, {"id": 2, "at": 20_000}, {"id": 3, "at": 60_000}]
        >>> [(p["left_id"], p["left_at"], p["right_id"]) for p in Driver(close).send(rows).results.to_pylist()]
        [(1, 0, 2), (1, 10000, 2)]
        """
        expr = None if condition is None else expression(condition, "pairs")
        if expr is not None:
            both = pa.schema(pair_fields(self._row_schema()))
            require_columns(expr, both, "pairs")
            expr = checked_condition(evaluate.expr_type(expr, both), expr)
        return self._rows(attrs.evolve(self._look_back, output="pairs", condition=expr))

    @property
    def _look_back(self) -> LookBackWindow:
        assert isinstance(self._window, LookBackWindow)
        return self._window

    def _rows(self, window: LookBackWindow) -> ResultStream:
        """Return a plan over whole rows; they travel as one aggregate input."""
        switches = [name for name in ("with_row", "exclude_self") if getattr(window, name)]
        if switches:
            then = "matches and pairs tell whole rows, and a row never meets itself"
            hint = f"leave {switches[0]} out"
            raise PlanError(f"{switches[0]} goes with aggregates only", got=window.describe(), then=then, hint=hint)
        rows = collect_list(StructOf(tuple(self._row_schema().names))).alias(MATCHES)
        return self._results(self._draft.doing(attrs.evolve(window, aggs=(rows,))))


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

    _kind = "panes"

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
        on_error: OnError = "fail",
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
        on_error : {"fail", "side_output"}
            What becomes of an event for which a handler raises: it stops the query (default), or its tuples go to the late
            output, with the text of the exception as their reason, and are counted by the name of the handler. These are the
            tuple of an insertion, else those of ``pane.data``. They stay in their pane, and the next event goes on; what the
            handler would have submitted is not there.

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
            hint = "leave aggs out, or work them out of pane.data"
            raise PlanError("aggregates cannot be combined with submitted tuples", got=shown(aggs), hint=hint)
        taken = {n.lower() for n in (*self._draft.keys, "window_start", "window_end", "pane_timing", "pane_index", "op")}
        clash = [n for n in (schema.names if schema is not None else ()) if n.lower() in taken]
        if clash:
            raise PlanError("a submitted column is named like another", got=clash[0], hint="name it otherwise")
        window = attrs.evolve(self._window, handler=handlers_of(handlers, functions, on_error), submits=schema)
        names = self._row_schema().names
        whole = Func("named_struct", tuple(e for name in names for e in (lit(name), col(name))))
        tuples = collect_list(whole).alias("tuples")
        draft = aggregated(self._draft.doing(window), self._row_schema(), [tuples, *wanted])
        return self._results(draft)


def checked_options(options: object) -> PaneWindow:
    """Return the window of SPL's options object."""
    if not isinstance(options, TimeIntervalWindowOptions):
        hint = "pass TimeIntervalWindowOptions(interval_duration=10.0)"
        raise PlanError("not TimeIntervalWindowOptions", got=shown(options), hint=hint)
    return options._window()
