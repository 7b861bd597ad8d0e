"""Vectorised aggregates: one file a family, and the table that finds them."""

from __future__ import annotations

import pyarrow as pa

from krishiv_py.errors import ExpressionError, message
from krishiv_py.kernels.aggregates.base import AggKernel, Rows
from krishiv_py.kernels.aggregates.collections import CollectList, Distinct, Percentile
from krishiv_py.kernels.aggregates.counting import Count
from krishiv_py.kernels.aggregates.extremes import ByTime, Extreme
from krishiv_py.kernels.aggregates.floats import FloatAvg, FloatSum
from krishiv_py.kernels.aggregates.moments import Variance
from krishiv_py.kernels.aggregates.sketch import HyperLogLog
from krishiv_py.kernels.aggregates.sums import DecimalSum, IntAvg, IntSum
from krishiv_py.kernels.aggregates.user import User
from krishiv_py.plan.aggregates import NUMERIC_ONLY, AggCall
from krishiv_py.plan.expressions.expr import Col, Expr, Field
from krishiv_py.plan.expressions.trees import walk
from krishiv_py.redaction import is_secret

__all__ = ["AggKernel", "Rows", "kernel_for"]


def _sum(label: str, type_: pa.DataType) -> AggKernel:
    if pa.types.is_integer(type_):
        return IntSum(label)
    return DecimalSum(label, type_.scale) if pa.types.is_decimal(type_) else FloatSum()


def _is_secret(expr: Expr) -> bool:
    """Whether a column or field it reads is called as secrets are."""
    return any(is_secret(node.name) for node in walk(expr) if isinstance(node, (Col, Field)))


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def kernel_for(call: AggCall, type_: pa.DataType) -> AggKernel:
    """The kernel that computes `call` over values of `type_`.

    Raises
    ------
    ExpressionError
        When the aggregate does not take such values.
    """
    if pa.types.is_null(type_) and call.func != "count":
        raise ExpressionError(
            message(
                f"{call.func} takes values of some type",
                f"{call.arg!r}, which is null only",
                "the result would have no type",
                'cast it: col("x").cast("double")',
            )
        )
    if call.func in NUMERIC_ONLY and not _is_number(type_):
        raise ExpressionError(
            message(
                f"{call.func} takes numbers",
                f"{call.arg!r} of type {type_}",
                "it cannot be computed",
                'cast it: col("x").cast("double")',
            )
        )
    ordered = {"min", "max", "count_distinct", "collect_set", "approx_count_distinct"}
    if call.func in ordered and pa.types.is_nested(type_):
        raise ExpressionError(
            message(
                f"{call.func} takes values that can be compared",
                f"{call.arg!r} of type {type_}",
                "nested values have no order here",
                "name a field of it, or use collect_list",
            )
        )
    if call.func == "count":
        return Count()
    if call.func == "sum":
        return _sum(str(call), type_)
    if call.func == "avg":
        return IntAvg() if pa.types.is_integer(type_) else FloatAvg()
    if call.func in ("stddev", "variance"):
        return Variance(root=call.func == "stddev")
    if call.func in ("min", "max"):
        return Extreme(type_, "min" if call.func == "min" else "max")
    if call.func in ("first", "last"):
        return ByTime(type_, "min" if call.func == "first" else "max")
    if call.func in ("count_distinct", "collect_set"):
        return Distinct(type_, "count" if call.func == "count_distinct" else "set")
    if call.func == "approx_count_distinct":
        return HyperLogLog(call.precision)
    if call.func == "collect_list":
        return CollectList(type_)
    if call.func == "percentile":
        return Percentile(call.percentage)
    assert call.udaf is not None and call.result_type is not None
    return User(call.udaf, call.result_type, str(call), _is_secret(call.arg))
