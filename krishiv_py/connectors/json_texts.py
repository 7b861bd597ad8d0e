"""Columns as JSON texts."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.values import check_years, not_written

_TO_ESCAPE: Final = r'["\\\x00-\x1f\x7f]'
_MICROSECOND: Final = dt.timedelta(microseconds=1)
_NO_NUMBER: Final = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def objects(table: pa.Table, names: Sequence[str]) -> pa.ChunkedArray:
    """Each row as one JSON object of the columns `names`; null is written as ``null``."""
    if not table.num_rows:
        return pa.chunked_array([[]], pa.string())
    parts: list[Any] = []
    for i, name in enumerate(names):
        parts += [("," if i else "{") + json.dumps(name, ensure_ascii=False) + ":", texts(table.column(name), name)]
    return pc.binary_join_element_wise(*(parts or ["{"]), "}", "")


def texts(values: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Each value of a column called `name` as a JSON text that the JSON reader of the library reads back as the same value.

    Raises
    ------
    OperatorError
        For a time before year 1 or after 9999, and a map that has a key twice.
    """
    check_years(values, name, "JSON")
    return pc.fill_null(_texts(values, name), "null").cast(pa.string())


def has_text(type_: pa.DataType) -> bool:
    """Return whether the JSON reader of the library reads values of a type back: durations it does not."""
    return not pa.types.is_duration(type_) and all(has_text(type_.field(i).type) for i in range(type_.num_fields))


def _texts(values: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    type_, is_ = values.type, pa.types
    if is_.is_boolean(type_) or is_.is_integer(type_) or is_.is_decimal(type_):
        return values.cast(pa.string())
    if is_.is_float32(type_) or is_.is_float64(type_):
        plain = values.cast(pa.string())
        whole = pc.match_substring_regex(plain, "^-?[0-9]+$")  # a reader that asks values for their type shall see a double
        plain = pc.binary_join_element_wise(plain, pc.if_else(whole, ".0", ""), "")
        for text, instead in _NO_NUMBER.items():
            plain = pc.if_else(pc.equal(plain, text), instead, plain)
        return plain
    if is_.is_string(type_):
        return _quoted(values)
    if is_.is_timestamp(type_):
        utc = values.cast(pa.timestamp("us", type_.tz))
        return pc.strftime(_in_utc(utc), '"%Y-%m-%dT%H:%M:%SZ"' if type_.tz else '"%Y-%m-%dT%H:%M:%S"')
    if is_.is_date(type_):
        return pc.strftime(values.cast(pa.timestamp("s")), '"%Y-%m-%d"')
    try:
        return pa.chunked_array([[None if v is None else _one(v, type_) for v in values.to_pylist()]], pa.string())
    except OverflowError:
        raise not_written(name, "JSON", "a time before year 1 or after 9999", "filter such rows") from None
    except KeyError as problem:
        hint = "leave one of them out: an object has each name once"
        raise not_written(name, "JSON", f"a map with the key {problem} twice", hint) from None


def _in_utc(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values if values.type.tz is None else values.cast(pa.timestamp("us", "UTC"))


def _quoted(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts in quotes; only those with something to escape pass through Python."""
    rare = pc.fill_null(pc.match_substring_regex(values, _TO_ESCAPE), False)
    if not pc.any(rare).as_py():
        return pc.binary_join_element_wise('"', values, '"', "")
    quoted = [None if v is None else json.dumps(v, ensure_ascii=False) for v in values.to_pylist()]
    return pa.chunked_array([quoted], pa.string())


def _one(value: Any, type_: pa.DataType) -> str:
    return json.dumps(_as_json(value, type_), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _as_json(value: Any, type_: pa.DataType) -> Any:
    """Return a value of a list, struct or map, or bytes, as JSON has it."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {f.name: _as_json(value[f.name], f.type) for f in type_}
    if pa.types.is_map(type_):
        plain: dict[str, Any] = {}
        for k, v in value:
            if (key := _name(k, type_.key_type)) in plain:
                raise KeyError(key)
            plain[key] = _as_json(v, type_.item_type)
        return plain
    if isinstance(value, list):
        return [_as_json(v, type_.value_type) for v in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        text = value.astimezone(dt.timezone.utc).isoformat() if value.tzinfo else value.isoformat()
        return text.replace("+00:00", "Z")
    if isinstance(value, dt.date):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return _interval(value)
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _interval(value: dt.timedelta) -> str:
    """Return a duration as Spark writes it."""
    seconds, rest = divmod(abs(value) // _MICROSECOND, 1_000_000)
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    minutes, hours = seconds // 60, seconds // 3_600
    sign = "-" if value < dt.timedelta() else ""
    return f"INTERVAL '{sign}{hours // 24} {hours % 24:02d}:{minutes % 60:02d}:{seconds % 60:02d}{fraction}' DAY TO SECOND"


def _name(key: Any, type_: pa.DataType) -> str:
    plain = _as_json(key, type_)
    return plain if isinstance(plain, str) else json.dumps(plain)
