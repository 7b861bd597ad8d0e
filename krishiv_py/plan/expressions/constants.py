"""What of Python may stand in an expression: constants, names of types, and arguments of functions."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard

import pyarrow as pa

from krishiv_py.errors import ExpressionError, message, shown
from krishiv_py.functions.computing.formats import check_read, pieces_of
from krishiv_py.functions.computing.jsonpath import json_path
from krishiv_py.functions.computing.patterns import check_pattern
from krishiv_py.functions.computing.zone_names import zone_of
from krishiv_py.lazy import lazy
from krishiv_py.plan.expressions.known import FIXED, FUNCTIONS, LAMBDAS, PATTERNS, UNITS, ZONES
from krishiv_py.plan.names import encodable
from krishiv_py.types import nearest_type

if TYPE_CHECKING:
    from krishiv_py.plan.expressions import ddl
else:
    ddl = lazy("krishiv_py.plan.expressions.ddl")

Scalar: TypeAlias = "bool | int | float | str | bytes | decimal.Decimal | dt.datetime | dt.date | dt.timedelta | None"
_NUMPY_KINDS: Final = "biufmMSU"
_SCALARS: Final = (bool, int, float, str, bytes, decimal.Decimal, dt.datetime, dt.date, dt.timedelta)
_BY_TURNS: Final = ("named_struct", "map")
_LONGEST: Final = dt.timedelta(microseconds=2**63 - 1)
MAX_DIGITS: Final = 38
"""Digits of the longest number Spark and Arrow's decimals know."""

_INT: Final = 2**31
_LONGEST_PAD: Final = 10_000

_TYPE_NAMES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal": pa.decimal128(10, 0),
}
_DECIMAL: Final = re.compile(r"decimal\s*\(\s*(\d{1,2})\s*(?:,\s*(\d{1,2})\s*)?\)")


class Doubled(str):
    """A text that was written in double quotes, which may have been meant as the name of a column."""

    __slots__ = ()


def named_type(name: object) -> pa.DataType:
    """The Arrow type of a simple Spark type name, such as ``"double"`` or ``"decimal(10, 2)"``."""
    text = name.strip().lower() if isinstance(name, str) else ""
    parts = _DECIMAL.fullmatch(text)
    if parts is not None:
        precision, scale = int(parts[1]), int(parts[2] or 0)
        if 1 <= precision <= MAX_DIGITS and scale <= precision:
            return pa.decimal128(precision, scale)
    found = _TYPE_NAMES.get(text)
    if found is None:
        near = nearest_type(text)
        raise ExpressionError(
            message(
                "unknown type name",
                shown(name),
                "the cast has no target",
                f'write "{near}"'
                if near in _TYPE_NAMES or near == "decimal(20, 0)"
                else f"use a pyarrow type or one of: {', '.join(sorted(_TYPE_NAMES))}",
            )
        )
    return found


def plain(value: object) -> object:
    """A text without the note of its quotes; anything else as it is."""
    return str(value) if isinstance(value, Doubled) else value


def is_scalar(value: object) -> TypeGuard[Scalar]:
    """Whether a value of Python, or of NumPy, can be a constant."""
    return value is None or isinstance(value, _SCALARS) or (_of_numpy(value) and value.dtype.kind in _NUMPY_KINDS)  # type: ignore[attr-defined]


def _of_numpy(value: object) -> bool:
    return type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item")


def _from_numpy(value: Any) -> Any:
    """Return a scalar of NumPy as plain Python has it; refuse one that Python has no equal value for."""
    kind, found = value.dtype.kind, value.item()
    if kind == "f":
        found = float(value)
        exact = found == value or value != value
    elif kind in "mM":
        if isinstance(found, int):  # units that Python does not have, and times beyond its years
            months = value.dtype.name in ("timedelta64", "timedelta64[Y]", "timedelta64[M]")
            found = None if months else value.astype(f"{kind}8[us]").item()
        plain_time = isinstance(found, (dt.date, dt.timedelta))
        exact = value != value or (plain_time and type(value)(found, "us") == value)
    else:
        exact = kind in "biuSU"
    if not exact:
        raise ExpressionError(
            message(
                "a value of NumPy has no equal one that a column can hold",
                shown(value),
                "it cannot be part of an expression",
                "convert it before: numbers to float64 or int64, times to whole microseconds",
            )
        )
    return found


def constant(value: Scalar) -> Scalar:
    """A constant as plain Python has it: no subclasses, so that equal constants are written alike.

    Raises
    ------
    ExpressionError
        For what is no constant, and for numbers and times no column can have.
    """
    if _of_numpy(value):
        value = _from_numpy(value)
    if isinstance(value, str) and not encodable(value):
        raise ExpressionError(
            message(
                "a text cannot be written as UTF-8", shown(value), "no column can hold it", "leave out half surrogate pairs"
            )
        )
    if isinstance(value, dt.timedelta) and abs(value) > _LONGEST:
        raise ExpressionError(
            message("a length of time is too long", shown(value), "no column can hold it", "pass at most 292 000 years")
        )
    if value is None or type(value) in (bool, str, Doubled, bytes, float, dt.date, dt.timedelta):
        return value
    if not is_scalar(value):
        raise ExpressionError(
            message(
                "not a constant",
                shown(value),
                "it cannot be part of an expression",
                "use a bool, a number, text, bytes, a Decimal, a date, a datetime or a timedelta",
            )
        )
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
    return ExpressionError(
        message(f"a number of more than {MAX_DIGITS} digits", text[:60], "no column can hold it", "compare with a double: 1e40")
    )


def _moment(value: dt.datetime) -> dt.datetime:
    if type(value) is dt.datetime:
        return value
    if value != value or getattr(value, "nanosecond", None):  # pandas: not a time, and times between microseconds
        raise ExpressionError(
            message(
                "not a time in whole microseconds",
                repr(value),
                "no timestamp is equal to it",
                "pass a datetime.datetime, or None for null",
            )
        )
    return dt.datetime.combine(dt.date(value.year, value.month, value.day), value.timetz())


SPREADING: Final = frozenset({"explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "unnest"})
"""Functions that would give several rows."""


def spreading(call: str) -> ExpressionError:
    """The error for a function that would give several rows."""
    return ExpressionError(
        message(
            "an expression gives one value for each row",
            call,
            "this function gives a row for each item of a list",
            'write .unnest("list") as a step, in SQL FROM t LATERAL VIEW explode(list) v AS item',
        )
    )


def check_arguments(name: str, args: Sequence[object]) -> None:
    """Refuse an unknown function, and arguments it does not take; `args` are constants, or expressions."""
    if isinstance(name, str) and name in SPREADING:
        raise spreading(name)
    if not isinstance(name, str) or name not in FUNCTIONS:
        raise ExpressionError(
            message(
                "unknown function",
                shown(name),
                "it cannot be evaluated",
                f"the functions are: {', '.join(sorted(FUNCTIONS))}; or use map_batches",
            )
        )
    fewest, most = FUNCTIONS[name]
    if not fewest <= len(args) <= most or (name in _BY_TURNS and len(args) % 2):
        takes = (
            "names and values by turns"
            if name in _BY_TURNS
            else f"{fewest} arguments"
            if fewest == most
            else f"{fewest} to {most} arguments"
        )
        raise ExpressionError(
            message(
                f"{name} takes {takes}",
                f"{len(args)} arguments",
                "it cannot be evaluated",
                f"write {name}({', '.join('abc'[:fewest])})",
            )
        )
    _check_lambdas(name, args)
    _check_fixed(name, args)
    for label in args[::2] if name == "named_struct" else ():
        if type(plain(label)) is not str:
            raise _not_fixed("a field of named_struct", "text", label)


def _check_lambdas(name: str, args: Sequence[object]) -> None:
    """Refuse a function of elements where none belongs, and anything else where one does."""
    for at, arg in enumerate(args):
        params, takes = getattr(arg, "params", None), LAMBDAS.get(name, {}).get(at)
        if takes is None and params is None:
            continue
        if takes is None or params is None or not takes[0] <= len(params) <= takes[1]:
            wanted = "a value" if takes is None else f"a function of {' or '.join(map(str, range(takes[0], takes[1] + 1)))}"
            raise ExpressionError(
                message(
                    f"argument {at + 1} of {name} is {wanted}",
                    shown(arg),
                    "it cannot be evaluated",
                    "write transform(xs, x -> x + 1), in Python .transform(lambda x: x + 1)",
                )
            )


def _check_fixed(name: str, args: Sequence[object]) -> None:
    """Refuse arguments that must be constants and are not, or that no row could be computed with."""
    for at, (type_, kind) in FIXED.get(name, {}).items():
        if at >= len(args):
            continue
        if type(plain(args[at])) is not type_:
            raise _not_fixed("the digits of round" if name == "round" else f"argument {at + 1} of {name}", kind, args[at])
        got = args[at]
        if name != "round" and isinstance(got, int) and not -_INT <= got < _INT:
            raise ExpressionError(
                message(f"{name} takes places of 32 bits", shown(got), "no text is so long", "pass a smaller one")
            )
    if name == "item" and isinstance(args[1], int) and args[1] < 0:
        raise ExpressionError(message("a list has no element below 0", shown(args[1]), "every row would fail", "count from 0"))
    if name == "timestampadd" and str(args[0]).lower() not in (*UNITS, "dayofyear"):
        raise ExpressionError(
            message("unknown unit of timestampadd", shown(args[0]), "nothing is added", f"use one of: {', '.join(UNITS)}")
        )
    zone = ZONES.get(name, len(args))
    if zone < len(args) and zone_of(str(args[zone])) is None:
        raise ExpressionError(
            message(
                "there is no such time zone",
                shown(args[zone]),
                "no clock shows its time",
                'pass a name such as "Europe/Berlin", or an offset such as "+05:30"',
            )
        )
    if name == "date_trunc" and str(args[0]).lower() not in UNITS:
        raise ExpressionError(
            message("unknown unit of date_trunc", shown(args[0]), "nothing is cut off", f"use one of: {', '.join(UNITS)}")
        )
    if name == "from_json":
        ddl.json_type(str(args[1]))
    if name in ("date_format", "from_unixtime") and len(args) > 1:
        pieces_of(str(args[1]))
    if name in ("to_date", "to_timestamp", "try_to_timestamp") and len(args) > 1:
        check_read(str(args[1]))
    if name == "get_json_object":
        json_path(str(args[1]))
    if name in ("lpad", "rpad", "repeat") and isinstance(args[1], int) and args[1] > _LONGEST_PAD:
        raise ExpressionError(
            message(f"{name} takes at most {_LONGEST_PAD}", shown(args[1]), "texts would be huge", "pass fewer")
        )
    if name == "split_part" and args[2] == 0:
        raise ExpressionError(
            message("split_part counts from 1", "0", "every row would fail", "pass 1, or -1 for the last part")
        )
    if name in PATTERNS:
        check_pattern(name, tuple(args))


def _not_fixed(what: str, kind: str, got: object) -> ExpressionError:
    return ExpressionError(
        message(
            f"{what} must be a constant {kind}",
            shown(got),
            "the type of a result would depend on the row",
            f"pass a plain {kind}",
        )
    )
