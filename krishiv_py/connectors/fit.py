"""Arrow data of any layout as columns of a stream's types, without changing what they mean."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.errors import SchemaError, message
from krishiv_py.plan.types import normal_type


def fitted(column: pa.Array, field: pa.Field, consequence: str, *, casts: bool = False, lacking: bool = False) -> pa.Array:
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
        Whether a number may become any other number that holds it, and a date a time, as for what a function returns under a
        schema that its author declared.
    lacking : bool
        Whether fields that a struct lacks are null, as for files.

    Raises
    ------
    SchemaError
        For another type, other fields of a struct, a value that does not fit, and a null where there may be none.
    """
    if column.type != field.type:
        column = _cast(column, field, consequence, casts, lacking)
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


def _cast(column: pa.Array, field: pa.Field, consequence: str, casts: bool, lacking: bool) -> pa.Array:
    fits = harmless(column.type, field.type) or (casts and _castable(column.type, field.type))
    other = "" if fits and lacking else _other_fields(column.type, field.type, field.name)
    if other:
        raise SchemaError(
            message(
                f"column {field.name!r} has other fields than the stream",
                other,
                consequence,
                f"the type of the column is {field.type}",
            )
        )
    if not fits:
        raise SchemaError(
            message(
                f"column {field.name!r} has the wrong type",
                f"{column.type}, the stream has {field.type}",
                consequence,
                f"cast the column to {field.type}",
            )
        )
    try:
        found = relaid(column, field.type)
        if casts and _infinite(found) != _infinite(column):
            raise pa.ArrowInvalid(f"a number is too large for {field.type}")
        cut = casts and pa.types.is_decimal(found.type) and pa.types.is_floating(column.type)
        if cut and not found.cast(column.type).equals(column):
            raise pa.ArrowInvalid(f"a number has more digits than {field.type}")
        return found
    except pa.ArrowException as problem:
        raise SchemaError(
            message(
                f"column {field.name!r} does not fit {field.type}",
                str(problem).splitlines()[0],
                consequence,
                f"cast the column to {field.type}",
            )
        ) from problem


def _infinite(column: pa.Array) -> int:
    """How many values are infinite: a cast of a number that is too large makes more of them."""
    plain = unpacked(column)
    return (pc.sum(pc.is_inf(plain)).as_py() or 0) if pa.types.is_floating(plain.type) else 0


def _castable(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether both are numbers, or a date is to be a time: an exact cast is what the author of a function means."""
    types = pa.types
    try:
        plain = normal_type(given)
    except SchemaError:
        return False
    if types.is_date(plain):
        return bool(types.is_timestamp(wanted))
    return _is_number(plain) and _is_number(wanted)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _other_fields(given: pa.DataType, wanted: pa.DataType, path: str) -> str:
    """What fields of structs are missing or unknown, by path; empty where the difference is another one."""
    types = pa.types
    if types.is_dictionary(given):
        return _other_fields(given.value_type, wanted, path)
    if _is_list(given) and types.is_list(wanted):
        return _other_fields(given.value_type, wanted.value_type, path)
    if types.is_map(given) and types.is_map(wanted):
        key = _other_fields(given.key_type, wanted.key_type, path)
        return key or _other_fields(given.item_type, wanted.item_type, path)
    if not types.is_struct(given) or not types.is_struct(wanted):
        return ""
    here, there = [f.name for f in given], [f.name for f in wanted]
    missing = [f"{path}.{n}" for n in there if n not in here]
    unknown = [f"{path}.{n}" for n in here if n not in there or here.count(n) > 1]
    if missing or unknown:
        return f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
    inner = (_other_fields(f.type, wanted.field(f.name).type, f"{path}.{f.name}") for f in given)
    return next(filter(None, inner), "")


def _is_list(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_))


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
