"""Define what a user tells of a topic, checked, as a source."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa

from krishiv_py.connectors.kafka.client import Connection, Option, brokers, connection, kafka, matching, partitions
from krishiv_py.connectors.kafka.formats import avro, avro_schemas, protobuf, registry
from krishiv_py.connectors.kafka.source import (
    KafkaPosition,
    KafkaSource,
    KeyFormat,
    Meta,
    OnLost,
    Tombstones,
    ValueFormat,
    meta_type,
    where,
)
from krishiv_py.errors import PlanError, SchemaError, SourceError, failure_text, shown
from krishiv_py.plan.checks import a_number, a_switch, a_text, one_of, wait_us
from krishiv_py.plan.options.late import OnMalformed
from krishiv_py.plan.schema import SchemaLike, as_schema, checked

if TYPE_CHECKING:
    from krishiv_py.connectors.kafka.formats.protobuf import MessageType

FORMATS: Final = ("json", "avro", "protobuf", "arrow", "bytes")
_DESCRIBED: Final = {
    "avro_schema": ("avro",),
    "avro_reader_schema": ("avro",),
    "protobuf_message": ("protobuf",),
    "schema_registry": ("avro", "protobuf", "json"),
}
"""Options that describe values, and the formats they are for."""
PARTITION_SOURCE: Final = "kafka_source"
_MOST_LOOKED_UP: Final = 10
"""Of how many topics the registered schema is looked up before a query starts."""
_MOST_OFFSETS: Final = (1 << 63) - 1


def kafka_source(
    topics: str | Sequence[str],
    *,
    bootstrap_servers: str,
    schema: SchemaLike | Any = None,
    value_format: ValueFormat = "json",
    avro_schema: str | None = None,
    avro_reader_schema: str | None = None,
    protobuf_message: Any = None,
    schema_registry: str | Mapping[str, str | int | float | bool] | None = None,
    key: str | None = None,
    key_format: KeyFormat = "string",
    key_schema: SchemaLike | Any = None,
    avro_key_schema: str | None = None,
    timestamp: str | None = None,
    headers: str | None = None,
    topic: str | None = None,
    partition: str | None = None,
    offset: str | None = None,
    starting: KafkaPosition = "earliest",
    ending: KafkaPosition | None = None,
    max_offsets_per_batch: int | None = None,
    on_malformed: OnMalformed = "fail",
    on_lost: OnLost = "fail",
    tombstones: Tombstones = "malformed",
    partitions_as_sources: bool = False,
    parallelism: int | None = None,
    commit_group: str | None = None,
    timeout: str = "60 s",
    options: Mapping[str, Option] | None = None,
) -> KafkaSource:
    """Topics of Kafka as a :class:`~krishiv_py.connectors.Source`; :meth:`krishiv_py.Session.read_kafka` has the parameters.

    For the test driver: ``krishiv_py.testing.micro_batches(kafka_source(...))``.

    Raises
    ------
    PlanError
        For arguments that mean nothing, and for options that the library sets itself.
    SchemaError
        For a schema that is missing, and for two columns of one name.
    SourceError
        When no broker answers within `timeout`, or a topic does not exist.
    MissingExtraError
        When confluent-kafka is not installed.

    Examples
    --------
    >>> from krishiv_py.connectors import kafka_source
    >>> from krishiv_py.testing import micro_batches
    >>> def replayed(driver):
    ...     clicks = kafka_source("clicks", bootstrap_servers="localhost:9092", schema="user string, at bigint")
    ...     return [driver.send(batch).results for batch in micro_batches(clicks)]
    """
    kafka()
    pattern = _pattern(topics)
    names = () if pattern is not None else _topics(topics)
    reached = connection(brokers(bootstrap_servers), options, oauth=True)
    one_of(value_format, "value_format", FORMATS)
    one_of(key_format, "key_format", ("string", "bytes", "json", "avro"))
    one_of(on_malformed, "on_malformed", ("fail", "side_output"))
    one_of(on_lost, "on_lost", ("fail", "warn"))
    one_of(tombstones, "tombstones", ("malformed", "null"))
    if tombstones == "null" and value_format in ("arrow", "bytes"):
        hint = "leave it out: a value of bytes is null there, and one of Arrow is many rows"
        raise PlanError("`tombstones` is for values that are a row each", got=f"{value_format=}", hint=hint)
    a_switch(partitions_as_sources, "partitions_as_sources")
    if max_offsets_per_batch is not None:
        a_number(max_offsets_per_batch, "max_offsets_per_batch", 1, "use 1 or more, or leave it out", most=_MOST_OFFSETS)
    if parallelism is not None:
        a_number(parallelism, "parallelism", 1, "state how many tasks read at once, from 1", most=10_000)
    meta_columns: dict[Meta, str | None] = {
        "key": key, "timestamp": timestamp, "headers": headers, "topic": topic, "partition": partition, "offset": offset,
        "source": PARTITION_SOURCE if partitions_as_sources else None,
    }  # fmt: skip
    meta = tuple(
        (what, a_text(name, what, "pass the name of a column")) for what, name in meta_columns.items() if name is not None
    )
    values_of = _described(value_format, avro_schema, avro_reader_schema, protobuf_message, schema_registry, key_format)
    keys = _keys(key, key_format, key_schema, avro_key_schema, schema_registry)
    values = _values(schema, value_format, values_of.protobuf)
    within_s = wait_us(timeout, "timeout") / 1_000_000
    if pattern is not None:
        names = _matching(reached, pattern, within_s)
    if avro_schema is not None:
        avro.require_columns(avro_schema, avro_reader_schema, values)
    elif value_format == "avro" and values_of.registry is not None:
        for name in names[:_MOST_LOOKED_UP]:
            avro.require_registered_columns(values_of.registry, name, avro_reader_schema, values)
    columns = checked(pa.schema([*values, *keys, *(pa.field(name, meta_type(what, key_format)) for what, name in meta)]))
    begin = where(starting, "starting", names)
    end = None if ending is None else where(ending, "ending", names)
    places = partitions(reached, names, within_s)
    return KafkaSource(
        topics=names,
        pattern=pattern,
        connection=reached,
        schema=columns,
        known=tuple(values.names),
        meta=meta,
        value_format=value_format,
        key_format=key_format,
        key_known=tuple(keys.names),
        avro_key_schema=avro_key_schema,
        starting=begin,
        ending=end,
        most=max_offsets_per_batch,
        on_malformed=on_malformed,
        on_lost=on_lost,
        tombstones=tombstones,
        within_s=within_s,
        parallelism=parallelism or min(len(places), os.cpu_count() or 1),
        registry=values_of.registry,
        avro_schema=avro_schema,
        avro_reader_schema=avro_reader_schema,
        protobuf=values_of.protobuf,
        commit_group=None if commit_group is None else a_text(commit_group, "commit_group", "pass the name of a group"),
        source_column=PARTITION_SOURCE if partitions_as_sources else None,
        watermark_sources=tuple(f"{topic}-{number}" for topic, number in places) if partitions_as_sources else (),
    )


def _pattern(topics: object) -> str | None:
    """Return the regular expression of topics that begins with ``^``, as consumers have it."""
    if not isinstance(topics, str) or not topics.startswith("^"):
        return None
    try:
        re.compile(topics)
    except re.error as problem:
        hint = 'write a regular expression: "^orders-.*"'
        raise PlanError("`topics` is not a pattern", got=shown(topics), then=failure_text(problem), hint=hint) from None
    return topics


def _matching(reached: Connection, pattern: str, within_s: float) -> tuple[str, ...]:
    topics = matching(reached, pattern, within_s)
    if not topics:
        hint = "make a topic first, or see how their names are written and whether you may read them"
        got = f"{pattern} at {reached.servers}"
        raise SourceError("no topic fits the pattern", got=got, hint=hint)
    return tuple(topics)


def _topics(topics: object) -> tuple[str, ...]:
    names = [topics] if isinstance(topics, str) else list(topics) if isinstance(topics, (list, tuple)) else []
    for name in names:
        if a_text(name, "topics", 'pass a name, or a list: ["orders", "payments"]').startswith("^"):
            hint = 'pass one pattern alone: "^(orders|payments)-.*"'
            raise PlanError("`topics` has a pattern in a list", got=shown(name), hint=hint)
    if not names or len(set(names)) < len(names):
        hint = 'pass a name, or a list of different names: ["orders", "payments"]'
        raise PlanError("`topics` names no topics", got=shown(topics), hint=hint)
    return tuple(names)


@attrs.frozen
class _ValueDescription:
    """Holds what describes values next to the columns."""

    registry: Connection | None = None
    protobuf: MessageType | None = None


def _described(
    value_format: ValueFormat,
    avro_schema: object,
    avro_reader_schema: object,
    protobuf_message: object,
    schema_registry: object,
    key_format: KeyFormat,
) -> _ValueDescription:
    given = {
        "avro_schema": avro_schema,
        "avro_reader_schema": avro_reader_schema,
        "protobuf_message": protobuf_message,
        "schema_registry": schema_registry,
    }
    for name, value in given.items():
        of_keys = name == "schema_registry" and key_format == "avro"
        if value is not None and value_format not in _DESCRIBED[name] and not of_keys:
            hint = f"write value_format={_DESCRIBED[name][0]!r}, or leave it out"
            raise PlanError(f"`{name}` is not for such values", got=f"{value_format=}", hint=hint)
    if value_format == "avro":
        avro_schemas.avro_modules()
        if (avro_schema is None) == (schema_registry is None):
            hint = 'pass schema_registry="http://host:8081", or avro_schema="..." for values without the number of a schema'
            raise PlanError("Avro values need one of `schema_registry` and `avro_schema`", got="both or none", hint=hint)
        if avro_schema is not None:
            avro_schemas.parsed(a_text(avro_schema, "avro_schema", "pass the JSON text of a record schema"))
        if avro_reader_schema is not None:
            text = a_text(avro_reader_schema, "avro_reader_schema", "pass the JSON text of a record schema")
            avro_schemas.parsed(text, "avro_reader_schema")
    messages = protobuf.message_type(protobuf_message) if value_format == "protobuf" else None
    return _ValueDescription(None if schema_registry is None else registry.registry_at(schema_registry), messages)


def _keys(key: object, key_format: KeyFormat, key_schema: object, avro_key_schema: object, registry: object) -> pa.Schema:
    """Return the columns that are decoded from keys."""
    if key_format != "avro" and avro_key_schema is not None:
        hint = 'write key_format="avro", or leave it out'
        raise PlanError("`avro_key_schema` is not for such keys", got=f"{key_format=}", hint=hint)
    if key_format not in ("json", "avro"):
        if key_schema is not None:
            hint = 'write key_format="avro" or "json", or name one column with key="..."'
            raise PlanError("`key_schema` is not for such keys", got=f"{key_format=}", hint=hint)
        return pa.schema([])
    if key is not None or key_schema is None:
        got = "key=..." if key is not None else "no key_schema"
        hint = 'leave `key` out, and name the columns: key_schema="customer bigint"'
        raise PlanError(f"{key_format} keys are columns of their own", got=got, hint=hint)
    columns = as_schema(key_schema)
    if key_format == "avro":
        avro_schemas.avro_modules()
        if avro_key_schema is not None:
            text = a_text(avro_key_schema, "avro_key_schema", "pass the JSON text of a schema")
            avro_schemas.parsed(text, "avro_key_schema", record=False)
            avro.require_columns(text, None, columns, single=len(columns) == 1, name="avro_key_schema")
        elif registry is None:
            hint = 'pass schema_registry="http://host:8081", or avro_key_schema="..." for keys without the number of a schema'
            raise PlanError("Avro keys need `schema_registry` or `avro_key_schema`", got="neither", hint=hint)
    return columns


def _values(schema: object, value_format: ValueFormat, messages: MessageType | None) -> pa.Schema:
    """Return the columns of the value."""
    if value_format == "bytes":
        columns = pa.schema([pa.field("value", pa.binary())]) if schema is None else as_schema(schema)
        if len(columns) != 1 or not pa.types.is_binary(columns.field(0).type):
            hint = 'leave `schema` out, or name the column: schema="body binary"'
            raise SchemaError("bytes are one column", got=shown(columns), hint=hint)
        return columns
    if messages is not None:
        columns = as_schema(protobuf.known_columns(messages) if schema is None else schema)
        protobuf.fields_of(messages, columns)
        return columns
    if schema is None:
        hint = 'pass schema="user_id bigint, event_time timestamp"'
        raise SchemaError(f"{value_format} values need a schema", got="None", hint=hint)
    return as_schema(schema)
