"""A memory stream whose sends the library plans, so that it can be made to wait (docs/sources.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from krishiv_py.connectors.malformed import Malformed
from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.connectors.source import JsonValue, Planned, Source
from krishiv_py.disk.checksums import missing
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.replay_index import WAY_OUT
from krishiv_py.replay_log import ReplayLog
from krishiv_py.runtime.reading.parquet import ParquetReader
from krishiv_py.runtime.reading.scanned import Scanned


class SentSource(Source):
    """The sends of a memory stream: a batch and a range is the number of one."""

    poll_seconds: float = 0.02

    def __init__(self, schema: pa.Schema, spool: str, upto: int | None = None) -> None:
        self.schema, self.spool, self.upto = schema, spool, upto
        self._identity = ""

    def plan(self, last: JsonValue) -> Planned | None:
        """The next send; the first one where another stream was read before."""
        number = 0
        if isinstance(last, dict):
            send = last["send"]
            assert isinstance(send, int)
            number = send + 1 if last["stream"] == self._stream() else 0
        elif isinstance(last, int):  # an earlier version noted no stream
            number = last + 1
        if (self.upto is not None and number >= self.upto) or ReplayLog(self.spool).sent(number) is None:
            return None
        position: JsonValue = {"stream": self._stream(), "send": number}
        return Planned(position, [position])

    def _stream(self) -> str:
        """What tells this stream from any other."""
        self._identity = self._identity or ReplayLog(self.spool).identity()
        return self._identity

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch | pa.Table | Malformed]:
        """Not used: a send may be a control, which is no row; see :meth:`scanned`."""
        raise NotImplementedError

    def scanned(self, planned: JsonValue, schema: pa.Schema) -> Iterator[Scanned]:
        """What was sent.

        Raises
        ------
        CheckpointError
            When the send is not there, or is one of another stream.
        """
        number, ours = planned, True
        if isinstance(planned, dict):
            number, ours = planned["send"], planned["stream"] == self._stream()
        assert isinstance(number, int)
        path = ReplayLog(self.spool).sent(number) if ours else None
        if path is None:
            raise missing(f"send {number} of the memory stream that was read before", WAY_OUT)
        yield from ParquetReader(schema, sent=True)(pa.record_batch([pa.array([path])], names=["path"]))

    def until_now(self) -> SentSource:
        """Up to the newest send."""
        return SentSource(self.schema, self.spool, len(ReplayLog(self.spool).files()))


def as_ranges(source: MemorySource) -> RangeSource:
    """A memory stream as a source that plans ranges."""
    return RangeSource(source.name, SentSource(source.schema, source.spool), source.schema, False)
