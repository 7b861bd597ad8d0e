"""Times in a time zone: what a clock there shows at an instant, and the instant at which it shows a time.

::

    instants (UTC)      ----------T---------->       at T the offset changes from `before` to `after`
    a clock there       t + before | t + after

    clock put forward   02:00 -> 03:00: times between are never shown; they count with the offset before
    clock put back      03:00 -> 02:00: times between are shown twice; the first instant counts

The offsets of a stretch of time are found once, step by step in the zone, and kept; rows are looked up in them.
"""

from __future__ import annotations

import datetime as dt
import itertools
from functools import lru_cache
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Ints
from krishiv_py.functions.computing import dates
from krishiv_py.functions.computing.checks import require
from krishiv_py.functions.computing.values import INSTANT, LOCAL, Value, arrays, coerced, is_moment, joined
from krishiv_py.types import zone_of

_SECOND: Final = 1_000_000
_STEP: Final = 6 * 3_600 * _SECOND
"""The distance at which offsets are looked at: no clock is changed twice between."""
_BLOCK: Final = 2_048 * _STEP
_MARGIN: Final = 8 * _STEP
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_CYCLE: Final = 146_097 * 86_400 * _SECOND
"""400 years, after which the calendar, and the last rules of a time zone, repeat."""
_FIRST: Final = (dt.datetime(2, 1, 1, tzinfo=dt.timezone.utc) - _EPOCH) // dt.timedelta(microseconds=1)
_LAST: Final = (dt.datetime(9998, 1, 1, tzinfo=dt.timezone.utc) - _EPOCH) // dt.timedelta(microseconds=1)


@attrs.frozen(eq=False)
class _Offsets:
    """Offsets of a zone in a stretch of time: ``offsets[n]`` from ``since[n]`` on, by a clock there from ``shown[n]`` on."""

    since: Ints
    shown: Ints
    offsets: Ints


def _offset(zone: dt.tzinfo, us: int) -> int:
    """Return the offset at an instant, µs; far from now that of the same day a few times 400 years nearer."""
    cycles = (us - _FIRST) // _CYCLE if us < _FIRST else -(-(us - _LAST) // _CYCLE) if us > _LAST else 0
    local = (_EPOCH + dt.timedelta(microseconds=us - cycles * _CYCLE)).astimezone(zone)
    return (local.utcoffset() or dt.timedelta()) // dt.timedelta(microseconds=1)


def _turn(zone: dt.tzinfo, low: int, high: int) -> int:
    """Return the first instant, µs and a whole second, with the offset that is in force at `high` and not at `low`."""
    after = _offset(zone, high)
    while high - low > _SECOND:
        middle = (low + high) // (2 * _SECOND) * _SECOND
        if _offset(zone, middle) == after:
            high = middle
        else:
            low = middle
    return high


@lru_cache(maxsize=4_096)
def _offsets(name: str, block: int) -> _Offsets:
    """Return the offsets of a block of time, and of two days before and after it."""
    zone = zone_of(name)
    assert zone is not None
    first, last = block * _BLOCK - _MARGIN, (block + 1) * _BLOCK + _MARGIN  # by a clock in the zone it is another time
    since, offsets = [first], [_offset(zone, first)]
    for us in range(first + _STEP, last + _STEP, _STEP):
        here = _offset(zone, us)
        if here != offsets[-1]:
            since.append(_turn(zone, us - _STEP, us))
            offsets.append(here)
    shown = [us + max(pair) for us, pair in zip(since[1:], itertools.pairwise(offsets), strict=True)]
    return _Offsets(np.array(since), np.array([since[0] + offsets[0], *shown]), np.array(offsets))


def _looked_up(us: Ints, name: str, *, shown: bool) -> Ints:
    """Return the offset of each instant, or of each time that a clock shows."""
    offsets = np.empty(len(us), np.int64)
    blocks = us // _BLOCK
    for block in np.unique(blocks).tolist():
        here, known = blocks == block, _offsets(name, block)
        position = np.searchsorted(known.shown if shown else known.since, us[here], side="right") - 1
        offsets[here] = known.offsets[np.maximum(position, 0)]
    return offsets


def _moved(value: Value, name: str, *, shown: bool) -> Value:
    (column,), single = arrays(pc.cast(value, pa.int64()))
    us = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    offset = _looked_up(us, name, shown=shown)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    return joined(pa.array(us - offset if shown else us + offset, pa.int64(), mask=missing), single)


def from_utc(value: Value, zone: str) -> Value:
    """Return what a clock in the zone shows when it is this time in UTC; a ``timestamp``."""
    require(is_moment, value)
    return pc.cast(_moved(coerced(value, INSTANT), zone, shown=False), INSTANT)


def to_utc(value: Value, zone: str) -> Value:
    """The time in UTC when a clock in the zone shows this; a ``timestamp``."""
    require(is_moment, value)
    return pc.cast(_moved(coerced(value, INSTANT), zone, shown=True), INSTANT)


def at_time_zone(value: Value, zone: str) -> Value:
    """Of an instant what a clock in the zone shows, a ``timestamp_ntz``; of a time without zone the instant."""
    if pa.types.is_timestamp(value.type) and value.type.tz is None:
        return to_utc(value, zone)
    return pc.cast(from_utc(value, zone), LOCAL)


def truncated(unit: str, value: Value, zone: str) -> Value:
    """The instant at which the unit began, by a clock in the zone, that the time lies in."""
    shown = from_utc(value, zone)
    begin = dates.truncated(unit, shown)
    if unit in ("year", "quarter", "month", "week", "day"):
        return to_utc(begin, zone)
    within = pc.subtract(shown, begin)  # an hour that the clock shows twice has begun twice
    return pc.subtract(coerced(value, INSTANT), within)
