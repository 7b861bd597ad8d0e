"""The library plans the files of a streaming query, whoever reads them: Arrow or Spark."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import Batches, MemorySink, Query, Session, Stream, count
from krishiv_py.errors import KrishivError
from tests.spark.conftest import DDL, row

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])


def as_csv(path: Path, one: dict[str, Any]) -> None:
    path.write_text(f"{one['user']},{one['at']},{one['amount']}\n")


def as_json(path: Path, one: dict[str, Any]) -> None:
    path.write_text(json.dumps(one) + "\n")


def as_parquet(path: Path, one: dict[str, Any]) -> None:
    pq.write_table(pa.Table.from_pylist([one], SCHEMA), path)


KINDS: dict[str, tuple[str, Callable[[Path, dict[str, Any]], None], dict[str, str]]] = {
    "parquet": ("read_parquet", as_parquet, {}),
    "json": ("read_json", as_json, {}),
    "json-by-spark": ("read_json", as_json, {"multiLine": "true"}),
    "csv": ("read_csv", as_csv, {}),
}
SHORT = ("json-by-spark",)
"""The library plans these files and Spark reads them; `nox -s slow` has the others."""


def of_kind(*words: str) -> Any:
    """Return an argument of a test, which is a long form for most kinds of files."""
    return pytest.param(*words, marks=() if words[0] in SHORT else pytest.mark.slow)


class Folder:
    """A folder of one kind of file, and a query over it whose rows fire at once."""

    def __init__(self, session: Session, home: Path, kind: str) -> None:
        self.session, self.home, self.path = session, home, home / "in"
        self.read, self.write, self.options = KINDS[kind]
        self.checkpoint = home / "checkpoint"
        self.path.mkdir(parents=True)

    def put(self, name: str, at: int, *, mtime_s: float | None = 5, size: int | None = None) -> Path:
        """One file with one row, by default as old as all the others."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = path.with_name(f"_{path.name}")  # a query that runs may look at any moment
        self.write(hidden, row(name, at))
        if size is not None:
            os.truncate(hidden, size)
        if mtime_s is not None:
            os.utime(hidden, (mtime_s, mtime_s))
        hidden.rename(path)
        return path

    def stream(self, **settings: Any) -> Stream:
        return getattr(self.session, self.read)(self.path, DDL, streaming=True, **settings, **self.options)  # type: ignore[no-any-return]

    def start(self, function: Callable[[Any], Any] | None = None, batches: Batches | None = None, **settings: Any) -> Query:
        stream = self.stream(**settings)
        stream = stream if function is None else stream.map_batches(function)
        plan = stream.watermark("at", 0).key_by("user").tumbling_window(1).agg(count())
        batches = Batches.available_now() if batches is None else batches
        return plan.start(MemorySink(), checkpoint=str(self.checkpoint), batches=batches)

    def run(self, function: Callable[[Any], Any] | None = None, **settings: Any) -> tuple[int, int]:
        """Rows so far, and late ones."""
        query = self.start(function, **settings)
        query.await_termination()
        return query.progress.rows, query.progress.late["late"]


@pytest.fixture(params=[of_kind(kind) for kind in KINDS])
def folder(request: pytest.FixtureRequest, session: Session, tmp_path: Path) -> Folder:
    return Folder(session, tmp_path, request.param)


@pytest.fixture
def compacts_soon(session: Session) -> Iterator[None]:
    """Let Spark make its log of files compact at every fourth batch, in place of every tenth."""
    session.spark.conf.set("spark.sql.streaming.fileSource.log.compactInterval", "4")
    yield
    session.spark.conf.unset("spark.sql.streaming.fileSource.log.compactInterval")


@pytest.mark.slow
def test_files_of_equal_time_are_taken_by_name_and_those_without_bytes_wait(folder: Folder) -> None:
    for n in (3, 0, 2, 1, 4):
        folder.put(f"{n}", n * 10)
    (folder.path / "3").write_text("")
    assert folder.run(max_files_per_batch=1) == (4, 0)
    folder.put("3", 60)
    folder.put("old", 50, mtime_s=1)
    assert folder.run(max_files_per_batch=1) == (6, 0)
    assert folder.run() == (6, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        *(of_kind(kind, "removed") for kind in KINDS),
        *(of_kind(kind, change) for kind in ("parquet", "csv") for change in ("cut", "other")),
    ],
)
def test_a_planned_file_that_is_not_as_it_was_is_named(session: Session, tmp_path: Path, kind: str, change: str) -> None:
    folder = Folder(session, tmp_path, kind)
    flag = folder.home / "flag"
    flag.touch()

    def fails(batch: pa.RecordBatch, flag: str = str(flag)) -> pa.RecordBatch:
        if os.path.exists(flag):
            raise RuntimeError("not yet")
        return batch

    folder.put("a #1%20", 10)
    path = folder.put("b [1]*?", 20)
    whole = path.read_bytes()
    with pytest.raises(KrishivError, match="not yet"):
        folder.run(fails)
    flag.unlink()
    if change == "removed":
        path.unlink()
    elif change == "cut":
        os.truncate(path, 0)
    else:
        folder.put("b [1]*?", 20, mtime_s=9)
    with pytest.raises(KrishivError, match=r"went before it was read|changed after a batch had planned it") as caught:
        folder.run(fails)
    assert "b [1]*?" in str(caught.value)
    path.write_bytes(whole)
    os.utime(path, (5, 5))
    assert folder.run(fails) == (2, 0)


def test_a_file_that_changes_while_spark_reads_it_stops_the_batch(session: Session, tmp_path: Path) -> None:
    folder = Folder(session, tmp_path, "csv")
    path = folder.put("a", 10)

    def grows(batch: pa.RecordBatch, path: str = str(path)) -> pa.RecordBatch:
        if os.path.getsize(path) < 20:
            with open(path, "a") as out:
                out.write("a,20,1\n")
        return batch

    with pytest.raises(KrishivError, match="changed after a batch had planned it"):
        folder.run(grows)


@pytest.mark.usefixtures("compacts_soon")
def test_files_come_while_it_runs_and_go_when_they_were_read(folder: Folder) -> None:
    folder.put("0", 0)
    away: dict[str, Any] = {"after_read": "archive", "archive": folder.home / "done"}
    query = folder.start(batches=Batches(), **away)
    for n in range(1, 6):  # more than Spark writes before it makes its log compact
        query.process_all_available()
        folder.put(f"{n}", n * 10)
    query.process_all_available()
    assert (query.progress.rows, query.progress.late["late"]) == (6, 0)
    query.stop()
    folder.put("0", 150, mtime_s=9)  # another file, for the first one was put away
    assert folder.run(**away) == folder.run(**away) == (7, 0)  # over Connect the last ones go at the next start
    assert len(list((folder.home / "done").iterdir())) == 7
    assert list(folder.path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("compacts_soon")
def test_a_checkpoint_with_a_name_like_a_pattern_and_one_that_was_moved(folder: Folder) -> None:
    folder.checkpoint = folder.home / "check [1]*{a}? #1%20"
    for n in range(6):
        folder.put(f"{n:02d}", n * 10)
    assert folder.run(max_files_per_batch=1) == (6, 0)
    shutil.move(folder.checkpoint, folder.home / "moved")
    folder.checkpoint = folder.home / "moved"
    folder.put("12", 120)
    assert folder.run(max_files_per_batch=1) == (7, 0)


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in ("csv", "json-by-spark")])
def test_spark_keeps_no_names_of_long_ago_and_older_checkpoints_go_on(session: Session, tmp_path: Path, kind: str) -> None:
    folder = Folder(session, tmp_path, kind)
    for n in range(25):
        folder.put(f"{n:02d}", n * 10)
    assert folder.run(max_files_per_batch=1) == (25, 0)
    log = folder.checkpoint / "sources/0"
    assert len((log / "19.compact").read_text().splitlines()) <= 15
    for n in range(25, 31):
        folder.put(f"{n:02d}", n * 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert folder.run(max_files_per_batch=1) == (31, 0)
    assert len((log / "29.compact").read_text().splitlines()) <= 12
    # as Spark wrote it when it planned these files
    shutil.rmtree(folder.checkpoint / "krishiv/ranges")
    lines = [json.dumps({"path": (folder.path / f"{n:02d}").as_uri(), "timestamp": 5_000, "batchId": n}) for n in range(30)]
    (log / ".29.compact.crc").unlink(missing_ok=True)
    (log / "29.compact").write_text("\n".join(["v1", *lines]))
    shutil.rmtree(folder.checkpoint / "krishiv/files", ignore_errors=True)
    folder.put("31", 320)
    folder.put("older", 310, mtime_s=1)
    assert folder.run(max_files_per_batch=1) == (33, 0)
    assert folder.run() == (33, 0)


def test_a_bounded_run_reads_the_same_files(folder: Folder) -> None:
    for n in range(3):
        folder.put(f"{n}/a #{n}%20 [x]*?", n)
    folder.put("_hidden", 9)
    folder.put("x.tmp", 9)
    (folder.path / "empty").write_text("")
    os.symlink(folder.path / "0", folder.path / "again")
    stream = getattr(folder.session, folder.read)(folder.path, DDL, **folder.options)
    assert stream.watermark("at", 0).tumbling_window(10).agg(count()).collect()["count"].to_pylist() == [3]
    assert folder.run() == (3, 0)
    shutil.rmtree(folder.path)
    folder.path.mkdir()
    assert stream.watermark("at", 0).tumbling_window(10).agg(count()).collect().num_rows == 0
