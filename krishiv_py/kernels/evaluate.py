"""Expressions and stateless steps over Arrow batches: docs/expressions.md."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.errors import ExpressionError, OperatorError, SchemaError, message, unknown_column
from krishiv_py.kernels.expressions import arithmetic, functions
from krishiv_py.kernels.expressions.casts import cast
from krishiv_py.kernels.expressions.compare import COMPARISONS, compare, is_in
from krishiv_py.kernels.expressions.values import FaultError, MisfitError, Value, beside, is_moment, literal
from krishiv_py.kernels.fit import fitted, normal
from krishiv_py.plan.expr import Alias, BinOp, Cast, Col, Expr, Field, Func, IsIn, Lit, StructOf, UnOp, columns_of
from krishiv_py.plan.nodes import Filter, MapBatches, Prefix, Project
from krishiv_py.plan.schema import unknown_field

Rows: TypeAlias = pa.RecordBatch | pa.Table
_KLEENE: Final = {"and": pc.and_kleene, "or": pc.or_kleene}
_ARROW_MISFITS: Final = (pa.ArrowNotImplementedError, pa.ArrowTypeError)
_MISFITS: Final = (MisfitError, *_ARROW_MISFITS)


def _value(expr: Expr, batch: Rows) -> Value:
    """The value of an expression: an array, or a scalar where all rows have the same."""
    if isinstance(expr, Col):
        return _column(expr, batch)
    if isinstance(expr, Lit):
        return literal(expr.value)
    if isinstance(expr, Alias):
        return _value(expr.arg, batch)
    if isinstance(expr, BinOp):
        return _chain(expr, batch)
    try:
        return _node(expr, batch)
    except (FaultError, pa.ArrowInvalid) as problem:
        raise _uncomputable(expr, batch, problem) from problem
    except _MISFITS as problem:
        raise _misfit(expr, batch, problem) from problem


def _column(expr: Col, batch: Rows) -> pa.Array:
    at = batch.schema.get_field_index(expr.name)  # `schema.names` makes a list: slow on thousands of columns
    if at < 0:
        raise unknown_column(expr.name, batch.schema.names, "expression")
    column = batch.column(at)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _chain(expr: BinOp, batch: Rows) -> Value:
    """Operators from left to right, without recursion: there may be thousands."""
    links: list[BinOp] = []
    node: Expr = expr
    while isinstance(node, BinOp):
        links.append(node)
        node = node.left
    value = _value(node, batch)
    for link in reversed(links):
        try:
            value = _link(link, node, value, batch)
        except (FaultError, pa.ArrowInvalid) as problem:
            raise _uncomputable(link, batch, problem) from problem
        except _MISFITS as problem:
            raise _misfit(link, batch, problem) from problem
        node = link
    return value


def _link(link: BinOp, left_expr: Expr, left: Value, batch: Rows) -> Value:
    """One operator, whose left side is known."""
    if link.op in _KLEENE:
        left = functions.boolean(left)
        undecided = pc.fill_null(left if link.op == "and" else pc.invert(left), True)
        return _KLEENE[link.op](left, functions.boolean(_guarded(link.right, batch, undecided)))
    right = _value(link.right, batch)
    if isinstance(link.right, Lit):
        right = _beside(link.right, right, left)
    if isinstance(left_expr, Lit):
        left = _beside(left_expr, left, right)
    return compare(link.op, left, right) if link.op in COMPARISONS else arithmetic.binary(link.op, left, right)


def _beside(constant: Lit, value: pa.Scalar, other: Value) -> Value:
    """A constant in the type it means beside another value."""
    if isinstance(constant.value, str) and is_moment(other.type):
        return cast(value, Cast(constant, other.type))
    return beside(constant.value, value, other)


def _guarded(expr: Expr, batch: Rows, needed: Value) -> Value:
    """The value where it is needed. Only if it cannot be computed everywhere, rows are picked: ``b <> 0 AND a / b > 1``."""
    try:
        return _value(expr, batch)
    except OperatorError:
        mask = pa.repeat(needed, batch.num_rows) if isinstance(needed, pa.Scalar) else needed
        wanted = mask.to_numpy(zero_copy_only=False)
        if wanted.all():
            raise
        found = _value(expr, batch.filter(mask))
        if isinstance(found, pa.Scalar):
            return found
        return found.take(pa.array(np.cumsum(wanted) - 1, pa.int64(), mask=~wanted))


def _node(expr: Expr, batch: Rows) -> Value:
    if isinstance(expr, UnOp):
        return _unary(expr, _value(expr.arg, batch))
    if isinstance(expr, IsIn):
        return _is_in(expr, _value(expr.arg, batch))
    if isinstance(expr, Cast):
        return cast(_value(expr.arg, batch), expr)
    if isinstance(expr, Field):
        return _field(_value(expr.arg, batch), expr)
    if isinstance(expr, StructOf):
        return pa.StructArray.from_arrays([_value(c, batch) for c in expr.children()], names=list(expr.names))
    if isinstance(expr, Func):
        return _call(expr, batch)
    raise ExpressionError(message("unknown kind of expression", type(expr).__name__, "it cannot be evaluated", "use col()"))


def _unary(expr: UnOp, value: Value) -> Value:
    if expr.op == "not":
        return pc.invert(functions.boolean(value))
    if expr.op == "-":
        return arithmetic.negative(value)
    return pc.is_null(value) if expr.op == "is_null" else pc.is_valid(value)


def _is_in(expr: IsIn, value: Value) -> Value:
    constants = expr.values
    if is_moment(value.type):
        constants = tuple(cast(pa.scalar(c), Cast(Lit(c), value.type)).as_py() if isinstance(c, str) else c for c in constants)
    return is_in(value, constants)


def _call(expr: Func, batch: Rows) -> Value:
    name, args = expr.name, expr.args
    if name == "if_else":
        return _if_else(args, batch)
    if name == "coalesce":
        return _coalesce(args, batch)
    if name == "named_struct":
        labels = [a.value for a in args[::2] if isinstance(a, Lit)]
        return functions.struct_of([str(x) for x in labels], [_value(a, batch) for a in args[1::2]])
    values = [_value(a, batch) for a in args]
    if name == "nullif":
        same = compare("==", *_beside_all(args, values))
        return pc.if_else(pc.fill_null(same, False), pa.scalar(None, values[0].type), values[0])
    if name == "round":
        return arithmetic.rounded(values[0], values[1].as_py() if len(values) > 1 else 0)
    if name in ("starts_with", "contains"):
        return functions.found_in(values[0], values[1], at_start=name == "starts_with")
    if name in ("upper", "lower"):
        return functions.in_case(values[0], upper=name == "upper")
    return {"abs": arithmetic.absolute, "length": functions.length}[name](values[0])


def _beside_all(args: tuple[Expr, ...], values: list[Value]) -> list[Value]:
    """Constants in the types they mean beside the others."""
    others = [v for a, v in zip(args, values, strict=True) if not isinstance(a, Lit)]
    if not others:
        return values
    return [_beside(a, v, others[0]) if isinstance(a, Lit) else v for a, v in zip(args, values, strict=True)]


def _if_else(args: tuple[Expr, ...], batch: Rows) -> Value:
    """The second where the first is true, else (also where it is null) the third."""
    holds = pc.fill_null(functions.boolean(_value(args[0], batch)), False)
    one = _guarded(args[1], batch, holds)
    other = _guarded(args[2], batch, pc.invert(holds))
    left, right = functions.alike(_beside_all(args[1:], [one, other]))
    return pc.if_else(holds, left, right)


def _coalesce(args: tuple[Expr, ...], batch: Rows) -> Value:
    values = [_value(args[0], batch)]
    missing = pc.is_null(values[0])
    for arg in args[1:]:
        values.append(_guarded(arg, batch, missing))
        missing = pc.and_(missing, pc.is_null(values[-1]))
    return pc.coalesce(*functions.alike(_beside_all(args, values)))


def _field(value: Value, expr: Field) -> Value:
    """A field of a struct; null where the struct is."""
    at = value.type.get_field_index(expr.name) if pa.types.is_struct(value.type) else -1
    if at < 0:
        raise unknown_field(expr.name, value.type, repr(expr.arg))
    return pc.struct_field(value, at)


def _brief(expr: Expr) -> str:
    text = repr(expr)
    return text if len(text) <= 300 else f"{text[:200]} … {text[-60:]}"


def _uncomputable(expr: Expr, batch: Rows, problem: Exception) -> OperatorError:
    return OperatorError(message(f"{_brief(expr)} cannot be computed", f"{batch.num_rows} rows", str(problem).splitlines()[0],
                                 "leave such rows out with .filter(...), make the value null with func(\"nullif\", x, 0) or "
                                 ".try_cast(...), or cast to a wider type"))


def _misfit(expr: Expr, batch: Rows, problem: Exception) -> ExpressionError:
    names = columns_of(expr)
    types = {f.name: str(f.type) for f in batch.schema if f.name in names}
    return ExpressionError(message(f"the types of {_brief(expr)} do not fit", types or "constants only",
                                   f"there is no such operation on {str(problem).splitlines()[0]}",
                                   'cast one side: col("x").cast("double")'))


def evaluate(expr: Expr, batch: Rows) -> pa.Array:
    """Evaluate an expression to one array of the batch's length.

    Raises
    ------
    ExpressionError
        When the types do not fit.
    OperatorError
        When a value cannot be computed (overflow, division by zero, a text that is no number).
    """
    return _whole(expr, batch, None)


def evaluate_where(expr: Expr, batch: Rows, holds: pa.Array) -> pa.Array:
    """:func:`evaluate`, but rows for which `holds` is not true need no value; they are null if not all can be computed."""
    return _whole(expr, batch, holds)


def _whole(expr: Expr, batch: Rows, holds: pa.Array | None) -> pa.Array:
    try:
        value = _value(expr, batch) if holds is None else _guarded(expr, batch, holds)
    except RecursionError:
        raise ExpressionError(message("the expression is nested too deeply", f"{len(repr(expr))} characters of text",
                                      "it cannot be evaluated", "compute parts of it with .with_column(...) first")) from None
    return _normal(expr, pa.repeat(value, batch.num_rows) if isinstance(value, pa.Scalar) else value)


def _normal(expr: Expr, values: pa.Array) -> pa.Array:
    """What was computed, in a type a column can have: a difference of dates is in seconds, a cast goes to any type."""
    try:
        return normal(values)
    except SchemaError as problem:
        raise ExpressionError(f"{expr!r}: {problem}") from problem


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
    lost = f"map_batches({step.detail()}) does not return what it declares"
    arrays = [fitted(result.column(f.name), f, lost, casts=True) for f in step.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=step.schema)


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
