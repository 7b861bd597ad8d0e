"""A table of snapshots as a source: the files that each snapshot brought, planned on the driver.

A format says which snapshots there are, and how one lists its files and is read. Where a stream begins and goes on, how much a
batch takes, and what becomes of changed rows is the same for all of them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar

import attrs
import pyarrow as pa

from krishiv_py.connectors.ranges import in_runs
from krishiv_py.connectors.source import JsonValue, Planned, Source
from krishiv_py.errors import ColumnError, PlanError, SourceError, shown
from krishiv_py.plan.changes import FEED_KIND, FEED_TIME, FEED_VERSION
from krishiv_py.plan.checks import a_number, a_switch, apart, one_of

OnChange: TypeAlias = Literal["fail", "skip"]
TablePlace: TypeAlias = "Literal['earliest', 'latest'] | int"
MOST: Final = (1 << 63) - 1
_TASKS: Final = "state how many tasks read at once, from 1"
AGAIN: Final = "begin with a new checkpoint"
FEED: Final = pa.schema([(FEED_KIND, pa.string()), (FEED_VERSION, pa.int64()), (FEED_TIME, pa.timestamp("us", "UTC"))])
"""The columns that rows have besides those of the table where it is read as changes."""


@attrs.frozen
class TableFile:
    """A file of a table: its bytes, and how it is noted for the task that reads it."""

    size: int
    noted: JsonValue


@attrs.frozen
class Change:
    """Holds what one snapshot did.

    Attributes
    ----------
    added : tuple of TableFile
        Files with new rows, in order.
    removed : int
        How many files with rows it took out, and with deleted rows it added; merging files takes out none.
    gone : tuple of TableFile
        Files whose rows are gone, where the table is read as changes.
    feed : tuple of TableFile
        Files of changes, which say of each row what it is; then `added` and `gone` say the same as whole files.
    """

    added: tuple[TableFile, ...]
    removed: int
    gone: tuple[TableFile, ...] = attrs.field(default=(), kw_only=True)
    feed: tuple[TableFile, ...] = attrs.field(default=(), kw_only=True)


@attrs.frozen
class TablePosition:
    """Says where the source is: `done` files of a snapshot are planned. A format adds which snapshot, under its own name.

    Attributes
    ----------
    table : str
        Identity of the table.
    done : int or None
        None when all of its files are planned.
    whole : bool
        Whether the files are those of the whole table at that snapshot, and not those the snapshot added.
    """

    table: str
    done: int | None
    whole: bool

    @property
    def number(self) -> int | None:
        """The number of the snapshot."""
        raise NotImplementedError


P = TypeVar("P", bound=TablePosition)


@attrs.define(eq=False)
class TableFacts:
    """Holds what the driver knows of a table for a while. It stays behind when a source is sent to a task.

    Attributes
    ----------
    whole : tuple or None
        The number of a snapshot, and the files of the whole table there.
    """

    whole: tuple[int | None, list[TableFile]] | None = None

    def __reduce__(self) -> tuple[type[TableFacts], tuple[()]]:
        return type(self), ()


@attrs.frozen(eq=False, kw_only=True)
class SnapshotSource(Source, Generic[P]):
    """A table whose snapshots follow each other.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns of the table when the source was made, or at the snapshot that is read.
    start : TablePosition
        Where it begins.
    finite : bool
        Whether it ends with the snapshot it begins with.
    most : int or None
        How many files a batch takes at most.
    on_change : str
        What becomes of a snapshot that changed rows.
    parallelism : int
        How many ranges a batch has at most.
    changes : bool
        Whether rows are changes of the table, with the columns of :data:`FEED`. A commit is then read whole: a part of its
        changes is no content that the table ever had.
    """

    schema: pa.Schema
    start: P
    finite: bool
    most: int | None
    on_change: OnChange
    parallelism: int
    changes: bool = False
    poll_seconds: float = 1.0
    lacks_order: ClassVar[str | None] = "a table has an order of commits, and none of the rows within one"
    _known: TableFacts = attrs.field(factory=TableFacts, repr=False)

    _format: ClassVar[str]
    """The format with its article."""
    _unit: ClassVar[str]
    """The name of the format for a snapshot."""
    _parts: ClassVar[str] = "files"
    """The things that a snapshot takes out."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, without those of its changes."""
        return pa.schema(list(self.schema)[: -len(FEED)]) if self.changes else self.schema

    def _called(self) -> str:
        """Return the table as errors have it."""
        raise NotImplementedError

    def _later(self, position: P) -> Iterator[P]:
        """Yield the beginnings of the snapshots after a position, the oldest first."""
        raise NotImplementedError

    def _whole_table(self, position: P) -> list[TableFile]:
        """Return the files of the whole table, the oldest first."""
        raise NotImplementedError

    def _change(self, position: P) -> Change:
        """Return what a snapshot did."""
        raise NotImplementedError

    def _commit(self, position: P) -> tuple[int, int]:
        """Return the number of a commit in the order of commits, and its time, µs since the epoch."""
        raise NotImplementedError

    def _rows(self, file: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file that was noted."""
        raise NotImplementedError

    def _passed(self, begin: P, end: P) -> None:
        """Take note that the snapshots after one position, up to another, bring no rows."""

    def plan(self, last: JsonValue) -> Planned | None:
        """Return the next files. The first batch notes where the source begins, even if it has none."""
        if last is None:
            return self._batch(self.start) or self._planned(self.start, [])
        assert isinstance(last, dict)
        noted: dict[str, Any] = last
        position = type(self.start)(**noted)
        if position.table != self.start.table:
            raise self._another(self.start.table)
        return self._batch(position)

    def _batch(self, position: P) -> Planned | None:
        """Return the next files after a position, at most so many; None if there are none."""
        files: list[TableFile] = []
        begin, later = position, None
        while self.most is None or len(files) < self.most:
            if position.done is None:
                later = self._later(position) if later is None else later
                following = next(later, None)
                if following is None:
                    break
                position = following
            assert position.done is not None
            here = self._files(position)
            whole = self.most is None or (self.changes and not position.whole)
            done = len(here) if whole else min(len(here), position.done + (self.most or 0) - len(files))
            files += here[position.done : done]
            position = attrs.evolve(position, done=None if done >= len(here) else done)
            if not files:
                self._passed(begin, position)
        return self._planned(position, files) if files else None

    def files_at_start(self) -> Sequence[TableFile]:
        """Return the files of the table where it begins, the oldest first."""
        return self._files(self.start)

    def _files(self, position: P) -> Sequence[TableFile]:
        if position.whole:
            if self._known.whole is None or self._known.whole[0] != position.number:
                files = self._whole_table(position)
                self._known.whole = position.number, self._fed(position, Change(tuple(files), 0)) if self.changes else files
            return self._known.whole[1]
        change = self._change(position)
        if self.changes:
            return self._fed(position, change)
        return () if change.removed and self._skipped(change, position.number) else change.added

    def _fed(self, position: P, change: Change) -> list[TableFile]:
        """Return the files of the changes of a commit, each noted with what it says."""
        version, time_us = self._commit(position)
        parts: tuple[tuple[str | None, tuple[TableFile, ...]], ...] = (("delete", change.gone), ("insert", change.added))
        return [
            TableFile(file.size, {"file": file.noted, "kind": kind, "version": version, "time_us": time_us})
            for kind, files in ([(None, change.feed)] if change.feed else parts)
            for file in files
        ]

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files of a range."""
        assert isinstance(planned, list)
        for entry in planned:
            yield from self._feed_rows(entry, columns) if self.changes else self._rows(entry, columns)

    def _feed_rows(self, entry: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        assert isinstance(entry, dict)
        known = {FEED_VERSION: entry["version"], FEED_TIME: entry["time_us"]}
        if entry["kind"] is not None:
            known[FEED_KIND] = entry["kind"]
        names = [name for name in columns if name not in known] or [self.schema.names[0]]
        wanted = pa.schema([self.schema.field(name) for name in columns])
        values = {name: pa.scalar(value, FEED.field(name).type) for name, value in known.items()}
        for batch in self._rows(entry["file"], names):
            rows = [pa.repeat(values[n], batch.num_rows) if n in values else batch.column(n) for n in columns]
            yield pa.record_batch(rows, schema=wanted)

    def _skipped(self, change: Change, number: int | None) -> bool:
        """Return True for a snapshot that is passed over although it changed rows; it is an error otherwise."""
        took = f"takes {change.removed} {self._parts} out and adds {len(change.added)}"
        got = f"{self._called()}: {self._unit} {number} {took}"
        if self.on_change == "fail":
            then = "a stream cannot take back what it has read"
            hint = f'pass on_change="skip" to pass over such {self._unit}s, or {AGAIN}'
            raise SourceError(f"rows of {self._format} table were changed or deleted", got=got, then=then, hint=hint)
        warnings.warn(f"a {self._unit} that changed rows is passed over: {got}", RuntimeWarning, stacklevel=2)
        return True

    def _planned(self, position: P, files: Sequence[TableFile]) -> Planned:
        noted: dict[str, Any] = attrs.asdict(position)
        runs = in_runs(files, self.parallelism, lambda file: file.size)
        return Planned(noted, [[file.noted for file in run] for run in runs])

    def _another(self, identity: str) -> SourceError:
        what = f"it is another {self._format.partition(' ')[2]} table than the one that was read"
        return SourceError(what, got=f"{self._called()}: its identity is {identity} now", hint=AGAIN)

    def _narrower(self, missing: Sequence[str], where: str = "") -> SourceError:
        got = f"{self._called()}: {', '.join(missing)}{where}"
        hint = f"{AGAIN} and the columns there are now"
        return SourceError(
            f"{self._format} table has lost columns", got=got, then="they would be null from there on", hint=hint
        )


def with_feed(columns: pa.Schema, changes: bool) -> pa.Schema:
    """Return the columns of a table as a source has them, with those of its `changes` where it is read as such."""
    if not changes:
        return columns
    own = {name.lower() for name in FEED.names}
    taken = next((name for name in columns.names if name.lower() in own), None)
    if taken is not None:
        hint = "rename the column of the table, or leave changes=True out"
        raise ColumnError("a table has a column that is one of its changes, too", got=shown(taken), hint=hint)
    return pa.schema([*columns, *FEED])


def check_arguments(
    unit: str,
    number: object,
    streaming: bool,
    starting: object,
    on_change: OnChange,
    most: int | None,
    tasks: int | None,
    changes: bool = False,
) -> int:
    """Check the arguments of a source; return how many tasks read at once.

    Parameters
    ----------
    unit : str
        What the format calls a snapshot.
    number : object
        The snapshot that is read once; None for the last one.
    streaming, starting, on_change, most, tasks, changes : object
        As the user has them; without `tasks` there is one for each core.

    Raises
    ------
    PlanError
        For what means nothing or does not go together.
    """
    a_switch(streaming, "streaming")
    one_of(on_change, "on_change", ("fail", "skip"))
    if a_switch(changes, "changes") and on_change != "fail":
        raise apart("on_change", "changes=True", "leave on_change out: rows that change or are deleted are among the changes")
    if most is not None:
        a_number(most, "max_files_per_batch", 1, "use 1 or more, or leave it out for all files that are there")
    numbered = isinstance(starting, int) and not isinstance(starting, bool) and 0 <= starting <= MOST
    if not numbered and starting not in ("earliest", "latest"):
        hint = f'use "earliest" for the whole table and what follows, "latest", or the number of a {unit}'
        raise PlanError("`starting` is not a place in a table", got=shown(starting), hint=hint)
    if streaming and number is not None:
        raise apart(unit, "streaming=True", f"use starting= for the {unit} with which a stream begins")
    if not streaming and starting != "earliest" and (starting == "latest" or not changes):
        raise apart("starting", "a table that is read once", f"use {unit}=, or streaming=True")
    return os.cpu_count() or 1 if tasks is None else a_number(tasks, "parallelism", 1, _TASKS, most=10_000)
