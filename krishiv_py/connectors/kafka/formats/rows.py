"""Records, which are Python objects, as columns of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.fit import MisfitError, Rule, WrongTypeError, fit, same_kind
from krishiv_py.connectors.values import column
from krishiv_py.errors import SchemaError
from krishiv_py.types import type_text

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
        return _batch(schema, fields, [record for _, record in good]), [i for i, _ in good]
    except _WRONG as problem:
        if len(good) <= 1:
            for i, _ in good:
                bad[i] = str(problem)
            return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema), []
        middle = len(good) // 2
        parts = [columns(schema, fields, half, bad) for half in (good[:middle], good[middle:])]
        return one_batch([part[0] for part in parts], schema), [i for part in parts for i in part[1]]


def one_batch(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of all parts."""
    if len(parts) == 1:
        return parts[0]
    batches = pa.Table.from_batches(parts, schema).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def _batch(schema: pa.Schema, fields: Sequence[ValuesOf], records: list[Record]) -> pa.RecordBatch:
    arrays = []
    for field, of in zip(schema, fields, strict=True):
        try:
            values = list(map(of.one, records))
            array = column(values, of.plain if of.plain is not None else field.type, extra_fields=True)
            if of.plain is not None and of.logical is not None and of.logical != of.plain:
                array = array.cast(of.logical)
            arrays.append(fit(array, field.type, RECORD, (field.name,)))
        except MisfitError:
            raise
        except _WRONG as problem:
            raise ValueError(f"column {field.name!r}: {problem}") from problem
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _leaf(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Values of records where nothing is lost: wider numbers, finer times, ms since the epoch; no text becomes a number.

    Raises
    ------
    ValueError
        Where something would be lost; its text shows no value.
    """
    is_ = pa.types
    try:
        if is_.is_int64(type_) and is_.is_timestamp(array.type):  # a bigint of event time is in ms
            return array.cast(pa.timestamp("ms", array.type.tz)).cast(type_)
        if is_.is_time(array.type):
            return _time_of_day(array, type_)
        if is_.is_integer(array.type) and is_.is_floating(type_):
            return array.cast(type_)
        if is_.is_timestamp(array.type) and is_.is_timestamp(type_):
            return array.cast(type_)
        return same_kind(array, type_)
    except (WrongTypeError, SchemaError):
        raise ValueError(f"a value of {type_text(array.type)} is not a {type_text(type_)}") from None
    except pa.ArrowException:
        raise ValueError(f"a part of a value of {type_text(array.type)} would be lost in {type_text(type_)}") from None


RECORD: Final = Rule(missing="null", extra="skip", leaf=_leaf)
"""Records, which may be of an older or a newer kind than the columns; names are as in the schema."""


def _time_of_day(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Times of a day as text, as the length since midnight, or as a number in their unit."""
    if not (pa.types.is_integer(type_) or pa.types.is_string(type_) or pa.types.is_duration(type_)):
        raise WrongTypeError
    count = array.cast(pa.int32() if pa.types.is_time32(array.type) else pa.int64())
    bounds = pc.min_max(count)
    if len(array) > array.null_count and not (bounds["min"].as_py() >= 0 and bounds["max"].as_py() < _DAY[array.type.unit]):
        raise ValueError(f"a value of {type_text(array.type)} is not within a day")
    if pa.types.is_string(type_):
        return array.cast(type_)
    if pa.types.is_duration(type_):
        return count.cast(pa.int64()).cast(pa.duration(array.type.unit)).cast(type_)
    return count.cast(type_)
