"""Chunks of state in files: kept as long as Spark can go back to them, never left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py.errors import CheckpointError
from krishiv_py.kernels.state.store import stored
from krishiv_py.runtime import chunk_files as blobs
from krishiv_py.runtime.chunk_files import BucketChunks, ChunkFolder, chunk_of
from krishiv_py.storage.checksums import block_checksum


@pytest.fixture
def folder(tmp_path: Path) -> ChunkFolder:
    blobs._opened.clear()
    return ChunkFolder(str(tmp_path), batches=2, large_bytes=100)


def on_disk(folder: ChunkFolder) -> set[str]:
    """The files of bucket 0."""
    return {p.name for p in Path(folder.of_bucket(0)).iterdir()}


def name_of(meta: dict[str, Any], chunk: str) -> str:
    """The file of a chunk; what is noted goes on with its size and checksum."""
    return str(meta["files"][chunk]).partition(".")[0]


TABLE = pa.table({"n": list(range(100))})


def test_only_large_chunks_become_files(folder: ChunkFolder) -> None:
    meta: dict[str, Any] = {}
    opened = BucketChunks(folder, 0, 5, meta)
    assert opened.write("small", TABLE.slice(0, 3)) is None
    written = opened.write("large", TABLE)
    assert written is not None
    assert written[1] >= TABLE.nbytes
    assert opened.read("small") is None
    assert opened.read("large") == TABLE
    assert chunk_of(written[0], folder.of_bucket(0)) == TABLE
    assert on_disk(folder) == {name_of(meta, "large")}


def test_a_dropped_file_outlives_the_batches_spark_can_go_back_to(folder: ChunkFolder) -> None:
    meta: dict[str, Any] = {}
    BucketChunks(folder, 0, 5, meta).write("a", TABLE)
    first = name_of(meta, "a")
    BucketChunks(folder, 0, 6, meta).write("a", TABLE.slice(50))  # replaced: the first file is let go
    second = name_of(meta, "a")
    for batch in (7, 8):
        BucketChunks(folder, 0, batch, meta).tidy()
        assert on_disk(folder) == {first, second}
    BucketChunks(folder, 0, 9, meta).tidy()
    assert on_disk(folder) == {second}
    assert meta["dropped"] == []
    last = BucketChunks(folder, 0, 10, meta)
    assert last.write("a", TABLE.slice(0, 1)) is None  # now small: no file any more
    assert last.read("a") is None
    BucketChunks(folder, 0, 13, meta).tidy()
    assert on_disk(folder) == set()


def test_what_a_failed_attempt_wrote_is_removed_by_the_next_process(folder: ChunkFolder) -> None:
    meta: dict[str, Any] = {}
    BucketChunks(folder, 0, 5, meta).write("a", TABLE)
    failed: dict[str, Any] = {"files": stored(meta)["files"], "dropped": []}
    BucketChunks(folder, 0, 6, failed).write("b", TABLE)  # the attempt ends here: its meta is lost
    orphan = name_of(failed, "b")
    Path(folder.of_bucket(0), "notes.txt").touch()  # not ours
    blobs._opened.clear()
    BucketChunks(folder, 0, 6, meta)  # the same batch again, as a twin of it may still be running
    assert orphan in on_disk(folder)
    blobs._opened.clear()
    BucketChunks(folder, 0, 7, meta)
    assert on_disk(folder) == {name_of(meta, "a"), "notes.txt"}


def test_removing_twice_is_no_error(folder: ChunkFolder) -> None:
    meta: dict[str, Any] = {}
    opened = BucketChunks(folder, 0, 1, meta)
    opened.write("a", TABLE)
    opened.drop("a")
    before: dict[str, Any] = {"files": {}, "dropped": list(meta["dropped"])}
    BucketChunks(folder, 0, 9, meta).tidy()
    BucketChunks(folder, 0, 9, before).tidy()  # the batch is repeated from the state before
    assert on_disk(folder) == set()


@pytest.mark.parametrize("rows", [100, 600, 5_000])
def test_a_damaged_chunk_is_never_read(folder: ChunkFolder, rows: int) -> None:
    meta: dict[str, Any] = {}
    opened = BucketChunks(folder, 0, 5, meta)
    value, size = opened.write("a", pa.table({"n": list(range(rows))})) or (b"", 0)
    path = Path(folder.of_bucket(0), name_of(meta, "a"))
    whole = path.read_bytes()
    assert len(whole) == size
    flips = [whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :] for i in range(0, size, max(size // 97, 1))]
    cuts = [b"", whole[:-1], whole[:4096], whole[: size // 2]] if size > 4096 else [b"", whole[:-1], whole[: size // 2]]
    for changed in [*flips, *cuts, whole + b"\0", bytes(size)]:
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=f"{path.name} is damaged .*Hint: it is a piece of the query's state"):
            opened.read("a")
        with pytest.raises(CheckpointError, match="is damaged"):
            chunk_of(value, folder.of_bucket(0))
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{path.name} is missing"):
        opened.read("a")
    path.write_bytes(whole)
    actual = opened.read("a")
    assert actual is not None and actual["n"].to_pylist() == list(range(rows))


def test_blocks_that_change_places_are_noticed() -> None:
    one, other = bytes(range(256)) * 16, bytes(reversed(range(256))) * 16
    assert block_checksum(one + other) != block_checksum(other + one)


def test_folders_of_chunks_are_private(folder: ChunkFolder, tmp_path: Path) -> None:
    BucketChunks(folder, 0, 5, {})
    made = [tmp_path / "krishiv", tmp_path / "krishiv" / "chunks", Path(folder.of_bucket(0))]
    assert [p.stat().st_mode & 0o777 for p in made] == [0o700] * 3
