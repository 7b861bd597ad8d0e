"""Expressions: their values are those of SQL, three-valued logic included."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import col, func, lit
from krishiv_py.errors import ColumnError, ExpressionError, OperatorError
from krishiv_py.kernels.columns.evaluate import evaluate
from krishiv_py.plan.expressions.expr import Expr, columns_of, name_of
from krishiv_py.plan.expressions.parse import parse_expr

A, B = col("a"), col("b")
UTC = dt.timezone.utc


def values(expr: Expr, **columns: Any) -> list[Any]:
    actual: list[Any] = evaluate(expr, pa.table(columns)).to_pylist()
    return actual


LOGIC = [True, False, None]
PAIRS = list(itertools.product(LOGIC, LOGIC))
BOOLS = {"p": pa.array([p for p, _ in PAIRS], pa.bool_()), "q": pa.array([q for _, q in PAIRS], pa.bool_())}
INTS = {
    "a": pa.array([1, 2, None, -7, 0], pa.int64()),
    "b": pa.array([2, 2, 2, None, 3], pa.int64()),
    "s": pa.array(["Ab", "", None, "ÅÉ", "b"]),
}


@pytest.mark.parametrize(
    "text",
    [
        "a + b",
        "a - b",
        "a * b",
        "a / b",
        "a % b",
        "-a",
        "a = b",
        "a <> b",
        "a < b",
        "a <= b",
        "a > b",
        "a >= b",
        "a IS NULL",
        "a IS NOT NULL",
        "a IN (1, 0)",
        "a NOT IN (1, 0)",
        "a IN (1, NULL)",
        "a NOT IN (1, NULL)",
        "a BETWEEN 0 AND 1",
        "coalesce(a, b)",
        "lower(s)",
        "upper(s)",
        "length(s)",
        "s = 'Ab'",
        "s IN ('Ab', '')",
        "abs(a)",
        "CAST(a AS DOUBLE)",
        "NOT (a > 0 OR b > 2)",
        "a > 0 AND s IS NULL",
        "(a + 1) * 2 - b",
        "CAST(a AS STRING)",
    ],
)
def test_values_are_those_of_an_sql_engine(text: str) -> None:
    given_ = pa.table(INTS)
    wanted = [row[0] for row in duckdb.from_arrow(given_).project(f"{text} AS x").fetchall()]
    assert values(parse_expr(text), **INTS) == wanted


@pytest.mark.parametrize("text", ["p AND q", "p OR q", "NOT p", "p = q", "NOT p AND q", "NOT (p OR q)"])
def test_three_valued_logic(text: str) -> None:
    wanted = [row[0] for row in duckdb.from_arrow(pa.table(BOOLS)).project(f"{text} AS x").fetchall()]
    assert values(parse_expr(text), **BOOLS) == wanted


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-50, 50).filter(bool)), max_size=8))
def test_the_remainder_has_the_sign_of_the_dividend_as_in_spark(pairs: list[tuple[int, int]]) -> None:
    left, right = pa.array([p for p, _ in pairs], pa.int64()), pa.array([q for _, q in pairs], pa.int64())
    assert values(A % B, a=left, b=right) == [abs(p) % abs(q) * (1 if p > 0 else -1) for p, q in pairs]


def test_division_is_in_double() -> None:
    assert values(A / B, a=pa.array([1, 2**53 + 1, None]), b=pa.array([2, 1, 0])) == [0.5, 2.0**53, None]
    assert values(A % B, a=pa.array([1.5, -7.5]), b=pa.array([1.0, 2.0])) == [0.5, -1.5]


@pytest.mark.parametrize("type_", [pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(5, 2)])
def test_division_by_zero_is_an_error_as_in_spark_but_not_of_null(type_: pa.DataType) -> None:
    plain = decimal.Decimal if pa.types.is_decimal(type_) else int
    one, none, zero = (pa.array([None if v is None else plain(v)], type_) for v in (1, None, 0))
    for expr in (A / B, A % B, A / 0, A % 0, 1 / B):
        with pytest.raises(OperatorError, match="division by zero in row 0"):
            values(expr, a=one, b=zero)
    for expr in (A / B, A % B, A / 0, A % 0):
        assert values(expr, a=none, b=zero) == [None]


@pytest.mark.parametrize("one", [pa.array([1]), pa.array([decimal.Decimal("1.5")]), pa.array([1.5])])
def test_a_null_divisor_is_looked_at_before_a_dividend_that_fails(one: pa.Array) -> None:
    for none in (lit(None), lit(None).cast("decimal(5,2)"), lit(None).cast("bigint")):
        for expr in ((A / 0) / none, (A % 0) / none, (A / 0) % none, ((A / 0) / none) + 1):
            assert values(expr, a=one) == [None]
    with pytest.raises(OperatorError, match="division by zero"):
        values((A / 0) / 2, a=one)


def test_a_guard_keeps_rows_from_what_cannot_be_computed() -> None:
    columns = {"a": pa.array([4, 1, None, 6], pa.int64()), "b": pa.array([2, 0, 0, None], pa.int64())}
    fine = (B != 0) & (A / B > 1)
    assert values(fine, **columns) == [True, False, False, None]
    assert values((B == 0) | (A / B > 1), **columns) == [True, True, True, None]
    assert values(func("if_else", B != 0, A / B, -1.0), **columns) == [2.0, -1.0, -1.0, -1.0]
    assert values(func("coalesce", func("if_else", B == 0, 0.5, lit(None)), A / B), **columns) == [2.0, 0.5, 0.5, None]
    assert values(A / func("nullif", B, 0), **columns) == [2.0, None, None, None]
    with pytest.raises(OperatorError, match="division by zero"):
        values((A / B > 1) & (B != 0), **columns)


def test_overflow_is_an_error_and_no_wrap_around() -> None:
    with pytest.raises(OperatorError, match="overflow"):
        values(A + 1, a=pa.array([2**63 - 1]))
    with pytest.raises(OperatorError, match="overflow"):
        values(A * A, a=pa.array([2**40]))


def test_an_impossible_cast_is_an_error() -> None:
    assert values(A.cast("int"), a=pa.array(["5", None])) == [5, None]
    with pytest.raises(OperatorError, match="cannot be computed"):
        values(A.cast("int"), a=pa.array(["five"]))
    with pytest.raises(ExpressionError, match="unknown type name"):
        A.cast("number")


def test_types_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ExpressionError, match="do not fit"):
        values(A + B, a=pa.array([1]), b=pa.array(["x"]))
    with pytest.raises(ColumnError, match="no column 'c'"):
        values(col("c"), a=pa.array([1]))


def test_times_compare_with_datetimes_naive_meaning_utc() -> None:
    noon = dt.datetime(2024, 1, 1, 12)
    for type_ in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        assert values(col("a") >= noon, a=pa.array([noon, noon - dt.timedelta(seconds=1), None], type_)) == [True, False, None]
        assert values(lit(noon) <= col("a"), a=pa.array([noon], type_)) == [True]
        assert values(A.isin(noon), a=pa.array([noon, None], type_)) == [True, None]
    text = pa.array(["2024-01-01T12:00:00"])
    assert values(A.cast("timestamp"), a=text) == [noon.replace(tzinfo=UTC)]
    assert values(A.cast("timestamp_ntz"), a=text) == [noon]


def test_functions() -> None:
    text = pa.array(["abc", None, ""])
    assert values(func("contains", A, "b"), a=text) == [True, None, False]
    assert values(func("starts_with", A, "a"), a=text) == [True, None, False]
    assert values(func("if_else", A > 1, "big", "small"), a=pa.array([1, 2, None])) == ["small", "big", "small"]
    assert values(func("round", A), a=pa.array([1.4, None])) == [1.0, None]
    assert values(lit(7), a=text) == [7, 7, 7]
    with pytest.raises(ExpressionError, match="unknown function"):
        func("frobnicate", A)


def test_an_expression_has_no_truth_value() -> None:
    with pytest.raises(ExpressionError, match=r"use &, \|, ~"):
        bool(A > 1)
    with pytest.raises(ExpressionError, match="no truth value"):
        assert 0 < A < 5
    with pytest.raises(TypeError):
        hash(A)


def test_trees_are_compared_by_shape() -> None:
    assert (A + 1).same_as(col("a") + 1)
    assert not (A + 1).same_as(A + 2)
    assert columns_of((A + B).alias("x") > func("abs", col("c"))) == {"a", "b", "c"}
    assert [name_of(e) for e in (A, (A + 1).alias("n"), A + 1)] == ["a", "n", "(a + 1)"]


@pytest.mark.parametrize("wrong", [object(), [1], {"a": 1}, len], ids=["object", "list", "dict", "function"])
def test_only_columns_and_constants_make_expressions(wrong: Any) -> None:
    with pytest.raises(ExpressionError, match="not a column or constant"):
        A + wrong
    with pytest.raises(ExpressionError, match="named by text"):
        col(wrong)
