"""Records, which are Python objects, as columns of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.fit import harmless, relaid
from krishiv_py.connectors.values import column

_WRONG = (pa.ArrowException, TypeError, ValueError, OverflowError)
Record: TypeAlias = Any
_DAY: Final = {"ms": 86_400_000, "us": 86_400_000_000}


@attrs.frozen
class ValuesOf:
    """A column of records.

    Attributes
    ----------
    one : callable
        Its value in a record; it may raise `ValueError`.
    plain : pyarrow.DataType or None
        The type of these values, of any depth; None where they are to be values of the column as they are.
    logical : pyarrow.DataType or None
        What they mean: the same type with times in place of numbers.
    """

    one: Callable[[Record], Any]
    plain: pa.DataType | None
    logical: pa.DataType | None


def columns(
    schema: pa.Schema, fields: Sequence[ValuesOf], good: list[tuple[int, Record]], bad: dict[int, str]
) -> tuple[pa.RecordBatch, list[int]]:
    """Records as columns, and which of them became rows. Those with a value that does not fit are found, and noted in `bad`."""
    try:
        return _batch(schema, fields, [record for _, record in good]), [at for at, _ in good]
    except _WRONG as problem:
        if len(good) <= 1:
            for at, _ in good:
                bad[at] = str(problem)
            return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema), []
        middle = len(good) // 2
        parts = [columns(schema, fields, half, bad) for half in (good[:middle], good[middle:])]
        return one_batch([part[0] for part in parts], schema), [at for part in parts for at in part[1]]


def one_batch(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of all parts."""
    if len(parts) == 1:
        return parts[0]
    batches = pa.Table.from_batches(parts, schema).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def _batch(schema: pa.Schema, fields: Sequence[ValuesOf], records: list[Record]) -> pa.RecordBatch:
    arrays = []
    for field, of in zip(schema, fields, strict=True):
        try:
            values = list(map(of.one, records))
            array = column(values, of.plain if of.plain is not None else field.type, further=True)
            if of.plain is not None and of.logical is not None and of.logical != of.plain:
                array = array.cast(of.logical)
            arrays.append(_inside(array, field.type))
        except _WRONG as problem:
            raise ValueError(f"column {field.name!r}: {problem}") from problem
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def strict(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast where nothing is lost: to wider numbers, finer times, ms since the epoch; no text to a number.

    Raises
    ------
    ValueError
        Where something would be lost; its text shows no value.
    """
    if array.type == type_:
        return array
    if not readable(array.type, type_):
        raise ValueError(f"a value of {array.type} is no {type_}")
    try:
        if pa.types.is_int64(type_) and pa.types.is_timestamp(array.type):
            return array.cast(pa.timestamp("ms", array.type.tz)).cast(type_)
        if pa.types.is_time(array.type):
            return _time_of_day(array, type_)
        return relaid(array, type_)
    except pa.ArrowException:
        raise ValueError(f"a part of a value of {array.type} would be lost in {type_}") from None


def _inside(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """:func:`strict` for the values inside of structs, lists and maps; the array begins at its first buffer entry."""
    is_, given = pa.types, array.type
    if given == type_:
        return array
    if is_.is_struct(given) and is_.is_struct(type_):
        parts = [_inside(array.field(f.name), f.type) for f in type_]
        return pa.StructArray.from_arrays(parts, fields=list(type_), mask=array.is_null())
    if is_.is_list(given) and is_.is_list(type_):
        below = _inside(array.values, type_.value_type)
        return pa.Array.from_buffers(type_, len(array), array.buffers()[:2], array.null_count, children=[below])
    if is_.is_map(given) and is_.is_map(type_):
        entries = [array.keys, _inside(array.items, type_.item_type)]
        pairs = pa.StructArray.from_arrays(entries, fields=[type_.key_field, type_.item_field])
        return pa.Array.from_buffers(type_, len(array), array.buffers()[:2], array.null_count, children=[pairs])
    return strict(array, type_)


def _time_of_day(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Times of a day as text, as the length since midnight, or as a number in their unit."""
    count = array.cast(pa.int32() if pa.types.is_time32(array.type) else pa.int64())
    bounds = pc.min_max(count)
    if len(array) > array.null_count and not (bounds["min"].as_py() >= 0 and bounds["max"].as_py() < _DAY[array.type.unit]):
        raise ValueError(f"a value of {array.type} is not within a day")
    if pa.types.is_string(type_):
        return array.cast(type_)
    if pa.types.is_duration(type_):
        return count.cast(pa.int64()).cast(pa.duration(array.type.unit)).cast(type_)
    return count.cast(type_)


def readable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type can be read as another: a harmless cast, a whole number as a float, a time in ms."""
    is_ = pa.types
    if is_.is_timestamp(given):
        return bool(is_.is_timestamp(wanted) or is_.is_int64(wanted))  # a bigint of event time is in ms
    if is_.is_time(given):
        return bool(is_.is_integer(wanted) or is_.is_string(wanted) or is_.is_duration(wanted))
    return harmless(given, wanted) or bool(is_.is_integer(given) and is_.is_floating(wanted))
