"""Expressions over columns: ``col("amount") * 2 > lit(10)``. Pure values; what each means: docs/expressions.md."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py import missing
from krishiv_py.errors import RAISED, ExpressionError, MethodError, failure_text, shown
from krishiv_py.lazy import lazy
from krishiv_py.plan.expressions.called import Calls
from krishiv_py.plan.expressions.constants import Scalar, check_arguments, constant, is_array, is_scalar, named_type
from krishiv_py.plan.expressions.methods import FunctionMethods, ListMethods, MapMethods, TextMethods, TimeMethods
from krishiv_py.plan.expressions.trees import Flat, flat, identity, listed, rebuilt, render, walk
from krishiv_py.plan.names import checked_name, encodable, quoted

if TYPE_CHECKING:
    from krishiv_py.functions import known
else:
    known = lazy("krishiv_py.functions.known")


class Namespace(Calls):
    """Some of the methods of a column."""

    __slots__ = ("_name", "_of")

    def __init__(self, of: Expr, name: builtins.str) -> None:
        self._of, self._name = of, name

    def _call(self, name: builtins.str, *more: object, subject: int = 0) -> Func:
        return self._of._call(name, *more, subject=subject)

    def __repr__(self) -> builtins.str:
        return f"{self._of!r}.{self._name}"

    if not TYPE_CHECKING:  # for a type checker there are no other names

        def __getattr__(self, name: builtins.str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            raise _no_function(self._of, self._name, name, dir(self))


class TextNamespace(Namespace, TextMethods):
    """Functions of text."""

    __slots__ = ()


class TimeNamespace(Namespace, TimeMethods):
    """Functions of dates and times."""

    __slots__ = ()


class ListNamespace(Namespace, ListMethods):
    """Functions of lists."""

    __slots__ = ()


class MapNamespace(Namespace, MapMethods):
    """Functions of maps."""

    __slots__ = ()


class StructNamespace(Namespace):
    """Holds what is in a struct."""

    __slots__ = ()

    def field(self, name: builtins.str) -> Field:
        """Return the field called `name`; null where the struct is null."""
        return self._of.field(name)


class Namespaces(Calls):
    """The groups of methods that a column has; each method is also one of the column itself."""

    __slots__ = ()

    @property
    def str(self) -> TextNamespace:
        """Functions of text: ``col("name").str.upper()``."""
        return TextNamespace(self, "str")  # type: ignore[arg-type]  # an Expr is what has these

    @property
    def dt(self) -> TimeNamespace:
        """Functions of dates and times: ``col("at").dt.hour("Europe/Berlin")``."""
        return TimeNamespace(self, "dt")  # type: ignore[arg-type]  # see above

    @property
    def list(self) -> ListNamespace:
        """Functions of lists: ``col("tags").list.array_contains("a")``."""
        return ListNamespace(self, "list")  # type: ignore[arg-type]  # see above

    @property
    def map(self) -> MapNamespace:
        """Functions of maps: ``col("labels").map.map_keys()``."""
        return MapNamespace(self, "map")  # type: ignore[arg-type]  # see above

    @property
    def struct(self) -> StructNamespace:
        """Return what is in a struct: ``col("place").struct.field("city")``."""
        return StructNamespace(self, "struct")  # type: ignore[arg-type]  # see above


BinaryOp: TypeAlias = Literal["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "and", "or"]
UnaryOp: TypeAlias = Literal["not", "-", "is_null", "is_not_null"]


class Expr(FunctionMethods, Namespaces):
    """Base of all expressions; carries the operators.

    Comparison and arithmetic operators build new expressions, so ``==`` compares columns, not Python objects;
    use :meth:`same_as` to compare two expression trees.
    """

    __slots__ = ()
    __array_ufunc__: ClassVar[None] = None  # so that NumPy's numbers leave operators to us
    _called: ClassVar[str] = "a column"
    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # `==` builds an expression, so hashing would lie

    def __add__(self, other: object) -> BinOp:
        return BinOp("+", self, wrap(other))

    def __radd__(self, other: object) -> BinOp:
        return BinOp("+", wrap(other), self)

    def __sub__(self, other: object) -> BinOp:
        return BinOp("-", self, wrap(other))

    def __rsub__(self, other: object) -> BinOp:
        return BinOp("-", wrap(other), self)

    def __mul__(self, other: object) -> BinOp:
        return BinOp("*", self, wrap(other))

    def __rmul__(self, other: object) -> BinOp:
        return BinOp("*", wrap(other), self)

    def __truediv__(self, other: object) -> BinOp:
        return BinOp("/", self, wrap(other))

    def __rtruediv__(self, other: object) -> BinOp:
        return BinOp("/", wrap(other), self)

    def __mod__(self, other: object) -> BinOp:
        return BinOp("%", self, wrap(other))

    def __eq__(self, other: object) -> BinOp:  # type: ignore[override]  # a column comparison, as in Spark and Polars
        return BinOp("==", self, wrap(other))

    def __ne__(self, other: object) -> BinOp:  # type: ignore[override]  # see __eq__
        return BinOp("!=", self, wrap(other))

    def __lt__(self, other: object) -> BinOp:
        return BinOp("<", self, wrap(other))

    def __le__(self, other: object) -> BinOp:
        return BinOp("<=", self, wrap(other))

    def __gt__(self, other: object) -> BinOp:
        return BinOp(">", self, wrap(other))

    def __ge__(self, other: object) -> BinOp:
        return BinOp(">=", self, wrap(other))

    def __and__(self, other: object) -> BinOp:
        return BinOp("and", self, wrap(other))

    def __or__(self, other: object) -> BinOp:
        return BinOp("or", self, wrap(other))

    def __invert__(self) -> UnOp:
        return UnOp("not", self)

    def __neg__(self) -> UnOp:
        return UnOp("-", self)

    def __pow__(self, other: object) -> Func:
        return self._call("pow", other)

    def __rpow__(self, other: object) -> Func:
        return wrap(other)._call("pow", self)

    def __rmod__(self, other: object) -> BinOp:
        return BinOp("%", wrap(other), self)

    def __abs__(self) -> Func:
        return self._call("abs")

    def __round__(self, digits: int = 0) -> Func:
        return self._call("round", digits)

    def __rand__(self, other: object) -> BinOp:
        return BinOp("and", wrap(other), self)

    def __ror__(self, other: object) -> BinOp:
        return BinOp("or", wrap(other), self)

    def __bool__(self) -> bool:
        then = "`and`, `or`, `not`, `in` and chained comparisons cannot be seen by the library"
        raise ExpressionError("an expression has no truth value", got=str(self), then=then, hint="use &, |, ~ with parentheses")

    if not TYPE_CHECKING:  # for a type checker there are no other names

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # copy, pickle and notebooks ask for these
                raise AttributeError(name)
            raise _no_attribute(python_text(self), self._called, name, dir(self))

        def __floordiv__(self, other: object) -> Any:
            raise _no_operator(self, "//", f"write {python_text(self)}.div({shown(other)}) for the whole part")

        def __rfloordiv__(self, other: object) -> Any:
            raise _no_operator(self, "//", f"write lit({shown(other)}).div({python_text(self)}) for the whole part")

        def __xor__(self, other: object) -> Any:
            raise _no_operator(self, "^", f'write != between conditions, func("bit_xor", {python_text(self)}, 7) for bits')

    def is_null(self) -> UnOp:
        """True where the value is null."""
        return UnOp("is_null", self)

    def is_not_null(self) -> UnOp:
        """True where the value is not null."""
        return UnOp("is_not_null", self)

    def isin(self, *values: Scalar | Iterable[Scalar]) -> IsIn:
        """True where the value is one of `values`: constants, or one list, tuple or set of them."""
        only: Any = values[0] if len(values) == 1 else None
        many = isinstance(only, (list, tuple, set, frozenset, range)) or is_array(only)
        listed_ = tuple(only) if many else values
        if isinstance(only, (set, frozenset)):  # whose order is another one in each process, and a plan has one text
            listed_ = tuple(sorted(only, key=lambda value: (type(value).__name__, repr(value))))
        for value in listed_:
            if not is_scalar(value):
                hint = "write .isin(1, 2), or compare columns with == and |"
                raise ExpressionError("isin takes constants or one list of them", got=shown(value), hint=hint)
        return IsIn(self, tuple(constant(v) for v in listed_ if is_scalar(v)))

    def cast(self, type_: pa.DataType | str) -> Cast:
        """Convert to a type; a value that has no counterpart in it is an error when it comes.

        Parameters
        ----------
        type_ : pyarrow.DataType or str
            An Arrow type, or a Spark type name such as ``"double"`` or ``"decimal(10, 2)"``. Numbers cast to an Arrow
            ``pa.timestamp(unit, ...)`` count that unit, cast to ``"timestamp"`` seconds, as in Spark; the result is in
            microseconds.

        Raises
        ------
        ExpressionError
            For a value that is not a type; and by the step that takes the expression, for types that cannot be converted.
        """
        return _cast(self, type_, tried=False)

    def try_cast(self, type_: pa.DataType | str) -> Cast:
        """:meth:`cast` to `type_`, with null instead of an error for a value that has no counterpart."""
        return _cast(self, type_, tried=True)

    def field(self, name: str) -> Field:
        """The field called `name` of a struct; null where the struct is null. In SQL text: ``place.city``."""
        return Field(self, checked_name(name, "a field"))

    def between(self, low: object, high: object) -> BinOp:
        """Return whether the value is at least `low` and at most `high`, columns or constants: ``BETWEEN`` in SQL text."""
        return BinOp("and", self >= low, self <= high)

    def __getitem__(self, place: object) -> Func:
        return self._call("item", place)

    __iter__ = None  # an index alone would make it a sequence without an end

    def _call(self, name: str, *more: object, subject: int = 0) -> Func:
        given = _given(name, more)
        return Func(name, (*given[:subject], self, *given[subject:]))

    def alias(self, name: str) -> Expr:
        """Give the result the name `name`."""
        return Alias(self, checked_name(name, "a result"))

    def same_as(self, other: Expr) -> bool:
        """Return whether `other` is the same tree, constants of the same type included (``==`` builds a comparison instead)."""
        if not isinstance(other, Expr):
            raise ExpressionError("same_as takes an expression", got=shown(other), hint="write col(...) or lit(...)")
        return identity(self, Expr) == identity(other, Expr)

    def _children(self) -> tuple[Expr, ...]:
        """The expressions directly below this one."""
        return ()

    def _parts(self) -> tuple[Any, ...]:
        """Its text, with expressions where theirs belongs."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return render(self)

    def __reduce__(self) -> tuple[Any, tuple[Flat]]:
        return rebuilt, (flat(self, Expr),)  # pickling a deep tree node by node would recurse


@attrs.frozen(eq=False, repr=False)
class Col(Expr):
    """A column by name; ``col("*")`` is every row, for ``count`` only."""

    name: str

    def _parts(self) -> tuple[Any, ...]:
        return (quoted(self.name),)


@attrs.frozen(eq=False, repr=False)
class Lit(Expr):
    """A constant."""

    value: Scalar = attrs.field(converter=constant)

    def _parts(self) -> tuple[Any, ...]:
        return (repr(self.value),)


@attrs.frozen(eq=False, repr=False)
class BinOp(Expr):
    """Two operands; nulls propagate as in SQL (Kleene logic for and/or)."""

    op: BinaryOp
    left: Expr
    right: Expr

    def _parts(self) -> tuple[Any, ...]:
        return "(", self.left, f" {self.op} ", self.right, ")"

    def _children(self) -> tuple[Expr, ...]:
        return (self.left, self.right)


@attrs.frozen(eq=False, repr=False)
class UnOp(Expr):
    """One operand."""

    op: UnaryOp
    arg: Expr

    def _parts(self) -> tuple[Any, ...]:
        return f"{self.op}(", self.arg, ")"

    def _children(self) -> tuple[Expr, ...]:
        return (self.arg,)


@attrs.frozen(eq=False, repr=False)
class IsIn(Expr):
    """Membership in a fixed list."""

    arg: Expr
    values: tuple[Scalar, ...]

    def _parts(self) -> tuple[Any, ...]:
        return "(", self.arg, f" in {list(self.values)!r})"

    def _children(self) -> tuple[Expr, ...]:
        return (self.arg,)


@attrs.frozen(eq=False, repr=False)
class Cast(Expr):
    """A conversion: checked, or to null where it cannot be done (`tried`); `named` if the type was given by Spark's name."""

    arg: Expr
    type: pa.DataType
    named: bool = False
    tried: bool = False

    def _parts(self) -> tuple[Any, ...]:
        instant = self.named and pa.types.is_timestamp(self.type)  # what a number counts depends on how the type was given
        shown = ("timestamp" if self.type.tz else "timestamp_ntz") if instant else str(self.type)
        return "try_cast(" if self.tried else "cast(", self.arg, f" as {shown})"

    def _children(self) -> tuple[Expr, ...]:
        return (self.arg,)


@attrs.frozen(eq=False, repr=False)
class Field(Expr):
    """A field of a struct."""

    arg: Expr
    name: str

    def _parts(self) -> tuple[Any, ...]:
        return self.arg, f".{quoted(self.name)}"

    def _children(self) -> tuple[Expr, ...]:
        return (self.arg,)


@attrs.frozen(eq=False, repr=False)
class Func(Expr):
    """A function; those there are, and their arguments: :data:`~krishiv_py.functions.known.FUNCTIONS`."""

    name: str
    args: tuple[Expr, ...] = ()

    def __attrs_post_init__(self) -> None:
        check_arguments(self.name, [a.value if isinstance(a, Lit) else a for a in self.args])

    def _parts(self) -> tuple[Any, ...]:
        return f"{self.name}(", *listed(self.args), ")"

    def _children(self) -> tuple[Expr, ...]:
        return self.args


@attrs.frozen(eq=False, repr=False)
class Alias(Expr):
    """A named result."""

    arg: Expr
    name: str

    def _parts(self) -> tuple[Any, ...]:
        return self.arg, f" AS {quoted(self.name)}"

    def _children(self) -> tuple[Expr, ...]:
        return (self.arg,)


def _cast(arg: Expr, type_: object, *, tried: bool) -> Cast:
    named = not isinstance(type_, pa.DataType)
    return Cast(arg, named_type(type_) if named else type_, named=named, tried=tried)


class Aggregate(Expr):
    """A value of many rows, which only ``.agg(...)`` can take; the calls are in :mod:`krishiv_py.plan.aggregates`."""

    __slots__ = ()
    _called: ClassVar[str] = "an aggregate"
    _is_of: ClassVar[str] = "an aggregate is computed from many rows"
    _belongs: ClassVar[str] = "call it in .agg(...) of a window, and use its column in a step after that"

    def _written(self) -> str:
        """Return how it is written in Python."""
        return "x"


def python_text(expr: Expr) -> str:
    """Return how a column is written in Python, ``x`` for what is longer than a column."""
    if isinstance(expr, Aggregate):
        return expr._written()
    return f"col({expr.name!r})".replace("'", '"') if isinstance(expr, Col) else "x"


def _no_operator(expr: Expr, operator: str, hint: str) -> ExpressionError:
    return ExpressionError(f"{expr._called} has no operator {operator}", got=python_text(expr), hint=hint)


def _no_attribute(thing: str, called: str, name: str, own: Iterable[str]) -> MethodError:
    """Return the error for a name that a column, written as `thing`, does not have."""
    way = missing.way_of("column", name, ())
    otherwise = "functions are in docs/expressions.md; anything else is computed by .map_batches(function) on the stream"
    hint = way or missing.nearest(name, [n for n in own if n[0] != "_"], otherwise, 3, 0.6)
    return MethodError(f"{called} has no attribute {name!r}", got=f"{thing}.{name}", hint=hint.replace("{x}", thing))


def _no_function(of: Expr, namespace: str, name: str, own: Iterable[str]) -> MethodError:
    """Return the error for a name that a `namespace` of a column does not have; the column itself may have it."""
    thing, kind = python_text(of), f"the namespace {namespace} of a column"
    way = missing.way_of("column", f"{namespace}.{name}", ())
    if way is None and missing.way_of("column", name, ()) is None and callable(getattr(Expr, name, None)):
        way = f"write {{x}}.{name}(...)"
    if way is None:
        return _no_attribute(thing, kind, name, own)
    return MethodError(f"{kind} has no attribute {name!r}", got=f"{thing}.{namespace}.{name}", hint=way.replace("{x}", thing))


def wrap(value: object) -> Expr:
    """An expression as it is, anything else as a literal."""
    if isinstance(value, Expr):
        return value
    if is_scalar(value):
        return Lit(value)
    raise ExpressionError("not a column or constant", got=shown(value), hint="wrap columns with col(...)")


def col(name: str) -> Col:
    """The column called `name`."""
    if not isinstance(name, str) or not encodable(name):
        raise ExpressionError("a column is named by text", got=shown(name), hint='write col("name")')
    return Col(name)


def lit(value: Scalar) -> Lit:
    """A constant `value`; None is null."""
    return Lit(value)


def func(name: str, *args: object) -> Func:
    """Call the function called `name` (docs/expressions.md) on `args`, columns or constants: ``func("lower", col("city"))``."""
    return Func(name, _given(name, args))


def _given(name: str, args: tuple[object, ...]) -> tuple[Expr, ...]:
    """The arguments of a function: columns, constants, and functions of elements where it takes them."""
    known_function = known.FUNCTIONS.get(name) if isinstance(name, str) else None
    takes = known_function is not None and known_function.of_elements
    return tuple(lambda_of(a) if takes and callable(a) else wrap(a) for a in args)


_MOST: Final = 3
_open: ContextVar[tuple[str, ...]] = ContextVar("open_lambdas", default=())


@attrs.frozen(eq=False, repr=False)
class LambdaVar(Expr):
    """A parameter of a function of elements."""

    name: str

    def _parts(self) -> tuple[Any, ...]:
        return (quoted(self.name),)


@attrs.frozen(eq=False, repr=False)
class Lambda(Expr):
    """A function of elements: its parameters, and what it gives."""

    params: tuple[str, ...]
    body: Expr

    def _parts(self) -> tuple[Any, ...]:
        names = [quoted(p) for p in self.params]
        return *(names if len(names) == 1 else ("(", *listed(names), ")")), " -> ", self.body

    def _children(self) -> tuple[Expr, ...]:
        return (self.body,)


def lambda_of(function: Callable[..., object]) -> Lambda:
    """Return the expression a function of Python gives for its parameters; it is called once, with expressions.

    Raises
    ------
    ExpressionError
        For a function with other parameters than one to three plain ones, and for one that gives no expression.
    """
    outside = _open.get()
    names = [_free(name, outside) for name in _parameters(function)]
    token = _open.set((*outside, *names))
    try:
        body = function(*map(LambdaVar, names))
    except ExpressionError:
        raise
    except RAISED as problem:
        then = "it is called once, with expressions and not with values"
        hint = "write it with the operators and methods of expressions: lambda x: x.length() + 1"
        raise ExpressionError("a function of elements failed", got=failure_text(problem), then=then, hint=hint) from problem
    finally:
        _open.reset(token)
    return Lambda(tuple(names), wrap(body))


def _parameters(function: Callable[..., object]) -> list[str]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = all(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)
    if not plain or not 1 <= len(parameters) <= _MOST:
        hint = "write lambda x: x + 1, or lambda x, place: x * place"
        raise ExpressionError("a function of elements takes one to three parameters", got=shown(function), hint=hint)
    return [p.name for p in parameters]


def _free(name: str, taken: tuple[str, ...]) -> str:
    """Return a name that no function around it has: the parameter of an inner one must not hide the outer one's."""
    free, n = name, 2
    while free in taken:
        free, n = f"{name}_{n}", n + 1
    return free


@attrs.frozen(eq=False, repr=False)
class Case(Expr):
    """The value next to the first condition that is true; otherwise the last value, or null if there is none."""

    _args: tuple[Expr, ...]
    """Conditions and values by turns, then the value of ELSE if there is one."""

    def when(self, condition: Expr, value: object) -> Case:
        """Go on with another `condition`, and its `value`."""
        return Case((*self._open(), _condition(condition), wrap(value)))

    def otherwise(self, value: object) -> Case:
        """End with the `value` for rows of which no condition is true."""
        return Case((*self._open(), wrap(value)))

    def _open(self) -> tuple[Expr, ...]:
        if len(self._args) % 2:
            raise ExpressionError("otherwise(...) appears twice, or before a when(...)", got=str(self), hint="write it last")
        return self._args

    def _parts(self) -> tuple[Any, ...]:
        pairs = [(self._args[i], self._args[i + 1]) for i in range(0, len(self._args) - 1, 2)]
        texts = [part for condition, value in pairs for part in (" WHEN ", condition, " THEN ", value)]
        return "CASE", *texts, *((" ELSE ", self._args[-1]) if len(self._args) % 2 else ()), " END"

    def _children(self) -> tuple[Expr, ...]:
        return self._args


def _condition(value: object) -> Expr:
    if not isinstance(value, (Expr, bool)):
        raise ExpressionError("when takes a condition first", got=shown(value), hint='write when(col("x") > 1, value)')
    return wrap(value)


def when(condition: Expr, value: object) -> Case:
    """`value` where `condition` is true: ``when(col("x") > 9, "big").when(col("x") > 4, "middle").otherwise("small")``.

    Values are columns or constants; they meet in one type. A value is computed only for the rows that take it. Without
    ``.otherwise(...)`` other rows have null. SQL: ``CASE WHEN ... THEN ... ELSE ... END``.
    """
    return Case((_condition(condition), wrap(value)))


def coalesce(*values: object) -> Func:
    """Return the first of `values` that is not null."""
    return Func("coalesce", tuple(map(wrap, values)))


def greatest(*values: object) -> Func:
    """Return the greatest of `values`, nulls left out; null if all are. NaN is greater than every number."""
    return Func("greatest", tuple(map(wrap, values)))


def least(*values: object) -> Func:
    """Return the least of `values`, nulls left out; null if all are."""
    return Func("least", tuple(map(wrap, values)))


def concat(*values: object) -> Func:
    """`values`, texts or bytes, one after the other; null if one of them is."""
    return Func("concat", tuple(map(wrap, values)))


@attrs.frozen(eq=False, repr=False)
class StructOf(Expr):
    """Several columns as one struct, under their names; the library's own, for results that hold whole rows."""

    names: tuple[str, ...]

    def _parts(self) -> tuple[Any, ...]:
        return "struct(", *listed(self._children()), ")"

    def _children(self) -> tuple[Expr, ...]:
        return tuple(Col(n) for n in self.names)


def columns_of(expr: Expr) -> frozenset[str]:
    """Names of the columns an expression reads."""
    return frozenset(node.name for node in walk(expr) if isinstance(node, Col))


def identity_of(expr: Expr) -> tuple[object, ...]:
    """Return a hashable value that only expressions share that are built alike."""
    return identity(expr, Expr)


def aggregate_in(expr: Expr) -> Aggregate | None:
    """Return an aggregate that is a part of an expression, None if there is none."""
    return next((node for node in walk(expr) if isinstance(node, Aggregate)), None)


def replaced(expr: Expr, swap: Callable[[Expr], Expr]) -> Expr:
    """Return the expression with what `swap` gives in the place of each node."""
    expr_replaced: Expr = rebuilt(flat(expr, Expr, swap))
    return expr_replaced


def unnamed(expr: Expr) -> Expr:
    """Return an expression without the names given to it."""
    while isinstance(expr, Alias):
        expr = expr.arg
    return expr


def name_of(expr: Expr) -> str:
    """Return the output name of an expression: its alias, its column or field, or its text."""
    return expr.name if isinstance(expr, (Alias, Col, Field)) else repr(expr).replace("`", "")
