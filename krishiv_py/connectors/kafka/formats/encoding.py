"""Rows as values of records: how a sink writes them, with the schemas it registers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.connectors import json_texts
from krishiv_py.connectors.kafka.client import Connection
from krishiv_py.connectors.kafka.formats import avro, avro_schemas, protobuf
from krishiv_py.connectors.kafka.formats.registry import Reference, client, referenced, registry_at, schema_of, silent
from krishiv_py.errors import RAISED, OperatorError, PlanError, SourceError, shown
from krishiv_py.plan.checks import a_number, a_text, one_of
from krishiv_py.types import storable_hint, type_text

SinkFormat: TypeAlias = Literal["json", "avro", "protobuf", "arrow", "bytes"]
Encode: TypeAlias = Callable[[pa.Table], "list[bytes | None]"]
"""The value of each row."""
_DESCRIBED: Final = {
    "value": ("bytes",),
    "avro_schema": ("avro",),
    "avro_references": ("avro",),
    "protobuf_message": ("protobuf",),
    "schema_registry": ("avro", "protobuf"),
}
"""Options that describe values, and the formats they are for."""


@attrs.frozen
class Values:
    """Says how values are written.

    Attributes
    ----------
    format : str
        One of :data:`SinkFormat`.
    column : str or None
        Of bytes: the column that is the value.
    avro_schema : str or None
        The schema of Avro records; None for one that follows from the columns.
    messages : MessageType or None
        The type of protobuf's messages.
    registry : Connection or None
        Where schemas are registered; without it, values have no number of a schema in front.
    references : tuple of Reference
        Types that the schema of Avro records uses and the registry keeps.
    """

    format: SinkFormat
    column: str | None = None
    avro_schema: str | None = None
    messages: protobuf.MessageType | None = None
    registry: Connection | None = None
    references: tuple[Reference, ...] = ()

    def check(self, schema: pa.Schema, where: str) -> None:
        """Refuse columns that cannot be written, and a schema that does not fit them; `where` begins errors.

        Raises
        ------
        PlanError
            Each time.
        """
        if self.format == "avro":
            avro.record_schema(schema, self._whole(), where)
        elif self.messages is not None:
            protobuf.putters(self.messages, schema, where)
        elif self.format == "json":
            check_texts(schema, where)

    def encoder(self, topic: str, schema: pa.Schema) -> Encode:
        """Return what makes values of rows of this `schema`; it registers the schema of a topic's values.

        Raises
        ------
        OperatorError
            When the registry does not take it. The function raises it for a row that cannot be written.
        """
        if self.column is not None:
            return functools.partial(_bytes_of, self.column)
        if self.format == "json":
            return functools.partial(_json, schema.names)
        if self.format == "avro":
            record = avro.record_schema(schema, self._whole(), topic)
            kept = None if self.registry is None else schema_of(self.avro_schema or record, self.references)
            head = _registered(self.registry, avro.head, topic, kept)
            return avro.encoder(record, head, with_schema=bool(self.avro_schema))
        assert self.messages is not None
        head = _registered(self.registry, protobuf.head, topic, self.messages)
        return protobuf.encoder(self.messages, schema, head)

    def _whole(self) -> str | None:
        """Return the schema of records that was given, with all types that it uses.

        Raises
        ------
        PlanError
            When the registry has no such type.
        OperatorError
            When it does not answer.
        """
        if self.avro_schema is None or self.registry is None or not self.references:
            return self.avro_schema
        try:
            kept = schema_of(self.avro_schema, self.references)
            return avro_schemas.resolved(self.avro_schema, referenced(self.registry, kept, "no record can be written"))
        except ValueError as problem:
            named = ", ".join(f"{one.name}: {one.subject} version {one.version}" for one in self.references)
            hint = "let `avro_references` name each type that the schema uses and does not define"
            what = "`avro_schema` is not whole with what it refers to"
            raise PlanError(what, got=named, then=str(problem), hint=hint) from None
        except SourceError as problem:
            raise OperatorError(str(problem)) from None


def _registered(registry: Connection | None, head: Callable[..., bytes], topic: str, what: Any) -> bytes:
    """Return the bytes before each value."""
    if registry is None:
        return b""
    try:
        return head(client(registry), topic, what)
    except RAISED as problem:
        raise OperatorError(str(silent(registry, problem, "the batch was not written"))) from None


def check_texts(columns: pa.Schema, where: str) -> None:
    """Refuse columns that have no text: durations; `where` begins errors.

    Raises
    ------
    PlanError
        Naming the column.
    """
    for field in columns:
        if not json_texts.has_text(field.type):
            hint = storable_hint(field.name, field.type)
            got = f"{field.name}: {type_text(field.type)}"
            raise PlanError(f"{where}: JSON has no such type", got=got, hint=hint)


def _json(names: Sequence[str], table: pa.Table) -> list[bytes | None]:
    return as_bytes(json_texts.objects(table, names))


def _bytes_of(column: str, table: pa.Table) -> list[bytes | None]:
    return as_bytes(table.column(column))


def as_bytes(column: pa.ChunkedArray) -> list[bytes | None]:
    """Text or bytes, as Python has them."""
    written: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return written


def values_of(
    format_: object,
    value: object,
    avro_schema: object,
    protobuf_message: object,
    schema_registry: Any,
    avro_references: object = None,
) -> Values:
    """Return what a user gave for a sink's values.

    Raises
    ------
    PlanError
        For what does not fit together.
    MissingExtraError
        When what the format needs is not installed.
    """
    one_of(format_, "format", ("json", "avro", "protobuf", "arrow", "bytes"))
    given = {
        "value": value,
        "avro_schema": avro_schema,
        "avro_references": avro_references,
        "protobuf_message": protobuf_message,
        "schema_registry": schema_registry,
    }
    for name, what in given.items():
        if what is not None and format_ not in _DESCRIBED[name]:
            shown_as = shown(what) if name == "value" else f"format={format_!r}"
            hint = f"write format={_DESCRIBED[name][0]!r}, or leave it out"
            raise PlanError(f"`{name}` is not for such values", got=shown_as, hint=hint)
    if format_ == "bytes" and value is None:
        hint = 'write format="bytes", value="column"; JSON objects have all columns'
        raise PlanError('`value` belongs to format="bytes"', got="None", hint=hint)
    references: tuple[Reference, ...] = ()
    if format_ == "avro":
        avro_schemas.avro_modules()
        references = _references(avro_references, described=avro_schema is not None, kept=schema_registry is not None)
        if avro_schema is not None:
            text = a_text(avro_schema, "avro_schema", "pass the JSON text of a record schema")
            (avro_schemas.unresolved if references else avro_schemas.parsed)(text)
    return Values(
        format=format_,  # type: ignore[arg-type]  # one of them
        column=None if value is None else a_text(value, "value", "pass the name of a column"),
        avro_schema=avro_schema,  # type: ignore[arg-type]  # a text
        messages=protobuf.message_type(protobuf_message) if format_ == "protobuf" else None,
        registry=None if schema_registry is None else registry_at(schema_registry),
        references=references,
    )


def _references(given: object, *, described: bool, kept: bool) -> tuple[Reference, ...]:
    """Return what a user gave as ``avro_references``; a schema is `described` with it, and a registry has `kept` the types."""
    if given is None:
        return ()
    hint = 'write avro_references={"shop.Money": ("shop.Money", 1)}: the type, and the name and version of its schema'
    if not isinstance(given, Mapping) or not given:
        raise PlanError("`avro_references` are types by name", got=shown(given), hint=hint)
    if not described or not kept:
        lacking = "`avro_schema`, which uses the types" if kept else "`schema_registry`, which keeps them"
        raise PlanError("`avro_references` need more", got="they are alone", hint=f"pass {lacking}")
    references = []
    for name, reference in given.items():
        if not isinstance(reference, (tuple, list)) or len(reference) != 2:
            raise PlanError("`avro_references` has no name and version", got=shown(reference), hint=hint)
        type_, subject = a_text(name, "avro_references", hint), a_text(reference[0], "avro_references", hint)
        references.append(Reference(type_, subject, a_number(reference[1], "avro_references", 1, hint)))
    return tuple(references)


def messages_of_rows(table: pa.Table, most_bytes: int) -> list[tuple[bytes, int]]:
    """Rows as Arrow IPC streams of at most so many bytes, and the place of the first row of each."""
    parts, waiting = [], [(0, table.num_rows)]
    while waiting:
        begin, end = waiting.pop()
        written = pa.BufferOutputStream()
        with pa.ipc.new_stream(written, table.schema) as writer:
            for batch in table.slice(begin, end - begin).combine_chunks().to_batches():
                writer.write_batch(batch)
        message = written.getvalue().to_pybytes()
        if len(message) > most_bytes and end - begin > 1:
            middle = (begin + end) // 2
            waiting += [(middle, end), (begin, middle)]
        else:
            parts.append((message, begin))
    return parts
