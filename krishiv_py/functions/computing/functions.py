"""Functions of text, and those that choose between values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.functions.computing.values import Value, arrays, coerced, common, joined, misfit


def require(holds: Callable[[pa.DataType], bool], *values: Value) -> None:
    """Refuse values of other types; null has every type."""
    for value in values:
        if not holds(value.type) and not pa.types.is_null(value.type):
            raise misfit(*(v.type for v in values))


def boolean(value: Value) -> Value:
    """A condition."""
    require(pa.types.is_boolean, value)
    return pc.cast(value, pa.bool_()) if pa.types.is_null(value.type) else value


def is_text(type_: pa.DataType) -> bool:
    """Whether values are texts or bytes."""
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


def in_case(value: Value, upper: bool) -> Value:
    """``upper(x)``, ``lower(x)``: one letter may become two, as ß becomes SS."""
    require(pa.types.is_string, value)
    (column,), single = arrays(pc.cast(value, pa.string()))
    ascii_ = pc.string_is_ascii(column)
    found = pc.ascii_upper(column) if upper else pc.ascii_lower(column)
    if pc.all(ascii_).as_py() is not False:
        return joined(found, single)
    distinct = column.dictionary_encode()
    texts = [None if x is None else x.upper() if upper else x.lower() for x in distinct.dictionary.to_pylist()]
    return joined(pa.array(texts, pa.string()).take(distinct.indices), single)


def length(value: Value) -> Value:
    """Characters of a text, bytes of a binary."""
    require(is_text, value)
    return pc.binary_length(value) if pa.types.is_binary(value.type) else pc.utf8_length(pc.cast(value, pa.string()))


def found_in(value: Value, part: Value, at_start: bool) -> Value:
    """``contains(text, part)``, ``starts_with(text, part)``."""
    require(is_text, value, part)
    if not pa.types.is_null(value.type) and not pa.types.is_null(part.type) and value.type != part.type:
        raise misfit(value.type, part.type)
    if pa.types.is_null(part.type) or (isinstance(part, pa.Scalar) and not part.is_valid):
        (texts,), single = arrays(value)
        return joined(pa.nulls(len(texts), pa.bool_()), single)
    if isinstance(part, pa.Scalar):
        return (pc.starts_with if at_start else pc.match_substring)(value, part.as_py())
    (texts, parts), single = arrays(value, part)
    hit: Callable[[Any, Any], bool] = (lambda a, b: a.startswith(b)) if at_start else (lambda a, b: b in a)
    pairs = zip(texts.to_pylist(), parts.to_pylist(), strict=True)
    return joined(pa.array([None if a is None or b is None else hit(a, b) for a, b in pairs], pa.bool_()), single)


def alike(values: list[Value]) -> list[Value]:
    """Values in the one type they meet in."""
    type_ = values[0].type
    for value in values[1:]:
        met = common(type_, value.type)
        if met is None:
            raise misfit(type_, value.type)
        type_ = met
    return [coerced(v, type_) for v in values]


def struct_of(labels: list[str], values: list[Value]) -> Value:
    """A struct of values, of one length."""
    columns, single = arrays(*values)
    return joined(pa.StructArray.from_arrays(columns, names=labels), single)
