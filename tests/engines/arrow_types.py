"""Every kind of Arrow type, with values, and what a stream makes of it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

UTC: Final = dt.timezone.utc
_DAYS: Final = [dt.date(2024, 2, 29), dt.date(1969, 12, 31), None, dt.date(2024, 2, 29)]
_TIMES: Final = [dt.datetime(2024, 2, 29, 12), dt.datetime(1960, 1, 1), None, dt.datetime(2024, 2, 29, 12)]
_SPANS: Final = [dt.timedelta(days=1, seconds=5), dt.timedelta(seconds=-3), None, dt.timedelta(0)]
_NUMBERS: Final = [1, 3, None, 2]
_DECIMALS: Final = [Decimal("1.25"), Decimal("-0.50"), None, Decimal("1.25")]
_BYTES: Final = [b"ab", b"\x00\xff", None, b"ab"]
_TEXTS: Final = ["ab", "é'`.", None, ""]


def _zoned(values: list[Any]) -> list[Any]:
    return [v if v is None else v.replace(tzinfo=UTC) for v in values]


ACCEPTED: Final[dict[pa.DataType, tuple[pa.DataType, list[Any]]]] = {
    pa.null(): (pa.null(), [None] * 4),
    pa.bool_(): (pa.bool_(), [True, False, None, True]),
    **{t: (t, [-1, 3, None, 2]) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    pa.uint8(): (pa.int16(), [255, *_NUMBERS[1:]]),
    pa.uint16(): (pa.int32(), [65_535, *_NUMBERS[1:]]),
    pa.uint32(): (pa.int64(), [2**32 - 1, *_NUMBERS[1:]]),
    pa.uint64(): (pa.int64(), [2**55 + 1, *_NUMBERS[1:]]),
    pa.float16(): (pa.float32(), [np.float16(1.5), np.float16("nan"), None, np.float16(0.0)]),
    pa.float32(): (pa.float32(), [1.5, float("nan"), None, -0.0]),
    pa.float64(): (pa.float64(), [1.5, float("inf"), None, 0.1]),
    **{
        t: (pa.decimal128(t.precision, t.scale), _DECIMALS)
        for t in (pa.decimal32(5, 2), pa.decimal64(12, 2), pa.decimal128(38, 2), pa.decimal256(20, 2))
    },
    **{t: (pa.string(), _TEXTS) for t in (pa.string(), pa.large_string(), pa.string_view())},
    **{t: (pa.binary(), _BYTES) for t in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2))},
    **{t: (pa.date32(), _DAYS) for t in (pa.date32(), pa.date64())},
    **{pa.timestamp(u): (pa.timestamp("us"), _TIMES) for u in ("s", "ms", "us", "ns")},
    **{pa.timestamp(u, "Asia/Tokyo"): (pa.timestamp("us", "UTC"), _zoned(_TIMES)) for u in ("s", "ms", "us", "ns")},
    **{pa.duration(u): (pa.duration("us"), _SPANS) for u in ("s", "ms", "us", "ns")},
    pa.dictionary(pa.int8(), pa.string()): (pa.string(), _TEXTS),
    pa.dictionary(pa.int32(), pa.large_binary()): (pa.binary(), _BYTES),
    pa.run_end_encoded(pa.int32(), pa.int64()): (pa.int64(), _NUMBERS),
    pa.uuid(): (pa.binary(), [b"x" * 16, b"y" * 16, None, b"x" * 16]),
    **{
        t: (pa.list_(pa.int64()), [[1, None], [3, 4], None, [1, 2]])
        for t in (pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.uint32(), 2))
    },
    pa.struct([("a b", pa.date64()), ("c.`d", pa.float16())]): (
        pa.struct([("a b", pa.date32()), ("c.`d", pa.float32())]),
        [{"a b": _DAYS[0], "c.`d": np.float16(1.5)}, {"a b": None, "c.`d": None}, None, {"a b": None, "c.`d": np.float16(2)}],
    ),
    pa.map_(pa.string(), pa.large_string()): (pa.map_(pa.string(), pa.string()), [[("a", "b")], [], None, [("a", None)]]),
}
"""Type → its normal form, and four values."""

REFUSED: Final[tuple[pa.DataType, ...]] = (
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    pa.month_day_nano_interval(),
    pa.decimal256(39, 2),
    pa.decimal128(38, -3),
    pa.list_view(pa.int8()),
    pa.large_list_view(pa.int8()),
    pa.struct([]),
    pa.struct([("a", pa.int8()), ("A", pa.int8())]),
    pa.list_(pa.time64("us")),
    pa.struct([("a", pa.time32("s"))]),
    pa.map_(pa.string(), pa.month_day_nano_interval()),
    pa.dense_union([pa.field("a", pa.int8())]),
    pa.dictionary(pa.int8(), pa.time64("us")),
)


def column(type_: pa.DataType) -> pa.Array:
    """Four values of a type."""
    values = ACCEPTED[type_][1]
    if pa.types.is_dictionary(type_):
        return pa.array(values, type_.value_type).dictionary_encode().cast(type_)
    if pa.types.is_run_end_encoded(type_):
        return pa.RunEndEncodedArray.from_arrays(pa.array([1, 2, 3, 4], pa.int32()), pa.array(values, type_.value_type))
    return pa.array(values, type_)


def is_key(type_: pa.DataType) -> bool:
    """Whether a column of the type can be a key."""
    return not (pa.types.is_nested(ACCEPTED[type_][0]) or pa.types.is_null(type_))
