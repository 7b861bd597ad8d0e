"""The right to a checkpoint in HDFS: of many that ask at once one gets it, and who lost it is reported."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import uuid
from typing import Any

import pyarrow.fs as pafs
import pytest

from krishiv_py.errors import CheckpointError
from krishiv_py.runtime.checkpoint.lease import Lease, take
from krishiv_py.storage.checksums import sealed, unsealed
from krishiv_py.storage.files import read_at, store_at, write_at
from tests.hdfs.server import Server
from tests.spark.test_lease import HOLDING
from tests.store_rules import file_system


@pytest.fixture
def checkpoint(hdfs: Server) -> str:
    """A path in HDFS that is not there."""
    return f"{hdfs.root}/lease/{uuid.uuid4().hex}"


def note_of(checkpoint: str) -> dict[str, Any]:
    """What the note says; nothing without one."""
    data = read_at(f"{checkpoint}/krishiv/lease.json")
    actual: dict[str, Any] = {} if data is None else json.loads(unsealed(data, "note", ""))
    return actual


def change(checkpoint: str, **values: Any) -> None:
    """Write the note as another owner would."""
    write_at(f"{checkpoint}/krishiv/lease.json", sealed(json.dumps({**note_of(checkpoint), **values}).encode()))


def in_folder(checkpoint: str) -> list[str]:
    """What is next to the note."""
    system, path = file_system(f"{checkpoint}/krishiv")
    return sorted(each.base_name for each in system.get_file_info(pafs.FileSelector(path)))


def all_at_once(checkpoint: str, number: int) -> tuple[list[Lease], list[str]]:
    """Leases, and the errors of those that got none."""
    got: list[Lease] = []
    refused: list[str] = []
    ready = threading.Barrier(number)

    def ask(mine: int) -> None:
        ready.wait()
        try:
            got.append(take(checkpoint, f"query {mine}"))
        except CheckpointError as problem:
            refused.append(str(problem))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return got, refused


@pytest.mark.parametrize("dead", [False, True], ids=["a new checkpoint", "one whose owner is dead"])
def test_one_of_many_that_ask_at_once_gets_it(checkpoint: str, dead: bool) -> None:
    for _ in range(2):
        if dead:
            held = take(checkpoint, "dead")
            change(checkpoint, host="elsewhere", renewed=time.time() - 300)
            held._over.set()  # it renews no more
        got, refused = all_at_once(checkpoint, 8)
        assert (len(got), len(refused)) == (1, 7), refused
        assert all("is in use" in text for text in refused)
        assert note_of(checkpoint)["query"].startswith("query ")
        assert in_folder(checkpoint) == ["lease.json"]
        got[0].release()
        assert in_folder(checkpoint) == []


def test_a_driver_that_was_killed_is_followed_by_another(checkpoint: str) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLDING, checkpoint], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match=f"query 'the other' of process {other.pid}"):
            take(checkpoint, "mine")
        other.send_signal(signal.SIGKILL)
        other.wait()
        take(checkpoint, "mine").release()
    finally:
        other.kill()
        other.wait()


def test_who_lost_it_does_not_write_over_the_other(checkpoint: str) -> None:
    held = take(checkpoint, "one")
    assert held._note is not None
    held._note.renew()
    held.check()
    change(checkpoint, token="another", query="two")
    with pytest.raises(CheckpointError, match=r"the right to the checkpoint was lost: .*it is of query 'two'"):
        held._note.look()
    held.release()
    assert note_of(checkpoint)["query"] == "two"


def test_a_claim_is_of_what_was_read(checkpoint: str) -> None:
    store, root = store_at(checkpoint)
    store.add_folder(root)
    path = f"{root}/note"
    assert not store.write_if(path, b"1", b"0"), "it is not there"
    assert store.write_if(path, b"1", None)
    assert not store.write_if(path, b"2", None), "it is there"
    assert not store.write_if(path, b"2", b"0"), "it is another one"
    assert store.read(path) == b"1"
    assert store.write_if(path, b"2", b"1")
    assert store.read(path) == b"2"
    assert [each.base_name for each in store.entries(root)] == ["note"]
