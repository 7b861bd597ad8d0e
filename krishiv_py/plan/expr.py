"""Expressions over columns: ``col("amount") * 2 > lit(10)``. Pure values, evaluated in Arrow by the kernels."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import ExpressionError, message

Scalar: TypeAlias = "bool | int | float | str | bytes | decimal.Decimal | dt.datetime | dt.date | dt.timedelta | None"
BinaryOp: TypeAlias = Literal["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "and", "or"]
UnaryOp: TypeAlias = Literal["not", "-", "is_null", "is_not_null"]
FUNCTIONS: Final = frozenset({
    "lower", "upper", "length", "abs", "coalesce", "starts_with", "contains", "if_else", "round", "named_struct",
})  # fmt: skip


class Expr:
    """Base of all expressions; carries the operators.

    Comparison and arithmetic operators build new expressions, so ``==`` compares columns, not Python objects;
    use :meth:`same_as` to compare two expression trees.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # `==` builds an expression, so hashing would lie

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

    def __bool__(self) -> bool:
        raise ExpressionError(message("an expression has no truth value", str(self), "`and`, `or`, `not`, `in` and "
                                      "chained comparisons cannot be seen by the library", "use &, |, ~ with parentheses"))

    def is_null(self) -> UnOp:
        """True where the value is null."""
        return UnOp("is_null", self)

    def is_not_null(self) -> UnOp:
        """True where the value is not null."""
        return UnOp("is_not_null", self)

    def isin(self, *values: Scalar) -> IsIn:
        """True where the value is one of `values`."""
        return IsIn(self, tuple(values))

    def cast(self, type_: pa.DataType | str) -> Cast:
        """Convert to an Arrow type (or a Spark type name such as ``"double"``); impossible values are an error."""
        return Cast(self, type_ if isinstance(type_, pa.DataType) else named_type(type_))

    def alias(self, name: str) -> Alias:
        """Name the result."""
        return Alias(self, name)

    def same_as(self, other: Expr) -> bool:
        """Whether two expression trees are equal (``==`` builds a comparison instead)."""
        return repr(self) == repr(other)

    def children(self) -> tuple[Expr, ...]:
        """The expressions directly below this one."""
        return ()


@attrs.frozen(eq=False, repr=False)
class Col(Expr):
    """A column by name; ``col("*")`` is every row, for ``count`` only."""

    name: str

    def __repr__(self) -> str:
        return self.name


@attrs.frozen(eq=False, repr=False)
class Lit(Expr):
    """A constant."""

    value: Scalar

    def __repr__(self) -> str:
        return repr(self.value)


@attrs.frozen(eq=False, repr=False)
class BinOp(Expr):
    """Two operands; nulls propagate as in SQL (Kleene logic for and/or)."""

    op: BinaryOp
    left: Expr
    right: Expr

    def __repr__(self) -> str:
        return f"({self.left!r} {self.op} {self.right!r})"

    def children(self) -> tuple[Expr, ...]:
        return (self.left, self.right)


@attrs.frozen(eq=False, repr=False)
class UnOp(Expr):
    """One operand."""

    op: UnaryOp
    arg: Expr

    def __repr__(self) -> str:
        return f"{self.op}({self.arg!r})"

    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)


@attrs.frozen(eq=False, repr=False)
class IsIn(Expr):
    """Membership in a fixed list."""

    arg: Expr
    values: tuple[Scalar, ...]

    def __repr__(self) -> str:
        return f"({self.arg!r} in {list(self.values)!r})"

    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)


@attrs.frozen(eq=False, repr=False)
class Cast(Expr):
    """A checked conversion."""

    arg: Expr
    type: pa.DataType

    def __repr__(self) -> str:
        return f"cast({self.arg!r} as {self.type})"

    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)


@attrs.frozen(eq=False, repr=False)
class Func(Expr):
    """One of :data:`FUNCTIONS`."""

    name: str = attrs.field()
    args: tuple[Expr, ...] = ()

    @name.validator
    def _known(self, _attribute: object, value: str) -> None:
        if value not in FUNCTIONS:
            raise ExpressionError(message("unknown function", value, "it cannot be evaluated",
                                          f"the functions are: {', '.join(sorted(FUNCTIONS))}; or use map_batches"))

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.args))})"

    def children(self) -> tuple[Expr, ...]:
        return self.args


@attrs.frozen(eq=False, repr=False)
class Alias(Expr):
    """A named result."""

    arg: Expr
    name: str

    def __repr__(self) -> str:
        return f"{self.arg!r} AS {self.name}"

    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)


@attrs.frozen(eq=False, repr=False)
class StructOf(Expr):
    """Several columns as one struct, under their names; the library's own, for results that hold whole rows."""

    names: tuple[str, ...]

    def __repr__(self) -> str:
        return f"struct({', '.join(self.names)})"

    def children(self) -> tuple[Expr, ...]:
        return tuple(Col(n) for n in self.names)


_TYPE_NAMES: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "integer": pa.int32(),
    "bigint": pa.int64(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(), "string": pa.string(),
    "binary": pa.binary(), "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip


def named_type(name: str) -> pa.DataType:
    """The Arrow type of a simple Spark type name."""
    found = _TYPE_NAMES.get(name.strip().lower())
    if found is None:
        raise ExpressionError(message("unknown type name", name, "the cast has no target",
                                      f"use a pyarrow type or one of: {', '.join(sorted(_TYPE_NAMES))}"))
    return found


def wrap(value: object) -> Expr:
    """An expression as it is, anything else as a literal."""
    if isinstance(value, Expr):
        return value
    if value is None or isinstance(
        value, (bool, int, float, str, bytes, decimal.Decimal, dt.datetime, dt.date, dt.timedelta)
    ):
        return Lit(value)
    raise ExpressionError(message("not a column or constant", repr(value), "it cannot be part of an expression",
                                  "wrap columns with col(...)"))


def col(name: str) -> Col:
    """The column called `name`."""
    if not isinstance(name, str):
        raise ExpressionError(message("a column is named by text", repr(name), "no column is meant", 'write col("name")'))
    return Col(name)


def lit(value: Scalar) -> Lit:
    """A constant `value`; None is null."""
    return Lit(value)


def func(name: str, *args: object) -> Func:
    """Call the one of :data:`FUNCTIONS` called `name` on `args`, columns or constants: ``func("lower", col("city"))``."""
    return Func(name, tuple(wrap(a) for a in args))


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node of the tree, parents first."""
    yield expr
    for child in expr.children():
        yield from walk(child)


def columns_of(expr: Expr) -> frozenset[str]:
    """Names of the columns an expression reads."""
    return frozenset(node.name for node in walk(expr) if isinstance(node, Col))


def name_of(expr: Expr) -> str:
    """The output name of an expression: its alias, its column, or its text."""
    return expr.name if isinstance(expr, (Alias, Col)) else repr(expr)
