"""Random expressions over columns of all types."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from krishiv_py import col, func, lit, when
from krishiv_py.plan.expressions.expr import BinOp, Expr

UTC = dt.timezone.utc
D = decimal.Decimal
NAN, INF = float("nan"), float("inf")
Maker: TypeAlias = Callable[[random.Random, str, int], Expr]
_INTS = [0, 1, -1, 2, 3, -3, 7, 10, 100]
_FLOATS = [0.0, -0.0, 1.0, -1.0, 0.1, 0.5, 2.5, -2.5, 2.675, 1.005, 1e-3, 1e10, -7.3, NAN, INF, -INF]
_TEXTS = ["", "a", "Ab", "abc", "ÅÉß", "straße", "b", "a&b", "İx", "xab", "a b", "日本語"]
_NUMERALS = [
    "1",
    "-1",
    "+7",
    " 12 ",
    "1.5",
    "1.50",
    "-0.005",
    "1e2",
    "NaN",
    "inf",
    "-Infinity",
    "99999999999999999999",
    "x",
    "",
    "0x1",
    "127",
    "128",
    "-9223372036854775808",
    "1.",
    ".5",
    "true",
    "F",
    "yes",
    "0",
    "2.675",
    "1 2",
]
_MOMENTS = [
    "2024-01-31",
    "2024-1-5",
    "2024",
    "2024-02",
    "2024-02-30",
    "2023-12-31 23:59:59",
    "2024-01-01T12:00:00.123456",
    "2024-01-01 00:00:00.5+02:00",
    "2024-01-01 12:00:00Z",
    "1969-12-31 23:59:59.999999",
    " 2024-03-01 ",
    "24-01-01",
    "x",
    "2024-01-01 25:00:00",
    "2024-01-01T01:02:03 UTC",
    "2024-13-01",
    "2024-01-01 1:2:3-05:30",
    "2024-01-01 10:20",
    "2000-02-29 x",
]
_DAYS = [
    dt.date(1970, 1, 1),
    dt.date(1969, 12, 31),
    dt.date(2024, 2, 29),
    dt.date(1, 1, 1),
    dt.date(9999, 12, 31),
    dt.date(2023, 7, 8),
]
_TIMES = [
    dt.datetime(1970, 1, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    dt.datetime(2024, 2, 29, 12, 30, 15, 250_000),
    dt.datetime(2024, 2, 29),
    dt.datetime(1900, 1, 1, 0, 0, 0, 1),
    dt.datetime(2100, 6, 7, 8, 9, 10),
]


def _bounds(bits: int) -> list[int]:
    return [2 ** (bits - 1) - 1, -(2 ** (bits - 1)), 2 ** (bits - 1) - 3]


COLUMNS: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "i8": ("int", pa.int8(), [*_INTS, *_bounds(8)]),
    "i16": ("int", pa.int16(), [*_INTS, *_bounds(16)]),
    "i32": ("int", pa.int32(), [*_INTS, *_bounds(32)]),
    "i64": ("int", pa.int64(), [*_INTS, *_bounds(64), 2**53, 2**53 + 1, 1_700_000_000]),
    "j64": ("int", pa.int64(), _INTS),
    "f32": ("float", pa.float32(), [*_FLOATS, 3.4e38, 16777216.0]),
    "f64": ("float", pa.float64(), [*_FLOATS, 1e300, 123456789.125, 9007199254740993.0, 4.35, 1e22]),
    "g64": ("float", pa.float64(), [1.0, 2.0, -3.0, 0.25, NAN, 0.0]),
    "d5": ("decimal", pa.decimal128(5, 2), [D("0.00"), D("1.25"), D("-1.25"), D("999.99"), D("2.68"), D("-0.05"), D("10.00")]),
    "d18": ("decimal", pa.decimal128(18, 0), [D(0), D(1), D(-7), D(10**17), D(3)]),
    "d38": ("decimal", pa.decimal128(38, 10), [D("0E-10"), D("1.5"), D("-0.0000000001"), D(10**27), D("123456.789"), D("2")]),
    "bo": ("bool", pa.bool_(), [True, False]),
    "bp": ("bool", pa.bool_(), [True, False]),
    "s": ("text", pa.string(), _TEXTS),
    "t": ("text", pa.string(), _TEXTS),
    "num": ("text", pa.string(), _NUMERALS),
    "mom": ("text", pa.string(), _MOMENTS),
    "bi": ("binary", pa.binary(), [b"", b"a", b"\x00\xff", b"abc"]),
    "da": ("date", pa.date32(), _DAYS),
    "ts": ("instant", pa.timestamp("us", "UTC"), [t.replace(tzinfo=UTC) for t in _TIMES]),
    "tu": ("instant", pa.timestamp("us", "UTC"), [t.replace(tzinfo=UTC) for t in _TIMES]),
    "tn": ("local", pa.timestamp("us"), _TIMES),
    "ls": ("list", pa.list_(pa.string()), [[], ["a"], ["ab", None], ["b", "a", "ß"]]),
    "mp": ("map", pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("b", None), ("a", 3)]]),
    "st": (
        "struct",
        pa.struct([("i", pa.int64()), ("x", pa.string()), ("f", pa.float64())]),
        [{"i": 1, "x": "a", "f": 0.5}, {"i": None, "x": "b", "f": NAN}],
    ),
}
_FIELDS = {"int": "i", "text": "x", "float": "f"}
_LITERALS: dict[str, list[Any]] = {
    "int": [0, 1, -1, 2, 10, 2**53 + 1, 2**63 - 1, None],  # Spark finds null no null next to an integer beyond 64 bits
    "float": [0.0, 1.5, -0.5, 2.0, 1e300, NAN, INF],
    "decimal": [D("0.1"), D("1.50"), D("100"), D("-2.5"), D("12345678901234567890.5")],
    "bool": [True, False, None],
    "text": ["", "a", "ab", "ß", None],
    "binary": [b"a"],
    "date": [dt.date(2024, 2, 29)],
    "instant": [dt.datetime(2024, 2, 29, 12, 30, 15, 250_000, tzinfo=UTC)],
    "local": [dt.datetime(2024, 2, 29)],
}
TARGETS = {
    "int": ["tinyint", "smallint", "int", "bigint"],
    "float": ["float", "double"],
    "decimal": ["decimal(5,2)", "decimal(10,0)", "decimal(38,10)", "decimal(20,18)"],
    "bool": ["boolean"],
    "text": ["string"],
    "binary": ["binary"],
    "date": ["date"],
    "instant": ["timestamp"],
    "local": ["timestamp_ntz"],
}
_NUMBERS = ["int", "float", "decimal", "bool", "numeral", "instant"]
_SOURCES = {
    "int": _NUMBERS,
    "float": _NUMBERS,
    "decimal": _NUMBERS,
    "bool": ["int", "float", "decimal", "numeral"],
    "text": ["int", "float", "decimal", "bool", "date", "instant", "local", "text"],
    "binary": ["text"],
    "date": ["moment", "instant", "local"],
    "instant": ["moment", "date", "local", "seconds"],
    "local": ["moment", "date", "instant"],
}
_MEETING = (("int", "float", "decimal"), ("date", "instant", "local"), ("text",), ("bool",), ("binary",))


def table(chance: random.Random, rows: int) -> pa.Table:
    """Rows of values at the edges of their types, some null."""
    made = {
        name: pa.array([None if chance.random() < 0.12 else chance.choice(pool) for _ in range(rows)], type_)
        for name, (_, type_, pool) in COLUMNS.items()
    }
    return pa.table(made)


def leaf(chance: random.Random, kind: str) -> Expr:
    """A column, a field or a constant."""
    if kind == "numeral":
        return col("num")
    if kind == "moment":
        return col("mom")
    if kind == "seconds":  # beyond 64 bits of microseconds Spark gives a wrong time, and the library an error
        return col(chance.choice(["j64", "i32", "i16", "g64", "d5"]))
    if kind in _FIELDS and chance.random() < 0.1:
        return col("st").field(_FIELDS[kind])
    if chance.random() < 0.25:
        return lit(chance.choice(_LITERALS[kind]))
    return col(chance.choice([n for n, (k, _, _) in COLUMNS.items() if k == kind]))


def tree(chance: random.Random, kind: str, depth: int) -> Expr:
    """An expression of a kind, at most so deep; the types may yet not fit."""
    if depth == 0 or kind in ("numeral", "moment", "seconds") or chance.random() < 0.15:
        return leaf(chance, kind)
    made: list[Maker] = [_cast, _choice]
    if kind in ("int", "float", "decimal"):
        made += [_arithmetic] * 4 + [_numeric_function] * 2
    elif kind == "bool":
        made += [_comparison] * 3 + [_logic, _membership, _text_test, _null_test]
    elif kind == "text":
        made += [_text_function] * 4
    elif kind in ("date", "instant"):
        made += [_date_function] * 2
    return chance.choice(made)(chance, kind, depth - 1)


def _number(chance: random.Random, kind: str) -> str:
    return kind if chance.random() < 0.7 else chance.choice(["int", "float", "decimal"])


def _hash(chance: random.Random, depth: int) -> Expr:
    """Over values of every type; what is computed may have another type here, and so another hash."""
    kinds = ["int", "float", "decimal", "bool", "text", "binary", "date", "instant", "local"]
    parts = [leaf(chance, chance.choice(kinds)) for _ in range(chance.randrange(1, 4))]
    parts += [col(name) for name in ("ls", "st") if chance.random() < 0.4]
    return func(chance.choice(["hash", "xxhash64"]), *parts, func("concat", tree(chance, "text", depth), col("s"), col("mom")))


def _of_collection(chance: random.Random, depth: int) -> Expr:
    which = chance.randrange(5)
    if which == 4:
        ends = chance.choice([(0, 10, 4), (3.5, -2.5, 3), (1, 1, 2), (-100, 100, 7), (0, 1, 0)])
        return leaf(chance, chance.choice(["int", "float", "decimal"])).width_bucket(*ends)
    if which == 0:
        return func("size", col(chance.choice(["ls", "mp"])))
    if which == 1:
        return col("mp")[chance.choice(["a", "b", "x"])]
    if which == 2:
        return tree(chance, "text", depth).regexp_count(chance.choice(["a", "[ab]", "b+", "(a|x)b"]))
    unit = chance.choice(["seconds", "millis", "micros", "timestamp"])  # of dates Spark 4.3 takes none
    return func(f"unix_{unit}", leaf(chance, chance.choice(["instant", "local"]) if unit != "timestamp" else "instant"))


def _arithmetic(chance: random.Random, kind: str, depth: int) -> Expr:
    op = chance.choice(["+", "-", "*", "/", "%"])
    return BinOp(op, tree(chance, kind, depth), tree(chance, _number(chance, kind), depth))  # type: ignore[arg-type]


def _numeric_function(chance: random.Random, kind: str, depth: int) -> Expr:
    if kind == "int" and chance.random() < 0.4:
        return chance.choice([_date_part, _hash, _of_collection])(chance, depth)
    if kind == "decimal" and chance.random() < 0.2:
        return func("second_fraction", tree(chance, chance.choice(["instant", "local"]), depth))
    inner = tree(chance, kind, depth)
    which = chance.randrange(5)
    if which == 0:
        return -inner
    if which == 1:
        return func("abs", inner)
    if which == 2 and kind == "int":
        return func("length", tree(chance, chance.choice(["text", "binary"]), depth))
    return func("round", inner) if which == 3 else func("round", inner, chance.choice([0, 1, 2, 3, 10, -1, -2, -20]))


_PARTS = ["year", "quarter", "month", "weekofyear", "day", "dayofyear", "dayofweek", "hour", "minute", "second"]
_UNITS = ["year", "quarter", "month", "week", "day", "hour", "minute", "second"]


def _date_part(chance: random.Random, depth: int) -> Expr:
    one, other = (tree(chance, chance.choice(["date", "instant", "local"]), depth) for _ in range(2))
    return func("datediff", one, other) if chance.random() < 0.2 else func(chance.choice(_PARTS), one)


def _date_function(chance: random.Random, kind: str, depth: int) -> Expr:
    inner = tree(chance, chance.choice(["date", "instant", "local"]), depth)
    months, days = chance.choice([0, 1, -1, 11, 12, -25]), chance.choice([0, 1, -7, 40])
    if kind == "instant":
        if chance.random() < 0.6:
            name, unit = chance.choice([("plus_months", months), ("plus_days", days)])
            made = func(name, tree(chance, "instant", depth), unit)
            which = col(chance.choice(["j64", "i32", "i16"]))
            return chance.choice([made, made, func(f"timestamp_{chance.choice(['seconds', 'millis', 'micros'])}", which)])
        return inner.date_trunc(chance.choice(_UNITS))  # type: ignore[arg-type]
    if chance.random() < 0.5:
        moved = func(chance.choice(["add_months", "plus_months"]), tree(chance, "date", depth), months)
        later = [func("plus_days", tree(chance, "date", depth), days), func("to_date", col("mom"))]
        return chance.choice([moved, func("last_day", inner), *later])
    return func(chance.choice(["date_add", "date_sub"]), inner, chance.choice([0, 1, -1, 30, 365]))


def _comparison(chance: random.Random, _kind: str, depth: int) -> Expr:
    kinds = chance.choice(_MEETING)
    op = chance.choice(["==", "!=", "<", "<=", ">", ">="])
    return BinOp(op, tree(chance, chance.choice(kinds), depth), tree(chance, chance.choice(kinds), depth))  # type: ignore[arg-type]


def _logic(chance: random.Random, _kind: str, depth: int) -> Expr:
    left, right = tree(chance, "bool", depth), tree(chance, "bool", depth)
    return chance.choice([left & right, left | right, ~left])


def _membership(chance: random.Random, _kind: str, depth: int) -> Expr:
    kinds = chance.choice(_MEETING)
    actual = [chance.choice(_LITERALS[chance.choice(kinds)]) for _ in range(chance.randrange(1, 4))]
    return tree(chance, chance.choice(kinds), depth).isin(*actual)


_LIKES = ["%a%", "a%", "_b%", "", "%", "a\\%", "%ß%", "ab_", "A%"]
_REGEXES = ["a", "^a", "b$", "[a-c]+", "(a|x)b", "^.$", "\\s", "\\w{2,3}", "[^a]", "a?b", "日.*", "[^&]b", "[a&b]+"]


def _text_test(chance: random.Random, _kind: str, depth: int) -> Expr:
    which = chance.randrange(6)
    if which == 5:
        return col("ls").array_contains(tree(chance, "text", depth))
    if which == 0:
        return tree(chance, "text", depth).rlike(chance.choice(_REGEXES))
    if which == 1:
        inner = tree(chance, "text", depth)
        return inner.like(chance.choice(_LIKES)) if chance.random() < 0.5 else inner.ilike(chance.choice(_LIKES))
    if which == 2:
        return tree(chance, "text", depth).ends_with(chance.choice(["", "a", "b", "ß"]))
    return func(chance.choice(["starts_with", "contains"]), tree(chance, "text", depth), tree(chance, "text", depth))


_FORMATS = ["yyyy-MM-dd HH:mm:ss", "yy/M/d h:m:s a", "EEEE, d. MMMM yyyy", "E MMM dd", "HH 'h' mm", "SSS SSSSSS", "DDD"]
_EXTRACTS = [("(a)(b)?", 2), ("(a|x)b", 1), ("[a-z]+", 0), ("^(.)", 1), ("(b)$", 1), ("a([^&]*)", 1)]
_REPLACES = [("a", "x"), ("(a)(b)?", "<$2$1>"), ("[^a]", "-"), ("^a", "\\$"), ("\\s+", "")]


def _text_function(chance: random.Random, _kind: str, depth: int) -> Expr:
    inner = tree(chance, "text", depth)
    which = chance.randrange(12)
    if which == 8:
        length, by = chance.choice([0, 1, 3, 7]), chance.choice(["x", "ab", "ß", ""])
        return inner.lpad(length, by) if chance.random() < 0.5 else inner.rpad(length, by)
    if which == 9:
        return inner.split_part(chance.choice(["a", " ", "ab", ""]), chance.choice([1, 2, -1, -2, 5]))
    if which == 10:
        times = leaf(chance, chance.choice(["date", "instant", "local"]))
        return times.date_format(chance.choice(_FORMATS)) if chance.random() < 0.7 else func("from_unixtime", col("j64"))
    if which == 11:
        digests = [func("md5", inner.cast("binary")), func("sha2", inner.cast("binary"), chance.choice([0, 224, 256, 512, 3]))]
        return chance.choice([*digests, col("ls").element_at(col("i32")), col("ls").element_at(-1), col("ls")[col("i32")]])
    if which == 0:
        return func("concat", inner, tree(chance, "text", depth))
    if which == 1:
        places = chance.choice([(1,), (0, 2), (2, 1), (-2, 1), (-5, 4), (-1,), (3, 0), (2, -1), (-9, 3), (0,)])
        return func("substring", inner, *places)
    if which == 2:
        return func(chance.choice(["trim", "ltrim", "rtrim"]), inner, *chance.choice([(), ("ab",), ("ß",)]))
    if which == 3:
        return inner.regexp_extract(*chance.choice(_EXTRACTS))
    if which == 4:
        return inner.regexp_replace(*chance.choice(_REPLACES))
    if which == 5:
        return inner.split(chance.choice(["a", "[ab]", " ", "b+"]))[chance.choice([0, 0, 1])]
    return func(chance.choice(["lower", "upper"]), tree(chance, "text", depth))


def _null_test(chance: random.Random, _kind: str, depth: int) -> Expr:
    inner = tree(chance, chance.choice(list(TARGETS)), depth)
    return chance.choice([inner.is_null(), inner.is_not_null()])


def _cast(chance: random.Random, kind: str, depth: int) -> Expr:
    inner = tree(chance, chance.choice(_SOURCES[kind]), depth)
    target = chance.choice(TARGETS[kind])
    return inner.try_cast(target) if chance.random() < 0.4 else inner.cast(target)


def _choice(chance: random.Random, kind: str, depth: int) -> Expr:
    one, other = tree(chance, kind, depth), tree(chance, kind, depth)
    which = chance.randrange(5)
    if which == 3:
        case = when(tree(chance, "bool", depth), one).when(tree(chance, "bool", depth), other)
        return case if chance.random() < 0.4 else case.otherwise(tree(chance, kind, depth))
    if which == 4:
        return func(chance.choice(["greatest", "least"]), one, other)
    if which == 0:
        return func("if_else", tree(chance, "bool", depth), one, other)
    return func("coalesce", one, other) if which == 1 else func("nullif", one, other)
