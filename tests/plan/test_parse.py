"""SQL text to expressions and schemas."""

from __future__ import annotations

import pyarrow as pa
import pytest

from krishiv_py import col, func, lit
from krishiv_py.errors import ExpressionError, SchemaError
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.expressions.parse import parse_expr, parse_schema
from krishiv_py.plan.schema import as_schema

A, B = col("a"), col("b")


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("a", A),
        ("`a b`", col("a b")),
        ("a + b * 2", A + B * 2),
        ("(a + b) * 2", (A + B) * 2),
        ("a - b - 1", A - B - 1),
        ("-a", -A),
        ("a / 2 % 3", A / 2 % 3),
        ("a = 1", A == 1),
        ("a <> 1", A != 1),
        ("a != 1", A != 1),
        ("a >= 1 AND b < 2 OR NOT a <= 3", (A >= 1) & (B < 2) | ~(A <= 3)),
        ("a IS NULL", A.is_null()),
        ("a IS NOT NULL", ~A.is_null()),
        ("a IN (1, 2)", A.isin(1, 2)),
        ("a IN ('x', NULL)", A.isin("x", None)),
        ("a NOT IN (1)", ~A.isin(1)),
        ("a IN (-1)", A.isin(-1)),
        ("a BETWEEN 1 AND b", (A >= 1) & (A <= B)),
        ("'it\\'s'", lit("it's")),
        ("1.5", lit(1.5)),
        ("1e3", lit(1000.0)),
        ("-1", lit(-1)),
        ("TRUE", lit(True)),
        ("NULL", lit(None)),
        ("lower(a)", func("lower", A)),
        ("length(upper(a)) > 2", func("length", func("upper", A)) > 2),
        ("coalesce(a, b, 0)", func("coalesce", A, B, 0)),
        ("CAST(a AS DOUBLE)", A.cast("double")),
        ("a + 1 AS c", (A + 1).alias("c")),
        ("startswith(a, 'x')", func("starts_with", A, "x")),
    ],
)
def test_what_is_read(text: str, expr: Expr) -> None:
    assert repr(parse_expr(text)) == repr(expr)


NO_EXPRESSIONS = ["", "a +", "a; b", "SELECT 1", "a > (SELECT 1)", "f(a)", "a LIKE b", "a IN (SELECT b)", "sum(a)"]
NO_EXPRESSIONS += ["a[b, c]", "a[sum(b)]"]


@pytest.mark.parametrize("text", NO_EXPRESSIONS)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match="Hint:"):
        parse_expr(text)


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("boolean", pa.bool_()),
        ("tinyint", pa.int8()),
        ("smallint", pa.int16()),
        ("int", pa.int32()),
        ("bigint", pa.int64()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(20)", pa.decimal128(20, 0)),
        ("decimal(38,18)", pa.decimal128(38, 18)),
        ("array<array<int>>", pa.list_(pa.list_(pa.int32()))),
        ("map<string,double>", pa.map_(pa.string(), pa.float64())),
        ("struct<x:int,`y z`:array<string>>", pa.struct([("x", pa.int32()), ("y z", pa.list_(pa.string()))])),
    ],
)
def test_types_of_a_schema(text: str, type_: pa.DataType) -> None:
    assert parse_schema(f"c {text}, d int") == pa.schema([("c", type_), ("d", pa.int32())])


@pytest.mark.parametrize("text", ["c interval", "c void", "c variant", "c", "c int d int", "(c int)"])
def test_schemas_that_are_refused(text: str) -> None:
    with pytest.raises(SchemaError, match="Hint:"):
        parse_schema(text)


def test_arrow_schemas_are_brought_to_the_types_spark_knows() -> None:
    given = pa.schema(
        [
            ("a", pa.timestamp("ns", "Europe/Oslo")),
            ("b", pa.timestamp("s")),
            ("c", pa.large_string()),
            ("d", pa.uint32()),
            ("e", pa.dictionary(pa.int8(), pa.string())),
            ("f", pa.large_binary()),
            ("g", pa.uint8()),
        ]
    )
    assert as_schema(given).types == [
        pa.timestamp("us", "UTC"),
        pa.timestamp("us"),
        pa.string(),
        pa.int64(),
        pa.string(),
        pa.binary(),
        pa.int16(),
    ]


def test_reserved_names_are_refused() -> None:
    with pytest.raises(SchemaError, match="reserved"):
        as_schema("__krishiv_x int")
