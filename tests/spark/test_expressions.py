"""Expressions give what Spark gives, value or error, over all functions and types (docs/expressions.md)."""

from __future__ import annotations

import math
import os
import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql.classic.column import Column as ClassicColumn

from krishiv_py import Session
from krishiv_py.errors import ExpressionError, OperatorError
from krishiv_py.kernels.columns.evaluate import evaluate, expr_type
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.expressions.parse import parse_expr
from tests.spark.expression_sql import sql
from tests.spark.expression_trees import TARGETS, table, tree

ROWS = 30
_RULES = "org.apache.spark.sql.catalyst.optimizer"
_REWRITES = (
    "UnwrapCastInBinaryComparison",
    "BooleanSimplification",
    "SimplifyBinaryComparison",
    "ReplaceNullWithFalseInPredicate",
    "SimplifyConditionals",
    "PushFoldableIntoBranches",
    "OptimizeIn",
    "NullPropagation",
)
"""What Spark rewrites expressions by, not always to the same where a part is null or fails."""
ERROR = object()
PER_KIND = max(60, int(os.environ.get("KRISHIV_EXAMPLES", "40")) // 20)


def ours(expr: Expr, rows: pa.Table) -> list[Any]:
    """Values by row; halves of the rows, and theirs, where not all can be computed."""
    try:
        actual: list[Any] = plain(evaluate(expr, rows))
        return actual
    except OperatorError:
        if len(rows) == 1:
            return [ERROR]
    half = len(rows) // 2
    return ours(expr, rows[:half]) + ours(expr, rows[half:])


def plain(column: pa.Array) -> list[Any]:
    """Values that can be compared whatever their year."""
    inner = column.type.value_type if pa.types.is_list(column.type) else column.type
    number = pa.int64() if pa.types.is_timestamp(inner) else pa.int32() if pa.types.is_date(inner) else None
    if number is not None:
        column = column.cast(number if inner is column.type else pa.list_(number))
    actual: list[Any] = column.to_pylist()
    return actual


class Spark:
    """Evaluates many expressions in one query; what fails is distinguished from null."""

    def __init__(self, session: Session, rows: pa.Table) -> None:
        spark = session.spark
        self.conf = spark.conf
        self.frame: DataFrame = spark.createDataFrame(rows)
        assert spark._jvm is not None
        self.jvm: Any = spark._jvm
        self.parser = spark._jsparkSession.sessionState().sqlParser()

    def column(self, text: str, name: str) -> Column:
        """The expression, or null where it fails; wrapped, so that a null value is not taken for a failure."""
        wrapped = self.parser.parseExpression(f"array({text})")
        tried = self.jvm.org.apache.spark.sql.catalyst.expressions.TryEval(wrapped)
        return ClassicColumn(self.jvm.org.apache.spark.sql.classic.ExpressionUtils.column(tried)).alias(name)

    def refuses(self, text: str) -> str | None:
        """Why Spark does not take an expression."""
        try:
            self.frame.select(self.column(text, "c"))
        except AnalysisException as problem:
            return str(problem).splitlines()[0]
        return None

    def values(self, texts: list[str]) -> list[tuple[pa.DataType, list[Any]]]:
        """Type and values of each."""
        self.conf.set("spark.sql.optimizer.excludedRules", ",".join(f"{_RULES}.{rule}" for rule in _REWRITES))
        try:
            actual = self.frame.select(*[self.column(text, f"c{i}") for i, text in enumerate(texts)]).toArrow()
        finally:
            self.conf.unset("spark.sql.optimizer.excludedRules")
        out = []
        for column in actual.columns:
            whole = column.combine_chunks()
            values = iter(plain(whole.flatten()))
            out.append((whole.type.value_type, [next(values) if fine else ERROR for fine in whole.is_valid().to_pylist()]))
        return out


def same(left: Any, right: Any) -> bool:
    if left is ERROR or right is ERROR or left is None or right is None:
        return left is right
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return bool(left == right)


def well_typed(expr: Expr, rows: pa.Table) -> bool:
    try:
        expr_type(expr, rows.schema)
    except ExpressionError:  # stricter than Spark: texts are not converted by themselves
        return False
    except OperatorError:  # constants that fail are refused at the call
        return False
    return True


@pytest.mark.one_in(9)
@pytest.mark.parametrize("kind", sorted(TARGETS))
def test_values_and_errors_are_those_of_spark(session: Session, kind: str) -> None:
    seed = int(os.environ.get("KRISHIV_SEED", "1"))
    chance = random.Random(f"{kind} {seed}")
    rows = table(chance, ROWS)
    exprs: list[Expr] = []
    while len(exprs) < PER_KIND:
        expr = tree(chance, kind, chance.choice([1, 1, 2, 2, 3]))
        if well_typed(expr, rows):
            exprs.append(expr)
    spark = Spark(session, rows)
    texts = [sql(e) for e in exprs]
    try:
        actual = spark.values(texts)
    except AnalysisException:
        pytest.fail("Spark refuses\n" + "\n".join(f"{t}\n    {why}" for t in texts if (why := spark.refuses(t))))
    wrong, order = [], 0
    for expr, text, (type_, theirs) in zip(exprs, texts, actual, strict=True):
        mine = ours(expr, rows)
        for i, (x, y) in enumerate(zip(mine, theirs, strict=True)):
            if x is None and y is ERROR:  # next to null: which operand is looked at first Spark does not promise
                order += 1
                break
            if not same(x, y):
                row = {n: rows[n][i].as_py() for n in rows.schema.names if f"`{n}`" in text}
                wrong.append(f"{text}\n    ours {x!r}, Spark {y!r} ({type_}), row {row}")
                break
    assert order <= len(exprs) // 50
    assert not wrong, f"{len(wrong)} of {len(exprs)}:\n" + "\n".join(wrong[:15])


@pytest.mark.slow
def test_text_is_read_as_spark_reads_it() -> None:
    chance = random.Random("texts")
    rows = table(chance, ROWS)
    for _ in range(400):
        expr = tree(chance, chance.choice(sorted(TARGETS)), 2)
        if not well_typed(expr, rows):
            continue
        actual, wanted = ours(parse_expr(sql(expr)), rows), ours(expr, rows)
        assert all(same(x, y) for x, y in zip(actual, wanted, strict=True)), sql(expr)
