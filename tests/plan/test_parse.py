"""SQL text to expressions and schemas."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pyarrow as pa
import pytest
from sqlglot.dialects.spark import Spark

from krishiv_py import col, func, lit
from krishiv_py.errors import DurationError, ExpressionError, SchemaError
from krishiv_py.functions.known import FUNCTIONS
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.expressions.parse import parse_expr, parse_schema
from krishiv_py.plan.schema import as_schema, checked
from krishiv_py.types import TYPE_NAMES

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
        ("'it''s'", lit("it's")),
        ("''''", lit("'")),
        ("'\\\\'''", lit("\\'")),
        ("'it' 's'", func("concat", "it", "s")),
        ("r'a\\nb'", lit("a\\nb")),
        ("1.5", lit(1.5)),
        ("a+.5", A + 0.5),
        ("-128Y", lit(-128).cast("tinyint")),
        ("-9223372036854775808L", lit(-(2**63)).cast("bigint")),
        ("a + INTERVAL '1-2' YEAR TO MONTH", func("plus_months", A, 14)),
        ("a - INTERVAL '-1-02' YEAR TO MONTH", func("plus_months", A, 14)),
        ("a + INTERVAL -'0-11' YEAR TO MONTH", func("plus_months", A, -11)),
        ("a + INTERVAL '1 year -2 months'", func("plus_months", A, 10)),
        ("a + INTERVAL '1 week -2 days'", func("plus_days", A, 5)),
        ("a + INTERVAL '1 2' DAY TO HOUR", A + lit(dt.timedelta(days=1, hours=2))),
        ("a - INTERVAL '+1 02:03' DAY TO MINUTE", A - lit(dt.timedelta(days=1, hours=2, minutes=3))),
        ("a + INTERVAL '-1 02:03:04.5' DAY TO SECOND", A + lit(-dt.timedelta(days=1, hours=2, minutes=3, seconds=4.5))),
        ("a + INTERVAL '100:59' HOUR TO MINUTE", A + lit(dt.timedelta(hours=100, minutes=59))),
        ("a + INTERVAL '1:02:03.000004' HOUR TO SECOND", A + lit(dt.timedelta(seconds=3723, microseconds=4))),
        ("a + INTERVAL '90:00.1234567' MINUTE TO SECOND", A + lit(dt.timedelta(minutes=90, microseconds=123_456))),
        ("a + INTERVAL '1 day -2 hours 1.5 seconds'", A + lit(dt.timedelta(hours=22, seconds=1.5))),
        ("a + -INTERVAL '1' HOUR", A + lit(-dt.timedelta(hours=1))),
        ("1e3", lit(1000.0)),
        ("-1", lit(-1)),
        ("TRUE", lit(True)),
        ("NULL", lit(None)),
        ("lower(a)", func("lower", A)),
        ("length(upper(a)) > 2", func("length", func("upper", A)) > 2),
        ("coalesce(a, b, 0)", func("coalesce", A, B, 0)),
        ("CAST(a AS DOUBLE)", A.cast("double")),
        ("CAST(a AS TIMESTAMP WITHOUT TIME ZONE)", A.cast("timestamp_ntz")),
        ("concat(a, ' TIMESTAMP WITHOUT TIME ZONE')", func("concat", A, " TIMESTAMP WITHOUT TIME ZONE")),
        ("a + 1 AS c", (A + 1).alias("c")),
        ("startswith(a, 'x')", func("starts_with", A, "x")),
    ],
)
def test_what_is_read(text: str, expr: Expr) -> None:
    assert repr(parse_expr(text)) == repr(expr)


NO_EXPRESSIONS = ["", "a +", "a; b", "SELECT 1", "a > (SELECT 1)", "f(a)", "a LIKE b", "a IN (SELECT b)", "sum(a)"]
NO_EXPRESSIONS += [
    "a[b, c]",
    "a[sum(b)]",
    "1.5.2BD",
    "1.5D.2BD",
    "a.5",
    "f(a).5",
    "1 .5",
    "a.b.2BD",
    "datediff(a)",
    "date_diff()",
]
NO_EXPRESSIONS += [
    "datediff(a)",
    "date_diff()",
    "match_against(a, b)",
    "parameterized_agg(a, b, 1)",
    "ts_or_ds_add(a, b, 1, 2)",
]
NO_EXPRESSIONS += [f"a + INTERVAL {x}" for x in ("'1-12' YEAR TO MONTH", "'1 24' DAY TO HOUR", "'1:60' HOUR TO MINUTE")]
NO_EXPRESSIONS += [
    f"a + INTERVAL {x}" for x in ("'1:02:60' HOUR TO SECOND", "'1' DAY TO SECOND", "'1 month 1 day'", "'1.5 hours'")
]
NO_EXPRESSIONS += [f"a + INTERVAL {x}" for x in ("'1 2' HOUR TO DAY", "'-' DAY TO HOUR", "b DAYS")]


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
        ("timestamp(3)", pa.timestamp("us", "UTC")),
        ("timestamp without time zone", pa.timestamp("us")),
        ("TIMESTAMP(3)  Without Time\nZone", pa.timestamp("us")),
        ("timestamp with local time zone", pa.timestamp("us", "UTC")),
        ("interval day to second", pa.duration("us")),
        ("int[]", pa.list_(pa.int32())),
        ("int NULL", pa.int32()),
        ("int COMMENT 'it''s'", pa.int32()),
        ("int -- of milliseconds\n", pa.int32()),
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


def test_not_null_of_a_column_is_kept() -> None:
    expected = pa.schema([pa.field("c", pa.int32(), nullable=False), pa.field("d", pa.int32())])
    assert parse_schema("c int NOT NULL COMMENT 'x', d int NULL") == expected


NO_SCHEMAS = [
    "c timestamp[ms]",
    "c timestamp[us, tz=UTC]",
    "c int[3]",
    "c int[abc]",
    "c string[x=1]",
    "c map<string, int[2]>",
    "c decimal(10,2)[5]",
    "c int(5)",
    "c varchar(10)",
    "c float(53)",
    "c interval month",
    "c struct<x: int NOT NULL>",
    "c array<struct<x: int NOT NULL>>",
    "c interval",
    "c void",
    "c variant",
    "c",
    "c int d int",
    "(c int)",
    "c int) USING parquet (",
    "c int); DROP TABLE t; --",
]
NO_SCHEMAS += ["c decimal(5,6)", "c decimal(5,2,1)", "c array<int,string>", "c map<int,int,int>", "c int DEFAULT 5", "a.b int"]
NO_SCHEMAS += ["c int PRIMARY KEY", "c int GENERATED ALWAYS AS (1)", "c string COLLATE utf8_lcase", "c int UNIQUE"]


@pytest.mark.parametrize("text", NO_SCHEMAS)
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


def outcome(read: Callable[[str], pa.Schema], text: str) -> pa.Schema | type[SchemaError]:
    """The schema of a text, or that it is refused."""
    try:
        return read(text)
    except SchemaError as problem:
        return type(problem)


def test_plain_schemas_are_those_of_the_sql_parser() -> None:
    """Names and simple types are read without the parser: with every word of SQL as a name, as it reads them or not at all."""
    reader = Spark.Parser
    phrases = [*Spark.Tokenizer.KEYWORDS, *reader.CONSTRAINT_PARSERS, *reader.PROPERTY_PARSERS, *reader.ID_VAR_TOKENS]
    words = {word for phrase in phrases for word in str(getattr(phrase, "name", phrase)).lower().split() if word.isidentifier()}
    assert len(words) > 400
    texts = [text for word in sorted(words) for text in (f"{word} bigint", f"a string, {word.title()} int, b date")]
    texts += [f" x {name},\ty{name}\n{name} " for name in TYPE_NAMES.values()] + [
        "a int,",
        "a int b int",
        "a timestamp, a int",
        "",
    ]
    assert [text for text in texts if outcome(as_schema, text) != outcome(lambda t: checked(parse_schema(t)), text)] == []


@pytest.mark.parametrize("text", ["a + INTERVAL '1' M", "a + INTERVAL 5 M", "a + INTERVAL '5M'"])
def test_a_capital_m_could_be_a_month(text: str) -> None:
    with pytest.raises(DurationError, match="Hint:"):
        parse_expr(text)
    assert repr(parse_expr("a = 'INTERVAL 5 M'")) == repr(A == "INTERVAL 5 M")


@pytest.mark.parametrize(
    "length", ["1 day 2", "x 1 day", "1 day and", "one day", "1 day, 2 h", "1.5 hours 3", "1 day 2 3 hours"]
)
def test_nothing_of_an_interval_is_left_out(length: str) -> None:
    """The parser takes the first number and unit it finds."""
    with pytest.raises((DurationError, ExpressionError), match="Hint:"):
        parse_expr(f"a + INTERVAL '{length}'")


FORGOTTEN = [
    "round(a, 1, 2)",
    "mod(a, b, c)",
    "to_timestamp(a, 'yyyy', 'UTC')",
    "date_trunc('hour', a, 'UTC', 1)",
    "like(a, 'x', '#')",
]
FORGOTTEN += [
    "ltrim('x', a, 'y')",
    "element_at(a, 1, 2)",
    "named_struct('x', a, 'y')",
    "CAST(a AS string FORMAT 'yy')",
    "int(a, b)",
]
FORGOTTEN += ["coalesce(a, mod(a, [b, c][0], c))", "TRY_CAST(a AS int DEFAULT 0 ON CONVERSION ERROR)", "datediff(a, b, c, d)"]


@pytest.mark.parametrize("text", FORGOTTEN)
def test_arguments_that_the_parser_forgets_are_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match=r"takes (at most|names)|a cast has a value and a type"):
        parse_expr(text)


@pytest.mark.parametrize("many", range(1, 7))
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_no_function_forgets_an_argument(name: str, many: int) -> None:
    for arguments in ([f"c{i}" for i in range(many)], [str(100 + i) for i in range(many)]):
        try:
            read = repr(parse_expr(f"{name}({', '.join(arguments)})"))
        except ExpressionError:
            continue
        assert all(a in read for a in arguments)


@pytest.mark.parametrize("name", ["load", "comment", "set", "SHOW", "use", "copy", "describe", "update", "begin", "call"])
def test_a_column_may_be_called_as_statements_begin(name: str) -> None:
    assert repr(parse_expr(f"{name} > 5 AND a = 1")) == repr((col(name) > 5) & (A == 1))
    assert repr(parse_expr(f"  {name}")) == repr(col(name))
    for statement in (f"{name} a = 1, b = 2", f"{name} > 5; DROP TABLE a", f"{name} > 5 FROM a", f"{name}, a"):
        with pytest.raises(ExpressionError, match="Hint:"):
            parse_expr(statement)


@pytest.mark.parametrize("text", ["a = ?", "a > :least", "a = ${x}", "a = $1", "a = @x"])
def test_parameters_have_no_value(text: str) -> None:
    with pytest.raises(ExpressionError, match=r"a parameter has no value .*lit\(value\)"):
        parse_expr(text)
