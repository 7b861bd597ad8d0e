"""Streams over what Spark has, and of other streams: several as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa

from krishiv_py.api.query import Runner
from krishiv_py.api.stages.stream import Stream
from krishiv_py.errors import PlanError, SchemaError, shown
from krishiv_py.plan.checks import a_switch, a_text, column_name
from krishiv_py.plan.nodes import UnionSource, source_of
from krishiv_py.plan.options.late import one_handler
from krishiv_py.plan.schema import checked
from krishiv_py.types import type_text, wider


def union_of(streams: Mapping[str, Stream], source_column: str, runner: Runner) -> Stream:
    """Return the checked union of `streams` by name."""
    if not isinstance(streams, Mapping) or not streams:
        raise PlanError("a union needs streams by name", got=shown(streams), hint='pass {"a": stream_a, "b": stream_b}')
    for name, stream in streams.items():
        a_text(name, "name of a stream", 'pass {"a": stream_a, "b": stream_b}')
        if not isinstance(stream, Stream):
            raise PlanError(
                f"{name!r} is not a stream of rows",
                got=type(stream).__name__,
                hint="pass streams as they are before .watermark(...), and set it on the union: .watermark(...) for all rows, "
                "or .with_watermark(spec, ..., source_column=...) with a MultiSourceWatermarkSpec, a lag for each stream",
            )
    column_name(source_column, "union(source_column)")
    first = next(iter(streams.values())).schema
    for name, stream in streams.items():
        if not stream.schema.equals(first):
            raise _other_columns(name, stream.schema, next(iter(streams)), first)
    merged = checked(first.append(pa.field(source_column, pa.string())))
    parts = tuple((name, stream._node) for name, stream in streams.items())
    bounded = all(source_of(node).bounded for _, node in parts)
    hint = f"name one after the union instead: .with_late_event_handler(...); the column {source_column!r} distinguishes rows"
    late = one_handler((s._own_late_handler for s in streams.values()), "the streams of a union", hint)
    return Stream(UnionSource(parts, source_column, merged, bounded), merged, runner, late)


def _other_columns(name: str, schema: pa.Schema, first_name: str, first: pa.Schema) -> SchemaError:
    """Return the error for a stream whose columns are not those of the first one."""
    if set(schema.names) != set(first.names):
        missing = [n for n in first.names if n not in schema.names]
        extra = [n for n in schema.names if n not in first.names]
        got = "; ".join([f"without {', '.join(missing)}"] * bool(missing) + [f"with {', '.join(extra)}"] * bool(extra))
        hint = f"select the columns that all have, in one order: .select({', '.join(map(repr, first.names))})"
        return SchemaError(f"stream {name!r} has other columns than {first_name!r}", got=got, hint=hint)
    unlike = [
        (n, first.field(n).type, schema.field(n).type) for n in first.names if first.field(n).type != schema.field(n).type
    ]
    if not unlike:
        hint = f"write .select({', '.join(map(repr, first.names))}) on it"
        got = ", ".join(schema.names)
        return SchemaError(f"the columns of stream {name!r} are in another order", got=got, hint=hint)
    got = ", ".join(
        f"{n!r} is {type_text(one)} in {first_name!r} and {type_text(other)} in {name!r}" for n, one, other in unlike
    )
    steps: dict[str, list[str]] = {}
    for column, one, other in unlike:
        both = wider(one, other)
        for stream, type_ in ((first_name, one), (name, other)):
            if both is not None and type_ != both:
                steps.setdefault(stream, []).append(f'.with_column({column!r}, col({column!r}).cast("{type_text(both)}"))')
    written = "; ".join(f"write {''.join(casts)} on {stream!r}" for stream, casts in steps.items())
    hint = written or "give the columns one type"
    return SchemaError("the streams have columns of other types", got=got, hint=hint)


class FrameRunner(Runner, Protocol):
    """A runner that knows DataFrames."""

    def frame_stream(self, frame: Any) -> Stream:
        """Return a stream over a DataFrame."""
        ...

    def table_stream(self, name: str, streaming: bool) -> Stream:
        """Return a stream over a table of the catalog."""
        ...


class OtherStreams:
    """The methods of a session that make streams of DataFrames and of streams."""

    _runner: FrameRunner

    @property
    def spark(self) -> Any:
        """The Spark session that is used."""
        raise NotImplementedError

    def rate(self, rows_per_second: int = 1) -> Stream:
        """Spark's generator: `rows_per_second` rows of ``timestamp`` and ``value``, for trying things out.

        Examples
        --------
        >>> from krishiv_py import count
        >>> def per_ten_seconds(session):
        ...     return session.rate(100).watermark("timestamp", 0).tumbling_window("10 s").agg(count())
        """
        if isinstance(rows_per_second, bool) or not isinstance(rows_per_second, int) or rows_per_second < 1:
            raise PlanError("`rows_per_second` is not a rate", got=shown(rows_per_second), hint="use 1 or more")
        return self.from_dataframe(self.spark.readStream.format("rate").option("rowsPerSecond", rows_per_second).load())

    def from_dataframe(self, frame: Any) -> Stream:
        """Return a stream over the Spark DataFrame `frame`, streaming or not.

        Examples
        --------
        >>> from krishiv_py import count
        >>> def per_hour(session):
        ...     frame = session.spark.readStream.format("delta").load("/data/clicks")
        ...     return session.from_dataframe(frame).watermark("at", "1 min").tumbling_window("1 hour").agg(count())
        """
        if not isinstance(getattr(frame, "isStreaming", None), bool):
            raise PlanError("not a Spark DataFrame", got=type(frame).__name__, hint="pass a Spark DataFrame")
        return self._runner.frame_stream(frame)

    def table(self, name: str, *, streaming: bool = False) -> Stream:
        """Return a stream over the table or view `name` of Spark's catalog (docs/sources.md, "DataFrames").

        Parameters
        ----------
        name : str
            As SQL names it: ``"events"``, ``"db.events"``, ``"catalog.db.events"``.
        streaming : bool
            Also read rows that come later, where the table's format can be read as a stream. Otherwise the table as it is
            when the stream is run is a bounded stream.

        Raises
        ------
        SourceError
            When there is no such table, or it cannot be read so.
        PlanError
            For a value that is not a name.

        Examples
        --------
        >>> from krishiv_py import count
        >>> def per_hour(session):
        ...     return session.table("db.clicks").watermark("at", "1 min").tumbling_window("1 hour").agg(count())
        """
        a_text(name, "name", 'write session.table("db.events")')
        a_switch(streaming, "streaming")
        return self._runner.table_stream(name, streaming)

    def union(self, streams: Mapping[str, Stream], *, source_column: str = "source") -> Stream:
        """Several streams as one, each row with the name of its stream.

        Declare their watermarks with :class:`~krishiv_py.MultiSourceWatermarkSpec` and ``source_column=...``; closing the
        sender of one stream ends that stream only.

        Parameters
        ----------
        streams : mapping of str to Stream
            Streams with equal columns, by name.
        source_column : str
            Name of the added text column.

        Raises
        ------
        SchemaError
            When the streams have different columns.

        Examples
        --------
        >>> from krishiv_py import Session
        >>> with Session.in_process() as session:
        ...     web, from_web = session.memory_stream("at bigint", name="web")
        ...     app, from_app = session.memory_stream("at bigint", name="app")
        ...     _ = from_web.send([{"at": 1}, {"at": 2}]), from_app.send([{"at": 3}])
        ...     _ = from_web.close(), from_app.close()
        ...     both = session.union({"web": web, "app": app})
        ...     both.collect().to_pylist()
        [{'at': 1, 'source': 'web'}, {'at': 2, 'source': 'web'}, {'at': 3, 'source': 'app'}]
        """
        return union_of(streams, source_column, self._runner)
