"""Decimals as floating-point numbers."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Ints

_EXACT_TENS: Final = 22  # powers of ten up to this one are exact doubles
_EXACT_INTEGER: Final = 2**53
_NONE: Final = np.zeros((0, 4), np.int64)


def words(column: pa.Array) -> tuple[Ints, Ints]:
    """Return the lower and upper 64 bits of decimals without their point; of nulls anything."""
    if not len(column):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    halves = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 2)[column.offset : column.offset + len(column)]
    return halves[:, 0], halves[:, 1]


def quotients(column: pa.Array, divisors: Ints) -> pa.Array:
    """Return the doubles nearest to decimals of 256 bits divided by positive whole numbers."""
    missing = column.is_null().to_numpy(zero_copy_only=False)
    tens, n = 10**column.type.scale, len(column)
    bits = np.frombuffer(column.buffers()[1], np.int64).reshape(-1, 4)[column.offset : column.offset + n] if n else _NONE
    low = bits[:, 0]
    short = (bits[:, 1:] == (low >> 63)[:, None]).all(axis=1) & (low <= _EXACT_INTEGER) & (low >= -_EXACT_INTEGER)
    short &= divisors <= _EXACT_INTEGER // tens
    quotient = np.zeros(n)
    np.divide(low, divisors * float(tens), out=quotient, where=short & ~missing)  # of two exact doubles: rounded once
    for row in np.flatnonzero(~short & ~missing).tolist():  # Python rounds the quotient of two integers once, too
        quotient[row] = int.from_bytes(bits[row].tobytes(), "little", signed=True) / (tens * int(divisors[row]))
    return pa.array(quotient, mask=missing)


def doubles(column: pa.Array) -> pa.Array:
    """Numbers as doubles, decimals as the nearest ones: Arrow's own cast of decimals may be off by one in the last place."""
    if not pa.types.is_decimal(column.type):
        return pc.cast(column, pa.float64(), safe=False)
    scale = column.type.scale
    missing = column.is_null().to_numpy(zero_copy_only=False)
    long = np.ones(len(column), np.bool_)
    quotient = np.zeros(len(column))
    if pa.types.is_decimal128(column.type) and 0 <= scale <= _EXACT_TENS and len(column):
        low, high = words(column)
        long = (high != low >> 63) | (low > _EXACT_INTEGER) | (low < -_EXACT_INTEGER)
        quotient = low / 10.0**scale  # both are exact, so the quotient is the nearest
    long &= ~missing
    if long.any():  # read as text, which is rounded once
        rows = np.flatnonzero(long)
        quotient[rows] = pc.cast(pc.cast(column.take(pa.array(rows)), pa.string()), pa.float64()).to_numpy()
    return pa.array(quotient, mask=missing)
