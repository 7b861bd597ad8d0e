"""Patterns over the rows of a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa

from krishiv_py.api.options import OptionMethods
from krishiv_py.api.planning import program, values
from krishiv_py.errors import ColumnError, ExpressionError, PlanError, shown, unknown_column
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.checks import a_number, a_text, is_collection, one_of
from krishiv_py.plan.durations import Duration, to_us
from krishiv_py.plan.expressions.expr import Expr, name_of, unnamed
from krishiv_py.plan.matching import (
    END,
    MATCHED,
    NUMBER,
    START,
    STEP,
    ExprReader,
    MatchExpr,
    Matching,
    RowsOf,
    Timeouts,
    skip_of,
)
from krishiv_py.plan.operation import passing
from krishiv_py.plan.patterns import AbsentStart, Pattern, absences_of, checked, steps_of
from krishiv_py.plan.previous import KNOWN, PreviousRows
from krishiv_py.plan.processing import AtEnd
from krishiv_py.plan.schema import check_key_type
from krishiv_py.types import condition_hint, type_text

if TYPE_CHECKING:
    from krishiv_py.api.stages.results import ResultStream

_MOST_CONDITIONS = 62


@attrs.frozen(eq=False, repr=False)
class MatchMethods(OptionMethods):
    """A stage whose rows can be searched for a pattern."""

    def match(
        self,
        pattern: Pattern | AbsentStart,
        *,
        measures: Expr | Sequence[Expr] = (),
        within: Duration | None = None,
        skip: str = "past_last",
        rows: RowsOf = "one",
        order_by: str | Sequence[str] = (),
        timeouts: Timeouts = "count",
        at_end: AtEnd = "fire",
        max_rows_per_key: int = 100_000,
    ) -> ResultStream:
        """Find a pattern in the rows of each key, in order of event time (SEMANTICS §15).

        Rows are settled when no accepted row before them can come; only these are searched. So matches are final, and the same
        however rows came in batches, over restarts, on every engine. The first start is tried first, and of its matches the
        preferred one is given: alternatives from left to right, greedy repetitions with more rows first.

        Parameters
        ----------
        pattern : Pattern
            What to find: :func:`~krishiv_py.step` and what follows it.
        measures : Expr or sequence of Expr
            What results say of a match, each with a name: ``first("placed.amount").alias("amount")``, ``count("small")``,
            ``avg("small.amount")``. A column by itself is that of the last row.
        within : int or timedelta or str, optional
            How long a match may take: its rows lie in ``[t, t + within)`` of the first; ``int`` is milliseconds. Without it a
            key waits for the rest of a match for ever.
        skip : str
            Where the search goes on after a match: ``"past_last"``, behind its last row, ``"next_row"``, behind its first one,
            :func:`to_first` or :func:`to_last` of a step.
        rows : {"one", "all"}
            Give a row for each match, or each of its rows with the name of its step and the number of the match.
        order_by : str or sequence of str
            Columns that order rows of equal time, ascending, nulls last; then rows go by arrival.
        timeouts : {"count", "side_output"}
            With ``"side_output"`` the rows of a start go to the late output when its time is over, with the reason
            ``no_match``: those that were matched when `within` had passed.
        at_end : {"fire", "seen"}
            When the input ends, absence counts for all times, or only up to the largest event time.
        max_rows_per_key : int
            How many rows a start may look at before it is given up; it goes to the late output as ``pattern_limit``.

        Returns
        -------
        ResultStream
            The key, ``match_start`` and ``match_end``, the times of the first and the last row, or the deadline of an absence
            at the end, ``matched_at``, the event time at which the match was decided, and the measures. With ``rows="all"``
            the columns of rows, ``step``, ``match_number`` from 1 on for each key, ``matched_at`` and the measures.

        Raises
        ------
        PlanError
            For what is no pattern, and one that can match no row.
        ColumnError
            For columns and steps that do not exist, and names that results have anyway.
        ExpressionError
            For conditions that are none.

        Examples
        --------
        >>> from krishiv_py import col, first, step
        >>> from krishiv_py.testing import Driver, stream_of
        >>> orders = stream_of("order string, kind string, at bigint").watermark("at", "30 s").key_by("order")
        >>> placed, paid = (step(kind, col("kind") == kind) for kind in ("placed", "paid"))
        >>> unpaid = orders.match(placed.without(paid, within="15 min"), measures=first("placed.kind").alias("kind"))
        >>> driver = Driver(unpaid)
        >>> _ = driver.send([{"order": "a", "kind": "placed", "at": 0}])
        >>> driver.send([{"order": "b", "kind": "placed", "at": 930_000}]).results.to_pylist()
        [{'order': 'a', 'match_start': 0, 'match_end': 900000, 'matched_at': 900000, 'kind': 'placed'}]
        """
        within_us = None if within is None else to_us(within, "within")
        chain = checked(pattern, within_us)
        one_of(rows, "rows", ("one", "all"))
        one_of(timeouts, "timeouts", ("count", "side_output"))
        one_of(at_end, "at_end", ("fire", "seen"))
        if timeouts == "side_output" and within_us is None:
            hint = 'write within="1 h", or leave timeouts out'
            raise PlanError("without a length of time no start times out", got='timeouts="side_output"', hint=hint)
        most = a_number(max_rows_per_key, "max_rows_per_key", 1, "write max_rows_per_key=100_000")
        schema = pa.schema(passing(self._row_schema()))
        names = [one.name for one in steps_of(chain)]
        if doubled := [name for name in names if name in schema.names]:
            hint = f'give the step another name: step("{doubled[0]}_row", ...)'
            raise ColumnError("a step is called like a column", got=shown(doubled[0]), hint=hint)
        order = _ordering(order_by, schema, "match")
        reader = ExprReader(dict.fromkeys(names), schema.names)
        conditions = {
            one.name: None if one.condition is None else reader.condition(one.condition, f"step {one.name}", one.name)
            for one in steps_of(chain)
        }
        absences = tuple(reader.condition(one, "an absence", None) for one in absences_of(chain))
        if len(conditions) + len(absences) > _MOST_CONDITIONS:
            got = f"{len(conditions) + len(absences)} conditions"
            raise PlanError(f"a pattern has up to {_MOST_CONDITIONS} conditions", got=got, hint="use fewer steps")
        given = list(measures) if is_collection(measures) and not isinstance(measures, Expr) else [measures]
        read = [(_name(one), reader.measure(unnamed(one))) for one in map(_expression, given)]
        before = [pa.field(name, values.measure_type(MatchExpr(node.arg), schema)) for name, node in reader.before]
        known = pa.schema([*schema, *before])
        for name, condition in (*conditions.items(), *(("an absence", one) for one in absences)):
            if condition is not None and not pa.types.is_boolean(type_ := values.measure_type(condition, known)):
                hint = condition_hint(repr(condition.expr), type_)
                raise ExpressionError(f"the condition of {name} is none", got=type_text(type_), hint=hint)
        fields = pa.schema([pa.field(name, values.measure_type(one, known)) for name, one in read])
        self._check_names(fields.names, rows, schema.names)
        operation = Matching(
            chain,
            tuple(conditions.items()),
            absences,
            tuple(reader.before),
            tuple(read),
            fields,
            within_us,
            skip_of(skip, conditions),
            rows,
            timeouts,
            at_end,
            most,
            order,
            self._draft.input.column,
        )
        program.compiled(operation)
        return self._results(self._draft.doing(operation))

    def with_previous(self, *, order_by: str | Sequence[str] = (), **columns: Expr) -> ResultStream:
        """Add columns of the rows of the same key before and after each row, in order of event time: ``LAG``, ``LEAD`` of SQL.

        A row is given once it is settled: when no accepted row before it can come. So its columns are final, and the same
        however rows came in batches. State holds the last values of each key. With :func:`~krishiv_py.next` a row waits until
        the row that it looks at is settled, or the input has ended; then results have the time of that row, which is their
        event time, in a column ``known_at``: at the end of input the largest event time.

        Parameters
        ----------
        order_by : str or sequence of str
            Columns that order rows of equal time, ascending, nulls last; then rows go by arrival.
        columns : Expr
            The new columns: :func:`~krishiv_py.prev` and :func:`~krishiv_py.next`, and what is computed of them and of the
            columns of the row.

        Returns
        -------
        ResultStream
            The rows with the new columns, and with their own event time, or that of the row for which they have waited.

        Raises
        ------
        ColumnError
            For columns that do not exist, and a name that the rows have.
        PlanError
            Without any column, and for what is no expression.

        Examples
        --------
        >>> from krishiv_py import col, prev
        >>> from krishiv_py.testing import Driver, stream_of
        >>> prices = stream_of("symbol string, price bigint, at bigint").watermark("at", 0).key_by("symbol")
        >>> driver = Driver(prices.with_previous(before=prev("price"), rise=col("price") - prev("price")))
        >>> _ = driver.send([{"symbol": "s", "price": 5, "at": 1}])
        >>> driver.send([{"symbol": "s", "price": 7, "at": 2}]).results.to_pylist()
        [{'symbol': 's', 'price': 5, 'at': 1, 'before': None, 'rise': None}]
        >>> driver.close().results.to_pylist()
        [{'symbol': 's', 'price': 7, 'at': 2, 'before': 5, 'rise': 2}]
        """
        schema = pa.schema(passing(self._row_schema()))
        reader = ExprReader((), schema.names)
        if not columns:
            raise PlanError("with_previous adds no column", got="no name", hint='write .with_previous(before=prev("price"))')
        made = []
        for name, given in columns.items():
            if name.lower() in (known.lower() for known in schema.names):
                raise ColumnError("a row has a column of this name", got=shown(name), hint="give the new column another name")
            if not isinstance(given, Expr):
                hint = f'write .with_previous({name}=prev("price"))'
                raise PlanError("a new column is an expression", got=shown(given), hint=hint)
            read = reader.condition(unnamed(given), f"with_previous: {name}", None)
            if read.values:
                hint = "aggregate in a window, or name the rows of a pattern with .match(...)"
                raise ExpressionError(f"with_previous: {name} is an aggregate of many rows", got=repr(given), hint=hint)
            made.append((name, read.expr))
        before = [pa.field(name, values.measure_type(MatchExpr(node.arg), schema)) for name, node in reader.before]
        known = pa.schema([*schema, *before])
        fields = pa.schema([pa.field(name, values.measure_type(MatchExpr(expr), known)) for name, expr in made])
        order, time = _ordering(order_by, schema, "with_previous"), self._draft.input.column
        if KNOWN in (*schema.names, *columns) and any(node.rows < 0 for _, node in reader.before):
            hint = f'give it another name: .rename({KNOWN}="known")' if KNOWN in schema.names else "give it another name"
            raise ColumnError("a column is called like the event time of rows that wait", got=shown(KNOWN), hint=hint)
        return self._results(self._draft.doing(PreviousRows(time, tuple(made), tuple(reader.before), fields, order)))

    def _check_names(self, measures: Sequence[str], rows: RowsOf, columns: Sequence[str]) -> None:
        own = [*self._draft.keys, START, END, MATCHED] if rows == "one" else [*columns, STEP, NUMBER, MATCHED]
        taken: set[str] = set()
        for name in [*own, *measures]:
            if name.lower() in taken:
                hint = f'write .alias("{name}_2")' if name in measures else f'rename the column before: .rename({name}="other")'
                raise ColumnError("two columns of the result have one name", got=shown(name), hint=hint)
            taken.add(name.lower())


def _expression(measure: object) -> Expr:
    if not isinstance(measure, Expr):
        hint = 'write measures=[first("a.price").alias("price")]'
        raise PlanError("a measure is an expression with a name", got=shown(measure), hint=hint)
    return measure


def _name(measure: Expr) -> str:
    return measure.output_name if isinstance(measure, AggCall) else name_of(measure)


def _ordering(order_by: str | Sequence[str], schema: pa.Schema, where: str) -> tuple[str, ...]:
    """Return the columns that order rows of equal time."""
    names = [order_by] if isinstance(order_by, str) or not is_collection(order_by) else list(order_by)
    for name in names:
        if a_text(name, "order_by", 'write order_by="id", or several columns') not in schema.names:
            raise unknown_column(name, schema.names, f"{where}(order_by=)")
        check_key_type(name, schema.field(name).type, meant="ordered")
    return tuple(names)
