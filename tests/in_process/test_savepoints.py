"""Savepoints: state as values, which any engine begins from."""

from __future__ import annotations

import builtins
import errno
import json
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import CheckpointError, MemorySink, ParquetSink, PlanError, Session, count, sum
from krishiv_py.cli.main import main
from krishiv_py.in_process import savepoints as of_process
from krishiv_py.in_process.checkpoint import StateLog
from krishiv_py.runtime import savepoints
from krishiv_py.testing import Driver, stream_of

SCHEMA = "user string, at bigint, amount bigint"


def per_minute(stream: Any) -> Any:
    """Totals of users by minute."""
    return stream.watermark("at", 0).key_by("user").tumbling_window(60_000).agg(count(), sum("amount").alias("total"))


ROWS = [[{"user": f"u{i % 3}", "at": (n * 40 + i) * 1_000, "amount": i} for i in range(60)] for n in range(4)]


@pytest.fixture
def session() -> Iterator[Session]:
    """A session of its own."""
    with Session.in_process() as made:
        yield made


def whole() -> list[dict[str, Any]]:
    """The results of one run."""
    driver = Driver(per_minute(stream_of(SCHEMA)))
    return [row for rows in ROWS for row in driver.send(rows).results.to_pylist()]


def begun(session: Session, tmp_path: Path) -> tuple[str, Any, Any, list[dict[str, Any]]]:
    """A savepoint between two batches of a query that runs on, with its stream and sender, and what it had given."""
    stream, sender = session.memory_stream(SCHEMA)
    query = per_minute(stream).start(MemorySink(), checkpoint=str(tmp_path / "old"))
    for rows in ROWS[:2]:
        sender.send(rows)
        query.process_all_available()
    path, given = query.savepoint(str(tmp_path / "saved")), query.results().to_pylist()
    sender.send(ROWS[2])
    query.process_all_available()
    query.stop()
    sender.send(ROWS[3])
    return path, stream, sender, given


def test_a_query_goes_on_from_the_savepoint_of_a_running_one(session: Session, tmp_path: Path) -> None:
    path, stream, _, given = begun(session, tmp_path)
    new = {"checkpoint": str(tmp_path / "new"), "savepoint": path}
    query = per_minute(stream).start(MemorySink(), **new)
    query.process_all_available()
    assert given + query.results().to_pylist() == whole()
    assert query.progress.rows == 240
    query.stop()
    again = per_minute(stream).start(MemorySink(), **new)  # as after a crash: it goes on from its checkpoint
    again.process_all_available()
    assert (again.progress.rows, again.results().num_rows) == (240, 0)
    again.stop()


def test_a_driver_begins_from_a_savepoint_and_writes_one(session: Session, tmp_path: Path) -> None:
    path, stream, _, given = begun(session, tmp_path)
    driver = Driver(per_minute(stream_of(SCHEMA)), savepoint=path)
    results = given + driver.send(ROWS[2]).results.to_pylist()
    query = per_minute(stream).start(MemorySink(), savepoint=driver.savepoint(str(tmp_path / "driver")))
    query.process_all_available()  # it knows no sources: all is read, and what came before is late
    assert (query.progress.late["late"] > 0, results + query.results().to_pylist()[-3:]) == (True, whole())
    query.stop()


def test_pyarrow_reads_a_savepoint(session: Session, tmp_path: Path) -> None:
    path = Path(begun(session, tmp_path)[0])
    manifest = json.loads((path / "manifest.json").read_text())["note"]
    assert (manifest["version"], manifest["batches"]) == (2, 2)
    (stage,) = manifest["stages"]
    assert stage["columns"]["k0"] == "key user"
    assert "total" in stage["columns"]["p1_0"]
    bucket = json.loads((path / "stages/0/00000/bucket.json").read_text())["note"]
    (kept,) = bucket["tables"]
    table = pa.ipc.open_file(path / "stages/0/00000" / kept["file"]).read_all()
    assert table.num_rows == builtins.sum(rows for _, rows in kept["parts"])
    assert table.schema.field("k0").metadata == {b"krishiv": b"key user"}


def test_each_file_that_is_damaged_or_missing_is_named(session: Session, tmp_path: Path) -> None:
    path = Path(begun(session, tmp_path)[0])
    files = [file for file in path.rglob("*") if file.is_file()]
    assert len(files) == 3
    for file in files:
        data = file.read_bytes()
        damaged = [data[: len(data) // 2], b"", data + b"x", *(_flipped(data, i) for i in range(0, len(data), 37))]
        for broken in damaged:
            file.write_bytes(broken)
            with pytest.raises(CheckpointError, match=file.name.replace(".", r"\.")):
                Driver(per_minute(stream_of(SCHEMA)), savepoint=str(path))
        file.unlink()
        with pytest.raises(CheckpointError, match=r"no savepoint is here|is missing"):
            Driver(per_minute(stream_of(SCHEMA)), savepoint=str(path))
        file.write_bytes(data)
    Driver(per_minute(stream_of(SCHEMA)), savepoint=str(path))


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def test_outputs_go_on_in_their_folder_unless_the_first_query_went_on(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    out = ParquetSink(str(tmp_path / "out"))
    query = per_minute(stream).start(out, checkpoint=str(tmp_path / "old"))
    sender.send(ROWS[0]), sender.send(ROWS[1])
    query.process_all_available()
    path = query.savepoint(str(tmp_path / "saved"))
    query.stop()
    new = per_minute(stream).start(out, checkpoint=str(tmp_path / "new"), savepoint=path)
    sender.send(ROWS[2]), sender.send(ROWS[3])
    new.process_all_available()
    new.stop()
    actual = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted(map(str, actual)) == sorted(map(str, whole()))
    with pytest.raises(CheckpointError, match="copy of another one"):  # both would write batch 2
        per_minute(stream).start(out, checkpoint=str(tmp_path / "old"))
    with pytest.raises(CheckpointError, match="copy of another one"):
        per_minute(stream).start(out, checkpoint=str(tmp_path / "third"), savepoint=path)


def test_a_query_that_has_run_no_batch_has_no_state_to_save(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream("user string, at bigint")
    plan = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
    query = plan.start(MemorySink(), checkpoint=tmp_path / "c")
    query.process_all_available()
    with pytest.raises(CheckpointError, match=r"has run no batch yet(.|\n)*Hint: wait until"):
        query.savepoint(tmp_path / "s")
    sender.send([{"user": "a", "at": 1}])
    query.process_all_available()
    query.savepoint(tmp_path / "s")
    query.stop()


def test_a_checkpoint_that_has_only_begun_names_the_savepoint_it_began_from(session: Session, tmp_path: Path) -> None:
    """On Spark it has no state before its first batch: to begin without a savepoint would give all results again."""
    path, stream, _, _ = begun(session, tmp_path)
    query = per_minute(stream).start(MemorySink(), checkpoint=str(tmp_path / "next"), savepoint=path)
    query.stop()
    problem = str(savepoints.unfinished(str(tmp_path / "next"), None))
    assert "has run no batch since it began from a savepoint" in problem
    assert f"remove {tmp_path / 'next'}" in problem and f'savepoint="{path}"' in problem.replace("'", '"')
    assert "without a savepoint" not in problem


def test_wrong_calls_say_what_to_do(session: Session, tmp_path: Path) -> None:
    path, stream, _, _ = begun(session, tmp_path)
    old = str(tmp_path / "old")
    with pytest.raises(CheckpointError, match="is not empty"):
        session.savepoint(old, path)
    for inside in (old, f"{old}/savepoint", f"{old}/../old/savepoint"):
        with pytest.raises(CheckpointError, match=r"inside the checkpoint that it is of .*Hint: pass a folder outside"):
            session.savepoint(old, inside)
    with pytest.raises(CheckpointError, match="no query has kept its state here"):
        session.savepoint(str(tmp_path / "none"), str(tmp_path / "other"))
    with pytest.raises(CheckpointError, match="did not begin from this savepoint"):
        per_minute(stream).start(MemorySink(), checkpoint=old, savepoint=path)
    with pytest.raises(CheckpointError, match="no savepoint is here"):
        per_minute(stream).start(MemorySink(), savepoint=str(tmp_path / "none"))
    with pytest.raises(PlanError, match="on_change without savepoint"):
        per_minute(stream).start(MemorySink(), on_change={"a": "reset"})
    for wrong in (1, "", b"x"):
        with pytest.raises(PlanError):
            per_minute(stream).start(MemorySink(), savepoint=wrong)
    with pytest.raises(PlanError, match="on_change"):
        per_minute(stream).start(MemorySink(), savepoint=path, on_change={"a": "lose"})
    assert main(["savepoint", old, str(tmp_path / "by command")]) == 0
    assert main(["savepoint", old, str(tmp_path / "by command")]) == 1


def test_a_start_that_was_broken_off_is_made_again(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, stream, _, given = begun(session, tmp_path)
    new = {"checkpoint": str(tmp_path / "new"), "savepoint": path}

    def dies(*_: object, **__: object) -> None:
        raise MemoryError

    for name in ("write_sources", "BatchLog"):
        with monkeypatch.context() as patched:
            patched.setattr(of_process, name, dies)
            with pytest.raises(MemoryError):
                per_minute(stream).start(MemorySink(), **new)
        with pytest.raises(CheckpointError, match="broken off"):
            per_minute(stream).start(MemorySink(), checkpoint=new["checkpoint"])
    query = per_minute(stream).start(MemorySink(), **new)
    query.process_all_available()
    assert given + query.results().to_pylist() == whole()
    query.stop()


def test_a_savepoint_holds_one_table_after_the_other(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tables the state has, it is never all in memory."""
    stream, sender = session.memory_stream(SCHEMA)
    query = (
        stream.watermark("at", "1 day")
        .key_by("user")
        .tumbling_window("1 s")
        .agg(count())
        .start(MemorySink(), checkpoint=str(tmp_path / "old"))
    )
    sender.send(ROWS[0])
    query.process_all_available()
    query.stop()
    read, live, most, number = StateLog.table_of, set[int](), 0, 0

    def table_of(self: StateLog, value: bytes) -> pa.Table:
        nonlocal most, number
        table, number = read(self, value), number + 1
        live.add(number)
        weakref.finalize(table, live.discard, number)
        most = builtins.max(most, len(live))
        return table

    monkeypatch.setattr(StateLog, "table_of", table_of)
    session.savepoint(str(tmp_path / "old"), str(tmp_path / "saved"))
    assert number == 60
    assert most <= 2


def test_buckets_that_become_others_are_not_held_in_memory(tmp_path: Path) -> None:
    driver = Driver(stream_of("user bigint, at bigint").watermark("at", 0).key_by("user").tumbling_window(60_000).agg(count()))
    n = 300_000
    driver.send(pa.table({"user": np.arange(n), "at": np.full(n, 1_000)}))
    savepoint = savepoints.Savepoint.open(driver.savepoint(str(tmp_path / "one")))
    for bucket, held in enumerate(savepoints.spread_stage(savepoint, 0, 16)):
        savepoints.write_bucket(str(tmp_path / "many"), 0, bucket, held)
    savepoint.folder, savepoint.stages[0].buckets = str(tmp_path / "many"), list(range(16))
    size = builtins.sum(file.stat().st_size for file in tmp_path.glob("many/**/*.arrow"))
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    tracemalloc.start()
    try:
        for held in savepoints.spread_stage(savepoint, 0, 24):
            rows += builtins.sum(table.num_rows for table in held.tables.values())
            most = max(most, pa.total_allocated_bytes() - before + tracemalloc.get_traced_memory()[0])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows == n
    assert most < size / 2 and peak < size / 2, (size, most, peak)


@pytest.mark.parametrize("part", ["write_at", "rows"])
def test_a_savepoint_that_finds_no_room_is_an_error_of_ours_and_can_be_tried_again(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = str(tmp_path / "saved")
    with Session.in_process() as session:
        stream, sender = session.memory_stream("user string, at bigint")
        counts = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
        with counts.start(MemorySink(), checkpoint=str(tmp_path / "c")) as query:
            sender.send([{"user": "a", "at": 1}])
            query.process_all_available()
            with monkeypatch.context() as patched:
                if part == "rows":
                    patched.setattr(savepoints._TableFile, "write", full)
                else:
                    patched.setattr(savepoints, "write_at", full)
                with pytest.raises(CheckpointError, match=r"saved.* cannot be written .*No space left"):
                    query.savepoint(path)
            assert query.savepoint(path) == path
        (tmp_path / "file").write_text("no folder")
        for wrong in (str(tmp_path / "file"), str(tmp_path / "file/c")):
            with pytest.raises(CheckpointError, match="no query has kept its state here"):
                session.savepoint(wrong, str(tmp_path / "never"))
    assert not (tmp_path / "never").exists()
