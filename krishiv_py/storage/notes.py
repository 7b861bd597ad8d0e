"""Read the small notes of a checkpoint, savepoint, capture or output: JSON with a checksum, of a shape that is declared.

A note that is damaged, of another shape or not to be read is an error that names its file, raised where it is read. So whoever
uses a note finds in it what its shape says, and looks at nothing.
"""

from __future__ import annotations

import contextlib
import functools
import json
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import attrs
import pyarrow as pa
from typing_extensions import NotRequired, get_type_hints, is_typeddict

from krishiv_py.errors import CheckpointError, KrishivError, failure_text
from krishiv_py.storage.checksums import damaged, unsealed

T = TypeVar("T")
_MOST: Final = 1 << 63
_OTHER: Final = (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError, OverflowError)
"""The errors that code raises over values of another kind than those that were written, and over text that cannot be read."""


@contextlib.contextmanager
def no_folder(where: str, way_out: str) -> Iterator[None]:
    """Let a folder in place of a file be an error of ours that names it; other errors of the file system pass.

    Raises
    ------
    CheckpointError
        When it is a folder.
    """
    try:
        yield
    except OSError as problem:
        if isinstance(problem, IsADirectoryError) or "is a directory" in str(problem):
            raise damaged(where, "a folder", way_out) from problem
        raise


@contextlib.contextmanager
def reading(where: str, way_out: str) -> Iterator[None]:
    """Let a note or file that is not what the library writes, or cannot be read, be an error of ours that names it.

    Raises
    ------
    CheckpointError
        When a field is missing or of another type, or it is a folder, or it cannot be read.
    """
    try:
        with no_folder(where, way_out):
            yield
    except KrishivError:
        raise
    except _OTHER as problem:
        raise damaged(where, failure_text(problem), way_out) from problem
    except (OSError, pa.ArrowException) as problem:
        right = ", and let this user read it" if isinstance(problem, PermissionError) else ""
        hint = f"see that it can be read{right}; if it is lost, {way_out}"
        raise CheckpointError(f"{where} cannot be read", got=failure_text(problem), hint=hint) from problem


def note_in(data: bytes, shape: type[T], where: str, way_out: str) -> T:
    """Return what the bytes of a note say.

    Raises
    ------
    CheckpointError
        When they are damaged, or of another shape; names the file, `where`, and the `way_out`.
    """
    with reading(where, way_out):
        return in_shape(json.loads(unsealed(data, where, way_out)), shape)


def in_shape(value: Any, shape: type[T]) -> T:
    """Return a value of JSON, which must have a shape: a type, a ``TypedDict``, or lists and dicts of them.

    Raises
    ------
    TypeError
        When it has another one, or a number is none of 64 bits.
    """
    wrong = _misfit(value, shape)
    if wrong is not None:
        raise TypeError(wrong)
    return typing.cast("T", value)


def of_types(kind: type[T], values: Mapping[str, Any], **more: Any) -> T:
    """Return an object of the values in a note.

    Raises
    ------
    TypeError
        When a field is missing, or of another type.
    """
    if not isinstance(values, dict):
        raise TypeError(f"{type(values).__name__} and no object")
    attrs.resolve_types(kind)  # type: ignore[type-var]  # every kind that is noted is one of attrs
    for field in attrs.fields(kind):  # type: ignore[arg-type]  # as above
        wrong = _misfit(values[field.name], field.type) if field.name in values else None
        if wrong is not None:
            raise TypeError(f"{field.name}: {wrong}")
    return kind(**values, **more)


def _misfit(value: object, shape: Any) -> str | None:
    """Return how a value differs from a shape; None where it does not."""
    if shape is Any or shape is object:
        return None
    outer, inner = typing.get_origin(shape), typing.get_args(shape)
    if outer in (typing.Union, types.UnionType):
        return None if any(_misfit(value, one) is None for one in inner) else _is(value)
    if is_typeddict(shape):
        return _misfit_of_fields(value, shape)
    if outer is list and isinstance(value, list):
        return next((f"[{n}]: {wrong}" for n, one in enumerate(value) if (wrong := _misfit(one, inner[0]))), None)
    if outer is dict and isinstance(value, dict):
        return next((f"{name}: {wrong}" for name, one in value.items() if (wrong := _misfit(one, inner[1]))), None)
    fits = outer is None and isinstance(value, shape) and not (shape is int and isinstance(value, bool))
    return None if fits and not _is_too_large(value) else _is(value)


def _misfit_of_fields(value: object, shape: Any) -> str | None:
    if not isinstance(value, dict):
        return _is(value)
    for name, one in _fields(shape).items():
        optional = typing.get_origin(one) is NotRequired or name in shape.__optional_keys__
        if name not in value and not optional:
            return f"no {name}"
        bare = typing.get_args(one)[0] if typing.get_origin(one) is NotRequired else one
        wrong = _misfit(value[name], bare) if name in value else None
        if wrong is not None:
            return f"{name}: {wrong}"
    return None


@functools.cache
def _fields(shape: Any) -> dict[str, Any]:
    return get_type_hints(shape, include_extras=True)


def _is_too_large(value: object) -> bool:
    return isinstance(value, int) and not -_MOST <= value < _MOST


def _is(value: object) -> str:
    return "a number of more than 64 bits" if _is_too_large(value) else type(value).__name__
