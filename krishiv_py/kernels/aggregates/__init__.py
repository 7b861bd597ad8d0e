"""Vectorised aggregates: one file a family, of the name that the calls of the family have in ``plan/aggregates``."""

from __future__ import annotations

from importlib import import_module

import pyarrow as pa

from krishiv_py.errors import ExpressionError
from krishiv_py.kernels.aggregates.base import KERNELS, AggKernel, Rows
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.plan.aggregates.selections import First, Last
from krishiv_py.plan.expressions.expr import python_text
from krishiv_py.types import condition_hint, is_numeric, number_hint, type_text

__all__ = ["AggKernel", "Rows", "kernel_for"]


def kernel_for(call: AggCall, type_: pa.DataType) -> AggKernel:
    """Return the kernel that computes `call` over values of `type_`.

    Raises
    ------
    ExpressionError
        When the aggregate does not take such values.
    """
    if pa.types.is_null(type_) and call._takes != "rows":
        hint = f'write {python_text(call.arg)}.cast("double")'
        raise ExpressionError(f"{call.func} takes values of some type", got=f"{call.arg!r}, which is null only", hint=hint)
    if call._takes == "numbers" and not is_numeric(type_):
        hint = number_hint(python_text(call.arg), type_)
        raise ExpressionError(f"{call.func} takes numbers", got=f"{call.arg!r} of type {type_text(type_)}", hint=hint)
    if call._takes == "integers" and not pa.types.is_integer(type_):
        hint = number_hint(python_text(call.arg), type_, whole=True)
        raise ExpressionError(f"{call.func} takes whole numbers", got=f"{call.arg!r} of type {type_text(type_)}", hint=hint)
    if call._takes == "conditions" and not pa.types.is_boolean(type_):
        hint = condition_hint(python_text(call.arg), type_)
        raise ExpressionError(f"{call.func} takes a condition", got=f"{call.arg!r} of type {type_text(type_)}", hint=hint)
    if call._takes == "comparable" and pa.types.is_nested(type_):
        raise ExpressionError(
            f"{call.func} takes values that can be compared",
            got=f"{call.arg!r} of type {type_text(type_)}",
            then="nested values have no order here",
            hint="name a field of it, or use collect_list",
        )
    if isinstance(call, (First, Last)) and call.offset:
        then = "only a pattern counts rows from the first or the last one"
        hint = f'leave the offset out, or find the rows with .match(...): {call.func}("a.price", 1)'
        raise ExpressionError(f"{call.func} with an offset is for patterns", got=python_text(call), then=then, hint=hint)
    if type(call) not in KERNELS:  # loaded when a plan needs it
        import_module(f"{__name__}.{type(call).__module__.rpartition('.')[2]}")
    return KERNELS[type(call)](call, type_)
