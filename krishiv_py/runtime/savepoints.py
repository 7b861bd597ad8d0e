"""State that is of no engine: what a query knows after a finished batch, as values in one folder.

A checkpoint of one engine becomes a savepoint, and a savepoint becomes a checkpoint of any engine, with any number of buckets::

    savepoint.json            the plan, clocks, positions of sources, counters, batches that were published
    stages/0/00000.parquet    the state of a bucket of stage 0: names, and an Arrow stream for each
    files/0.parquet           the names of the files that source 0 has read

Everything is written before ``savepoint.json``: without that the folder is no savepoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, urlparse

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.connectors.ranges import NotedRanges
from krishiv_py.disk.checksums import damaged, missing, sealed, sealed_parquet, unsealed
from krishiv_py.disk.files import read_at, store_at, write_at
from krishiv_py.engine.notes import Report
from krishiv_py.errors import CheckpointError
from krishiv_py.kernels.input.clocks import moment_of
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.state.spread import Held, spread
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.running.control import Control
from krishiv_py.replay_index import open_sent
from krishiv_py.runtime.checkpoint.begun import STATE, Begun
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.checkpoint.sparklog import entries_of
from krishiv_py.runtime.ranges.folders import files_in
from krishiv_py.runtime.ranges.log import RangeLog
from krishiv_py.runtime.ranges.taken import Taken
from krishiv_py.runtime.storage.codec import decode, encode

VERSION: Final = 1
"""Of the format; a later version of the library opens all earlier ones."""
META: Final = "meta"
_NOTE: Final = "savepoint.json"
_WAY_OUT: Final = "make the savepoint again from the checkpoint"
_SCHEMA: Final = pa.schema([("name", pa.string()), ("blob", pa.large_binary())])
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

    `open` are windows and rows that are open, `left` are rows that went to outputs, `times` the clocks its watermark follows.
    """

    name: str
    keys: int
    state: bool
    times: list[list[int]]
    buckets: list[int] = attrs.field(factory=list)
    counters: dict[str, int] = attrs.field(factory=dict)
    left: dict[str, int] = attrs.field(factory=dict)
    open: list[int] = attrs.field(factory=lambda: [0, 0])

    def moment(self, every: Iterable[int]) -> Moment:
        """Return what is in force in the stage when the clocks show `every`."""
        first, *others = every
        return Moment(first, others=tuple(others)).at(tuple((clock, us) for clock, us in self.times))


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
        What was in force in the last step, by every clock.
    now_us : int
        The clock of the machine in the last batch, µs since the epoch.
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
    version: int = VERSION

    @classmethod
    def open(cls, folder: str) -> Savepoint:
        """Open a savepoint.

        Raises
        ------
        CheckpointError
            When there is none, or it is damaged or of a later version.
        """
        data = read_at(f"{folder}/{_NOTE}")
        if data is None:
            hint = "pass the folder of a savepoint"
            raise CheckpointError("no savepoint is here", got=folder, then="there is nothing to go on from", hint=hint)
        found = json.loads(unsealed(data, f"{folder}/{_NOTE}", _WAY_OUT))
        if found["version"] > VERSION:
            what = f"the savepoint {folder} is of a later version of krishiv_py"
            got = f"version {found['version']}, known are versions up to {VERSION}"
            hint = "use the version that wrote it, or a newer one"
            raise CheckpointError(what, got=got, then="its state would be misread", hint=hint)
        sources = [SourceState(**each) for each in found.pop("sources")]
        stages = [StageState(**each) for each in found.pop("stages")]
        return cls(folder, sources=sources, stages=stages, **found)

    @property
    def after(self) -> tuple[int, ...]:
        """Return what is in force after the last batch, by every clock."""
        return moment_of(self.clocks, self.now_us).every

    def close(self) -> None:
        """Write the note, which makes the folder a savepoint."""
        told = attrs.asdict(self, filter=lambda field, _: field.name != "folder")
        write_at(f"{self.folder}/{_NOTE}", sealed(json.dumps(told).encode()), durable=True)

    def buckets_of(self, stage: int) -> Iterator[Held]:
        """The buckets of a stage, one after the other."""
        for bucket in self.stages[stage].buckets:
            found = read_bucket(self.folder, stage, bucket)
            if found is None:
                raise missing(_path(self.folder, stage, bucket), _WAY_OUT)
            yield found

    def names_of(self, source: int) -> list[tuple[str, int]]:
        """The files that a source has read: paths, and times of modification in ns."""
        store, root = store_at(self.folder)
        names = open_sent(store, f"{root}/files/{source}.parquet").read()
        return list(zip(*(column.to_pylist() for column in names.columns), strict=True))


def write_bucket(folder: str, stage: int, bucket: int, held: Held) -> None:
    """Write what a bucket of a stage holds."""
    names = [META, *held.tables]
    blobs = [json.dumps(held.meta).encode(), *map(encode, held.tables.values())]
    table = pa.Table.from_arrays([pa.array(names, pa.string()), pa.array(blobs, pa.large_binary())], schema=_SCHEMA)
    _write_parquet(_path(folder, stage, bucket), table)


def read_bucket(folder: str, stage: int, bucket: int) -> Held | None:
    """Read what a bucket of a stage holds; None where there is no file.

    Raises
    ------
    CheckpointError
        When the file is damaged.
    """
    path = _path(folder, stage, bucket)
    store, root = store_at(path)
    if not store.exists(root):
        return None
    table = open_sent(store, root).read()
    if table.schema != _SCHEMA:
        raise damaged(root, "columns that are of another file", _WAY_OUT)
    values = dict(zip(table["name"].to_pylist(), table["blob"].to_pylist(), strict=True))
    return Held(json.loads(values.pop(META)), {name: decode(blob) for name, blob in values.items()})


def _path(folder: str, stage: int, bucket: int) -> str:
    return f"{folder}/stages/{stage}/{bucket:05d}.parquet"


def _write_parquet(path: str, table: pa.Table) -> None:
    out = pa.BufferOutputStream()
    pq.write_table(table, out, compression="none", use_dictionary=False)
    write_at(path, b"".join(sealed_parquet(out.getvalue())), durable=True)


def read_sources(checkpoint: str, note: Mapping[str, Any], taken: Mapping[int, int], folder: str) -> list[SourceState]:
    """Return where the sources of a checkpoint are, and write the names of the files that were read into `folder`.

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
    found = []
    for at, kind in enumerate(note["outline"]["sources"]):
        state = SourceState(kind)
        found.append(state)
        log = RangeLog(f"{checkpoint}/krishiv/ranges/{at}", durable=True)
        noted = at in taken and taken[at] in log.numbers()
        if kind == "other" or (kind == "files" and at in taken and not noted):
            raise CheckpointError(
                "a source of this query is read by Spark itself",
                got=f"source {at + 1} of {checkpoint}",
                then="nobody else knows how far it was read",
                hint="read its files or its topic with a source of krishiv_py, from a new checkpoint",
            )
        if at not in taken:
            continue
        if noted:
            state.position = log.position_of(taken[at])
            state.ended = state.position is None
        elif kind == "memory":
            state.position = _sent(checkpoint, at, taken[at])
        if kind == "files":
            names = Taken.open(f"{checkpoint}/krishiv/files/{at}", durable=True).loaded
            numbers = [number for number in log.numbers() if number <= taken[at]]
            names += [(file[3], file[2] or 0) for number in numbers for file in files_in(log.ranges_of(number))]
            known = dict(names)
            columns = [pa.array(list(known), pa.string()), pa.array(list(known.values()), pa.int64())]
            _write_parquet(f"{folder}/files/{at}.parquet", pa.Table.from_arrays(columns, schema=_NAMES))
    return found


def _sent(checkpoint: str, at: int, taken: int) -> str | None:
    """Return how far Spark has read a memory stream itself."""
    read = {}
    for path, entries in entries_of(*store_at(checkpoint)):
        if int(path.rsplit("/", 2)[-2]) == at:
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
    data = read_at(path)
    found: dict[str, str] = {} if data is None else json.loads(unsealed(data, path, _WAY_OUT))
    return found


def write_sources(savepoint: Savepoint, checkpoint: str) -> dict[int, int]:
    """Let the sources of a new checkpoint go on where they are in a savepoint; gives the entry that each has given."""
    taken = {}
    for at, source in enumerate(savepoint.sources):
        if source.position is None and not source.ended:
            continue
        log = RangeLog.open(f"{checkpoint}/krishiv/ranges/{at}", durable=True)
        if source.position is None:
            log.end(Control(END_OF_TIME, None, savepoint.now_us))
        else:
            log.note(NotedRanges(source.position, ()))
        if source.kind == "files":
            Taken.open(f"{checkpoint}/krishiv/files/{at}", durable=True).keep(savepoint.names_of(at), log.last)
        taken[at] = log.last
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
        raise CheckpointError(
            "no query has kept its state here",
            got=checkpoint,
            then="there is nothing to go on from",
            hint="pass the folder of start(..., checkpoint=...)",
        )
    if "outline" not in note:
        raise CheckpointError(
            "an earlier version of krishiv_py ran the query of this checkpoint",
            got=checkpoint,
            then="it is not noted which stages and sources it has",
            hint="start the query once with this version, on the engine that it ran on, and stop it",
        )
    return note


def unfinished(checkpoint: str, batch: int) -> CheckpointError:
    """Return the error for a checkpoint whose last batch is not finished."""
    return CheckpointError(
        "the last batch of this checkpoint is not finished",
        got=f"batch {batch} of {checkpoint}",
        then="its state is not whole",
        hint="start the query once more where it ran, with batches=Batches.available_now(), and try again",
    )


def spread_stage(savepoint: Savepoint, stage: int, buckets: int) -> list[Held]:
    """Return the state of a stage in another number of buckets."""
    return spread(savepoint.buckets_of(stage), savepoint.stages[stage].keys, buckets)


def restore_for_spark(savepoint: Savepoint, checkpoint: str, buckets: int) -> None:
    """Write a checkpoint from which a query on Spark goes on from a savepoint; all but its plan note, which makes it one.

    Spark keeps state in a store of its own, so the first micro-batch takes over what is written here.
    """
    write_sources(savepoint, checkpoint)
    outline = savepoint.note["outline"]
    for at, stage in enumerate(savepoint.stages):
        for bucket, held in enumerate(spread_stage(savepoint, at, buckets) if stage.buckets else ()):
            if not bucket:  # counters are sums over all buckets
                held.meta.update(counters=stage.counters, given=stage.left)
            write_bucket(f"{checkpoint}/{STATE}", at, bucket, held)
    first, *others = savepoint.after
    if outline["ledger"]:
        entry = {**savepoint.clocks, "now_us": savepoint.now_us}
        path = f"{checkpoint}/krishiv/ledger/{0:012d}.json"
        write_at(path, sealed(json.dumps(entry).encode()), durable=True)
    reports = {
        f"earlier{'' if at == outline['last'] else f'@{at}'}": Report(stage.counters, 0, 0, 0, given=stage.left).saved()
        for at, stage in enumerate(savepoint.stages)
        if not stage.state
    }
    told = {"buckets": reports, "watermark": first, "advances": savepoint.advances}
    told |= {"watermarks of further clocks": others} if others else {}
    CheckpointNotes(checkpoint).keep_metrics(told)
    Begun(savepoint.batches, first).write(checkpoint)
