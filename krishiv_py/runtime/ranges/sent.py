"""A memory stream whose sends the library plans, so that it can be made to wait (docs/sources.md)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import attrs
import pyarrow as pa

from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.connectors.source import JsonValue, Malformed, Planned, Source
from krishiv_py.errors import SourceError
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.runtime.reading import ParquetReader, ScannedRows
from krishiv_py.storage.checksums import as_parquet, missing
from krishiv_py.storage.sends.log import HandedSends, ReplayLog
from krishiv_py.storage.sends.segments import WAY_OUT, Place, Send

_POLL_S: Final = 0.02
_POLL_WOKEN_S: Final = 5.0
_LOOKED_AT: Final = 64
"""The least number of sends that are looked at for one batch."""


class SendGrouping(Protocol):
    """Says which sends are one batch."""

    def most(self) -> tuple[int, int]:
        """Return how many rows and bytes a batch takes; a send alone may have more."""

    def count(self, sends: Sequence[Send]) -> int:
        """Return how many of some sends, from the first on, are one batch: one at the least."""


class SentSource(Source):
    """The sends of a memory stream: a range is the number of one, and so is a batch, unless several are taken together.

    Attributes
    ----------
    together : Together or None
        Says which sends are one batch, where they may be.
    handed : Handed or None
        Sends that need not be read from their files.
    ends : bool
        Whether a closed sender ends the input; the end of an archive does not, so it is not read.
    """

    together: SendGrouping | None = None
    handed: HandedSends | None = None

    def __init__(self, schema: pa.Schema, spool: str, upto: int | None = None, *, ends: bool = True) -> None:
        self.schema, self.spool, self.upto, self.ends = schema, spool, upto, ends
        self._identity = ""
        self._log = ReplayLog(spool)
        self._looked_at = _LOOKED_AT
        self._handed_last: tuple[int, Place] | None = None
        """The send that was handed over last, and where its segment goes on, while no file was looked into after it."""
        self._held: dict[int, Send] = {}
        """Sends that were planned together and are not read yet."""

    @property
    def poll_seconds(self) -> float:  # type: ignore[override]
        """Return how long to wait for sends: those that are handed over wake whoever waits."""
        return _POLL_S if self.handed is None else _POLL_WOKEN_S

    def plan(self, last: JsonValue) -> Planned | None:
        """Return the next send, and those that are taken with it; the first one where another stream was read before.

        Raises
        ------
        SourceError
            When the folder of the stream cannot be read.
        """
        try:
            return self._plan(last)
        except OSError as problem:
            raise _unreadable(self.spool, problem) from problem

    def _plan(self, last: JsonValue) -> Planned | None:
        number = 0
        if isinstance(last, dict):
            send = last["send"]
            assert isinstance(send, int)
            number = send + 1 if last["stream"] == self._stream() else 0
        elif isinstance(last, int):  # an earlier version noted no stream
            number = last + 1
        count = self._gathered(number, self.together) if self.together is not None else int(self._has(number))
        if not count or (count == 1 and not self.ends and self._is_end(number)):
            return None
        stream, last_of_it = self._stream(), number + count - 1
        position: JsonValue = {"stream": stream, "send": last_of_it}
        return Planned(position, [position if count == 1 else {"stream": stream, "first": number, "send": last_of_it}])

    def _has(self, number: int) -> bool:
        return (self.upto is None or number < self.upto) and self._log.has(number)

    def ends_with(self, position: str) -> bool:
        """Return whether a position, as JSON, is the end of the stream."""
        sends = self.sends_upto(json.loads(position)) if position else 0
        return sends > 0 and self._is_end(sends - 1)

    def _is_end(self, number: int) -> bool:
        send = self._held.get(number) or self._log.read(number)
        return send is not None and send.control is not None and send.control.watermark_us == END_OF_TIME

    def _gathered(self, number: int, together: SendGrouping) -> int:
        """Return the number of sends, from this one on, that are one batch; 0 where there is none."""
        most_rows, most_bytes = together.most()
        sends, rows, nbytes, in_file = list[Send](), 0, 0, True
        while not sends or (rows < most_rows and nbytes < most_bytes and len(sends) < self._looked_at):
            if number not in self._held:
                if self._take_handed(number):
                    in_file = False  # whatever else has come is found when the next batch is planned
                elif not in_file or not self._take_from_file(number):
                    break
            send = self._held[number]
            if send.control is not None:
                if not sends:
                    return 1
                break
            sends.append(send)
            rows, nbytes, number = rows + send.num_rows, nbytes + send.nbytes, number + 1
        count = together.count(sends) if sends else 0
        self._looked_at = max(_LOOKED_AT, 4 * count)  # sends that do not fit are looked at again for each batch before them
        return count

    def _take_handed(self, number: int) -> bool:
        """Hold the sends from a number on that were handed over. Gives False where this one was not."""
        taken = self.handed.take(number, self._looked_at) if self.handed is not None else []
        for i, (send, place) in enumerate(taken):
            self._held[number + i] = send
            self._handed_last = None if place is None else (number + i, place)
        return bool(taken)

    def _take_from_file(self, number: int) -> bool:
        """Hold a send that is in its file. Gives False if there is none yet."""
        if self.upto is not None and number >= self.upto:
            return False
        if self._handed_last is not None:
            self._log.go_on_after(*self._handed_last)
            self._handed_last = None
        send = self._log.read(number)
        if send is not None:
            self._held[number] = send
        return send is not None

    def _stream(self) -> str:
        """Return what tells this stream from any other."""
        self._identity = self._identity or self._log.identity()
        return self._identity

    def backlog(self, position: JsonValue) -> int:
        """Return the sends that no batch has taken."""
        return max(self.following() - self.sends_upto(position), 0)

    def sends_upto(self, position: JsonValue) -> int:
        """Return how many sends there are up to a position; none where it is one of another stream."""
        if isinstance(position, dict):
            send = position["send"]
            return send + 1 if isinstance(send, int) and position["stream"] == self._stream() else 0
        return position + 1 if isinstance(position, int) else 0  # an earlier version noted no stream

    def following(self) -> int:
        """Return how many sends there are."""
        following = self._log.following()
        return following if self.upto is None else min(following, self.upto)

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch | pa.Table | Malformed]:
        """Not used: a send may be a control, which is not a row; see :meth:`scanned`."""
        raise NotImplementedError

    def taken(self, planned: Sequence[Any], schema: pa.Schema) -> list[ScannedRows] | None:
        """Return the rows of sends that are held as one batch. None where one is not held, or is read another way."""
        numbers = [number for one in planned for number in _numbers(one)]
        held = [self._held.get(number) for number in numbers]
        self._held = {number: send for number, send in self._held.items() if number > numbers[-1]}
        rows, latest, fits = [], None, schema
        for send in held:
            if send is None or send.rows is None:
                return None
            if not send.rows.schema.equals(fits):
                fits = send.rows.schema
                if not _as_wanted(fits, schema):
                    return None
            if send.now_us is not None:
                latest = send.now_us if latest is None else max(latest, send.now_us)
            if isinstance(send.rows, pa.Table):
                rows += send.rows.select(schema.names).to_batches()
            else:
                rows.append(send.rows)
        whole = _joined(rows, schema)
        return [ScannedRows(batch, None, latest) for batch in whole if batch.num_rows] or [ScannedRows(None, None, latest)]

    def scanned(self, planned: JsonValue, schema: pa.Schema) -> Iterator[ScannedRows]:
        """Yield what was sent.

        Raises
        ------
        CheckpointError
            When a send is not there, or is one of another stream.
        SourceError
            When the folder of the stream cannot be read.
        """
        try:
            ours = not isinstance(planned, dict) or planned["stream"] == self._stream()
            for number in _numbers(planned):
                sent = self._log.read(number) if ours else None
                if sent is None:
                    raise missing(f"send {number} of the memory stream that was read before", WAY_OUT)
                yield from scanned_of(sent, schema)
        except OSError as problem:
            raise _unreadable(self.spool, problem) from problem

    def until_now(self) -> SentSource:
        """Up to the newest send."""
        return SentSource(self.schema, self.spool, ReplayLog(self.spool).following_sends(), ends=self.ends)


def _unreadable(spool: str, problem: OSError) -> SourceError:
    """Return an error that says what to do where the folder of a memory stream cannot be read."""
    if isinstance(problem, FileNotFoundError):
        hint = WAY_OUT.replace("the file", "it")
    else:
        hint = "see to rights there, then start the query again: it goes on where it was"
    return SourceError(f"the memory stream {spool} cannot be read", got=problem.strerror or str(problem), hint=hint)


def _numbers(planned: Any) -> range:
    """Return the numbers of the sends of a range; versions before noted a number alone."""
    if not isinstance(planned, dict):
        return range(planned, planned + 1)
    noted: dict[str, Any] = planned
    return range(noted.get("first", noted["send"]), noted["send"] + 1)


def _as_wanted(schema: pa.Schema, wanted: pa.Schema) -> bool:
    """Return whether columns need no more than to be picked."""
    if schema is wanted:
        return True
    indices = (schema.get_field_index(field.name) for field in wanted)
    return all(n >= 0 and schema.field(n).type == field.type for n, field in zip(indices, wanted, strict=True))


def _joined(rows: list[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    """Rows in as few batches as can be, with the columns of a schema."""
    if len(rows) > 1:
        with contextlib.suppress(pa.ArrowInvalid):  # texts of more than 2 GB
            rows = [pa.concat_batches(rows)]
    return [pa.RecordBatch.from_arrays([batch.column(name) for name in schema.names], schema=schema) for batch in rows]


def scanned_of(sent: Send, schema: pa.Schema) -> Iterator[ScannedRows]:
    """Yield a send as a stage reads it, with the columns of a schema."""
    rows = sent.rows
    if rows is None:
        assert sent.control is not None
        yield ScannedRows(None, sent.control, sent.control.now_us)
    elif not rows.num_rows:
        yield ScannedRows(None, None, sent.now_us)
    elif _as_wanted(rows.schema, schema):
        for batch in [rows] if isinstance(rows, pa.RecordBatch) else rows.select(schema.names).to_batches():
            yield from (ScannedRows(one, None, sent.now_us) for one in _joined([batch], schema))
    else:  # of a time when the stream had other columns: by the rules of files
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        of_file = ParquetReader(schema, sent=True).scanned(pa.BufferReader(as_parquet(table)), "a memory stream")
        yield from (attrs.evolve(scanned, now_us=sent.now_us) for scanned in of_file)


def as_ranges(source: MemorySource) -> RangeSource:
    """Return a memory stream as a source that plans ranges."""
    sends = SentSource(source.schema, source.spool, ends=source.bounded)
    return RangeSource(source.name, sends, source.schema, False)
