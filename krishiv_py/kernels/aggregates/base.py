"""Rows by group, as aggregates get them, and small helpers.

Errors of a user-defined aggregate, with the group in which they happened.

An aggregate knows groups by number only. Who calls it knows more: how groups are numbered elsewhere, the key of a group, its
window. Each adds what it knows while the error passes; nothing is kept, or computed, as long as nothing fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, Mask, NumPy, as_arrow
from krishiv_py.errors import OperatorError, shown
from krishiv_py.redaction import shown_setting


@attrs.frozen(eq=False)
class Rows:
    """The input of one aggregate: values (None for ``count(*)``), event times, and the group of every row."""

    values: pa.Array | None
    times: Ints
    ids: Ints
    n: int


def valid_rows(values: pa.Array, ids: Ints) -> tuple[pa.Array, Ints, Mask | None]:
    """Values without nulls, with their groups, and the mask that chose them (None: all)."""
    if values.null_count == 0:
        return values, ids, None
    mask = values.is_valid().to_numpy(zero_copy_only=False)
    return values.drop_null(), ids[mask], mask


def numbers(values: pa.Array) -> NumPy:
    """Return a null-free numeric array as NumPy."""
    plain: NumPy = values.to_numpy(zero_copy_only=False)
    return plain


def with_nulls(values: NumPy, present: Mask, type_: pa.DataType) -> pa.Array:
    """Return an Arrow array of `type_`, null where not present."""
    if not present.all():
        return pa.array(values, type_, mask=~present)
    return as_arrow(values) if type_ == pa.int64() and values.dtype == np.int64 else pa.array(values, type_)


def present_groups(ids: Ints, n: int) -> Mask:
    """Return which groups have any row."""
    mask = np.zeros(n, np.bool_)
    mask[ids] = True
    return mask


def lists(values: pa.Array, ids: Ints, n: int) -> pa.Array:
    """Return a list column from values already ordered by group."""
    offsets = np.zeros(n + 1, np.int32)
    np.cumsum(np.bincount(ids, minlength=n), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def flatten(column: pa.Array, ids: Ints) -> tuple[pa.Array, Ints]:
    """Return the values of a list column and the group of each."""
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return column.flatten(), np.repeat(ids, lengths)


class GroupError(OperatorError):
    """A failure of an aggregate in the group of this number, which is not named yet."""

    def __init__(self, what: str, got: str = "", problem: str = "", hint: str = "", group: int | None = None) -> None:
        super().__init__(what, got=got, then=problem, hint=hint)
        self.parts = what, got, problem, hint
        self.group = group

    def restored(self, where: str) -> OperatorError:
        """Return the error for people; `where` may be empty."""
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


@attrs.frozen(eq=False)
class FailingPlace:
    """Lets the error for a group that fails in the body of a ``with`` say `where` that is.

    `known` says whether that can be known here; if not, the error goes on to who knows it.
    """

    where: Callable[[int], str]
    known: Callable[[], bool] = lambda: True

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        """Name the place."""
        if not isinstance(problem, GroupError) or not self.known():
            return
        try:
            place = "" if problem.group is None else self.where(problem.group)
        except LookupError:  # a group without a row that names it; the failure is raised all the same
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
    """Return the first row of a group, of rows with these groups."""
    return lambda group: int(np.flatnonzero(ids == group)[0])


def shown_key(names: Iterable[str], values: Iterable[object]) -> str:
    """Return a key for people: ``key user='a', n=1``; nothing for the one key of a stream without keys."""
    parts = [f"{name}={shown_setting(name, shown(value))}" for name, value in zip(names, values, strict=True)]
    return f"key {', '.join(parts)}" if parts else ""
