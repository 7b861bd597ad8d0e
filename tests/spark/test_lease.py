"""One query at a time on a checkpoint, across threads, processes and spellings; what a dead owner leaves is distinguished."""

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

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from krishiv_py import Batches, MemorySink, Sender, Session, Stream
from krishiv_py.errors import CheckpointError
from krishiv_py.runtime.checkpoint import lease
from krishiv_py.runtime.checkpoint.lease import take
from krishiv_py.spark.query import StreamQuery
from krishiv_py.storage.checksums import sealed, unsealed
from krishiv_py.storage.store import Store
from tests.spark.conftest import DDL, per_second, row, sorted_rows

HOLDING = """
import sys, time
from krishiv_py.runtime.checkpoint.lease import take
from krishiv_py.spark.query import StreamQuery
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
        monkeypatch.setattr(lease, "store_at", lambda uri: (Store(system, "s3://b/"), "cp"))
        self.note = tmp_path / "cp" / "krishiv" / "lease.json"
        return system

    def change(self, **values: Any) -> None:
        """Rewrite the note."""
        actual = json.loads(unsealed(self.note.read_bytes(), "note", ""))
        self.note.write_bytes(sealed(json.dumps({**actual, **values}).encode()))

    def test_the_owner_is_named(self) -> None:
        held = take("s3://b/cp", "one")
        with pytest.raises(CheckpointError, match=f"query 'one' of process {os.getpid()}"):
            take("s3://b/cp", "two")
        held.release()
        assert not self.note.exists()
        take("s3://b/cp", "two").release()

    @pytest.mark.parametrize("gone", [{"pid": 2**22 + 1}, {"begun": "1"}], ids=["no such process", "number given to another"])
    def test_a_dead_process_of_this_host_is_distinguished(self, gone: dict[str, Any]) -> None:
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

    def test_a_note_cut_by_a_crash_or_damaged_is_no_owner(self) -> None:
        held = take("s3://b/cp", "one")
        held.release()
        for damage in (lambda b: b[:30], lambda b: b"", lambda b: b.replace(b'"renewed": 1', b'"renewed": 9')):
            held = take("s3://b/cp", "one")
            self.note.write_bytes(damage(self.note.read_bytes()))
            take("s3://b/cp", "two").release()
            held.release()

    def test_who_lost_it_between_batches_is_reported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lease, "_RENEWED_S", 0.01)
        given: list[CheckpointError] = []
        held = take("s3://b/cp", "one")
        held.on_lost = given.append
        self.change(token="another", query="two", host="elsewhere")
        end = time.monotonic() + 10
        while not given and time.monotonic() < end:
            time.sleep(0.01)
        assert [str(t).count("it is of query 'two' of process") for t in given] == [1]
        held.release()
        assert self.note.exists(), "the note is the other's"

    @pytest.mark.parametrize("kind", [OSError, pa.ArrowException])
    def test_a_store_that_does_not_answer_is_tried_again(self, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]) -> None:
        monkeypatch.setattr(lease, "_RENEWED_S", 0.01)
        held = take("s3://b/cp", "one")
        real, requested = lease.Note.renew, []

        def renew(note: lease.Note) -> None:
            requested.append(note)
            if len(requested) < 3:
                raise kind("timeout")
            real(note)

        monkeypatch.setattr(lease.Note, "renew", renew)
        end = time.monotonic() + 10
        while len(requested) < 4 and time.monotonic() < end:
            time.sleep(0.01)
        held.release()
        assert len(requested) >= 4

    @pytest.mark.parametrize("change", ["replaced", "removed", "damaged"])
    def test_who_lost_it_hears_of_it_at_the_next_batch(self, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
        monkeypatch.setattr(lease, "_AGAIN_S", 0.01)
        held = take("s3://b/cp", "one")
        held.check()
        if change == "replaced":
            self.change(token="another")
        elif change == "removed":
            self.note.unlink()
        else:
            self.note.write_bytes(self.note.read_bytes()[:-1])
        held.check()  # a look is good for a while
        monkeypatch.setattr(lease, "_LOOK_S", 0.0)
        with pytest.raises(CheckpointError, match=r"the right to the checkpoint was lost: .*start this one again"):
            held.check()
        held.release()
        held.check()  # it is over: nothing runs that could do harm

    def test_a_note_that_is_being_replaced_is_not_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Some stores remove the old one first."""
        monkeypatch.setattr(lease, "_LOOK_S", 0.0)
        held = take("s3://b/cp", "one")
        whole = self.note.read_bytes()
        self.note.unlink()
        monkeypatch.setattr(time, "sleep", lambda s: self.note.write_bytes(whole))
        held.check()
        held.release()

    @pytest.mark.parametrize("kind", [OSError, pa.ArrowException])
    def test_a_store_that_does_not_answer_is_waited_for_until_the_note_is_over(
        self, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
    ) -> None:
        monkeypatch.setattr(lease, "_LOOK_S", 0.0)
        held = take("s3://b/cp", "one")

        def silent(store: Store, path: str) -> bytes:
            raise kind("timeout")

        with monkeypatch.context() as patched:
            patched.setattr(Store, "read", silent)
            held.check()
            patched.setattr(lease, "_OVER_S", 0.0)
            with pytest.raises(CheckpointError, match="could not be read for 0 s: timeout"):
                held.check()
        held.check()
        held.release()


@pytest.mark.parametrize("change", ["removed", "replaced", "of another"])
def test_a_lock_file_that_is_not_the_same_any_more_is_noticed(tmp_path: Path, change: str) -> None:
    held = take(str(tmp_path), "one")
    lock = tmp_path / "krishiv" / "lock"
    whole = lock.read_bytes()
    lock.rename(tmp_path / "away")
    if change == "removed":
        match = "its lock file was removed"
    elif change == "replaced":
        lock.write_bytes(whole + b" ")
        match = "or replaced"
    else:
        other = take(str(tmp_path), "two")
        match = "or replaced"
    with pytest.raises(CheckpointError, match=match):
        held.check()
    if change == "of another":
        other.check()
        other.release()
    held.release()


def test_a_file_system_that_numbers_its_files_again_loses_nothing(tmp_path: Path) -> None:
    held = take(str(tmp_path), "one")
    lock = tmp_path / "krishiv" / "lock"
    whole = lock.read_bytes()
    lock.rename(tmp_path / "away")
    lock.write_bytes(whole)
    held.check()
    held.release()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("between", [False, True], ids=["in a batch", "between batches"])
def test_a_query_that_lost_its_checkpoint_ends(
    session: Session, memory: Callable[[], tuple[Stream, Sender]], tmp_path: Path, between: bool
) -> None:
    stream, sender = memory()
    sender.send([row("a", 10), row("a", 5_000)])
    query = per_second(stream).start(MemorySink(), checkpoint=str(tmp_path / "cp"), name="first")
    query.process_all_available()
    (tmp_path / "cp" / "krishiv" / "lock").unlink()
    if between:
        assert isinstance(query, StreamQuery)
        query._fail(CheckpointError("the note says so"))
    else:
        sender.send([row("a", 20_000)])
    with pytest.raises(CheckpointError, match="the note says so" if between else "the right to the checkpoint was lost"):
        query.process_all_available()
    assert query.status == "failed"
    assert sorted_rows(query.results()) == [("a", 0, 1_000, 1, 1)], "nothing is published any more"
    query.stop()
    assert query.status == "failed"
    again = per_second(stream).start(MemorySink(), checkpoint=str(tmp_path / "cp"))
    again.process_all_available()
    assert sorted_rows(again.results()) == ([] if between else [("a", 5_000, 6_000, 1, 1)])
    again.stop()


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
    assert sorted_rows(query.results()) == [("a", 0, 1_000, 1, 1)]
    query.stop()
    assert (tmp_path / "cp").stat().st_mode & 0o777 == 0o700
    for _ in range(2):  # one that ends by itself frees it too, stopped or not
        ended = per_second(stream).start(MemorySink(), checkpoint=checkpoint, batches=Batches.available_now())
        ended.await_termination()
    other = subprocess.Popen([sys.executable, "-c", HOLDING, checkpoint], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n", "this process still holds what it is done with"
    finally:
        other.kill()
        other.wait()
    session.memory_stream(DDL)
