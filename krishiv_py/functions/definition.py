"""One definition a function: what is said of it once, and what readers of it take.

A definition is a function of Arrow values with :func:`function` above it. Its parameters are the arguments: their annotations
say what each takes, their defaults which may be left out::

    @function("text", "string", node=Node("Pad", "this expression fill_pattern", is_left=True), example=(...))
    def lpad(text: Value, length: Whole, by: Text = " ") -> Value:
        \"\"\"Return the text with `by` before it, again and again, or cut, so that it has `length` characters.\"\"\"

From it come ``func("lpad", ...)`` and its errors, the method ``col("x").lpad(...)``, what SQL text may call, the computation
and the line of the reference.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias, TypeVar, get_args

import attrs
import pyarrow as pa

from krishiv_py.arrays.types import Ints
from krishiv_py.errors import ExpressionError, shown


@attrs.frozen
class Kind:
    """Holds what an argument may be: a constant, or a function of so many parameters; else a column or constant."""

    name: str
    type: type | None = None
    said: str = ""
    parameters: tuple[int, int] | None = None
    python: str = "object"
    """The annotation of the parameter of a method."""


Value: TypeAlias = Annotated["pa.Array | pa.Scalar", Kind("Value")]
"""An argument that is a column or a constant."""
Text: TypeAlias = Annotated[str, Kind("Text", str, "text", python="str")]
Whole: TypeAlias = Annotated[int, Kind("Whole", int, "whole number", python="int")]
Switch: TypeAlias = Annotated[bool, Kind("Switch", bool, "truth value", python="bool")]
Digits: TypeAlias = Annotated[int, Kind("Digits", int, "whole number", python="int")]
"""A whole number that may have more than 32 bits."""
Unit: TypeAlias = Annotated[str, Kind("Unit", str, "text", python="TruncUnit")]
AddUnit: TypeAlias = Annotated[str, Kind("AddUnit", str, "text", python="str")]
Zone: TypeAlias = Annotated[str, Kind("Zone", str, "text", python="str")]
Pattern: TypeAlias = Annotated[str, Kind("Pattern", str, "text", python="str")]
Written: TypeAlias = Annotated[str, Kind("Written", str, "text", python="str")]
"""The pattern by which a time is written."""
Read: TypeAlias = Annotated[str, Kind("Read", str, "text", python="str")]
"""The pattern by which a text is read as a time."""
Path: TypeAlias = Annotated[str, Kind("Path", str, "text", python="str")]
Schema: TypeAlias = Annotated[pa.DataType, Kind("Schema", str, "text", python="str")]
"""The struct of a DDL schema, which is given as text."""
Family: TypeAlias = Literal["text", "numbers", "times", "lists", "maps", "structs", "conditions", "hashes", "json"]
Nulls: TypeAlias = Literal["first", "own"]
"""``first``: null where the first argument is, and the others need no value there. ``own``: nulls are values as any other."""


class Elements(Protocol):
    """A function of elements as an argument: it is computed over the elements of all rows at once."""

    text: str
    """The text of the call."""

    def given(self, rows: Ints, *values: pa.Array) -> pa.Array:
        """Return what it gives for `values`, which belong to these rows."""


OfOne: TypeAlias = Annotated[Elements, Kind("OfOne", parameters=(1, 1), python="Single")]
OfTwo: TypeAlias = Annotated[Elements, Kind("OfTwo", parameters=(2, 2), python="Pair")]
OfOneOrTwo: TypeAlias = Annotated[Elements, Kind("OfOneOrTwo", parameters=(1, 2), python="Single | Pair")]


class LazyArgument(Protocol):
    """An argument that is computed when it is known for which rows."""

    constant: Any
    """The constant; :data:`~krishiv_py.functions.computing.checks.COLUMN` for a column."""

    def value(self) -> Value:
        """Return its value for all rows."""

    def where(self, needed: Value) -> Value:
        """Return its value for rows where `needed` is true; null or any value for others."""


Later: TypeAlias = Annotated[LazyArgument, Kind("Later")]

MANY: Final = 255


@attrs.frozen
class Param:
    """A parameter of a function."""

    name: str
    takes: Kind
    optional: bool = False
    default: Any = None
    many: bool = False

    @property
    def kind(self) -> str:
        """Return the name of what it takes."""
        return self.takes.name

    @property
    def constant(self) -> Kind | None:
        """Return what constant it takes; None if it takes columns, or functions of elements."""
        return None if self.takes.type is None else self.takes

    @property
    def parameters(self) -> tuple[int, int] | None:
        """Return how many parameters a function of elements has in its place; None if it takes none."""
        return self.takes.parameters


class SqlNode:
    """A node of sqlglot that is a call: the name of its class, the parts that are arguments, and what else it must say.

    Parameters
    ----------
    kind : str
        The name of the class; one that a version of sqlglot does not have is never met.
    parts : str
        Names of the parts, in the order of the arguments; ``*`` before one that is a list.
    fill : str, optional
        The last argument where its part is left out.
    **says : object
        Other parts and their values.
    """

    def __init__(self, kind: str, parts: str = "this", fill: str | None = None, **says: object) -> None:
        self.kind, self.parts, self.fill, self.says = kind, tuple(parts.split()), fill, says


@attrs.frozen(eq=False)
class Definition:
    """All that is known of one function."""

    name: str
    family: Family
    params: tuple[Param, ...]
    returns: str
    nulls: Nulls
    meets: bool
    """True if constants take the type of the other arguments."""
    later: bool
    compute: Callable[..., Any]
    doc: str
    example: tuple[str, object]
    nodes: tuple[SqlNode, ...]
    names: tuple[str, ...]
    in_text: bool
    method: str | None
    subject: int
    """The argument that a method is called on."""
    short: bool
    """True if the method leaves out arguments that equal their defaults."""
    zoned: bool
    """True if the method and SQL text take a time zone as well, by which the time is shown first."""
    check: Callable[[str, tuple[Any, ...]], None] | None
    limits: tuple[int, int]
    by_turns: str | None

    @property
    def of_elements(self) -> bool:
        """Return whether an argument is a function of elements."""
        return any(p.parameters for p in self.params)

    def param(self, index: int) -> Param:
        """Return the parameter of the argument numbered `index`, from 0 on."""
        return self.params[min(index, len(self.params) - 1)]


def not_constant(what: str, kind: str, got: object) -> ExpressionError:
    """Return the error for an argument that must be a constant and is none."""
    return ExpressionError(f"{what} must be a constant {kind}", got=shown(got), hint=f"pass a plain {kind}")


DEFINED: Final[dict[str, Definition]] = {}
"""The functions by name; :mod:`krishiv_py.functions.known` has loaded all files of them."""
F = TypeVar("F", bound=Callable[..., Any])
_EXAMPLES: Final[dict[Callable[..., Any], tuple[str, object]]] = {}


def example(text: str, value: object) -> Callable[[F], F]:
    """Give a function an example: a SQL expression without columns, and its value."""

    def noted(compute: F) -> F:
        _EXAMPLES[compute] = text, value
        return compute

    return noted


def _param(given: inspect.Parameter) -> Param:
    """Return a parameter; its annotation says what it takes, and may allow None."""
    alternatives = (given.annotation, *get_args(given.annotation))
    (kind,) = (kind for each in alternatives for kind in getattr(each, "__metadata__", ()) if isinstance(kind, Kind))
    many = given.kind is given.VAR_POSITIONAL
    optional = many or given.default is not given.empty
    return Param(given.name, kind, optional, given.default if optional and not many else None, many)


def function(
    family: Family,
    returns: str,
    *,
    node: SqlNode | tuple[SqlNode, ...] = (),
    name: str | None = None,
    names: tuple[str, ...] = (),
    nulls: Nulls = "first",
    meets: bool = False,
    in_text: bool = True,
    method: bool | str = True,
    subject: int = 0,
    short: bool = False,
    zoned: bool = False,
    check: Callable[[str, tuple[Any, ...]], None] | None = None,
    most: int = MANY,
    by_turns: str | None = None,
) -> Callable[[F], F]:
    """Define a function of expressions by a function of Arrow values.

    Parameters
    ----------
    family : str
        Of which page, and of which namespace of columns, it is a part.
    returns : str
        The type of what it gives, in words.
    node : Node, optional
        How the parser reads it; without one, by its name.
    name : str, optional
        Its name, if a function of Python cannot have it.
    names : tuple of str, optional
        Other names in SQL text.
    nulls : str, optional
        Whether it is null where its first argument is.
    meets : bool, optional
        Whether constants take the type of the other arguments.
    in_text : bool, optional
        Whether SQL text may call it by its name.
    method : bool or str, optional
        Whether columns have a method for it, or the name of that.
    subject : int, optional
        Which argument the method is called on.
    short : bool, optional
        Whether the method leaves out arguments that equal their defaults; None is always left out.
    zoned : bool, optional
        Whether a time zone may follow, by whose clock the time is shown before.
    check : callable, optional
        Refuses arguments: takes the name and all of them, constants as plain Python.
    most : int, optional
        How many arguments it takes where its last parameter takes many.
    by_turns : str, optional
        What its arguments are by turns, if they come in pairs.
    """

    def defined(compute: F) -> F:
        params = tuple(map(_param, inspect.signature(compute, eval_str=True).parameters.values()))
        called = name or compute.__name__
        DEFINED[called] = Definition(
            name=called,
            family=family,
            params=params,
            returns=returns,
            nulls=nulls,
            meets=meets,
            later=any(p.kind == "Later" for p in params),
            compute=compute,
            doc=compute.__doc__ or "",
            example=_EXAMPLES.pop(compute, ("", None)),
            nodes=node if isinstance(node, tuple) else (node,),
            names=names,
            in_text=in_text,
            method=called if method is True else method or None,
            subject=subject,
            short=short,
            zoned=zoned,
            check=check,
            limits=(sum(not p.optional for p in params), most if params and params[-1].many else len(params)),
            by_turns=by_turns,
        )
        return compute

    return defined
