"""Functions that choose between values, and structs: some arguments are computed only for the rows that take them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.functions.computing.checks import alike, boolean, met, struct_of
from krishiv_py.functions.computing.compare import compare
from krishiv_py.functions.definition import Later, SqlNode, Value, example, function, not_constant


@function("conditions", "common type", method=False, in_text=False, node=SqlNode("If", "this true false"))
@example("if(1 > 2, 'a', 'b')", "b")
def if_else(condition: Later, yes: Later, no: Later) -> Value:
    """Return the second value where the first is true, else, also where it is null, the third."""
    holds = pc.fill_null(boolean(condition.value()), False)
    left, right = alike(met([yes.constant, no.constant], [yes.where(holds), no.where(pc.invert(holds))]))
    return pc.if_else(holds, left, right)


@function("conditions", "common type", method=False, node=SqlNode("Coalesce", "this *expressions"))
@example("coalesce(NULL, 2, 3)", 2)
def coalesce(value: Later, *others: Later) -> Value:
    """Return the first of the values that is not null."""
    values = [value.value()]
    missing = pc.is_null(values[0])
    for other in others:
        values.append(other.where(missing))
        missing = pc.and_(missing, pc.is_null(values[-1]))
    return pc.coalesce(*alike(met([x.constant for x in (value, *others)], values)))


@function("conditions", "type of the value", node=SqlNode("Nullif", "this expression"), meets=True)
@example("nullif(2, 2)", None)
def nullif(value: Value, other: Value) -> Value:
    """Return null where it equals `other`, else the value."""
    return pc.if_else(pc.fill_null(compare("==", value, other), False), pa.scalar(None, value.type), value)


@function(
    "conditions",
    "boolean",
    node=(SqlNode("EqualNull", "this expression"), SqlNode("NullSafeEQ", "this expression")),
    nulls="own",
    meets=True,
)
@example("NULL <=> NULL", True)
def equal_null(left: Value, other: Value) -> Value:
    """Return whether it equals `other`, or both are null; never null. ``a <=> b`` in text, ``IS NOT DISTINCT FROM``."""
    same = pc.fill_null(compare("==", left, other), False)
    return pc.or_(same, pc.and_(pc.is_null(left), pc.is_null(other)))


def _extreme(op: str, values: list[Value]) -> Value:
    """The greatest (``>``) or least (``<``) of values that are not null; null if all are."""
    extreme, *others = alike(values)
    for other in others:
        better = pc.or_(pc.is_null(extreme), pc.fill_null(compare(op, other, extreme), False))
        extreme = pc.if_else(better, other, extreme)
    return extreme


@function("conditions", "common type", method=False, nulls="own", meets=True, node=SqlNode("Greatest", "this *expressions"))
@example("greatest(1, NULL, 3)", 3)
def greatest(value: Value, other: Value, *more: Value) -> Value:
    """Return the greatest of the values, nulls left out; NaN is the greatest."""
    return _extreme(">", [value, other, *more])


@function("conditions", "common type", method=False, nulls="own", meets=True, node=SqlNode("Least", "this *expressions"))
@example("least(1, NULL, 3)", 1)
def least(value: Value, other: Value, *more: Value) -> Value:
    """Return the least of the values, nulls left out."""
    return _extreme("<", [value, other, *more])


def _check_labels(name: str, args: tuple[Any, ...]) -> None:
    for label in args[::2]:
        if not isinstance(label, str):
            raise not_constant(f"a field of {name}", "text", label)


@function("structs", "struct", method=False, nulls="own", most=2_000, by_turns="names and values", check=_check_labels)
@example("named_struct('a', 1).a", 1)
def named_struct(name: Value, value: Value, *more: Value) -> Value:
    """Return a struct of names, which are constants, and values by turns."""
    labels, values = [name, *more[::2]], [value, *more[1::2]]
    return struct_of([str(x.as_py()) for x in labels], values)
