"""Spark's ``hash`` (Murmur3) and ``xxhash64``, with seed 42, over whole columns; and digests of texts."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.grouping import normal_key
from krishiv_py.arrays.ranges import by_place
from krishiv_py.arrays.types import numpy_type, words
from krishiv_py.functions.computing.casts import cast
from krishiv_py.functions.computing.checks import is_text, require
from krishiv_py.functions.computing.values import arrays, is_decimal, is_integer, joined, misfit
from krishiv_py.functions.definition import SqlNode, Value, Whole, example, function

U32: TypeAlias = npt.NDArray[np.uint32]
U64: TypeAlias = npt.NDArray[np.uint64]
Hashes: TypeAlias = npt.NDArray[Any]

_SEED: Final = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(p) for p in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
)
_DIGESTS: Final = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}


def _left(x: Hashes, bits: int) -> Hashes:
    width = x.dtype.itemsize * 8
    out: Hashes = (x << x.dtype.type(bits)) | (x >> x.dtype.type(width - bits))
    return out


class _Murmur:
    """Murmur3 of 32 bits as Spark has it: bytes behind the last whole word are mixed in one by one, with their sign."""

    type = np.uint32

    def _mixed(self, h: U32, k: U32) -> U32:
        k = _left(k * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        return _left(h ^ k, 13) * np.uint32(5) + np.uint32(0xE6546B64)

    def _final(self, h: U32, length: Any) -> U32:
        h = h ^ np.asarray(length).astype(np.uint32)
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        return h ^ (h >> np.uint32(16))

    def ints(self, h: U32, values: npt.NDArray[np.int32]) -> U32:
        return self._final(self._mixed(h, values.view(np.uint32)), 4)

    def longs(self, h: U32, values: npt.NDArray[np.int64]) -> U32:
        bits = values.view(np.uint64)
        low, high = bits.astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)
        return self._final(self._mixed(self._mixed(h, low), high), 8)

    def texts(self, h: U32, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> U32:
        h = h.copy()
        words = lengths // 4
        for rows, begins in by_place(words):
            h[rows] = self._mixed(h[rows], _word(data, starts[rows] + 4 * begins, 4).astype(np.uint32))
        for rows, begins in by_place(lengths - 4 * words):
            byte = data[starts[rows] + 4 * words[rows] + begins].view(np.int8).astype(np.int32)
            h[rows] = self._mixed(h[rows], byte.view(np.uint32))
        return self._final(h, lengths)


class _XX:
    """XXH64."""

    type = np.uint64

    def _final(self, h: U64) -> U64:
        h = (h ^ (h >> np.uint64(33))) * _P2
        h = (h ^ (h >> np.uint64(29))) * _P3
        return h ^ (h >> np.uint64(32))

    def _round(self, h: U64, k: U64) -> U64:
        return _left(h + k * _P2, 31) * _P1

    def _four(self, h: U64, k: U64) -> U64:
        return _left(h ^ (k * _P1), 23) * _P2 + _P3

    def _eight(self, h: U64, k: U64) -> U64:
        return _left(h ^ (_left(k * _P2, 31) * _P1), 27) * _P1 + _P4

    def ints(self, h: U64, values: npt.NDArray[np.int32]) -> U64:
        return self._final(self._four(h + _P5 + np.uint64(4), values.view(np.uint32).astype(np.uint64)))

    def longs(self, h: U64, values: npt.NDArray[np.int64]) -> U64:
        return self._final(self._eight(h + _P5 + np.uint64(8), values.view(np.uint64)))

    def texts(self, h: U64, data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> U64:
        out = h + _P5
        blocks = lengths // 32
        if blocks.any():
            lanes = [h + _P1 + _P2, h + _P2, h.copy(), h - _P1]
            for rows, begins in by_place(blocks):
                for lane in range(4):
                    word = _word(data, starts[rows] + 32 * begins + 8 * lane, 8)
                    lanes[lane][rows] = self._round(lanes[lane][rows], word)
            long = _left(lanes[0], 1) + _left(lanes[1], 7) + _left(lanes[2], 12) + _left(lanes[3], 18)
            for one in lanes:
                long = (long ^ self._round(np.zeros_like(long), one)) * _P1 + _P4
            out = np.where(blocks > 0, long, out)
        out = out + lengths.astype(np.uint64)
        done = 32 * blocks
        for rows, begins in by_place((lengths - done) // 8):
            out[rows] = self._eight(out[rows], _word(data, starts[rows] + done[rows] + 8 * begins, 8))
        done = lengths // 8 * 8
        for rows, _ in by_place((lengths - done) // 4):
            out[rows] = self._four(out[rows], _word(data, starts[rows] + done[rows], 4))
        done = lengths // 4 * 4
        for rows, begins in by_place(lengths - done):
            byte = data[starts[rows] + done[rows] + begins].astype(np.uint64)
            out[rows] = _left(out[rows] ^ (byte * _P5), 11) * _P1
        return self._final(out)


def _word(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], size: int) -> U64:
    """Words of `size` bytes, the lowest first."""
    out = np.zeros(len(starts), np.uint64)
    for byte in range(size):
        out |= data[starts + byte].astype(np.uint64) << np.uint64(8 * byte)
    return out


def _unscaled(column: pa.Array) -> pa.Array:
    """Long decimals as the bytes of Java's ``BigInteger``: two's complement, the highest first, as few as will do."""
    low, high = words(column)
    unscaled = [(above << 64) | below for below, above in zip(low.view(np.uint64).tolist(), high.tolist(), strict=True)]
    return pa.array(
        [x.to_bytes(((x if x >= 0 else ~x).bit_length() // 8) + 1, "big", signed=True) for x in unscaled], pa.binary()
    )


def _of(kernel: _Murmur | _XX, h: Hashes, column: pa.Array) -> Hashes:
    """The hashes of values that are not null, from those of the columns before."""
    type_ = column.type
    if pa.types.is_boolean(type_) or pa.types.is_date32(type_) or (is_integer(type_) and type_.bit_width <= 32):
        plain = pc.cast(pc.cast(column, pa.int8()) if pa.types.is_boolean(type_) else column, pa.int32())
        return kernel.ints(h, plain.to_numpy(zero_copy_only=False))
    if is_decimal(type_):
        if type_.precision <= 18:
            return kernel.longs(h, words(column)[0])
        column, type_ = _unscaled(column), pa.binary()
    if pa.types.is_floating(type_):
        numbers = column.to_numpy(zero_copy_only=False) + 0.0  # -0.0 and 0.0 are equal, and so are their hashes
        numbers = np.where(np.isnan(numbers), np.nan, numbers).astype(numpy_type(type_))
        single = pa.types.is_float32(type_)
        return kernel.ints(h, numbers.view(np.int32)) if single else kernel.longs(h, numbers.view(np.int64))
    if is_integer(type_) or pa.types.is_timestamp(type_):
        return kernel.longs(h, pc.cast(column, pa.int64()).to_numpy(zero_copy_only=False))
    if pa.types.is_struct(type_):
        return functools.reduce(lambda so_far, field: _with_nulls(kernel, so_far, field), column.flatten(), h)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _of_lists(kernel, h, column)
    if not is_text(type_):
        raise misfit(type_)
    large = pc.cast(column, pa.large_binary())
    _, offsets, data = large.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(large) + 1, 8 * large.offset)
    raw = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    return kernel.texts(h, raw, bounds[:-1], np.diff(bounds))


def _of_lists(kernel: _Murmur | _XX, h: Hashes, column: pa.Array) -> Hashes:
    """Element after element, each from the hash of those before it; in as many steps as the longest list has elements."""
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False).astype(np.int64)
    items, starts = column.flatten(), np.cumsum(lengths) - lengths
    _with_nulls(kernel, h[:0], items[:0])  # whose type must do, also where all lists are empty
    h = h.copy()
    for rows, nth in by_place(lengths):
        h[rows] = _with_nulls(kernel, h[rows], items.take(pa.array(starts[rows] + nth)))
    return h


def _with_nulls(kernel: _Murmur | _XX, h: Hashes, column: pa.Array) -> Hashes:
    """The hashes of values; a null leaves what comes before it."""
    if pa.types.is_null(column.type):
        return h
    if not column.null_count:
        return _of(kernel, h, column)
    known, out = column.is_valid().to_numpy(zero_copy_only=False), h.copy()
    out[known] = _of(kernel, h[known], column.drop_null())
    return out


def _hashed(values: tuple[Value, ...], *, wide: bool) -> Value:
    """``hash(...)``, an ``int``, or ``xxhash64(...)``, a ``bigint``; a null leaves the hash of what comes before it."""
    kernel: _Murmur | _XX = _XX() if wide else _Murmur()
    columns, single = arrays(*values)
    out = np.full(len(columns[0]), _SEED, kernel.type)
    for column in columns:
        with np.errstate(over="ignore"):
            out = _with_nulls(kernel, out, column)
    return joined(pa.array(out.view(np.int64 if wide else np.int32)), single)


@function("hashes", "int", name="hash", nulls="own", method=False)
@example("hash('a')", 1485273170)
def hash_(value: Value, *more: Value) -> Value:
    """Return the Murmur3 hash of Spark, with seed 42, of the values; nulls are passed over."""
    return _hashed((value, *more), wide=False)


@function("hashes", "bigint", nulls="own", method=False)
@example("xxhash64('a')", -8582455328737087284)
def xxhash64(value: Value, *more: Value) -> Value:
    """Return the XXH64 hash of Spark, with seed 42, of the values; nulls are passed over."""
    return _hashed((value, *more), wide=True)


def _digest(value: Value, how: str | None) -> Value:
    """A digest as hexadecimal text, computed once for equal values; null for one that is not known."""
    require(is_text, value)
    (column,), single = arrays(pc.cast(value, pa.binary()))
    if how is None:
        return joined(pa.nulls(len(column), pa.string()), single)
    make: Callable[[bytes], Any] = getattr(hashlib, how)
    distinct = column.dictionary_encode()
    texts = [None if x is None else make(x).hexdigest() for x in distinct.dictionary.to_pylist()]
    return joined(pa.array(texts, pa.string()).take(distinct.indices), single)


@function("hashes", "string", node=SqlNode("MD5"), method=False)
@example("md5('a')", "0cc175b9c0f1b6a831c399e269772661")
def md5(value: Value) -> Value:
    """Return the MD5 digest of text or bytes, hexadecimal."""
    return _digest(value, "md5")


@function("hashes", "string", node=SqlNode("SHA2", "this length"), method=False)
@example("sha2('a', 256)", "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb")
def sha2(value: Value, bits: Whole) -> Value:
    """Return the SHA-2 digest of text or bytes, hexadecimal; `bits` is 0 (256), 224, 256, 384 or 512, others give null."""
    return _digest(value, _DIGESTS.get(bits))


@function("hashes", "binary", in_text=False, method=False, nulls="own")
def distinct_key(value: Value, other: Value, *more: Value) -> Value:
    """Return bytes that are equal if, and only if, the values are: each with its length before it; null where one is."""
    columns, single = arrays(value, other, *more)
    parts = [part for column in columns for part in _column_parts(column)]
    return joined(pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary())), single)


def _column_parts(column: pa.Array) -> tuple[pa.Array, pa.Scalar, pa.Array]:
    """A column as bytes, with their number before it."""
    type_ = column.type
    if pa.types.is_nested(type_):
        raise misfit(type_)
    if pa.types.is_null(type_):
        column = pa.nulls(len(column), pa.binary())
    elif pa.types.is_date(type_):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(type_):
        column = column.cast(pa.int64())
    plain = normal_key(column)  # one zero, one NaN
    if not pa.types.is_binary(plain.type):
        plain = pc.cast(cast(plain, pa.string(), named=True), pa.binary())
    length = pc.cast(pc.cast(pc.binary_length(plain), pa.string()), pa.binary())
    return length, pa.scalar(b":", pa.binary()), plain
