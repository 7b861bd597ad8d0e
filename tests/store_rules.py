"""What every store must hold for a lease; the tests of each store run these rules over a server of their own."""

from __future__ import annotations

import json
import threading
import time
import uuid
from typing import Any, Protocol

import pyarrow.fs as pafs
import pytest

from krishiv_py.errors import CheckpointError
from krishiv_py.runtime.checkpoint.lease import Lease, take
from krishiv_py.storage.checksums import sealed, unsealed
from krishiv_py.storage.files import store_at


class Served(Protocol):
    """A store that a server of the tests serves; keys are below its bucket."""

    def url(self, path: str) -> str:
        """Return the address of a path."""

    def read(self, key: str) -> bytes:
        """Return what is kept under a key."""

    def put(self, key: str, data: bytes) -> None:
        """Write it."""

    def files(self, prefix: str) -> list[str]:
        """Return the keys of files that begin so, without those of folders."""


def file_system(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a path as Arrow sees it, and the path in it."""
    store, path = store_at(uri)
    return store.arrow, path


def note_of(store: Served, folder: str) -> dict[str, Any]:
    """Return what the note of a lease says."""
    actual: dict[str, Any] = json.loads(unsealed(store.read(f"{folder}/krishiv/lease.json"), "note", ""))
    return actual


def change(store: Served, folder: str, **values: Any) -> None:
    """Write the note as another owner would."""
    store.put(f"{folder}/krishiv/lease.json", sealed(json.dumps({**note_of(store, folder), **values}).encode()))


class LeaseRules:
    """Base of the tests of a store: of two that ask at once one gets the lease, and who lost it gets an error."""

    @pytest.fixture
    def folder(self) -> str:
        """A folder that does not exist."""
        return uuid.uuid4().hex

    def test_one_of_many_that_ask_at_once_gets_it(self, used: Served, folder: str) -> None:
        got: list[Lease] = []
        refused: list[str] = []
        ready = threading.Barrier(8)

        def ask(number: int) -> None:
            ready.wait()
            try:
                got.append(take(used.url(folder), f"query {number}"))
            except CheckpointError as problem:
                refused.append(str(problem))

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(got), len(refused)) == (1, 7)
        owner = note_of(used, folder)["query"]
        assert all(f"in use (got: query '{owner}'" in text for text in refused)
        got[0].release()
        assert used.files(folder) == []
        take(used.url(folder), "the next").release()

    def test_a_dead_owner_is_followed_by_one(self, used: Served, folder: str) -> None:
        take(used.url(folder), "one")
        change(used, folder, host="elsewhere", renewed=time.time() - 300)
        held = take(used.url(folder), "two")
        with pytest.raises(CheckpointError, match="query 'two'"):
            take(used.url(folder), "three")
        held.release()

    def test_who_lost_it_does_not_write_over_the_other(self, used: Served, folder: str) -> None:
        held = take(used.url(folder), "one")
        assert held._note is not None
        held._note.renew()
        held._note.renew()
        change(used, folder, token="another", query="two")
        with pytest.raises(CheckpointError, match=r"the right to the checkpoint was lost: .*it is of query 'two'"):
            held._note.renew()
        held.release()
        assert note_of(used, folder)["query"] == "two"

    def test_a_renewal_whose_answer_was_lost_is_its_own(self, used: Served, folder: str) -> None:
        held = take(used.url(folder), "one")
        assert held._note is not None
        change(used, folder, renewed=time.time())  # what a request wrote that seemed to fail
        held._note.renew()
        held._note.renew()
        held.release()
        assert used.files(folder) == []

    def test_writes_on_a_condition(self, used: Served, folder: str) -> None:
        store, path = store_at(used.url(f"{folder}/one"))
        assert store.version(path) is None
        first = store.write_if(path, b"1", None)
        assert first is not None and store.write_if(path, b"2", None) is None
        second = store.write_if(path, b"3", first)
        assert second == store.version(path) and store.write_if(path, b"4", first) is None
        assert store.write_if(f"{path}-none", b"5", first) is None
        assert used.read(f"{folder}/one") == b"3" and used.files(folder) == [f"{folder}/one"]
