"""Functions of lists and maps: one flat column of elements, and how many of them each row has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, ParamSpec

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Ints, Mask, flags
from krishiv_py.functions.computing.checks import alike, boolean, require
from krishiv_py.functions.computing.compare import compare, plain, ranks
from krishiv_py.functions.computing.dates import plus_months
from krishiv_py.functions.computing.values import (
    DURATION,
    INSTANT,
    LOCAL,
    FaultError,
    Value,
    arrays,
    coerced,
    common,
    is_integer,
    is_moment,
    is_timestamp,
    joined,
    misfit,
    null_mask,
)
from krishiv_py.types import type_text

NO_LIST: Final = pa.list_(pa.null())


@attrs.frozen(eq=False)
class Lists:
    """The lists of rows.

    Attributes
    ----------
    items : pyarrow.Array
        The elements of all lists that are not null.
    counts : ndarray of int64
        How many each row has: none where the list is null.
    missing : ndarray of bool
        Where the list is null.
    """

    items: pa.Array
    counts: Ints
    missing: Mask

    @classmethod
    def of(cls, column: pa.Array) -> Lists:
        """Return the lists of a column."""
        require(pa.types.is_list, column)
        if pa.types.is_null(column.type):
            column = pa.nulls(len(column), NO_LIST)
        missing = column.is_null().to_numpy(zero_copy_only=False)
        counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        return cls(column.flatten(), counts, missing)

    @property
    def rows(self) -> Ints:
        """The row of each element."""
        return np.repeat(np.arange(len(self.counts), dtype=np.int64), self.counts)

    @property
    def starts(self) -> Ints:
        """Return where the elements of each row begin."""
        return np.cumsum(self.counts) - self.counts

    @property
    def places(self) -> Ints:
        """The place of each element in its list, from 0 on."""
        return np.arange(len(self.items), dtype=np.int64) - np.repeat(self.starts, self.counts)

    def column(self) -> pa.Array:
        """The lists as a column."""
        offsets = pa.array(np.concatenate([[0], np.cumsum(self.counts)]), pa.int32())
        mask = pa.array(self.missing) if self.missing.any() else None
        return pa.ListArray.from_arrays(offsets, self.items, mask=mask)

    def only(self, kept: Ints) -> Lists:
        """The elements at some positions, in this order, which goes by row."""
        counts = np.bincount(self.rows[kept], minlength=len(self.counts)).astype(np.int64)
        return Lists(self.items.take(pa.array(kept)), counts, self.missing)

    def without(self, more: Mask) -> Lists:
        """With more rows null."""
        missing = self.missing | more
        return attrs.evolve(self.only(np.flatnonzero(~missing[self.rows])), missing=missing)


def codes(items: pa.Array) -> tuple[Ints, int]:
    """A number for each element that equal ones share, null too, and a number above all: NaN equals NaN, and -0.0 0.0."""
    if pa.types.is_null(items.type):
        return np.zeros(len(items), np.int64), 1
    if pa.types.is_nested(items.type):
        rank = ranks(items)
        most = int(rank.max(initial=-1)) + 1
        return np.where(rank < 0, most, rank), most + 1
    known = plain(items).dictionary_encode()
    most = len(known.dictionary)
    return pc.fill_null(known.indices, most).to_numpy(zero_copy_only=False).astype(np.int64), most + 1


def distinct(lists: Lists) -> Lists:
    """Each element once, where it comes first."""
    number, most = codes(lists.items)
    _, first = np.unique(lists.rows * most + number, return_index=True)
    first.sort()
    return attrs.evolve(lists, items=plain(lists.items)).only(first)


def both(left: Value, right: Value) -> tuple[Lists, Lists, bool]:
    """Two columns of lists with elements of one type, null where one of them is."""
    (one, other), single = arrays(left, right)
    a, b = Lists.of(one), Lists.of(other)
    a, b = a.without(b.missing), b.without(a.missing)
    first, second = alike([a.items, b.items])
    return attrs.evolve(a, items=first), attrs.evolve(b, items=second), single


def followed(parts: list[Lists]) -> Lists:
    """The elements of several lists, one list after the other."""
    rows = np.concatenate([part.rows for part in parts])
    whole = Lists(pa.concat_arrays([p.items for p in parts]), np.zeros_like(parts[0].counts), parts[0].missing)
    order = np.argsort(rows, kind="stable")
    counts = np.sum([p.counts for p in parts], axis=0)
    return attrs.evolve(whole, items=whole.items.take(pa.array(order)), counts=counts)


def shared(a: Lists, b: Lists) -> Mask:
    """Return which elements of one list the other one has, too."""
    number, most = codes(pa.concat_arrays([a.items, b.items]))
    one, other = number[: len(a.items)], number[len(a.items) :]
    return np.isin(a.rows * most + one, b.rows * most + other)


def equal_elements(lists: Lists, needles: pa.Array) -> Mask:
    """Return which elements equal the value of their row."""
    same = compare("==", lists.items, needles.take(pa.array(lists.rows)))
    return flags(same)


def listed_in(value: Value, ascending: bool, nulls_first: bool) -> Value:
    """``sort_array``, ``array_sort``; equal elements keep their order."""
    (column,), single = arrays(value)
    lists = Lists.of(column)
    rank = ranks(lists.items)
    null = lists.items.is_null().to_numpy(zero_copy_only=False)  # older versions of Arrow rank nulls, too
    order = np.lexsort((rank if ascending else -rank, ~null if nulls_first else null, lists.rows))
    return joined(lists.only(order).column(), single)


def turned(value: Value) -> Value:
    """``reverse`` of a list."""
    (column,), single = arrays(value)
    lists = Lists.of(column)
    order = np.repeat(2 * lists.starts + lists.counts - 1, lists.counts) - np.arange(len(lists.items))
    return joined(attrs.evolve(lists, items=lists.items.take(pa.array(order))).column(), single)


def chained(values: list[Value]) -> Value:
    """``concat`` of lists; null if one is."""
    columns, single = arrays(*values)
    parts = [Lists.of(column) for column in columns]
    missing = np.any([part.missing for part in parts], axis=0)
    parts = [part.without(missing) for part in parts]
    items = alike([part.items for part in parts])
    parts = [attrs.evolve(part, items=one) for part, one in zip(parts, items, strict=True)]
    return joined(followed(parts).column(), single)


def truths(value: Value, n: int) -> tuple[Mask, Mask]:
    """Return where a condition is true, and where it is null."""
    held = boolean(value)
    if isinstance(held, pa.Scalar):
        held = pa.repeat(held, n)
    return flags(held), held.is_null().to_numpy(zero_copy_only=False)


def item_of(value: Value, index: Value) -> Value:
    """The element with the number `index` of a list, which counts from 0."""
    require(pa.types.is_list, value)
    require(pa.types.is_integer, index)
    if pa.types.is_null(value.type):
        return value
    if isinstance(index, pa.Scalar) and index.is_valid:
        return _element(value, index.as_py())
    (column, places), single = arrays(value, pc.cast(index, pa.int64()))
    lengths = pc.cast(pc.list_value_length(column), pa.int64())
    outside = pc.fill_null(pc.or_(pc.less(places, 0), pc.greater_equal(places, lengths)), False)
    if pc.any(outside).as_py():
        row = pc.index(outside, True).as_py()
        raise FaultError(f"a list of length {lengths[row]} has no element {places[row]}")
    known = pc.and_(pc.is_valid(places), pc.is_valid(lengths))
    starts = pc.cast(pa.array(column.offsets[:-1]), pa.int64())
    return joined(column.values.take(pc.if_else(known, pc.add(starts, places), pa.scalar(None, pa.int64()))), single)


def _element(value: Value, index: int) -> Value:
    if index < 0:
        raise FaultError("a list has no element below 0")
    (column,), single = arrays(value)
    lengths = pc.list_value_length(column)
    if pc.any(pc.less_equal(lengths, index)).as_py():
        raise FaultError(f"a list has no element {index}: it is shorter")
    if column.null_count:
        column = column.filter(column.is_valid()).take(pc.if_else(pc.is_valid(lengths), _ranks(column), None))
    return joined(pc.list_element(column, index), single)


def _ranks(column: pa.Array) -> pa.Array:
    """Return how many lists stand before each."""
    return pc.subtract(pc.cumulative_sum(pc.cast(pc.is_valid(column), pa.int64())), 1)


def list_of(values: list[Value]) -> Value:
    """``array(a, b, ...)``: the values, in the type they meet in."""
    if not values:
        return pa.scalar([], pa.list_(pa.null()))
    columns, single = arrays(*alike(values))
    n, width = len(columns[0]), len(columns)
    places = pa.array(np.arange(n * width, dtype=np.int64).reshape(width, n).T.ravel())
    offsets = pa.array(np.arange(0, n * width + 1, width), pa.int32())
    return joined(pa.ListArray.from_arrays(offsets, pa.concat_arrays(columns).take(places)), single)


def element_or_null(value: Value, index: Value, from_one: bool) -> Value:
    """``get(list, i)`` from 0 on, ``try_element_at(list, i)`` from 1 on or from the end: null beyond the list."""
    require(pa.types.is_list, value)
    require(pa.types.is_integer, index)
    if pa.types.is_null(value.type):
        return value
    (column, places), single = arrays(value, pc.cast(index, pa.int64()))
    lengths = pc.cast(pc.list_value_length(column), pa.int64())
    if from_one:
        places = pc.if_else(pc.greater(places, 0), pc.subtract(places, 1), pc.add(lengths, places))
    inside = pc.fill_null(pc.and_(pc.greater_equal(places, 0), pc.less(places, lengths)), False)
    starts = pc.cast(pa.array(column.offsets[:-1]), pa.int64())
    return joined(column.values.take(pc.if_else(inside, pc.add(starts, places), pa.scalar(None, pa.int64()))), single)


def has_element(value: Value, wanted: Value) -> Value:
    """Return whether an element equals the value; null if none does and one is null."""
    require(pa.types.is_list, value)
    (column, needles), single = arrays(value, wanted)
    n = len(column)
    if pa.types.is_null(column.type) or pa.types.is_null(needles.type):
        return joined(pa.nulls(n, pa.bool_()), single)
    if common(column.type.value_type, needles.type) is None:
        raise misfit(column.type, needles.type)
    parents = pc.list_parent_indices(column)
    same = compare("==", pc.list_flatten(column), needles.take(parents))
    rows = parents.to_numpy(zero_copy_only=False)
    hits = np.bincount(rows[flags(same)], minlength=n) > 0
    open_ = np.bincount(rows[same.is_null().to_numpy(zero_copy_only=False)], minlength=n) > 0
    missing = pc.or_(column.is_null(), needles.is_null()).to_numpy(zero_copy_only=False)
    return joined(pa.array(hits, mask=missing | (open_ & ~hits)), single)


@attrs.frozen(eq=False)
class Maps:
    """The entries of maps as two columns of lists, which are null where the map is."""

    keys: Lists
    values: Lists

    @classmethod
    def of(cls, column: pa.Array) -> Maps:
        """Return the maps of a column."""
        require(pa.types.is_map, column)
        if pa.types.is_null(column.type):
            column = pa.nulls(len(column), pa.map_(pa.string(), pa.null()))
        missing = column.is_null().to_numpy(zero_copy_only=False)
        offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        low, high = offsets[:-1], np.where(missing, offsets[:-1], offsets[1:])
        counts = high - low
        positions = np.arange(int(counts.sum()), dtype=np.int64) + np.repeat(low - (np.cumsum(counts) - counts), counts)
        taken = pa.array(positions)
        return cls(Lists(column.keys.take(taken), counts, missing), Lists(column.items.take(taken), counts, missing))

    def column(self) -> pa.Array:
        """The maps as a column."""
        missing = self.keys.missing
        ends = np.cumsum(self.keys.counts)
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        if not missing.any():
            return pa.MapArray.from_arrays(offsets, self.keys.items, self.values.items)
        open_ = pa.array(np.concatenate([[0], ends]), pa.int32(), mask=np.concatenate([missing, [False]]))
        return pa.MapArray.from_arrays(open_, self.keys.items, self.values.items)


def at_key(value: Value, key: Value) -> Value:
    """The value of a key; null if there is none."""
    known = value.type.key_type
    if not pa.types.is_null(key.type) and common(known, key.type) != known:
        raise misfit(value.type, key.type)
    (column,), single = arrays(value)
    if isinstance(key, pa.Scalar):
        if not key.is_valid:
            return joined(pa.nulls(len(column), value.type.item_type), single)
        return pc.map_lookup(value, query_key=pc.cast(key, known), occurrence="first")
    (column, wanted), _ = arrays(value, pc.cast(key, known))
    maps = Maps.of(column)
    positions = np.full(len(column), -1, np.int64)
    hits = np.flatnonzero(equal_elements(maps.keys, wanted))
    rows, first = np.unique(maps.keys.rows[hits], return_index=True)
    positions[rows] = hits[first]
    return maps.values.items.take(pa.array(positions, mask=positions < 0))


P = ParamSpec("P")

MOST_ELEMENTS: Final = 2**31 - 16
"""The number of elements that the lists of one batch can have."""
MOST_BYTES: Final = 2**31 - 16
"""The number of bytes that the elements of one list can have, as in Spark."""
_US_PER_DAY: Final = 86_400_000_000


def _in_memory(function: Callable[P, Value]) -> Callable[P, Value]:
    """With an error that says what is missing."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Value:
        try:
            return function(*args, **kwargs)
        except MemoryError as problem:
            raise FaultError("the lists are longer than there is memory for") from problem

    return run


@_in_memory
def array_repeat(value: Value, times: Value) -> Value:
    """``array_repeat``: a value so many times; null if the number is, empty if it is below 0."""
    require(is_integer, times)
    (column, many), single = arrays(value, pc.cast(times, pa.int64()))
    missing = many.is_null().to_numpy(zero_copy_only=False)
    counts = np.maximum(pc.fill_null(many, 0).to_numpy(zero_copy_only=False), 0)
    _check_lengths(counts.astype(np.uint64), column.type)
    return joined(Lists(column.take(pa.array(_rows(counts))), counts, missing).column(), single)


def _check_lengths(counts: npt.NDArray[np.uint64], type_: pa.DataType) -> None:
    """Refuse lists that no row of Spark holds, and more than a batch of Arrow holds."""
    width = max(type_.bit_width // 8, 1) if pa.types.is_primitive(type_) else 8
    longest, most = int(counts.max(initial=0)), MOST_BYTES // min(width, 8)
    if longest > most:
        raise FaultError(f"a list has {longest:,} elements, and not more than {most:,} of {type_text(type_)} fit")
    if int(counts.sum()) > MOST_ELEMENTS:
        raise FaultError(f"the lists of a batch have {int(counts.sum()):,} elements, and not more than {MOST_ELEMENTS:,} fit")


def _rows(counts: Ints) -> Ints:
    """The row of each element."""
    return np.repeat(np.arange(len(counts), dtype=np.int64), counts)


@_in_memory
def sequence(start: Value, stop: Value, step: Value | None) -> Value:
    """``sequence``: whole numbers, dates or times from one to another, which is the last one if a step meets it."""
    type_ = common(start.type, stop.type)
    if type_ is None:
        raise misfit(start.type, stop.type)
    if is_moment(type_):
        return _of_times(*_moments(start, stop, type_), type_, step)
    require(is_integer, start, stop, *(() if step is None else (step,)))
    columns, single = arrays(*alike([start, stop, *(() if step is None else (step,))]))
    result_type = columns[0].type
    wide = [c.cast(pa.int64()) for c in columns]
    return joined(_counted(wide[0], wide[1], wide[2] if len(wide) > 2 else _unit(wide[0], wide[1], 1), result_type), single)


def _moments(start: Value, stop: Value, type_: pa.DataType) -> tuple[Value, Value]:
    """Both as dates, or as times in microseconds."""
    if not is_timestamp(type_):
        return pc.cast(start, pa.date32()), pc.cast(stop, pa.date32())
    known = INSTANT if type_.tz else LOCAL
    return coerced(start, known), coerced(stop, known)


def _of_times(start: Value, stop: Value, type_: pa.DataType, step: Value | None) -> Value:
    """Times by a length of time; by whole days, forwards or backwards, if none is given."""
    days = not is_timestamp(type_)
    if step is not None and not pa.types.is_duration(step.type) and not pa.types.is_null(step.type):
        raise misfit(type_, step.type)
    columns, single = arrays(start, stop, *(() if step is None else (pc.cast(step, DURATION),)))
    one, other = ((c.cast(pa.int32()) if days else c).cast(pa.int64()) for c in columns[:2])
    if step is None:
        by = _unit(one, other, 1 if days else _US_PER_DAY)
    else:
        by = columns[2].cast(pa.int64())
        if days:
            return joined(_of_days(one, other, by), single)
    return joined(_counted(one, other, by, start.type), single)


def _of_days(start: pa.Array, stop: pa.Array, step: pa.Array) -> pa.Array:
    """Dates by a length of time, which may be no whole days: as in Spark, the part of a day that is left over goes on."""
    less = pc.and_(pc.less(step, _US_PER_DAY), pc.greater(step, -_US_PER_DAY))
    if pc.any(pc.and_(less, pc.and_(start.is_valid(), stop.is_valid()))).as_py():
        raise FaultError("the step of a sequence of dates is a day or more")
    instants = [pc.multiply_checked(c, _US_PER_DAY) for c in (start, stop)]
    lists = Lists.of(_counted(instants[0], instants[1], step, pa.int64()))
    days = lists.items.to_numpy(zero_copy_only=False) // _US_PER_DAY
    return Lists(pa.array(days).cast(pa.int32()).cast(pa.date32()), lists.counts, lists.missing).column()


def _unit(start: pa.Array, stop: pa.Array, length: int) -> pa.Array:
    return pc.if_else(pc.less_equal(start, stop), pa.scalar(length, pa.int64()), pa.scalar(-length, pa.int64()))


def _checked(low: Ints, high: Ints, by: Ints, there: Mask) -> None:
    """Refuse what never comes to its end."""
    wrong = there & np.where(by == 0, low != high, (by > 0) & (low > high) | (by < 0) & (low < high))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise FaultError(f"in row {row} the step of a sequence does not lead from its start to its end")


def _counted(start: pa.Array, stop: pa.Array, step: pa.Array, type_: pa.DataType) -> pa.Array:
    """Lists of numbers that grow, or fall, by steps."""
    missing = null_mask(start, stop, step)
    there = np.ones(len(start), np.bool_) if missing is None else ~missing
    low, high, by = (pc.fill_null(c, 0).to_numpy(zero_copy_only=False) for c in (start, stop, step))
    _checked(low, high, by, there)
    down = by < 0
    # modulo 2**64 a difference of any two is right, and so is a step made positive
    apart = np.where(down, low.view(np.uint64) - high.view(np.uint64), high.view(np.uint64) - low.view(np.uint64))
    size = np.where(down, -by.view(np.uint64), by.view(np.uint64))
    steps = apart // np.maximum(size, np.uint64(1))
    known = np.where(there, np.minimum(steps, np.uint64(2**64 - 2)) + np.uint64(1), np.uint64(0))
    _check_lengths(known, type_)
    counts = known.astype(np.int64)
    lists = Lists(start, counts, ~there)
    growing = np.repeat(by, counts)  # what each element is more than the one before; of one array only, as lists may be long
    last = low + (counts - 1) * by
    growing[lists.starts[there]] = low[there] - np.concatenate([[0], last[there][:-1]]).astype(np.int64)
    items = pa.array(np.cumsum(growing, out=growing))
    if pa.types.is_date(type_):
        items = items.cast(pa.int32())
    return Lists(items.cast(type_), lists.counts, lists.missing).column()


@_in_memory
def sequence_months(start: Value, stop: Value, months: Value) -> Value:
    """``sequence`` by months: each element so many months after the first one, on the last day of a month that is too short."""
    type_ = common(start.type, stop.type)
    if type_ is None or not is_moment(type_):
        raise misfit(start.type, stop.type)
    require(is_integer, months)
    (one, other, by), single = arrays(*_moments(start, stop, type_), pc.cast(pc.cast(months, pa.int32()), pa.int64()))
    missing = null_mask(one, other, by)
    there = np.ones(len(one), np.bool_) if missing is None else ~missing
    low, high = (_number(c) for c in (one, other))
    step = pc.fill_null(by, 0).to_numpy(zero_copy_only=False)
    _checked(low, high, step, there)
    most = np.abs(_month(other) - _month(one)) // np.maximum(np.abs(step), 1) + 1
    counts = np.where(there, np.where(step == 0, 1, most), 0)
    _check_lengths(counts.astype(np.uint64), pa.int64())
    rows = _rows(counts)
    lists = Lists(one, counts, ~there)
    places = np.arange(len(rows), dtype=np.int64) - np.repeat(lists.starts, counts)
    items = plus_months(one.take(pa.array(rows)), pa.array(places * step[rows]))
    number, end = _number(items), high[rows]
    kept = np.where(step[rows] < 0, number >= end, number <= end)
    return joined(Lists(items, counts, ~there).only(np.flatnonzero(kept)).column(), single)


def _number(column: pa.Array) -> Ints:
    plain = column.cast(pa.int32()) if pa.types.is_date(column.type) else column
    number: Ints = pc.fill_null(plain.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return number


def _month(column: pa.Array) -> Ints:
    """Months since 1970."""
    unit = "datetime64[D]" if pa.types.is_date(column.type) else "datetime64[us]"
    return _number(column).astype(unit).astype("datetime64[M]").astype(np.int64)
