"""Conditions and measures of patterns as columns: over rows, over rows before them, and over rows of matches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.types import Ints, Mask, flags, last_rows, pick, run_begins, values_at
from krishiv_py.errors import RAISED
from krishiv_py.kernels.aggregates import AggKernel, Rows, kernel_for
from krishiv_py.kernels.columns.evaluate import argument, evaluate, expr_type
from krishiv_py.kernels.columns.layout import whole
from krishiv_py.kernels.patterns.search import NamedValue, Question
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.aggregates.selections import First
from krishiv_py.plan.expressions.expr import BinOp, Expr, columns_of
from krishiv_py.plan.expressions.udfs import Called
from krishiv_py.plan.matching import MatchExpr, MatchValue, is_positional

_WORTH, _ROWS_PER_QUESTION = 8, 1_000
"""All rows are computed at once after so many questions, and one more for so many rows."""
_MOST_AHEAD = 256
"""For so many conditions and distances this is done."""


class MatchRows:
    """Rows of matches, one match after the other.

    Parameters
    ----------
    rows : ndarray of int64
        The rows.
    steps : ndarray of int64
        The step of each.
    ids : ndarray of int64
        The match of each, ascending.
    n : int
        How many matches there are.
    """

    def __init__(self, rows: Ints, steps: Ints, ids: Ints, n: int) -> None:
        self.rows, self.steps, self.ids, self.n = rows, steps, ids, n

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], steps: Sequence[Sequence[int]]) -> MatchRows:
        """Return those of some matches."""
        counts = np.array([len(each) for each in rows], np.int64)
        flat = [np.fromiter((x for each in parts for x in each), np.int64, int(counts.sum())) for parts in (rows, steps)]
        return cls(flat[0], flat[1], np.repeat(np.arange(len(rows)), counts), len(rows))

    def of_step(self, step: int | None) -> MatchRows:
        """Return the rows of one step; all for None."""
        if step is None:
            return self
        mine = self.steps == step
        return MatchRows(self.rows[mine], self.steps[mine], self.ids[mine], self.n)

    def prefixes(self) -> MatchRows:
        """Return, as matches of their own, the rows of each match up to each of its rows."""
        begins = np.searchsorted(self.ids, np.arange(self.n))[self.ids]
        places, ids = expand(begins, np.arange(len(self.rows)) + 1)
        return MatchRows(self.rows[places], self.steps[places], ids, len(self.rows))

    def place(self, offset: int, *, first: bool) -> Ints:
        """Return of each match the row so many places from its first, or its last one; -1 where there is none."""
        begins = np.searchsorted(self.ids, np.arange(self.n + 1))
        low, high = begins[:-1], begins[1:]
        at = low + offset if first else high - 1 - offset
        there = (at < high) & (at >= low)
        return values_at(there, self.rows[at[there]], self.n, -1)


class Columns:
    """The rows of a step under the names that users know, and what is computed of them.

    Parameters
    ----------
    table : pyarrow.Table
        The rows, with the hidden columns of rows before them.
    times : ndarray of int64
        Their event times, µs.
    steps : dict of str to int
        The numbers of the steps.
    """

    def __init__(self, table: pa.Table, times: Ints, steps: dict[str, int]) -> None:
        self.table, self.times, self.steps = table, times, steps

    def holds(self, condition: MatchExpr | None) -> Mask:
        """Return the rows for which a condition is true that does not depend on a match."""
        if condition is None:
            return np.ones(self.table.num_rows, np.bool_)
        return _true(evaluate(condition.expr, _batch(self.table)))

    def may_hold(self, condition: MatchExpr | None) -> Mask:
        """Return the rows for which the part of a condition is true that does not depend on a match."""
        if condition is None or not condition.values:
            return self.holds(condition)
        named = {value.name for value in condition.values}
        holds = np.ones(self.table.num_rows, np.bool_)
        for part in _conjuncts(condition.expr):
            if not named & columns_of(part):
                holds &= self.holds(MatchExpr(part))
        return holds

    def answers(self, condition: MatchExpr, own: int | None, asked: Sequence[Question]) -> list[list[bool]]:
        """Return for the rows of each question whether the condition is true, which depends on the match so far."""
        lengths = [len(question.rows) for question in asked]
        rows = np.concatenate([np.arange(q.rows.start, q.rows.stop) for q in asked])
        columns = {}
        for value in condition.values:
            step = None if value.step is None else self.steps[value.step]
            mine = own is not None and step in (own, None)
            if is_positional(value.call):
                places = np.array([row for q in asked for row in _places(value.call, q, step, mine=mine)], np.int64)
                columns[value.name] = self._at(value.call, places)
            else:
                columns[value.name] = self._running(value.call, asked, step, mine=mine)
        holds = _true(self._evaluated(condition, rows, columns)).tolist()
        ends = np.cumsum(lengths).tolist()
        return [holds[end - length : end] for end, length in zip(ends, lengths, strict=True)]

    def measures(self, measure: MatchExpr, matches: MatchRows, ends: Ints) -> pa.Array:
        """Return a measure of each match; `ends` are their last rows."""
        return self._evaluated(measure, ends, {v.name: self._of_step(v, matches) for v in measure.values})

    def running_measures(self, measure: MatchExpr, matches: MatchRows) -> pa.Array:
        """Return a measure for each row of each match: of all rows, or of those up to it."""
        columns, prefixes = {}, None
        for value in measure.values:
            if not value.running:
                columns[value.name] = pick(self._of_step(value, matches), matches.ids)
            elif not is_positional(value.call) and (kernel := self._kernel(value.call)).exact_prefixes:
                step = None if value.step is None else self.steps[value.step]
                counts = np.flatnonzero(matches.steps == step) if step is not None else np.arange(len(matches.rows))
                each = MatchRows(matches.rows[counts], matches.steps[counts], counts, len(matches.rows))
                partials = self._partials(value.call, kernel, each)
                columns[value.name] = whole(kernel.finish(kernel.prefixes(partials, matches.ids)))
            else:
                prefixes = matches.prefixes() if prefixes is None else prefixes
                columns[value.name] = self._of_step(value, prefixes)
        return self._evaluated(measure, matches.rows, columns)

    def _of_step(self, value: MatchValue, matches: MatchRows) -> pa.Array:
        return self.value(value.call, matches.of_step(None if value.step is None else self.steps[value.step]))

    def value(self, call: AggCall, views: MatchRows) -> pa.Array:
        """Return what a call gives for the rows of each match."""
        if is_positional(call):
            first, offset = isinstance(call, First), getattr(call, "offset", 0)
            return self._at(call, views.place(offset, first=first))
        kernel = self._kernel(call)
        return whole(kernel.finish(self._partials(call, kernel, views)))

    def _running(self, call: AggCall, asked: Sequence[Question], step: int | None, *, mine: bool) -> pa.Array:
        """Return what a call gives for each row that is asked for, of the rows of the match up to it.

        Those of a run count one after the other, so each row adds to what the one before it came to. Any other row is added to
        what the rows of the match come to. So the cost is that of the rows of the match and of those that are asked for.
        """
        kernel = self._kernel(call)
        if not mine or not kernel.exact_prefixes:
            return self.value(call, _views(asked, step, mine=mine))
        known = [_rows_so_far(question, step) for question in asked]
        rows = np.concatenate([np.arange(question.rows.start, question.rows.stop) for question in asked])
        of = np.repeat(np.arange(len(asked)), [len(question.rows) for question in asked])
        runs = np.array([question.in_run for question in asked])[of]
        first = run_begins(of) | ~runs  # with these rows something begins that has the rows of the match before it
        views = MatchRows.of(known, known), MatchRows(rows, rows, np.arange(len(rows)), len(rows))
        parts = zip(*(self._partials(call, kernel, view) for view in views), strict=True)
        places = np.insert(np.arange(len(rows)) + len(asked), np.flatnonzero(first), of[first])
        stack = [pa.concat_arrays(pair).take(pa.array(places)) for pair in parts]
        groups = np.cumsum(first) - 1
        ids = np.insert(groups, np.flatnonzero(first), groups[first])
        results = whole(kernel.finish(kernel.prefixes(stack, ids)))
        return pick(results, np.flatnonzero(places >= len(asked)))

    def _partials(self, call: AggCall, kernel: AggKernel, views: MatchRows) -> list[pa.Array]:
        """Return the partials of a call for the rows of each match."""
        picked = None
        if (arg := call.where if call._counts_rows else call.arg) is not None:
            picked = argument(arg, call.where, _batch(pick(self.table, views.rows)))
        return [whole(part) for part in kernel.create(Rows(picked, self.times[views.rows], views.ids, views.n))]

    def _kernel(self, call: AggCall) -> AggKernel:
        return kernel_for(call, pa.bool_() if call._counts_rows else expr_type(call.arg, self.table.schema))

    def _at(self, call: AggCall, places: Ints) -> pa.Array:
        """Return the argument of a call in some rows, null where there is none."""
        there = np.flatnonzero(places >= 0)
        values = evaluate(call.arg, _batch(pick(self.table, places[there])))
        if len(there) == len(places):
            return values
        back = last_rows(there, len(places))
        return values.take(pa.array(back, mask=back < 0))

    def _evaluated(self, expr: MatchExpr, rows: Ints, columns: dict[str, pa.Array]) -> pa.Array:
        names = [name for name in sorted(columns_of(expr.expr)) if name not in columns]
        given: dict[str, Any] = {name: pick(whole(self.table[name]), rows) for name in names}
        every = given | columns
        if not every:
            every = {"": pa.nulls(len(rows))}
        return evaluate(expr.expr, pa.RecordBatch.from_arrays(list(every.values()), names=list(every)))


class AheadAnswers:
    """Conditions over rows of a match, for all rows at once; see :class:`~krishiv_py.kernels.patterns.search.Ahead`.

    ``last("down.price")`` is often the row before, whatever the match: then the condition compares a column with itself, moved.
    Rows of several keys are next to each other; what comes of these is never asked for. So a condition that raises is not
    computed in this way, nor is a user's function.
    """

    def __init__(self, columns: Columns, conditions: Sequence[MatchExpr | None]) -> None:
        self._columns, self._conditions, self._n = columns, conditions, columns.table.num_rows
        self._asked: dict[tuple[int, tuple[int, ...]], int] = {}
        self._answers: dict[tuple[int, tuple[int, ...]], bytes | None] = {}
        self._worth = _WORTH + self._n // _ROWS_PER_QUESTION

    def of(self, element: int, distances: tuple[int, ...]) -> bytes | None:
        """Return 1 or 0 for each row, once so often asked that it is worth the while; else None."""
        key = element, distances
        answers = self._answers.get(key, b"")
        if answers == b"":
            asked = self._asked[key] = self._asked.get(key, 0) + 1
            if asked <= self._worth or len(self._answers) >= _MOST_AHEAD:
                return None
            condition = self._conditions[element]
            assert condition is not None
            answers = self._answers[key] = self._computed(condition, distances)
        return answers

    def _computed(self, condition: MatchExpr, distances: tuple[int, ...]) -> bytes | None:
        columns, every = {}, np.arange(self._n)
        try:
            for value, distance in zip(condition.values, distances, strict=True):
                if is_positional(value.call):
                    places = every - distance if distance >= 0 else np.full(self._n, -1)
                    columns[value.name] = self._columns._at(value.call, np.maximum(places, -1))
                else:
                    columns[value.name] = pa.array(np.full(self._n, distance))
            return _true(self._columns._evaluated(condition, every, columns)).tobytes()
        except RAISED:  # of rows that belong to several keys
            return None


def named_values(condition: MatchExpr | None, steps: Mapping[str, int], own: int | None) -> tuple[NamedValue, ...] | None:
    """Return what a condition names of a match; None where that is more than single rows, and numbers of rows."""
    if condition is None or not condition.values or any(isinstance(node, Called) for node in _nodes(condition.expr)):
        return None
    named = []
    for value in condition.values:
        call, step = value.call, -1 if value.step is None else steps[value.step]
        mine = int(own is not None and step in (own, -1))
        offset = getattr(call, "offset", 0)
        if is_positional(call) and not any(isinstance(node, Called) for node in _nodes(call.arg)):
            named.append(NamedValue(step, offset if isinstance(call, First) else -1 - offset, counts=False, mine=mine))
        elif call._counts_rows and call.func == "count" and call.where is None:
            named.append(NamedValue(step, 0, counts=True, mine=mine))
        else:
            return None
    return tuple(named)


def _nodes(expr: Expr) -> Iterator[Expr]:
    yield expr
    for child in expr._children():
        yield from _nodes(child)


def _conjuncts(expr: Expr) -> Iterator[Expr]:
    """Yield the parts of which all are true where an expression is."""
    if isinstance(expr, BinOp) and expr.op == "and":
        yield from _conjuncts(expr.left)
        yield from _conjuncts(expr.right)
    else:
        yield expr


def _rows_so_far(question: Question, step: int | None) -> list[int]:
    if step is None:
        return question.taken
    return [row for row, of in zip(question.taken, question.steps, strict=True) if of == step]


def _places(call: AggCall, question: Question, step: int | None, *, mine: bool) -> Sequence[int]:
    """Return the row whose value a call gives, for each row that is asked for; -1 where there is none."""
    before, offset = _rows_so_far(question, step), getattr(call, "offset", 0)
    had, begin = len(before), question.rows.start
    if len(question.rows) == 1:
        at = offset if isinstance(call, First) else had + mine - 1 - offset
        if 0 <= at < had:
            return (before[at],)
        return (begin,) if mine and at == had else (-1,)
    number = np.arange(len(question.rows))
    own = (number + 1 if question.in_run else np.ones_like(number)) * mine
    ats = np.full(len(number), offset) if isinstance(call, First) else had + own - 1 - offset
    ats[ats >= had + own] = -1
    first = begin + (0 if question.in_run else number)
    known = np.array([*before, -1])
    places: list[int] = np.where(ats < 0, -1, np.where(ats < had, known[np.clip(ats, 0, had)], first + ats - had)).tolist()
    return places


def _views(asked: Sequence[Question], step: int | None, *, mine: bool) -> MatchRows:
    """Return the rows that count in each row that is asked for."""
    rows, counts = [], []
    for question in asked:
        known = np.array(_rows_so_far(question, step), np.int64)
        for place in range(len(question.rows)):
            first = 0 if question.in_run else place
            own = np.arange(question.rows.start + first, question.rows.start + place + 1) if mine else known[:0]
            rows += [known, own]
            counts.append(len(known) + len(own))
    every = np.concatenate(rows)
    return MatchRows(every, every, np.repeat(np.arange(len(counts)), counts), len(counts))


def _batch(table: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([whole(column) for column in table.columns], schema=table.schema)


def _true(values: pa.Array) -> Mask:
    return flags(values)


def measure_type(measure: MatchExpr, schema: pa.Schema) -> pa.DataType:
    """Return the type of a condition or a measure over rows of a `schema`."""
    fields = list(schema)
    for value in measure.values:
        call = value.call
        type_ = pa.bool_() if call._counts_rows else expr_type(call.arg, schema)
        fields.append(pa.field(value.name, type_ if is_positional(call) else kernel_for(call, type_).result_type))
    return expr_type(measure.expr, pa.schema(fields))
