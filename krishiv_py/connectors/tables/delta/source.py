"""A Delta table as a source: the driver plans files by version, tasks read them with Arrow."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.connectors.source import JsonValue, Planned, Source
from krishiv_py.connectors.tables.delta.log import Commit, DataFile, commit_of, files_at, names_in, table_at
from krishiv_py.connectors.tables.delta.place import filesystem
from krishiv_py.errors import SourceError, shown
from krishiv_py.lazy import lazy
from krishiv_py.storage import datasets
from krishiv_py.storage.datasets import Dataset

if TYPE_CHECKING:
    import pyarrow.fs as pafs

    from krishiv_py.connectors.tables.delta import files
else:  # only tasks read
    files = lazy("krishiv_py.connectors.tables.delta.files")

OnChange: TypeAlias = Literal["fail", "skip"]


@attrs.define(eq=False)
class _Known:
    """Holds what the driver knows of the table for a while. It stays behind when a source is sent to a task.

    ``empty``: the versions after the first number, up to the second one, bring no rows.
    """

    files: pafs.FileSystem | None = None
    snapshot: tuple[int, list[DataFile]] | None = None
    empty: tuple[int, int] = (0, -1)

    def behind(self, version: int) -> int:
        """Return the last version after which there may be rows."""
        return self.empty[1] if self.empty[0] <= version <= self.empty[1] else version

    def __reduce__(self) -> tuple[type[_Known], tuple[()]]:
        return _Known, ()


@attrs.frozen
class _Place:
    """Says where the source is: `done` files of version `version` are planned.

    ``whole`` says that the files are those of the whole table at that version, and not those the version added; ``done`` is
    None when the version is behind.
    """

    table: str
    version: int
    done: int | None
    whole: bool


@attrs.frozen(eq=False)
class DeltaSource(Source):
    """Made by ``session.read_delta`` and :func:`krishiv_py.connectors.delta_source`.

    Attributes
    ----------
    path : str
        Folder or address of the table.
    schema : pyarrow.Schema
        The columns of the table when the source was made.
    columns_at : int
        The version whose columns these are.
    base : int
        The version of the whole table, or the one before the first.
    """

    path: str
    schema: pa.Schema
    table: str
    columns_at: int
    base: int
    whole: bool
    finite: bool
    most: int | None
    on_change: OnChange
    parallelism: int
    storage: Mapping[str, str] = attrs.field(repr=False)
    poll_seconds: float = 1.0
    until: int | None = None
    _known: _Known = attrs.field(factory=_Known, repr=False)

    def plan(self, last: JsonValue) -> Planned | None:
        """Return the next files. The first batch notes where the source begins, even if it has none."""
        if last is None:
            start = _Place(self.table, self.base, 0 if self.whole else None, self.whole)
            return self._batch(start) or self._planned(start, [])
        assert isinstance(last, dict)
        place: dict[str, Any] = last
        start = _Place(**place)
        if start.table != self.table:
            raise self._another(self.table)
        return self._batch(start)

    def _batch(self, place: _Place) -> Planned | None:
        """Return the next files after a place, at most so many; None if there are none."""
        files: list[DataFile] = []
        begin = place.version
        while self.most is None or len(files) < self.most:
            if place.done is None:
                following = self._next_version(self._known.behind(place.version))
                if following is None:
                    break
                place = following
            here = self._files(place)
            assert place.done is not None
            taken = here[place.done :] if self.most is None else here[place.done : place.done + self.most - len(files)]
            files += taken
            done = place.done + len(taken)
            place = attrs.evolve(place, done=None if done >= len(here) else done)
            if not files:
                self._known.empty = begin, place.version
        return self._planned(place, files) if files else None

    def _next_version(self, version: int) -> _Place | None:
        if self.finite or (self.until is not None and version >= self.until):
            return None
        commit = commit_of(self._folder(), self.path, version + 1)
        if commit is None:
            table = table_at(self.path, self.storage)
            if str(table.metadata().id) != self.table:
                raise self._another(str(table.metadata().id))
            latest = int(table.version())
            if latest > version and commit_of(self._folder(), self.path, version + 1) is None:
                raise SourceError(
                    "versions of a Delta table are gone",
                    got=f"{shown(self.path)} is at {latest}, and the log has no version {version + 1}, which is next",
                    then="their rows are lost to this query",
                    hint="keep the log for longer (delta.logRetentionDuration), and begin with a new checkpoint",
                )
            if latest < version:
                raise self._shorter(version, latest)
            return None
        return _Place(self.table, version + 1, 0, whole=False)

    def _files(self, place: _Place) -> Sequence[DataFile]:
        if place.whole:
            if self._known.snapshot is None or self._known.snapshot[0] != place.version:
                self._known.snapshot = place.version, files_at(table_at(self.path, self.storage, place.version), self.path)
            return self._known.snapshot[1]
        commit = commit_of(self._folder(), self.path, place.version)
        if commit is None:
            raise self._shorter(place.version, place.version - 1)
        if commit.table is not None and commit.table != self.table:
            raise self._another(commit.table)
        # versions before the source was made may not have had all columns yet
        if (
            commit.columns is not None
            and place.version > self.columns_at
            and (missing := [name for name in names_in(self.schema) if name.lower() not in map(str.lower, commit.columns)])
        ):
            raise self._narrower(place.version, missing)
        return () if commit.removed and self._skipped(commit, place.version) else commit.added

    def _skipped(self, commit: Commit, version: int) -> bool:
        """Return whether a version that changed rows is passed over; it is an error otherwise."""
        got = f"{shown(self.path)}: version {version} takes {commit.removed} files out and adds {len(commit.added)}"
        if self.on_change == "fail":
            raise SourceError(
                "rows of a Delta table were changed or deleted",
                got=got,
                then="a stream cannot take back what it has read",
                hint='pass on_change="skip" to pass over such versions, or begin with a new checkpoint',
            )
        warnings.warn(f"a version that changed rows is passed over: {got}", RuntimeWarning, stacklevel=2)
        return True

    def _planned(self, place: _Place, files: Sequence[DataFile]) -> Planned:
        position: dict[str, Any] = attrs.asdict(place)
        groups = _groups(files, self.parallelism)
        return Planned(position, [[[file.path, dict(file.parts)] for file in group] for group in groups])

    def _folder(self) -> pafs.FileSystem:
        if self._known.files is None:
            self._known.files = filesystem(self.path, self.storage)
        return self._known.files

    def _another(self, table_id: str) -> SourceError:
        return SourceError(
            "it is another Delta table than the one that was read",
            got=f"{shown(self.path)}: its id is {table_id} now",
            hint="begin with a new checkpoint",
        )

    def _narrower(self, version: int, missing: Sequence[str]) -> SourceError:
        return SourceError(
            "a Delta table has lost columns",
            got=f"{shown(self.path)}: {', '.join(missing)}, in version {version}",
            then="they would be null from there on",
            hint="begin with a new checkpoint and the columns there are now",
        )

    def _shorter(self, version: int, latest: int) -> SourceError:
        return SourceError(
            "a Delta table has fewer versions than were read of it",
            got=f"{shown(self.path)}: version {version} was read, and it ends at {latest}",
            then="it was restored from an older copy, and nobody knows which rows were read",
            hint="begin with a new checkpoint",
        )

    def read(self, planned: JsonValue, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files of a range."""
        assert isinstance(planned, list)
        wanted = pa.schema([self.schema.field(name) for name in columns])
        for entry in planned:
            assert isinstance(entry, list)
            name, parts = entry
            assert isinstance(name, str) and isinstance(parts, dict)
            yield from files.rows_of(self.path, self.storage, name, parts, wanted)

    def datasets(self) -> tuple[Dataset, ...]:
        """Return the folder of the table."""
        return (datasets.files_at(self.path),)

    def until_now(self) -> DeltaSource:
        """Up to the version there is now, or to the one that it ends with."""
        if self.until is not None:
            return self
        return attrs.evolve(self, until=int(table_at(self.path, self.storage).version()))


def _groups(files: Sequence[DataFile], most: int) -> list[list[DataFile]]:
    """Files in at most so many runs of about equal size; one empty run if there are none."""
    whole, groups, size = sum(file.size for file in files), [[]], 0  # type: tuple[int, list[list[DataFile]], int]
    for file in files:
        if groups[-1] and size >= whole * len(groups) / most:
            groups.append([])
        groups[-1].append(file)
        size += file.size
    return groups
