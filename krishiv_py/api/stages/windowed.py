"""A keyed stream with its windows, ready for aggregates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa

from krishiv_py.api.options import OptionMethods
from krishiv_py.api.planning import evaluate
from krishiv_py.api.stages.order import ON_WINDOWED, RESULTS, instead, needs
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.aggregates.numbers import count
from krishiv_py.plan.aggregates.outputs import outputs
from krishiv_py.plan.aggregates.selections import Then, bottom_k, top_k, whole_since
from krishiv_py.plan.aggregates.user import Reduce, udaf
from krishiv_py.plan.checks import a_switch, column_name, is_collection
from krishiv_py.plan.draft import Draft
from krishiv_py.plan.expressions.expr import Expr, col
from krishiv_py.plan.expressions.facts import name_of
from krishiv_py.plan.schema import RESERVED
from krishiv_py.plan.windows import WindowOperation

if TYPE_CHECKING:
    from krishiv_py.api.stages.results import ResultStream


def _checked(item: object) -> Expr:
    if not isinstance(item, Expr):
        hint = 'pass calls such as count() or sum("x"), or expressions of them: (sum("x") / count()).alias("mean")'
        raise PlanError("not an aggregate", got=shown(item), hint=hint)
    return item


def aggregated(
    draft: Draft, rows: pa.Schema, aggs: Sequence[Expr | Sequence[Expr]], named: Mapping[str, Expr] | None = None
) -> Draft:
    """Return a draft with the columns `aggs`, varargs or one list, and the `named` ones, over the `rows` of its window."""
    items: list[Expr] = []
    for given in aggs:
        listed = given if not isinstance(given, Expr) and is_collection(given) else [given]
        items += map(_checked, listed)
    items += [_checked(item).alias(column_name(name, "agg")) for name, item in (named or {}).items()]
    if not items:
        raise PlanError("agg() got no aggregate", got="0 aggregates", hint="write .agg(count())")
    window = draft.operation
    assert isinstance(window, WindowOperation)
    calls, output = outputs(items, draft.keys, rows.names, window.carried(rows))
    return draft.doing(attrs.evolve(window, aggs=calls, result_columns=output))


@instead(ON_WINDOWED)
@needs(".agg(...)", *(r for r in RESULTS if r != "collect_with_aggs"))
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
        shown = [whole_since(0, "complete")] if completeness else []
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
        value = col(column) if isinstance(column, str) else column
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
