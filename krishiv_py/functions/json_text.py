"""``from_json`` and ``get_json_object``: texts to structs of a schema by the reader of Arrow, and paths such as ``$.a[0]``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from krishiv_py.errors import ExpressionError, shown
from krishiv_py.functions.computing.text import written
from krishiv_py.functions.computing.values import arrays, joined, misfit
from krishiv_py.functions.definition import Path, Schema, SqlNode, Value, example, function

_STEP: Final = re.compile(r"\.([^.\[*]+)|\[(\d{1,9})\]|\['([^'?]+)'\]")


@lru_cache(maxsize=256)
def json_path(text: str) -> tuple[str | int, ...]:
    """The steps of a path: names of fields, and places in lists, which count from 0.

    Raises
    ------
    ExpressionError
        For a value that is not a path, and for paths to more than one value.
    """
    steps: list[str | int] = []
    position = 1
    while text.startswith("$") and position < len(text):
        step = _STEP.match(text, position)
        if step is None:
            break
        name, place, quoted = step.groups()
        steps.append(int(place) if place is not None else name or quoted)
        position = step.end()
    if position != len(text) or not text.startswith("$"):
        then = "it leads nowhere, or to many values"
        hint = "write for instance '$.user.tags[0]', or \"$['first name']\"; from_json reads whole lists"
        raise ExpressionError("get_json_object takes a path to one value", got=shown(text), then=then, hint=hint)
    return tuple(steps)


_ONE_LINE: Final = r"^[ \t]*\{[^\n\r]*\}[ \t]*$"
_MINUS_ZERO: Final = r"-0[ \t]*[,}\]]"  # a whole number, so 0.0 as a double, where Arrow reads -0.0
_LONGEST: Final = 1 << 30
_FEW: Final = 16
_SPECIAL: Final = {"NaN", "Infinity", "+Infinity", "-Infinity", "INF", "+INF", "-INF"}
_BLANKS: Final = " \t\n\r"


@function("json", "struct", node=SqlNode("FromJson", "this expression"))
@example("from_json('{\"a\": 1}', 'a bigint').a", 1)
def from_json(value: Value, schema: Schema) -> Value:
    """Return the text as a struct of a DDL `schema`: ``col("body").from_json("id bigint").field("id")``.

    Fields that are missing or do not fit are null; of a text that holds no JSON object, all are.
    """
    if not (pa.types.is_string(value.type) or pa.types.is_null(value.type)):
        raise misfit(value.type)
    (column,), single = arrays(pc.cast(value, pa.string()))
    one_line = pc.match_substring_regex(column, _ONE_LINE)
    plain = pc.fill_null(pc.and_(one_line, pc.invert(pc.match_substring_regex(column, _MINUS_ZERO))), False)
    simple = np.flatnonzero(plain.to_numpy(zero_copy_only=False))
    others = np.flatnonzero(~plain.to_numpy(zero_copy_only=False))
    parts, rows = [], []
    for places, decoded in _read(column, simple, schema):
        parts.append(decoded)
        rows.append(places)
    parts.append(pa.array([None if x is None else _one(x, schema) for x in column.take(pa.array(others)).to_pylist()], schema))
    rows.append(others)
    order = np.argsort(np.concatenate(rows), kind="stable")
    return joined(pa.concat_arrays(parts).take(pa.array(order)), single)


def _read(column: pa.Array, rows: Any, type_: pa.DataType) -> Iterator[tuple[Any, pa.Array]]:
    """Rows that hold an object in one line; halved, again and again, around what Arrow does not read."""
    pending = [rows] if len(rows) else []
    while pending:
        places = pending.pop()
        texts = column.take(pa.array(places))
        decoded = _at_once(texts, type_)
        if decoded is not None:
            yield places, decoded
        elif len(places) <= _FEW:
            yield places, pa.array([_one(x, type_) for x in texts.to_pylist()], type_)
        else:
            half = len(places) // 2
            pending += [places[half:], places[:half]]


def _at_once(texts: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """The structs of texts; None if one is not read as the rules have it."""
    lines = pc.binary_join_element_wise('{"v":', texts, "}\n", "")
    data = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "")[0].as_buffer()
    if data.size > _LONGEST:
        return None
    try:
        decoded = arrow_json.read_json(
            pa.BufferReader(data),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=data.size + 1),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=pa.schema([("v", type_)]), unexpected_field_behavior="ignore", newlines_in_values=False
            ),
        )
    except pa.ArrowInvalid:
        return None
    return decoded.column(0).combine_chunks() if decoded.num_rows == len(texts) else None


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


class _Object(list["tuple[str, Any]"]):
    """An object with its fields in order, also those of one name."""

    __slots__ = ()


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
_STRICT: Final = json.JSONDecoder(object_pairs_hook=_Object, parse_int=_Number, parse_float=_Number, parse_constant=_refuse)
_NONE: Final = object()
"""A value that the type of its field cannot hold."""


def _one(text: str, type_: pa.DataType) -> dict[str, Any] | None:
    """One text by the rules of Spark's permissive mode; what follows the object is not looked at."""
    text = text.lstrip(_BLANKS)
    if not text:
        return None
    try:
        decoded, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return _empty(type_)
    return _struct(decoded, type_) if isinstance(decoded, _Object) else _empty(type_)


@function("json", "string")
@example("get_json_object('{\"a\": [7]}', '$.a[0]')", "7")
def get_json_object(value: Value, path: Path) -> Value:
    """Return what a `path` such as ``"$.user.tags[0]"`` leads to: a text as it is, anything else as JSON; or null."""
    if not (pa.types.is_string(value.type) or pa.types.is_null(value.type)):
        raise misfit(value.type)
    (column,), single = arrays(pc.cast(value, pa.string()))
    steps = json_path(path)
    return joined(pa.array([None if x is None else _at_path(x, steps) for x in column.to_pylist()], pa.string()), single)


def _at_path(text: str, path: tuple[str | int, ...]) -> str | None:
    try:
        root, _ = _STRICT.raw_decode(text.lstrip(_BLANKS))
    except (ValueError, RecursionError):
        return None
    inner = _followed(root, path)
    return None if inner is _NONE else _text(inner)


def _followed(current: Any, path: tuple[str | int, ...]) -> Any:
    """Return what lies after the steps of a path; of fields of one name the first in which the rest of it lies."""
    if not path:
        return current
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return _followed(current[step], rest) if type(current) is list and step < len(current) else _NONE
    for name, value in current if isinstance(current, _Object) else ():
        if name == step and value is not None and (inside := _followed(value, rest)) is not _NONE:
            return inside
    return _NONE


def _empty(type_: pa.DataType) -> dict[str, Any]:
    return dict.fromkeys((f.name for f in type_), None)


def _struct(fields: _Object, type_: pa.DataType) -> dict[str, Any]:
    """The fields; of those of one name the last that fits, null if none does."""
    types = {f.name: f.type for f in type_}
    made = _empty(type_)
    for name, value in fields:
        fitting = _fitting(value, types[name]) if name in types else _NONE
        if fitting is not _NONE:
            made[name] = fitting
    return made


def _fitting(value: Any, type_: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return _struct(value, type_) if isinstance(value, _Object) else _NONE
    if pa.types.is_list(type_):
        items = [_fitting(x, type_.value_type) for x in value] if type(value) is list else [_NONE]
        return _NONE if any(x is _NONE for x in items) else items
    if pa.types.is_string(type_):
        return _text(value)
    if pa.types.is_boolean(type_):
        return value if isinstance(value, bool) else _NONE
    if pa.types.is_integer(type_):
        return _whole(value, type_)
    return _floating(value, type_)


def _whole(value: Any, type_: pa.DataType) -> Any:
    if not isinstance(value, _Number) or not value.lstrip("-").isdigit() or len(value) > 20:
        return _NONE
    number, limit = int(value), 1 << (type_.bit_width - 1)
    return number if -limit <= number < limit else _NONE


def _floating(value: Any, type_: pa.DataType) -> Any:
    if not isinstance(value, _Number) and value not in (_SPECIAL if isinstance(value, str) else ()):
        return _NONE
    number = float(int(value)) if value.lstrip("-").isdigit() and len(value) < 300 else float(value)
    if pa.types.is_float32(type_):
        with np.errstate(over="ignore"):
            number = float(np.float32(number))
    return number


def _text(value: Any) -> str:
    """A text as it is, anything else as JSON without blanks, as Spark writes it again."""
    if isinstance(value, str) and not isinstance(value, _Number):
        return value.encode("utf-8", "replace").decode()
    return _json(value)


def _json(value: Any) -> str:
    if isinstance(value, _Number):
        if value.lstrip("-").isdigit():
            return str(int(value)) if len(value) < 4_000 else str(value)
        number = float(value)
        text = str(written(pa.array([number]))[0][0])
        return text if math.isfinite(number) else f'"{text}"'
    if isinstance(value, _Object):
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{_json(v)}" for k, v in value) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
