"""The value of an expression over a batch: its tree, functions of elements, and calls of a user's functions."""

from __future__ import annotations

import datetime as dt
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Ints, whole
from krishiv_py.connectors.fit import copied_array, unpacked
from krishiv_py.errors import (
    RAISED,
    ExpressionError,
    KrishivError,
    MissingExtraError,
    OperatorError,
    SchemaError,
    failure_text,
    unknown_column,
)
from krishiv_py.functions.computing import arithmetic
from krishiv_py.functions.computing.casts import cast
from krishiv_py.functions.computing.checks import COLUMN, alike, boolean, meeting, met
from krishiv_py.functions.computing.compare import COMPARISONS, compare, is_in
from krishiv_py.functions.computing.values import INSTANT, FaultError, NoOperationError, Value, is_moment, literal, repeated
from krishiv_py.kernels.columns.ways_out import way_out
from krishiv_py.lazy import lazy
from krishiv_py.plan.durations import show_us
from krishiv_py.plan.expressions.expr import (
    Aggregate,
    Alias,
    BinOp,
    Case,
    Cast,
    Col,
    Expr,
    Field,
    Func,
    IsIn,
    Lambda,
    LambdaVar,
    Lit,
    StructOf,
    UnOp,
    columns_of,
    python_text,
)
from krishiv_py.plan.expressions.trees import walk
from krishiv_py.plan.expressions.udfs import Called, ColumnFunction, Form
from krishiv_py.plan.running import BatchTime
from krishiv_py.plan.schema import misplaced, unknown_field
from krishiv_py.types import condition_hint, normal_type, type_text

if TYPE_CHECKING:
    from krishiv_py.functions import known as functions
    from krishiv_py.plan.expressions import parse
else:
    functions = lazy("krishiv_py.functions.known")
    parse = lazy("krishiv_py.plan.expressions.parse")


class FunctionError(OperatorError):
    """A function of a user failed for rows that may go to the late output.

    Attributes
    ----------
    name : str
        The name of the function.
    reason : str
        What it said.
    """

    def __init__(self, name: str, reason: str, failed: OperatorError) -> None:
        super().__init__(str(failed))
        self.name, self.reason = name, reason

    def __reduce__(self) -> tuple[type[OperatorError], tuple[str]]:
        return OperatorError, (str(self),)


def failed(name: str, problem: BaseException, error: OperatorError, on_error: Literal["fail", "side_output"]) -> NoReturn:
    """Raise what a function failed with, so that its rows go aside where they may."""
    if on_error == "fail":
        raise error from problem
    raise FunctionError(name, failure_text(problem, placed=False), error) from problem


def result_of(call: ColumnFunction, columns: list[pa.Array], rows: int) -> pa.Array:
    """Return the values of a function; it is not called for no rows.

    Raises
    ------
    OperatorError
        When it fails, or returns other than a value of its type for each row.
    MissingExtraError
        Where the library of its form is not installed.
    """
    if not rows:
        return pa.array([], call.type)
    given = [_in_form(column, call.over) for column in columns]
    hint = f"fix {call.name}"
    try:
        result = _as_arrow(call.function(*given))
    except KrishivError:
        raise
    except RAISED as problem:  # user code: whatever it raises is reported with what it was given
        error = OperatorError(f"{call.name}(...) failed", got=f"{rows} rows", then=failure_text(problem), hint=hint)
        failed(call.name, problem, error, call.on_error)
    if len(result) != rows:
        got = f"{len(result)} values for {rows} rows"
        raise OperatorError(f"{call.name}(...) returns other than a value for each row", got=got, hint=hint)
    try:
        return copied_array(result if result.type == call.type else result.cast(call.type))
    except pa.ArrowException as problem:
        what = f"{call.name}(...) returns other values than {type_text(call.type)}"
        error = OperatorError(what, got=type_text(result.type), hint="declare their type in @udf(...)")
        failed(call.name, problem, error, call.on_error)


def _in_form(column: pa.Array, form: Form) -> Any:
    if form == "arrow":
        return column
    try:
        if form == "numpy":
            return column.to_numpy(zero_copy_only=False)
        return column.to_pandas() if form == "pandas" else importlib.import_module("polars").from_arrow(column)
    except ImportError as problem:
        raise MissingExtraError(f"{form} is not installed", got=form, hint=f"pip install {form}") from problem


def _as_arrow(given: Any) -> pa.Array:
    """Return what a function returned as one array."""
    if hasattr(given, "to_arrow"):  # of Polars
        given = given.to_arrow()
    if isinstance(given, (pa.Array, pa.ChunkedArray)):
        return whole(given)
    if isinstance(given, (pa.Scalar, str, bytes)) or not hasattr(given, "__len__"):
        raise TypeError(f"it returned a {type(given).__name__}, and no column")
    return whole(pa.array(given, from_pandas=True) if type(given).__module__.startswith("pandas") else pa.array(given))


Rows: TypeAlias = pa.RecordBatch | pa.Table
ValueOf: TypeAlias = Callable[[Expr, Rows], Value]
_COLUMN: Final = "__krishiv_element_"


def variable(expr: LambdaVar, batch: Rows) -> pa.Array:
    """Return the values of a parameter, for the elements that are looked at."""
    index = batch.schema.get_field_index(f"{_COLUMN}{expr.name}")
    if index < 0:
        hint = "use it in the function only"
        raise ExpressionError(f"{expr.name!r} is the parameter of a function of elements", got="used outside of it", hint=hint)
    return whole(batch.column(index))


@attrs.frozen(eq=False)
class ElementFunction:
    """A function of elements as kernels take it: over which rows, and by what it is computed."""

    function: Lambda
    batch: Rows
    value_of: ValueOf

    @property
    def text(self) -> str:
        """Return how it is written."""
        return repr(self.function)

    def given(self, rows: Ints, *values: pa.Array) -> pa.Array:
        """Return what it gives for `values`, elements of these rows, with the columns of the rows that it reads."""
        params = [f"{_COLUMN}{p}" for p in self.function.params]
        read = {
            n.name if isinstance(n, Col) else f"{_COLUMN}{n.name}"
            for n in walk(self.function.body)
            if isinstance(n, Col | LambdaVar)
        }
        outer = [n for n in self.batch.schema.names if n in read and n not in params]
        positions = pa.array(rows)
        columns = [pa.chunked_array(c) if isinstance(c, pa.ChunkedArray) else c for c in map(self.batch.column, outer)]
        elements = pa.Table.from_arrays(
            [*(c.take(positions) for c in columns), *values[: len(params)]], names=[*outer, *params]
        )
        result = self.value_of(self.function.body, elements)
        return repeated(result, len(rows)) if isinstance(result, pa.Scalar) else result


_KLEENE: Final = {"and": pc.and_kleene, "or": pc.or_kleene}


def evaluate(expr: Expr, batch: Rows) -> pa.Array:
    """Evaluate an expression to one array of the batch's length.

    Raises
    ------
    ExpressionError
        When the types do not fit.
    OperatorError
        When a value cannot be computed (overflow, division by zero, a text that is not a number).
    """
    return _whole(expr, batch, None)


def evaluate_where(expr: Expr, batch: Rows, holds: pa.Array) -> pa.Array:
    """:func:`evaluate`, but rows for which `holds` is not true need no value; they are null if not all can be computed."""
    return _whole(expr, batch, holds)


def _whole(expr: Expr, batch: Rows, holds: pa.Array | None) -> pa.Array:
    try:
        value = value_of(expr, batch) if holds is None else guarded(expr, batch, holds)
    except RecursionError:
        got = f"{len(repr(expr))} characters of text"
        hint = "compute parts of it with .with_column(...) first"
        raise ExpressionError("the expression is nested too deeply", got=got, hint=hint) from None
    if isinstance(expr, Col):
        return value
    return _normal(expr, repeated(value, batch.num_rows) if isinstance(value, pa.Scalar) else value)


def _normal(expr: Expr, values: pa.Array) -> pa.Array:
    """Return what was computed, in a type a column can have: a difference of dates is in seconds, a cast goes to any type."""
    try:
        wanted = normal_type(values.type)
        return values if wanted == values.type else unpacked(values).cast(wanted)
    except SchemaError as problem:
        raise ExpressionError(f"{expr!r}: {problem}") from problem


def argument(value: Expr, where: Expr | None, rows: Rows) -> pa.Array:
    """Return the argument of an aggregate; null where its filter does not hold (nulls are skipped by every aggregate)."""
    if where is None:
        return evaluate(value, rows)
    mask = pc.fill_null(evaluate(where, rows), False)
    where_true = evaluate_where(value, rows, mask)
    return pc.if_else(mask, where_true, pa.scalar(None, where_true.type))


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of no rows."""
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def expr_type(expr: Expr, schema: pa.Schema) -> pa.DataType:
    """Return the type of an expression over `schema`, for which only the columns that it reads are looked at."""
    places = [schema.get_field_index(name) for name in columns_of(expr)]
    known = schema if any(place < 0 for place in places) else pa.schema([schema.field(place) for place in sorted(places)])
    return evaluate(expr, empty_batch(known)).type


def require_condition(expr: Expr, schema: pa.Schema, where: str) -> None:
    """Refuse an expression over `schema` that is neither true nor false."""
    type_ = expr_type(expr, schema)
    if not pa.types.is_boolean(type_):
        hint = condition_hint(python_text(expr), type_)
        raise ExpressionError(f"{where} takes conditions", got=f"{expr!r} of type {type_text(type_)}", hint=hint)


_MISFITS: Final = (NoOperationError, pa.ArrowNotImplementedError, pa.ArrowTypeError)


def value_of(expr: Expr, batch: Rows) -> Value:
    """Return the value of an expression: an array, or a scalar where all rows have the same."""
    if isinstance(expr, Col):
        return _column(expr, batch)
    if isinstance(expr, Lit):
        return literal(expr.value)
    if isinstance(expr, LambdaVar):
        return variable(expr, batch)
    if isinstance(expr, Alias):
        return value_of(expr.arg, batch)
    if isinstance(expr, BinOp):
        return _chain(expr, batch)
    if isinstance(expr, BatchTime):
        return pa.scalar(expr.at_us, INSTANT)
    try:
        return _node(expr, batch)
    except (FaultError, pa.ArrowInvalid) as problem:
        raise _uncomputable(expr, batch, problem) from problem
    except _MISFITS as problem:
        raise _misfit(expr, batch, problem) from problem


def _column(expr: Col, batch: Rows) -> pa.Array:
    index = batch.schema.get_field_index(expr.name)  # `schema.names` makes a list: slow on thousands of columns
    if index < 0:
        raise unknown_column(expr.name, batch.schema.names, "expression")
    return whole(batch.column(index))


def _chain(expr: BinOp, batch: Rows) -> Value:
    """Operators from left to right, without recursion: there may be thousands."""
    links: list[BinOp] = []
    node: Expr = expr
    while isinstance(node, BinOp):
        links.append(node)
        node = node.left
    links.reverse()
    link = -1
    value = None
    while link < len(links):
        try:
            value = value_of(node, batch) if link < 0 else _link(links[link], node, value, batch)
        except OperatorError as problem:
            link, value = _spared(links, link, batch, problem)
        except (FaultError, pa.ArrowInvalid) as problem:
            link, value = _spared(links, link, batch, _uncomputable(links[link], batch, problem))
        except _MISFITS as problem:
            raise _misfit(links[link], batch, problem) from problem
        node = node if link < 0 else links[link]
        link += 1
    return value


def _spared(links: list[BinOp], failed: int, batch: Rows, problem: OperatorError) -> tuple[int, Value]:
    """Return a division whose divisor is null wherever its dividend cannot be computed: as in Spark, that is looked at
    first.
    """
    for i in range(failed + 1, len(links)):
        link = links[i]
        if link.op in ("/", "%") and (not isinstance(link.right, Lit) or link.right.value is None):
            try:
                right = value_of(link.right, batch)
                left = guarded(link.left, batch, pc.is_valid(right))
                return i, arithmetic.binary(link.op, left, right)
            except OperatorError as other:
                problem = other
            except (FaultError, pa.ArrowInvalid) as other:
                problem = _uncomputable(link, batch, other)
    raise problem


def _link(link: BinOp, left_expr: Expr, left: Value, batch: Rows) -> Value:
    """One operator, whose left side is known."""
    if link.op in _KLEENE:
        left = boolean(left)
        undecided = pc.fill_null(left if link.op == "and" else pc.invert(left), True)
        return _KLEENE[link.op](left, boolean(guarded(link.right, batch, undecided)))
    right = value_of(link.right, batch) if link.op in ("/", "%") else guarded(link.right, batch, pc.is_valid(left))
    if isinstance(link.right, Lit):
        right = meeting(link.right.value, right, left)
    if isinstance(left_expr, Lit):
        left = meeting(left_expr.value, left, right)
    return compare(link.op, left, right) if link.op in COMPARISONS else arithmetic.binary(link.op, left, right)


def guarded(expr: Expr, batch: Rows, needed: Value) -> Value:
    """Return the value where it is needed. Only if it cannot be computed everywhere, rows are picked: ``b <> 0 AND a / b >
    1``.
    """
    try:
        return value_of(expr, batch)
    except OperatorError:
        mask = pa.repeat(needed, batch.num_rows) if isinstance(needed, pa.Scalar) else needed
        wanted = mask.to_numpy(zero_copy_only=False)
        if wanted.all():
            raise
        values = value_of(expr, batch.filter(mask))
        if isinstance(values, pa.Scalar):
            return values
        return values.take(pa.array(np.cumsum(wanted) - 1, pa.int64(), mask=~wanted))


def _node(expr: Expr, batch: Rows) -> Value:
    if isinstance(expr, UnOp):
        return _unary(expr, value_of(expr.arg, batch))
    if isinstance(expr, IsIn):
        return _is_in(expr, value_of(expr.arg, batch))
    if isinstance(expr, Cast):
        return cast(value_of(expr.arg, batch), expr.type, expr.named, expr.tried)
    if isinstance(expr, Field):
        return _field(value_of(expr.arg, batch), expr)
    if isinstance(expr, StructOf):
        return pa.StructArray.from_arrays([value_of(c, batch) for c in expr._children()], names=list(expr.names))
    if isinstance(expr, Case):
        return _case(expr._args, batch)
    if isinstance(expr, Func):
        return _call(expr, batch)
    if isinstance(expr, Called):
        values = [value_of(arg, batch) for arg in expr.args]
        columns = [repeated(v, batch.num_rows) if isinstance(v, pa.Scalar) else v for v in values]
        return result_of(expr.called, columns, batch.num_rows)
    if isinstance(expr, Aggregate):
        raise misplaced(expr, "expression")
    raise ExpressionError("unknown kind of expression", got=type(expr).__name__, hint="use col()")


def _unary(expr: UnOp, value: Value) -> Value:
    if expr.op == "not":
        return pc.invert(boolean(value))
    if expr.op == "-":
        return arithmetic.negative(value)
    return pc.is_null(value) if expr.op == "is_null" else pc.is_valid(value)


def _is_in(expr: IsIn, value: Value) -> Value:
    constants = expr.values
    if is_moment(value.type):
        constants = tuple(cast(pa.scalar(c), value.type).as_py() if isinstance(c, str) else c for c in constants)
    return is_in(value, constants)


@attrs.frozen(eq=False)
class _LazyArgument:
    """An argument that is computed when a function asks for it."""

    expr: Expr
    batch: Rows

    @property
    def constant(self) -> object:
        return _constant(self.expr)

    def value(self) -> Value:
        return value_of(self.expr, self.batch)

    def where(self, needed: Value) -> Value:
        return guarded(self.expr, self.batch, needed)


def _constant(expr: Expr) -> object:
    return expr.value if isinstance(expr, Lit) else COLUMN


def _call(expr: Func, batch: Rows) -> Value:
    """Return the value of a function, by its definition: constants as plain Python, the others as values."""
    known, args = functions.FUNCTIONS[expr.name], expr.args
    if known.later:
        return known.compute(*(_LazyArgument(arg, batch) for arg in args))
    given: list[Any] = []
    needed: Value | None = None
    for i, arg in enumerate(args):
        param = known.param(i)
        if param.constant is not None:
            assert isinstance(arg, Lit)
            given.append(parse.json_type(str(arg.value)) if param.kind == "Schema" else arg.value)
        elif isinstance(arg, Lambda):
            given.append(ElementFunction(arg, batch, value_of))
        elif needed is None or known.nulls == "own":
            given.append(value_of(arg, batch))
            needed = pc.is_valid(given[-1]) if len(args) > 1 and known.nulls == "first" else given[-1]
        else:
            given.append(guarded(arg, batch, needed))
    if known.of_elements:
        given = [repeated(x, batch.num_rows) if isinstance(x, pa.Scalar) else x for x in given]
    elif known.meets:
        given = _every_with(args, given) if known.by_turns is None else _by_turns(args, given)
    elif (
        expr.name == "item"
        and pa.types.is_struct(given[0].type)
        and isinstance(args[1], Lit)
        and isinstance(args[1].value, str)
    ):
        return _field(given[0], Field(args[0], args[1].value))
    return known.compute(*given)


def _by_turns(args: tuple[Expr, ...], values: list[Value]) -> list[Value]:
    keys, others = (_every_with(args[start::2], values[start::2]) for start in (0, 1))
    return [value for pair in zip(keys, others, strict=True) for value in pair]


def _every_with(args: tuple[Expr, ...], values: list[Value]) -> list[Value]:
    """Constants in the types they mean with the others."""
    return met([_constant(arg) for arg in args], values)


def _case(args: tuple[Expr, ...], batch: Rows) -> Value:
    """Return the value next to the first condition that is true; each is computed only where it is looked at."""
    open_: Value = pa.scalar(True)
    hits, values = [], []
    for i in range(0, len(args) - 1, 2):
        holds = pc.and_(open_, pc.fill_null(boolean(guarded(args[i], batch, open_)), False))
        hits.append(holds)
        values.append(guarded(args[i + 1], batch, holds))
        open_ = pc.and_(open_, pc.invert(holds))
    last = args[-1] if len(args) % 2 else Lit(None)
    values.append(guarded(last, batch, open_))
    *values, result = alike(_every_with((*args[1::2], last), values))
    for holds, value in zip(reversed(hits), reversed(values), strict=True):
        result = pc.if_else(holds, value, result)
    return result


def _field(value: Value, expr: Field) -> Value:
    """Return a field of a struct; null where the struct is."""
    index = value.type.get_field_index(expr.name) if pa.types.is_struct(value.type) else -1
    if index < 0:
        raise unknown_field(expr.name, value.type, repr(expr.arg))
    return pc.struct_field(value, index)


def _brief(expr: Expr) -> str:
    text = repr(expr)
    return text if len(text) <= 300 else f"{text[:200]} … {text[-60:]}"


def _uncomputable(expr: Expr, batch: Rows, problem: Exception) -> OperatorError:
    return OperatorError(
        f"{_brief(expr)} cannot be computed",
        got=f"{batch.num_rows} rows",
        then=str(problem).splitlines()[0],
        hint='leave such rows out with .filter(...), make the value null with func("nullif", x, 0) or '
        ".try_cast(...), or cast to a wider type",
    )


def _misfit(expr: Expr, batch: Rows, problem: Exception) -> ExpressionError:
    names = columns_of(expr)
    types = ", ".join(f"{f.name} {type_text(f.type)}" for f in batch.schema if f.name in names)
    text = str(problem).splitlines()[0]
    shown = _brief(expr)
    for part in walk(expr):
        if isinstance(part, Lit) and isinstance(part.value, dt.timedelta):
            shown = shown.replace(repr(part.value), f"INTERVAL '{show_us(round(part.value.total_seconds() * 1e6))}'")
    what = f"the types of {shown} do not fit"
    then = f"there is no such operation on {text}"
    hint = way_out(expr, _operand_types(expr, batch.schema))
    return ExpressionError(what, got=types or "constants only", then=then, hint=hint)


def _operand_types(expr: Expr, schema: pa.Schema) -> list[pa.DataType]:
    try:
        return [expr_type(part, schema) for part in expr._children()]
    except KrishivError:  # an operand of a function of elements has no type alone
        return []
