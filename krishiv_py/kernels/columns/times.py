"""Event times as integer microseconds, and back to the type of the input column (SEMANTICS §1.1)."""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.plan.durations import END_OF_TIME, MAX_TIME_MS, MAX_TIME_US, UNSET
from krishiv_py.plan.schema import TimeKind

_US_PER: Final = {"s": 1_000_000, "ms": 1_000}


@attrs.frozen(eq=False)
class Stamped:
    """Event times in µs (0 where unusable), and which rows have none or one out of range.

    `bounds` are the smallest and the largest time, µs, where every row has one that can be used; else None.
    """

    times: Ints
    null: Mask
    out_of_range: Mask
    bounds: tuple[int, int] | None


def stamp(column: pa.Array, kind: TimeKind) -> Stamped:
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
    low, high = (int(raw.min()), int(raw.max())) if len(raw) else (0, 0)
    inside = -bound <= low and high <= bound
    if inside:
        outside = np.zeros(len(raw), np.bool_)
    else:
        outside = (raw > bound) | (raw < -bound)
        raw = np.where(outside, 0, raw)
    bounds = (low * us, high * us) if inside and len(raw) and not column.null_count else None
    return Stamped(raw if us == 1 else raw * us, null, outside, bounds)


def bounds_of(column: pa.Array, kind: TimeKind) -> tuple[Ints, Mask]:
    """Bounds of intervals in µs, and which are null; one beyond the range of event times is before or after all of them."""
    stamped = stamp(column, kind)
    if not stamped.out_of_range.any():
        return stamped.times, stamped.null
    ahead = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) > 0
    return np.where(stamped.out_of_range, np.where(ahead, END_OF_TIME, UNSET), stamped.times), stamped.null


def time_type(kind: TimeKind) -> pa.DataType:
    """Return the Arrow type of a time column of this kind."""
    return {
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "bigint_ms": pa.int64(),
    }[kind]


def unstamp(times: Ints, kind: TimeKind) -> pa.Array:
    """Microseconds back to the type of the input column; the two infinities become null."""
    infinite = (times == UNSET) | (times == END_OF_TIME)
    mask = infinite if infinite.any() else None
    if kind == "bigint_ms":
        return pa.array(times // 1_000, pa.int64(), mask=mask)
    return pa.array(times, pa.int64(), mask=mask).cast(time_type(kind))


def lengths_between(earlier: Ints, later_us: int, kind: TimeKind) -> Ints:
    """Return how far moments are behind a later one, in the unit of the time column; rounded down as :func:`unstamp`
    rounds both.
    """
    return later_us // 1_000 - earlier // 1_000 if kind == "bigint_ms" else later_us - earlier


def gap_lengths(column: pa.Array) -> Ints:
    """Session gaps in µs, from integer milliseconds or durations; 0 for null, and cut at the longest supported duration."""
    duration = pa.types.is_duration(column.type)
    raw = column.cast(pa.duration("us")).cast(pa.int64()) if duration else column.cast(pa.int64())
    unit = 1 if duration else 1_000
    plain: Ints = raw.fill_null(0).to_numpy(zero_copy_only=False)
    return np.clip(plain, 0, MAX_TIME_US // unit) * unit
