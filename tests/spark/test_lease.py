"""One query at a time on a checkpoint, across threads, processes and spellings; what a dead owner leaves is told apart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from krishiv_py import MemorySink, QueryTrigger, Sender, Session, Stream
from krishiv_py.errors import CheckpointError
from krishiv_py.spark import lease
from krishiv_py.spark.lease import take
from tests.spark.conftest import DDL, found, per_second, row

HOLDING = """
import sys, time
from krishiv_py.spark.lease import take
held = take(sys.argv[1], "the other")
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Any:
    """Another process that has the checkpoint."""
    process = subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path / "cp")], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_another_process_is_named_and_frees_the_checkpoint_by_dying(tmp_path: Path, holder: Any) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "cp")
    for spelling in (tmp_path / "cp", f"{tmp_path}/cp/", f"file:{tmp_path}/cp", tmp_path / "link", f"{tmp_path}/x/../cp"):
        (tmp_path / "x").mkdir(exist_ok=True)
        with pytest.raises(CheckpointError, match=f"in use .*query 'the other' of process {holder.pid} on .*, since 20"):
            take(str(spelling), "mine")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    held = take(str(tmp_path / "cp"), "mine")
    assert json.loads((tmp_path / "cp" / "krishiv" / "lock").read_text())["pid"] == os.getpid()
    held.release()


def test_one_process_holds_it_once(tmp_path: Path) -> None:
    held = take(str(tmp_path), "one")
    with pytest.raises(CheckpointError, match="query 'one'"):
        take(str(tmp_path), "two")
    held.release()
    held.release()
    again = take(str(tmp_path), "two")
    held.release()  # of an earlier query: the later one keeps what it has
    with pytest.raises(CheckpointError, match="query 'two'"):
        take(str(tmp_path), "three")
    again.running = lambda: False  # it has ended, and nobody has released it yet
    take(str(tmp_path), "three").release()


def test_a_forked_child_does_not_keep_it(tmp_path: Path) -> None:
    held = take(str(tmp_path), "one")
    child = os.fork()
    if not child:
        time.sleep(30)
        os._exit(0)
    try:
        held.release()
        take(str(tmp_path), "two").release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class TestWhereThereAreNoLocks:
    """Object stores: a note that its owner renews."""

    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pafs.FileSystem:
        """A file system that is not this machine's."""
        system = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
        monkeypatch.setattr(lease, "file_system", lambda uri: (system, "cp"))
        self.note = tmp_path / "cp" / "krishiv" / "lease.json"
        return system

    def change(self, **values: Any) -> None:
        """Rewrite the note."""
        self.note.write_text(json.dumps({**json.loads(self.note.read_text()), **values}))

    def test_the_owner_is_named(self) -> None:
        held = take("s3://b/cp", "one")
        with pytest.raises(CheckpointError, match=f"query 'one' of process {os.getpid()}"):
            take("s3://b/cp", "two")
        held.release()
        assert not self.note.exists()
        take("s3://b/cp", "two").release()

    @pytest.mark.parametrize("gone", [{"pid": 2**22 + 1}, {"begun": "1"}], ids=["no such process", "number given to another"])
    def test_a_dead_process_of_this_host_is_told_apart(self, gone: dict[str, Any]) -> None:
        take("s3://b/cp", "one")
        self.change(**gone)
        take("s3://b/cp", "two").release()

    def test_another_host_is_believed_while_it_renews(self) -> None:
        take("s3://b/cp", "one")
        self.change(host="elsewhere", renewed=time.time() - 60)
        with pytest.raises(CheckpointError, match="on elsewhere"):
            take("s3://b/cp", "two")
        self.change(renewed=time.time() - 300)
        take("s3://b/cp", "two").release()

    def test_a_note_cut_by_a_crash_is_no_owner(self) -> None:
        take("s3://b/cp", "one")
        self.note.write_text('{"query": "on')
        take("s3://b/cp", "two").release()

    def test_who_lost_it_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lease, "_RENEWED_S", 0.01)
        told: list[int] = []
        held = take("s3://b/cp", "one", lambda: told.append(1))
        self.change(token="another")
        end = time.monotonic() + 10
        while not told and time.monotonic() < end:
            time.sleep(0.01)
        assert told == [1]
        held.release()
        assert self.note.exists(), "the note is the other's"


def test_a_second_query_is_refused_and_the_first_goes_on(
    session: Session, memory: Callable[[], tuple[Stream, Sender]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, sender = memory()
    checkpoint = str(tmp_path / "cp")
    sender.send([row("a", 10), row("a", 5_000)])
    query = per_second(stream).start(MemorySink(), checkpoint=checkpoint, name="first")
    monkeypatch.chdir(tmp_path)
    for spelling in (checkpoint, f"{checkpoint}/", "cp", f"file:{checkpoint}"):
        with pytest.raises(CheckpointError, match=f"in use .*query 'first' of process {os.getpid()} "):
            per_second(stream).start(MemorySink(), checkpoint=spelling)
    query.process_all_available()
    assert found(query.results()) == [("a", 0, 1_000, 1, 1)]
    query.stop()
    assert (tmp_path / "cp").stat().st_mode & 0o777 == 0o700
    for _ in range(2):  # one that ends by itself frees it too, stopped or not
        ended = per_second(stream).start(MemorySink(), checkpoint=checkpoint, trigger=QueryTrigger.available_now())
        ended.await_termination()
    other = subprocess.Popen([sys.executable, "-c", HOLDING, checkpoint], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n", "this process still holds what it is done with"
    finally:
        other.kill()
        other.wait()
    session.memory_stream(DDL)
