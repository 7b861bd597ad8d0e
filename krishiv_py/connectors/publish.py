"""Results go to their sink: tables from the driver, and files that a repeated micro-batch replaces.

Files of one micro-batch are written into a staging folder under names of their own. Once all are there, what an earlier attempt
at the same batch published is removed, and the new files are renamed into place.

A store says how a file waits (``Store.stage``). On S3 a rename would copy, so tasks leave uploads open, which the driver
completes. Google's store lists no open uploads, so that they could be given up, but it copies without moving bytes: there
files are staged and renamed. To whoever lists the folder all look the same.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.fs as pafs

from krishiv_py.connectors import hive
from krishiv_py.connectors.sink import FileSink, FolderSink, OutputBatch, OutputName, Sink, TableSink, turn
from krishiv_py.errors import RAISED, CheckpointError, KrishivError, OperatorError, PlanError, cause_of, failure_text
from krishiv_py.plan.checks import call_plainly
from krishiv_py.storage.files import store_at
from krishiv_py.storage.local import not_mounted
from krishiv_py.storage.store import Store


@attrs.frozen
class OutputOf:
    """One output of a running query.

    Attributes
    ----------
    query_id : str
        Identifies the query, also after a restart.
    query : str
        Its name.
    output : {"results", "late_rows"}
        Which output it is.
    schema : pyarrow.Schema
        Its columns.
    """

    query_id: str
    query: str
    output: OutputName
    schema: pa.Schema

    def batch(self, batch_id: int, *, is_replay: bool) -> OutputBatch:
        """One micro-batch of it."""
        return OutputBatch(self.query_id, self.query, self.output, batch_id, is_replay, self.schema)


@contextmanager
def blamed(sink: Sink, batch_id: int) -> Iterator[None]:
    """Let what fails in the body name the sink and the micro-batch.

    Raises
    ------
    OperatorError
        For whatever the sink raises. Leaving the process is a failure too: it is not the main thread.
    CheckpointError
        As the sink raises it.
    """
    try:
        yield
    except CheckpointError:
        raise
    except OperatorError as problem:  # with a hint of its own
        raise OperatorError(f"the sink {sink.title} failed in batch {batch_id}: {problem}") from problem
    except BaseException as problem:  # noqa: BLE001  # user code: whatever it raises is reported with the batch
        what, hint = f"the sink {sink.title} failed", f"fix {sink.title}"
        if isinstance(sink, FolderSink) and isinstance(problem, OSError):
            hint = "see to room and rights in its folder, then start the query again: the batch is repeated"
        raise OperatorError(what, got=f"batch {batch_id}", then=failure_text(problem), hint=hint) from cause_of(problem)


def check_sink(sink: Sink, output: OutputName, schema: pa.Schema) -> None:
    """Let a sink refuse what it cannot take, before a query begins.

    Raises
    ------
    KrishivError
        As the sink raises it.
    OperatorError
        For anything else that it raises.
    """
    try:
        sink.check(output, schema)
    except KrishivError:
        raise
    except RAISED as problem:
        what = f"the sink {sink.title} cannot be checked"
        raise OperatorError(what, got=failure_text(problem), hint=f"fix {sink.title}.check") from problem


@attrs.define(eq=False)
class TablePublisher:
    """Gives the batches of one output to a sink, in a run of a query: a batch that is there already is not given again."""

    sink: TableSink
    output: OutputOf
    _begun: bool = False
    _last: int | None = None

    def publish(self, batch_id: int, tables: Sequence[pa.Table], *, is_replay: bool) -> None:
        """Give the rows of a batch to the sink.

        Raises
        ------
        OperatorError
            When the sink fails.
        CheckpointError
            When the sink holds this batch although the checkpoint says that it never ran.
        """
        with turn(self.sink):
            self._publish(self.output.batch(batch_id, is_replay=is_replay), tables)

    def _publish(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        batch_id = batch.batch_id
        with blamed(self.sink, batch_id):
            if not self._begun:
                self._last = self.sink.last_committed(batch)
                self._begun = True
        if self._last is None or batch_id > self._last:
            with blamed(self.sink, batch_id):
                call_plainly(self.sink.write_tables, batch, tables)
        elif not batch.is_replay:
            raise CheckpointError(
                f"{self.sink.title} holds batch {self._last} of this query already",
                got=f"batch {batch_id}, which never ran from this checkpoint",
                then="the checkpoint was restored from an older copy, and its rows would be lost or doubled",
                hint="restore the sink to the same time as the checkpoint, or start with both",
            )


STAGING: Final = "_krishiv_staging"
_NAMED: Final = re.compile("part-([0-9a-f]+)-([0-9]{12})-")


@contextmanager
def writable(folder: str) -> Iterator[None]:
    """Say of a folder of output that cannot be made or written what to do.

    Raises
    ------
    PlanError
        Instead of an ``OSError``.
    """
    try:
        yield
    except (OSError, pa.ArrowException) as problem:
        what, hint = f"the folder {folder} cannot be written", "see to room and rights there, or use another folder"
        got = getattr(problem, "strerror", None) or str(problem)
        passes = True if not_mounted(folder, problem) else None
        raise PlanError(what, got=got, then="the rows of the query would be lost", hint=hint, transient=passes) from problem


@contextmanager
def placed(folder: str) -> Iterator[None]:
    """Say what to do where a file of a micro-batch cannot be written, as on a full disk.

    Raises
    ------
    OperatorError
        Instead of an ``OSError``.
    """
    try:
        yield
    except OSError as problem:
        got = f"{folder}: {failure_text(problem)}"
        hint = "see to room and rights there, then start the query again with its checkpoint: the batch is written again"
        passes = True if not_mounted(folder, problem) else None
        raise OperatorError("the files of a batch cannot be written", got=got, hint=hint, transient=passes) from problem


def staging_of(mark: str, batch_id: int) -> str:
    """Return where the files of a micro-batch wait, below the sink's folder."""
    return f"{STAGING}/{mark}-{batch_id:012d}"


def stem_of(mark: str, batch_id: int) -> str:
    """Return how the names of the files of a micro-batch begin."""
    return f"part-{mark}-{batch_id:012d}-"


def write_staged(
    sink: FileSink,
    folder: str,
    mark: str,
    batch_id: int,
    part: int,
    table: pa.Table,
    *,
    durable: bool = False,
    staged_in: str | None = None,
    claimed: bool = False,
) -> list[str]:
    """Write one table of a micro-batch where nobody sees it; `part` tells the tables of a batch apart.

    It waits in the folder `staged_in`, by default in one of the batch. A folder that a query has `claimed` is away when it is
    missing: nothing is made below the place of a mount.

    Gives the texts for :meth:`Publisher.publish`, one for each file: its name, after the folder of its partition.
    """
    # without chunks that have no rows, for which Arrow's CSV writer writes bytes of a used buffer
    rows = pa.Table.from_batches([b for b in table.to_batches() if b.num_rows], table.schema)
    parts = hive.parted(rows, sink.partition_by) if sink.partition_by else [("", rows)]
    store, root = store_at(folder)
    staging, waiting = f"{root}/{staged_in or staging_of(mark, batch_id)}", list[str]()
    texts = []
    with placed(folder):
        if store.needs_folders:
            store.add_folder(staging, above=not claimed)
        for below, some in parts:
            name, place = f"{part:05d}-{uuid.uuid4().hex}{sink.suffix}", f"{below}/" if below else ""
            final, hidden = f"{place}{stem_of(mark, batch_id)}{name}", f"{staging}/{name}"
            text = store.stage(root, final, hidden, partial(call_plainly, sink.write_table, some))
            if text is None:
                waiting.append(hidden)
            texts.append(text or f"{place}{name}")
        if durable:
            store.sync(*waiting)
    return texts


@attrs.define
class Publisher:
    """Publishes the files of one output in its folder.

    Attributes
    ----------
    folder : str
        The folder.
    mark : str
        The output, in the names of its files.
    durable : bool
        Whether files must survive a loss of power.
    alone : bool
        True if nobody else writes: then one folder is for the staged files of all batches. To remove one for each takes 3.5 ms
        on ext4 of Linux 6.18.
    """

    folder: str
    mark: str
    durable: bool = False
    alone: bool = False
    claimed: bool = False
    """True if a query has made the folder, which is away when it is missing."""
    _first: bool = True

    def staging(self, batch_id: int) -> str:
        """Return the folder below the output in which the files of a batch wait."""
        return staging_of(self.mark, 0 if self.alone else batch_id)

    def end(self) -> None:
        """Remove the folder of staged files that is for all batches; a file that a failed batch left is for the next start."""
        if self.alone:
            store, root = store_at(self.folder)
            staging = f"{root}/{self.staging(0)}"
            if not store.entries(staging):
                store.delete_folder(staging)

    def publish(self, batch_id: int, names: list[str]) -> None:
        """Put the files of a batch in place, replacing those of an earlier attempt at it.

        A name may have the folder of its partition in front; in staging, names are without it.

        Raises
        ------
        OperatorError
            When files of the batch are gone. What was published before stays then.
        """
        store, root = store_at(self.folder)
        uploads = [name for name in names if name.startswith("{")]
        staged = [] if uploads else names  # files of Spark's are staged in a bucket, too
        self._check_staged(store, root, batch_id, staged)
        if self._first:  # only the first batch after a start can be a repetition
            with writable(self.folder):
                if not self.claimed:
                    store.add_folder(root)
                # what waits goes first: whoever was thought dead cannot publish it after the listing that follows
                gone = store.give_up(root, f"part-{self.mark}-", uploads)
                if gone:
                    raise _gone(f"{gone} of {len(uploads)} uploads to {root}")
                self._give_up_staged(store, root, batch_id, staged)
                there = _with_partitions(store, store.entries(root))
                store.delete(*(file.path for file in there if self._repeated(file.base_name, batch_id)))
        self._first = False
        with placed(self.folder):
            for each in uploads:
                store.publish(root, each)
            if not uploads:
                self._move(store, root, batch_id, staged)

    def _check_staged(self, store: Store, root: str, batch_id: int, staged: list[str]) -> None:
        """See that nobody has removed staged files, before any other file is removed."""
        staging = f"{root}/{self.staging(batch_id)}"
        entries = store.entries(staging) if staged else []
        gone = set(map(_base, staged)) - {each.base_name for each in entries}
        if gone:
            raise _gone(f"{len(gone)} of {len(staged)} in {staging}")

    def _give_up_staged(self, store: Store, root: str, batch_id: int, staged: list[str]) -> None:
        """Remove staged files of attempts that failed."""
        kept = set(map(_base, staged))
        for entry in store.entries(f"{root}/{STAGING}"):
            if entry.path.endswith(f"/{self.staging(batch_id)}"):
                inside = store.entries(entry.path)
                store.delete(*(each.path for each in inside if each.is_file and each.base_name not in kept))
            elif entry.base_name.startswith(f"{self.mark}-"):
                store.delete_folder(entry.path)

    def _move(self, store: Store, root: str, batch_id: int, names: list[str]) -> None:
        """Give staged files their names, and remove the staging folder of a batch."""
        staging = f"{root}/{self.staging(batch_id)}"
        stem = stem_of(self.mark, batch_id)
        own = f"-{uuid.uuid4().hex}" if store.copies_to_rename else ""  # a copy that is repeated must know its own
        moves, folders = [], dict[str, None]()
        for number, name in enumerate(sorted(names)):
            below, base = _place(name), _base(name)
            folders |= dict.fromkeys(_above(below))
            moves.append((f"{staging}/{base}", f"{root}/{below}{stem}{number:05d}{own}{base[base.index('.') :]}"))
        for below in folders:
            store.add_folder(f"{root}/{below}")
        try:
            store.rename(moves)
        except FileNotFoundError as problem:
            raise _gone(str(problem)) from problem
        if self.durable and names:
            store.sync(root, *(f"{root}/{below}" for below in folders))
        if not self.alone:
            store.delete_folder(staging)

    def _repeated(self, name: str, batch_id: int) -> bool:
        """Return whether a file is of this micro-batch or a later one, which a checkpoint put back from a copy runs again."""
        match = _NAMED.match(name)
        return match is not None and match[1] == self.mark and int(match[2]) >= batch_id


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _place(name: str) -> str:
    """Return the folder of a name, with a slash at its end; nothing where it has none."""
    folder, slash, _ = name.rpartition("/")
    return folder + slash


def _above(place: str) -> list[str]:
    """Return a folder and those above it, the uppermost first."""
    parts = place.strip("/").split("/") if place else []
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def _with_partitions(store: Store, there: list[pafs.FileInfo]) -> list[pafs.FileInfo]:
    """Return what is in a folder, and in the folders of partitions in it."""
    files = list(there)
    for each in there:
        if each.type == pafs.FileType.Directory and "=" in each.base_name:
            files += store.entries(each.path, recursive=True)
    return [each for each in files if each.is_file]


def _gone(got: str) -> OperatorError:
    then = "the batch is not published, and what was published stays"
    hint = "see that one query runs from the checkpoint, and start it again: the batch is written again"
    return OperatorError("a file cannot be published: it is gone", got=got, then=then, hint=hint)
