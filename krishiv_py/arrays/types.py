"""NumPy arrays by what they hold, as Arrow has them, and decimals as floating-point numbers."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints: TypeAlias = npt.NDArray[np.int64]
Hashes: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]
NumPy: TypeAlias = npt.NDArray[Any]


def as_arrow(values: NumPy) -> pa.Array:
    """Return numbers of 64 or 32 bits as an Arrow array without nulls, over the same memory.

    It is what ``pa.array`` gives, in half the time: that looks for other kinds of input first.
    """
    type_ = _NUMBERS.get(values.dtype)
    if type_ is None or not values.flags.c_contiguous:
        return pa.array(values)
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])


def is_number(type_: pa.DataType) -> bool:
    """Return whether :func:`as_arrow` gives back what NumPy has of an array of a type without nulls."""
    return type_.id in _IDS


_NUMBERS: Final = {np.dtype(np.int64): pa.int64(), np.dtype(np.int32): pa.int32(), np.dtype(np.float64): pa.float64()}
_IDS: Final = frozenset(type_.id for type_ in _NUMBERS.values())


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
