"""Files of a memory stream: sends, each with its checksum, and the index of their numbers.

``000000000042.sends`` begins with send 42. A file is a sequence of frames: the schema, sends and controls, and at its end a
frame that says that the next file goes on. A frame has a header with its number, its length and checksums of header and body.
The index of the stream says which numbers there are: a frame that is damaged or cut is an error if the index knows its number,
and else the rest of a send that was broken off, over which the next send is written.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import struct
from collections.abc import Iterator
from typing import Final, TypeAlias

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.running import Control
from krishiv_py.storage.checksums import check_parquet, checksum, damaged, missing
from krishiv_py.storage.local import sync
from krishiv_py.storage.notes import no_folder
from krishiv_py.storage.store import Store

INDEX_BYTES: Final = 48
RANGE: Final = "__krishiv_range"
"""The column of a file of a range log that holds what was planned."""
WAY_OUT: Final = "put the file back from a copy, or start with a new checkpoint: another memory stream and a new checkpoint"


def index_bytes(first: int, following: int, identity: bytes) -> bytes:
    """Return the index of a memory stream: its first and following number, and what tells it from others."""
    body = b"%012d %012d %s " % (first, following, identity)
    return b"%s%08x\n" % (body, checksum(body))


def read_index(data: bytes) -> tuple[int, int, bytes]:
    """First and following number and identity; nothing where a crash cut them: then the files alone tell."""
    body = data[:39]
    if len(data) != INDEX_BYTES or data != b"%s%08x\n" % (body, checksum(body)):
        return 0, 0, b""
    return int(body[:12]), int(body[13:25]), body[26:38]


def open_sent(store: Store, path: str) -> pq.ParquetFile:
    """Read a file of a spool, or a control file, and look at its checksum.

    Raises
    ------
    CheckpointError
        When it is not there, or not what was written; names the file.
    """
    try:
        with no_folder(path, WAY_OUT), store.open(path) as file:
            data = file.read_buffer()
    except FileNotFoundError as problem:
        raise missing(path, WAY_OUT) from problem
    return opened(data, path)


def opened(data: pa.Buffer, where: str) -> pq.ParquetFile:
    """Return a file of a spool, or a control file, after a look at its checksum.

    Raises
    ------
    CheckpointError
        When it is not what was written; names the file, `where`.
    """
    check_parquet(data, where, WAY_OUT)
    return pq.ParquetFile(pa.BufferReader(data))


ENDING: Final = ".sends"
_NAME: Final = re.compile(r"([0-9]{12})\.sends")
_HEADER: Final = struct.Struct("<4sBQqQI")
_CHECK: Final = struct.Struct("<I")
_HEADER_BYTES: Final = _HEADER.size + _CHECK.size
_MAGIC: Final = b"kSd1"
_BEGIN, _SCHEMA, _ROWS, _TABLE, _CONTROL, _OVER = range(6)
"""Kinds of frames: ``_BEGIN`` names the stream, ``_ROWS`` is one record batch of the schema, ``_TABLE`` an Arrow stream
of several."""
_ROLLED_BYTES: Final = 1 << 20
_NO_TIME: Final = -(1 << 63)

Place: TypeAlias = tuple[int, int]
"""The first number of a segment, and where in it a send ends."""


@attrs.frozen(eq=False)
class Send:
    """One send: rows, or a control.

    Attributes
    ----------
    rows : pyarrow.RecordBatch or pyarrow.Table or None
        Its rows; None of a control.
    now_us : int or None
        Processing time at which it was sent, µs since the epoch.
    control : Control or None
        What it says of the watermark.
    nbytes : int
        How large it is, roughly.
    """

    rows: pa.RecordBatch | pa.Table | None
    now_us: int | None = None
    control: Control | None = None
    nbytes: int = 0

    @property
    def num_rows(self) -> int:
        """Return how many rows it has."""
        return 0 if self.rows is None else int(self.rows.num_rows)


@attrs.frozen
class _Frame:
    kind: int
    number: int
    now_us: int
    begin: int
    length: int
    check: int

    @property
    def end(self) -> int:
        """Return where the next frame begins."""
        return self.begin + _HEADER_BYTES + self.length


@attrs.define(eq=False)
class Segments:
    """The segments of the stream in a folder.

    Attributes
    ----------
    folder : str
        Where they are.
    durable : bool
        Whether what is written must survive a loss of power.
    identity : bytes
        What tells the stream from any other; each segment begins with it.
    """

    folder: str
    durable: bool
    identity: bytes = b""
    _first: int = attrs.field(default=-1, init=False)
    """The first number of the segment that is read or written."""
    _path: str = attrs.field(default="", init=False)
    _file: int = attrs.field(default=-1, init=False)
    _pid: int = attrs.field(default=0, init=False)
    _end: int = attrs.field(default=0, init=False)
    """The place at which the frame of `_next` begins, or will."""
    _next: int = attrs.field(default=0, init=False)
    _inode: int = attrs.field(default=0, init=False)
    _schema: pa.Schema | None = attrs.field(default=None, init=False)
    _in_batches: bool | None = attrs.field(default=None, init=False)
    """True if record batches of the schema say all, without dictionaries before them; None until one is written."""
    _ended: bool = attrs.field(default=False, init=False)
    """True if the last send says that no more will come."""

    def __del__(self) -> None:
        self._leave()

    def firsts(self) -> list[int]:
        """Return the first numbers of all segments, in order."""
        with os.scandir(self.folder) as entries:
            return sorted(int(m[1]) for e in entries if (m := _NAME.fullmatch(e.name)))

    def path(self, first: int) -> str:
        """Return the path of the segment that begins with a number."""
        return f"{self.folder}/{first:012d}{ENDING}"

    # writing: the caller holds the lock of the stream

    def begin(self, number: int) -> None:
        """Make the first segment of a stream: from now on sends go into segments."""
        os.close(os.open(self.path(number), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))

    def at_end(self, following: int) -> int:
        """Go to the end, and return the number that the next send has; `following` is what the index says.

        Raises
        ------
        CheckpointError
            When a send that the index knows is missing or damaged.
        """
        size = self._size()
        if size == self._end and self._next >= following:
            return self._next
        if size < self._end:  # another file, or a part of it is lost
            firsts = self.firsts()
            if not firsts and following:
                raise missing(self.path(following - 1), WAY_OUT)
            if not firsts:
                self.begin(0)
            self._enter(firsts[-1] if firsts else 0)
        while (frame := self._frame()) is not None:
            if frame.kind == _OVER:
                if not os.path.exists(self.path(frame.number)):
                    self.begin(frame.number)
                self._enter(frame.number)
            else:
                self._pass(frame)
        if self._next < following:
            raise self._missing(self._next)
        if os.fstat(self._file).st_size > self._end:  # the rest of a send that was broken off
            os.ftruncate(self._file, self._end)
        return self._next

    def write(self, sent: Send) -> int:
        """Write a send at the end, in one write; returns its number. :meth:`at_end` was called before.

        Raises
        ------
        OSError
            When it cannot be written; then nothing of it is kept.
        """
        rows = sent.rows
        if self._end >= _ROLLED_BYTES or (rows is not None and self._schema not in (None, rows.schema)):
            self._roll()
        pieces: list[bytes | pa.Buffer] = []
        if not self._end:
            pieces += [_header(_BEGIN, self._next, _NO_TIME, self.identity), self.identity]
        if self._schema is None and rows is not None:
            body = rows.schema.serialize()
            pieces += [_header(_SCHEMA, self._next, _NO_TIME, body), body]
        if rows is not None and (self._schema is None or self._in_batches is None):
            self._in_batches = not any(map(_is_dictionary, rows.schema.types))
        kind, body = _body(sent, in_batches=self._in_batches is True)
        now_us = _NO_TIME if sent.now_us is None else sent.now_us
        pieces += [_header(kind, self._next, now_us, body), body]
        self._put(pieces)
        if self._schema is None and rows is not None:
            self._schema = rows.schema
        self._ended = sent.control is not None and _ends(sent.control)
        self._next += 1
        return self._next - 1

    @property
    def place(self) -> Place:
        """Return where the send ends that was written or read last."""
        return self._first, self._end

    @property
    def ended(self) -> bool:
        """Return whether the last send says that no more will come."""
        return self._ended

    def drop_before(self, number: int) -> None:
        """Remove segments that have no send of this number or a later one; the stream keeps one."""
        firsts = self.firsts()
        if firsts and number >= self._next > firsts[-1]:
            self._roll()
            firsts = self.firsts()
        for first, after in itertools.pairwise(firsts):
            if after <= number:
                os.unlink(self.path(first))

    def _roll(self) -> None:
        """Let the next send begin a segment."""
        self._put([_header(_OVER, self._next, _NO_TIME, b"")])
        self.begin(self._next)
        if self.durable:
            sync(self.folder)
        self._enter(self._next)

    def _put(self, pieces: list[bytes | pa.Buffer]) -> None:
        data = b"".join(pieces)
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._file, memoryview(data)[done:], self._end + done)
            if self.durable:
                os.fsync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise
        self._end += len(data)

    def _size(self) -> int:
        """Return the bytes of the segment; -1 where it is not, or no more, the one that is open."""
        if self._file < 0 or self._pid != os.getpid():
            return -1
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return -1
        return status.st_size if status.st_ino == self._inode else -1

    # reading

    def read(self, number: int, first: int, following: int) -> Send | None:
        """Return a send; None if there is none yet. `first` and `following` are what the index says.

        Raises
        ------
        CheckpointError
            When it is missing or damaged.
        """
        known = number < following
        if number < self._next or self._size() < 0:
            firsts = [one for one in self.firsts() if one <= number]
            if not firsts:
                if known:
                    raise self._missing(first)
                return None
            self._enter(firsts[-1])
        while True:
            frame = self._frame()
            if frame is None:
                if known:
                    raise self._missing(self._next)
                return None
            if frame.kind == _OVER:
                if not os.path.exists(self.path(frame.number)):
                    if known:
                        raise missing(self.path(frame.number), WAY_OUT)
                    return None
                self._enter(frame.number)
                continue
            if frame.number == number and frame.kind not in (_BEGIN, _SCHEMA):
                payload = self._sent(frame)
                if payload is None:
                    if known:
                        raise self._damaged(frame.begin)
                    return None
                self._pass(frame)
                return payload
            self._pass(frame)

    def go_on_after(self, number: int, place: Place) -> None:
        """Go on where a send ends that need not be read, if its segment is there."""
        first, end = place
        if number < self._next:
            return
        with contextlib.suppress(FileNotFoundError):  # the next read says what that means
            if first != self._first or self._size() < 0:
                self._enter(first)
            self._next, self._end = number + 1, end

    def every(self, first: int, following: int) -> Iterator[Send]:
        """Read all sends from the first that is kept."""
        number = first
        while (sent := self.read(number, first, following)) is not None:
            yield sent
            number += 1

    def named(self) -> bytes:
        """Return what the first segment says of the identity of the stream; nothing where it is empty."""
        self._enter(self.firsts()[0])
        frame = self._frame()
        if frame is not None:
            self._pass(frame)
        return self.identity

    def nbytes(self) -> int:
        """Return the bytes of all segments."""
        return sum(os.path.getsize(self.path(first)) for first in self.firsts())

    def _enter(self, first: int) -> None:
        self._leave()
        self._path = self.path(first)
        with no_folder(self._path, WAY_OUT):
            self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._pid, self._inode = os.getpid(), os.fstat(self._file).st_ino
        self._first, self._next, self._end, self._schema, self._ended = first, first, 0, None, False
        self._in_batches = None

    def _leave(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)
        self._file = -1

    def _frame(self) -> _Frame | None:
        """Return the frame that comes next; None where none is whole."""
        head = os.pread(self._file, _HEADER_BYTES, self._end)
        if len(head) < _HEADER_BYTES:
            return None
        magic, kind, number, now_us, length, check = _HEADER.unpack_from(head)
        if _CHECK.unpack_from(head, _HEADER.size)[0] != checksum(head[: _HEADER.size]) or magic != _MAGIC:
            return None
        frame = _Frame(kind, number, now_us, self._end, length, check)
        if number != self._next or os.fstat(self._file).st_size < frame.end:
            return None
        return frame

    def _pass(self, frame: _Frame) -> None:
        """Go on after a frame."""
        if frame.kind in (_BEGIN, _SCHEMA):
            body = self._body(frame)
            if body is None:
                raise self._damaged(frame.begin)
            if frame.kind == _SCHEMA:
                self._schema = pa.ipc.read_schema(pa.py_buffer(body))
            else:
                self.identity = body
        else:
            self._next = frame.number + 1
            self._ended = False
            if frame.kind == _CONTROL:
                sent = self._sent(frame)
                self._ended = sent is not None and sent.control is not None and _ends(sent.control)
        self._end = frame.end

    def _body(self, frame: _Frame) -> bytes | None:
        body = os.pread(self._file, frame.length, frame.begin + _HEADER_BYTES)
        return body if len(body) == frame.length and checksum(body) == frame.check else None

    def _sent(self, frame: _Frame) -> Send | None:
        """Return what a frame holds; None where its body is not what was written."""
        body = self._body(frame)
        if body is None:
            return None
        now_us = None if frame.now_us == _NO_TIME else frame.now_us
        if frame.kind == _CONTROL:
            said = json.loads(body)
            return Send(None, now_us, Control(said["watermark_us"], said["source"], said["now_us"], said["snapshot"]))
        rows: pa.RecordBatch | pa.Table
        if frame.kind == _TABLE:
            rows = pa.ipc.open_stream(body).read_all()
        else:
            schema = self._schema_of_segment()
            if schema is None:
                return None
            rows = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
        return Send(rows, now_us, None, frame.length)

    def _schema_of_segment(self) -> pa.Schema | None:
        """Return the schema, which is looked for where its frame was passed over."""
        if self._schema is None:
            following, end = self._next, self._end
            self._next, self._end = self._first, 0
            while self._schema is None and (frame := self._frame()) is not None:
                self._pass(frame)
            self._next, self._end = following, end
        return self._schema

    def _missing(self, number: int) -> Exception:
        """Say why a send that the index knows cannot be read: its file has other bytes, or ends before it."""
        try:
            size = os.fstat(self._file).st_size if self._file >= 0 else 0
        except OSError:
            size = 0
        if self._file < 0 or not os.path.exists(self.path(self._first)) or number < self._first:
            return missing(self.path(number), WAY_OUT)
        return damaged(self.path(self._first), f"{size} bytes, of which send {number} cannot be read", WAY_OUT)

    def _damaged(self, position: int) -> Exception:
        return damaged(self.path(self._first), f"a wrong checksum at byte {position}", WAY_OUT)


def _body(sent: Send, *, in_batches: bool) -> tuple[int, bytes | pa.Buffer]:
    """Return the kind and the body of the frame of a send; `in_batches` if a record batch of its schema says all."""
    if sent.control is not None:
        return _CONTROL, json.dumps(attrs.asdict(sent.control), separators=(",", ":")).encode()
    rows = sent.rows
    if in_batches and isinstance(rows, pa.RecordBatch):
        return _ROWS, rows.serialize()
    held = pa.BufferOutputStream()
    assert rows is not None
    with pa.ipc.new_stream(held, rows.schema) as writer:
        writer.write(rows)
    return _TABLE, held.getvalue()


def _is_dictionary(kind: pa.DataType) -> bool:
    return pa.types.is_dictionary(kind) or any(_is_dictionary(kind.field(i).type) for i in range(kind.num_fields))


def _ends(control: Control) -> bool:
    return control.watermark_us == END_OF_TIME and control.source is None


def _header(kind: int, number: int, now_us: int, body: bytes | pa.Buffer) -> bytes:
    head = _HEADER.pack(_MAGIC, kind, number, now_us, len(body), checksum(body))
    return head + _CHECK.pack(checksum(head))
