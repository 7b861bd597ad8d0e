"""Lists that are made: ``sequence``, ``array_repeat``. All rows at once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, ParamSpec

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.functions.computing.checks import alike, require
from krishiv_py.functions.computing.dates import plus_months
from krishiv_py.functions.computing.lists import Lists
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

P = ParamSpec("P")

MOST_ELEMENTS: Final = 2**31 - 16
"""How many elements the lists of one batch can have."""
MOST_BYTES: Final = 2**31 - 16
"""How many bytes the elements of one list can have, as in Spark."""
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
    months: Ints = _number(column).astype(unit).astype("datetime64[M]").astype(np.int64)
    return months
