"""Classes whose fields are the columns of rows: dataclasses, attrs classes, TypedDicts, NamedTuples and pydantic models."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import decimal
import typing
import weakref
from typing import Any, Final

import pyarrow as pa

from krishiv_py.errors import SchemaError, failure_text
from krishiv_py.plan.names import quoted
from krishiv_py.types import nearest_type, type_text

_TYPES: Final = {
    bool: "boolean",
    int: "bigint",
    float: "double",
    str: "string",
    bytes: "binary",
    dt.datetime: "timestamp",
    dt.date: "date",
    dt.timedelta: "interval day to second",
    decimal.Decimal: "decimal(38, 18)",
}
_NAMES: Final[weakref.WeakKeyDictionary[type, tuple[str, ...] | None]] = weakref.WeakKeyDictionary()
_KNOWN: Final = "int, float, str, bool, bytes, datetime, date, timedelta, Decimal, lists and dicts of these"


def names_of(kind: type) -> tuple[str, ...] | None:
    """Return the names of the fields of a class of rows; None for any other class."""
    if kind not in _NAMES:
        _NAMES[kind] = _names_of(kind)
    return _NAMES[kind]


def _names_of(kind: type) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if hasattr(kind, "__attrs_attrs__"):
        return tuple(field.name for field in kind.__attrs_attrs__)
    model = getattr(kind, "__pydantic_fields__", None)
    if isinstance(model, dict):
        return tuple(model)
    if typing.is_typeddict(kind):
        return tuple(typing.get_type_hints(kind))
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return tuple(kind._fields)
    return None


def row_fields(kind: object) -> dict[str, Any] | None:
    """Return the fields of a class of rows with their types; None for anything else.

    Raises
    ------
    SchemaError
        For types that cannot be looked up, and for a class without fields.
    """
    names = names_of(kind) if isinstance(kind, type) else None
    if names is None or not isinstance(kind, type):
        return None
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception as problem:  # names in a user's annotations can be anything
        got = failure_text(problem)
        hint = "import them in the module of the class"
        raise SchemaError(f"the types of {kind.__name__} cannot be looked up", got=got, hint=hint) from problem
    if not names:
        raise SchemaError(f"the class {kind.__name__} has no fields", got="0 columns", hint="give it a field with a type")
    return {name: hints.get(name, Any) for name in names}


def schema_text(fields: dict[str, Any]) -> str:
    """Return fields with types of Python as a schema text.

    Raises
    ------
    SchemaError
        For a type that no column can have; it names the field.
    """
    parts = []
    for name, type_ in fields.items():
        try:
            parts.append(f"{quoted(name)} {_text_of(type_)}")
        except (TypeError, IndexError) as problem:
            got = getattr(type_, "__name__", None) or str(type_)
            hint = f"use {_KNOWN}; Annotated[int, pyarrow.int32()] names any type of Arrow"
            raise SchemaError(f"field {name!r}: its type is not a type of a column", got=got, hint=hint) from problem
    return ", ".join(parts)


def guessed_text(schema: object) -> str | None:
    """Return the schema text that a dict of types, or another class with annotations, may have meant."""
    try:
        fields = schema if isinstance(schema, dict) else typing.get_type_hints(schema) if isinstance(schema, type) else {}
        texts = [f"{name} {_text_of(type_)}" for name, type_ in fields.items() if not str(name).startswith("_")]
    except Exception:  # noqa: BLE001  # annotations of a user's class can be anything
        return None
    return ", ".join(texts) or None


def _text_of(type_: Any) -> str:
    if isinstance(type_, pa.DataType):
        return type_text(type_)
    if isinstance(type_, str):
        return nearest_type(type_) or type_
    origin, given = typing.get_origin(type_), typing.get_args(type_)
    if origin is typing.Annotated:
        named = [extra for extra in given[1:] if isinstance(extra, pa.DataType)]
        return _text_of(named[0] if named else given[0])
    if origin is typing.Literal:
        (kind,) = {type(value) for value in given}
        return _text_of(kind)
    parts = [part for part in given if part is not type(None) and part is not Ellipsis]
    if origin in (list, tuple, set, frozenset, collections.abc.Sequence):
        if len(parts) != 1:
            raise TypeError
        return f"array<{_text_of(parts[0])}>"
    if origin in (dict, collections.abc.Mapping):
        return f"map<{_text_of(parts[0])}, {_text_of(parts[1])}>"
    if len(parts) == 1 and origin is not None:  # Optional, Required, NotRequired, Final
        return _text_of(parts[0])
    if hasattr(type_, "__supertype__"):  # NewType
        return _text_of(type_.__supertype__)
    if type_ in _TYPES:
        return _TYPES[type_]
    fields = row_fields(type_)
    if fields is None and isinstance(type_, type):
        fields = typing.get_type_hints(type_)
    if not fields:
        raise TypeError
    return f"struct<{', '.join(f'{quoted(name)}: {_text_of(inner)}' for name, inner in fields.items())}>"


def as_values(row: Any) -> Any:
    """Return an object of a class of rows as a dict; anything else as it is, with what is in it."""
    names = names_of(type(row))
    if names is not None:
        return {name: as_values(getattr(row, name)) for name in names}
    if isinstance(row, list):
        return [as_values(value) for value in row]
    if isinstance(row, dict):
        return {name: as_values(value) for name, value in row.items()}
    return row
