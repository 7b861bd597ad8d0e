"""Lateness: the class of every row under a watermark, and which rows are refused (SEMANTICS §4)."""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np

from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.running import BEHIND


@attrs.frozen
class Classes:
    """Counts how many rows of a batch fell in each class."""

    on_time: int = 0
    mildly_late: int = 0
    very_late: int = 0
    future: int = 0


_S: Final = 1_000_000
_EDGES_US: Final = (
    *(0, 1_000, 10_000, 100_000),
    *(s * _S for s in (1, 2, 5, 10, 30)),
    *(m * 60 * _S for m in (1, 2, 5, 10, 30)),
    *(h * 3_600 * _S for h in (1, 2, 6, 12, 24, 24 * 7, 24 * 30, 24 * 365)),
    1 << 62,
)
"""Distances by which rows are counted: those that people set as a lag."""
_BLOCK: Final = 1 << 15
"""So many times stay in the cache of a core while they are compared with one distance after the other."""


def behind_counts(times: Ints, watermark_us: int, lag_us: int) -> dict[str, int]:
    """Count rows by their distance to the newest row of the batches before, under a watermark that is a lag before that.

    Rows that are not behind it are not counted. The lag itself is one of the distances, so what it loses is exact.
    """
    if watermark_us in (UNSET, END_OF_TIME):
        return {}
    newest, counts = watermark_us + lag_us, dict[str, int]()
    edges = _EDGES_US if lag_us in _EDGES_US else sorted((*_EDGES_US, lag_us))
    for begin in range(0, len(times), _BLOCK):
        block = times[begin : begin + _BLOCK]
        waiting = int(np.count_nonzero(block < newest))
        for edge_us in edges[1:]:
            if not waiting:
                break
            beyond = int(np.count_nonzero(block < newest - edge_us))
            if beyond < waiting:
                name = f"{BEHIND}{edge_us}"
                counts[name] = counts.get(name, 0) + waiting - beyond
            waiting = beyond
    return counts


def floor_watermark(watermark_us: int, back_us: int) -> int:
    """``W - back`` without leaving the number range: the infinities stay what they are."""
    return watermark_us if watermark_us in (UNSET, END_OF_TIME) else watermark_us - back_us


def late_line(watermark_us: int, options: QueryOptions) -> int:
    """``W - L``, or the end of windows that had left when the allowed lateness was another one (SEMANTICS §12.3)."""
    return max(floor_watermark(watermark_us, options.allowed_lateness_us), options.left_us)


def classify(times: Ints, watermark_us: int, lateness_us: int, future_us: int) -> Classes:
    """Count the four classes. While the watermark is unset every row is on time."""
    if watermark_us == UNSET or not len(times):
        return Classes(on_time=len(times))
    before_mark = times < watermark_us
    very = int(np.count_nonzero(times < floor_watermark(watermark_us, lateness_us)))
    ahead = 0 if watermark_us == END_OF_TIME else int(np.count_nonzero(times > watermark_us + future_us))
    mildly = int(np.count_nonzero(before_mark)) - very
    return Classes(len(times) - very - mildly - ahead, mildly, very, ahead)


def class_of(time_us: int, watermark_us: int, lateness_us: int, future_us: int) -> str:
    """Return the class of one row, by its name."""
    classes = classify(np.array([time_us]), watermark_us, lateness_us, future_us)
    return next(name for name, n in attrs.asdict(classes).items() if n)


def beyond(times: Ints, watermark_us: int, begun_us: int | None, options: QueryOptions) -> Mask:
    """Rows further ahead of the watermark, or of the clock when their batch began, than tolerated (SEMANTICS §4.4)."""
    latest = latest_expected(watermark_us, begun_us, options)
    return np.zeros(len(times), np.bool_) if latest is None else times > latest


def latest_expected(watermark_us: int, begun_us: int | None, options: QueryOptions) -> int | None:
    """Return the largest time that is not too far ahead, µs; None where no time is."""
    reference = begun_us if options.future_reference == "clock" else watermark_us
    if reference is None or reference in (UNSET, END_OF_TIME):  # None: a clock that nobody set
        return None
    return reference + options.future_us


def late_by_event(times: Ints, watermark_us: int, lateness_us: int) -> Mask:
    """Rule "event": late when ``t < W - L``."""
    return times < floor_watermark(watermark_us, lateness_us)


def late_by_window(last_ends: Ints, watermark_us: int, lateness_us: int) -> Mask:
    """Rule "window": late when even the last window of the row has ``end + L <= W``."""
    if watermark_us == UNSET:
        return np.zeros(len(last_ends), np.bool_)
    return last_ends <= floor_watermark(watermark_us, lateness_us)
