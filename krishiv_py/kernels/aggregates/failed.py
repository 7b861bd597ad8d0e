"""Define what a user-defined aggregate raised, told with the group it happened in.

An aggregate knows groups by number only. Who calls it knows more: how groups are numbered elsewhere, the key of a group, its
window. Each adds what it knows while the error passes; nothing is kept, or computed, as long as nothing fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints
from krishiv_py.errors import OperatorError, shown
from krishiv_py.redaction import shown_setting


class GroupError(OperatorError):
    """A failure of an aggregate in the group of this number, which is not told yet."""

    def __init__(self, what: str, got: str = "", problem: str = "", hint: str = "", group: int | None = None) -> None:
        super().__init__(what, got=got, then=problem, hint=hint)
        self.parts = what, got, problem, hint
        self.group = group

    def restored(self, where: str) -> OperatorError:
        """The error for people; `where` may be empty."""
        what, got, problem, hint = self.parts
        return OperatorError(f"{what} {where}" if where else what, got=got, then=problem, hint=hint)


@contextmanager
def regrouped(groups: Ints | Callable[[int], int]) -> Iterator[None]:
    """Let a group that fails in the body have the number that `groups` has for it."""
    try:
        yield
    except GroupError as problem:
        if problem.group is not None:
            try:
                problem.group = int(groups(problem.group) if callable(groups) else groups[problem.group])
            except LookupError:
                problem.group = None
        raise


@contextmanager
def failing_place(where: Callable[[int], str]) -> Iterator[None]:
    """Let the error for a group that fails in the body say `where` that is."""
    try:
        yield
    except GroupError as problem:
        try:
            place = "" if problem.group is None else where(problem.group)
        except LookupError:  # a group without a row that would say it; the failure has to be told all the same
            place = ""
        raise problem.restored(place) from problem.__cause__


def blame_too_long(aggregate: str, problem: pa.ArrowInvalid) -> None:
    """Say which aggregate it is that makes a value of more than Arrow can count the bytes of, if that is the problem.

    Raises
    ------
    OperatorError
        When it is.
    """
    if any(words in str(problem) for words in ("offset overflow", "overflowed binary array")):
        hint = "collect a part of it, such as an id, use shorter windows, or more keys"
        raise OperatorError(f"{aggregate!r} of one window is too long", got="more than 2 GiB", hint=hint) from problem


def first_of(ids: Ints) -> Callable[[int], int]:
    """The first row of a group, of rows with these groups."""
    return lambda group: int(np.flatnonzero(ids == group)[0])


def shown_key(names: Iterable[str], values: Iterable[object]) -> str:
    """A key for people: ``key user='a', n=1``; nothing for the one key of a stream without keys."""
    parts = [f"{name}={shown_setting(name, shown(value))}" for name, value in zip(names, values, strict=True)]
    return f"key {', '.join(parts)}" if parts else ""
