"""Schemas of Avro: those of a registry with what they refer to, and how that of a writer resolves to that of a reader."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.connectors.kafka.client import Connection
from krishiv_py.connectors.kafka.formats.decoding import NO_VALUE
from krishiv_py.connectors.kafka.formats.registry import referenced, registered
from krishiv_py.errors import RAISED, PlanError, failure_text, require_extra, shown

Schema: TypeAlias = Any
"""A type of Avro as JSON has it: the name of one, a list (a union), or a dict."""
READ: Final[dict[tuple[str, str], pa.DataType]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    **{
        ("long", f"{local}timestamp-{name}"): pa.timestamp(unit, zone)
        for local, zone in (("", "UTC"), ("local-", None))
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}
"""The times that numbers mean. A logical type that is not here, or on another type, has no effect, as Avro's rules say."""
_NAMED: Final = ("record", "error", "enum", "fixed")
_SINGLE: Final = "value"
"""The field of a value that is not a record: a record of one field is written as the field alone."""


@attrs.frozen(eq=False)
class SchemaRecords:
    """Records of one schema.

    Attributes
    ----------
    record : dict
        What the columns are found in: the schema of the reader, or else of the writer.
    raw : dict
        The schema of the writer without logical times: whole columns of numbers become times at once.
    reader : dict or None
        The same of the reader, where there is one.
    single : bool
        Whether the value is not a record, and its only field the value itself.
    """

    record: Schema
    raw: Schema
    reader: Schema | None
    single: bool = False


@attrs.frozen(eq=False)
class AvroValues:
    """Values of one schema. Of a union, a value begins with the number of its branch.

    Attributes
    ----------
    union : bool
        Whether it is a union of records.
    branches : tuple of Branch or str
        How values are read, or why they are not rows.
    """

    union: bool
    branches: tuple[SchemaRecords | str, ...]


def avro_modules() -> None:
    """Raise :class:`MissingExtraError` unless Avro can be read."""
    require_extra("Avro", ("fastavro",), "kafka", "Avro values cannot be decoded")


def parsed(text: str, name: str = "avro_schema", *, record: bool = True) -> Schema:
    """Return a schema that a user gave as the parameter `name`.

    Raises
    ------
    PlanError
        When it is none, or no record where it must be one.
    """
    import fastavro

    try:
        schema = fastavro.parse_schema(json.loads(text))
    except RAISED as problem:
        hint = "pass the JSON text of a record schema"
        raise PlanError(f"`{name}` is not an Avro schema", got=shown(text), then=failure_text(problem), hint=hint) from None
    if record and not is_record(schema):
        hint = "pass the schema of a record"
        raise PlanError(f"`{name}` is not a record", got=shown(text), hint=hint)
    return schema


def unresolved(text: str) -> None:
    """Check the text of a record schema whose types are not all in it; the parameter is ``avro_schema``.

    Raises
    ------
    PlanError
        When it is not JSON of a record.
    """
    try:
        schema = json.loads(text)
    except ValueError as problem:
        hint = "pass the JSON text of a record schema"
        raise PlanError("`avro_schema` is not an Avro schema", got=shown(text), then=failure_text(problem), hint=hint) from None
    if not is_record(schema):
        hint = "pass the schema of a record"
        raise PlanError("`avro_schema` is not a record", got=shown(text), hint=hint)


def is_record(type_: Schema) -> bool:
    """Return whether a parsed type is a record."""
    return isinstance(type_, dict) and type_.get("type") == "record"


def inner(type_: Schema) -> tuple[Schema, bool]:
    """Return a type without the null next to it, and whether that was all it needed."""
    if isinstance(type_, list):
        rest = [t for t in type_ if t != "null"]
        return (rest[0], True) if len(rest) == 1 else (None, False)
    return type_, True


def whole(text: str, referred: Sequence[str] = ()) -> Schema:
    """Return a parsed schema that holds all that it refers to: each type is written out where its name comes first.

    Raises
    ------
    ValueError
        When one of the texts is not an Avro schema.
    """
    import fastavro

    named: dict[str, Any] = {}
    try:
        for other in referred:
            fastavro.parse_schema(json.loads(other), named)
        schema = fastavro.parse_schema(json.loads(text), named)
        return fastavro.parse_schema(_written_out(schema, named, set())) if referred else schema
    except RAISED as problem:
        raise ValueError(f"it is not an Avro schema that can be read: {type(problem).__name__}") from None


def resolved(text: str, referred: Sequence[str]) -> str:
    """Return the JSON text of a schema that holds all that it refers to.

    Raises
    ------
    ValueError
        When one of the texts is not an Avro schema, or a type is in none of them.
    """
    return json.dumps({name: value for name, value in whole(text, referred).items() if not name.startswith("__")})


def _written_out(type_: Schema, named: Mapping[str, Any], seen: set[str]) -> Schema:
    if isinstance(type_, list):
        return [_written_out(t, named, seen) for t in type_]
    if isinstance(type_, str):
        return _written_out(named[type_], named, seen) if type_ in named and type_ not in seen else type_
    kept = {k: v for k, v in type_.items() if not k.startswith("__")}
    if kept.get("type") in _NAMED:
        if kept["name"] in seen:
            return kept["name"]
        seen.add(kept["name"])
    elif not isinstance(kept.get("type"), str) or kept["type"] in named:
        kept["type"] = _written_out(kept["type"], named, seen)
    for part in kept.keys() & {"items", "values"}:
        kept[part] = _written_out(kept[part], named, seen)
    if "fields" in kept:
        kept["fields"] = [{**f, "type": _written_out(f["type"], named, seen)} for f in kept["fields"]]
    return kept


def names_of(schema: Schema) -> dict[str, Schema]:
    """Return the named types of a parsed schema."""
    import fastavro

    named: dict[str, Any] = {}
    fastavro.parse_schema(schema, named)
    return named


def _kind(type_: Schema, named: Mapping[str, Schema]) -> Mapping[str, Any]:
    """Return a type that is not a union, as a dict with what it is in ``type``."""
    while True:
        if isinstance(type_, str):
            if type_ not in named:
                return {"type": type_}
            type_ = named[type_]
        elif isinstance(type_.get("type"), str) and type_["type"] not in named:
            return dict(type_)
        else:
            type_ = type_["type"]


def without_times(type_: Schema) -> Schema:
    """Return a schema whose times and UUIDs are read as they are written. Decimals stay, and unions of several types."""
    if isinstance(type_, list):
        return type_ if inner(type_)[0] is None else [without_times(t) for t in type_]
    if not isinstance(type_, dict):
        return type_
    kept = {k: v for k, v in type_.items() if not k.startswith("__") and (k != "logicalType" or v == "decimal")}
    for part in kept.keys() & {"type", "items", "values"}:
        kept[part] = without_times(kept[part])
    if "fields" in kept:
        kept["fields"] = [{**f, "type": without_times(f["type"])} for f in kept["fields"]]
    return kept


def _raw(record: Schema, *, defaults: bool = False) -> Schema:
    import fastavro

    schema = fastavro.parse_schema(without_times(record))
    if defaults:
        _fill(schema, names_of(schema), set())
    return schema


def _fill(type_: Schema, named: Mapping[str, Schema], seen: set[int]) -> None:
    """Put values in place of the JSON of defaults, as the reader gives them to the fields that a writer does not have."""
    if isinstance(type_, list):
        for one in type_:
            _fill(one, named, seen)
    elif isinstance(type_, dict) and id(type_) not in seen:
        seen.add(id(type_))
        for part in ("type", "items", "values"):
            _fill(type_.get(part), named, seen)
        for field in type_.get("fields", ()):
            _fill(field["type"], named, seen)
        for field in type_.get("fields", ()):
            if "default" in field:
                field["default"] = _value(field["default"], field["type"], named)


def _value(default: Any, type_: Schema, named: Mapping[str, Schema]) -> Any:
    """Return the value that the JSON of a default means; one that is a value already stays."""
    if isinstance(type_, list):
        if default is None:
            return None
        type_ = next((t for t in type_ if t != "null"), "null")
    kind = _kind(type_, named)
    name = kind["type"]
    if name in ("bytes", "fixed") and isinstance(default, str):
        raw = default.encode("iso-8859-1")
        if kind.get("logicalType") == "decimal":
            return Decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-kind.get("scale", 0))
        return raw
    if name in ("float", "double"):
        return float(default)
    if name == "array":
        return [_value(one, kind["items"], named) for one in default]
    if name == "map":
        return {key: _value(one, kind["values"], named) for key, one in default.items()}
    if name in ("record", "error"):
        lacking = [f["name"] for f in kind["fields"] if f["name"] not in default and "default" not in f]
        if lacking:
            raise ValueError(f"the default of a {kind['name']} has no {lacking[0]}")
        return {f["name"]: _value(default.get(f["name"], f.get("default")), f["type"], named) for f in kind["fields"]}
    return default


def _check_units(writer: Schema, reader: Schema) -> None:
    """Refuse fields whose numbers the two schemas read in different units: Avro's rules take the number as it is.

    Raises
    ------
    ValueError
        Naming the field, and both logical types.
    """
    of_writer, of_reader = names_of(writer), names_of(reader)
    seen: set[tuple[str, str]] = set()

    def check(w: Schema, r: Schema, where: str) -> None:
        if isinstance(w, list) or isinstance(r, list):
            for one in w if isinstance(w, list) else [w]:
                for other in r if isinstance(r, list) else [r]:
                    check(one, other, where)
            return
        wk, rk = _kind(w, of_writer), _kind(r, of_reader)
        units = [_unit(k) for k in (wk, rk)]
        if None not in units and units[0] != units[1]:
            raise ValueError(f"field {where!r} was written as {units[0]}, and avro_reader_schema reads {units[1]}")
        if wk["type"] in ("record", "error") and rk["type"] in ("record", "error"):
            pair = (wk["name"], rk["name"])
            if pair in seen:
                return
            seen.add(pair)
            known = {f["name"]: f for f in wk["fields"]}
            for field in rk["fields"]:
                for name in (field["name"], *field.get("aliases", ())):
                    if name in known:
                        check(known[name]["type"], field["type"], f"{where}.{field['name']}".lstrip("."))
                        break
        for part in ("items", "values"):
            if part in wk and part in rk:
                check(wk[part], rk[part], where)

    check(writer, reader, "")


def _unit(kind: Mapping[str, Any]) -> str | None:
    logical = kind.get("logicalType")
    if logical == "decimal" and kind["type"] in ("bytes", "fixed"):
        return f"a decimal of {kind.get('scale', 0)} places"
    return logical if (kind["type"], logical) in READ else None


def _branch(record: Schema, reader: Schema | None, single: bool) -> SchemaRecords:
    if reader is not None:
        _check_units(record, reader)
    return SchemaRecords(
        record if reader is None else reader, _raw(record), None if reader is None else _raw(reader, defaults=True), single
    )


def described(schema: Schema, reader: str | None, name: str, *, single: bool = False) -> AvroValues:
    """Return how values of a schema are read. What is not a record is one field, where one column alone is read (`single`).

    Raises
    ------
    ValueError
        When it cannot be resolved to the schema of the reader.
    """
    reads = None if reader is None else parsed(reader, "avro_reader_schema", record=False)
    named = names_of(schema)
    types = [named.get(t, t) if isinstance(t, str) else t for t in (schema if isinstance(schema, list) else [schema])]
    if isinstance(schema, list) and any(map(is_record, types)) and all(t == "null" or is_record(t) for t in types):
        return AvroValues(True, tuple(NO_VALUE if t == "null" else _whole_branch(t, named, reads) for t in types))
    if is_record(schema):
        return AvroValues(False, (_branch(schema, reads, False),))
    if not single:
        return AvroValues(False, (f"{name} is not a record",))
    return AvroValues(False, (_branch(_as_record(schema), None if reads is None else _as_record(reads), True),))


def _whole_branch(type_: Schema, named: Mapping[str, Schema], reader: Schema | None) -> SchemaRecords | str:
    import fastavro

    try:
        return _branch(fastavro.parse_schema(_written_out(type_, named, set())), reader, False)
    except ValueError as problem:
        return str(problem)


def _as_record(schema: Schema) -> Schema:
    import fastavro

    if is_record(schema):
        return schema
    field = {"name": _SINGLE, "type": _written_out(schema, {}, set())}
    return fastavro.parse_schema({"type": "record", "name": "krishiv_single", "fields": [field]})


@functools.lru_cache(maxsize=1_000)
def of_registry(registry: Connection, number: int, reader: str | None, single: bool = False) -> AvroValues:
    """Return how values are read that were written with this number of a registry.

    Raises
    ------
    SourceError
        When the registry does not answer.
    ValueError
        When it has no such schema, or another kind of schema, or one that cannot be resolved.
    """
    name = f"schema {number} of the registry"
    schema_read = registered(registry, number, "AVRO")
    try:
        schema = whole(schema_read.schema_str, referenced(registry, schema_read))
    except ValueError as problem:
        raise ValueError(f"{name}: {problem}") from None
    return described(schema, reader, name, single=single)


@functools.lru_cache(maxsize=64)
def of_text(text: str, reader: str | None, single: bool = False) -> AvroValues:
    """Return how values are read whose schema a user gave.

    Raises
    ------
    PlanError
        When it is not a schema.
    ValueError
        When it cannot be resolved to that of the reader.
    """
    return described(parsed(text, record=False), reader, "the schema", single=single)
