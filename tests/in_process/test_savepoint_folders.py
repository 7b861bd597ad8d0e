"""Where savepoints may be, and what becomes of those that are not what was written: always an error of the library."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pytest

from krishiv_py import DeltaSink, MemorySink, ParquetSink, Session, count
from krishiv_py.errors import CheckpointError, KrishivError
from krishiv_py.failures.redaction import redacted
from krishiv_py.runtime.savepoints import MANIFEST, Savepoint, begin_folder
from krishiv_py.storage.checksums import checksum


def counted(session: Session, folder: Path | str | None = None) -> tuple[Any, Any]:
    """A stream of a session, and how many rows each user has."""
    stream, sender = session.memory_stream("user string, at bigint", spool=folder)
    plan = stream.watermark("at", "1 s").key_by("user").tumbling_window("10 s").agg(count())
    return plan, sender


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A savepoint, and a capture of the batch after it."""
    root = tmp_path_factory.mktemp("whole")
    with Session.in_process() as session:
        plan, sender = counted(session, root / "spool")
        query = plan.start(ParquetSink(root / "out"), checkpoint=root / "checkpoint", keep_batches=10)
        for at in (1_000, 2_000, 40_000):
            sender.send([{"user": "ann", "at": at}])
            query.process_all_available()
        query.savepoint(root / "savepoint")
        query.stop()
        session.capture(root / "checkpoint", plan, root / "capture")
    return root


@pytest.mark.parametrize("place", ["out", "spool", "savepoint", "checkpoint", "capture"])
@pytest.mark.parametrize("below", ["", "mine", "a/b"])
def test_a_savepoint_is_in_no_folder_that_is_something_else(whole: Path, tmp_path: Path, place: str, below: str) -> None:
    before = sorted(whole.rglob("*"))
    with Session.in_process() as session:
        plan, sender = counted(session)
        query = plan.start(MemorySink(), checkpoint=tmp_path / "c")
        sender.send([{"user": "ann", "at": 1_000}])
        query.process_all_available()
        with pytest.raises(CheckpointError, match=r"is inside (of|the)|is not empty"):
            query.savepoint(whole / place / below)
        query.savepoint(tmp_path / "manifest.json" / "mine")  # a folder of another program
        query.stop()
    assert sorted(whole.rglob("*")) == before


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("_delta_log/00000000000000000000.json", "a Delta table"),
        ("metadata/00000-0b2c.metadata.json", "an Iceberg table"),
        ("_krishiv_outputs/7.json", "an output folder"),
    ],
)
def test_a_savepoint_is_in_no_table(tmp_path: Path, file: str, what: str) -> None:
    (tmp_path / "table" / file).parent.mkdir(parents=True)
    for below in ("table", "table/data"):
        begin_folder(str(tmp_path / below / "mine"), "savepoint", MANIFEST)  # folders of these names may be anybody's
        shutil.rmtree(tmp_path / below / "mine")
    (tmp_path / "table" / file).write_bytes(b"{}")
    for below in ("table/mine", "table/data/mine"):
        with pytest.raises(CheckpointError, match=rf"a savepoint is inside of {what}.*Hint: pass a folder outside"):
            begin_folder(str(tmp_path / below), "savepoint", MANIFEST)


@pytest.mark.parametrize("place", ["out", "spool", "savepoint", "checkpoint", "capture"])
def test_a_new_spool_is_in_no_folder_that_is_something_else(whole: Path, place: str) -> None:
    before = sorted(whole.rglob("*"))
    with (
        Session.in_process() as session,
        pytest.raises(CheckpointError, match=r"a spool is inside of .*Hint: pass a folder outside"),
    ):
        counted(session, whole / place / "mine")
    assert sorted(whole.rglob("*")) == before


def test_a_spool_that_is_in_another_folder_already_is_continued(whole: Path, tmp_path: Path) -> None:
    with Session.in_process() as session:
        _, sender = counted(session, tmp_path / "out" / "spool")
        sender.send([{"user": "ann", "at": 1_000}])
    shutil.copytree(whole / "out", tmp_path / "out", dirs_exist_ok=True)
    with Session.in_process() as session:
        counted(session, tmp_path / "out" / "spool")


def test_the_folder_of_a_table_is_taken_before_its_first_commit(tmp_path: Path) -> None:
    with Session.in_process() as session:
        plan, sender = counted(session)
        query = plan.start(DeltaSink(tmp_path / "table"), checkpoint=tmp_path / "c")
        sender.send([{"user": "ann", "at": 1_000}])
        query.process_all_available()
        assert not (tmp_path / "table" / "_delta_log").exists(), "no window has ended"
        with pytest.raises(CheckpointError, match="a savepoint is inside of an output folder"):
            query.savepoint(tmp_path / "table" / "mine")
        with pytest.raises(CheckpointError, match="a spool is inside of an output folder"):
            counted(session, tmp_path / "table" / "data" / "mine")
        sender.send([{"user": "ann", "at": 40_000}])
        query.process_all_available()
        assert deltalake.DeltaTable(tmp_path / "table").to_pyarrow_table().column("count").to_pylist() == [1]
        assert not (tmp_path / "table" / "mine").exists()
        query.stop()


def test_a_start_from_a_savepoint_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    with Session.in_process() as session:
        plan, _ = counted(session)
        with pytest.raises(CheckpointError, match="no savepoint is here"):
            plan.start(MemorySink(), checkpoint=tmp_path / "c", savepoint=tmp_path / "no")
    assert list(tmp_path.iterdir()) == []


def variants(note: Any) -> Iterator[tuple[str, Any]]:
    """A note without each of its fields, and with other types in them."""
    if isinstance(note, dict):
        for name, value in note.items():
            yield f"without {name}", {n: v for n, v in note.items() if n != name}
            others: list[Any] = [None, 7, "text", [], {}, [3], True]
            for other in others:
                if type(other) is not type(value):
                    yield f"{name} is {other!r}", {**note, name: other}
            for what, changed in variants(value):
                yield f"{name}: {what}", {**note, name: changed}
    elif isinstance(note, list) and note:
        for what, changed in variants(note[0]):
            yield f"0: {what}", [changed, *note[1:]]
    yield "null", None


def resealed(note: Any) -> bytes:
    """A note in the form of its file, with a right checksum."""
    body = json.dumps(note).encode()
    return b'{"crc32": "%08x", "note":\n%s\n}\n' % (checksum(body), body)


@pytest.mark.parametrize("name", ["savepoint/manifest.json", "savepoint/stages/0/00000/bucket.json"])
def test_a_note_that_is_not_what_was_written_is_an_error_of_ours(whole: Path, tmp_path: Path, name: str) -> None:
    """Each field missing or of another type under a right checksum, a cut, other bytes, and a folder in place of the file."""
    data = (whole / name).read_bytes()
    note = json.loads(data)["note"]
    damages: list[tuple[str, bytes | None]] = [(what, resealed(changed)) for what, changed in variants(note)]
    damages += [("cut", data[: len(data) // 2]), ("empty", b""), ("binary", bytes(range(256))), ("a folder", None)]
    wrong = []
    shutil.copytree(whole / "savepoint", tmp_path / "savepoint")
    for what, changed in damages:
        (tmp_path / name).unlink()
        if changed is None:
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_bytes(changed)
        try:
            Savepoint.open(str(tmp_path / "savepoint")).bucket(0, 0)
        except KrishivError:
            pass
        except Exception as problem:
            wrong.append(f"{what}: {type(problem).__name__}: {problem}")
    assert len(damages) > 20 and wrong == []


@pytest.mark.parametrize("text", ["{}", "{!r}", "cannot read {}: no start line"])
@pytest.mark.parametrize("kind", ["", "RSA ", "ENCRYPTED "])
def test_a_key_in_pem_is_not_shown(text: str, kind: str) -> None:
    lines = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
    key = f"-----BEGIN {kind}PRIVATE KEY-----\n{lines}\n-----END {kind}PRIVATE KEY-----"
    for shown in (redacted(text.format(key)), redacted(text.format(key[:80]))):
        assert "MIIEvQ" not in shown and "BKcwg" not in shown
