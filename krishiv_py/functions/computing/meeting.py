"""The types that constants take next to columns: a text is a time there, a whole number a short decimal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from krishiv_py.functions.computing.casts import cast
from krishiv_py.functions.computing.values import Value, is_moment, literal_like

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
