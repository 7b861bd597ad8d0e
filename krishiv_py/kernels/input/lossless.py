"""Python values of which Arrow drops a part in silence when it makes a column of them."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import numbers
from typing import Any, Final

import pyarrow as pa

_LARGEST: Final = {16: 65_520.0, 32: 3.4028235677973366e38}
"""From here on a float is infinite in so many bits."""


def may_lose(type_: pa.DataType) -> bool:
    """Whether there are values that lose something in a column of this type."""
    t = pa.types
    kinds = (t.is_integer, t.is_date, t.is_float16, t.is_float32, t.is_nested)  # columns of times are in microseconds
    return any(is_one(type_) for is_one in kinds)


def loses(value: Any, type_: pa.DataType) -> bool:
    """Whether a value that Arrow takes loses something: a fraction, a time of day, its size."""
    t = pa.types
    if value is None:
        return False
    if t.is_nested(type_):
        return _parts_lose(value, type_)
    if t.is_integer(type_):
        return isinstance(value, (numbers.Real, decimal.Decimal)) and value % 1 != 0
    if t.is_date(type_):
        return isinstance(value, dt.datetime) and value.time() != dt.time()
    if t.is_float16(type_) or t.is_float32(type_):
        return isinstance(value, float) and math.isfinite(value) and abs(value) >= _LARGEST[type_.bit_width]
    return False


def _parts_lose(value: Any, type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        return isinstance(value, dict) and any(loses(value.get(f.name), f.type) for f in type_)
    if pa.types.is_map(type_):
        pairs = value.items() if isinstance(value, dict) else value
        return any(loses(k, type_.key_type) or loses(v, type_.item_type) for k, v in pairs)
    return hasattr(type_, "value_type") and any(loses(item, type_.value_type) for item in value)
