"""Vectorised aggregates: one file a family, and the registry that finds them."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from krishiv_py.errors import ExpressionError, message
from krishiv_py.kernels.aggregates.base import Rows
from krishiv_py.kernels.aggregates.collections import COLLECT_LIST, COLLECT_SET, COUNT_DISTINCT
from krishiv_py.kernels.aggregates.counting import COUNT
from krishiv_py.kernels.aggregates.extremes import BOOL_AND, BOOL_OR, FIRST, LAST, MAX, MIN
from krishiv_py.kernels.aggregates.generic.kernel import AggKernel, Definition
from krishiv_py.kernels.aggregates.modes import MODE
from krishiv_py.kernels.aggregates.moments import STDDEV, STDDEV_POP, VAR_POP, VARIANCE
from krishiv_py.kernels.aggregates.percentiles import PERCENTILE
from krishiv_py.kernels.aggregates.ranked import RANKED
from krishiv_py.kernels.aggregates.sketches.binned import APPROX_PERCENTILE, HISTOGRAM
from krishiv_py.kernels.aggregates.sketches.distinct import APPROX_COUNT_DISTINCT
from krishiv_py.kernels.aggregates.sums import AVG, SUM
from krishiv_py.kernels.aggregates.user.aggregator import UDAF
from krishiv_py.plan.aggregates.calls import AggCall, AggName
from krishiv_py.types import type_text

__all__ = ["AggKernel", "Rows", "kernel_for"]

REGISTRY: Final[dict[AggName, Definition]] = {
    "count": COUNT,
    "sum": SUM,
    "min": MIN,
    "max": MAX,
    "avg": AVG,
    "stddev": STDDEV,
    "variance": VARIANCE,
    "stddev_pop": STDDEV_POP,
    "var_pop": VAR_POP,
    "first": FIRST,
    "last": LAST,
    "count_distinct": COUNT_DISTINCT,
    "approx_count_distinct": APPROX_COUNT_DISTINCT,
    "collect_list": COLLECT_LIST,
    "collect_set": COLLECT_SET,
    "percentile": PERCENTILE,
    "approx_percentile": APPROX_PERCENTILE,
    "histogram": HISTOGRAM,
    "mode": MODE,
    "max_by": RANKED,
    "min_by": RANKED,
    "top_k": RANKED,
    "bottom_k": RANKED,
    "bool_and": BOOL_AND,
    "bool_or": BOOL_OR,
    "udaf": UDAF,
}
"""The aggregates by name."""


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def kernel_for(call: AggCall, type_: pa.DataType) -> AggKernel:
    """The kernel that computes `call` over values of `type_`.

    Raises
    ------
    ExpressionError
        When the aggregate does not take such values.
    """
    found = REGISTRY[call.func]
    if pa.types.is_null(type_) and found.takes != "rows":
        raise ExpressionError(
            message(
                f"{call.func} takes values of some type",
                f"{call.arg!r}, which is null only",
                "the result would have no type",
                'cast it: col("x").cast("double")',
            )
        )
    if found.takes == "numbers" and not _is_number(type_):
        raise ExpressionError(
            message(
                f"{call.func} takes numbers",
                f"{call.arg!r} of type {type_text(type_)}",
                "it cannot be computed",
                'cast it: col("x").cast("double")',
            )
        )
    if found.takes == "conditions" and not pa.types.is_boolean(type_):
        raise ExpressionError(
            message(
                f"{call.func} takes a condition",
                f"{call.arg!r} of type {type_text(type_)}",
                "it is neither true nor false",
                'compare it: col("x") > 0',
            )
        )
    if found.takes == "comparable" and pa.types.is_nested(type_):
        raise ExpressionError(
            message(
                f"{call.func} takes values that can be compared",
                f"{call.arg!r} of type {type_text(type_)}",
                "nested values have no order here",
                "name a field of it, or use collect_list",
            )
        )
    return found.make(call, type_)
