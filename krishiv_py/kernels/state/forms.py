"""Checks of what the state of a bucket says of its own tables: the fields of sections, and the forms of runs, logs and sums.

Sections declare their fields. The lists of chunks that :class:`~krishiv_py.kernels.state.store.Runs` and the logs keep are
named by kind: ``runs:s`` are the runs of the log ``s``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from krishiv_py.kernels.state.store import Section

_MOST: Final = 1 << 63


def check_forms(known: Mapping[str, Any]) -> None:
    """See that each name has a value of its form; large maps may be in pages.

    Raises
    ------
    TypeError
        For the first that has another form, and for a time at which rows are due that are not there.
    """
    declared = _declared()
    for name, value in known.items():
        kind, _, of = name.partition(":")
        fits = (_OF_KINDS if of else declared).get(kind)  # other names are of engines, which read them themselves
        if fits is not None and not fits(value):
            raise TypeError(f"{name} is {str(value)[:40]}")
        runs = known.get(f"runs:{of}", {}) if kind == "due" and of else None
        if runs is not None and "" not in runs and not value.keys() <= runs.keys():
            raise TypeError(f"{name} names runs that are not there")


def _declared() -> dict[str, Callable[[Any], bool]]:
    """Return the forms of the fields of sections, and of what has a name without one."""
    sections: list[type[Section]] = [Section]
    for section in sections:
        sections += section.__subclasses__()
    fields = [field for section in sections for field in attrs.fields(section)]
    return {field.name: _OF_TYPES[str(field.type)] for field in fields} | {"changed": _counts, "newest_us": _integer}


def _integer(value: Any) -> bool:
    return type(value) is int and -_MOST <= value < _MOST


def _number(value: Any) -> bool:
    return value is None or _integer(value)


def _integers(value: Any, *lengths: int) -> bool:
    return type(value) is list and all(map(_integer, value)) and (not lengths or len(value) in lengths)


def _by_number(of: Callable[[Any], bool]) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        if type(value) is dict and "" in value:  # in pages
            return len(value) == 1 and type(value[""]) is list and len(value[""]) == 4
        return type(value) is dict and all(name.lstrip("-").isdigit() and of(one) for name, one in value.items())

    return fits


def _counts(value: Any) -> bool:
    return _by_number(_integer)(value) or (type(value) is list and all(str(one).lstrip("-").isdigit() for one in value))


def _chunks(value: Any) -> bool:
    return type(value) is list and all(_integers(chunk, 2, 3) for chunk in value)


def _log(value: Any) -> bool:
    """Return whether entries are of one of the logs: numbers, a chunk with first hashes, or numbers with lists of them."""

    def entry(one: Any) -> bool:
        if type(one) is not list or len(one) < 2:
            return False
        if type(one[0]) is list:
            return _integers(one[0], 2, 3) and _integers(one[1]) and all(_number(part) or _integers(part) for part in one[2:])
        if type(one[-1]) is list:
            firsts, times = one[-2:]
            return len(one) == 7 and _integers(one[:-2]) and _integers(firsts) and _integers(times, len(firsts))
        return len(one) >= 5 and _integers(one[:-1]) and _number(one[-1])

    def kind(one: list[Any]) -> tuple[bool, bool]:
        return type(one[0]) is list, type(one[0]) is list or type(one[-1]) is list

    return type(value) is list and all(map(entry, value)) and len(set(map(kind, value))) < 2


_OF_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "int": _integer,
    "int | None": _number,
    "list[int] | None": lambda value: value is None or _integers(value),
    "dict[str, int]": _by_number(_integer),
}
_OF_KINDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "runs": _by_number(_chunks),
    "due": _by_number(_integer),
    "sums": lambda value: type(value) is list and len(value) == 2 and _integer(value[0]) and _number(value[1]),
    "log": _log,
    "next": _integer,
    "log_next": _integer,
}
