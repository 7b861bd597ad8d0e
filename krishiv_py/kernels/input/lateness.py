"""Lateness: the class of every row under a watermark, and which rows are refused (SEMANTICS §4)."""

from __future__ import annotations

import attrs
import numpy as np

from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.options.query import QueryOptions


@attrs.frozen
class Classes:
    """How many rows of a batch fell in each class."""

    on_time: int = 0
    mildly_late: int = 0
    very_late: int = 0
    future: int = 0


def floor_watermark(watermark_us: int, back_us: int) -> int:
    """``W - back`` without leaving the number range: the infinities stay what they are."""
    return watermark_us if watermark_us in (UNSET, END_OF_TIME) else watermark_us - back_us


def classify(times: Ints, watermark_us: int, lateness_us: int, future_us: int) -> Classes:
    """Count the four classes. While the watermark is unset every row is on time."""
    if watermark_us == UNSET or not len(times):
        return Classes(on_time=len(times))
    behind = times < watermark_us
    very = int(np.count_nonzero(times < floor_watermark(watermark_us, lateness_us)))
    ahead = 0 if watermark_us == END_OF_TIME else int(np.count_nonzero(times > watermark_us + future_us))
    mildly = int(np.count_nonzero(behind)) - very
    return Classes(len(times) - very - mildly - ahead, mildly, very, ahead)


def class_of(time_us: int, watermark_us: int, lateness_us: int, future_us: int) -> str:
    """The class of one row, by its name."""
    found = classify(np.array([time_us]), watermark_us, lateness_us, future_us)
    return next(name for name, n in attrs.asdict(found).items() if n)


def beyond(times: Ints, watermark_us: int, begun_us: int | None, options: QueryOptions) -> Mask:
    """Rows further ahead of the watermark, or of the clock when their batch began, than tolerated (SEMANTICS §4.4)."""
    reference = begun_us if options.future_reference == "clock" else watermark_us
    if reference in (None, UNSET, END_OF_TIME):  # None: a clock that nobody set
        return np.zeros(len(times), np.bool_)
    return times > reference + options.future_us


def late_by_event(times: Ints, watermark_us: int, lateness_us: int) -> Mask:
    """Rule "event": late when ``t < W - L``."""
    return times < floor_watermark(watermark_us, lateness_us)


def late_by_window(last_ends: Ints, watermark_us: int, lateness_us: int) -> Mask:
    """Rule "window": late when even the last window of the row has ``end + L <= W``."""
    if watermark_us == UNSET:
        return np.zeros(len(last_ends), np.bool_)
    return last_ends <= floor_watermark(watermark_us, lateness_us)
