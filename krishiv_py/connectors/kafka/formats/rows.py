"""Records, which are Python objects, as columns of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.connectors.fit import harmless, relaid
from krishiv_py.connectors.values import column

_WRONG = (pa.ArrowException, TypeError, ValueError, OverflowError)
Record: TypeAlias = Any


@attrs.frozen
class ValuesOf:
    """A column of records.

    Attributes
    ----------
    one : callable
        Its value in a record; it may raise `ValueError`.
    plain : pyarrow.DataType or None
        The type of these values; None where Arrow is to see whether they are values of the column.
    logical : pyarrow.DataType or None
        What they stand for: numbers that are times.
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
            arrays.append(strict(array, field.type))
        except _WRONG as problem:
            raise ValueError(f"column {field.name!r}: {problem}") from problem
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def strict(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast where nothing is lost: to wider numbers, finer times, ms since the epoch; no text to a number.

    Raises
    ------
    ValueError, pyarrow.ArrowException
        Where something would be lost.
    """
    if array.type == type_:
        return array
    if not readable(array.type, type_):
        raise ValueError(f"a value of {array.type} is no {type_}")
    if pa.types.is_int64(type_) and pa.types.is_timestamp(array.type):
        return array.cast(pa.timestamp("ms", array.type.tz)).cast(type_)
    return relaid(array, type_)


def readable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type can be read as another: a harmless cast, a whole number as a float, a time in ms."""
    is_ = pa.types
    if is_.is_timestamp(given):
        return bool(is_.is_timestamp(wanted) or is_.is_int64(wanted))  # a bigint of event time is in ms
    return harmless(given, wanted) or bool(is_.is_integer(given) and is_.is_floating(wanted))
