"""Arrow tables as bytes, and watermarks as Spark's millisecond clock.

Spark keeps one non-negative watermark in milliseconds. Ours may be negative and has the resolution of the time column, so
it travels shifted and scaled: one Spark "millisecond" stands for one tick (1 µs for timestamps, 1 ms for bigint columns).
"""

from __future__ import annotations

import io
from typing import Final

import pyarrow as pa

from krishiv_py.plan.durations import END_OF_TIME, MAX_TIME_US, UNSET

_SHIFT: Final = 4_600_000_000_000_000
_END_MS: Final = 9_200_000_000_000_000
NOT_YET_MS: Final = 0
CLOCK_TYPE: Final = pa.timestamp("us", "UTC")


def encode(table: pa.Table) -> bytes:
    """A table as one IPC stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def decode(blob: bytes) -> pa.Table:
    """A table from an IPC stream, without copying the bytes."""
    return pa.ipc.open_stream(pa.py_buffer(blob)).read_all()


def clock_ms(watermark_us: int, tick_us: int) -> int:
    """Spark's watermark for ours."""
    if watermark_us == UNSET:
        return NOT_YET_MS
    if watermark_us == END_OF_TIME:
        return _END_MS
    return max(watermark_us // tick_us, -MAX_TIME_US) + _SHIFT


def watermark_of(ms: int, tick_us: int) -> int:
    """Our watermark for Spark's."""
    if ms <= NOT_YET_MS:
        return UNSET
    if ms >= _END_MS:
        return END_OF_TIME
    return (ms - _SHIFT) * tick_us


def wakeup_ms(watermark_us: int, tick_us: int) -> int:
    """The first clock value at which the watermark has reached `watermark_us`."""
    return min(-(-watermark_us // tick_us) + _SHIFT, _END_MS)
