"""Define what of Python may stand in an expression: constants, names of types, and arguments of functions."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

import pyarrow as pa

from krishiv_py.errors import ExpressionError, SchemaError, shown
from krishiv_py.lazy import lazy
from krishiv_py.plan.names import encodable
from krishiv_py.types import NAMED_TYPES, nearest_type

if TYPE_CHECKING:
    from krishiv_py.functions import known
    from krishiv_py.plan.expressions import parse
else:
    known = lazy("krishiv_py.functions.known")
    parse = lazy("krishiv_py.plan.expressions.parse")


Scalar: TypeAlias = "bool | int | float | str | bytes | decimal.Decimal | dt.datetime | dt.date | dt.timedelta | None"
_NUMPY_KINDS: Final = "biufmMSU"
_SCALARS: Final = (bool, int, float, str, bytes, decimal.Decimal, dt.datetime, dt.date, dt.timedelta)
_LONGEST: Final = dt.timedelta(microseconds=2**63 - 1)
MAX_DIGITS: Final = 38
"""Digits of the longest number Spark and Arrow's decimals know."""


_TYPE_NAMES: Final = {**NAMED_TYPES, "integer": pa.int32(), "long": pa.int64(), "decimal": pa.decimal128(10, 0)}
_DECIMAL: Final = re.compile(r"decimal\s*\(\s*(\d{1,2})\s*(?:,\s*(\d{1,2})\s*)?\)")


class QuotedText(str):
    """A text that was written in double quotes, which may have been meant as the name of a column."""

    __slots__ = ()


def named_type(name: object) -> pa.DataType:
    """Return the Arrow type of a type as schema texts name it: ``"double"``, ``"decimal(10, 2)"``, ``"array<int>"``."""
    text = name.strip().lower() if isinstance(name, str) else ""
    parts = _DECIMAL.fullmatch(text)
    if parts is not None:
        precision, scale = int(parts[1]), int(parts[2] or 0)
        if 1 <= precision <= MAX_DIGITS and scale <= precision:
            return pa.decimal128(precision, scale)
    type_ = _TYPE_NAMES.get(text)
    if type_ is None and isinstance(name, str) and ("<" in text or text.startswith("interval")):
        return _written_type(name)
    if type_ is None:
        near = nearest_type(text)
        raise ExpressionError(
            "unknown type name",
            got=shown(name),
            hint=f'write "{near}"'
            if near in _TYPE_NAMES or near == "decimal(20, 0)"
            else f"use a pyarrow type or one of: {', '.join(sorted(_TYPE_NAMES))}",
        )
    return type_


def _written_type(text: str) -> pa.DataType:
    """Return the type of a column of a schema text."""
    try:
        schema = parse.parse_schema(f"x {text}")
    except SchemaError as problem:
        raise ExpressionError(str(problem)) from problem
    if len(schema) != 1:
        hint = 'write one type, as "array<int>"'
        raise ExpressionError("unknown type name", got=shown(text), hint=hint)
    return schema.field(0).type


def plain(value: object) -> object:
    """Return a text without the note of its quotes; anything else as it is."""
    return str(value) if isinstance(value, QuotedText) else value


def is_scalar(value: object) -> TypeGuard[Scalar]:
    """Return whether a value of Python, or of NumPy, can be a constant."""
    return value is None or isinstance(value, _SCALARS) or (_of_numpy(value) and value.dtype.kind in _NUMPY_KINDS)  # type: ignore[attr-defined]


def is_array(value: object) -> bool:
    """Return whether a value is a list of scalars as NumPy and pandas have it."""
    dimensions = getattr(value, "ndim", None)
    return isinstance(dimensions, int) and dimensions == 1


def _of_numpy(value: object) -> bool:
    return type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item")


def _from_numpy(value: Any) -> Any:
    """Return a scalar of NumPy as plain Python has it; refuse one that Python has no equal value for."""
    kind, plain = value.dtype.kind, value.item()
    if kind == "f":
        plain = float(value)
        exact = plain == value or value != value
    elif kind in "mM":
        if isinstance(plain, int):  # units that Python does not have, and times beyond its years
            months = value.dtype.name in ("timedelta64", "timedelta64[Y]", "timedelta64[M]")
            plain = None if months else value.astype(f"{kind}8[us]").item()
        plain_time = isinstance(plain, (dt.date, dt.timedelta))
        exact = value != value or (plain_time and type(value)(plain, "us") == value)
    else:
        exact = kind in "biuSU"
    if not exact:
        hint = "convert it before: numbers to float64 or int64, times to whole microseconds"
        raise ExpressionError("a value of NumPy has no equal one that a column can hold", got=shown(value), hint=hint)
    return plain


def constant(value: Scalar) -> Scalar:
    """Return a constant as plain Python has it: no subclasses, so that equal constants are written alike.

    Raises
    ------
    ExpressionError
        For a value that is not a constant, and for numbers and times no column can have.
    """
    if _of_numpy(value):
        value = _from_numpy(value)
    if isinstance(value, str) and not encodable(value):
        raise ExpressionError("a text cannot be written as UTF-8", got=shown(value), hint="leave out half surrogate pairs")
    if isinstance(value, dt.timedelta) and abs(value) > _LONGEST:
        raise ExpressionError("a length of time is too long", got=shown(value), hint="pass at most 292 000 years")
    if value is None or type(value) in (bool, str, QuotedText, bytes, float, dt.date, dt.timedelta):
        return value
    if not is_scalar(value):
        hint = "use a bool, a number, text, bytes, a Decimal, a date, a datetime or a timedelta"
        raise ExpressionError("not a constant", got=shown(value), hint=hint)
    if isinstance(value, dt.datetime):
        return _moment(value)
    if isinstance(value, decimal.Decimal):
        if not value.is_finite() or len(value.as_tuple().digits) > MAX_DIGITS or abs(value.as_tuple().exponent) > MAX_DIGITS:  # type: ignore[arg-type]  # finite
            raise _too_long(value)
        return decimal.Decimal(value)
    if isinstance(value, int):
        if abs(value) >= 10**MAX_DIGITS:
            raise _too_long(value)
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    return bytes(value) if isinstance(value, bytes) else value


def _too_long(value: object) -> ExpressionError:
    text = str(value) if isinstance(value, decimal.Decimal) else f"{'-' if isinstance(value, int) and value < 0 else ''}…"
    return ExpressionError(f"a number of more than {MAX_DIGITS} digits", got=text[:60], hint="compare with a double: 1e40")


def _moment(value: dt.datetime) -> dt.datetime:
    if type(value) is dt.datetime:
        return value
    if value != value or getattr(value, "nanosecond", None):  # pandas: not a time, and times between microseconds
        hint = "pass a datetime.datetime, or None for null"
        raise ExpressionError("not a time in whole microseconds", got=repr(value), hint=hint)
    return dt.datetime.combine(dt.date(value.year, value.month, value.day), value.timetz())


SPREADING: Final = frozenset({"explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "unnest"})
"""Functions that would give several rows."""


def spreading(call: str) -> ExpressionError:
    """Return the error for a function that would give several rows."""
    then = "this function gives a row for each item of a list"
    hint = 'write .unnest("list") as a step, in SQL FROM t LATERAL VIEW explode(list) v AS item'
    return ExpressionError("an expression gives one value for each row", got=call, then=then, hint=hint)


def check_arguments(name: str, args: Sequence[object]) -> None:
    """Refuse an unknown function, and arguments it does not take; `args` are constants, or expressions."""
    if isinstance(name, str) and name in SPREADING:
        raise spreading(name)
    known.check_arguments(known.definition_of(name), args, _read_schema)


def _read_schema(text: str) -> object:
    return parse.json_type(text)
