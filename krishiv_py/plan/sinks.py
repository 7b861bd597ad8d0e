"""Where results and late rows go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.plan.durations import Duration, to_us
from krishiv_py.redaction import shown_text


class Sink:
    """Base of all sinks."""

    __slots__ = ()


@attrs.frozen
class ParquetSink(Sink):
    """Parquet files in a folder: exactly once, replaceable by micro-batch (docs/outputs.md)."""

    path: str = attrs.field(repr=shown_text)


@attrs.frozen
class JsonSink(Sink):
    """Files of JSON lines in a folder; exactly once like :class:`ParquetSink`."""

    path: str = attrs.field(repr=shown_text)


@attrs.frozen(eq=False)
class MemorySink(Sink):
    """Arrow tables in the driver's memory: :meth:`table` gives all rows so far."""

    tables: dict[int, list[pa.Table]] = attrs.field(factory=dict, repr=False)

    def put(self, batch_id: int, tables: list[pa.Table]) -> None:
        """Take (or replace) the rows of one micro-batch.

        Parameters
        ----------
        batch_id : int
            Number of the micro-batch, from 0.
        tables : list of pyarrow.Table
            Its rows; an empty list removes what an earlier attempt put.
        """
        if tables:
            self.tables[batch_id] = tables
        else:
            self.tables.pop(batch_id, None)

    def table(self) -> pa.Table | None:
        """All rows in the order of their micro-batches; None while there were none."""
        parts = [t for batch in sorted(self.tables) for t in self.tables[batch]]
        return pa.concat_tables(parts) if parts else None


@attrs.frozen
class ConsoleSink(Sink):
    """Prints every non-empty micro-batch."""

    max_rows: int = 20


BatchConsumer: TypeAlias = Callable[[Any, int], None]


@attrs.frozen(eq=False)
class ForeachBatchSink(Sink):
    """Calls ``function(dataframe, batch_id)`` for every micro-batch, with a Spark DataFrame of results."""

    function: BatchConsumer


@attrs.frozen
class QueryTrigger:
    """When Spark plans the next micro-batch of a query.

    Use one of :meth:`as_fast_as_possible` (default), :meth:`every` and :meth:`available_now`.
    """

    kind: str = "fast"
    interval_us: int = 0
    flush: bool = False

    @classmethod
    def as_fast_as_possible(cls) -> QueryTrigger:
        """The next micro-batch as soon as the last one is done and there is input."""
        return cls()

    @classmethod
    def every(cls, interval: Duration) -> QueryTrigger:
        """A micro-batch every `interval` of wall-clock time, with what has come by then."""
        return cls("every", to_us(interval, "interval"))

    @classmethod
    def available_now(cls, *, flush: bool = False) -> QueryTrigger:
        """Take what is there, in batches of the source's size, then stop.

        With `flush` the end of what is there counts as the end of input: every open window fires (SEMANTICS §2.5). Without
        it they stay in the checkpoint for the next run.
        """
        return cls("available_now", 0, flush)
