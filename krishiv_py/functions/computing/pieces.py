"""Texts and lists in pieces: joined, found, exchanged, taken out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.functions.computing.functions import alike, require
from krishiv_py.functions.computing.strings import text
from krishiv_py.functions.computing.values import Value, arrays, joined


def concat_ws(separator: Value, values: list[Value]) -> Value:
    """Texts, and those in lists, with a separator between them; nulls are passed over, a null separator gives null."""
    require(pa.types.is_string, separator)
    for value in values:
        if not pa.types.is_list(value.type) or not (
            pa.types.is_string(value.type.value_type) or pa.types.is_null(value.type.value_type)
        ):
            require(pa.types.is_string, value)
    (between, *columns), single = arrays(pc.cast(separator, pa.string()), *values)
    if not columns:
        return joined(pc.if_else(between.is_valid(), "", between), single)
    if not any(pa.types.is_list(c.type) for c in columns):
        found = pc.cast(columns[0], pa.string())
        for column in columns[1:]:  # Arrow's own way to skip nulls loses the rows in which all are null
            text = pc.cast(column, pa.string())
            found = pc.coalesce(pc.binary_join_element_wise(found, text, between), found, text)
        return joined(pc.if_else(between.is_valid(), pc.fill_null(found, ""), between), single)
    rows = zip(between.to_pylist(), *(c.to_pylist() for c in columns), strict=True)
    return joined(pa.array([_joined_row(first, rest) for first, *rest in rows], pa.string()), single)


def _joined_row(separator: str | None, values: list[str | list[str | None] | None]) -> str | None:
    if separator is None:
        return None
    parts = [x for value in values for x in (value if isinstance(value, list) else [value])]
    return separator.join(x for x in parts if x is not None)


def _of_distinct(value: Value, change: Callable[[str], str]) -> Value:
    """A change of texts, made once for equal ones."""
    (column,), single = arrays(text(value))
    known = column.dictionary_encode()
    changed = pa.array([None if x is None else change(x) for x in known.dictionary.to_pylist()], pa.string())
    return joined(changed.take(known.indices), single)


def place_of(value: Value, part: Value) -> Value:
    """``instr``: the place of the first character of `part`, from 1 on; 0 if it is not there."""
    value, part = text(value), text(part)
    (column,), single = arrays(value)
    if isinstance(part, pa.Scalar) and part.is_valid and pc.all(pc.string_is_ascii(column)).as_py() is not False:
        return pc.cast(pc.add(pc.find_substring(value, part.as_py()), 1), pa.int32())
    (column, parts), single = arrays(value, part)
    pairs = zip(column.to_pylist(), parts.to_pylist(), strict=True)
    found = [None if x is None or y is None else x.find(y) + 1 for x, y in pairs]
    return joined(pa.array(found, pa.int32()), single)


def replaced(value: Value, part: str, by: str) -> Value:
    """``replace``: every `part`, a plain text, exchanged; nothing is where it is empty."""
    return pc.replace_substring(text(value), part, by) if part else text(value)


def translated(value: Value, characters: str, by: str) -> Value:
    """``translate``: each of some characters exchanged for the one at its place in `by`, or left out if there is none."""
    table: dict[int, str | None] = {}
    for at, char in enumerate(characters):
        table.setdefault(ord(char), by[at] if at < len(by) else None)
    return _of_distinct(value, lambda x: x.translate(table))


def backwards(value: Value) -> Value:
    """``reverse``."""
    return pc.utf8_reverse(text(value))


def repeated_text(value: Value, times: int) -> Value:
    """``repeat``."""
    (column,), single = arrays(text(value))
    return joined(pc.binary_repeat(column, max(times, 0)), single)


def list_of(values: list[Value]) -> Value:
    """``array(a, b, ...)``: the values, in the type they meet in."""
    if not values:
        return pa.scalar([], pa.list_(pa.null()))
    columns, single = arrays(*alike(values))
    n, width = len(columns[0]), len(columns)
    places = pa.array(np.arange(n * width, dtype=np.int64).reshape(width, n).T.ravel())
    offsets = pa.array(np.arange(0, n * width + 1, width), pa.int32())
    return joined(pa.ListArray.from_arrays(offsets, pa.concat_arrays(columns).take(places)), single)


def element_or_null(value: Value, at: Value, from_one: bool) -> Value:
    """``get(list, i)`` from 0 on, ``try_element_at(list, i)`` from 1 on or from the end: null beyond the list."""
    require(pa.types.is_list, value)
    require(pa.types.is_integer, at)
    if pa.types.is_null(value.type):
        return value
    (column, places), single = arrays(value, pc.cast(at, pa.int64()))
    lengths = pc.cast(pc.list_value_length(column), pa.int64())
    if from_one:
        places = pc.if_else(pc.greater(places, 0), pc.subtract(places, 1), pc.add(lengths, places))
    inside = pc.fill_null(pc.and_(pc.greater_equal(places, 0), pc.less(places, lengths)), False)
    starts = pc.cast(pa.array(column.offsets[:-1]), pa.int64())
    return joined(column.values.take(pc.if_else(inside, pc.add(starts, places), pa.scalar(None, pa.int64()))), single)
