"""Streams without a session, for tests."""

from __future__ import annotations

from krishiv_py.api.runner import NoRunner
from krishiv_py.api.stages.stream import Stream
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.plan.schema import SchemaLike, as_schema


def stream_of(schema: SchemaLike) -> Stream:
    """A stream of this schema that belongs to no session; run it with :class:`~krishiv_py.testing.Driver`."""
    checked = as_schema(schema)
    return Stream(MemorySource("test", checked, ""), checked, NoRunner())
