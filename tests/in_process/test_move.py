"""A query in process goes on on Spark: what the move writes, and that the old checkpoint is whole however it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from krishiv_py import Batches, CheckpointError, ParquetSink, PlanError, Session, SideOutputLateEventHandler
from krishiv_py.cli.main import main
from krishiv_py.in_process import savepoints as of_process
from krishiv_py.kernels.state.spread import BucketContent
from krishiv_py.runtime import savepoints
from krishiv_py.runtime.checkpoint.notes import STATE, CheckpointNotes, CheckpointOrigin, begin_move
from krishiv_py.runtime.closings import Closings, noted_keys, request
from krishiv_py.runtime.savepoints import Savepoint, read_bucket, write_bucket
from krishiv_py.storage.checksums import sealed
from krishiv_py.storage.store import Store
from krishiv_py.transfers import checkpoints
from tests.crash import killing
from tests.crash.job import KINDS, SCHEMA, outputs, plan
from tests.crash.killing import rows, write_input
from tests.crash.test_crash import by_driver
from tests.in_process.test_session import per_minute
from tests.in_process.test_session import rows as sent

MOVED = tuple(kind for kind in KINDS if kind != "lookup")


@pytest.fixture
def session() -> Iterator[Session]:
    """A session of its own."""
    with Session.in_process() as made:
        yield made


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killing, "ROWS", 60)


def run(session: Session, kind: str, home: Path, checkpoint: str, *, last: bool = False) -> str:
    """Read what is there."""

    def read() -> Any:
        return session.read_parquet(str(home / "in"), SCHEMA, streaming=True, max_files_per_batch=1)

    late = SideOutputLateEventHandler(ParquetSink(f"{home}/late"))
    batches = Batches.available_now(flush=last)
    if kind == "outputs":
        query = session.start(outputs(read, late, str(home)), checkpoint=checkpoint, batches=batches)
    else:
        query = plan(read, kind, late).start(ParquetSink(f"{home}/out"), checkpoint=checkpoint, batches=batches)
    query.await_termination()
    return f"{query.progress.rows} {query.progress.late['late']}"


def given(home: Path, files: slice) -> None:
    """Let some of the files come."""
    (home / "in").mkdir(exist_ok=True)
    for path in sorted((home / "all").iterdir())[files]:
        shutil.copy2(path, home / "in")


def through_a_savepoint(checkpoint: str, into: str, folder: str, buckets: int) -> None:
    """Make a checkpoint of another one, as if Spark had kept the state meanwhile."""
    saved = of_process.save(checkpoint, folder)
    savepoints.restore_for_spark(saved, f"{folder}-spark", buckets)
    for number, stage in enumerate(saved.stages):
        for bucket in range(buckets if stage.buckets else 0):
            held = read_bucket(f"{folder}-spark/{STATE}", number, bucket)
            assert held is not None
            held.meta.pop("counters", None), held.meta.pop("given", None)  # Spark keeps them with the state
            write_bucket(folder, number, bucket, held)
        stage.buckets = list(range(buckets)) if stage.buckets else []
    saved.close()
    opened = Savepoint.open(folder)
    of_process.restore(opened, into)
    CheckpointNotes(into).begin(opened.note, 1, "test")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", MOVED)
def test_a_query_goes_on_from_a_savepoint_of_several_buckets(session: Session, kind: str, tmp_path: Path) -> None:
    write_input(tmp_path / "all", seed=KINDS.index(kind), files=6)
    out, late, read = by_driver(kind, tmp_path / "all", tmp_path / "driver")
    given(tmp_path, slice(0, 3))
    run(session, kind, tmp_path, str(tmp_path / "a"))
    through_a_savepoint(str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "saved"), 3)
    shutil.rmtree(tmp_path / "a")
    given(tmp_path, slice(3, 6))
    said = run(session, kind, tmp_path, str(tmp_path / "b"), last=True)
    assert {name: rows(tmp_path / name) for name in out} == out
    assert (rows(tmp_path / "late"), said) == (late, read)


def begun(session: Session, tmp_path: Path, kind: str = "outputs") -> str:
    """A checkpoint with some batches."""
    write_input(tmp_path / "all", seed=1, files=4)
    given(tmp_path, slice(0, 2))
    run(session, kind, tmp_path, str(tmp_path / "a"))
    return str(tmp_path / "a")


def test_a_moved_checkpoint_says_where_it_goes_on(session: Session, tmp_path: Path) -> None:
    old = begun(session, tmp_path)
    new = session.move(old, "spark", buckets=4)
    assert new == f"{old}-on-spark"
    assert CheckpointOrigin.of(new).batches == 2
    with pytest.raises(CheckpointError, match=r"was moved .*-on-spark"):
        run(session, "outputs", tmp_path, old)
    with pytest.raises(CheckpointError, match="was moved"):
        session.move(old, "spark", str(tmp_path / "again"))
    with pytest.raises(CheckpointError, match=rf"krishiv move {new} --to in-process"):
        run(session, "outputs", tmp_path, new)
    shutil.rmtree(new)
    given(tmp_path, slice(2, 4))
    run(session, "outputs", tmp_path, old, last=True)  # the state before the move


class KilledError(Exception):
    """Stands for a process that dies."""


def test_the_old_checkpoint_is_whole_wherever_a_move_ends(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = begun(session, tmp_path), str(tmp_path / "new")
    broken_off = 0
    names = [(checkpoints, n) for n in ("begin_move", "restore_for_spark", "note_moved")]
    names += [(savepoints, n) for n in ("write_bucket", "write_sources", "CheckpointOrigin")]
    for module, name in names:
        with monkeypatch.context() as patched:
            patched.setattr(module, name, _dying(getattr(module, name)))
            with pytest.raises(KilledError):
                session.move(old, "spark", new)
        broken_off += 1
        if Path(new, "krishiv", "moving.json").exists():
            with pytest.raises(CheckpointError, match="broken off"):
                run(session, "outputs", tmp_path, new)
        run(session, "outputs", tmp_path, old)
    assert broken_off == len(names)
    assert session.move(old, "spark", new) == new
    assert not Path(new, "krishiv", "moving").exists()


class DiedError(BaseException):
    """What no handler of errors takes, as nothing runs in a process that was killed."""


class Killer:
    """Kills at one of the file operations, by number: all that is tried with files afterwards fails, too."""

    def __init__(self, patched: pytest.MonkeyPatch, number: int) -> None:
        self.number, self.done = number, 0
        for name in ("mkdir", "rename", "replace", "unlink", "rmdir", "link", "write", "open"):
            patched.setattr(os, name, self._counted(getattr(os, name)))
        patched.setattr(Store, "delete_folder", lambda _store, path: self._delete_folder(path))

    def _counted(self, function: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            if function.__name__ != "open" or given[1] & os.O_CREAT:
                self._step()
            return function(*given, **named)

        return call

    def _step(self) -> None:
        self.done += 1
        if self.done > self.number:
            raise DiedError

    def _delete_folder(self, path: str) -> None:
        """One after the other, and the mark first: an order that a file system may have."""
        for below in sorted(Path(path).rglob("*"), key=lambda p: (-len(p.parts), p.name != "moving.json")):
            os.rmdir(below) if below.is_dir() else os.unlink(below)
        if Path(path).is_dir():
            os.rmdir(path)


def test_a_move_that_is_killed_at_any_file_operation_is_repeated(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = begun(session, tmp_path, "session"), str(tmp_path / "new")

    def move(number: int) -> int:
        """Return how many operations there were until the end; -1 where it was killed."""
        with monkeypatch.context() as patched:
            killer = Killer(patched, number)
            try:
                session.move(old, "spark", new, buckets=2)
            except DiedError:
                return -1
            return killer.done

    operations = move(1_000_000)
    assert operations > 20
    for number in range(operations):
        shutil.rmtree(new)
        assert move(number) == -1
        move(number // 2)  # the repeat is killed, too, while it removes what the first one left
        assert session.move(old, "spark", new, buckets=2) == new, number
        assert CheckpointOrigin.of(new).batches == 2
        assert [name for name in ("moving.json", "moving") if Path(new, "krishiv", name).exists()] == []
        with pytest.raises(CheckpointError, match="was moved"):
            run(session, "session", tmp_path, old)


def _dying(function: Any) -> Any:
    def dies(*given: Any, **named: Any) -> None:
        if not isinstance(function, type):
            function(*given, **named)  # it dies behind it, at the latest moment
        raise KilledError

    return dies


def test_what_cannot_be_moved_says_what_to_do(session: Session, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no query has kept its state here"):
        session.move(str(tmp_path / "none"), "spark")
    old = begun(session, tmp_path)
    with pytest.raises(PlanError, match=r"of this engine already .*'in-process'"):
        session.move(old, "in-process")
    with pytest.raises(CheckpointError, match=r"not empty .*new folder"):
        session.move(old, "spark", str(tmp_path / "in"))
    note = Path(old, "krishiv", "plan.json")
    kept = note.read_bytes()
    stored = json.loads(kept.partition(b"\n")[2])
    stored.pop("outline")
    note.write_bytes(sealed(json.dumps(stored).encode()))
    with pytest.raises(CheckpointError, match=r"earlier version.*start the query once with this version"):
        session.move(old, "spark", str(tmp_path / "new"))
    run(session, "outputs", tmp_path, old)  # writes what is missing
    begin_move(str(tmp_path / "other"))
    assert main(["move", old, "--to", "spark", "--into", str(tmp_path / "other"), "--buckets", "2"]) == 0
    assert sorted(p.name for p in (tmp_path / "other" / STATE / "stages" / "1").iterdir()) == ["00000", "00001"]


def test_a_damaged_savepoint_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    write_bucket(str(tmp_path), 0, 0, BucketContent({}, {"a": pa.table({"x": [1]})}))
    for path in sorted((tmp_path / "stages" / "0" / "00000").iterdir()):
        whole = path.read_bytes()
        for moment in (0, 10, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:moment] + bytes([whole[moment] ^ 1]) + whole[moment + 1 :])
            with pytest.raises(CheckpointError, match=re.escape(path.name)):
                read_bucket(str(tmp_path), 0, 0)
        path.write_bytes(whole)
    held = read_bucket(str(tmp_path), 0, 0)
    assert held is not None and held.tables["a"].equals(pa.table({"x": [1]}))
    with pytest.raises(CheckpointError, match="no savepoint is here"):
        Savepoint.open(str(tmp_path))


def test_a_key_that_is_to_be_closed_is_closed_after_the_move(session: Session, tmp_path: Path) -> None:
    old = begun(session, tmp_path, "session")
    request(old, {0: pa.table({"k0": [7]})}, durable=False)
    new = session.move(old, "spark", buckets=2)
    assert Closings(new).begin(0)
    assert noted_keys(new, 0)[0].to_pydict() == {"k0": [7]}


def test_a_memory_stream_goes_on_after_what_was_read(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream("user string, at bigint, amount bigint", spool=str(tmp_path / "spool"))
    query = per_minute(stream).start(ParquetSink(f"{tmp_path}/out"), checkpoint=str(tmp_path / "a"))
    sender.send(sent(100))
    query.process_all_available()
    query.stop()
    through_a_savepoint(str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "saved"), 5)
    shutil.rmtree(tmp_path / "a")
    sender.send(sent(100, first=100))
    sender.close()
    query = per_minute(stream).start(ParquetSink(f"{tmp_path}/out"), checkpoint=str(tmp_path / "b"))
    query.process_all_available()
    assert query.progress.rows == 200
    query.stop()
    assert pc.sum(pq.read_table(tmp_path / "out")["count"]).as_py() == 200
