"""A memory stream whose sends the library plans, so that it can be made to wait (docs/sources.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from krishiv_py.connectors.malformed import Malformed
from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.connectors.source import JsonValue, Planned, Source
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.replay_log import ReplayLog
from krishiv_py.runtime.reading.parquet import ParquetReader
from krishiv_py.runtime.reading.scanned import Scanned


class SentSource(Source):
    """The sends of a memory stream: a batch and a range is the number of one."""

    poll_seconds: float = 0.02

    def __init__(self, schema: pa.Schema, spool: str, upto: int | None = None) -> None:
        self.schema, self.spool, self.upto = schema, spool, upto

    def plan(self, last: JsonValue) -> Planned | None:
        """The next send."""
        number = last + 1 if isinstance(last, int) else 0
        if (self.upto is not None and number >= self.upto) or ReplayLog(self.spool).sent(number) is None:
            return None
        return Planned(number, [number])

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch | pa.Table | Malformed]:
        """Not used: a send may be a control, which is no row; see :meth:`scanned`."""
        raise NotImplementedError

    def scanned(self, number: int, schema: pa.Schema) -> Iterator[Scanned]:
        """What was sent."""
        path = ReplayLog(self.spool).sent(number)
        yield from ParquetReader(schema, sent=True)(pa.record_batch([pa.array([path])], names=["path"]))

    def until_now(self) -> SentSource:
        """Up to the newest send."""
        return SentSource(self.schema, self.spool, len(ReplayLog(self.spool).files()))


def as_ranges(source: MemorySource) -> RangeSource:
    """A memory stream as a source that plans ranges."""
    return RangeSource(source.name, SentSource(source.schema, source.spool), source.schema, False)
