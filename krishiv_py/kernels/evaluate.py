"""Expressions and stateless steps over Arrow batches."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.errors import ExpressionError, OperatorError, SchemaError, message, unknown_column
from krishiv_py.plan.expr import Alias, BinOp, Cast, Col, Expr, Field, Func, IsIn, Lit, StructOf, UnOp
from krishiv_py.plan.nodes import Filter, MapBatches, Prefix, Project
from krishiv_py.plan.schema import unknown_field

Value: TypeAlias = Any  # a pyarrow Array or Scalar: pyarrow's own functions take both
_FLOAT = pa.float64()


def _divide(left: Value, right: Value) -> Value:
    if pa.types.is_decimal(left.type) or pa.types.is_decimal(right.type):
        left, right = pc.cast(left, _FLOAT), pc.cast(right, _FLOAT)
    right = pc.cast(right, _FLOAT)
    safe = pc.if_else(pc.equal(right, 0.0), pa.scalar(None, _FLOAT), right)
    return pc.divide(pc.cast(left, _FLOAT), safe)


def _modulo(left: Value, right: Value) -> Value:
    """SQL's remainder: the sign of the dividend; null for a zero divisor."""
    if pa.types.is_floating(left.type) or pa.types.is_floating(right.type):
        left, right = pc.cast(left, _FLOAT), pc.cast(right, _FLOAT)
    safe = pc.if_else(pc.equal(right, pa.scalar(0, right.type)), pa.scalar(None, right.type), right)
    quotient = pc.divide(left, safe)
    if pa.types.is_floating(quotient.type):
        quotient = pc.trunc(quotient)
    return pc.subtract(left, pc.multiply(quotient, safe))


_BINARY: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked, "/": _divide, "%": _modulo,
    "==": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
    "and": pc.and_kleene, "or": pc.or_kleene,
}  # fmt: skip
_UNARY: Final[dict[str, Callable[[Value], Value]]] = {
    "not": pc.invert, "-": pc.negate_checked, "is_null": pc.is_null, "is_not_null": pc.is_valid,
}  # fmt: skip
_CALLS: Final[dict[str, Callable[..., Value]]] = {
    "lower": pc.utf8_lower, "upper": pc.utf8_upper, "length": pc.utf8_length, "abs": pc.abs_checked,
    "coalesce": pc.coalesce, "if_else": pc.if_else, "round": pc.round,
    "starts_with": lambda a, b: pc.starts_with(a, b.as_py()),
    "contains": lambda a, b: pc.match_substring(a, b.as_py()),
    "named_struct": lambda *parts: pc.make_struct(*parts[1::2], field_names=[name.as_py() for name in parts[::2]]),
}  # fmt: skip


def _literal(value: object, beside: Value | None) -> Value:
    """A literal, in the type of a timestamp it is compared with (naive datetimes mean UTC)."""
    if isinstance(value, dt.datetime) and beside is not None and pa.types.is_timestamp(beside.type):
        if beside.type.tz and value.tzinfo is None:
            value = value.replace(tzinfo=dt.timezone.utc)
        return pa.scalar(value, beside.type)
    return pa.scalar(value)


def _value(expr: Expr, batch: pa.RecordBatch | pa.Table, beside: Value | None = None) -> Value:
    if isinstance(expr, Col):
        at = batch.schema.get_field_index(expr.name)  # `schema.names` makes a list: slow on thousands of columns
        if at < 0:
            raise unknown_column(expr.name, batch.schema.names, "expression")
        column = batch.column(at)
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(expr, Lit):
        return _literal(expr.value, beside)
    if isinstance(expr, Alias):
        return _value(expr.arg, batch, beside)
    if isinstance(expr, BinOp):
        left = None if isinstance(expr.left, Lit) else _value(expr.left, batch)
        right = _value(expr.right, batch, left)
        return _BINARY[expr.op](_value(expr.left, batch, right) if left is None else left, right)
    if isinstance(expr, UnOp):
        return _UNARY[expr.op](_value(expr.arg, batch))
    if isinstance(expr, IsIn):
        return _is_in(_value(expr.arg, batch), expr.values)
    if isinstance(expr, Cast):
        return _cast(_value(expr.arg, batch), expr.type)
    if isinstance(expr, Field):
        return _field(_value(expr.arg, batch), expr)
    if isinstance(expr, StructOf):
        return pa.StructArray.from_arrays([_value(c, batch) for c in expr.children()], names=list(expr.names))
    if isinstance(expr, Func):
        return _CALLS[expr.name](*(_value(a, batch) for a in expr.args))
    raise ExpressionError(message("unknown kind of expression", type(expr).__name__, "it cannot be evaluated", "use col()"))


def _field(value: Value, expr: Field) -> Value:
    """A field of a struct; null where the struct is."""
    at = value.type.get_field_index(expr.name) if pa.types.is_struct(value.type) else -1
    if at < 0:
        raise unknown_field(expr.name, value.type, repr(expr.arg))
    return pc.struct_field(value, at)


def _is_in(value: Value, values: tuple[object, ...]) -> Value:
    """SQL's IN: null for a null value, and where nothing matches but the list has a null."""
    known = [_literal(v, value).as_py() for v in values if v is not None]
    found = pc.is_in(value, value_set=pa.array(known, value.type))
    missing = pa.scalar(None, pa.bool_())
    return pc.if_else(pc.is_valid(value), found if len(known) == len(values) else pc.if_else(found, found, missing), missing)


def _cast(value: Value, target: pa.DataType) -> Value:
    if pa.types.is_timestamp(target) and pa.types.is_string(value.type):
        value = pc.cast(value, pa.timestamp("us"))
    if pa.types.is_timestamp(target) and pa.types.is_timestamp(value.type) and bool(target.tz) != bool(value.type.tz):
        return pc.cast(pc.cast(value, pa.timestamp("us")), target) if not target.tz else pc.assume_timezone(value, "UTC")
    return pc.cast(value, target)


def evaluate(expr: Expr, batch: pa.RecordBatch | pa.Table) -> pa.Array:
    """Evaluate an expression to one array of the batch's length.

    Raises
    ------
    ExpressionError
        When the types do not fit.
    OperatorError
        When a value cannot be computed (overflow, a text that is no number).
    """
    try:
        value = _value(expr, batch)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, AttributeError) as problem:
        types = {f.name: str(f.type) for f in batch.schema if f.name in repr(expr)}
        raise ExpressionError(message(f"the types of {expr!r} do not fit", types, str(problem).splitlines()[0],
                                      "cast one side: col(\"x\").cast(\"double\")")) from problem
    except pa.ArrowInvalid as problem:
        raise OperatorError(message(f"{expr!r} cannot be computed", f"{batch.num_rows} rows", str(problem).splitlines()[0],
                                    "filter such rows out before, or cast to a wider type")) from problem
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, batch.num_rows)
    return value


def _project(step: Project, batch: pa.RecordBatch) -> pa.RecordBatch:
    arrays = [evaluate(e, batch) for _, e in step.columns]
    return pa.RecordBatch.from_arrays(arrays, names=[n for n, _ in step.columns])


def _filter(step: Filter, batch: pa.RecordBatch) -> pa.RecordBatch:
    mask = evaluate(step.condition, batch)
    if not pa.types.is_boolean(mask.type):
        raise ExpressionError(message("a filter must be true or false", mask.type, "rows cannot be kept or left by it",
                                      "compare with something: col(\"x\") > 0"))
    return batch.filter(mask)


def _map(step: MapBatches, batch: pa.RecordBatch) -> pa.RecordBatch:
    result = step.function(batch)
    if isinstance(result, pa.Table):
        result = one_batch(result)
    if not isinstance(result, pa.RecordBatch):
        raise SchemaError(message(f"map_batches({step.detail()}) must return Arrow data", type(result).__name__,
                                  "the rows are lost", "return a pyarrow RecordBatch or Table"))
    given = set(result.schema.names)
    missing = [n for n in step.schema.names if n not in given]
    if missing:
        raise SchemaError(message(f"map_batches({step.detail()}) left out declared columns", missing, "later steps miss them",
                                  "return every column of the declared schema"))
    return result.select(step.schema.names).cast(step.schema)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """A table as a single batch."""
    combined = table.combine_chunks()
    batches = combined.to_batches()
    if len(batches) == 1:
        return batches[0]
    return pa.RecordBatch.from_arrays([c.combine_chunks() for c in combined.columns], schema=table.schema)


def apply_prefix(prefix: tuple[Prefix, ...], batch: pa.RecordBatch) -> pa.RecordBatch:
    """Run the stateless steps on one batch."""
    for step in prefix:
        if isinstance(step, Project):
            batch = _project(step, batch)
        elif isinstance(step, Filter):
            batch = _filter(step, batch)
        else:
            batch = _map(step, batch)
    return batch


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of no rows."""
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def step_schema(step: Prefix, schema: pa.Schema) -> pa.Schema:
    """The schema a stateless step makes of `schema`, found by running it on no rows."""
    return step.schema if isinstance(step, MapBatches) else apply_prefix((step,), empty_batch(schema)).schema


def expr_type(expr: Expr, schema: pa.Schema) -> pa.DataType:
    """The type of an expression over `schema`."""
    return evaluate(expr, empty_batch(schema)).type
