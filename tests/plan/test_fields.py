"""Fields of structs, and names with dots: a qualifier is never dropped, and never another column is read."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from krishiv_py import Stream, col, count, count_distinct, sum
from krishiv_py.errors import ColumnError, ExpressionError, KrishivError
from krishiv_py.kernels.columns.evaluate import evaluate
from krishiv_py.plan.expressions.expr import name_of
from krishiv_py.plan.expressions.parse import parse_expr
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

S = pa.struct([("amount", pa.int64()), ("b", pa.int64()), ("in", pa.struct([("x y", pa.int64()), ("Z", pa.string())]))])
INNER = pa.struct([("c", pa.int64())])
SCHEMA = pa.schema([("s", S), *((n, pa.int64()) for n in ("amount", "b", "a.b")), ("a", INNER), ("at", pa.int64())])
ROWS: list[dict[str, Any]] = [
    {"s": {"amount": 100, "b": 1, "in": {"x y": 5, "Z": "q"}}, "amount": 1, "b": 10, "a.b": 20, "a": {"c": 30}, "at": 0},
    {"s": {"amount": 1, "b": None, "in": None}, "amount": 100, "b": 11, "a.b": 21, "a": None, "at": 1},
    {"s": None, "amount": 200, "b": 12, "a.b": 22, "a": {"c": None}, "at": 2},
]
TABLE = pa.Table.from_pylist(ROWS, SCHEMA)


def of(text: str) -> list[Any]:
    actual: list[Any] = evaluate(parse_expr(text), TABLE).to_pylist()
    return actual


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("s.amount", [100, 1, None]),
        ("amount", [1, 100, 200]),
        ("s.amount > 50", [True, False, None]),
        ("s.b", [1, None, None]),
        ("b", [10, 11, 12]),
        ("`a.b`", [20, 21, 22]),
        ("a.c", [30, None, None]),
        ("s.in.`x y`", [5, None, None]),
        ("s.in.Z", ["q", None, None]),
        ("`s`.`amount` + `a.b`", [120, 22, None]),
        ("coalesce(s.amount, amount)", [100, 1, 200]),
        ("named_struct('k', s.in).k.Z = 'q'", [True, None, None]),
        ("s IS NULL", [False, False, True]),
    ],
)
def test_a_dot_takes_a_field_and_backquotes_make_a_name(text: str, values: list[Any]) -> None:
    assert of(text) == values


def test_the_builder_has_the_same() -> None:
    assert parse_expr("s.in.`x y`").same_as(col("s").field("in").field("x y"))
    assert parse_expr("`a.b`").same_as(col("a.b"))
    assert name_of(col("s").field("amount")) == "amount"


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda s: s.filter("s.amount > 50"), [0]),
        (lambda s: s.filter("`a.b` > 20"), [1, 2]),
        (lambda s: s.filter(col("s").field("amount") < 50), [1]),
        (lambda s: s.with_column("x", "s.amount").filter("x > 50"), [0]),
        (lambda s: s.with_column("amount", "s.amount").filter("amount > 50"), [0]),
        (lambda s: s.select("at", x="s.in.Z").filter("x = 'q'"), [0]),
    ],
)
def test_every_step_that_takes_text_reads_the_field(use: Any, expected: list[int]) -> None:
    driver = Driver(use(stream_of(SCHEMA)).watermark("at", 0).key_by("at").tumbling_window(10).agg(count()))
    driver.send([{k: v for k, v in row.items() if k in driver._spec.source_schema.names} for row in ROWS])
    assert driver.close().results["at"].to_pylist() == expected


def test_aggregates_over_fields() -> None:
    aggs = [
        sum(col("s").field("amount")),
        count().filter("s.amount > 50").alias("n"),
        count_distinct(col("s").field("b")).alias("d"),
        sum("amount").alias("top"),
    ]
    driver = Driver(stream_of(SCHEMA).watermark("at", 0).tumbling_window(10).agg(aggs))
    driver.send(ROWS)
    actual = driver.close().results.to_pylist()[0]
    assert {k: actual[k] for k in ("sum_amount", "n", "d", "top")} == {"sum_amount": 101, "n": 1, "d": 1, "top": 301}


@pytest.mark.parametrize(
    ("use", "kind", "says"),
    [
        (lambda s: s.filter("t.amount > 5"), ColumnError, "no column 't'"),
        (lambda s: s.filter("a.b > 5"), ExpressionError, "a has no field 'b'"),
        (lambda s: s.drop("a").filter("a.b > 5"), ColumnError, "`a.b` in backquotes"),
        (lambda s: s.filter("b.amount > 5"), ExpressionError, "b is not a struct"),
        (lambda s: s.filter("s.amuont > 5"), ExpressionError, "no field 'amuont'.*'amount'"),
        (lambda s: s.filter("s.AMOUNT > 5"), ExpressionError, "no field 'AMOUNT'"),
        (lambda s: s.filter(col("s.amount") > 5), ColumnError, r'col\("s"\)\.field\("amount"\)'),
        (lambda s: s.with_column("x", "s.in.nothing"), ExpressionError, "no field 'nothing'"),
        (lambda s: s.filter("s.*"), ExpressionError, r"COUNT\(\*\) only"),
        (lambda s: s.watermark("at", 0).tumbling_window(5).agg(count().filter("t.amount > 5")), ColumnError, "no column 't'"),
        (lambda s: s.watermark("at", 0).tumbling_window(5).agg(sum(col("s").field("z"))), ExpressionError, "no field 'z'"),
        (lambda s: s.filter(col("s").field("")), ExpressionError, "non-empty text"),
        (lambda s: s.filter(col("s").field(cast(Any, 3))), ExpressionError, "non-empty text"),
    ],
)
def test_what_is_not_there_is_refused_at_the_call(use: Any, kind: type[KrishivError], says: str) -> None:
    with pytest.raises(kind, match=says) as caught:
        use(stream_of(SCHEMA))
    assert "Hint:" in str(caught.value)


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("s.amount AS x, COUNT(*) AS n", [{"x": 1, "n": 1}, {"x": 100, "n": 1}, {"x": None, "n": 1}]),
        ("S.Amount, COUNT(*) AS n", [{"amount": 1, "n": 1}, {"amount": 100, "n": 1}, {"amount": None, "n": 1}]),
        ("t.s.amount, COUNT(*) AS n", [{"amount": 1, "n": 1}, {"amount": 100, "n": 1}, {"amount": None, "n": 1}]),
        ("t.amount, COUNT(*) AS n", [{"amount": 1, "n": 1}, {"amount": 100, "n": 1}, {"amount": 200, "n": 1}]),
        ("`a.b`, SUM(t.b) AS n", [{"a.b": 20, "n": 10}, {"a.b": 21, "n": 11}, {"a.b": 22, "n": 12}]),
    ],
)
def test_in_a_query_a_qualifier_is_the_table_or_a_struct(select: str, expected: list[dict[str, Any]]) -> None:
    key = select.split(",")[0].removesuffix(" AS x")
    context = SqlContext()
    context.register("events", stream_of(SCHEMA), event_time="at", lag=0)
    planned = context.sql(f"SELECT {select} FROM events t GROUP BY {key}, tumble_end(t.at, '10 ms')")
    assert planned is not None
    driver = Driver(planned)
    driver.send(ROWS)
    assert sorted(driver.close().results.to_pylist(), key=repr) == sorted(expected, key=repr)


def test_a_table_called_like_a_struct_names_its_own_columns_first() -> None:
    context = SqlContext()
    context.register("s", stream_of(SCHEMA), event_time="at", lag=0)
    for text, expected in (("s.amount", 301), ("s.s.amount", 101), ("s.in.`x y`", 5)):
        planned = context.sql(f"SELECT SUM({text}) AS x FROM s GROUP BY tumble_end(s.at, '10 ms')")
        assert planned is not None
        driver = Driver(planned)
        driver.send(ROWS)
        assert driver.close().results.to_pylist() == [{"x": expected}]


def test_a_field_called_like_the_event_time_is_none() -> None:
    stream: Stream = stream_of("s struct<at: bigint>, at bigint")
    context = SqlContext()
    context.register("t", stream, event_time="at", lag=0)
    with pytest.raises(KrishivError, match="not over the event time"):
        context.sql("SELECT COUNT(*) FROM t GROUP BY tumble_end(s.at, '1 s')")
