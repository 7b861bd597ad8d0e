"""Functions that take a function of elements: it is computed over all elements at once, beside the columns of their rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.errors import ExpressionError, OperatorError, message
from krishiv_py.functions.computing.comparing import by_place, compared_order
from krishiv_py.functions.computing.lists import Lists, sorted_list, truths
from krishiv_py.functions.computing.maps import Maps
from krishiv_py.functions.computing.values import FaultError, Value, is_integer, repeated
from krishiv_py.plan.expressions.expr import Col, Expr, Func
from krishiv_py.plan.expressions.lambdas import Lambda, LambdaVar
from krishiv_py.plan.expressions.trees import walk

Rows: TypeAlias = "pa.RecordBatch | pa.Table"
ValueOf: TypeAlias = Callable[[Expr, Rows], Value]
_COLUMN: Final = "__krishiv_element_"


def variable(expr: LambdaVar, batch: Rows) -> pa.Array:
    """The values of a parameter, for the elements that are looked at."""
    at = batch.schema.get_field_index(f"{_COLUMN}{expr.name}")
    if at < 0:
        raise ExpressionError(
            message(
                f"{expr.name!r} is the parameter of a function of elements",
                "used outside of it",
                "it stands for no element there",
                "use it in the function only",
            )
        )
    column = batch.column(at)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


@attrs.frozen(eq=False)
class _Run:
    """A function that is computed: over which rows, and by what."""

    batch: Rows
    value_of: ValueOf

    def lists(self, expr: Expr) -> Lists:
        """The lists of an argument, one a row."""
        return Lists.of(self.column(expr))

    def column(self, expr: Expr) -> pa.Array:
        """An argument, one value a row."""
        value = self.value_of(expr, self.batch)
        return repeated(value, self.batch.num_rows) if isinstance(value, pa.Scalar) else value

    def given(self, function: Expr, rows: Ints, *values: pa.Array) -> pa.Array:
        """What a function gives for elements of these rows."""
        assert isinstance(function, Lambda)
        params = [f"{_COLUMN}{p}" for p in function.params]
        read = {
            n.name if isinstance(n, Col) else f"{_COLUMN}{n.name}"
            for n in walk(function.body)
            if isinstance(n, Col | LambdaVar)
        }
        outer = [n for n in self.batch.schema.names if n in read and n not in params]
        at = pa.array(rows)
        columns = [pa.chunked_array(c) if isinstance(c, pa.ChunkedArray) else c for c in map(self.batch.column, outer)]
        elements = pa.Table.from_arrays([*(c.take(at) for c in columns), *values[: len(params)]], names=[*outer, *params])
        found = self.value_of(function.body, elements)
        return repeated(found, len(rows)) if isinstance(found, pa.Scalar) else found

    def of_elements(self, function: Expr, lists: Lists) -> pa.Array:
        """What a function gives for all elements, and their places."""
        return self.given(function, lists.rows, lists.items, pa.array(lists.places, pa.int32()))


def call(expr: Func, batch: Rows, value_of: ValueOf) -> Value:
    """The value of a function of lists or maps that takes functions."""
    found: pa.Array = _CALLS[expr.name](expr.args, _Run(batch, value_of))
    return found


def _transform(args: tuple[Expr, ...], run: _Run) -> pa.Array:
    lists = run.lists(args[0])
    return attrs.evolve(lists, items=run.of_elements(args[1], lists)).column()


def _filter(args: tuple[Expr, ...], run: _Run) -> pa.Array:
    lists = run.lists(args[0])
    holds, _ = truths(run.of_elements(args[1], lists), len(lists.items))
    return lists.only(np.flatnonzero(holds)).column()


def _any(args: tuple[Expr, ...], run: _Run, wanted: bool) -> pa.Array:
    """``exists``, and ``forall`` by way of an element for which it is false; null if there is none beside a null."""
    lists = run.lists(args[0])
    try:
        true, null = truths(run.of_elements(args[1], lists), len(lists.items))
        hits = true if wanted else ~true & ~null
        rows = lists.rows
        found = np.bincount(rows[hits], minlength=len(lists.counts)) > 0
        open_ = np.bincount(rows[null], minlength=len(lists.counts)) > 0
    except OperatorError:  # elements behind the one that decides need no value
        found, open_ = _stepwise(args[1], lists, run, wanted)
    return pa.array(found if wanted else ~found, mask=lists.missing | (open_ & ~found))


def _stepwise(function: Expr, lists: Lists, run: _Run, wanted: bool) -> tuple[Mask, Mask]:
    found, open_ = np.zeros(len(lists.counts), np.bool_), np.zeros(len(lists.counts), np.bool_)
    for rows, place in by_place(lists.counts):
        rows = rows[~found[rows]]
        items = lists.items.take(pa.array(lists.starts[rows] + place))
        true, null = truths(run.given(function, rows, items), len(rows))
        found[rows[true if wanted else ~true & ~null]] = True
        open_[rows[null]] = True
    return found, open_


def _aggregate(args: tuple[Expr, ...], run: _Run) -> pa.Array:
    """Place after place over the lists that go on; a list that ends leaves with what it has come to."""
    lists, so_far = run.lists(args[0]), run.column(args[1])
    start, merge = so_far.type, args[2]
    _same_type(args, start, run.given(merge, np.zeros(0, np.int64), so_far[:0], lists.items[:0]).type)
    order = np.argsort(-lists.counts, kind="stable")
    so_far, done = so_far.take(pa.array(order)), []
    for rows, place in by_place(lists.counts):
        done.append(so_far[len(rows) :])
        items = lists.items.take(pa.array(lists.starts[rows] + place))
        so_far = run.given(merge, rows, so_far[: len(rows)], items)
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    ended = pa.concat_arrays([so_far, *reversed(done)]).take(pa.array(back))
    known = np.flatnonzero(~lists.missing)
    ended = ended.take(pa.array(known))
    if len(args) > 3:
        ended = run.given(args[3], known, ended)
    at = np.cumsum(~lists.missing) - 1
    return ended.take(pa.array(at, mask=lists.missing))


def _same_type(args: tuple[Expr, ...], start: pa.DataType, merged: pa.DataType) -> None:
    if start != merged:
        raise ExpressionError(
            message(
                "the start of aggregate has another type than what is merged",
                f"{args[1]!r} is {start}, {args[2]!r} gives {merged}",
                "it cannot go on from one to the other",
                f'cast one of them: lit(0).cast("{merged}"), in text CAST(0 AS ...)',
            )
        )


def _array_sort(args: tuple[Expr, ...], run: _Run) -> pa.Array:
    """By a function of two elements that gives less than 0, 0 or more; else ascending, nulls last."""
    if len(args) == 1:
        return sorted_list(run.column(args[0]), ascending=True, nulls_first=False)
    lists, function = run.lists(args[0]), args[1]

    def before(rows: Ints, left: Ints, right: Ints) -> Mask:
        given = run.given(function, rows, lists.items.take(pa.array(left)), lists.items.take(pa.array(right)))
        if not is_integer(given.type):
            hint = "write (a, b) -> CASE WHEN a < b THEN -1 WHEN a > b THEN 1 ELSE 0 END"
            raise ExpressionError(
                message("a function that compares gives a whole number", f"{function!r} gives {given.type}", "no order", hint)
            )
        if given.null_count:
            raise FaultError("a function that compares gave null for two elements: let it give 0, or a number below or above")
        less: Mask = given.to_numpy(zero_copy_only=False) < 0
        return less

    before(*(np.zeros(0, np.int64) for _ in range(3)))  # its type is known without elements
    return attrs.evolve(lists, items=lists.items.take(pa.array(compared_order(lists, before)))).column()


def _zip_with(args: tuple[Expr, ...], run: _Run) -> pa.Array:
    one, other = run.lists(args[0]), run.lists(args[1])
    missing = one.missing | other.missing
    one, other = one.without(missing), other.without(missing)
    longer = Lists(pa.nulls(0), np.maximum(one.counts, other.counts), missing)
    rows = longer.rows
    places = np.arange(len(rows), dtype=np.int64) - np.repeat(longer.starts, longer.counts)
    sides = []
    for lists in (one, other):
        there = places < lists.counts[rows]
        sides.append(lists.items.take(pa.array(lists.starts[rows] + places, mask=~there)))
    return attrs.evolve(longer, items=run.given(args[2], rows, *sides)).column()


def _map_filter(args: tuple[Expr, ...], run: _Run) -> pa.Array:
    maps = Maps.of(run.column(args[0]))
    holds, _ = truths(run.given(args[1], maps.keys.rows, maps.keys.items, maps.values.items), len(maps.keys.items))
    kept = np.flatnonzero(holds)
    return Maps(maps.keys.only(kept), maps.values.only(kept)).column()


def _transform_values(args: tuple[Expr, ...], run: _Run) -> pa.Array:
    maps = Maps.of(run.column(args[0]))
    items = run.given(args[1], maps.keys.rows, maps.keys.items, maps.values.items)
    return attrs.evolve(maps, values=attrs.evolve(maps.values, items=items)).column()


_CALLS: Final[dict[str, Callable[[tuple[Expr, ...], _Run], pa.Array]]] = {
    "aggregate": _aggregate,
    "array_sort": _array_sort,
    "exists": lambda args, run: _any(args, run, wanted=True),
    "filter": _filter,
    "forall": lambda args, run: _any(args, run, wanted=False),
    "map_filter": _map_filter,
    "transform": _transform,
    "transform_values": _transform_values,
    "zip_with": _zip_with,
}
