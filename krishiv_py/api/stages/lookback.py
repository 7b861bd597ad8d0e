"""A keyed stream with look-back windows: aggregates per row, or the rows each row met."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pyarrow as pa

from krishiv_py.api.planning import evaluate
from krishiv_py.api.stages.windowed import WindowedStream
from krishiv_py.errors import PlanError
from krishiv_py.plan.aggregates.selections import collect_list
from krishiv_py.plan.checks import expression
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.expressions.structs import StructOf
from krishiv_py.plan.schema import require_columns
from krishiv_py.plan.windows.lookback import MATCHES, LookBackWindow, checked_condition, pair_fields

if TYPE_CHECKING:
    from krishiv_py.api.stages.results import ResultStream


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
            raise PlanError(
                f"{switches[0]} goes with aggregates only",
                got=window.describe(),
                then="matches and pairs tell whole rows, and a row never meets itself",
                hint=f"leave {switches[0]} out",
            )
        rows = collect_list(StructOf(tuple(self._row_schema().names))).alias(MATCHES)
        return self._results(self._draft.doing(attrs.evolve(window, aggs=(rows,))))
