"""Schemas that a schema registry keeps by number. They never change, so each is asked for once in a process."""

from __future__ import annotations

import functools
import importlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import attrs

from krishiv_py.connectors.kafka.client import Connection, connection, kafka
from krishiv_py.errors import RAISED, SourceError, failure_text, missing_extra
from krishiv_py.plan.checks import a_text

FRAME: Final = struct.Struct(">bI")
"""The beginning of a value: a zero byte, and the number of its schema."""
_NOT_DECODED: Final = "values cannot be decoded"
NO_NUMBER: Final = "it does not begin with the number of a schema"
"""The problem of a value that does not."""


@attrs.frozen
class Reference:
    """A type that a schema uses and the registry keeps.

    Attributes
    ----------
    name : str
        The full name of the type.
    subject : str
        The name that its schema is registered under.
    version : int
        The version of it, from 1.
    """

    name: str
    subject: str
    version: int


def number_of(value: bytes) -> int:
    """Return the number of the schema that a value begins with.

    Raises
    ------
    ValueError
        When it does not begin with one.
    """
    if len(value) < FRAME.size or value[0] != 0:
        raise ValueError(NO_NUMBER)
    return int(FRAME.unpack_from(value)[1])


def registry_at(place: object) -> Connection:
    """Return a registry, from its address or from settings with ``url``.

    Raises
    ------
    PlanError
        When it is neither.
    MissingExtraError
        When what its client needs is not installed.
    """
    try:
        importlib.import_module("confluent_kafka.schema_registry")
    except ImportError as problem:  # what it needs itself has had several names
        missing = f"{problem.name} (the schema registry's client)"
        raise missing_extra(missing, "kafka", "no schema can be looked up") from problem
    hint = 'write schema_registry="http://host:8081", or its settings with "url"'
    a_text(place.get("url") if isinstance(place, Mapping) else place, "schema_registry", hint)
    if isinstance(place, Mapping):
        return connection(place.get("url"), {k: v for k, v in place.items() if k != "url"})
    return connection(place, None)


def client(registry: Connection) -> Any:
    """Return the registry's client of this process."""
    return _client(registry, os.getpid())


@functools.lru_cache(maxsize=8)
def _client(registry: Connection, _process: int) -> Any:
    kafka()
    from confluent_kafka.schema_registry import SchemaRegistryClient

    return SchemaRegistryClient({**dict(registry.settings), "url": registry.servers})


def registered(registry: Connection, number: int, kind: str) -> Any:
    """Return the schema of a number, which is of this `kind` (``AVRO``, ``PROTOBUF``).

    Raises
    ------
    SourceError
        When the registry does not answer.
    ValueError
        When it has no such schema, or one of another kind.
    """
    schema = _registered(registry, number, os.getpid())
    if schema.schema_type != kind:
        raise ValueError(f"schema {number} of the registry is {schema.schema_type}, not {kind}")
    return schema


@functools.lru_cache(maxsize=1_000)
def _registered(registry: Connection, number: int, _process: int) -> Any:
    return _looked_up(registry, lambda: client(registry).get_schema(number), str(number))


def schema_of(text: str, references: Iterable[Reference]) -> Any:
    """Return an Avro schema as the registry's client takes it."""
    from confluent_kafka.schema_registry import Schema, SchemaReference

    return Schema(text, "AVRO", [SchemaReference(one.name, one.subject, one.version) for one in references])


def referenced(registry: Connection, schema: Any, so: str = _NOT_DECODED) -> list[str]:
    """Return the texts of all schemas that a `schema` refers to, each after those that it refers to itself.

    An error says that something cannot be done `so`.

    Raises
    ------
    SourceError
        When the registry does not answer.
    ValueError
        When it does not have one of them.
    """
    return list(_texts(registry, schema, set(), so))


def _texts(registry: Connection, schema: Any, seen: set[tuple[str, int]], so: str) -> Iterator[str]:
    for one in schema.references or ():
        if (one.subject, one.version) in seen:
            continue
        seen.add((one.subject, one.version))
        texts = _version(registry, one.subject, one.version, so, os.getpid())
        yield from _texts(registry, texts, seen, so)
        yield texts.schema_str


@functools.lru_cache(maxsize=1_000)
def _version(registry: Connection, subject: str, version: int, so: str, _process: int) -> Any:
    what = f"{subject} version {version}"
    return _looked_up(registry, lambda: client(registry).get_version(subject, version).schema, what, so)


def _looked_up(registry: Connection, look: Callable[[], Any], what: str, so: str = _NOT_DECODED) -> Any:
    from confluent_kafka.schema_registry.error import SchemaRegistryError

    try:
        return look()
    except SchemaRegistryError as problem:
        if problem.http_status_code == 404:
            raise ValueError(f"the schema registry has no schema {what}") from None
        raise silent(registry, problem, so) from None
    except RAISED as problem:
        raise silent(registry, problem, so) from None


def latest(registry: Connection, subject: str) -> Any:
    """Return the newest schema that is registered under a name; None where there is none, and where the registry does not
    answer.

    It is asked once, for two seconds at most: it need not be reachable from where a query is written.
    """
    from confluent_kafka.schema_registry import SchemaRegistryClient

    kafka()
    once = {**dict(registry.settings), "url": registry.servers, "timeout": 2, "max.retries": 0}
    try:
        return SchemaRegistryClient(once).get_latest_version(subject).schema
    except RAISED:
        return None


def silent(registry: Connection, problem: BaseException, consequence: str) -> SourceError:
    """Return the error for a registry that does not do what it was asked."""
    got = f"{registry.servers}: {registry.clean(failure_text(problem))}"
    hint = "see that the registry runs and can be reached, then start the query again"
    passes = getattr(problem, "http_status_code", 0) not in (401, 403)
    return SourceError("the schema registry does not answer", got=got, then=consequence, hint=hint, transient=passes)
