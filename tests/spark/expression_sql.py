"""Expressions as text of Spark SQL."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from typing import Any

from krishiv_py.plan.expressions.expr import BinOp, Case, Cast, Col, Expr, Field, Func, IsIn, Lit, UnOp
from krishiv_py.spark.setup.types import spark_type

D = decimal.Decimal
_FUNCTIONS = {"if_else": "if", "starts_with": "startswith", "ends_with": "endswith"}
_PLACES = (
    "round",
    "substring",
    "regexp_extract",
    "date_add",
    "date_sub",
    "add_months",
    "lpad",
    "rpad",
    "split_part",
    "sha2",
    "element_at",
)  # Spark takes int here


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


_SIDES = {"trim": "BOTH", "ltrim": "LEADING", "rtrim": "TRAILING"}


def _condition(expr: Expr) -> str:
    """A condition of CASE, where Spark takes no plain NULL."""
    return "CAST(NULL AS BOOLEAN)" if isinstance(expr, Lit) and expr.value is None else sql(expr)


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
        name = spark_type(expr.type)
        return f"{'TRY_CAST' if expr.tried else 'CAST'}({sql(expr.arg)} AS {name})"
    if isinstance(expr, Case):
        pairs = "".join(
            f" WHEN {_condition(expr._args[i])} THEN {sql(expr._args[i + 1])}" for i in range(0, len(expr._args) - 1, 2)
        )
        return f"(CASE{pairs}{f' ELSE {sql(expr._args[-1])}' if len(expr._args) % 2 else ''} END)"
    assert isinstance(expr, Func)
    if expr.name == "nullif":  # Spark computes a common part of its own nullif before, outside of what catches errors
        left, right = map(sql, expr.args)
        return f"if({left} = {right}, NULL, {left})"
    arguments = [sql(a) for a in expr.args]
    if expr.name in _PLACES:
        arguments = [arguments[0], *(a.removesuffix("L") for a in arguments[1:])]
    if expr.name == "item":
        return f"{arguments[0]}[{arguments[1].removesuffix('L')}]"
    if expr.name in ("plus_days", "plus_months"):
        unit = "DAY" if expr.name == "plus_days" else "MONTH"
        return f"({arguments[0]} + INTERVAL '{arguments[1].removesuffix('L').strip('()')}' {unit})"
    if expr.name == "second_fraction":
        return f"EXTRACT(SECOND FROM {arguments[0]})"
    if expr.name in ("like", "ilike", "rlike"):
        return f"({arguments[0]} {expr.name.upper()} {arguments[1]})"
    if expr.name in _SIDES and len(arguments) == 2:
        return f"TRIM({_SIDES[expr.name]} {arguments[1]} FROM {arguments[0]})"
    return f"{_FUNCTIONS.get(expr.name, expr.name)}({', '.join(arguments)})"
