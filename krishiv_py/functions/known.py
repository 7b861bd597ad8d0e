"""All functions of expressions by name, and errors for arguments that they do not take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from krishiv_py.errors import ExpressionError, shown
from krishiv_py.functions import conditions, elements, hashes, json_text, lists, numbers, text, times
from krishiv_py.functions.computing.dates import check_read, pieces_of
from krishiv_py.functions.definition import DEFINED, Definition, not_constant
from krishiv_py.functions.json_text import json_path
from krishiv_py.types import zone_of

FAMILIES: Final = (text, numbers, times, lists, elements, conditions, hashes, json_text)
"""The files of definitions; a new one joins here."""
FUNCTIONS: Final[Mapping[str, Definition]] = DEFINED


UNITS: Final = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond")
"""Of ``date_trunc``; and, with ``dayofyear``, of ``timestampadd``."""
_INT: Final = 2**31


def definition_of(name: object) -> Definition:
    """Return the definition of the function called `name`.

    Raises
    ------
    ExpressionError
        If there is none.
    """
    definition = FUNCTIONS.get(name) if isinstance(name, str) else None
    if definition is None:
        known = ", ".join(sorted(FUNCTIONS))
        raise ExpressionError("unknown function", got=shown(name), hint=f"the functions are: {known}; or use map_batches")
    return definition


def check_arguments(known: Definition, args: Sequence[Any], read_schema: Callable[[str], object]) -> None:
    """Refuse arguments that a function does not take.

    Parameters
    ----------
    known : Definition
        The function.
    args : sequence
        Its arguments: constants as plain Python, expressions for the others.
    read_schema : callable
        Reads a DDL schema, and refuses what is none.

    Raises
    ------
    ExpressionError
        For another number of arguments, for columns where a constant belongs, and for constants that no row could be computed
        with.
    """
    fewest, most = known.limits
    if not fewest <= len(args) <= most or (known.by_turns and len(args) % 2):
        takes = f"{known.by_turns} by turns" if known.by_turns else f"{fewest} arguments"
        takes = takes if known.by_turns or fewest == most else f"{fewest} to {most} arguments"
        hint = f"write {known.name}({', '.join('abc'[:fewest])})"
        raise ExpressionError(f"{known.name} takes {takes}", got=f"{len(args)} arguments", hint=hint)
    for i, arg in enumerate(args):
        _check_elements(known, i, arg)
    for i, param in enumerate(known.params[: len(args)]):
        if param.constant is not None:
            _check_constant(known, i, args[i], read_schema)
    if known.check is not None:
        known.check(known.name, tuple(args))


def _check_elements(known: Definition, index: int, arg: Any) -> None:
    """Refuse a function of elements where none belongs, and anything else where one does."""
    has = arg.params if hasattr(type(arg), "params") else None  # a column answers a name that it lacks
    takes = known.param(index).parameters
    if takes is None and has is None:
        return
    if takes is None or has is None or not takes[0] <= len(has) <= takes[1]:
        wanted = "a value" if takes is None else f"a function of {' or '.join(map(str, range(takes[0], takes[1] + 1)))}"
        hint = "write transform(xs, x -> x + 1), in Python .transform(lambda x: x + 1)"
        raise ExpressionError(f"argument {index + 1} of {known.name} is {wanted}", got=shown(arg), hint=hint)


def _check_constant(known: Definition, index: int, arg: Any, read_schema: Callable[[str], object]) -> None:
    param = known.params[index]
    wanted = param.constant
    assert wanted is not None
    if not (isinstance(arg, str) if wanted.type is str else type(arg) is wanted.type):
        said = "the digits of round" if param.kind == "Digits" else f"argument {index + 1} of {known.name}"
        raise not_constant(said, wanted.said, arg)
    if param.kind == "Whole" and not -_INT <= arg < _INT:
        raise ExpressionError(f"{known.name} takes places of 32 bits", got=shown(arg), hint="pass a smaller one")
    if param.kind == "Schema":
        read_schema(str(arg))
    elif param.kind in _CHECKS:
        _CHECKS[param.kind](known.name, str(arg))


def _check_unit(name: str, unit: str) -> None:
    if unit.lower() not in UNITS:
        raise ExpressionError(f"unknown unit of {name}", got=shown(unit), hint=f"use one of: {', '.join(UNITS)}")


def _check_added(name: str, unit: str) -> None:
    if unit.lower() not in (*UNITS, "dayofyear"):
        raise ExpressionError(f"unknown unit of {name}", got=shown(unit), hint=f"use one of: {', '.join(UNITS)}")


def _check_zone(_name: str, zone: str) -> None:
    if zone_of(zone) is None:
        hint = 'pass a name such as "Europe/Berlin", or an offset such as "+05:30"'
        raise ExpressionError("there is no such time zone", got=shown(zone), hint=hint)


_CHECKS: Final[Mapping[str, Callable[[str, str], object]]] = {
    "AddUnit": _check_added,
    "Path": lambda _, path: json_path(path),
    "Read": lambda _, pattern: check_read(pattern),
    "Unit": _check_unit,
    "Written": lambda _, pattern: pieces_of(pattern),
    "Zone": _check_zone,
}
"""Checks of a constant, by the kind of its parameter."""
