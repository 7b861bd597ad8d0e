"""Calls that do not fit a method: one of the library's own errors, with the arguments that it takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, TypeVar

from krishiv_py.errors import CallError, message, shown

C = TypeVar("C", bound=type)

_EXAMPLES: Final = {
    "drop_duplicates": '.drop_duplicates("id", within="10 minutes"); `within` is how far apart in event time duplicates can be',
    "interval_join": '.interval_join(right, on="user", lower="-10 minutes", upper="5 minutes"); bounds of the right time',
    "agg": '.agg(count(), sum("amount").alias("total")); an aggregate gets its name by .alias(...)',
    "watermark": '.watermark("event_time", "5 seconds")',
}


def checked_calls(cls: C) -> C:
    """Class decorator: a call of a public method with arguments that do not fit raises :class:`~krishiv_py.errors.CallError`.

    To be the outermost one: what comes before it may make the class a second time.
    """
    seen: set[str] = set()
    for base in cls.__mro__:
        for name, method in vars(base).items():
            if name.startswith("_") or name in seen or not base.__module__.startswith("krishiv_py."):
                continue
            seen.add(name)
            function = method.__func__ if isinstance(method, classmethod) else method
            if isinstance(function, FunctionType) and not hasattr(function, "__wrapped__"):
                checked = _checked(function)
                setattr(cls, name, classmethod(checked) if isinstance(method, classmethod) else checked)
    return cls


def _checked(method: FunctionType) -> Callable[..., Any]:
    problem_of = _problem

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except TypeError as problem:
            inside = problem.__traceback__ is not None and problem.__traceback__.tb_next is not None
            if inside:
                raise
            told = problem_of(method, args, kwargs, problem)
        raise told

    # with the globals of the method: doctest looks there for the module that an example belongs to
    made = FunctionType(call.__code__, method.__globals__, method.__name__, None, call.__closure__)
    return functools.update_wrapper(made, method)


def _problem(method: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any], problem: TypeError) -> CallError:
    """The error for arguments that Python could not bind."""
    name = method.__name__
    parameters = list(inspect.signature(method).parameters.values())[1:]
    given = ", ".join([*(shown(a) for a in args[1:]), *(f"{k}={shown(v)}" for k, v in kwargs.items())])
    takes = ", ".join(_parameter(p) for p in parameters)
    what = str(problem).replace(f"{method.__qualname__}() ", "").replace(" positional", "").replace(" keyword-only", "")
    hint = f"write {_EXAMPLES[name]}" if name in _EXAMPLES else f"it takes ({takes})"
    return CallError(message(f".{name}() {what}", given or "no arguments", "nothing was done", hint))


def _parameter(parameter: inspect.Parameter) -> str:
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        return ("*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else "**") + parameter.name
    keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
    if parameter.default is inspect.Parameter.empty:
        return f"{parameter.name}=..." if keyword else parameter.name
    return f"{parameter.name}={parameter.default!r}"
