"""Arrow data of any layout as columns of a stream's types, without changing what they mean."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.errors import SchemaError, message
from krishiv_py.plan.types import normal_type


def fitted(column: pa.Array, field: pa.Field, consequence: str, *, casts: bool = False) -> pa.Array:
    """A column in the type of `field`.

    Parameters
    ----------
    column : pyarrow.Array
        What came in: another layout, time unit or width of the type is fine as long as no value is lost.
    field : pyarrow.Field
        A column of a stream, hence of a normal type (:func:`krishiv_py.plan.types.normal_type`).
    consequence : str
        What follows from a refusal: "the batch was not sent".
    casts : bool
        Whether any checked cast will do, as for what a function returns under a schema its author declared.

    Raises
    ------
    SchemaError
        For another type, a value that does not fit, and a null where there may be none.
    """
    if column.type != field.type:
        column = _cast(column, field, consequence, casts)
    if not field.nullable and column.null_count:
        raise SchemaError(
            message(
                f"column {field.name!r} holds nulls, but was declared without",
                f"{column.null_count} nulls",
                consequence,
                "fill them, or declare the column nullable",
            )
        )
    return column


def _cast(column: pa.Array, field: pa.Field, consequence: str, casts: bool) -> pa.Array:
    if not casts and not harmless(column.type, field.type):
        raise SchemaError(
            message(
                f"column {field.name!r} has the wrong type",
                f"{column.type}, the stream has {field.type}",
                consequence,
                f"cast the column to {field.type}",
            )
        )
    try:
        return relaid(column, field.type)
    except pa.ArrowException as problem:
        raise SchemaError(
            message(
                f"column {field.name!r} does not fit {field.type}",
                str(problem).splitlines()[0],
                consequence,
                f"cast the column to {field.type}",
            )
        ) from problem


def relaid(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """The values of `column` in a type for which its own is :func:`harmless`.

    Raises
    ------
    pyarrow.ArrowException
        When a value does not fit.
    """
    plain = unpacked(column)
    if pa.types.is_integer(plain.type) and pa.types.is_decimal(type_):  # Arrow asks for room for any number
        plain = plain.cast(pa.decimal128(38, min(type_.scale, 18)))
    return plain.cast(type_)


def unpacked(column: pa.Array) -> pa.Array:
    """Values instead of references to them: no dictionary, run or extension at the top."""
    type_ = column.type
    if isinstance(type_, pa.BaseExtensionType):
        return unpacked(column.storage)
    if pa.types.is_run_end_encoded(type_):
        return unpacked(pc.run_end_decode(column))
    if pa.types.is_dictionary(type_):
        wide = column.dictionary.cast(normal_type(type_.value_type))  # views and halves cannot be looked up everywhere
        return wide.take(column.indices)
    return column


def harmless(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a checked cast keeps the meaning: another width, time unit or layout, all null; never another kind of value."""
    types = pa.types
    if types.is_null(given):
        return True
    try:
        plain = normal_type(given)
    except SchemaError:
        return False
    if types.is_list(plain) and types.is_list(wanted):
        return harmless(plain.value_type, wanted.value_type)
    if types.is_map(plain) and types.is_map(wanted):
        return harmless(plain.key_type, wanted.key_type) and harmless(plain.item_type, wanted.item_type)
    if types.is_struct(plain) and types.is_struct(wanted):
        return all(wanted.get_field_index(f.name) >= 0 and harmless(f.type, wanted.field(f.name).type) for f in plain)
    if types.is_integer(plain):
        return bool(types.is_integer(wanted) or types.is_decimal(wanted))
    if types.is_decimal(plain):
        return bool(types.is_decimal(wanted))
    return bool(plain == wanted or (types.is_float32(plain) and types.is_float64(wanted)))


def normal(column: pa.Array) -> pa.Array:
    """A computed column in the normal form of its type.

    Raises
    ------
    SchemaError
        For a type no column can have.
    """
    wanted = normal_type(column.type)
    return column if wanted == column.type else unpacked(column).cast(wanted)
