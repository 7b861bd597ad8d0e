"""Savepoints: the state of a query after a finished batch, as values and not as files of an engine (docs/savepoints.md).

A checkpoint of one engine becomes a savepoint, and a savepoint becomes a checkpoint of any engine, with any number of buckets::

    manifest.json                    the plan, clocks, positions of sources, counters, and what its stages are
    stages/0/00000/bucket.json       what a bucket of stage 0 knows next to tables: what fired, timers, its tables
    stages/0/00000/0.arrow           its tables of one schema, one after the other: keys, bounds, partial aggregates, kept rows
    files/0.parquet                  the names of the files that source 0 has read

Everything is written before ``manifest.json``: without that the folder is not a savepoint.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias
from urllib.parse import unquote, urlparse

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import TypedDict

from krishiv_py.connectors.ranges import NotedRanges
from krishiv_py.engine.stage import Report
from krishiv_py.errors import CheckpointError, failure_text, shown
from krishiv_py.kernels.spec import Times
from krishiv_py.kernels.state.forms import check_forms
from krishiv_py.kernels.state.spread import BucketContent, spread
from krishiv_py.kernels.watermark import floor_watermark, moment_of
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.running import Control
from krishiv_py.planner.evolution import Frontiers
from krishiv_py.runtime.checkpoint.notes import (
    STATE,
    CheckpointNotes,
    CheckpointOrigin,
    ClocksNote,
    PlanNote,
    StageShape,
    is_there,
)
from krishiv_py.runtime.checkpoint.sparklog import entries_of
from krishiv_py.runtime.ranges.folders import PlannedNames, files_in
from krishiv_py.runtime.ranges.log import RangeLog
from krishiv_py.storage.checksums import checksum, damaged, missing, sealed, sealed_parquet
from krishiv_py.storage.files import read_at, store_at, write_at
from krishiv_py.storage.local import absolute, private_folder
from krishiv_py.storage.notes import in_shape, note_in, of_types, reading
from krishiv_py.storage.sends.segments import open_sent
from krishiv_py.storage.store import Store

_UNFINISHED: Final = "unfinished.json"
_MARKS: Final = {
    "manifest.json": "a savepoint",
    "capture.json": "a capture",
    "krishiv/plan.json": "a checkpoint",
    "_krishiv_spool": "the folder of a memory stream",
    "_delta_log/*": "a Delta table",
    "metadata/*.metadata.json": "an Iceberg table",
    "_krishiv_outputs/*": "an output folder",
}
"""The files that say what a folder is that the library writes to, or reads as a whole."""
_OURS: Final = b'{"crc32": "', b"krishiv "
"""The begin of a note of ours; other programs have files of the same names."""


@contextlib.contextmanager
def writing(kind: str, folder: str) -> Iterator[None]:
    """Let what fails as a `kind` of folder is written be an error of ours that names it.

    Raises
    ------
    CheckpointError
        When nothing can be written there.
    """
    try:
        yield
    except (OSError, pa.ArrowException) as problem:
        what = f"the {kind} {shown(folder)} cannot be written"
        hint = "see to room and rights there, or use another folder"
        raise CheckpointError(what, got=failure_text(problem), then="there is none", hint=hint) from problem


def begin_folder(folder: str, kind: str, note: str, checkpoint: str = "") -> str:
    """See that a `kind` of folder of a `checkpoint` can be written, and begin it; gives its path, the same for every process.

    A mark says that a folder is not finished. So one that was broken off is taken for nothing else, and is removed when the
    same folder is begun again.

    Raises
    ------
    CheckpointError
        When something else is there, when nothing can be written there, and for a folder inside the checkpoint.
    """
    folder = absolute(folder).rstrip("/")
    if checkpoint and f"{folder}/".startswith(absolute(checkpoint).rstrip("/") + "/"):
        then = "it would be removed with it"
        hint = "pass a folder outside of the checkpoint"
        raise CheckpointError(f"a {kind} is inside the checkpoint that it is of", got=folder, then=then, hint=hint)
    store, root = store_at(folder)
    with writing(kind, folder):
        check_around(folder, kind)
        names = {entry.base_name for entry in store.entries(root)}
        if names and (_UNFINISHED not in names or note in names):
            then = "what is there would be mixed with it"
            hint = f"pass a new folder; a {kind} is written once"
            raise CheckpointError(f"the folder of the {kind} is not empty", got=folder, then=then, hint=hint)
        if names:
            store.delete_folder(root)
        if store.local:
            private_folder(root)
        write_at(f"{folder}/{_UNFINISHED}", b"{}\n", durable=True)
    return folder


def check_around(folder: str, kind: str) -> None:
    """Refuse a `kind` of folder inside of one that is something else: it would be read, or removed, with it.

    Raises
    ------
    CheckpointError
        Names the folder around it.
    """
    store, root = store_at(folder)
    path = root.rpartition("/")[0]
    while path.strip("/"):
        for mark, what in _MARKS.items():
            note = f"{path}/{mark}"
            if "*" in mark:
                is_there = any(fnmatchcase(entry.path, note) for entry in store.entries(note.rpartition("/")[0]))
            else:
                is_there = store.exists(note) and (
                    not mark.endswith(".json") or bytes(store.read(note) or b"").startswith(_OURS)
                )
            if not is_there:
                continue
            then, hint = "it would be read or removed with it", "pass a folder outside of it"
            raise CheckpointError(f"a {kind} is inside of {what}", got=f"{root}, in {path}", then=then, hint=hint)
        path = path.rpartition("/")[0]


def finish_folder(folder: str, kind: str, note: str, data: bytes) -> None:
    """Write the note that makes a `kind` of folder whole."""
    with writing(kind, folder):
        write_at(f"{folder}/{note}", data, durable=True)
        store, path = store_at(f"{folder}/{_UNFINISHED}")
        store.delete(path)


def note_of(folder: str, note: str, kind: str, hint: str) -> bytes:
    """Return the note of a folder.

    Raises
    ------
    CheckpointError
        When there is none, or it cannot be read.
    """
    with reading(f"{folder}/{note}", hint):
        data = read_at(f"{folder}/{note}")
    if data is None:
        raise CheckpointError(f"no {kind} is here", got=shown(folder), then="there is nothing to go on from", hint=hint)
    return data


def check_version(folder: str, kind: str, version: int, newest: int) -> None:
    """Refuse a folder that a later version of the library wrote.

    Raises
    ------
    CheckpointError
        When its version is later than the `newest` that is known.
    """
    if version > newest:
        what = f"the {kind} {folder} is of a later version of krishiv_py"
        got = f"version {version}, known are versions up to {newest}"
        raise CheckpointError(what, got=got, then="it would be misread", hint="use the version that wrote it, or a newer one")


VERSION: Final = 2
"""Of the format; a later version of the library opens all earlier ones."""
MANIFEST: Final = "manifest.json"
_BUCKET: Final = "bucket.json"
_ABOUT: Final = b"krishiv"
_WAY_OUT: Final = "put it back from a copy, or make the savepoint again from the checkpoint"
_NAMES: Final = pa.schema([("path", pa.string()), ("mtime_ns", pa.int64())])


@attrs.define
class SourceState:
    """The position of a source: its `position` as JSON, None before its first batch; whether it has `ended`."""

    kind: str
    position: str | None = None
    ended: bool = False


@attrs.define
class StageState:
    """A stage: how many `keys` its state has, which `buckets` there are, and what was counted.

    `open` are windows and rows that are open, `left` are rows that went to outputs, `times` the clocks its watermark follows,
    and `floor_us` where it was before; `stepped_us` the watermark of its last step, where the clocks do not say it; `columns`
    what the columns of its tables are, `shape` what decides how they are read.
    """

    name: str
    keys: int
    state: bool
    times: list[list[int]]
    buckets: list[int] = attrs.field(factory=list)
    counters: dict[str, int] = attrs.field(factory=dict)
    left: dict[str, int] = attrs.field(factory=dict)
    open: list[int] = attrs.field(factory=lambda: [0, 0])
    columns: dict[str, str] = attrs.field(factory=dict)
    shape: dict[str, Any] | None = None
    floor_us: int = UNSET
    stepped_us: int | None = None

    def watermark(self, every: Sequence[int]) -> int:
        """Return the watermark of the stage when the clocks show `every`."""
        return Times(tuple((clock, us) for clock, us in self.times), self.floor_us).least(every)


@attrs.frozen
class PlanChange:
    """The facts of a plan before the one that runs; the note of the plan has them, for until a batch has run.

    Attributes
    ----------
    batches : int
        How many batches were published when the plan changed.
    current : list of int
        The watermark by every clock then: what follows from other lags is not in force before a batch runs.
    stages : dict
        The :class:`~krishiv_py.planner.evolution.Frontiers` of each stage, as plain data.
    raised : list of int
        The watermark by every clock with the lags of the plan that runs, in force from the next batch on.
    """

    batches: int
    current: list[int]
    stages: dict[str, dict[str, Any]]
    raised: list[int]


Steps: TypeAlias = "list[int | None]"
"""The watermark of the last step of each stage; None where the clocks say it."""


@attrs.define
class Savepoint:
    """A savepoint that is open, in `folder`.

    Attributes
    ----------
    note : dict
        The plan note of the query: its plan, the mark of its outputs, and an outline of its stages and sources.
    batches : int
        How many batches were published.
    clocks : dict
        The clocks after the last batch.
    before : list of int
        What was in force in the last step, by every clock, also where another plan made it.
    now_us : int
        The clock of the machine in the last batch, µs since the epoch.
    checkpoint : str or None
        The checkpoint that it was made of.
    """

    folder: str
    note: dict[str, Any]
    batches: int
    clocks: dict[str, Any]
    before: list[int]
    now_us: int
    sources: list[SourceState]
    stages: list[StageState]
    streams: dict[str, str] = attrs.field(factory=dict)
    advances: int = 0
    checkpoint: str | None = None
    version: int = VERSION

    @classmethod
    def open(cls, folder: str) -> Savepoint:
        """Open a savepoint.

        Raises
        ------
        CheckpointError
            When there is none, or it is damaged or of a later version.
        """
        hint = "pass the folder of a savepoint: what query.savepoint(path), session.savepoint(...) or krishiv savepoint wrote"
        manifest = _heard(note_of(folder, MANIFEST, "savepoint", hint), f"{folder}/{MANIFEST}")
        with reading(f"{folder}/{MANIFEST}", _WAY_OUT):
            check_version(folder, "savepoint", manifest["version"], VERSION)
            sources = [of_types(SourceState, each) for each in in_shape(manifest.pop("sources"), list)]
            stages = [of_types(StageState, each) for each in in_shape(manifest.pop("stages"), list)]
            fields = {field.name for field in attrs.fields(cls)}
            opened = of_types(
                cls, {n: v for n, v in manifest.items() if n in fields}, folder=folder, sources=sources, stages=stages
            )
            for stage in stages:
                if stage.shape is not None:
                    in_shape(stage.shape, StageShape)
            in_shape(opened.note, PlanNote)["outline"], in_shape(opened.clocks, ClocksNote)
        return opened

    @classmethod
    def of_clocks(
        cls, note: dict[str, Any], batches: int, clocks: dict[str, Any], before: list[int], now_us: int, stepped: Steps
    ) -> Savepoint:
        """Return what a savepoint of a checkpoint would say of its clocks, without tables and positions."""
        stages = [StageState(**outline, stepped_us=us) for outline, us in zip(note["outline"]["stages"], stepped, strict=True)]
        return cls("", note, batches, clocks, before, now_us, [], stages)

    def stepped(self, stage: int) -> int:
        """Return the watermark of the last step of a stage."""
        state = self.stages[stage]
        return state.watermark(self.before) if state.stepped_us is None else state.stepped_us

    @property
    def since(self) -> PlanChange | None:
        """Return the facts of the plan before, where no batch has run with the plan of the savepoint."""
        since = self.note.get("since")
        return None if since is None or since["batches"] != self.batches else PlanChange(**since)

    def frontiers(self, stage: int) -> Frontiers:
        """Return up to where a stage has come."""
        state, since = self.stages[stage], self.since
        assert state.shape is not None
        if since is not None and state.name in since.stages:
            return Frontiers(**since.stages[state.name])
        stepped_us, shape, final = self.stepped(stage), state.shape, state.shape["emit"] == "final"
        left_us = max(floor_watermark(stepped_us, int(shape["lateness_us"])), int(shape["left_us"]))
        given_us = max(left_us if final else stepped_us, int(shape.get("given_us", UNSET)))
        return Frontiers(stepped_us, left_us, given_us, final)

    @property
    def after(self) -> tuple[int, ...]:
        """Return what is in force after the last batch, by every clock."""
        return moment_of(self.clocks, self.now_us).every

    def close(self) -> None:
        """Write the manifest, which makes the folder a savepoint."""
        head = {"version": self.version} | attrs.asdict(self, filter=lambda field, _: field.name != "folder")
        finish_folder(self.folder, "savepoint", MANIFEST, _said(head))

    def buckets_of(self, stage: int, *, mapped: bool = False) -> Iterator[BucketContent]:
        """Yield the buckets of a stage, one after the other; `mapped` as in :func:`read_bucket`."""
        for bucket in self.stages[stage].buckets:
            yield self.bucket(stage, bucket, mapped=mapped)

    def bucket(self, stage: int, bucket: int, *, mapped: bool = False) -> BucketContent:
        """Return a bucket of a stage, by its number in the folder; `mapped` as in :func:`read_bucket`."""
        content = read_bucket(self.folder, stage, bucket, mapped=mapped)
        if content is None:
            raise missing(f"{_path(self.folder, stage, bucket)}/{_BUCKET}", _WAY_OUT)
        return content

    def known(self, stage: int, bucket: int) -> dict[str, Any]:
        """Return what a bucket knows next to its tables, which are not read."""
        where = f"{_path(self.folder, stage, bucket)}/{_BUCKET}"
        data = read_at(where)
        if data is None:
            raise missing(where, _WAY_OUT)
        with reading(where, _WAY_OUT):
            known: dict[str, Any] = _heard(data, where)["known"]
            check_forms(known)
        return known

    def names_of(self, source: int) -> list[tuple[str, int]]:
        """Return the files that a source has read: paths, and times of modification in ns."""
        store, root = store_at(self.folder)
        names = open_sent(store, f"{root}/files/{source}.parquet").read()
        return list(zip(*(column.to_pylist() for column in names.columns), strict=True))


def is_savepoint(folder: str) -> bool:
    """Return whether a folder has a manifest."""
    return is_there(folder, MANIFEST)


def begin_savepoint(folder: str, checkpoint: str = "") -> str:
    """See that a savepoint of a `checkpoint` can be written into a folder, and begin it; gives its path, the same everywhere.

    What is left of a savepoint that was broken off is removed.

    Raises
    ------
    CheckpointError
        When something else is there, when nothing can be written there, and for a folder inside the checkpoint.
    """
    return begin_folder(folder, "savepoint", MANIFEST, checkpoint)


def write_bucket(folder: str, stage: int, bucket: int, held: BucketContent, described: Mapping[str, str] | None = None) -> None:
    """Write what a bucket of a stage holds: tables of one schema in one file, and a note with its checksums.

    Parameters
    ----------
    folder : str
        The savepoint.
    stage, bucket : int
        Their numbers.
    held : BucketContent
        What is written.
    described : dict, optional
        What columns are, by name; a reader finds it in the metadata of the columns.
    """
    where = _path(folder, stage, bucket)
    with writing("state", where):
        _write_bucket(where, held, described or {})


def _write_bucket(where: str, held: BucketContent, described: Mapping[str, str]) -> None:
    store, root = store_at(where)
    store.make_folder(root)
    files = list[_TableFile]()
    with contextlib.ExitStack() as opened:
        for name, table in held.tables.items():
            file = next((file for file in files if file.schema.equals(table.schema, check_metadata=True)), None)
            if file is None:
                noted_schema = _described(table.schema, described)
                file = _TableFile(store, f"{root}/{len(files)}.arrow", table.schema, noted_schema)
                files.append(opened.enter_context(file))
            file.add(name, table)
    for file in files:
        store.sync(file.path)
    tables = [file.note() for file in files]
    write_at(f"{where}/{_BUCKET}", _said({"known": held.meta, "tables": tables}), durable=True)


class _TableFile(io.RawIOBase):
    """A file of a savepoint that is written table by table, so that none waits in memory; knows its size and checksum."""

    def __init__(self, store: Store, path: str, schema: pa.Schema, noted_schema: pa.Schema) -> None:
        self.path, self.schema = path, schema
        self._parts, self._size, self._sum = list[tuple[str, int]](), 0, 0
        self._out = store.arrow.open_output_stream(path)
        self._noted_schema = noted_schema
        self._writer = pa.ipc.new_file(self, noted_schema)

    def writable(self) -> bool:
        """See RawIOBase."""
        return True

    def tell(self) -> int:
        """See RawIOBase."""
        return self._size

    def write(self, data: Any) -> int:
        """See RawIOBase."""
        size = len(data)
        self._out.write(data)
        self._size, self._sum = self._size + size, checksum(data, self._sum)
        return size

    def add(self, name: str, table: pa.Table) -> None:
        """Write a table."""
        self._writer.write_table(pa.Table.from_arrays(table.columns, schema=self._noted_schema))
        self._parts.append((name, table.num_rows))

    def close(self) -> None:
        """Write the end of the file."""
        if not self._out.closed:
            try:
                self._writer.close()
            finally:
                self._out.close()
        super().close()

    def note(self) -> dict[str, Any]:
        """Return what the note of the bucket says of it."""
        name = self.path.rpartition("/")[2]
        return {"file": name, "bytes": self._size, "crc32": f"{self._sum:08x}", "parts": self._parts}


def read_bucket(folder: str, stage: int, bucket: int, *, mapped: bool = False) -> BucketContent | None:
    """Read what a bucket of a stage holds; None where there is none.

    Parameters
    ----------
    folder : str
        The savepoint.
    stage, bucket : int
        Their numbers.
    mapped : bool
        Whether files of this machine are mapped into memory and not read. Such tables are for a short time only: who cuts
        the file meanwhile ends the process.

    Raises
    ------
    CheckpointError
        When a file of it is damaged or missing.
    """
    where = _path(folder, stage, bucket)
    with reading(f"{where}/{_BUCKET}", _WAY_OUT):
        data = read_at(f"{where}/{_BUCKET}")
        return None if data is None else _content(in_shape(_heard(data, f"{where}/{_BUCKET}"), _BucketNote), where, mapped)


class _TablesNote(TypedDict):
    """A file with tables of a bucket: their names and rows, one after the other."""

    file: str
    bytes: int
    crc32: str
    parts: list[list[Any]]


class _BucketNote(TypedDict):
    """The facts of a bucket next to tables, and its tables."""

    known: dict[str, Any]
    tables: list[_TablesNote]


def _content(report: _BucketNote, where: str, mapped: bool) -> BucketContent:
    """Return the tables that a note of a bucket tells of."""
    check_forms(report["known"])
    tables: dict[str, pa.Table] = {}
    for each in report["tables"]:
        path = f"{where}/{each['file']}"
        with reading(path, _WAY_OUT):
            content = _mapped_at(path) if mapped else read_at(path)
        if content is None:
            raise missing(path, _WAY_OUT)
        if len(content) != each["bytes"] or f"{checksum(content):08x}" != each["crc32"]:
            raise damaged(path, f"{len(content)} bytes with a wrong checksum", _WAY_OUT)
        rows = pa.ipc.open_file(pa.py_buffer(content)).read_all()
        rows, begin = pa.Table.from_arrays(rows.columns, schema=_plain(rows.schema)), 0
        for name, count in each["parts"]:
            part = rows.slice(begin, in_shape(count, int))
            tables[in_shape(name, str)] = part.combine_chunks() if any(c.num_chunks > 1 for c in part.columns) else part
            begin += count
    return BucketContent(report["known"], tables)


def _mapped_at(path: str) -> pa.Buffer | None:
    """Return the bytes of a file; None if it does not exist."""
    store, inside = store_at(path)
    try:
        with store.map(inside) as file:
            return file.read_buffer()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _said(value: Any) -> bytes:
    """Return a note as JSON that holds its own checksum."""
    body = json.dumps(value).encode()
    return b'{"crc32": "%08x", "note":\n%s\n}\n' % (checksum(body), body)


def _heard(data: bytes, where: str) -> Any:
    """Return what :func:`_said` wrote.

    Raises
    ------
    CheckpointError
        When it is damaged.
    """
    head, _, rest = data.partition(b"\n")
    body, _, end = rest.rpartition(b"\n}\n")
    if end or head != b'{"crc32": "%08x", "note":' % checksum(body):
        raise damaged(where, f"{len(data)} bytes with a wrong checksum", _WAY_OUT)
    with reading(where, _WAY_OUT):
        return in_shape(json.loads(body), dict)


def _described(schema: pa.Schema, described: Mapping[str, str]) -> pa.Schema:
    fields = [f if f.name not in described or f.metadata else f.with_metadata({_ABOUT: described[f.name]}) for f in schema]
    return pa.schema(fields, schema.metadata)


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return a schema without what columns are described by."""
    return pa.schema([f.remove_metadata() if _ABOUT in (f.metadata or {}) else f for f in schema], schema.metadata)


def _path(folder: str, stage: int, bucket: int) -> str:
    return f"{folder}/stages/{stage}/{bucket:05d}"


def _write_parquet(path: str, table: pa.Table) -> None:
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="none", use_dictionary=False)
    write_at(path, b"".join(sealed_parquet(out.getvalue())), durable=True)


def read_sources(checkpoint: str, note: Mapping[str, Any], taken: Mapping[int, int], folder: str) -> list[SourceState]:
    """Write the names of the files that were read into `folder`, and return where the sources of a checkpoint are.

    Parameters
    ----------
    checkpoint : str
        The checkpoint.
    note : dict
        Its plan note.
    taken : dict
        The last entry of its log that each source has given, by the place of the source.
    folder : str
        The savepoint.

    Raises
    ------
    CheckpointError
        For a source that cannot go on elsewhere, and for a part of its log that is lost or damaged.
    """
    sources = []
    for index, kind in enumerate(note["outline"]["sources"]):
        state = SourceState(kind)
        sources.append(state)
        log = RangeLog(f"{checkpoint}/krishiv/ranges/{index}", durable=True)
        noted = index in taken and taken[index] in log.numbers()
        if kind == "other" or (kind == "files" and index in taken and not noted):
            raise CheckpointError(
                "a source of this query is read by Spark itself",
                got=f"source {index + 1} of {checkpoint}",
                then="nobody else knows how far it was read",
                hint="read its files or its topic with a source of krishiv_py, from a new checkpoint",
            )
        if index not in taken:
            continue
        if noted:
            state.position = log.position_of(taken[index])
            state.ended = state.position is None
        elif kind == "memory":
            state.position = _sent(checkpoint, index, taken[index])
        if kind == "files":
            names = PlannedNames.open(f"{checkpoint}/krishiv/files/{index}", durable=True).loaded
            numbers = [number for number in log.numbers() if number <= taken[index]]
            names += [(file[3], file[2] or 0) for number in numbers for file in files_in(log.ranges_of(number))]
            known = dict(names)
            columns = [pa.array(list(known), pa.string()), pa.array(list(known.values()), pa.int64())]
            _write_parquet(f"{folder}/files/{index}.parquet", pa.Table.from_arrays(columns, schema=_NAMES))
    return sources


def _sent(checkpoint: str, number: int, taken: int) -> str | None:
    """Return how far Spark has read a memory stream itself."""
    read = {}
    for path, entries in entries_of(*store_at(checkpoint)):
        if int(path.rsplit("/", 2)[-2]) == number:
            for entry in entries:
                folder, _, name = unquote(urlparse(entry["path"]).path).rpartition("/")
                if int(entry["batchId"]) <= taken:
                    read[int(name[:12])] = folder
    if not read:
        return None
    send = max(read)
    stream = next((name for name, folder in read_streams(checkpoint).items() if folder == read[send]), None)
    return json.dumps({"stream": stream, "send": send})


def read_streams(checkpoint: str) -> dict[str, str]:
    """Return the folders of the memory streams of a checkpoint, by what tells each from others."""
    path = f"{checkpoint}/krishiv/streams.json"
    with reading(path, _WAY_OUT):
        data = read_at(path)
    return {} if data is None else note_in(data, dict[str, str], path, _WAY_OUT)


def write_sources(savepoint: Savepoint, checkpoint: str) -> dict[int, int]:
    """Let the sources of a new checkpoint go on where they are in a savepoint; gives the entry that each has given."""
    taken = {}
    for number, source in enumerate(savepoint.sources):
        if source.position is None and not source.ended:
            continue
        log = RangeLog.open(f"{checkpoint}/krishiv/ranges/{number}", durable=True)
        if source.position is None:
            log.end(Control(END_OF_TIME, None, savepoint.now_us))
        else:
            log.note(NotedRanges(source.position, ()))
        if source.kind == "files":
            PlannedNames.open(f"{checkpoint}/krishiv/files/{number}", durable=True).keep(savepoint.names_of(number), log.last)
        taken[number] = log.last
    if savepoint.streams:
        write_at(f"{checkpoint}/krishiv/streams.json", sealed(json.dumps(savepoint.streams).encode()), durable=True)
    return taken


def outlined(checkpoint: str) -> dict[str, Any]:
    """Return the plan note of a checkpoint that can become a savepoint.

    Raises
    ------
    CheckpointError
        When no query has begun there, and when an earlier version of the library ran it last.
    """
    note = CheckpointNotes(checkpoint).plan()
    if note is None:
        then = "there is nothing to go on from"
        hint = "pass the folder of start(..., checkpoint=...)"
        raise CheckpointError("no query has kept its state here", got=checkpoint, then=then, hint=hint)
    if "outline" not in note:
        what = "an earlier version of krishiv_py ran the query of this checkpoint"
        hint = "start the query once with this version, on the engine that it ran on, and stop it"
        raise CheckpointError(what, got=checkpoint, then="it is not noted which stages and sources it has", hint=hint)
    return note


class UnfinishedError(CheckpointError):
    """The last batch of a checkpoint is not finished."""


def unfinished(checkpoint: str, batch: int | None) -> UnfinishedError:
    """Return the error for a checkpoint whose last batch is not finished; `batch` is None where none has begun."""
    origin = (CheckpointNotes(checkpoint).plan() or {}).get("begun from", {})
    if batch is None and "savepoint" in origin:
        what, got = "the query has run no batch since it began from a savepoint", f"nothing new in {checkpoint}"
        again = f"start(..., savepoint={shown(origin['savepoint'])})"
        hint = f"remove {checkpoint}, and go on from that savepoint: {again}; or let the query run a batch first"
        return UnfinishedError(what, got=got, then="its state is that of the savepoint", hint=hint)
    if batch is None:
        then = "there is no state to save"
        hint = "wait until its source has given rows; a changed plan can begin without a savepoint until then"
        return UnfinishedError("the query has run no batch yet", got=f"nothing in {checkpoint}", then=then, hint=hint)
    what = "the last batch of this checkpoint is not finished"
    hint = "start the query once more where it ran, with batches=Batches.available_now(), and try again"
    return UnfinishedError(what, got=f"batch {batch} of {checkpoint}", then="its state is not whole", hint=hint)


def spread_stage(savepoint: Savepoint, stage: int, buckets: int) -> Iterator[BucketContent]:
    """Yield the state of a stage in another number of buckets, one after the other; files of this machine are mapped."""
    return spread(savepoint.buckets_of(stage, mapped=True), savepoint.stages[stage].keys, buckets)


def restore_for_spark(savepoint: Savepoint, checkpoint: str, buckets: int) -> None:
    """Write a checkpoint from which a query on Spark goes on from a savepoint; all but its plan note, which makes it one.

    Spark keeps state in a store of its own, so the first micro-batch takes over what is written here.
    """
    write_sources(savepoint, checkpoint)
    outline = savepoint.note["outline"]
    for number, stage in enumerate(savepoint.stages):
        for bucket, held in enumerate(spread_stage(savepoint, number, buckets) if stage.buckets else ()):
            if not bucket:  # counters are sums over all buckets
                held.meta.update(counters=stage.counters, given=stage.left)
            write_bucket(f"{checkpoint}/{STATE}", number, bucket, held, stage.columns)
    first, *others = savepoint.after
    entry = {**savepoint.clocks, "now_us": savepoint.now_us}
    write_at(f"{checkpoint}/krishiv/ledger/{0:012d}.json", sealed(json.dumps(entry).encode()), durable=True)
    reports = {
        f"earlier{'' if number == outline['last'] else f'@{number}'}": Report(stage.counters, 0, 0, 0, given=stage.left).saved()
        for number, stage in enumerate(savepoint.stages)
        if not stage.state
    }
    report = {"buckets": reports, "watermark": first, "advances": savepoint.advances}
    report |= {"watermarks of further clocks": others} if others else {}
    CheckpointNotes(checkpoint).keep_metrics(report)
    stepped = [savepoint.stepped(number) for number in range(len(savepoint.stages))]
    CheckpointOrigin(savepoint.batches, first, stepped).write(checkpoint)
