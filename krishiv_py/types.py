"""Types of columns: the one form each has inside the library, whatever Arrow, Spark or a file calls it.

Everything that comes in or is computed is brought to this form at the border, so that kernels, state files and Spark meet
few types, and a type works on every engine or on none.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa

from krishiv_py.errors import SchemaError

MAX_DECIMAL_DIGITS: Final = 38
_UNFIT: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (pa.types.is_time, "cast it to a string, or to whole microseconds as a bigint"),
    (pa.types.is_interval, "use a duration, which has one length, or a string"),
    (pa.types.is_union, "use a struct with a field a kind"),
    (lambda t: pa.types.is_list_view(t) or pa.types.is_large_list_view(t), "cast it to a list"),
)
_PLAIN: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}


TYPE_NAMES: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
}
NAMED_TYPES: Final = {name: type_ for type_, name in TYPE_NAMES.items()}
_SAME: Final = frozenset({*TYPE_NAMES, pa.null(), pa.duration("us")})
_INSTANT: Final = pa.timestamp("us", "UTC")


ELSEWHERE: Final = {
    **dict.fromkeys(("datetime", "datetime64", "timestamptz", "timestamp_tz", "timestamp_ltz", "instant"), "timestamp"),
    **dict.fromkeys(("localdatetime", "datetime2", "timestampntz"), "timestamp_ntz"),
    **dict.fromkeys(("str", "utf8", "text", "varchar", "varchar2", "nvarchar", "char", "object", "category", "json"), "string"),
    **dict.fromkeys(("uuid", "enum", "large_string", "symbol"), "string"),
    **dict.fromkeys(("int64", "uint32", "i64", "long", "serial", "bigserial"), "bigint"),
    **dict.fromkeys(("int32", "uint16", "i32", "integer"), "int"),
    **dict.fromkeys(("int16", "uint8", "i16", "short"), "smallint"),
    **dict.fromkeys(("int8", "i8", "byte"), "tinyint"),
    **dict.fromkeys(("uint64", "u64", "money", "number", "numeric"), "decimal(20, 0)"),
    **dict.fromkeys(("float64", "f64", "real"), "double"),
    **dict.fromkeys(("float32", "f32", "float16", "half"), "float"),
    **dict.fromkeys(("bool", "bit"), "boolean"),
    **dict.fromkeys(("bytes", "blob", "bytea", "varbinary", "large_binary"), "binary"),
    **dict.fromkeys(("date32", "date64", "localdate"), "date"),
    **dict.fromkeys(("duration", "timedelta", "timedelta64"), "interval day to second"),
    **dict.fromkeys(("record", "row", "tuple"), "struct<a: int>"),
    **dict.fromkeys(("list", "large_list", "vector"), "array<int>"),
    **dict.fromkeys(("dict", "dictionary", "hstore"), "map<string, int>"),
    **dict.fromkeys(("time", "time32", "time64"), "string"),
}
"""Types of other systems, and the nearest one here."""


def nearest_type(word: str) -> str | None:
    """Return the name of the type that a `word` most likely means, None if none is near."""
    name = word.lower().partition("[")[0]
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    known = [*TYPE_NAMES.values(), "decimal", "array", "map", "struct"]
    near = difflib.get_close_matches(name, [*known, *ELSEWHERE], n=1, cutoff=0.7)
    return ELSEWHERE.get(near[0], near[0]) if near else None


def type_text(type_: pa.DataType) -> str:
    """Return a type as schema texts and casts name it; of types that they cannot name, as Arrow does."""
    if type_ in TYPE_NAMES:
        return TYPE_NAMES[type_]
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision}, {type_.scale})"
    if pa.types.is_struct(type_):
        return f"struct<{', '.join(f'{f.name}: {type_text(f.type)}' for f in type_)}>"
    if pa.types.is_map(type_):
        return f"map<{type_text(type_.key_type)}, {type_text(type_.item_type)}>"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return f"array<{type_text(type_.value_type)}>"
    return "interval day to second" if type_ == pa.duration("us") else str(type_)


def article(type_name: str) -> str:
    """Return the name of a type with its article: "an int", "a bigint"."""
    return f"{'an' if type_name.startswith(('int', 'array')) else 'a'} {type_name}"


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the least type to which values of both can be cast without a loss, or with none but of digits; None if there is
    none.
    """
    if one == other:
        return one
    pair = (one, other)
    if pa.types.is_nested(one) or pa.types.is_nested(other):
        return None
    if all(pa.types.is_integer(t) or pa.types.is_boolean(t) for t in pair):
        return max((t for t in pair if pa.types.is_integer(t)), key=lambda t: int(t.bit_width))
    if all(pa.types.is_timestamp(t) or pa.types.is_date(t) for t in pair):
        zoned = any(pa.types.is_timestamp(t) and t.tz for t in pair)
        return pa.timestamp("us", "UTC") if zoned and pa.types.is_date(min(pair, key=str)) else pa.timestamp("us")
    if all(is_numeric(t) for t in pair):
        if any(pa.types.is_floating(t) for t in pair):
            return pa.float64()
        whole = max(_digits(t)[0] for t in pair)
        scale = max(_digits(t)[1] for t in pair)
        return pa.decimal128(min(whole + scale, MAX_DECIMAL_DIGITS), min(scale, MAX_DECIMAL_DIGITS - min(whole, 38)))
    return pa.string() if pa.string() in pair and pa.binary() not in pair else None


def key_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type in which keys of both meet the right ones: as :func:`wider`, but exact where one of them is.

    Whole numbers beyond 2**53 are several to one double.
    """
    floating = [pa.types.is_floating(t) for t in (one, other)]
    if is_numeric(one) and is_numeric(other) and any(floating) and not all(floating):
        exact = one if floating[1] else other
        return pa.int64() if pa.types.is_integer(exact) else exact
    return wider(one, other)


def conversion(column: str, source: pa.DataType, wanted: pa.DataType) -> str:
    """Return how a column is written in another type, in Python: whole numbers that are times are milliseconds."""
    text = f"col({column!r})"
    if pa.types.is_duration(source) and pa.types.is_int64(wanted):
        return f'(func("timestamp_seconds", 0) + {text}).unix_millis()'
    if pa.types.is_int64(source) and pa.types.is_duration(wanted):
        return f'func("timestamp_millis", {text}) - func("timestamp_seconds", 0)'
    if pa.types.is_temporal(source) and pa.types.is_int64(wanted):
        return as_number(text, source) or text
    if pa.types.is_int64(source) and pa.types.is_temporal(wanted):
        made = f'func("timestamp_millis", {text})'
        return made if wanted == _INSTANT else f'{made}.cast("{type_text(wanted)}")'
    return f'{text}.cast("{type_text(wanted)}")'


def as_number(text: str, type_: pa.DataType, *, whole: bool = False) -> str | None:
    """Return how values of a type are written as numbers, in Python; None where they are none.

    Times become milliseconds, and lengths of time microseconds, so that nothing is lost.

    Examples
    --------
    >>> as_number('col("x")', pa.bool_()), as_number('col("x")', pa.date32())
    ('col("x").cast("int")', 'col("x").cast("timestamp").unix_millis()')
    """
    if is_numeric(type_):
        return text if not whole or pa.types.is_integer(type_) else f'{text}.round().cast("bigint")'
    if pa.types.is_boolean(type_):
        return f'{text}.cast("int")'
    if pa.types.is_string(type_) or pa.types.is_null(type_):
        return f'{text}.cast("{"bigint" if whole else "double"}")'
    if pa.types.is_duration(type_):
        return f'(func("timestamp_seconds", 0) + {text}).unix_micros()'
    if pa.types.is_temporal(type_):
        return f"{text}.unix_millis()" if type_ == _INSTANT else f'{text}.cast("timestamp").unix_millis()'
    return None


def part_of(text: str, type_: pa.DataType, *, in_text: bool = False) -> str | None:
    """Return how a part of a nested value is written, in Python or in text; None for other types.

    Examples
    --------
    >>> part_of('col("s")', pa.struct([("a", pa.int32())])), part_of("xs", pa.list_(pa.int32()), in_text=True)
    ('col("s").field("a")', 'element_at(xs, 1)')
    """
    if pa.types.is_struct(type_):
        name = type_.field(0).name
        return f"{text}.{name}" if in_text else f'{text}.field("{name}")'
    if pa.types.is_list(type_):
        return f"element_at({text}, 1)" if in_text else f"{text}.element_at(1)"
    if pa.types.is_map(type_):
        key = "'key'" if pa.types.is_string(type_.key_type) else "1"
        return f"element_at({text}, {key})" if in_text else f"{text}.element_at({key})".replace("'", '"')
    return None


def number_hint(text: str, type_: pa.DataType, *, whole: bool = False) -> str:
    """Return what to write where a number is wanted, and a value of another type is there."""
    made = as_number(text, type_, whole=whole)
    if made is not None:
        unit = ", which is rounded" if is_numeric(type_) else ""
        if pa.types.is_temporal(type_):
            unit = ", in microseconds" if pa.types.is_duration(type_) else ", in milliseconds"
        return f"write {made}{unit}"
    part = part_of(text, type_)
    return f"name a part of it that is a number: {part}" if part else "name another column"


def condition_hint(text: str, type_: pa.DataType) -> str:
    """Return what to write where a condition is wanted, and a value of another type is there."""
    if is_numeric(type_):
        return f"compare it: {text} > 0"
    return f'compare it: {text} == "yes"' if pa.types.is_string(type_) else f"compare it: {text}.is_not_null()"


def storable_hint(column: str, type_: pa.DataType) -> str:
    """Return what to write where something that takes rows has no such type as a column."""
    made = as_number(f"col({column!r})", type_)
    if made is None or is_numeric(type_):
        return f"leave it out: .drop({column!r}), or keep a part of it with .with_column"
    unit = ", in microseconds" if pa.types.is_duration(type_) else ""
    return f"write .with_column({column!r}, {made}){unit}"


def is_numeric(type_: pa.DataType) -> bool:
    """Return whether values of a type are numbers: whole, floating or exact ones."""
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _digits(type_: pa.DataType) -> tuple[int, int]:
    """Return the digits of an exact number before and after the point."""
    if pa.types.is_decimal(type_):
        return type_.precision - type_.scale, type_.scale
    return {8: 3, 16: 5, 32: 10, 64: 19}[type_.bit_width], 0


def normal_type(type_: pa.DataType) -> pa.DataType:
    """Return the form a type has inside the library: one Spark has a name for, and the kernels know.

    Times are in microseconds and zones are UTC; whole numbers are signed (``uint64`` becomes ``int64``: a value beyond it is
    refused when it is sent); ``float16`` is ``float32``, ``date64`` is ``date32``; decimals have 128 bits; texts, bytes and
    lists have one layout; dictionaries, runs and extensions are what they stand for.

    Raises
    ------
    SchemaError
        For a type that cannot be had on every engine: times of day, calendar intervals, unions, list views, decimals of more
        than 38 digits, structs without fields or with two of one name.
    """
    if type_ in _SAME:
        return type_
    if type_ in _PLAIN:
        return _PLAIN[type_]
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", "UTC" if type_.tz else None)
    if pa.types.is_duration(type_):
        return pa.duration("us")
    if pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    if pa.types.is_decimal(type_):
        return _decimal(type_)
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return normal_type(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return normal_type(type_.storage_type)
    return _nested(type_)


def _decimal(type_: pa.DataType) -> pa.DataType:
    """Spark knows neither a scale below 0 nor one beyond the digits: digits are added, as many as it takes."""
    digits = type_.precision - type_.scale if type_.scale < 0 else max(type_.precision, type_.scale)
    if digits > MAX_DECIMAL_DIGITS:
        raise unfit(type_, f"use at most {MAX_DECIMAL_DIGITS} digits, or a double")
    return pa.decimal128(digits, max(type_.scale, 0))


def _nested(type_: pa.DataType) -> pa.DataType:
    for is_it, hint in _UNFIT:
        if is_it(type_):
            raise unfit(type_, hint)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return pa.list_(normal_type(type_.value_type))
    if pa.types.is_map(type_):
        return pa.map_(normal_type(type_.key_type), normal_type(type_.item_type))
    if pa.types.is_struct(type_):
        names = [type_.field(i).name for i in range(type_.num_fields)]
        if not names or len({n.lower() for n in names}) < len(names):
            raise unfit(type_, "give every field a name of its own (Spark ignores case)")
        return pa.struct([(n, normal_type(type_.field(i).type)) for i, n in enumerate(names)])
    raise unfit(type_, "cast or drop the column")


def unfit(type_: object, hint: str) -> SchemaError:
    """Return what is raised for a type no column of a stream can have."""
    return SchemaError("no column can have this type", got=type_, hint=hint)


_SPARKS_NAMES: Final = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}
_SPARK: Final = {"void": pa.null(), **{_SPARKS_NAMES.get(name, name): type_ for name, type_ in NAMED_TYPES.items()}}
_SPARK_PATTERNS: Final[tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], pa.DataType]], ...]] = (
    (re.compile(r"decimal\((\d+),\s*(-?\d+)\)"), lambda m: _decimal(pa.decimal128(int(m[1]), int(m[2])))),
    (re.compile(r"(?:char|varchar)\(\d+\)|string collate .*"), lambda m: pa.string()),
    (re.compile(r"interval (?:day|hour|minute|second)(?: to .*)?"), lambda m: pa.duration("us")),
)


def spark_arrow(type_: object) -> pa.DataType:
    """Return the form of a type that Spark wrote as JSON (``DataType.jsonValue()``).

    Raises
    ------
    SchemaError
        For variants, intervals of months, times of day, user-defined types and whatever else has no such form.
    """
    if isinstance(type_, str):
        if type_ in _SPARK:
            return _SPARK[type_]
        for pattern, make in _SPARK_PATTERNS:
            if match := pattern.fullmatch(type_):
                return make(match)
    elif isinstance(type_, Mapping):
        return _spark_nested(type_)
    raise unfit(f"Spark's {type_}", "cast it, for instance to a string, before it comes here")


def _spark_nested(type_: Mapping[str, Any]) -> pa.DataType:
    kind = type_["type"]
    if kind == "array":
        return normal_type(pa.list_(spark_arrow(type_["elementType"])))
    if kind == "map":
        return normal_type(pa.map_(spark_arrow(type_["keyType"]), spark_arrow(type_["valueType"])))
    if kind == "struct":
        return normal_type(pa.struct([(f["name"], spark_arrow(f["type"])) for f in type_["fields"]]))
    raise unfit(f"Spark's {kind}", "cast it, for instance to a string, before it comes here")


_OFFSET: Final = re.compile(r"([+-])(\d{2}):(\d{2})")
_FURTHEST: Final = 18
"""Hours of the largest offset, as in Java."""


def zone_of(name: str) -> dt.tzinfo | None:
    """Return the time zone of this name; None where there is none.

    Examples
    --------
    >>> zone_of("Europe/Berlin"), zone_of("+05:30").utcoffset(None), zone_of("Berlin")
    (zoneinfo.ZoneInfo(key='Europe/Berlin'), datetime.timedelta(seconds=19800), None)
    """
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        hours, minutes = int(offset[2]), int(offset[3])
        length = dt.timedelta(hours=hours, minutes=minutes)
        valid = minutes < 60 and length <= dt.timedelta(hours=_FURTHEST)
        return dt.timezone(-length if offset[1] == "-" else length) if valid else None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not found; a malformed name; a folder of zones
        return None
