"""A memory stream whose sends the library plans, so that it can be made to wait (docs/sources.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from krishiv_py.connectors.malformed import Malformed
from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.connectors.source import JsonValue, Planned, Source
from krishiv_py.disk.checksums import missing
from krishiv_py.disk.files import store_at
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.replay_index import WAY_OUT, open_sent
from krishiv_py.replay_log import CONTROL, Handed, ReplayLog, sent_at
from krishiv_py.runtime.reading.parquet import ParquetReader
from krishiv_py.runtime.reading.scanned import Scanned


class Together(Protocol):
    """Says which sends are one batch."""

    def begin(self, first: pa.Table) -> bool:
        """Begin a batch with a send; whether others may be in it."""
        ...

    def takes(self, send: pa.Table) -> bool:
        """Return whether the next send is in the batch too."""
        ...


class SentSource(Source):
    """The sends of a memory stream: a range is the number of one, and so is a batch, unless several are taken together.

    Attributes
    ----------
    together : Together or None
        Says which sends are one batch, where they may be.
    handed : Handed or None
        Sends that need not be read from their files.
    """

    poll_seconds: float = 0.02
    together: Together | None = None
    handed: Handed | None = None

    def __init__(self, schema: pa.Schema, spool: str, upto: int | None = None) -> None:
        self.schema, self.spool, self.upto = schema, spool, upto
        self._identity = ""
        self._log = ReplayLog(spool)
        self._held: dict[int, pa.Table] = {}
        """Sends that were planned together and are not read yet."""

    def plan(self, last: JsonValue) -> Planned | None:
        """The next send, and those that are taken with it; the first one where another stream was read before."""
        number = 0
        if isinstance(last, dict):
            send = last["send"]
            assert isinstance(send, int)
            number = send + 1 if last["stream"] == self._stream() else 0
        elif isinstance(last, int):  # an earlier version noted no stream
            number = last + 1
        following = number if self.together is None else self._gathered(number, self.together)
        if following == number and not self._has(number):
            return None
        sends: list[JsonValue] = [{"stream": self._stream(), "send": n} for n in range(number, max(following, number + 1))]
        return Planned(sends[-1], sends)

    def _has(self, number: int) -> bool:
        return (self.upto is None or number < self.upto) and self._log.sent(number) is not None

    def _gathered(self, number: int, together: Together) -> int:
        """The number after the sends, from this one on, that are one batch."""
        send = self._send(number)
        if send is None or send.schema.names[:1] == [CONTROL] or not together.begin(send):
            return number if send is None else number + 1
        while True:
            number += 1
            send = self._send(number)
            if send is None or send.schema.names[:1] == [CONTROL] or not together.takes(send):
                return number

    def _send(self, number: int) -> pa.Table | None:
        """A send as it is, held until it is read; None if there is none yet."""
        found = self._held.get(number)
        if found is None and self.handed is not None and (self.upto is None or number < self.upto):
            found = self.handed.take(number)
        if found is None and self._has(number):
            found = open_sent(*store_at(self._log.path(number))).read()
        if found is not None:
            self._held[number] = found
        return found

    def _stream(self) -> str:
        """What tells this stream from any other."""
        self._identity = self._identity or self._log.identity()
        return self._identity

    def backlog(self, position: JsonValue) -> int:
        """The sends that no batch has taken."""
        taken = position["send"] if isinstance(position, dict) else position
        following = self._log.following()
        return max(
            (following if self.upto is None else min(following, self.upto)) - (taken + 1 if isinstance(taken, int) else 0), 0
        )

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch | pa.Table | Malformed]:
        """Not used: a send may be a control, which is no row; see :meth:`scanned`."""
        raise NotImplementedError

    def taken(self, planned: Sequence[Any], schema: pa.Schema) -> list[Scanned] | None:
        """Return the rows of sends that are held as one batch. None where one is not held, or is a control."""
        held = [self._held.get(one["send"]) for one in planned]
        self._held = {number: send for number, send in self._held.items() if number > planned[-1]["send"]}
        if any(send is None or send.schema.names[:1] == [CONTROL] for send in held):
            return None
        whole = pa.concat_tables(send.select(schema.names) for send in held if send is not None).combine_chunks()
        latest = max((us for send in held if send is not None and (us := sent_at(send.schema)) is not None), default=None)
        batches = [pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in whole.to_batches()]
        return [Scanned(batch, None, latest) for batch in batches] or [Scanned(None, None, latest)]

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
        path = self._log.sent(number) if ours else None
        if path is None:
            raise missing(f"send {number} of the memory stream that was read before", WAY_OUT)
        yield from ParquetReader(schema, sent=True)(pa.record_batch([pa.array([path])], names=["path"]))

    def until_now(self) -> SentSource:
        """Up to the newest send."""
        return SentSource(self.schema, self.spool, len(ReplayLog(self.spool).files()))


def as_ranges(source: MemorySource) -> RangeSource:
    """A memory stream as a source that plans ranges."""
    return RangeSource(source.name, SentSource(source.schema, source.spool), source.schema, False)
