"""A memory stream on disk, so that a restarted query can replay it: each send is a parquet file, or a part of a segment.

A session in process begins a stream in segments (:mod:`~krishiv_py.storage.sends.segments`), one on Spark a stream of
parquet files, which Spark itself can read. A stream stays what it began as, and both engines read and write both.

Names of files are the order: twelve digits, one number a send. Control files carry a watermark instead of rows: an explicit
advance, or the end of input. Every file holds its checksum, and the file ``_krishiv_spool`` says which numbers there are, so
that a damaged or missing send is an error and not a gap. It is also the lock that senders take in turn, in threads and in
processes. Names that begin with an underscore or a dot are not looked at; anything else in the folder is refused.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import attrs
import pyarrow as pa

from krishiv_py.errors import CheckpointError, SenderClosedError, SpoolError
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.running import Control
from krishiv_py.storage.checksums import as_parquet, damaged, missing, sealed_parquet
from krishiv_py.storage.local import DISK, create, has_locks, locked, sync, take_name
from krishiv_py.storage.notes import no_folder
from krishiv_py.storage.sends.segments import (
    ENDING,
    INDEX_BYTES,
    WAY_OUT,
    Place,
    Segments,
    Send,
    index_bytes,
    open_sent,
    opened,
    read_index,
)

CONTROL: Final = "__krishiv_control_us"
_CONTROL_SCHEMA: Final = pa.schema(
    [pa.field(CONTROL, pa.int64()), pa.field("source", pa.string()), pa.field("now_us", pa.int64())]
)
_NOW: Final = b"krishiv_now_us"
_SNAPSHOT: Final = b"krishiv_snapshot"
_STREAM: Final = b"krishiv_stream"
_FIRST_MTIME: Final = 1_000_000_000
_NAME: Final = re.compile(r"[0-9]{12}\.parquet")
_SEGMENT: Final = re.compile(r"[0-9]{12}\.sends")
_INDEX: Final = "_krishiv_spool"


_HANDED_BYTES: Final = 1 << 25


@attrs.define(eq=False)
class HandedSends:
    """Sends of this process, for one of its queries: who sends sets the event, and leaves the rows, so that no file is read.

    What is more than 32 MB is not left: the query reads its file, so memory stays bounded while the query has more to do than
    it can.

    Attributes
    ----------
    event : threading.Event
        Is set by each send.
    """

    event: threading.Event
    _sends: dict[int, tuple[Send, Place | None]] = attrs.field(factory=dict)
    _bytes: int = 0
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def put(self, number: int, sent: Send, place: Place | None) -> None:
        """Leave a send, and where its segment goes on after it."""
        with self._lock:
            if self._bytes + sent.nbytes <= _HANDED_BYTES:
                self._sends[number] = sent, place
                self._bytes += sent.nbytes
        if not self.event.is_set():
            self.event.set()

    def take(self, number: int, most: int) -> list[tuple[Send, Place | None]]:
        """Take the sends from a number on, up to one that was not left, and where the segment of each goes on.

        Those before the number go.
        """
        taken = list[tuple[Send, Place | None]]()
        with self._lock:
            while self._sends and (first := next(iter(self._sends))) < number:
                self._bytes -= self._sends.pop(first)[0].nbytes
            while len(taken) < most and (left := self._sends.pop(number + len(taken), None)) is not None:
                self._bytes -= left[0].nbytes
                taken.append(left)
        return taken


_WAITING: Final[dict[str, list[HandedSends]]] = {}
"""The readers in this process that wait for sends, by the folder of the stream."""
_changing: Final = threading.Lock()


@contextlib.contextmanager
def handed_sends(folder: str, handed: HandedSends) -> Iterator[None]:
    """Inside, sends of this process into the stream of a folder are handed over."""
    with _changing:
        _WAITING[folder] = [*_WAITING.get(folder, ()), handed]
    try:
        yield
    finally:
        with _changing:
            others = [one for one in _WAITING.pop(folder) if one is not handed]
            if others:
                _WAITING[folder] = others


def wall_clock_us() -> int:
    """Processing time, µs since the epoch."""
    return time.time_ns() // 1_000


@attrs.define
class ReplayLog:
    """The folder of one memory stream.

    Attributes
    ----------
    folder : str
        Where it is.
    durable : bool
        Whether what was sent must survive a loss of power.
    begins_segments : bool
        Whether a stream that has no sends yet begins in segments.
    """

    folder: str
    durable: bool = False
    begins_segments: bool = False
    _segments: Segments | None = attrs.field(default=None, init=False, eq=False)
    _is_known: bool = attrs.field(default=False, init=False, eq=False)
    """Return whether the content of the stream is known, as it is from its first send on."""
    _next: int = attrs.field(default=0, init=False, eq=False)
    _id: bytes = attrs.field(default=b"", init=False, eq=False)

    @property
    def is_there(self) -> bool:
        """Return whether something was sent there before."""
        return os.path.exists(f"{self.folder}/{_INDEX}")

    @property
    def in_segments(self) -> bool:
        """Return whether the sends of the stream are in segments."""
        return self._in_segments() is not None

    def _in_segments(self) -> Segments | None:
        """Return the segments of the stream; None where its sends are files, or it has none."""
        if not self._is_known and os.path.isdir(self.folder):
            segments = Segments(self.folder, self.durable, self._id)
            if segments.firsts():
                self._segments = segments
            self._is_known = self._segments is not None or self._read_index()[1] > 0
        return self._segments

    def sends(self) -> Iterator[Send]:
        """Read all sends, in order of sending.

        Raises
        ------
        CheckpointError
            When a send is missing, damaged or was trimmed, or a file is there that no sender wrote; names it.
        """
        segments = self._in_segments()
        if segments is None:
            yield from map(read_file, self.files())
            return
        self._check_whole()
        self._numbers()
        first, following, _ = self._read_index()
        yield from segments.every(first, following)

    def read(self, number: int) -> Send | None:
        """Read a send; None if there is none yet.

        Raises
        ------
        CheckpointError
            When it is missing, damaged or was trimmed.
        """
        segments = self._in_segments()
        if segments is None:
            path = self.sent(number)
            return None if path is None else read_file(path)
        sent = segments.read(number, 0, 0)  # the index is looked at only where a send cannot be read
        if sent is None:
            first, following, _ = self._read_index()
            if number < first:
                self._check_whole()
            sent = segments.read(number, first, following) if number < following else None
        return sent

    def go_on_after(self, number: int, place: Place) -> None:
        """Let the next :meth:`read` begin where a send ends that was handed over."""
        segments = self._in_segments()
        if segments is not None:
            segments.go_on_after(number, place)

    def has(self, number: int) -> bool:
        """Return whether there is a send of a number; raises as :meth:`read`."""
        return self.read(number) is not None if self.in_segments else self.sent(number) is not None

    def following_sends(self) -> int:
        """Return the number after the last send, after a look at all of them; raises as :meth:`sends`."""
        return sum(1 for _ in self.sends()) if self.in_segments else len(self.files())

    def files(self) -> list[str]:
        """Return the files of all sends, in order of sending, where they are files.

        Raises
        ------
        CheckpointError
            When a send is missing or was trimmed, or a file is there that no sender wrote; names it.
        """
        self._check_whole()
        return self._present()

    def _check_whole(self) -> None:
        if self.first():
            what = f"the first sends of {self.folder} were trimmed"
            hint = "go on from a checkpoint that has read them"
            raise CheckpointError(what, got=f"{self.first()} of them", then="their rows would be missing", hint=hint)

    def first(self) -> int:
        """Return the number of the first send that is kept."""
        return self._read_index()[0]

    def drop_before(self, number: int) -> int:
        """Remove the sends before a number; returns how many. Stopped half way, the rest is removed by the next call."""
        with self._locked() as file_:
            first, following, identity = read_index(os.pread(file_, INDEX_BYTES + 1, 0))
            upto = max(first, min(number, following))
            if upto > first:
                os.pwrite(file_, index_bytes(upto, following, identity), 0)
                os.fsync(file_)
            segments = self._in_segments()
            if segments is not None:
                segments.at_end(following)
                segments.drop_before(upto)
                return upto - first
            old = [n for n in self._numbers() if n < upto]
            for n in old:
                os.unlink(self.path(n))
        return len(old)

    def _present(self) -> list[str]:
        first, following, _ = self._read_index()
        numbers = [number for number in self._numbers() if number >= first]
        wanted = range(first, max(following, numbers[-1] + 1 if numbers else 0))
        if numbers != list(wanted):
            lacking = next((n for n in wanted if n not in set(numbers)), numbers[0] if numbers else first)
            raise missing(self.path(lacking), WAY_OUT)
        return [self.path(number) for number in numbers]

    def sent(self, number: int) -> str | None:
        """Return the file of a send; None if there is none yet.

        Raises
        ------
        CheckpointError
            When it is missing or was trimmed.
        """
        path = self.path(number)
        if not os.path.exists(path):
            first, following, _ = self._read_index()  # written after the file
            if number < following and not os.path.exists(path):
                if number < first:
                    self.files()  # says what was trimmed
                raise missing(path, WAY_OUT)
            return None
        return path

    def following(self) -> int:
        """Return the number that the next send will have, as the index says it."""
        return self._read_index()[1]

    def size(self) -> int:
        """Bytes of all sends."""
        segments = self._in_segments()
        if segments is not None:
            return segments.nbytes()
        return sum(os.path.getsize(f) for f in self.files())

    def append(self, sent: Send | pa.Table, what: str = "send()") -> int:
        """Write the next send, whole or not at all; returns its number. `what` is the call it is for.

        Raises
        ------
        SenderClosedError
            When another sender has closed the stream.
        SpoolError
            When it cannot be written: the disk is full, or the folder lacks rights or was removed.
        """
        if isinstance(sent, pa.Table):
            sent = Send(sent, None, None, sent.get_total_buffer_size())
        try:
            segments = self._in_segments()
            if segments is None:
                number, place = self._append(_as_table(sent), what), None
            else:
                number, place = self._append_to(segments, sent, what)
        except OSError as problem:
            raise _unwritten(self.folder, what, problem) from problem
        for handed in list(_WAITING.get(self.folder, ())):
            handed.put(number, sent, place)
        return number

    def _append_to(self, segments: Segments, sent: Send, what: str) -> tuple[int, Place]:
        segments.identity = segments.identity or self.identity().encode()
        with locked(f"{self.folder}/{_INDEX}", is_made=False) as file_:
            first, following, identity = read_index(os.pread(file_, INDEX_BYTES, 0))
            self._check_same(identity, segments.identity, what)
            segments.at_end(following)
            if segments.ended:
                raise SenderClosedError(closed_text(what))
            number = segments.write(sent)
            os.pwrite(file_, index_bytes(first, number + 1, segments.identity), 0)
            if self.durable:
                os.fsync(file_)
            return number, segments.place

    def _append(self, table: pa.Table, what: str) -> int:
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), _STREAM: self.identity().encode()})
        pieces = sealed_parquet(as_parquet(table))
        with self._locked(is_made=False) as file_:
            first, following, identity = read_index(os.pread(file_, INDEX_BYTES, 0))
            self._check_same(identity, self._id, what)
            number = max(self._next, following)
            while os.path.exists(self.path(number)):  # of a sender that died before it wrote so into the index
                number += 1
            if number > self._next and number > first and self._ends(self.path(number - 1)):
                raise SenderClosedError(closed_text(what))
            hidden = f"{self.folder}/_{uuid.uuid4().hex}.tmp"
            # Spark takes files by modification time: strictly increasing, and never in the future, keeps the order of sending
            create(hidden, pieces, durable=self.durable, mtime_s=_FIRST_MTIME + number)
            try:
                while not take_name(hidden, self.path(number)):  # where there are no locks, another sender was faster
                    number += 1
                    os.utime(hidden, (_FIRST_MTIME + number,) * 2)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(hidden)
                raise
            self._next = number + 1
            os.pwrite(file_, index_bytes(first, self._next, self._id), 0)
            if self.durable:
                os.fsync(file_)
                sync(self.folder)
        return number

    def _check_same(self, identity: bytes, ours: bytes, what: str) -> None:
        """See that the folder has the stream that this sender writes, and not one that was made where a mount was missing."""
        if identity != ours:
            raise SpoolError(
                f"{what}: the memory stream in {self.folder} is another one than before",
                got=f"stream {identity.decode(errors='replace') or '(none)'}, and not {ours.decode()}",
                then="nothing of this send was kept; earlier ones are",
                hint=_NOT_THERE,
            )

    def control(self, control: Control, what: str) -> int:
        """Write a control, for the call `what`."""
        return self.append(Send(None, control.now_us, control), what)

    def closed(self) -> bool:
        """Return whether the last send says that no more will come."""
        if self.in_segments:
            segments = Segments(self.folder, durable=False)  # of its own, as another thread may be sending
            with self._locked() as file_:
                segments.at_end(read_index(os.pread(file_, INDEX_BYTES, 0))[1])
            return segments.ended
        files = self._present()
        return bool(files) and self._ends(files[-1])

    def tidy(self) -> None:
        """Remove what senders that died left behind, and begin the segments of a new stream where they are wanted."""
        self.identity()
        with self._locked() as file_:
            for path in Path(self.folder).glob("_*.tmp"):
                path.unlink(missing_ok=True)
            following = read_index(os.pread(file_, INDEX_BYTES, 0))[1]
            if self.begins_segments and not following and not self._numbers() and has_locks(file_):
                Segments(self.folder, self.durable).begin(0)

    def identity(self) -> str:
        """Return what tells this stream from any other, also after its folder was moved; every file says it."""
        if not self._id:
            with self._locked() as file_:
                data = os.pread(file_, INDEX_BYTES + 1, 0)
                self._id = read_index(data)[2]
                if not self._id:  # nobody wrote it, or a crash cut it
                    segments = self._in_segments()
                    if segments is not None:
                        firsts, self._id = segments.firsts(), segments.named() or uuid.uuid4().hex[:12].encode()
                        os.ftruncate(file_, 0)
                        os.pwrite(file_, index_bytes(firsts[0], segments.at_end(0), self._id), 0)
                        return self._id.decode()
                    numbers = self._numbers()
                    self._id = self._read_identity(self.path(numbers[0])) if numbers else uuid.uuid4().hex[:12].encode()
                    os.ftruncate(file_, 0)
                    first, following = (
                        (numbers[0], numbers[-1] + 1) if numbers else (0, 0)
                    )  # those before it may have been trimmed
                    os.pwrite(file_, index_bytes(first, following, self._id), 0)
        return self._id.decode()

    def _read_identity(self, path: str) -> bytes:
        metadata = opened(pa.memory_map(path).read_buffer(), path).schema_arrow.metadata or {}
        return bytes(metadata.get(_STREAM, b"0" * 12))

    def path(self, number: int) -> str:
        return f"{self.folder}/{number:012d}.parquet"

    def _ends(self, path: str) -> bool:
        parquet = opened(pa.memory_map(path).read_buffer(), path)
        last = control_of(parquet.read()) if parquet.schema_arrow.names[:1] == [CONTROL] else None
        return last is not None and last.watermark_us == END_OF_TIME and last.source is None

    @contextlib.contextmanager
    def _locked(self, *, is_made: bool = True) -> Iterator[int]:
        """Hold the lock of the stream, which is its index; yields the descriptor of that."""
        path = f"{self.folder}/{_INDEX}"
        with no_folder(path, WAY_OUT), locked(path, is_made=is_made) as file_:
            yield file_

    def _read_index(self) -> tuple[int, int, bytes]:
        path = f"{self.folder}/{_INDEX}"
        try:
            file_ = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return 0, 0, b""
        try:
            return read_index(os.pread(file_, INDEX_BYTES + 1, 0))
        except IsADirectoryError as problem:
            raise damaged(path, "a folder", WAY_OUT) from problem
        finally:
            os.close(file_)

    def _numbers(self) -> list[int]:
        with os.scandir(self.folder) as entries:
            seen = [(e.name, e.is_dir()) for e in entries if not e.name.startswith(("_", "."))]
        wanted, ending = (_NAME, ".parquet") if self._in_segments() is None else (_SEGMENT, ENDING)
        foreign = sorted(name for name, folder in seen if folder or not wanted.fullmatch(name))
        if foreign:
            got = "a folder" if dict(seen)[foreign[0]] else f"another name than twelve digits and {ending}"
            hint = "keep nothing else in the folder of a memory stream; read other files with read_parquet()"
            raise CheckpointError(f"{self.folder}/{foreign[0]} was written by no sender", got=got, hint=hint)
        return sorted(int(name[:12]) for name, _ in seen)


_NOT_THERE: Final = (
    "mount the folder, or put it back, and send the rows again; for a new stream make the sender again: "
    "session.memory_stream(..., spool=...)"
)


def _unwritten(folder: str, what: str, problem: OSError) -> SpoolError:
    reason = problem.strerror or str(problem)
    gone = isinstance(problem, FileNotFoundError)
    error = SpoolError(
        f"{what}: the rows could not be written to {folder}",
        got=reason,
        then="nothing of this send was kept; earlier ones are",
        hint=_NOT_THERE if gone else "see to room and rights there, and send the rows again",
    )
    error.errno = problem.errno
    return error


def closed_text(what: str) -> str:
    """Return the reason for which the call `what` of a closed sender is refused."""
    return (
        f"{what} on a closed sender: the end of input was declared and every window has fired. Hint: open another memory_stream"
    )


def read_file(path: str) -> Send:
    """Read the send of a file."""
    parquet = open_sent(DISK, path)
    rows = parquet.read()
    control, now_us = control_of(rows), sent_at(rows.schema)
    if control is not None:
        return Send(None, control.now_us, control)
    return Send(rows.replace_schema_metadata(None), now_us, None, rows.get_total_buffer_size())


def _as_table(sent: Send) -> pa.Table:
    """Return a send as its file has it."""
    if sent.control is not None:
        return control_table(sent.control)
    table = sent.rows if isinstance(sent.rows, pa.Table) else pa.Table.from_batches([sent.rows])
    return table if sent.now_us is None else table.replace_schema_metadata({_NOW: str(sent.now_us).encode()})


def control_table(control: Control) -> pa.Table:
    """Return what a control file holds."""
    row = [[control.watermark_us], [control.source], [control.now_us]]
    columns = [pa.array(v, f.type) for v, f in zip(row, _CONTROL_SCHEMA, strict=True)]
    schema = _CONTROL_SCHEMA.with_metadata({_SNAPSHOT: b"1"}) if control.snapshot else _CONTROL_SCHEMA
    return pa.Table.from_arrays(columns, schema=schema)


def control_of(table: pa.Table) -> Control | None:
    """Return what a control file says; None for rows."""
    if table.schema.names != _CONTROL_SCHEMA.names:
        return None
    row = table.to_pylist()[0]
    return Control(row[CONTROL], row["source"], row["now_us"], _SNAPSHOT in (table.schema.metadata or {}))


def sent_at(schema: pa.Schema) -> int | None:
    """Processing time at which a file of rows was sent, µs; None for files of other origin."""
    note = (schema.metadata or {}).get(_NOW)
    return None if note is None else int(note)
