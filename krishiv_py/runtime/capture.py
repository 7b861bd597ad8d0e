"""A capture: the state of a query before some of its batches, and what these batches read (docs/capture.md).

::

    capture.json                 the plan, columns of sources, and of each batch its clock and what was read
    savepoint/                   the state before the first of them; none where the query began with it
    batches/000000000007/0.arrow rows of the first source in batch 7, a record batch for each part that was read
    tables/0.arrow               a version of a table that rows are looked up in

Nothing of the sources is needed to run it again, so it outlives retention and deleted files. ``capture.json`` is written last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa
from typing_extensions import NotRequired, TypedDict

from krishiv_py.connectors.source import Malformed
from krishiv_py.plan.running import Control
from krishiv_py.runtime.reading import ScannedRows
from krishiv_py.runtime.savepoints import begin_folder, check_version, finish_folder, note_of, writing
from krishiv_py.storage.checksums import checksum, damaged, missing, sealed, unsealed
from krishiv_py.storage.files import read_at, write_at
from krishiv_py.storage.local import absolute
from krishiv_py.storage.notes import in_shape, of_types, reading

VERSION: Final = 2
"""Of the format; a later version of the library opens all earlier ones. Version 1 had no tables."""
_NOTE: Final = "capture.json"
_WAY_OUT: Final = "make the capture again from the checkpoint, if its inputs are still there"
_MALFORMED: Final = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in ("file", "text", "problem", "topic")),
        *(pa.field(name, pa.int64()) for name in ("line", "partition", "offset")),
        *(pa.field(name, pa.binary()) for name in ("key", "value")),
    ]
)


class FileNote(TypedDict):
    """Size and checksum of a file."""

    bytes: int
    crc32: str


class _PartNote(TypedDict):
    """A part that a batch read: its rows and refused rows, by their number in the files, and what it says of the watermark."""

    partition: str
    now_us: int | None
    control: NotRequired[dict[str, Any]]
    rows: NotRequired[int]
    bad: NotRequired[int]


class ReadNote(TypedDict):
    """The note of the parts that a batch read of a source."""

    parts: list[_PartNote]
    rows: NotRequired[FileNote]
    bad: NotRequired[FileNote]


@attrs.frozen
class CapturedBatch:
    """A batch of a capture.

    Attributes
    ----------
    number : int
        Its number in the query.
    now_us : int
        The clock when it began, µs since the epoch.
    waits : bool
        Whether a step without rows follows within it, as in process; on Spark that is a batch of its own.
    ended, snapshot : bool
        Whether the input counts as ended after it, and whether it shows what is open.
    reads : dict
        By the number of a source, what was read of it: the parts as they are noted.
    closed : dict
        By the number of a stage, the keys that were closed before its rows, as texts.
    tables : dict
        By the name of a lookup table, the file with the version that the batch had.
    partitions : dict
        By the number of a source, the partitions that it knew of, where each is a lane (SEMANTICS §2.8).
    """

    number: int
    now_us: int
    waits: bool
    ended: bool = False
    snapshot: bool = False
    reads: dict[str, ReadNote] = attrs.field(factory=dict)
    closed: dict[str, list[str]] = attrs.field(factory=dict)
    tables: dict[str, str] = attrs.field(factory=dict)
    partitions: dict[str, list[str]] = attrs.field(factory=dict)


@attrs.define
class OpenCapture:
    """A capture that is open, in `folder`.

    Attributes
    ----------
    plan : dict
        What the state of the query depends on.
    sources : list of list of str
        By which names each source is known.
    batches : list of CapturedBatch
        In their order.
    hidden : dict
        Columns that were left out or hashed, and which of both.
    begins : bool
        Whether the query began with the first of the batches, with no state.
    checkpoint : str
        The checkpoint that it was made of.
    tables : dict
        Sizes and checksums of the versions of lookup tables, by their files.
    """

    folder: str
    plan: dict[str, str]
    sources: list[list[str]]
    batches: list[CapturedBatch]
    hidden: dict[str, str]
    begins: bool
    checkpoint: str
    tables: dict[str, FileNote] = attrs.field(factory=dict)
    version: int = VERSION

    @classmethod
    def open(cls, folder: str) -> OpenCapture:
        """Open a capture.

        Raises
        ------
        CheckpointError
            When there is none, or it is damaged or of a later version.
        """
        folder = absolute(folder).rstrip("/")
        path = f"{folder}/{_NOTE}"
        data = note_of(folder, _NOTE, "capture", "pass the folder that session.capture(...) or krishiv capture wrote")
        with reading(path, _WAY_OUT):
            result = json.loads(unsealed(data, path, _WAY_OUT))
            check_version(folder, "capture", result["version"], VERSION)
            batches = [of_types(CapturedBatch, each) for each in in_shape(result.pop("batches"), list)]
            return of_types(cls, result, folder=folder, batches=batches)

    @property
    def savepoint(self) -> str | None:
        """Return the folder of the state before the first batch; None where the query began with it."""
        return None if self.begins else f"{self.folder}/savepoint"

    def close(self) -> None:
        """Write what makes it a capture."""
        note = attrs.asdict(self, filter=lambda field, _: field.name != "folder")
        finish_folder(self.folder, "capture", _NOTE, sealed(json.dumps(note).encode()))

    def read(self, batch: CapturedBatch, source: int) -> list[ScannedRows]:
        """Return what a batch read of a source.

        Raises
        ------
        CheckpointError
            When a file of it is damaged or missing.
        """
        with reading(f"{self.folder}/{_NOTE}", _WAY_OUT):
            return self._scanned(batch.reads.get(str(source)), f"{self.folder}/batches/{batch.number:012d}/{source}")

    def _scanned(self, note: ReadNote | None, where: str) -> list[ScannedRows]:
        """Return the parts that a batch read of a source, by their note."""
        if note is None:
            return []
        rows = _table(f"{where}.arrow", note["rows"]) if "rows" in note else []
        bad = _table(f"{where}.malformed.arrow", note["bad"]) if "bad" in note else []
        result = []
        for part in note["parts"]:
            control = Control(**part["control"]) if "control" in part else None
            rejected = () if part.get("bad") is None else tuple(Malformed(**row) for row in bad[part["bad"]].to_pylist())
            number = part.get("rows")
            batch_of = None if number is None else rows[number]
            result.append(ScannedRows(batch_of, control, part.get("now_us"), rejected, part["partition"]))
        return result

    def table(self, file: str) -> pa.Table:
        """Return a version of a lookup table.

        Raises
        ------
        CheckpointError
            When its file is damaged or missing.
        """
        with reading(f"{self.folder}/{_NOTE}", _WAY_OUT):
            return pa.Table.from_batches(_table(f"{self.folder}/tables/{file}", self.tables[file]))


def begin_capture(folder: str, checkpoint: str) -> str:
    """See that a capture of a checkpoint can be written into a folder; gives its path.

    Raises
    ------
    CheckpointError
        When something is there, when nothing can be written there, and for a folder inside the checkpoint.
    """
    return begin_folder(folder, "capture", _NOTE, checkpoint)


def write_read(folder: str, number: int, source: int, result: Iterable[ScannedRows], hide: HiddenColumns) -> ReadNote:
    """Write what a batch read of a source; gives the note of it."""
    rows: list[pa.RecordBatch] = []
    bad: list[pa.RecordBatch] = []
    parts: list[_PartNote] = []
    for scanned in result:
        part: _PartNote = {"partition": scanned.partition, "now_us": scanned.now_us}
        if scanned.control is not None:
            part["control"] = attrs.asdict(scanned.control)
        if scanned.malformed:
            part["bad"] = len(bad)
            note = [hide.malformed(attrs.asdict(one)) for one in scanned.malformed]
            bad.append(pa.RecordBatch.from_pylist(note, _MALFORMED))
        if scanned.batch is not None:
            part["rows"] = len(rows)
            rows.append(hide.rows(scanned.batch))
        parts.append(part)
    where = f"{folder}/batches/{number:012d}/{source}"
    noted: ReadNote = {"parts": parts}
    if rows:
        noted["rows"] = _write(f"{where}.arrow", rows)
    if bad:
        noted["bad"] = _write(f"{where}.malformed.arrow", bad)
    return noted


def write_table(folder: str, file: str, table: pa.Table, hide: HiddenColumns) -> FileNote:
    """Write a version of a lookup table; gives the note of it."""
    batches = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
    return _write(f"{folder}/tables/{file}", [hide.rows(batch) for batch in batches])


@attrs.frozen
class HiddenColumns:
    """Columns that are not in a capture as they are.

    Attributes
    ----------
    left_out : frozenset of str
        Their values are null.
    hashed : frozenset of str
        Equal values are equal, and nothing more is known of them.
    salt : bytes
        Goes into each hash, and is not kept.
    """

    left_out: frozenset[str] = frozenset()
    hashed: frozenset[str] = frozenset()
    salt: bytes = b""

    @property
    def any(self) -> bool:
        """Return whether anything is hidden."""
        return bool(self.left_out or self.hashed)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows without what is hidden."""
        if not self.any:
            return batch
        columns = [self._column(field, column) for field, column in zip(batch.schema, batch.columns, strict=True)]
        fields = [f.with_nullable(True) if f.name in self.left_out else f for f in batch.schema]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def malformed(self, note: dict[str, Any]) -> dict[str, Any]:
        """Return what is known of input that cannot be read; its contents may hold what is hidden."""
        return {**note, "text": None, "key": None, "value": None, "problem": "(hidden)"} if self.any else note

    def _column(self, field: pa.Field, column: pa.Array) -> pa.Array:
        if field.name in self.left_out:
            return pa.nulls(len(column), field.type)
        if field.name not in self.hashed:
            return column
        coded = column.dictionary_encode()
        texts = [hashed(value, self.salt) for value in coded.dictionary.to_pylist()]
        values: list[Any] = texts if pa.types.is_string(field.type) else [int(text[:15], 16) for text in texts]
        if pa.types.is_binary(field.type):
            values = [text.encode() for text in texts]
        return pa.DictionaryArray.from_arrays(coded.indices, pa.array(values, field.type)).dictionary_decode()


def hashed(value: object, salt: bytes) -> str:
    """Return a text that is equal for equal values only."""
    return hashlib.sha256(salt + repr(value).encode()).hexdigest()[:24]


def _write(path: str, batches: Sequence[pa.RecordBatch]) -> FileNote:
    out = pa.BufferOutputStream()
    schemas = {batch.schema for batch in batches}
    assert len(schemas) == 1
    with pa.ipc.new_file(out, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data = out.getvalue()
    with writing("capture", path):
        write_at(path, data.to_pybytes())
    return {"bytes": data.size, "crc32": f"{checksum(data):08x}"}


def _table(path: str, note: FileNote) -> list[pa.RecordBatch]:
    with reading(path, _WAY_OUT):
        data = read_at(path)
    if data is None:
        raise missing(path, _WAY_OUT)
    if len(data) != note["bytes"] or f"{checksum(data):08x}" != note["crc32"]:
        raise damaged(path, f"{len(data)} bytes with a wrong checksum", _WAY_OUT)
    with reading(path, _WAY_OUT):
        reader = pa.ipc.open_file(pa.py_buffer(data))
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]
