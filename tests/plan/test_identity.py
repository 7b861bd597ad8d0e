"""When two expressions are the same: by how they are built, whatever their texts look like."""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import itertools
import pickle

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import avg, col, count, first, func, last, lit, max, sum, udf
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.expressions.expr import Alias, Expr, Field, Func, IsIn, StructOf, identity_of
from krishiv_py.plan.expressions.parse import parse_expr
from krishiv_py.planner.fingerprint import differences, fingerprint
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

A, B = col("a"), col("b")
UTC = dt.timezone.utc
DIFFERENT = [
    A + B,
    col("(a + b)"),
    lit("(a + b)"),
    B + A,
    A + 1,
    A + lit(True),
    A + 1.0,
    A + decimal.Decimal(1),
    A + decimal.Decimal("1.0"),
    lit(1),
    col("1"),
    lit("1"),
    lit(b"1"),
    lit(None),
    col("None"),
    col("True"),
    lit(True),
    lit(0.0),
    lit(-0.0),
    col("nan"),
    lit(float("nan")),
    lit(dt.date(2024, 1, 1)),
    lit(dt.datetime(2024, 1, 1)),
    lit(dt.datetime(2024, 1, 1, tzinfo=UTC)),
    A.field("b"),
    col("a.b"),
    col("`a`.b"),
    A.alias("b"),
    col("a AS b"),
    A.alias("b AS c"),
    A.alias("b").alias("c"),
    A.cast("int"),
    A.try_cast("int"),
    A.cast("bigint"),
    A.cast("timestamp"),
    A.cast(pa.timestamp("us", "UTC")),
    A.cast(pa.timestamp("ms", "UTC")),
    A.isin(1),
    A.isin("1"),
    A.isin(1, 2),
    A.isin("1, 2"),
    A == 1,
    func("lower", A),
    col("lower(a)"),
    func("coalesce", A, B),
    func("coalesce", col("a, b")),
    StructOf(("a", "b")),
    StructOf(("a, b",)),
    A - B - 1,
    A - (B - 1),
    ~A,
    -A,
    A.is_null(),
    A.is_not_null(),
]


def test_no_two_that_are_built_otherwise_are_the_same() -> None:
    for left, right in itertools.combinations(DIFFERENT, 2):
        assert not left.same_as(right), (left, right)
        assert repr(left) != repr(right), "plan fingerprints are made of texts"


def test_what_is_built_alike_is_the_same_after_copying_and_pickling() -> None:
    for expr in DIFFERENT:
        for other in (copy.copy(expr), copy.deepcopy(expr), pickle.loads(pickle.dumps(expr))):
            assert expr.same_as(other) and identity_of(expr) == identity_of(other) and repr(expr) == repr(other)


constants = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())
leaves = st.one_of(st.builds(col, st.text(max_size=3)), st.builds(lit, constants))
listed = st.lists(st.one_of(st.none(), st.integers(0, 3), st.text(max_size=1)))
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda x, y: x + y, inner, inner),
        st.builds(Field, inner, st.text(max_size=2)),
        st.builds(Alias, inner, st.text()),
        st.builds(lambda xs: Func("coalesce", tuple(xs)), st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda x, vs: IsIn(x, tuple(vs)), inner, listed),
    ),
)


@given(trees, trees)
def test_sameness_is_that_of_the_text_and_of_the_pickled_tree(left: Expr, right: Expr) -> None:
    assert left.same_as(right) == (repr(left) == repr(right))
    assert pickle.loads(pickle.dumps(left)).same_as(left)


ROWS = [{"(a + b)": 100, "a": 1, "b": 2, "1": 7, "at": 0}, {"(a + b)": 200, "a": 3, "b": 4, "1": 8, "at": 1}]
STREAM = stream_of("`(a + b)` bigint, a bigint, b bigint, `1` bigint, at bigint")


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ((sum("(a + b)").alias("x"), sum(A + B).alias("y")), (300, 10)),
        ((sum("1").alias("x"), sum(lit(1)).alias("y")), (15, 2)),
        ((max(lit("a")).alias("x"), max("a").alias("y")), ("a", 3)),
        ((count("1").filter(A > 1).alias("x"), count(lit(1)).filter(col("(a + b)") > 1).alias("y")), (1, 2)),
        ((first(lit(1)).alias("x"), last(lit(True)).alias("y")), (1, True)),
    ],
)
def test_inputs_that_look_alike_are_not_shared(calls: tuple[AggCall, AggCall], expected: tuple[object, object]) -> None:
    for pair, wanted in ((calls, expected), (calls[::-1], expected[::-1])):
        driver = Driver(STREAM.watermark("at", 0).tumbling_window(10).agg(*pair))
        driver.send(ROWS)
        assert tuple(driver.close().results.to_pylist()[0].values())[2:] == wanted


def test_a_plan_over_the_column_is_no_plan_over_the_expression() -> None:
    one, other = (
        fingerprint(STREAM.watermark("at", 0).tumbling_window(10).agg(avg(x).alias("x"))._spec())
        for x in (col("(a + b)"), A + B)
    )
    assert [line.split(" was ")[0] for line in differences(one, other)] == ["aggregate 1"]


def test_sql_keeps_a_column_and_an_expression_of_one_text_apart() -> None:
    context = SqlContext()
    context.register("t", STREAM, event_time="at", lag=0)
    planned = context.sql(
        "SELECT a + b, `(a + b)` AS c, SUM(`1`) AS x, SUM(1) AS y FROM t GROUP BY a + b, `(a + b)`, tumble_end(at, '10 ms')"
    )
    assert planned is not None
    driver = Driver(planned)
    driver.send(ROWS)
    actual = sorted(tuple(row.items()) for row in driver.close().results.to_pylist())
    assert actual == [(("(a + b)", 3), ("c", 100), ("x", 7), ("y", 1)), (("(a + b)", 7), ("c", 200), ("x", 8), ("y", 1))]
    with pytest.raises(ValueError, match="neither grouped nor aggregated"):
        context.sql("SELECT `(a + b)`, COUNT(*) FROM t GROUP BY a + b, tumble_end(at, '10 ms')")


def test_texts_are_read_back() -> None:
    for text in ("`(a + b)`", "`None` + 1", "`a.b`.`c d`", "a.b", "`x``y`"):
        assert parse_expr(repr(parse_expr(text))).same_as(parse_expr(text))


def test_functions_of_users_that_look_alike_are_not_the_same() -> None:
    same, tenfold = udf("bigint")(lambda x: x), udf("bigint")(lambda x: pc.multiply(x, 10))
    assert repr(same("a")) == repr(tenfold("a"))
    assert same("a").same_as(same("a"))
    assert not same("a").same_as(tenfold("a"))
    calls = [sum(same("n")).alias("one"), sum(tenfold("n")).alias("ten"), (sum(tenfold("n")) / count()).alias("each")]
    driver = Driver(stream_of("n bigint, at bigint").watermark("at", 0).tumbling_window(10).agg(*calls))
    driver.send([{"n": 3, "at": 1}, {"n": 1, "at": 2}])
    (row,) = driver.close().results.to_pylist()
    assert (row["one"], row["ten"], row["each"]) == (4, 40, 20.0)
    spec = pickle.loads(pickle.dumps(udf("bigint", name="f")(abs)("a")))
    assert spec.same_as(pickle.loads(pickle.dumps(spec)))
