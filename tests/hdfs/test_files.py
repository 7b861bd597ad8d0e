"""HDFS as a file system of Arrow's does what a folder of this machine does, with the same calls and the same errors."""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from krishiv_py.storage import hdfs as hdfs_client
from krishiv_py.storage import hdfs as hdfs_module
from krishiv_py.storage.checksums import sealed_parquet
from krishiv_py.storage.files import store_at
from krishiv_py.storage.hdfs import Hadoop, Hdfs
from krishiv_py.storage.local import DISK
from krishiv_py.storage.sends.segments import open_sent
from krishiv_py.storage.store import Store
from tests.hdfs.server import Server
from tests.store_rules import file_system

Place: TypeAlias = tuple[Store, str]
NAMES = (
    "a b",
    "a#b",
    "a?b",
    "%20",
    "a%2Fb",
    "[a]{b}*",
    "ünïcödé 日本 🌊",
    "a'b\"c",
    "a+b&c=d",
    "date=2024-01-01",
    ".hidden",
    "a\\b",
)


@pytest.fixture(params=["hdfs", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path, hdfs: Server) -> Place:
    """An empty folder; what the tests say of HDFS they say of a disk, too."""
    if request.param == "disk":
        return DISK, str(tmp_path)
    store, root = store_at(f"{hdfs.root}/files/{uuid.uuid4().hex}")
    assert isinstance(store, Hadoop)
    store.add_folder(root)
    return store, root


def names(place: Place, **selector: Any) -> list[str]:
    """What is in a folder, as paths below it."""
    store, root = place
    actual = store.arrow.get_file_info(pafs.FileSelector(root, **selector))
    return sorted(each.path.removeprefix(f"{root}/") for each in actual)


class TestAsOnDisk:
    @pytest.mark.one_in(2)
    def test_odd_names(self, place: Place) -> None:
        store, root = place
        system = store.arrow
        for name in NAMES:
            system.create_dir(f"{root}/{name}")
            store.write(f"{root}/{name}/{name}", name.encode())
        assert names(place) == sorted(NAMES)
        assert names(place, recursive=True) == sorted([*NAMES, *(f"{name}/{name}" for name in NAMES)])
        for name in NAMES:
            assert store.read(f"{root}/{name}/{name}") == name.encode()
            system.move(f"{root}/{name}/{name}", f"{root}/{name}/moved")
            system.delete_file(f"{root}/{name}/moved")
            system.delete_dir(f"{root}/{name}")
        assert names(place) == []

    def test_facts_of_files_and_folders(self, place: Place) -> None:
        store, root = place
        system = store.arrow
        before = time.time_ns()
        store.put(f"{root}/file", b"12345")
        file, folder, inside, missing = system.get_file_info([f"{root}/file", root, f"{root}/file/x", f"{root}/none"])
        assert (file.type, file.size, file.base_name, file.path) == (pafs.FileType.File, 5, "file", f"{root}/file")
        assert before - 1_000_000_000 <= file.mtime_ns <= time.time_ns() + 1_000_000_000
        assert folder.type == pafs.FileType.Directory and folder.size is None
        assert inside.type == missing.type == pafs.FileType.NotFound
        assert names((store, f"{root}/none"), allow_not_found=True) == []

    def test_a_move_replaces_its_target(self, place: Place) -> None:
        store, root = place
        system = store.arrow
        for text in (b"one", b"two"):
            store.put(f"{root}/new", text)
            system.move(f"{root}/new", f"{root}/file")
            assert (store.read(f"{root}/file"), names(place)) == (text, ["file"])
        system.move(f"{root}/file", f"{root}/file")
        assert store.read(f"{root}/file") == b"two"

    def test_writing_replaces_and_appending_does_not(self, place: Place) -> None:
        store, root = place
        system = store.arrow
        store.put(f"{root}/file", b"a longer one")
        store.put(f"{root}/file", b"one")
        with system.open_append_stream(f"{root}/file") as stream:
            stream.write(b" two")
        assert store.read(f"{root}/file") == b"one two"
        system.copy_file(f"{root}/file", f"{root}/copy")
        assert store.read(f"{root}/copy") == b"one two"
        store.put(f"{root}/empty", b"")
        assert store.read(f"{root}/empty") == b""

    def test_folders_are_made_and_removed(self, place: Place) -> None:
        store, root = place
        system = store.arrow
        system.create_dir(f"{root}/a/b")
        system.create_dir(f"{root}/a/b")
        store.put(f"{root}/a/b/file", b"1")
        system.delete_dir_contents(f"{root}/a")
        assert names(place) == ["a"]
        system.delete_dir_contents(f"{root}/none", missing_dir_ok=True)
        system.delete_dir(f"{root}/a")
        assert names(place) == []

    @pytest.mark.parametrize(
        ("call", "raised"),
        [
            (lambda s, r: s.open_input_stream(f"{r}/none"), FileNotFoundError),
            (lambda s, r: s.open_input_file(f"{r}/none"), FileNotFoundError),
            (lambda s, r: s.open_output_stream(f"{r}/none/file"), FileNotFoundError),
            (lambda s, r: s.delete_file(f"{r}/none"), FileNotFoundError),
            (lambda s, r: s.delete_dir(f"{r}/none"), FileNotFoundError),
            (lambda s, r: s.move(f"{r}/none", f"{r}/new"), FileNotFoundError),
            (lambda s, r: s.move(f"{r}/file", f"{r}/none/new"), FileNotFoundError),
            (lambda s, r: s.get_file_info(pafs.FileSelector(f"{r}/none")), FileNotFoundError),
            (lambda s, r: s.create_dir(f"{r}/none/new", recursive=False), FileNotFoundError),
            (lambda s, r: s.get_file_info(pafs.FileSelector(f"{r}/file")), NotADirectoryError),
            (lambda s, r: s.delete_dir(f"{r}/file"), OSError),
            (lambda s, r: s.delete_file(f"{r}/folder"), OSError),
            (lambda s, r: s.open_output_stream(f"{r}/folder"), OSError),
            (lambda s, r: s.create_dir(f"{r}/file"), OSError),
        ],
    )
    def test_what_fails_fails_alike(self, place: Place, call: Callable[[Any, str], object], raised: type[OSError]) -> None:
        store, root = place
        system = store.arrow
        store.put(f"{root}/file", b"1")
        system.create_dir(f"{root}/folder")
        with pytest.raises(raised) as problem:
            call(system, root)
        assert "\n" not in str(problem.value), "no stack of Java's"
        assert names(place) == ["file", "folder"]

    def test_parquet_is_read_from_any_place_in_a_file(self, place: Place) -> None:
        store, root = place
        system = store.arrow
        table = pa.table({"a": range(100_000), "b": [str(n) for n in range(100_000)]})
        with system.open_output_stream(f"{root}/t.parquet") as stream:
            pq.write_table(table, stream, row_group_size=10_000)
        assert pq.read_table(f"{root}/t.parquet", filesystem=system).equals(table)
        with system.open_input_file(f"{root}/t.parquet") as file:
            assert pq.ParquetFile(file).read_row_group(7, ["a"])["a"][0].as_py() == 70_000
            assert file.size() == system.get_file_info(f"{root}/t.parquet").size
        store.put(f"{root}/sealed", b"".join(sealed_parquet(_parquet(table))))
        assert open_sent(store, f"{root}/sealed").read().equals(table)


def _parquet(table: pa.Table) -> pa.Buffer:
    held = pa.BufferOutputStream()
    pq.write_table(table, held)
    return held.getvalue()


class TestHdfs:
    @pytest.fixture
    def place(self, hdfs: Server) -> Place:
        """An empty folder in HDFS."""
        store, root = store_at(f"{hdfs.root}/own/{uuid.uuid4().hex}")
        store.add_folder(root)
        return store, root

    def test_paths_as_spark_reads_them(self, hdfs: Server) -> None:
        assert file_system(hdfs.root)[1] == "/"
        assert file_system(f"{hdfs.root}/a//b/./c/../d e#%20?/")[1] == "/a/b/d e#%20?"
        assert file_system(f"{hdfs.root}/../x")[1] == "/x"

    def test_it_goes_to_other_processes(self, place: Place) -> None:
        store, root = place
        system = store.arrow
        store.put(f"{root}/file", b"1")
        other = pickle.loads(pickle.dumps(system))
        assert other == system and Store(other, "").read(f"{root}/file") == b"1"

    def test_a_file_is_read_to_its_end_though_its_last_block_is_reported_later(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """So it is behind a namenode that lets files be closed before the datanodes have reported all blocks."""

        class Opened(io.BytesIO):
            """What hdfs-native gives for a file of which the namenode tells some bytes."""

            def __len__(self) -> int:
                return len(self.getvalue())

            def seek(self, offset: int, whence: int = 0) -> int:
                """It cannot go beyond what is announced."""
                assert whence == io.SEEK_SET and offset <= len(self)
                return super().seek(offset)

        def client(*given: bytes) -> Callable[[str], Any]:
            files = iter([Opened(each) for each in given])
            return lambda host: SimpleNamespace(
                read=lambda path: next(files), get_file_info=lambda path: SimpleNamespace(length=7)
            )

        system = pafs.PyFileSystem(Hdfs("h:1"))
        store = Store(system, "hdfs://h:1")
        monkeypatch.setattr(hdfs_module, "hdfs_client", client(b"", b"ab", b"ab", b"abcdefg"))
        assert store.read("/file") == b"abcdefg"
        monkeypatch.setattr(hdfs_module, "hdfs_client", client(b"ab", b"", b"abcdefg"))
        with system.open_input_file("/file") as file:
            assert [file.read(2), file.size(), file.read_at(3, 4), file.read_at(3, 9)] == [b"ab", 7, b"efg", b""]
        monkeypatch.setattr(hdfs_module, "_REPORTED_S", 0.0)
        monkeypatch.setattr(hdfs_module, "hdfs_client", client(b"ab", b"ab"))
        with pytest.raises(OSError, match=r"/file ends after 2 of 7 bytes: no datanode has reported its last block"):
            store.read("/file")

    def test_a_forked_child_has_clients_of_its_own(self, place: Place) -> None:
        """The parent's would wait for ever for threads that the child does not have."""
        store, root = place
        store.put(f"{root}/file", b"1")
        assert store.read(f"{root}/file") == b"1"  # leaves a connection to the datanode, too
        child = os.fork()
        if not child:
            code = 1
            try:
                store.put(f"{root}/of-child", b"2")
                code = 0 if store.read(f"{root}/file") == b"1" else 2
            finally:
                os._exit(code)
        until = time.monotonic() + 30
        ended = 0
        while not ended and time.monotonic() < until:
            ended, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0.02)
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        assert ended and os.waitstatus_to_exitcode(status) == 0
        assert store.read(f"{root}/of-child") == b"2"

    def test_a_forked_child_ends_by_itself(self, hdfs: Server) -> None:
        """Also when Python takes it down piece by piece, as it does not in the tasks of Spark."""
        program = f"""
            import os, sys
            from krishiv_py.storage.files import store_at
            store, root = store_at({hdfs.root!r})
            system = store.arrow
            system.get_file_info(root)
            child = os.fork()
            if child:
                sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)

    def test_a_file_nobody_closed_is_written_again(self, hdfs: Server, place: Place) -> None:
        """A writer that died has it open; HDFS lets another one write it in its stead."""
        store, root = place
        program = f"""
            import os
            from krishiv_py.storage.files import store_at
            store, path = store_at({f"{hdfs.root}{root}/file"!r})
            system = store.arrow
            stream = system.open_output_stream(path)
            stream.write(b"x" * 3_000_000)
            stream.flush()
            os._exit(0)
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=60)
        store.write(f"{root}/file", b"whole")
        assert store.read(f"{root}/file") == b"whole"

    def test_a_file_is_whole_when_it_is_closed(self, place: Place) -> None:
        store, root = place
        system = store.arrow
        stream = system.open_output_stream(f"{root}/file")
        stream.write(b"1" * 10)
        assert system.get_file_info(f"{root}/file").size == 0
        stream.close()
        assert system.get_file_info(f"{root}/file").size == 10

    def test_replication_and_blocks_as_they_were_set(self, hdfs: Server, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        store, root = place
        given = {"dfs.replication": "1", "dfs.blocksize": "8k"}
        monkeypatch.setattr(hdfs_client, "hdfs_settings", lambda: given)
        store.put(f"{root}/file", b"1" * 20_000)
        status = hdfs_client.hdfs_client(hdfs.root.removeprefix("hdfs://")).get_file_info(f"{root}/file")
        assert (status.replication, status.blocksize, status.length) == (1, 8_192, 20_000)
        assert store.read(f"{root}/file") == b"1" * 20_000

    @pytest.mark.slow
    def test_a_file_of_several_blocks(self, place: Place) -> None:
        store, root = place
        system = store.arrow
        part = os.urandom(1 << 20)
        with system.open_output_stream(f"{root}/large") as stream:
            for _ in range(300):
                stream.write(part)
        assert system.get_file_info(f"{root}/large").size == 300 << 20
        with system.open_input_file(f"{root}/large") as file:
            for moment in (0, 127, 128, 200, 299):
                file.seek(moment << 20)
                assert file.read(1 << 20) == part
            file.seek((128 << 20) - 10)
            assert file.read(20) == part[-10:] + part[:10]
