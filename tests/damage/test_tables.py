"""Kept tables of lookup joins, damaged in every way: a repeated batch sees what it saw, or there is an error of ours."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from krishiv_py.connectors.lookup_table import LookupTable, tables_are
from krishiv_py.errors import CheckpointError
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.tables import LookupTables, TaskTables
from krishiv_py.testing import stream_of
from tests.damage.trial import flipped
from tests.spark.fixtures.make import SCHEMA, windows

SPEC: Final = windows(stream_of(SCHEMA))._plan()
LAST: Final = 2
"""The batch that was begun and is repeated."""
NOTE: Final = "_in_use.json"


class Query:
    """Two tables of the same columns, whose rows say when they were loaded; each run is a process of its own."""

    def __init__(self, checkpoint: Path) -> None:
        self.folder = checkpoint / "krishiv" / "tables"
        self._checkpoint = str(checkpoint)
        self._loads = itertools.count(1)

    def _table(self, name: str) -> LookupTable:
        def load() -> pa.Table:
            return pa.table({"name": [name], "n": [next(self._loads)]})

        return LookupTable(pa.schema({"name": pa.string(), "n": pa.int64()}), None, load, 1)

    def run(self, *batches: int, begun: int = -1) -> list[tuple[list[Any], list[int]]]:
        """What tasks look rows up in, batch by batch, and the versions in progress."""
        tables = (self._table("a"), self._table("b"))
        notes = CheckpointNotes(self._checkpoint)
        notes.claim(SPEC, 2)
        clock = itertools.count(10)
        driver = LookupTables(self._checkpoint, tables, lambda: next(clock), False, begun, notes.has_tables, notes.note_tables)
        actual = []
        for batch in batches:
            versions = [one.version for one in driver.begin(batch).values()]
            with tables_are(TaskTables(self._checkpoint, batch)):
                actual.append(([table.current()[1].to_pylist() for table in tables], versions))
        return actual


@pytest.fixture
def query(tmp_path: Path) -> Query:
    """Begun up to its last batch, which is repeated."""
    query = Query(tmp_path / "cp")
    query.run(*range(LAST + 1))
    return query


def damages(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every file removed, emptied, cut and flipped at many places; and files in the place of others."""
    paths = sorted(folder.iterdir())
    assert len(paths) == 3
    for path in paths:
        data = path.read_bytes()
        yield f"{path.name} removed", path.unlink
        for i in [0, *range(1, len(data), max(len(data) // 40, 1))]:
            yield f"{path.name} cut at {i}", partial(path.write_bytes, data[:i])
            yield f"{path.name} flipped at {i}", partial(path.write_bytes, flipped(data, i))
    one, other = [path for path in paths if path.name != NOTE]

    def swap() -> None:
        first = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(first)

    yield "swapped", swap
    yield "one for the other", lambda: one.write_bytes(other.read_bytes())
    yield "the note for a table", lambda: one.write_bytes((folder / NOTE).read_bytes())
    yield "a table for the note", lambda: (folder / NOTE).write_bytes(one.read_bytes())
    yield "the note of the plan for that of the tables", lambda: shutil.copy(folder.with_name("plan.json"), folder / NOTE)
    yield "all tables removed", partial(list, map(Path.unlink, (one, other)))
    yield "the folder removed", lambda: shutil.rmtree(folder)


def test_a_repeated_batch_sees_what_it_saw(query: Query) -> None:
    seen = [[{"name": "a", "n": 5}], [{"name": "b", "n": 6}]]
    again, later = query.run(LAST, LAST + 1, begun=LAST)
    assert again == (seen, [3, 3])
    assert later == ([[{"name": "a", "n": 7}], [{"name": "b", "n": 8}]], [4, 4])


def test_damaged_tables_are_refused(query: Query) -> None:
    whole = query.folder.with_name("whole")
    shutil.copytree(query.folder, whole)
    wrong, tried = [], 0
    for name, damage in damages(query.folder):
        damage()
        tried += 1
        try:
            wrong.append(f"{name}: {query.run(LAST, begun=LAST)}")
        except CheckpointError as problem:
            if str(query.folder) not in str(problem) or "Hint: " not in str(problem):
                wrong.append(f"{name}: {problem}")
        except Exception as problem:
            wrong.append(f"{name}: {type(problem).__name__}: {problem}")
        shutil.rmtree(query.folder, ignore_errors=True)
        shutil.copytree(whole, query.folder)
    assert not wrong, "\n".join(wrong)
    assert tried > 200


def test_a_note_and_tables_of_an_earlier_batch_are_distinguished_from_the_last(query: Query) -> None:
    """Such a note is left by a crash before the tables of the repeated batch were loaded: then its tables are still there."""
    earlier = (query.folder / NOTE).read_bytes()
    query.run(LAST + 1, begun=LAST)
    (query.folder / NOTE).write_bytes(earlier)
    with pytest.raises(CheckpointError, match=r"krishiv/tables/0-\w+\.arrow is missing .*Hint: put it back"):
        query.run(LAST + 1, begun=LAST + 1)


def test_a_batch_that_crashed_before_its_tables_were_loaded_loads_them(query: Query) -> None:
    assert [versions for _, versions in query.run(LAST + 1, begun=LAST + 1)] == [[4, 4]]


def test_a_query_that_had_no_tables_gets_some(tmp_path: Path) -> None:
    """Without a note of the plan that there are any, none was lost."""
    query = Query(tmp_path / "cp")
    assert [versions for _, versions in query.run(7, begun=7)] == [[1, 1]]


def test_a_table_that_is_the_same_after_a_restart_keeps_its_version(tmp_path: Path) -> None:
    def version() -> int:
        table = LookupTable(pa.schema({"n": pa.int64()}), None, lambda: pa.table({"n": [1]}))
        return LookupTables(str(tmp_path), (table,), lambda: 0).begin(next(batch))["table"].version

    batch = itertools.count()
    assert [version(), version()] == [1, 1]
