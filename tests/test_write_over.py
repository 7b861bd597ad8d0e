"""A file that is written in the place of another one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from krishiv_py import MemorySink, Session, count
from krishiv_py.storage.local import DISK
from krishiv_py.storage.store import Store

STORES: dict[str, Callable[[], Store]] = {"disk": lambda: DISK, "any": lambda: Store(pafs.LocalFileSystem(), "file:")}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    """Return a store."""
    return STORES[request.param]()


@pytest.mark.parametrize("length", [0, 5, 50])
@pytest.mark.parametrize("durable", [False, True])
def test_the_new_file_is_there_and_the_old_one_is_gone(store: Store, tmp_path: Path, length: int, durable: bool) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"o" * 20)
    store.write_over(str(old), str(new), b"n" * length, durable=durable)
    assert sorted(tmp_path.iterdir()) == [new]
    assert new.read_bytes() == b"n" * length


@pytest.mark.parametrize("old", [None, "missing"])
def test_without_an_old_file_one_is_made_with_its_folder(store: Store, tmp_path: Path, old: str | None) -> None:
    path = tmp_path / "folder" / "new"
    store.write_over(None if old is None else str(tmp_path / old), str(path), b"new")
    assert path.read_bytes() == b"new"


def test_a_file_that_is_there_is_replaced(store: Store, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"old")
    new.write_bytes(b"there already")
    store.write_over(str(old), str(new), b"new")
    assert sorted(tmp_path.iterdir()) == [new]
    assert new.read_bytes() == b"new"


def test_a_copy_by_hard_links_keeps_what_it_holds(store: Store, tmp_path: Path) -> None:
    old, copy, new = tmp_path / "old", tmp_path / "copy", tmp_path / "new"
    old.write_bytes(b"old")
    os.link(old, copy)
    store.write_over(str(old), str(new), b"new")
    assert copy.read_bytes() == b"old"
    assert new.read_bytes() == b"new"
    assert not old.exists()


def test_batches_make_no_files_when_there_are_old_ones_to_write_over(tmp_path: Path) -> None:
    """Making a file costs ext4 more the more were removed in the last minutes."""
    with Session.in_process() as session:
        stream, sender = session.memory_stream("user string, at bigint")
        query = stream.watermark("at", 0).key_by("user").tumbling_window(60_000).agg(count())
        running = query.start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
        folders = [tmp_path / "checkpoint" / "offsets", tmp_path / "checkpoint" / "krishiv" / "state"]

        def files() -> list[set[int]]:
            return [{path.stat().st_ino for path in folder.iterdir() if path.is_file()} for folder in folders]

        seen: list[set[int]] = []
        for number in range(60):
            sender.send([{"user": "a", "at": number * 1_000}])
            running.process_all_available()
            if number == 30:
                seen = files()
        assert files() == seen
        assert [len(inodes) for inodes in seen] == [21, 10]
        running.stop()
