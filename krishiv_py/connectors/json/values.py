"""JSON values as values of Arrow's types: what fits is taken as it is, all else is refused with a reason."""

from __future__ import annotations

import base64
import binascii
import datetime
import decimal
import functools
import json
import math
import re
import struct
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from krishiv_py.types import type_text

_FLOATS: Final = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "-Infinity": -math.inf,
    "INF": math.inf,
    "+INF": math.inf,
    "-INF": -math.inf,
}
_INTEGER: Final = re.compile(r"-?\d{1,40}")
_FINER: Final = re.compile(r"(\.\d{6})\d+")


class JsonNumber(str):
    """A number as it was written."""

    __slots__ = ()


class JsonObject(dict[str, Any]):
    """An object that knows which of its names appear twice."""

    twice: frozenset[str] = frozenset()
    _small: dict[str, list[str]] | None = None

    @classmethod
    def of(cls, pairs: list[tuple[str, Any]]) -> JsonObject:
        """From the pairs as they were written."""
        json_object = cls(pairs)
        if len(json_object) != len(pairs):
            names = [name for name, _ in pairs]
            json_object.twice = frozenset(name for name in names if names.count(name) > 1)
        return json_object

    def has(self, name: str, as_written: bool) -> bool:
        """Return whether it has a name, maybe twice."""
        return name in self or (not as_written and name.lower() in self._by_small())

    def _by_small(self) -> dict[str, list[str]]:
        if self._small is None:
            self._small = {}
            for one in self:
                self._small.setdefault(one.lower(), []).append(one)
        return self._small

    def one(self, kind: str, name: str, as_written: bool) -> Any:
        """Return the value of a name as it is written, else of the one that differs in case only; None if it is missing.

        Raises
        ------
        ValueError
            When it appears twice.
        """
        if name in self:
            same = [name]
        elif as_written:
            return None
        else:
            same = self._by_small().get(name.lower(), [])
        if len(same) > 1 or (same and same[0] in self.twice):
            raise ValueError(f"{kind} {name!r} appears twice")
        return self[same[0]] if same else None


def kind(value: Any) -> str:
    """Return what a JSON value is, in words."""
    if isinstance(value, JsonNumber):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return {bool: "a boolean", list: "a list", JsonObject: "an object"}.get(type(value), "null")


@functools.cache
def converter(type_: pa.DataType, as_written: bool) -> Callable[[Any], Any]:
    """Return a function from JSON values (never null) to Python values that Arrow takes for the type; it raises ValueError.

    Fields of objects are found as columns are: by their names `as_written`, or in another case too (:meth:`JsonObject.one`).
    """
    is_ = pa.types
    if is_.is_boolean(type_):
        return lambda v: v if isinstance(v, bool) else _refuse(v, type_)
    if is_.is_integer(type_):
        return functools.partial(_integer, type_)
    if is_.is_floating(type_):
        return functools.partial(_float, type_)
    if is_.is_string(type_):
        return _text
    if is_.is_timestamp(type_):
        return functools.partial(_instant, type_)
    if is_.is_list(type_):
        return functools.partial(_list, type_, as_written)
    if is_.is_struct(type_):
        return functools.partial(_struct, type_, as_written)
    if is_.is_map(type_):
        return functools.partial(_map, type_, as_written)
    return functools.partial(_other, type_)


def _refuse(value: Any, type_: pa.DataType) -> Any:
    raise ValueError(f"{kind(value)} is not a {type_text(type_)}")


def _integer(type_: pa.DataType, value: Any) -> int:
    if isinstance(value, JsonNumber) and _INTEGER.fullmatch(value):
        number = int(value)
        if -(1 << (type_.bit_width - 1)) <= number < 1 << (type_.bit_width - 1):
            return number
    return int(_refuse(value, type_))


def _float(type_: pa.DataType, value: Any) -> float:
    """Return a number, or one of the texts by which Spark writes what JSON has no number for."""
    if isinstance(value, str) and value in _FLOATS:
        return _FLOATS[value]
    if not isinstance(value, JsonNumber):
        return float(_refuse(value, type_))
    number = float(value)
    if math.isinf(number):
        _refuse(value, type_)
    if type_.bit_width == 32:
        try:
            struct.pack("f", number)
        except OverflowError:
            return math.copysign(math.inf, number)
    return number


def _text(value: Any) -> str:
    """Return a text; other values as they were written, as in Spark."""
    if isinstance(value, JsonNumber):
        return str.__str__(value)
    if isinstance(value, str):
        return _encodable(value)
    return str(value).lower() if isinstance(value, bool) else _encodable(_written(value))


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise ValueError("half a surrogate pair") from problem
    return text


def _written(value: Any) -> str:
    if isinstance(value, JsonNumber):
        return str.__str__(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{_written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _instant(type_: pa.DataType, value: Any) -> Any:
    """ISO 8601; without a zone it is UTC. Digits after the sixth of a second are cut off."""
    if isinstance(value, str) and not isinstance(value, JsonNumber):
        text = pa.array([_FINER.sub(r"\1", value)])
        for parsed in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
            try:
                return text.cast(parsed).cast(pa.int64()).cast(type_)[0].value
            except pa.ArrowInvalid:
                continue
    return _refuse(value, type_)


def _list(type_: pa.DataType, as_written: bool, value: Any) -> list[Any]:
    if not isinstance(value, list):
        _refuse(value, type_)
    convert = converter(type_.value_type, as_written)
    return [None if v is None else convert(v) for v in value]


def _struct(type_: pa.DataType, as_written: bool, value: Any) -> dict[str, Any]:
    if not isinstance(value, JsonObject):
        return dict(_refuse(value, type_))
    fields = {}
    for field in type_:
        one = value.one("field", field.name, as_written)
        try:
            fields[field.name] = None if one is None else converter(field.type, as_written)(one)
        except ValueError as problem:
            raise ValueError(f"field {field.name!r}: {problem}") from problem
    return fields


def _map(type_: pa.DataType, as_written: bool, value: Any) -> list[tuple[Any, Any]]:
    if not isinstance(value, JsonObject):
        return list(_refuse(value, type_))
    if value.twice:
        raise ValueError("a key of the map occurs twice")
    item = converter(type_.item_type, as_written)
    if pa.types.is_binary(type_.key_type):
        return [(_other(type_.key_type, k), None if v is None else item(v)) for k, v in value.items()]
    try:
        keys = pa.array(list(value), pa.string()).cast(type_.key_type).to_pylist()
    except pa.ArrowInvalid:
        keys = list(_refuse(value, type_))
    return [(k, None if v is None else item(v)) for k, v in zip(keys, value.values(), strict=True)]


def _other(type_: pa.DataType, value: Any) -> Any:
    """Dates in ISO form, decimals as numbers or texts, bytes as base64, as Spark writes them."""
    if isinstance(value, str):
        try:
            if pa.types.is_date32(type_):
                return datetime.date.fromisoformat(value) if re.fullmatch(r"\d{4}-\d\d-\d\d", value) else _refuse(value, type_)
            if pa.types.is_decimal(type_):
                return pa.scalar(decimal.Decimal(value)).cast(type_).as_py()
            if pa.types.is_binary(type_) and not isinstance(value, JsonNumber):
                return base64.b64decode(value, validate=True)
        except (ValueError, binascii.Error, decimal.InvalidOperation, pa.ArrowException):
            return _refuse(value, type_)
    return _refuse(value, type_)
