"""Values of records as columns: JSON, Arrow, and records that are Python objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.fit import MisfitError, Rule, WrongTypeError, fit, fit_batch, same_kind
from krishiv_py.connectors.json_lines import JsonLines
from krishiv_py.connectors.kafka.client import Connection
from krishiv_py.connectors.kafka.formats.registry import FRAME, number_of, registered
from krishiv_py.connectors.values import column, fitting
from krishiv_py.errors import SchemaError
from krishiv_py.types import article, type_text

NO_VALUE: Final = "no value (a tombstone)"
"""The problem of a record that has none."""


@attrs.frozen(eq=False)
class DecodedRows:
    """Values as rows.

    Attributes
    ----------
    batch : pyarrow.RecordBatch
        The rows of all good values, in their order.
    bad : tuple of (int, str)
        Which values are not rows, by place, and why.
    counts : numpy.ndarray or None
        How many rows each good value has; None where each is one row.
    """

    batch: pa.RecordBatch
    bad: tuple[tuple[int, str], ...] = ()
    counts: npt.NDArray[np.int64] | None = None


Decode: TypeAlias = "Callable[[Sequence[bytes | None]], DecodedRows]"


def decode_json(schema: pa.Schema, known: tuple[str, ...], values: Sequence[bytes | None]) -> DecodedRows:
    """Values that are one JSON object each, in the columns of `schema`; `known` are all columns a value may have.

    A value may begin with the number of its schema, as serializers for JSON Schema write it: a zero byte and four more. No
    JSON begins with a zero byte, so these are left out wherever an object follows.
    """
    texts = [v for v in values if v is not None]
    if b"\0" in b"".join(texts):
        texts = [v[5:] if v[:1] == b"\0" and v[5:6] == b"{" else v for v in texts]
    rows = JsonLines.exact(schema, known).rows(texts)
    if len(texts) == len(values):
        return DecodedRows(rows.batch, tuple(rows.bad))
    missing = [i for i, v in enumerate(values) if v is None]
    places = np.delete(np.arange(len(values)), missing)
    bad = [(int(places[i]), why) for i, why in rows.bad] + [(i, NO_VALUE) for i in missing]
    return DecodedRows(rows.batch, tuple(sorted(bad)))


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

    def meant(self, array: pa.Array, field: pa.Field) -> pa.Array:
        """Return values of the plain type as those of a column.

        Raises
        ------
        ValueError
            Where one does not fit.
        """
        try:
            if self.plain is not None and self.logical is not None and self.logical != self.plain:
                array = array.cast(self.logical)
            return fit(array, field.type, RECORD, (field.name,))
        except MisfitError:
            raise
        except _WRONG as problem:
            raise ValueError(f"column {field.name!r}: {problem}") from problem


def columns(
    schema: pa.Schema, fields: Sequence[ValuesOf], good: list[tuple[int, Record]], bad: dict[int, str]
) -> tuple[pa.RecordBatch, list[int]]:
    """Records as columns, and which of them became rows. Those with a value that does not fit are found, and noted in `bad`."""
    records = [record for _, record in good]
    try:
        return _batch(schema, fields, records), [i for i, _ in good]
    except _WRONG:
        pass
    arrays, reasons = list[pa.Array](), dict[int, str]()
    for field, of in zip(schema, fields, strict=True):
        array, wrong = _apart(field, of, records)
        arrays.append(array)
        reasons = wrong | reasons
    bad.update((good[i][0], reasons[i]) for i in sorted(reasons))
    kept = np.ones(len(good), np.bool_)
    kept[list(reasons)] = False
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema).filter(pa.array(kept))
    return batch, [good[i][0] for i in np.flatnonzero(kept).tolist()]


def _apart(field: pa.Field, of: ValuesOf, records: list[Record]) -> tuple[pa.Array, dict[int, str]]:
    """Return a column with null for the values that do not fit, and why, by their places."""
    values, wrong = list[Any](), dict[int, str]()
    for i, record in enumerate(records):
        try:
            values.append(of.one(record))
        except _WRONG as problem:
            wrong[i] = f"column {field.name!r}: {problem}"
            values.append(None)
    array, unfit = fitting(values, of.plain if of.plain is not None else field.type, extra_fields=True)
    wrong.update((i, f"column {field.name!r}: {problem}") for i, problem in unfit.items())
    try:
        return of.meant(array, field), wrong
    except _WRONG:
        pass
    try:
        of.meant(array.slice(0, 0), field)
    except _WRONG as problem:  # of the types, whatever the values are
        return pa.nulls(len(array), field.type), dict.fromkeys(range(len(array)), str(problem)) | wrong
    inexact = np.flatnonzero(_is_inexact(array, field.type))
    if len(inexact):  # the reason names types only
        _by_halves(field, of, array.slice(int(inexact[0]), 1), int(inexact[0]), wrong)
        if int(inexact[0]) in wrong:
            wrong.update(
                dict.fromkeys(inexact.tolist(), wrong[int(inexact[0])])
            )  # none of them is null, so none was wrong before
            mask = np.zeros(len(array), np.bool_)
            mask[inexact] = True
            array = pc.if_else(pa.array(mask), pa.scalar(None, array.type), array)
    return _by_halves(field, of, array, 0, wrong), wrong


def _is_inexact(array: pa.Array, type_: pa.DataType) -> npt.NDArray[np.bool_]:
    """Return which numbers and times another type surely does not have."""
    is_ = pa.types
    numbers = is_.is_integer(array.type) and (is_.is_integer(type_) or is_.is_floating(type_))
    if not numbers and not (is_.is_timestamp(array.type) and is_.is_timestamp(type_)):
        return np.zeros(len(array), np.bool_)
    back = array.cast(type_, safe=False).cast(array.type, safe=False)
    inexact: npt.NDArray[np.bool_] = pc.fill_null(pc.not_equal(back, array), False).to_numpy(zero_copy_only=False)
    return inexact


def _by_halves(field: pa.Field, of: ValuesOf, array: pa.Array, first: int, wrong: dict[int, str]) -> pa.Array:
    try:
        return of.meant(array, field)
    except _WRONG as problem:
        if len(array) <= 1:
            for row in range(first, first + len(array)):
                wrong.setdefault(row, str(problem))
            return pa.nulls(len(array), field.type)
    middle = len(array) // 2
    left = _by_halves(field, of, array.slice(0, middle), first, wrong)
    return pa.concat_arrays([left, _by_halves(field, of, array.slice(middle), first + middle, wrong)])


def one_batch(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of all parts."""
    if len(parts) == 1:
        return parts[0]
    batches = pa.Table.from_batches(parts, schema).combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def _batch(schema: pa.Schema, fields: Sequence[ValuesOf], records: list[Record]) -> pa.RecordBatch:
    arrays = []
    for field, of in zip(schema, fields, strict=True):
        values = list(map(of.one, records))
        array = column(values, of.plain if of.plain is not None else field.type, extra_fields=True)
        arrays.append(of.meant(array, field))
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
        raise ValueError(f"a value of {type_text(array.type)} is not {article(type_text(type_))}") from None
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


_FILE: Final = b"ARROW1\0\0"
"""The beginning of an IPC file."""


def decode_arrow(schema: pa.Schema, values: Sequence[bytes | None]) -> DecodedRows:
    """Return the rows of all values, in the columns of `schema`."""
    parts: list[pa.RecordBatch] = []
    bad: list[tuple[int, str]] = []
    counts: list[int] = []
    for i, value in enumerate(values):
        try:
            if value is None:
                raise ValueError(NO_VALUE)
            batch, count = _rows(value, schema)
        except (pa.ArrowException, ValueError, OSError, MemoryError) as problem:  # Arrow's errors are of all these kinds
            bad.append((i, str(problem) or type(problem).__name__))
            continue
        parts += batch
        counts.append(count)
    return DecodedRows(one_batch(parts, schema), tuple(bad), np.array(counts, np.int64))


def _rows(value: bytes, schema: pa.Schema) -> tuple[list[pa.RecordBatch], int]:
    """Return the rows of a value, and how many they are, which batches without columns do not know."""
    source = pa.BufferReader(value)
    is_file = value.startswith(_FILE)
    with pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source) as reader:
        names = reader.schema.names
        for name in schema.names:
            if names.count(name) > 1:
                raise ValueError(f"two columns are called {name!r}")
        if schema.names and not any(name in names for name in schema.names):
            raise ValueError(f"none of the columns {', '.join(schema.names[:20])}; it has: {', '.join(names[:20])}")
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)] if is_file else list(reader)
        if not is_file and source.tell() < len(value):
            raise ValueError(f"{len(value) - source.tell()} bytes are left over after the rows")
    return [_columns(batch, schema) for batch in batches], sum(batch.num_rows for batch in batches)


def _columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of a value in the columns of the stream; one that it does not have is null."""
    batch.validate(full=True)  # lengths and offsets come from outside
    return fit_batch(batch, schema, RECORD)


def decode_registered_json(
    schema: pa.Schema, known: tuple[str, ...], registry: Connection, values: Sequence[bytes | None]
) -> DecodedRows:
    """Return values as :func:`decode_json` does, which begin with the number of a schema that the registry has.

    The columns say what a value may be; it is not checked against the schema, so what that refers to is not looked up.
    """
    bad: dict[int, str] = {}
    numbers: dict[int, str] = {}
    plain: list[bytes | None] = []
    for i, value in enumerate(values):
        try:
            if value is None:
                raise ValueError(NO_VALUE)
            number = number_of(value)
            if number not in numbers:
                numbers[number] = _problem(registry, number)
            if numbers[number]:
                raise ValueError(numbers[number])
            plain.append(value[FRAME.size :])
        except ValueError as problem:
            bad[i] = str(problem)
    places = [i for i in range(len(values)) if i not in bad]
    decoded = decode_json(schema, known, plain)
    bad.update((places[i], why) for i, why in decoded.bad)
    return DecodedRows(decoded.batch, tuple(sorted(bad.items())))


def _problem(registry: Connection, number: int) -> str:
    try:
        registered(registry, number, "JSON")
    except ValueError as problem:
        return str(problem)
    return ""
