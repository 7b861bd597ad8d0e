"""Answer Python's operators and built-in functions, where a value has none, with an error of ours and a hint.

``len(stream)``, ``for row in stream``, ``column @ 2``, ``Source()``: without this Python would answer in its own words, which
know nothing of what to write here.
"""

from __future__ import annotations

import abc
from typing import Any, Final, NoReturn

from krishiv_py.errors import CallError, shown

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
