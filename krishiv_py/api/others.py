"""Streams over what Spark has, and of other streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from krishiv_py.api.runner import Runner
from krishiv_py.api.stages.stream import Stream
from krishiv_py.api.stages.union import union_of
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import a_switch, a_text


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
