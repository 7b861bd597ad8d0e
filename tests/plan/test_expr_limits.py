"""What expressions do at their edges: depth, wrong arguments, constants no column can hold; every error is one of ours."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import operator
import pickle
from typing import Any, cast

import pandas as pd
import pyarrow as pa
import pytest

from krishiv_py import col, count, func, lit
from krishiv_py.errors import ExpressionError, KrishivError, OperatorError
from krishiv_py.kernels.columns.evaluate import evaluate
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.expressions.parse import parse_expr
from krishiv_py.testing import Driver, stream_of

A, B = col("a"), col("b")
ANY: Any = A  # so that wrong arguments can be written
CONSTANT: Any = lit
D = decimal.Decimal
NAN = float("nan")


def values(expr: Expr, **columns: Any) -> list[Any]:
    actual: list[Any] = evaluate(expr, pa.table(columns)).to_pylist()
    return actual


# Depth


@pytest.mark.parametrize("n", [2_000, 5_000])
def test_a_long_chain_is_as_good_as_one(n: int) -> None:
    chain = functools.reduce(operator.and_, (i < A for i in range(n)))
    assert values(chain, a=pa.array([n, n - 1, None])) == [True, False, None]
    assert pickle.loads(pickle.dumps(chain)).same_as(chain)
    assert len(repr(chain)) > n
    total = functools.reduce(operator.add, [A] * n)
    assert values(total, a=pa.array([2])) == [2 * n]


def test_a_long_chain_of_text() -> None:
    text = " AND ".join(f"a <> {i}" for i in range(2_000))
    assert values(parse_expr(text), a=pa.array([1_999, 2_000])) == [False, True]
    text = " AND ".join(f"a <> {i}" for i in range(600))
    stream = stream_of("a bigint, at bigint").filter(text)
    driver = Driver(stream.watermark("at", 0).tumbling_window(10).agg(count().filter(text)))
    driver.send([{"a": 5_000, "at": 1}, {"a": 5, "at": 2}])
    assert driver.close().results["count"].to_pylist() == [1]


def test_nesting_has_a_limit_with_an_error_of_ours() -> None:
    deep: Expr = A
    for _ in range(5_000):
        deep = 1 + func("abs", deep)
    with pytest.raises(ExpressionError, match=r"nested too deeply .*Hint:"):
        stream_of("a bigint").with_column("x", deep)
    with pytest.raises(ExpressionError, match=r"Hint:"):
        parse_expr("(" * 3_000 + "a" + ")" * 3_000)


# Arguments


@pytest.mark.parametrize(
    "call",
    [
        lambda: ANY.cast(None),
        lambda: ANY.cast(5),
        lambda: ANY.try_cast("number"),
        lambda: ANY.cast("decimal(50, 2)"),
        lambda: ANY.cast("decimal(5, 9)"),
        lambda: ANY.isin([1], [2]),
        lambda: ANY.isin(B),
        lambda: ANY.isin(["a", ["b"]]),
        lambda: ANY.isin({"a": 1}),
        lambda: func("round"),
        lambda: func("round", A, "1"),
        lambda: func("round", A, B),
        lambda: func("round", A, True),
        lambda: func("lower"),
        lambda: func("lower", A, B),
        lambda: func("if_else", A, B),
        lambda: func("named_struct", "x"),
        lambda: func("named_struct", A, B),
        lambda: func(cast(Any, 3), A),
        lambda: ANY.alias(""),
        lambda: ANY.alias(None),
        lambda: ANY.field(None),
        lambda: A + object(),
        lambda: CONSTANT(object()),
        lambda: CONSTANT([1]),
        lambda: A > 10**38,
        lambda: A > -(10**40),
        lambda: CONSTANT(D("NaN")),
        lambda: CONSTANT(D("1E+60")),
        lambda: CONSTANT(pd.NaT),
        lambda: CONSTANT(pd.Timestamp("2024-01-01") + pd.Timedelta(1, "ns")),
        lambda: parse_expr("a > 1e400"),
        lambda: parse_expr("a > 1e"),
        lambda: parse_expr("a > .3.0"),
        lambda: parse_expr("a > " + "9" * 50),
        lambda: parse_expr("a IN (SELECT b)"),
        lambda: parse_expr("round(a, b)"),
        lambda: parse_expr("a IN (DATE 'x')"),
    ],
)
def test_wrong_arguments_are_refused_at_the_call(call: Any) -> None:
    with pytest.raises(ExpressionError, match=r"\(got: .*Hint:"):
        call()


@pytest.mark.parametrize(
    ("schema", "expr"),
    [
        ("a bigint", A + "x"),
        ("a bigint", A.isin("a", "b")),
        ("a string", -A),
        ("a string", func("abs", A)),
        ("a string", func("round", A, 1)),
        ("a bigint", func("lower", A)),
        ("a bigint", ~A),
        ("a bigint", A & True),
        ("a date", A.cast("bigint")),
        ("a bigint", A.cast("date")),
        ("a bigint", A.cast("timestamp_ntz")),
        ("a boolean", A.cast("timestamp")),
        ("a bigint", A.cast("binary")),
        ("a map<string,int>", A == A),
        ("a array<int>", A.cast("string")),
        ("a bigint", func("contains", A, "1")),
        ("a string", func("contains", A, 1)),
        ("a bigint", func("if_else", A, 1, 2)),
        ("a bigint", func("coalesce", A, "x")),
        ("a timestamp", A + 1),
        ("a timestamp", A * 2),
        ("a bigint", A.cast(pa.time32("s"))),
        ("a bigint", A.cast(pa.decimal256(40, 2))),
        ("a struct<x: int>", A.cast(pa.struct([("y", pa.int32())]))),
    ],
)
def test_types_without_such_an_operation_are_refused_by_the_step(schema: str, expr: Expr) -> None:
    with pytest.raises(ExpressionError, match=r"\(got: .*Hint:") as caught:
        stream_of(schema).with_column("x", expr)
    assert "kernel" not in str(caught.value)


# Constants


def test_integers_beyond_64_bits_are_compared_exactly() -> None:
    column = pa.array([2**63 - 1, -(2**63), None])
    assert values(A > 2**63, a=column) == [False, False, None]
    assert values(A < 2**63, a=column) == [True, True, None]
    assert values(A >= -(2**63), a=column) == [True, True, None]
    assert values(A == 2**63 - 1, a=column) == [True, False, None]
    assert values(parse_expr("a <= 9223372036854775808"), a=column) == [True, True, None]


def test_large_integers_meet_doubles() -> None:
    column = pa.array([2**53 + 1, 2**63 - 1])
    assert values(A / 2, a=column) == [2.0**52, 2.0**62]
    assert values(A > 1.5, a=column) == [True, True]
    assert values(A * 1.0, a=column) == [2.0**53, 2.0**63]


def test_isin_takes_a_list_and_compares_in_one_type() -> None:
    assert values(A.isin([1, 3]), a=pa.array([1, 2, None])) == [True, False, None]
    assert values(A.isin({"x"}), a=pa.array(["x", "y"])) == [True, False]
    assert values(A.isin(1.5), a=pa.array([1, 2])) == [False, False]
    assert values(A.isin(), a=pa.array([1, None])) == values(A.isin([]), a=pa.array([1, None])) == [False, False]
    assert values(A.isin(0.0, NAN), a=pa.array([-0.0, NAN, 1.0])) == [True, True, False]
    day = pa.array([dt.date(2024, 1, 1)])
    assert values(A.isin(dt.datetime(2024, 1, 1, 12)), a=day) == [False]
    assert values(A.isin(dt.datetime(2024, 1, 1)), a=day) == [True]
    assert values(A.isin("2024-01-01"), a=day) == [True]
    assert values(A.isin(D("1.10")), a=pa.array([D("1.1")], pa.decimal128(5, 1))) == [True]


def test_remainders_and_rounding() -> None:
    assert values(A % 0.1, a=pa.array([1.0]))[0] == pytest.approx(0.1)
    assert values(A % float("inf"), a=pa.array([5.0])) == [5.0]
    assert values(A % -1, a=pa.array([-(2**63)])) == [0]
    assert values(A % D("0.30"), a=pa.array([D("1.00")], pa.decimal128(5, 2))) == [D("0.10")]
    assert values(func("round", A, 1), a=pa.array([0.25, 0.35, -0.25])) == [0.3, 0.4, -0.3]
    assert values(func("round", A, 2), a=pa.array([2.675, 1.005, 1e300, NAN]))[:3] == [2.68, 1.01, 1e300]


def test_nan_is_the_greatest_number_and_equals_itself() -> None:
    column = pa.array([NAN, 1.0, None])
    assert values(A > 5.0, a=column) == [True, False, None]
    assert values(A <= 5.0, a=column) == [False, True, None]
    assert values(lit(5.0) < A, a=column) == [True, False, None]
    assert values(A == A, a=column) == values(A == NAN, a=pa.array([NAN, NAN, None])) == [True, True, None]
    assert values(A < B, a=column, b=pa.array([NAN, NAN, NAN])) == [False, True, None]
    assert values(A >= B, a=column, b=pa.array([float("inf"), NAN, 1.0])) == [True, False, None]


def test_decimals_that_meet_in_a_shorter_scale_are_rounded() -> None:
    long, short = pa.array([D(10) ** 34], pa.decimal128(37, 0)), pa.array([D("1.25")], pa.decimal128(7, 2))
    assert values(func("if_else", A > 5, A, B), a=long, b=short) == [D(10) ** 34]
    assert values(func("if_else", A < 5, A, B), a=long, b=short) == [D("1.3")]


def test_try_cast_gives_null_where_cast_fails() -> None:
    text = pa.array(["5", "five", None, "0x1F", "300"])
    assert values(A.try_cast("tinyint"), a=text) == [5, None, None, None, None]
    assert values(parse_expr("TRY_CAST(a AS INT)"), a=text) == [5, None, None, None, 300]
    for failing in ("five", "0x1F"):
        with pytest.raises(OperatorError, match=rf"cast\(a as int32\) cannot be computed .*'{failing}' in row 0 .*Hint:"):
            values(parse_expr("CAST(a AS INT)"), a=pa.array([failing]))


def test_sliced_columns_and_empty_ones() -> None:
    decimals = pa.array([D("1.5"), None, D("2.5")], pa.decimal128(5, 1))
    table = pa.table({"d": decimals, "s": ["ß", None, "b"], "f": [0.5, None, 1.5]})
    for expr, wanted in (
        (col("d").cast("double"), [None, 2.5]),
        (func("upper", col("s")), [None, "B"]),
        (func("round", col("f")), [None, 2.0]),
        (col("d") / 2, [None, D("1.250000")]),
    ):
        assert evaluate(expr, table.slice(1)).to_pylist() == wanted
        assert evaluate(expr, table.to_batches()[0].slice(1)).to_pylist() == wanted
        assert evaluate(expr, table.slice(3)).to_pylist() == []


def test_an_error_in_a_stream_names_the_expression() -> None:
    driver = Driver(
        stream_of("a bigint, at bigint").with_column("x", "1 / a").watermark("at", 0).tumbling_window(5).agg(count("x"))
    )
    with pytest.raises(KrishivError, match=r"\(1 / a\) cannot be computed .*division by zero in row 1.*nullif"):
        driver.send([{"a": 1, "at": 1}, {"a": 0, "at": 2}])


def test_the_filter_of_an_aggregate_guards_its_argument() -> None:
    call = count(lit(1) / A).filter(A != 0).alias("n")
    driver = Driver(stream_of("a bigint, at bigint").watermark("at", 0).tumbling_window(5).agg(call))
    driver.send([{"a": 1, "at": 1}, {"a": 0, "at": 2}, {"a": None, "at": 3}])
    assert driver.close().results["n"].to_pylist() == [1]
