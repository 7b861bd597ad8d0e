"""Classes whose fields are the columns of rows: dataclasses, attrs classes, TypedDicts, NamedTuples and pydantic models."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import decimal
import inspect
import itertools
import operator
import typing
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import RAISED, PlanError, SchemaError, failure_text, shown
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


Build: TypeAlias = "Callable[[Any], Any]"


def reader_of(type_: Any) -> Build | None:
    """Return what makes a value of a type of a field from what Arrow gives of it; None where that is the value itself."""
    origin, given = typing.get_origin(type_), typing.get_args(type_)
    if origin is typing.Annotated:
        return reader_of(given[0])
    parts = [part for part in given if part is not type(None) and part is not Ellipsis]
    if origin in (list, tuple, set, frozenset, collections.abc.Sequence):
        inner, kind = reader_of(parts[0]), list if origin is collections.abc.Sequence else origin
        if inner is None and kind is list:
            return None
        return _nullable(lambda values: kind(values if inner is None else map(inner, values)))
    if origin in (dict, collections.abc.Mapping):
        value = reader_of(parts[1])
        return _nullable(lambda pairs: {k: v if value is None else value(v) for k, v in pairs})
    if len(parts) == 1 and origin is not None and origin is not typing.Literal:
        return reader_of(parts[0])
    if type_ in (list, dict, tuple, set) or hasattr(type_, "__supertype__"):
        return None
    fields = row_fields(type_)
    return None if fields is None else _nullable(_maker(type_, fields))


def _nullable(build: Build) -> Build:
    return lambda value: None if value is None else build(value)


def _maker(kind: type, fields: dict[str, Any]) -> Build:
    readers = {name: reader for name, type_ in fields.items() if (reader := reader_of(type_)) is not None}
    if typing.is_typeddict(kind):
        return lambda value: {n: readers[n](v) if n in readers else v for n, v in value.items()}
    check_constructor(kind)
    names = _arguments(kind, fields)
    return lambda value: kind(**{names[n]: readers[n](v) if n in readers else v for n, v in value.items()})


def _arguments(kind: type, fields: Iterable[str]) -> dict[str, str]:
    """Return what the constructor of a class calls its fields."""
    aliases = {a.name: a.alias for a in getattr(kind, "__attrs_attrs__", ())}
    return {name: aliases.get(name) or name for name in fields}


def check_constructor(kind: type) -> None:
    """Refuse a class of rows that cannot be made of its fields.

    Raises
    ------
    PlanError
        For a field that its constructor does not take, and for an argument without a default that is no field.
    """
    fields = names_of(kind) or ()
    if typing.is_typeddict(kind) or hasattr(kind, "model_construct"):
        return
    parameters = inspect.signature(kind).parameters
    arguments = _arguments(kind, fields)
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    apart = [name for name, argument in arguments.items() if argument not in parameters and not open_ended]
    more = [argument for argument in _required(kind) if argument not in arguments.values()]
    if apart or more:
        got = f"{kind.__name__}{inspect.signature(kind)}"
        what = f"does not take its field {apart[0]}" if apart else f"needs {more[0]}, which is no field"
        then = "objects of it could not be made of columns"
        hint = f"let the constructor of {kind.__name__} take its fields, and no more without a default"
        raise PlanError(f"the constructor of {kind.__name__} {what}", got=got, then=then, hint=hint)


@attrs.frozen(eq=False)
class RecordClass:
    """A class whose fields are columns: of rows, or of the value that is kept for each key.

    Attributes
    ----------
    kind : type
        The user's class.
    schema : pyarrow.Schema
        Its fields as columns.
    """

    kind: type
    schema: pa.Schema
    readers: dict[str, Build | None] = attrs.field(init=False)
    required: tuple[str, ...] = attrs.field(init=False)
    """Arguments without a default."""

    def __attrs_post_init__(self) -> None:
        check_constructor(self.kind)

    @readers.default
    def _readers(self) -> dict[str, Build | None]:
        return {name: reader_of(type_) for name, type_ in (row_fields(self.kind) or {}).items()}

    @required.default
    def _without_default(self) -> tuple[str, ...]:
        return () if typing.is_typeddict(self.kind) else tuple(_required(self.kind))

    @property
    def of_dicts(self) -> bool:
        """Return whether its values are dicts."""
        return typing.is_typeddict(self.kind)

    @property
    def nullable(self) -> frozenset[str]:
        """Return the fields that may be None."""
        return frozenset(n for n, type_ in (row_fields(self.kind) or {}).items() if type(None) in typing.get_args(type_))

    def new(self) -> Any:
        """Return the state of a key that has none."""
        if typing.is_typeddict(self.kind):
            return dict.fromkeys(self.schema.names)
        return self.kind(**dict.fromkeys(self.required)) if self.required else self.kind()

    def read(self, columns: Mapping[str, list[Any]]) -> list[Any]:
        """Return a value for each row of columns, as Python lists."""
        built = {}
        for name, values in columns.items():
            reader = self.readers[name]
            built[name] = values if reader is None else list(map(reader, values))
        make = self.made
        return (
            [make(dict(zip(built, row, strict=True))) for row in zip(*built.values(), strict=True)]
            if self._odd
            else list(itertools.starmap(self.kind, zip(*built.values(), strict=True)))
        )

    def made(self, values: dict[str, Any]) -> Any:
        """Return an object with these values of its fields."""
        if self.of_dicts:
            return values
        construct = getattr(self.kind, "model_construct", None)
        if construct is not None:
            return construct(**values)  # its aliases and validators are for what comes from outside
        arguments = _arguments(self.kind, values)
        return self.kind(**{arguments[name]: value for name, value in values.items()})

    @property
    def _odd(self) -> bool:
        """Return whether its constructor takes something else than its fields by position."""
        names = self.schema.names
        plain = not self.of_dicts and not hasattr(self.kind, "model_construct")
        return not plain or list(_arguments(self.kind, names).values()) != _positional(self.kind)

    def contents(self, value: Any) -> tuple[Any, ...]:
        """Return the values of the fields as they are now, whatever is done to the object later."""
        pairs = [(value.get(f.name) if self.of_dicts else getattr(value, f.name), f.type) for f in self.schema]
        return tuple(stored_value(each, type_) for each, type_ in pairs)

    def written(self, values: Sequence[Any]) -> dict[str, list[Any]]:
        """Return the columns of some values, as Python lists."""
        of_dicts = typing.is_typeddict(self.kind)
        columns = {}
        for name in self.schema.names:
            column = [v.get(name) for v in values] if of_dicts else list(map(operator.attrgetter(name), values))
            type_ = self.schema.field(name).type
            columns[name] = [stored_value(value, type_) for value in column] if pa.types.is_nested(type_) else column
        return columns


def stored_value(value: Any, type_: pa.DataType) -> Any:
    """Return a value as Arrow takes it for a type: objects of classes as dicts, maps as pairs."""
    if value is None or not pa.types.is_nested(type_):
        return value
    if pa.types.is_map(type_):
        pairs = value.items() if isinstance(value, collections.abc.Mapping) else value
        return [(key, stored_value(item, type_.item_type)) for key, item in pairs]
    if pa.types.is_struct(type_):
        fields = value if isinstance(value, dict) else {f.name: getattr(value, f.name) for f in type_}
        return {f.name: stored_value(fields.get(f.name), f.type) for f in type_}
    return [stored_value(each, type_.value_type) for each in value]


def _required(kind: type) -> list[str]:
    """Return the arguments without a default of a constructor: fields that are nullable."""
    parameters = inspect.signature(kind).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def _positional(kind: type) -> list[str]:
    parameters = inspect.signature(kind).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def check_row_class(kind: type) -> None:
    """Refuse a class of rows that cannot be made of its fields, or of which a field cannot."""
    if names_of(kind) is not None:
        check_constructor(kind)
        for type_ in (row_fields(kind) or {}).values():
            reader_of(type_)


def state_class(kind: object, schema_of: Callable[[Any], pa.Schema]) -> RecordClass:
    """Return the class of the state of a key, checked.

    Raises
    ------
    PlanError
        For what is no class with fields, for a field that has neither a default nor can be null, and for a class of which
        no object can be made.
    """
    fields = row_fields(kind)
    if fields is None or not isinstance(kind, type):
        hint = "write a dataclass or an attrs class with a default for each field, and give the class: state=Seen"
        raise PlanError("`state` is not a class with fields", got=shown(kind), hint=hint)
    filled = _required(kind) if not typing.is_typeddict(kind) else [n for n in fields if n in kind.__required_keys__]  # type: ignore[attr-defined]
    names = {argument: name for name, argument in _arguments(kind, fields).items()}
    for argument in filled:
        name = names.get(argument, argument)
        if type(None) not in typing.get_args(fields.get(name, Any)):
            got, then = f"{kind.__name__}.{name}", "a key without rows has no value for it"
            raise PlanError(
                "a field of state needs a default, or is nullable", got=got, then=then, hint=f"write `{name}: ... = 0`"
            )
    record = RecordClass(kind, schema_of(kind))
    try:
        record.new()
    except RAISED as problem:
        hint = f"let {kind.__name__}() be made of its defaults"
        raise PlanError("no state of a new key can be made", got=failure_text(problem), hint=hint) from problem
    return record
