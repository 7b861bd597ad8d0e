"""Arguments of the public API: what a parameter may be, refused at the call with what was got and a hint."""

from __future__ import annotations

import functools
import inspect
import posixpath
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeAlias

from typing_extensions import TypeIs

from krishiv_py.errors import ColumnError, DurationError, ExpressionError, PlanError, shown, unknown_column
from krishiv_py.plan.durations import to_us
from krishiv_py.plan.expressions import parse
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.names import encodable

PROFILES: Final = ("dev-local", "single-node-durable", "distributed-durable")
"""The durability profiles of SEMANTICS §6.2."""
ENGINES: Final = ("spark", "in-process")
"""The engines that run queries."""
MOST_ROWS: Final = (1 << 31) - 1
"""The largest number of rows a setting may name: row numbers inside a batch are 32 bits wide."""


class PathObject(Protocol):
    """Describes ``os.PathLike[str]`` for code that knows no files."""

    def __fspath__(self) -> str:
        """Return the path as text."""


PathLike: TypeAlias = "str | PathObject"
"""Names a file or a folder, also one of an object store."""
Setting: TypeAlias = "str | int | PathObject"
"""The value of a setting of another system's."""


_AWAITED: Final = "nobody awaits it: nothing would be done"
_WAIT: Final = "write it with def; inside, asyncio.run(...) or asyncio.run_coroutine_threadsafe(..., loop).result() waits"


def is_async(value: object) -> bool:
    """Return whether a call of a function or object gives a coroutine or an async generator."""
    while isinstance(value, (functools.partial, functools.partialmethod, staticmethod, classmethod)):
        value = value.func if isinstance(value, (functools.partial, functools.partialmethod)) else value.__func__
    called = (
        value if inspect.isroutine(value) or inspect.isclass(value) else inspect.getattr_static(type(value), "__call__", None)
    )
    return any(inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in (value, called))


def a_function(value: object, what: str, hint: str, *, got: str | None = None) -> Any:
    """`value`, which must be a function that does its work when it is called; errors show it, or `got`.

    Raises
    ------
    PlanError
        When it cannot be called, or is to be awaited (``async def``).
    """
    got = shown(value) if got is None else got
    if not callable(value):
        raise PlanError(what, got=got, hint=hint)
    if is_async(value):
        raise PlanError(f"{what}, and this one is async", got=got, then=_AWAITED, hint=_WAIT)
    return value


def plain_methods(value: object, interface: type) -> None:
    """Refuse an object that has an ``async def`` where the library calls a method of an `interface` of its own."""
    names = (name for base in interface.__mro__ if base.__module__.startswith("krishiv_py.") for name in vars(base))
    for name in dict.fromkeys(names):
        if not name.startswith("_") and is_async(inspect.getattr_static(value, name, None)):
            what = f"{type(value).__name__}.{name} is async"
            raise PlanError(what, got=f"async def {name}", then=_AWAITED, hint=_WAIT)


def call_plainly(function: Callable[..., object], *args: object) -> None:
    """Call a function whose result is not used; a coroutine is refused, as a lambda around an ``async def`` returns it."""
    refuse_coroutine(function, function(*args))


def refuse_coroutine(function: Callable[..., object], result: object) -> None:
    """Refuse the `result` of a function that is to be awaited: nobody would.

    Raises
    ------
    PlanError
        For a coroutine, and an asynchronous generator.
    """
    if result is None:
        return
    if inspect.iscoroutine(result):
        result.close()
    elif not inspect.isasyncgen(result):
        return
    what = f"{getattr(function, '__qualname__', type(function).__name__)} returned what is to be awaited"
    raise PlanError(what, got=type(result).__name__, then=_AWAITED, hint=_WAIT)


def overridden_since(cls: type, name: str) -> set[str]:
    """Return the methods that subclasses have overridden since the class from which `cls` has the method `name`.

    Where `name` gives in another way what they give, it gives it as they were before.

    Examples
    --------
    >>> class Sums:
    ...     def one(self, value): ...
    ...     def all(self, values): ...
    >>> class Products(Sums):
    ...     def one(self, value): ...
    >>> overridden_since(Sums, "all"), overridden_since(Products, "all")
    (set(), {'one'})
    """
    overridden = set[str]()
    for base in cls.__mro__:
        if name in vars(base):
            return overridden
        methods = {n for n, member in vars(base).items() if callable(member) or isinstance(member, (property, staticmethod))}
        overridden |= {n for n in methods if not n.startswith("__")}
    return set()


def is_collection(value: object) -> TypeIs[Iterable[Any]]:
    """Return whether a value has members that can be taken one by one; a text has none."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        return False
    try:
        iter(value)
    except TypeError:  # a column of PySpark has the method, but it only raises
        return False
    return True


def one_of(value: object, name: str, legal: tuple[str, ...]) -> None:
    """Refuse a switch that has no such position."""
    if not isinstance(value, str) or value not in legal:
        raise PlanError(f"`{name}` has no such setting", got=shown(value), hint=f"use one of {', '.join(map(repr, legal))}")


def a_switch(value: object, name: str) -> bool:
    """`value`, which must be True or False."""
    if not isinstance(value, bool):
        raise PlanError(f"`{name}` is a switch", got=shown(value), hint="pass True or False")
    return value


def apart(name: str, other: str, hint: str) -> PlanError:
    """Return the error for a parameter that does not go with `other`."""
    return PlanError(f"`{name}` does not go with {other}", got=name, hint=hint)


def a_text(value: object, name: str, hint: str) -> str:
    """`value`, which must be a text that can be written as UTF-8 and is not empty."""
    if not isinstance(value, str) or not value or not encodable(value):
        raise PlanError(f"`{name}` is not a text", got=shown(value), hint=hint)
    return value


def a_path(value: object, name: str, hint: str) -> str:
    """`value` as text, which must be a path, or a text that can name a file or folder; ``~`` is the folder of the user."""
    of_object = getattr(type(value), "__fspath__", None)
    text = value if of_object is None else of_object(value)
    if not isinstance(text, str) or not text.strip() or "\0" in text or not encodable(text):
        raise PlanError(f"`{name}` is not a path", got=shown(value), hint=hint)
    return posixpath.expanduser(text)


def a_number(value: object, name: str, least: int, hint: str, *, most: int = MOST_ROWS) -> int:
    """`value`, which must be a whole number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise PlanError(f"`{name}` is out of range", got=shown(value), then=f"it counts from {least} to {most:,}", hint=hint)
    return value


def setting(key: object, value: object) -> tuple[str, str]:
    """Return a setting of Spark as two texts."""
    name = a_text(key, "key", 'write .config("spark.sql.shuffle.partitions", 4)')
    if hasattr(type(value), "__fspath__"):
        return name, a_path(value, name, "pass a text, or a path")
    if not isinstance(value, (str, int)):
        raise PlanError(f"{name!r} has no such value", got=shown(value), hint="pass a text, a whole number, True or False")
    return name, str(value).lower() if isinstance(value, bool) else str(value)


def file_name(value: object) -> str:
    """`value`, which must be a text that can be part of a file's name."""
    name = a_text(value, "name", 'pass a short text such as "checkpoint"')
    if "/" in name or "\0" in name or len(name.encode()) > 200:
        raise PlanError("`name` cannot be part of a file's name", got=shown(name), hint="leave out slashes, and keep it short")
    return name


def microseconds(value: object, name: str, least: int, most: int) -> int:
    """Return a length or point in time that is in microseconds already."""
    return a_number(value, name, least, "pass whole microseconds, or use the method that takes any duration", most=most)


def wait_us(value: object, name: str) -> int:
    """Return a time to wait, in microseconds, from a text or a timedelta.

    A bare number is refused: elsewhere in the library it would be milliseconds, in Spark it is seconds.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        then = "Spark means seconds, durations here milliseconds"
        raise DurationError(f"`{name}` has no unit", got=shown(value), then=then, hint='write "2 s", "200 ms" or a timedelta')
    return to_us(value, name)  # type: ignore[arg-type]  # refused there if it is neither


def column_name(value: object, where: str) -> str:
    """`value`, which must be a text that can name a column."""
    if not isinstance(value, str) or not value or not encodable(value):
        raise ColumnError(f"{where}: a column is named by a text", got=shown(value), hint='write for instance "user_id"')
    return value


def known_column(value: object, names: Iterable[str], where: str) -> str:
    """`value`, which must be one of the columns `names`."""
    listed = list(names)
    name = column_name(value, where)
    if name not in listed:
        raise unknown_column(name, listed, where)
    return name


def expression(value: object, where: str) -> Expr:
    """Return an expression, or the one a SQL text is."""
    if isinstance(value, str):
        return parse.parse_expr(value)
    if not isinstance(value, Expr):
        hint = 'write col("amount") > 0, or the same as SQL text'
        raise ExpressionError(f"{where} takes an expression", got=shown(value), hint=hint)
    return value
