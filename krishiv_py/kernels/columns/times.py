"""Event times as whole microseconds (SEMANTICS §1.1), and the windows of a time (SEMANTICS §1.2, §3.1, §3.2, §3.9)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.ranges import expand
from krishiv_py.arrays.types import Ints, Mask, as_arrow, extremes
from krishiv_py.errors import RAISED, OperatorError, failure_text, shown
from krishiv_py.plan.durations import END_OF_TIME, MAX_TIME_MS, MAX_TIME_US, UNSET, show_us
from krishiv_py.plan.operation import Grid, Operation
from krishiv_py.plan.schema import TimeKind

_US_PER: Final = {"s": 1_000_000, "ms": 1_000}


@attrs.frozen(eq=False)
class EventTimes:
    """Event times in µs (0 where unusable), and which rows have none or one out of range.

    `bounds` are the smallest and the largest time, µs, where every row has one that can be used; else None.
    """

    times: Ints
    null: Mask
    out_of_range: Mask
    bounds: tuple[int, int] | None


def stamp(column: pa.Array, kind: TimeKind) -> EventTimes:
    """Read an event-time column."""
    viewed = isinstance(column, pa.Array) and (pa.types.is_int64(column.type) or pa.types.is_timestamp(column.type))
    numbers = column.view(pa.int64()) if viewed else column.cast(pa.int64())
    if column.null_count:
        null = column.is_null().to_numpy(zero_copy_only=False)
        numbers = numbers.fill_null(0)
    else:
        null = np.zeros(len(column), np.bool_)
    raw = numbers.to_numpy(zero_copy_only=False)
    unit = "ms" if kind == "bigint_ms" else column.type.unit
    if unit == "ns":
        raw = raw // 1_000  # the microsecond a time lies in
    us = _US_PER.get(unit, 1)
    bound = MAX_TIME_MS if kind == "bigint_ms" else MAX_TIME_US // us
    low, high = extremes(raw) if len(raw) else (0, 0)
    inside = -bound <= low and high <= bound
    if inside:
        outside = np.zeros(len(raw), np.bool_)
    else:
        outside = (raw > bound) | (raw < -bound)
        raw = np.where(outside, 0, raw)
    bounds = (low * us, high * us) if inside and len(raw) and not column.null_count else None
    return EventTimes(raw if us == 1 else raw * us, null, outside, bounds)


def bounds_of(column: pa.Array, kind: TimeKind) -> tuple[Ints, Mask]:
    """Bounds of intervals in µs, and which are null; one beyond the range of event times is before or after all of them."""
    stamped = stamp(column, kind)
    if not stamped.out_of_range.any():
        return stamped.times, stamped.null
    ahead = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) > 0
    return np.where(stamped.out_of_range, np.where(ahead, END_OF_TIME, UNSET), stamped.times), stamped.null


def time_type(kind: TimeKind) -> pa.DataType:
    """Return the Arrow type of a time column of this kind."""
    return _TYPES[kind]


_TYPES: Final = {"timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"), "bigint_ms": pa.int64()}


def unstamp(times: Ints, kind: TimeKind) -> pa.Array:
    """Microseconds back to the type of the input column; the two infinities become null."""
    infinite = (times == UNSET) | (times == END_OF_TIME)
    numbers = times // 1_000 if kind == "bigint_ms" else times
    raw = pa.array(numbers, pa.int64(), mask=infinite) if infinite.any() else as_arrow(numbers)
    return raw.view(time_type(kind))


def lengths_between(earlier: Ints, later_us: int | Ints, kind: TimeKind) -> Ints:
    """Return how far moments are behind a later one, or each behind its own, in the unit of the time column.

    Both are rounded down as :func:`unstamp` rounds them.
    """
    return later_us // 1_000 - earlier // 1_000 if kind == "bigint_ms" else later_us - earlier


def gap_lengths(column: pa.Array) -> Ints:
    """Session gaps in µs, from integer milliseconds or durations; 0 for null, and cut at the longest supported duration."""
    duration = pa.types.is_duration(column.type)
    raw = column.cast(pa.duration("us")).cast(pa.int64()) if duration else column.cast(pa.int64())
    unit = 1 if duration else 1_000
    plain: Ints = raw.fill_null(0).to_numpy(zero_copy_only=False)
    return np.clip(plain, 0, MAX_TIME_US // unit) * unit


@attrs.frozen
class FixedAssigner:
    """Slices and windows of a grid."""

    grid: Grid

    @property
    def width(self) -> int:
        """Return how many windows a row can belong to at the most."""
        return -(-self.grid.size_us // self.grid.slide_us)

    def slices(self, times: Ints) -> Ints:
        """Start of the slice of every row: the latest window bound (start or end) not after it."""
        w, cut = self.grid, self._cut
        step = (times - w.offset_us) % w.slide_us
        base = times - step
        return base if cut == 0 else base + np.where(step >= cut, cut, 0)

    def slice_of(self, time: int) -> int:
        """Return what :meth:`slices` gives for one row."""
        w, cut = self.grid, self._cut
        step = (time - w.offset_us) % w.slide_us
        return time - step + (cut if 0 < cut <= step else 0)

    def places(self, times: Ints) -> tuple[int, int, Ints | None]:
        """Return the first slice of rows, a step, and how many steps after it the slice of each row is; None: all are in it.

        Numbers are cheaper than starts: they need one division, and whoever groups by them none.
        """
        if not len(times):
            return 0, 1, None
        oldest, newest = extremes(times)
        first, step = self.slice_of(oldest), self.grid.slide_us
        if first == self.slice_of(newest):
            return first, step, None
        return (first, 1, self.slices(times) - first) if self._cut else (first, step, (times - first) // step)

    @property
    def _cut(self) -> int:
        """Return how far after the start of a window there is the end of another one; 0 where that is a start, too."""
        return self.grid.size_us % self.grid.slide_us if self.grid.slide_us <= self.grid.size_us else self.grid.size_us

    def last_start(self, times: Ints) -> Ints:
        """Start of the latest window that begins at or before the row."""
        return times - (times - self.grid.offset_us) % self.grid.slide_us

    def last_end(self, times: Ints) -> Ints:
        """End of the latest window holding the row (for gap windows: of the one before it)."""
        return self.last_start(times) + self.grid.size_us

    def unassigned(self, times: Ints) -> Mask:
        """Rows in a gap between windows; they belong to none."""
        return self.last_end(times) <= times

    def windows(self, times: Ints) -> tuple[Ints, Ints]:
        """Every (row, window start) pair: row numbers and starts, later windows first."""
        last = self.last_start(times)
        rows, starts = [], []
        for back in range(self.width):
            start = last - back * self.grid.slide_us
            held = np.flatnonzero(start + self.grid.size_us > times)
            rows.append(held)
            starts.append(start[held])
        return np.concatenate(rows), np.concatenate(starts)

    def windows_between(self, times: Ints, first: int, last: int) -> tuple[Ints, Ints]:
        """Pairs as in :meth:`windows`, row by row and in ascending order, of windows that start from `first` to `last`."""
        slide, offset = self.grid.slide_us, self.grid.offset_us
        if self.grid.size_us == slide:
            starts = self.last_start(times)
            rows = ((starts >= first) & (starts <= last)).nonzero()[0]
            return rows, starts[rows]
        low, high = self._numbers(times)
        low, high = np.maximum(low, -((offset - first) // slide)), np.minimum(high, (last - offset) // slide)
        numbers, rows = expand(low, np.maximum(high + 1, low))
        return rows, numbers * slide + offset

    def starts(self, slices: Ints, first: int, last: int) -> Ints:
        """Starts of the windows over these slices, from `first` to `last`, ascending, each once."""
        slide, offset = self.grid.slide_us, self.grid.offset_us
        if self.grid.size_us == slide:
            starts = self.last_start(slices)
            if not (starts[1:] > starts[:-1]).all():
                starts = np.unique(starts)
            return starts[(starts >= first) & (starts <= last)]
        low, high = self._numbers(slices)
        low, high = np.maximum(low, -((offset - first) // slide)), np.minimum(high, (last - offset) // slide)
        low, high = low[high >= low], high[high >= low]
        if not len(low):
            return low
        order = np.argsort(low)
        low, high = low[order], high[order]
        before = np.maximum.accumulate(high)
        low[1:] = np.maximum(low[1:], before[:-1] + 1)
        numbers, _ = expand(low, np.maximum(high + 1, low))
        return numbers * slide + offset

    def next_end(self, slices: Iterable[int], after: int) -> int | None:
        """Return the smallest end beyond `after` among the windows over these few slices."""
        size, slide, offset = self.grid.size_us, self.grid.slide_us, self.grid.offset_us
        least, next_end = (after - size - offset) // slide + 1, None
        for place in slices:
            number = max((place - offset - size) // slide + 1, least)
            if number <= (place - offset) // slide and (next_end is None or number < next_end):
                next_end = number
        return None if next_end is None else next_end * slide + offset + size

    def _numbers(self, times: Ints) -> tuple[Ints, Ints]:
        """Return the first and the last window of every time, by their place on the grid."""
        from_epoch = times - self.grid.offset_us
        return (from_epoch - self.grid.size_us) // self.grid.slide_us + 1, from_epoch // self.grid.slide_us


_FIX = "fix `assign` of the assigner"


@attrs.frozen(eq=False)
class Spans:
    """Rows and the bounds of their windows in µs: one entry for every row and window, rows ascending.

    Attributes
    ----------
    rows, starts, ends : ndarray of int64
        Row number and bounds.
    tiled : bool
        Whether the assigner says that every row is in exactly one window.
    """

    rows: Ints
    starts: Ints
    ends: Ints
    tiled: bool

    def last_ends(self, times: Ints) -> Ints:
        """Return the latest end of a window of every row; its own time for a row in no window."""
        ends = times.copy()
        np.maximum.at(ends, self.rows, self.ends)
        return ends

    def kept(self, keep: Mask) -> Spans:
        """Some of the entries."""
        return self if keep.all() else Spans(self.rows[keep], self.starts[keep], self.ends[keep], False)

    def of_rows(self, rows: Ints) -> Spans:
        """Return the entries with the numbers `rows` have instead of 0, 1, …"""
        return attrs.evolve(self, rows=rows[self.rows])


def spans_of(window: Operation, times: Ints, kind: TimeKind) -> Spans:
    """Ask the assigner of a `window`.

    Raises
    ------
    OperatorError
        For an assigner that fails or breaks its contract; names it.
    """
    if not len(times):
        return Spans(times, times, times, True)
    assigner = window.extent.assigner
    assert assigner is not None
    try:
        given = assigner.assign(times.copy())  # it is a user's: what it changes are its own
    except RAISED as problem:  # user code: whatever it raises is reported with its class
        what = f"window assigner {assigner.name} failed"
        raise OperatorError(what, got=f"{len(times)} event times", then=failure_text(problem), hint=_FIX) from problem
    spans = _shaped(window, given, len(times))
    _check(window, spans, times, kind)
    return spans


def _shaped(window: Operation, given: object, n: int) -> Spans:
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise _wrong(window, "does not return two or three arrays", shown(given))
    for array in given:
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind != "i":
            raise _wrong(window, "returns something that is not an array of whole numbers", _shape(array))
    parts = [array.astype(np.int64, copy=False) for array in given]
    if len(parts) == 2:
        if not len(parts[0]) == len(parts[1]) == n:
            raise _wrong(window, f"returns other than one window for each of {n} rows", ", ".join(map(_shape, given)))
        return Spans(np.arange(n), parts[0], parts[1], True)
    rows, starts, ends = parts
    if not len(rows) == len(starts) == len(ends):
        raise _wrong(window, "returns arrays of different lengths", ", ".join(map(_shape, given)))
    if len(rows) and (rows.min() < 0 or rows.max() >= n):
        raise _wrong(window, f"names rows other than 0 to {n - 1}", f"{rows.min()} to {rows.max()}")
    if not (rows[1:] > rows[:-1]).all():
        order = np.lexsort((ends, starts, rows))
        rows, starts, ends = rows[order], starts[order], ends[order]
        if ((rows[1:] == rows[:-1]) & (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1])).any():
            raise _wrong(window, "gives a row the same window twice", "equal row, start and end")
    return Spans(rows, starts, ends, False)


def _check(window: Operation, spans: Spans, times: Ints, kind: TimeKind) -> None:
    of_row = times[spans.rows] if not spans.tiled else times
    tick, longest_us = 1_000 if kind == "bigint_ms" else 1, window.extent.length_us
    length = spans.ends - spans.starts
    for what, wrong in (
        ("gives a window that ends before it starts", spans.ends <= spans.starts),
        ("gives a window that does not contain the row", (of_row < spans.starts) | (of_row >= spans.ends)),
        (f"gives a window longer than its longest, {show_us(longest_us)}", (length > longest_us) | (length < 0)),
        (
            "gives a window with a bound that is finer than the time column",
            ((spans.starts % tick) | (spans.ends % tick)) != 0 if tick > 1 else np.zeros(0, np.bool_),
        ),
        (
            "gives a window beyond the end of time",
            (spans.starts < UNSET + longest_us + tick) | (spans.ends > END_OF_TIME - longest_us - tick),
        ),
    ):
        if wrong.any():
            first_wrong = int(np.flatnonzero(wrong)[0])
            row, start, end = (
                _shown(x, kind) for x in (of_row[first_wrong], spans.starts[first_wrong], spans.ends[first_wrong])
            )
            raise _wrong(window, what, f"event time {row}, window {start} to {end}")


def _shown(us: np.int64, kind: TimeKind) -> str:
    try:
        value = unstamp(np.array([us], np.int64), kind).to_pylist()[0]
    except (OverflowError, ValueError):  # more off than Python's dates reach
        return f"{us} µs"
    return str(value.isoformat() if hasattr(value, "isoformat") else value)


def _shape(array: object) -> str:
    return f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else shown(array)


def _wrong(window: Operation, what: str, got: str) -> OperatorError:
    assert window.extent.assigner is not None
    return OperatorError(f"window assigner {window.extent.assigner.name} {what}", got=got, hint=_FIX)
