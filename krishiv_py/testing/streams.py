"""Streams without a session, for tests."""

from __future__ import annotations

from collections.abc import Mapping

from krishiv_py.api.runner import NoRunner
from krishiv_py.api.stages import union
from krishiv_py.api.stages.stream import Stream
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.plan.schema import SchemaLike, as_schema


def stream_of(schema: SchemaLike) -> Stream:
    """A stream of this schema that belongs to no session; run it with :class:`~krishiv_py.testing.Driver`."""
    checked = as_schema(schema)
    return Stream(MemorySource("test", checked, ""), checked, NoRunner())


def union_of(streams: Mapping[str, Stream], *, source_column: str = "source") -> Stream:
    """Several streams as one, as :meth:`krishiv_py.Session.union` makes it; a driver takes their rows by their names.

    Parameters
    ----------
    streams : dict of str to Stream
        Streams of the same columns, by name.
    source_column : str
        The column with the name of the stream that a row is from.

    Raises
    ------
    PlanError
        For no streams, and for what is none.
    SchemaError
        For streams with other columns.

    Examples
    --------
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import Driver, stream_of, union_of
    >>> both = union_of({"web": stream_of("at bigint"), "app": stream_of("at bigint")})
    >>> driver = Driver(both.watermark("at", 0).key_by("source").tumbling_window(10).agg(count()))
    >>> _ = driver.send({"web": [{"at": 1}, {"at": 2}], "app": [{"at": 3}]})
    >>> sorted((row["source"], row["count"]) for row in driver.close().results.to_pylist())
    [('app', 1), ('web', 2)]
    """
    return union.union_of(streams, source_column, NoRunner())
