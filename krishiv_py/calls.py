"""The border of the public API: calls that do not fit, operators that a value does not have, tracebacks for users.

``len(stream)``, ``for row in stream``, ``column @ 2``, ``Source()``: without this Python would answer in its own words, which
know nothing of what to write here.

Each package that users import from gives its names to :func:`checked_face` once, at its end. A call that does not fit a
function, method or constructor is then a :class:`~krishiv_py.errors.CallError` with the arguments that it takes. Any error of
this library leaves through one frame: a traceback shows the user's line and that frame, and nothing of the inside.
"""

from __future__ import annotations

import abc
import difflib
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Final, NoReturn, TypeVar

from krishiv_py.errors import CallError, KrishivError, PlanError, SchemaError, of_a_user, shown

_BINARY: Final = {
    **{"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@"},
    **{"lshift": "<<", "rshift": ">>", "and": "&", "or": "|", "xor": "^"},
}
_COMPARED: Final = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_ITEMS: Final = ("getitem", "setitem", "delitem")
_ROWS: Final = ("iter", "next", "reversed", "len", "contains", "getitem", "aiter", "anext")
"""Methods that a user calls on a stream as if it were its rows."""
_WRITTEN: Final = {
    **{f"__{name}__": f"{{x}} {sign} {{other}}" for name, sign in {**_BINARY, **_COMPARED}.items()},
    **{f"__r{name}__": f"{{other}} {sign} {{x}}" for name, sign in _BINARY.items()},
    **{"__divmod__": "divmod({x}, {other})", "__rdivmod__": "divmod({other}, {x})"},
    **{f"__{name}__": f"{name}({{x}})" for name in ("abs", "round", "int", "float", "complex", "len", "reversed", "bytes")},
    **{f"__{name}__": f"math.{name}({{x}})" for name in ("floor", "ceil", "trunc")},
    **{"__neg__": "-{x}", "__pos__": "+{x}", "__invert__": "~{x}"},
    **{"__index__": "{x} as an index", "__hash__": "hash({x})"},
    **{"__next__": "next({x})", "__contains__": "{other} in {x}", "__iter__": "for ... in {x}"},
    **{"__getitem__": "{x}[{other}]", "__setitem__": "{x}[{other}] = ...", "__delitem__": "del {x}[{other}]"},
    **{"__enter__": "with {x}", "__exit__": "with {x}"},
    **{"__aenter__": "async with {x}", "__aexit__": "async with {x}"},
    **{"__await__": "await {x}", "__aiter__": "async for ... in {x}", "__anext__": "anext({x})"},
}
"""Methods of Python's data model, and how their use is written.

``__call__`` is not among them: ``callable(...)`` would be true. Nor is ``__iter__`` where a class has no items: with it any
value would count as iterable, and without it Python goes by ``__getitem__``.
"""
_MADE_BY: Final = {"Query": 'write query = stream.start(sink, checkpoint="checkpoint")'}
"""The call that gives a value of a protocol which only the library implements."""


def refuse_operators(cls: Any) -> None:
    """Give a class a method for each operator and built-in function that it has none for: it raises a CallError."""
    own = _own_methods(cls)
    known = {name for base in cls.__mro__[:-1] for name, member in vars(base).items() if member is not None}
    if cls.__hash__ is not None:
        known.add("__hash__")
    for name, written in _WRITTEN.items():
        if name not in known and (name != "__iter__" or "__getitem__" in own):
            setattr(cls, name, _refusing(name, written))
    if cls.__len__.__dict__.get("__refuses__") and "__bool__" not in own:
        cls.__bool__ = _true  # else Python would use the length
    if cls.__format__ is object.__format__:
        cls.__format__ = _formatted


def refuse_new(cls: Any) -> None:
    """Let an abstract class, or a protocol, say what it is for when somebody makes an instance of it."""
    if issubclass(type(cls), abc.ABCMeta) and cls.__new__ is object.__new__ and (cls.__abstractmethods__ or _is_protocol(cls)):
        cls.__new__ = _new


def _own_methods(cls: type) -> set[str]:
    """Return the names of the methods that classes of the library or a user wrote."""
    methods = {name: member for base in reversed(cls.__mro__[:-1]) for name, member in vars(base).items()}
    return {name for name, member in methods.items() if "__refuses__" not in getattr(member, "__dict__", ())}


def _refusing(name: str, written: str) -> Any:
    def refuse(self: Any, *args: Any) -> NoReturn:
        __tracebackhide__ = True
        cls = type(self)
        got = written.format(x=cls.__name__, other=shown(args[0]) if args else "")
        called = getattr(cls, "_called", None) or _article(cls.__name__)
        raise CallError(f"{called} has no {_operation(name)}", got=got, hint=_hint(cls, name, args))

    refuse.__name__ = name
    refuse.__dict__.update(__refuses__=True, __checked__=True)
    return refuse


def _true(self: Any) -> bool:
    return True


def _formatted(self: Any, spec: str) -> str:
    if not spec:
        return str(self)
    cls = type(self).__name__
    got = f"f'{{{cls}:{spec}}}'"
    hint = "write {x!s:" + spec + "} for its text"
    raise CallError(f"{_article(cls)} has no format of its own", got=got, hint=hint)


_formatted.__dict__["__refuses__"] = True


def _new(cls: Any, *args: Any, **kwargs: Any) -> Any:
    __tracebackhide__ = True
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing or _is_protocol(cls):
        name, wanted = cls.__name__, ", ".join(missing or sorted(n for n in vars(cls) if not n.startswith("_")))
        what, got, hint = "lacks methods", f"{name}(...), without {wanted}", f"define {wanted} in {name}"
        if cls.__module__.startswith("krishiv_py."):
            what = "is a base class"
            hint = f"write class My{name}({name}): with {wanted}; help({name}) says of each what it does"
        hint = _MADE_BY.get(cls.__name__, hint)
        raise CallError(f"{cls.__name__} {what}", got=got, hint=hint)
    if cls.__init__ is object.__init__ and (args or kwargs):
        given = ", ".join([*map(shown, args), *(f"{name}={shown(value)}" for name, value in kwargs.items())])
        raise CallError(f"{cls.__name__}() takes no arguments", got=given, hint=f"write {cls.__name__}()")
    return object.__new__(cls)


def _is_protocol(cls: type) -> bool:
    return bool(cls.__dict__.get("_is_protocol"))


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _operation(name: str) -> str:
    plain = name.strip("_")
    sign = {**_BINARY, **_COMPARED}.get(plain) or _BINARY.get(plain.removeprefix("r"))
    named = {"iter": "rows to go through", "next": "next row", "contains": "operator in", "len": "length", "index": "index"}
    if plain in _ITEMS:
        return "items"
    if plain in ("enter", "exit", "aenter", "aexit"):
        return "end, so `with` does not fit"
    return f"operator {sign}" if sign else named.get(plain, f"{plain}()")


def _hint(cls: Any, name: str, args: tuple[Any, ...]) -> str:
    plain = name.strip("_")
    hints = getattr(cls, "_operator_hints", {})
    if plain in hints or "" in hints:
        return str(hints.get(plain) or hints[""])
    if hasattr(cls, "collect"):  # a stream
        text = args[0] if args and isinstance(args[0], str) else "amount"
        if plain in ("setitem", "delitem"):
            return f'write stream.with_column("{text}", ...), or stream.select(...) without it'
        if plain == "getitem" and args and not isinstance(args[0], int):
            return f'write col("{text}") for a column, and stream.select("{text}") for a stream of it'
        if plain in _ROWS:
            return "write stream.collect() for the rows of a finite input, or Driver(stream).send(rows) in a test"
        if plain in ("add", "radd", "or", "ror", "and", "rand"):
            return "write union_of(...) or session.union(...) for the rows of several streams, or .interval_join(...) for pairs"
        if plain in ("enter", "exit"):
            return "write with stream.start(sink) as query: a query ends, and so does a session"
        return 'write a step of the stream: .filter("amount > 5"), .with_column("total", "price * n"), .select("total")'
    if plain in ("await", "aenter", "aexit", "aiter", "anext"):
        return f"write it without async: {cls.__name__} does not wait"
    members = [n for n in dir(cls) if not n.startswith("_")]
    listed = f"it has {', '.join(members[:12])}{' and more' if len(members) > 12 else ''}"
    return listed if members else f"see help({cls.__name__})"


C = TypeVar("C", bound=type)
_OF_MODULES: Final = ("__all__", "__doc__", "__file__", "__name__", "__package__", "__path__", "__spec__", "__version__")

SWITCH: Final = "KRISHIV_PY_FULL_TRACEBACKS"
"""The environment variable that keeps the frames of this library in tracebacks: for those who develop it."""

_EXAMPLES: Final = {
    ".drop_duplicates": '.drop_duplicates("id", within="10 minutes"); '
    "`within` is how far apart in event time duplicates can be",
    ".interval_join": '.interval_join(right, on="user", lower="-10 minutes", upper="5 minutes"); bounds of the right time',
    ".asof_join": '.asof_join(right, on="user", tolerance="1 minute")',
    ".window_join": '.window_join(right, on="user", window=windows.tumbling("1 minute"))',
    ".lookup_join": '.lookup_join(table, on="user")',
    ".agg": '.agg(count(), total=sum("amount"))',
    ".watermark": '.watermark("event_time", "5 seconds")',
    ".tumbling_window": '.tumbling_window("1 minute")',
    ".hopping_window": '.hopping_window("10 minutes", "1 minute"): first the size, then the slide',
    ".sliding_window": '.sliding_window("10 minutes", "1 minute"): first the size, then the slide',
    ".session_window": '.session_window("30 minutes")',
    ".with_column": '.with_column("total", "price * n")',
    ".filter": '.filter("amount > 100"), with AND or & between several conditions',
    ".rename": '.rename(old="new"), with one new name for each old one',
    ".register": '.register("events", stream, event_time="at", lag="5 seconds")',
    ".start": '.start(ParquetSink("out"), checkpoint="checkpoint")',
    "Session": "Session.embedded(), Session.builder(), Session.connect(url) or Session.from_spark(spark)",
    "Sender": 'stream, sender = session.memory_stream("user string, at timestamp")',
    "udaf": 'udaf(MyAggregator(), "amount", pyarrow.float64())',
    **{
        name: f'{name}("amount") as an aggregate; for Python\'s own {name} write: import builtins, builtins.{name}(...)'
        for name in ("sum", "min", "max")
    },
    "when": 'when(col("amount") > 100, "large").otherwise("small")',
    "lit": "lit(5)",
    "col": 'col("amount")',
}
_OPERATORS: Final = frozenset(
    f"__{name}__"
    for name in (
        *("init", "bool", "getitem", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "rand", "ror", "xor", "invert", "neg"),
        *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod", "pow"),
    )
)


def checked_face(names: dict[str, Any], *modules: str) -> None:
    """Check the calls of all functions and classes that a module offers, given its ``globals()``.

    ``dir(...)`` and completion show what it offers, and of its `modules` those that are loaded.
    Functions are replaced in this module only, so that code of the library calls them as they are. Classes are changed in
    place, with the classes of the library that they are derived from.
    """
    for name in (*names["__all__"],):
        thing = names[name]
        if isinstance(thing, FunctionType) and not _is_checked(thing):
            names[name] = checked = _checked(thing)
            checked.__module__ = names["__name__"]  # where pickle finds this one
        elif inspect.isclass(thing) and not issubclass(thing, BaseException):
            checked_class(thing)
    names["__dir__"] = lambda: sorted({*names["__all__"], *(n for n in (*_OF_MODULES, *modules) if n in names)})


def checked_class(cls: C) -> C:
    """Check the calls of a class; as a decorator, of one that users get without its name."""
    for base in cls.__mro__:
        _check_own(base)
    refuse_new(cls)
    if not cls.__dict__.get("_is_protocol"):
        refuse_operators(cls)
    return cls


def _check_own(cls: type) -> None:
    if not cls.__module__.startswith("krishiv_py") or cls.__dict__.get("_is_protocol"):
        return
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name not in _OPERATORS:
            continue
        made: Any = None
        if isinstance(member, FunctionType) and not _is_checked(member):
            made = _checked(member, cls.__name__ if name == "__init__" else f".{name}", skipped=1)
        elif isinstance(member, classmethod) and not _is_checked(member.__func__):
            made = classmethod(_checked(member.__func__, f"{cls.__name__}.{name}", skipped=1))
        elif isinstance(member, staticmethod) and not _is_checked(member.__func__):
            made = staticmethod(_checked(member.__func__, f"{cls.__name__}.{name}"))
        elif isinstance(member, property) and member.fget is not None and not _is_checked(member.fget):
            made = property(_checked(member.fget, f".{name}", skipped=1), member.fset, member.fdel, member.__doc__)
        if made is not None:
            setattr(cls, name, made)


def _is_checked(function: Any) -> bool:
    return "__checked__" in getattr(function, "__dict__", ())


def _checked(function: Any, label: str | None = None, *, skipped: int = 0) -> Any:
    """Return `function` with its calls checked; errors call it `label`, its first `skipped` parameters are Python's own."""
    own, shortened, is_inside, problem_of = KrishivError, _shortened, _is_inside, _problem  # globals are those of the function
    name = label or function.__name__

    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # for pytest and IPython
        try:
            return function(*args, **kwargs)
        except own as problem:
            error = shortened(problem)
        except TypeError as problem:
            if is_inside(problem, function, args, kwargs):
                raise
            error = problem_of(function, name, args[skipped:], kwargs, skipped)
        try:
            raise error
        finally:
            del error  # which knows this frame, and with it the arguments

    # doctest looks at the globals for the module that an example belongs to
    code = call.__code__.replace(co_name=function.__name__)
    made = functools.update_wrapper(
        FunctionType(code, function.__globals__, function.__name__, None, call.__closure__), function
    )
    made.__dict__["__checked__"] = True
    return made


def _is_inside(problem: TypeError, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether an error comes from the body of a function, and not from its call."""
    if problem.__traceback__ is None or problem.__traceback__.tb_next is None:
        return False
    try:
        if hasattr(function, "__wrapped__"):  # a decorator lets any arguments pass
            inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _shortened(problem: KrishivError) -> KrishivError:
    """Return the error without the frames of this library, unless code of a user is among them.

    An error of a plan or schema also loses a reason that shows no line of a user: its text says it.
    """
    if os.environ.get(SWITCH) or _shows_a_user(problem):
        return problem
    problem.__traceback__ = None
    reason = problem.__cause__ or problem.__context__
    if reason is not None and isinstance(problem, (PlanError, SchemaError)) and not _shows_a_user(reason):
        problem.__cause__ = problem.__context__ = None
    return problem


def _shows_a_user(problem: BaseException) -> bool:
    """Return whether a traceback has a frame that is neither of this library nor of an installed package."""
    frame = problem.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if of_a_user(file) and "site-packages" not in file:
            return True
        frame = frame.tb_next
    return False


def _problem(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], skipped: int
) -> CallError:
    """Return the error for arguments that Python could not bind."""
    parameters = list(inspect.signature(function).parameters.values())[skipped:]
    given = ", ".join([*map(shown, args), *(f"{k}={shown(v)}" for k, v in kwargs.items())])
    takes = ", ".join(map(_parameter, parameters)) or "no arguments"
    what, near = _misfit(parameters, args, kwargs)
    hint = f"write {_EXAMPLES[name]}" if name in _EXAMPLES else f"it takes ({takes})"
    step = next((k for k in kwargs if k not in inspect.signature(function).parameters and _has_method(function, k)), None)
    if step is not None:
        hint = f"{step} is a method of what it returns: {name}(...).{step}(...)"
    return CallError(f"{name}() {what}", got=given or "no arguments", hint=f"{near}{hint}")


def _has_method(function: Callable[..., Any], name: str) -> bool:
    """Return whether what a function is annotated to return has a public method of a `name`."""
    returned = getattr(function, "__annotations__", {}).get("return")
    class_ = getattr(inspect.unwrap(function), "__globals__", {}).get(returned) if isinstance(returned, str) else returned
    return isinstance(class_, type) and not name.startswith("_") and callable(getattr(class_, name, None))


def _misfit(parameters: list[inspect.Parameter], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, str]:
    """Return what does not fit in words, and the nearest name of a parameter."""
    placed = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = next((k for k in kwargs if k not in names), None)
    if unknown is not None and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        near = difflib.get_close_matches(unknown, names, n=1, cutoff=0.6)
        return f"got an unexpected keyword argument {unknown!r}", f"did you mean `{near[0]}`? Or " if near else ""
    if len(args) > len(placed) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        most = f"takes {len(placed)} argument{'' if len(placed) == 1 else 's'} without a name, {len(args)} were given"
        return most, f"name the others ({', '.join(named)}): " if named else ""
    twice = [name for name in placed[: len(args)] if name in kwargs]
    if twice:
        return f"got multiple values for argument {twice[0]!r}", ""
    known = {*placed[: len(args)], *kwargs}
    starred = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [p.name for p in parameters if p.default is p.empty and p.kind not in starred and p.name not in known]
    return f"missing {len(missing)} required argument{'' if len(missing) == 1 else 's'}: {', '.join(map(repr, missing))}", ""


def _parameter(parameter: inspect.Parameter) -> str:
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return ("*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else "**") + parameter.name
    keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
    if parameter.default is inspect.Parameter.empty:
        return f"{parameter.name}=..." if keyword else parameter.name
    default = repr(parameter.default)
    return f"{parameter.name}={default if not default.startswith('<') and len(default) < 60 else '...'}"
