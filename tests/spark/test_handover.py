"""Chunks between tasks: large ones as files where all tasks run on one machine, and none of them left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from krishiv_py import MemorySink, Sender, Session, Stream
from krishiv_py.spark.setup.config import CHUNK_FILE_BYTES
from krishiv_py.spark.storage import ShuffleFiles
from tests.spark.conftest import per_second, row, sorted_rows

Memory = Callable[[], tuple[Stream, Sender]]
TABLE = pa.table({"n": list(range(100))}).replace_schema_metadata({"who": "me"})


def files(folder: Path) -> list[Path]:
    """Every file below a folder."""
    return [p for p in folder.rglob("*") if p.is_file()]


def test_a_large_chunk_is_a_file_and_a_small_one_is_not(tmp_path: Path) -> None:
    shuffle_files = ShuffleFiles(str(tmp_path / "chunks"), large_bytes=100).of_batch(3)
    small, large = shuffle_files.give(TABLE.slice(0, 3)), shuffle_files.give(TABLE)
    assert len(large) < 100 < len(small)
    assert [p.parent.name for p in files(tmp_path)] == ["3"]
    for chunk, value in ((TABLE.slice(0, 3), small), (TABLE, large)):
        assert shuffle_files.take(value).equals(chunk, check_metadata=True)
    held = shuffle_files.take(large)
    shuffle_files.clear()
    assert files(tmp_path) == []
    assert held == TABLE


def test_without_a_common_folder_the_bytes_travel(tmp_path: Path) -> None:
    shuffle_files = ShuffleFiles(None, large_bytes=100).of_batch(3)
    assert shuffle_files.take(shuffle_files.give(TABLE)) == TABLE
    shuffle_files.clear()
    assert files(tmp_path) == []


@pytest.fixture
def every_chunk_a_file(session: Session) -> Iterator[None]:
    """No chunk is small."""
    before = session.spark.conf.get(CHUNK_FILE_BYTES)
    session.spark.conf.set(CHUNK_FILE_BYTES, "0")
    yield
    session.spark.conf.set(CHUNK_FILE_BYTES, before)


@pytest.mark.usefixtures("every_chunk_a_file")
def test_files_go_with_the_run_and_with_the_batch(memory: Memory, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bytes] = []
    take = ShuffleFiles.take

    def seen(self: ShuffleFiles, value: bytes) -> pa.Table:
        given.append(value)
        return take(self, value)

    monkeypatch.setattr(ShuffleFiles, "take", seen)
    stream, sender = memory()
    sender.send([row("a", 100), row("b", 200), row("a", None), row("a", 1_500)])
    sender.send([row("a", 2_500), row("a", 300)])
    want = [("a", 0, 1_000, 1, 1), ("a", 1_000, 2_000, 1, 1), ("b", 0, 1_000, 1, 1)]
    assert sorted_rows(per_second(stream).collect()) == sorted([*want, ("a", 2_000, 3_000, 1, 1)])
    assert given and all(value.startswith(b"file:") for value in given)
    query = per_second(stream).start(MemorySink())
    query.process_all_available()
    assert sorted_rows(query.results()) == want
    folders = Path(session.temporary_folder()).parent
    assert [p for folder in folders.glob("chunks-*") for p in files(folder)] == []
    query.stop()
    assert list(folders.glob("chunks-*")) == []
