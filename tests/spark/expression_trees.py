"""Random expressions over columns of all types, and their text in Spark SQL."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from krishiv_py import col, func, lit
from krishiv_py.plan.expressions.expr import BinOp, Cast, Col, Expr, Field, Func, IsIn, Lit, UnOp

UTC = dt.timezone.utc
D = decimal.Decimal
NAN, INF = float("nan"), float("inf")
Maker: TypeAlias = Callable[[random.Random, str, int], Expr]
_INTS = [0, 1, -1, 2, 3, -3, 7, 10, 100]
_FLOATS = [0.0, -0.0, 1.0, -1.0, 0.1, 0.5, 2.5, -2.5, 2.675, 1.005, 1e-3, 1e10, -7.3, NAN, INF, -INF]
_TEXTS = ["", "a", "Ab", "abc", "ÅÉß", "straße", "b", "İx", "xab", "a b", "日本語"]
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
    "st": (
        "struct",
        pa.struct([("i", pa.int64()), ("x", pa.string()), ("f", pa.float64())]),
        [{"i": 1, "x": "a", "f": 0.5}, {"i": None, "x": "b", "f": NAN}],
    ),
}
_FIELDS = {"int": "i", "text": "x", "float": "f"}
_LITERALS: dict[str, list[Any]] = {
    "int": [0, 1, -1, 2, 10, 2**53 + 1, 2**63 - 1, None],  # Spark finds null no null beside an integer beyond 64 bits
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
        made += [_text_function] * 2
    return chance.choice(made)(chance, kind, depth - 1)


def _number(chance: random.Random, kind: str) -> str:
    return kind if chance.random() < 0.7 else chance.choice(["int", "float", "decimal"])


def _arithmetic(chance: random.Random, kind: str, depth: int) -> Expr:
    op = chance.choice(["+", "-", "*", "/", "%"])
    return BinOp(op, tree(chance, kind, depth), tree(chance, _number(chance, kind), depth))  # type: ignore[arg-type]


def _numeric_function(chance: random.Random, kind: str, depth: int) -> Expr:
    inner = tree(chance, kind, depth)
    which = chance.randrange(5)
    if which == 0:
        return -inner
    if which == 1:
        return func("abs", inner)
    if which == 2 and kind == "int":
        return func("length", tree(chance, chance.choice(["text", "binary"]), depth))
    return func("round", inner) if which == 3 else func("round", inner, chance.choice([0, 1, 2, 3, 10, -1, -2, -20]))


def _comparison(chance: random.Random, _kind: str, depth: int) -> Expr:
    kinds = chance.choice(_MEETING)
    op = chance.choice(["==", "!=", "<", "<=", ">", ">="])
    return BinOp(op, tree(chance, chance.choice(kinds), depth), tree(chance, chance.choice(kinds), depth))  # type: ignore[arg-type]


def _logic(chance: random.Random, _kind: str, depth: int) -> Expr:
    left, right = tree(chance, "bool", depth), tree(chance, "bool", depth)
    return chance.choice([left & right, left | right, ~left])


def _membership(chance: random.Random, _kind: str, depth: int) -> Expr:
    kinds = chance.choice(_MEETING)
    found = [chance.choice(_LITERALS[chance.choice(kinds)]) for _ in range(chance.randrange(1, 4))]
    return tree(chance, chance.choice(kinds), depth).isin(*found)


def _text_test(chance: random.Random, _kind: str, depth: int) -> Expr:
    return func(chance.choice(["starts_with", "contains"]), tree(chance, "text", depth), tree(chance, "text", depth))


def _text_function(chance: random.Random, _kind: str, depth: int) -> Expr:
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
    which = chance.randrange(3)
    if which == 0:
        return func("if_else", tree(chance, "bool", depth), one, other)
    return func("coalesce", one, other) if which == 1 else func("nullif", one, other)


# Text of Spark SQL

_FUNCTIONS = {"if_else": "if", "starts_with": "startswith"}


def literal_sql(value: Any) -> str:
    """A constant of the type it has here: whole numbers are bigint, numbers with a point double."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        if value == -(2**63):
            return f"(-{2**63 - 1}L - 1L)"
        return f"{value}L" if abs(value) < 2**63 else f"{value}BD"
    if isinstance(value, float):
        return f"{value!r}D" if math.isfinite(value) else f"CAST('{value!r}' AS DOUBLE)"
    if isinstance(value, D):
        return f"{value:f}BD"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, dt.datetime):
        kind = "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ"
        return f"{kind}'{value.replace(tzinfo=None).isoformat(' ')}{'Z' if value.tzinfo else ''}'"
    return f"DATE'{value.isoformat()}'"


_NAMES = {
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
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


def sql(expr: Expr) -> str:
    """The expression as Spark SQL."""
    if isinstance(expr, Col):
        return f"`{expr.name}`"
    if isinstance(expr, Lit):
        return literal_sql(expr.value)
    if isinstance(expr, BinOp):
        left, right = sql(expr.left), sql(expr.right)
        return f"({left} {'=' if expr.op == '==' else expr.op.upper()} {right})"
    if isinstance(expr, UnOp):
        inner = sql(expr.arg)
        shown = {"not": f"NOT {inner}", "-": f"- {inner}", "is_null": f"{inner} IS NULL", "is_not_null": f"{inner} IS NOT NULL"}
        return f"({shown[expr.op]})"
    if isinstance(expr, IsIn):
        return f"({sql(expr.arg)} IN ({', '.join(map(literal_sql, expr.values))}))"
    if isinstance(expr, Field):
        return f"{sql(expr.arg)}.`{expr.name}`"
    if isinstance(expr, Cast):
        name = _NAMES.get(expr.type) or f"decimal({expr.type.precision},{expr.type.scale})"
        return f"{'TRY_CAST' if expr.tried else 'CAST'}({sql(expr.arg)} AS {name})"
    assert isinstance(expr, Func)
    if expr.name == "nullif":  # Spark computes a common part of its own nullif before, outside of what catches errors
        left, right = map(sql, expr.args)
        return f"if({left} = {right}, NULL, {left})"
    arguments = [sql(a) for a in expr.args]
    if expr.name == "round" and len(arguments) == 2:
        arguments[1] = arguments[1].removesuffix("L")
    return f"{_FUNCTIONS.get(expr.name, expr.name)}({', '.join(arguments)})"
