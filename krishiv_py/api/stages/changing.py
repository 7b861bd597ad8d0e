"""Results that are tables: aggregates without a window (SEMANTICS §16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa

from krishiv_py.api.computed import Named
from krishiv_py.api.options import OptionMethods
from krishiv_py.api.planning import evaluate
from krishiv_py.api.stages.windowed import aggregated
from krishiv_py.errors import ExpressionError, PlanError, shown
from krishiv_py.lazy import lazy
from krishiv_py.plan.changes import CHANGE, Changelog, RunningAggregation, sequence_name
from krishiv_py.plan.checks import expression, is_collection, known_column
from krishiv_py.plan.expressions.expr import Expr, col, python_text
from krishiv_py.plan.nodes import Project, StageDraft, Watermark
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.plan.schema import checked, require_columns
from krishiv_py.types import type_text

if TYPE_CHECKING:
    from krishiv_py.api.stages import results
    from krishiv_py.api.stages.results import ResultStream
    from krishiv_py.api.stages.stream import Stream
else:
    results = lazy("krishiv_py.api.stages.results")


@attrs.frozen(eq=False, repr=False)
class TableMethods(OptionMethods):
    """A stage whose rows can be aggregated without a window."""

    def agg(self, *aggs: Expr | Sequence[Expr], **named: Expr) -> ResultStream:
        """Aggregate all rows of each key so far, without a window (SEMANTICS §16.5).

        Results are a table with a row for each key. They change in the batch that brings a row of the key: the row of before is
        withdrawn, and the new one given. Sinks with a key hold the table. No watermark is needed, and no row is late. Without
        keys there is one row.

        Parameters
        ----------
        *aggs : Expr or sequence of Expr
            Aggregates, and what is computed of them and of keys, as in :meth:`WindowedStream.agg`.
        **named : Expr
            More by the names of their columns: ``total=sum("amount")``.

        Returns
        -------
        ResultStream
            The keys, the aggregates, and ``op``: ``+I`` for a new row, ``-U`` and ``+U`` for one that changes.

        Raises
        ------
        PlanError
            For no aggregates, unknown columns, values an aggregate cannot take, names that clash, and options of windows.
        ColumnError
            For a column that is neither a key nor a part of an aggregate.

        Examples
        --------
        >>> from krishiv_py import count, sum
        >>> from krishiv_py.testing import Driver, stream_of
        >>> totals = stream_of("user string, amount bigint").key_by("user").agg(count(), total=sum("amount"))
        >>> driver = Driver(totals)
        >>> driver.send([{"user": "ann", "amount": 5}, {"user": "bob", "amount": 1}]).results.to_pylist()[0]
        {'user': 'ann', 'count': 1, 'total': 5, 'op': '+I'}
        >>> [(row["op"], row["total"]) for row in driver.send([{"user": "ann", "amount": 2}]).results.to_pylist()]
        [('-U', 5), ('+U', 7)]
        """
        draft = self._draft.doing(RunningAggregation())
        return self._results(aggregated(draft, self._row_schema(), aggs, named))


def table_of(
    rows: Stream,
    columns: Sequence[Named],
    change: Expr,
    keys: tuple[str, ...],
    operation: Changelog,
    sequence: Sequence[Expr],
) -> ResultStream:
    """Return the table that changes by `keys` make: `columns` of `rows`, `change` says what happens to the row of a key."""
    ordered = [(sequence_name(number), expr) for number, expr in enumerate(sequence)]
    checked(pa.schema([pa.field(name, evaluate.expr_type(expr, rows.schema)) for name, expr in columns]))
    node = Project(rows._node, (*columns, (CHANGE, change), *ordered))
    draft = StageDraft(Watermark(node, "", WatermarkSpec(0)), rows.late_handler, keys)
    operation = attrs.evolve(operation, ordered_by=tuple(map(python_text, sequence)))
    return results.results_of(draft.doing(operation), rows._runner)


def orders_of(items: object, rows: pa.Schema, where: str) -> tuple[Expr, ...]:
    """Return expressions over `rows` whose values have an order, one or several.

    Raises
    ------
    ColumnError
        For columns that do not exist.
    ExpressionError
        For values without an order.
    """
    given = () if items is None else tuple(items) if is_collection(items) else (items,)
    exprs = tuple(col(item) if isinstance(item, str) and item in rows.names else expression(item, where) for item in given)
    for expr in exprs:
        require_columns(expr, rows, where)
        type_ = evaluate.expr_type(expr, rows)
        if pa.types.is_nested(type_) or pa.types.is_null(type_):
            hint = "name a number, a text or a time, such as a log position"
            raise ExpressionError(f"{where}: values without an order", got=f"{expr!r} of type {type_text(type_)}", hint=hint)
    return exprs


def key_columns(key: object, names: Sequence[str] | None, where: str) -> tuple[str, ...]:
    """Return the columns of a key, of those with these `names`, where they are known."""
    given = (key,) if isinstance(key, str) else tuple(key) if is_collection(key) else ()
    if not given:
        raise PlanError(f"{where} needs the columns of the key", got=f"key={shown(key)}", hint='write key="id", or a list of columns')
    return tuple(given if names is None else (known_column(name, names, f"{where}(key)") for name in given))
