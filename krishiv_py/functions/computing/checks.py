"""Types that arguments must have, and the type in which several values meet.

Constants take the types next to them: a text is a time next to times, a whole number a short decimal next to decimals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.functions.computing.casts import cast
from krishiv_py.functions.computing.values import Value, arrays, coerced, common, is_moment, joined, literal_like, misfit


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
    """Return whether values are texts or bytes."""
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


def text(value: Value) -> Value:
    """A text; null has every type."""
    require(pa.types.is_string, value)
    return pc.cast(value, pa.string())


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


COLUMN: Final = object()
"""In the place of the constant of an argument that is none."""


def meeting(constant: object, value: pa.Scalar, other: Value) -> pa.Scalar:
    """Return a constant in the type it means with another value: texts as points in time, whole numbers as short decimals."""
    return (
        cast(value, other.type) if isinstance(constant, str) and is_moment(other.type) else literal_like(constant, value, other)
    )


def met(constants: Sequence[object], values: list[Value]) -> list[Value]:
    """Return values with constants in the types they mean with the first that is none.

    Parameters
    ----------
    constants : sequence
        The constant of each value, :data:`COLUMN` for the others.
    values : list
        The values.
    """
    others = [v for c, v in zip(constants, values, strict=True) if c is COLUMN]
    if not others:
        return values
    return [v if c is COLUMN else meeting(c, v, others[0]) for c, v in zip(constants, values, strict=True)]
