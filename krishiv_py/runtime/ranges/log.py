"""The log of the ranges of a source: what was planned, on disk before it is read, and who reads it.

What was planned is one file a micro-batch, in ``<checkpoint>/krishiv/ranges/<source>``.

Spark's file source takes the files one by one, and writes in its log which batch has which: so a repeated batch reads the same
ranges. At most one file waits to be taken, and the modification times of files on this machine increase, so the order is never
in doubt. The newest file is kept, as it says where the source is.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import unquote, urlparse

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.connectors.ranges import NotedRanges, RangeSource, partition_of, read_range
from krishiv_py.connectors.source import Malformed, ReadRange, Source
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.plan.nodes import MemorySource, SourceNode
from krishiv_py.plan.running import Control
from krishiv_py.runtime.checkpoint.lease import writable_checkpoint
from krishiv_py.runtime.checkpoint.sparklog import entries_of, offsets_of, ranges_in_plans
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT
from krishiv_py.runtime.ranges.folders import FolderSource, PlannedNames, files_in
from krishiv_py.runtime.ranges.sent import SentSource
from krishiv_py.runtime.reading import ScannedRows
from krishiv_py.storage.checksums import as_parquet, damaged, missing, sealed_parquet
from krishiv_py.storage.files import store_at
from krishiv_py.storage.sends.log import CONTROL, control_of, control_table, read_file
from krishiv_py.storage.sends.segments import RANGE, open_sent

_POSITION = b"krishiv_position"
_ENTRY = b"krishiv_entry"
"""The source and the number of an entry, which are its path too."""
_FIRST_MTIME_S = 1_000_000_000
_KEPT = 2
_TOGETHER: Final = 1_000


@attrs.frozen(eq=False)
class RangeReader:
    """Batches of ranges as text (a bounded run), or of names of files of the log and the number of a task of `tasks`.

    With `in_lanes` a task reads whole lanes: all ranges of a partition, or of a source without any.
    """

    schema: pa.Schema
    source: Source
    name: str
    tasks: int = 0
    in_lanes: bool = False

    def __call__(self, batch: pa.RecordBatch) -> Iterator[ScannedRows]:
        given = batch.column(0).to_pylist()
        if not self.tasks:
            for token in given:
                yield from self.rows_of([json.loads(token)[2]])
            return
        tasks = batch.column(1).to_pylist() if batch.num_columns > 1 else [0] * len(given)
        for uri, position in zip(given, tasks, strict=True):
            yield from self.noted(uri, position)

    def noted(self, uri: str, position: int = 0) -> Iterator[ScannedRows]:
        """Yield the rows of every so-many-th range of a file of the log."""
        ranges, control = entry_of(uri)
        yield from self.rows_of(self._of_task(ranges, position))
        if control is not None and position == 0:
            yield ScannedRows(None, control, control.now_us)

    def _of_task(self, ranges: list[str], position: int) -> list[str]:
        if not self.in_lanes:
            return ranges[position :: self.tasks]
        lanes: dict[str, list[str]] = {}
        for planned in ranges:
            lanes.setdefault(partition_of(self.source, self.name, planned), []).append(planned)
        return [planned for lane in list(lanes.values())[position :: self.tasks] for planned in lane]

    def rows_of(self, ranges: Sequence[str]) -> Iterator[ScannedRows]:
        """Read planned ranges, one after the other."""
        if isinstance(self.source, (SentSource, FolderSource)):
            for planned in ranges:
                yield from self.source.scanned(json.loads(planned), self.schema)
        elif ranges:
            with self.source._reading([json.loads(planned) for planned in ranges]) as read:
                for planned in ranges:
                    yield from self._rows_of(planned, read)

    def _rows_of(self, planned: str, read: ReadRange) -> Iterator[ScannedRows]:
        partition = partition_of(self.source, self.name, planned)
        batches = read_range(self.source, self.name, planned, self.schema, read)
        for is_bad, group in itertools.groupby(batches, lambda one: isinstance(one, Malformed)):
            if not is_bad:
                yield from (ScannedRows(one, partition=partition) for one in group)
            while is_bad and (some := tuple(itertools.islice(group, _TOGETHER))):
                yield ScannedRows(None, malformed=some)


def _opened(path: str) -> pq.ParquetFile:
    """Open a file of the log.

    Raises
    ------
    CheckpointError
        When it is not what was written there; names it.
    """
    store, path = store_at(path)
    opened = open_sent(store, path)
    entry = (opened.schema_arrow.metadata or {}).get(_ENTRY)  # an earlier version does not note it
    if entry is not None and entry.decode() != _entry(path):
        raise damaged(path, f"the entry {entry.decode()}", NEW_CHECKPOINT)
    return opened


def _entry(path: str) -> str:
    return "/".join(path.removesuffix(".parquet").split("/")[-2:])


def entry_of(uri: str) -> tuple[list[str], Control | None]:
    """Return the ranges of a file of the log, or none and what it says of the watermark."""
    table = _opened(uri).read()
    control = control_of(table)
    return (table.column(RANGE).to_pylist() if control is None else []), control


def tokens(batches: list[NotedRanges]) -> list[list[str]]:
    """Batches of ranges, each as a text of its own: equal ranges are two."""
    return [[json.dumps([number, i, planned]) for i, planned in enumerate(b.ranges)] for number, b in enumerate(batches)]


@attrs.define(eq=False)
class RangeLog:
    """The log of one source of a query.

    Attributes
    ----------
    folder : str
        Where it is; on the file system of the checkpoint.
    durable : bool
        Whether what is noted must survive a loss of power.
    last : int
        The number of the newest file; -1 without one.
    position : str or None
        The position of the source, as JSON.
    ended : bool
        Whether the end of input was noted.
    """

    folder: str
    durable: bool
    last: int = -1
    position: str | None = None
    ended: bool = False
    kept: int = _KEPT
    """The least number of entries that are kept before the one that is read."""
    in_plans: bool = False
    """True if planned ranges are written with the plan of their batch (:attr:`held`), not as a file of their own."""
    _held: dict[int, NotedRanges] | None = None

    @property
    def held(self) -> dict[int, NotedRanges]:
        """Return the entries that the newest plan of a batch holds, or that plans of this run hold, by their numbers."""
        if self._held is None:
            self._held = self._in_plans(newest=True)
        return self._held

    def look_back(self) -> None:
        """Let :attr:`held` be the entries of all plans that are kept."""
        self._held = self._in_plans(newest=False)

    def _in_plans(self, *, newest: bool) -> dict[int, NotedRanges]:
        checkpoint, _, source = self.folder.rpartition("/krishiv/ranges/")
        entries = ranges_in_plans(checkpoint, newest=newest).get(int(source), {}) if source.isdigit() else {}
        return {number: NotedRanges(*noted) for number, noted in entries.items()}

    @classmethod
    def open(cls, folder: str, *, durable: bool, kept: int = 0) -> RangeLog:
        """Open a log, or begin one; the entries of so many batches are `kept`, of two at least.

        Raises
        ------
        CheckpointError
            When its newest file is damaged; names it.
        """
        store, root = store_at(folder)
        store.make_folder(root)
        log = cls(folder, durable, kept=max(kept, _KEPT))
        numbers = log._numbers()
        if numbers:
            log.last = numbers[-1]
            log.position = log.position_of(log.last)
            log.ended = log.position is None
        return log

    def position_of(self, number: int) -> str | None:
        """Return where the source is after the batch of a file; None if it notes the end of input."""
        if (held := self.held.get(number)) is not None:
            return held.position
        noted = _opened(f"{self.folder}/{number:020d}.parquet").schema_arrow
        return None if CONTROL in noted.names else (noted.metadata or {})[_POSITION].decode()

    def note(self, planned: NotedRanges) -> None:
        """Note a batch that was planned."""
        if self.in_plans:
            self.last += 1
            self.held[self.last] = planned
            self.position = planned.position
            return
        table = pa.table({RANGE: pa.array(planned.ranges, pa.string())})
        self._write(table.replace_schema_metadata({_POSITION: planned.position.encode()}))
        self.position = planned.position

    def end(self, control: Control) -> None:
        """Note the end of input."""
        self._write(control_table(control))
        self.ended = True

    def ranges_of(self, number: int) -> list[str]:
        """Return the ranges of an entry; none if it notes the end of input."""
        return self.entry(number)[0]

    def entry(self, number: int) -> tuple[list[str], Control | None]:
        """Return the ranges of an entry, or none and what it says of the watermark."""
        if (held := self.held.get(number)) is not None:
            return list(held.ranges), None
        return entry_of(f"{self.folder}/{number:020d}.parquet")

    def numbers(self) -> list[int]:
        """Return the files that are there."""
        return self._numbers()

    def read_long_ago(self, taken: int) -> list[int]:
        """Return the files that no batch will read again, when the one numbered `taken` is being read."""
        return [number for number in self._numbers() if number < min(taken - self.kept, self.last)]

    def drop_read(self, taken: int) -> None:
        """Remove files that no batch will read again, when the one numbered `taken` is being read."""
        self._drop(self.read_long_ago(taken))

    def forget_after(self, taken: int) -> None:
        """Remove what no batch has taken; an entry without ranges stays, which says how far a source was read elsewhere."""
        planned = [number for number in self._numbers() if number > taken]
        begun = planned[:1] if planned and not self.ranges_of(planned[0]) and self.position_of(planned[0]) else []
        self._drop([number for number in reversed(planned) if number not in begun])
        self.last = max([min(self.last, taken), *begun])
        self.position = None if self.last < 0 else self.position_of(self.last)

    def begin_at(self, number: int) -> None:
        """Let the next file have a number."""
        self.last = number - 1

    def _drop(self, numbers: list[int]) -> None:
        store, _ = store_at(self.folder)
        for number in numbers:
            if self.held.pop(number, None) is None:
                store.delete(self._path(number))

    def _numbers(self) -> list[int]:
        store, root = store_at(self.folder)
        entries = store.entries(root)
        files = {int(f.base_name[:20]) for f in entries if f.base_name.endswith(".parquet") and f.base_name[:20].isdigit()}
        return sorted(files | self.held.keys())

    def _path(self, number: int) -> str:
        return f"{store_at(self.folder)[1]}/{number:020d}.parquet"

    def _write(self, table: pa.Table) -> None:
        path = self._path(self.last + 1)
        noted = table.replace_schema_metadata({**(table.schema.metadata or {}), _ENTRY: _entry(path).encode()})
        pieces, (store, _) = sealed_parquet(as_parquet(noted)), store_at(self.folder)
        with writable_checkpoint(self.folder, running=True):
            store.create(path, pieces, durable=self.durable, mtime_s=_FIRST_MTIME_S + self.last + 1)
        self.last += 1


def has_ended(source: SourceNode, number: int, checkpoint: str, batch: int) -> bool:
    """Return whether the end of a stream was read by a micro-batch of Spark or one before it, as the logs say."""
    store, root = store_at(checkpoint)
    upto = offsets_of(store, f"{root}/offsets/{batch}").get(number, -1)
    if isinstance(source, RangeSource):
        log = RangeLog(source.log or "", durable=False)
        begun = [n for n in log.numbers()[:1] if upto < 0 and not log.ranges_of(n)]  # as far as it was read elsewhere
        read = [upto] if upto >= 0 else begun
        position = log.position_of(read[0]) if read else ""
        return position is None or (isinstance(source.source, SentSource) and source.source.ends_with(position))
    if not isinstance(source, MemorySource):
        return False
    logs = [entries for path, entries in entries_of(store, root) if path.split("/")[-2] == str(number)]
    files = [entry["path"] for entries in logs for entry in entries if entry["batchId"] <= upto]
    control = read_file(unquote(urlparse(files[-1]).path)).control if files else None
    return control is not None and control.watermark_us == END_OF_TIME


def names_of(log: RangeLog) -> PlannedNames:
    """Return the names of all files that were planned, long ago and lately.

    Raises
    ------
    CheckpointError
        When a part of them is damaged or missing.
    """
    names = PlannedNames.open(log.folder.replace("/krishiv/ranges/", "/krishiv/files/"), durable=log.durable)
    numbers = log.numbers()
    names.check(numbers[0] if numbers else 0)
    for number, due in zip(numbers, itertools.count(numbers[0] if numbers else 0), strict=False):
        if number != due:
            raise missing(f"{log.folder}/{due:020d}.parquet", NEW_CHECKPOINT)
        names.loaded += [(file[3], file[2] or 0) for file in files_in(log.ranges_of(number))]
    names.add(names.loaded)
    return names
