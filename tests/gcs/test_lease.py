"""The right to a checkpoint in a bucket of Google's: of two that ask at once one gets it, and who lost it is told."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from krishiv_py.disk.checksums import sealed, unsealed
from krishiv_py.disk.files import store_at
from krishiv_py.disk.stores.google import Google as Store
from krishiv_py.errors import CheckpointError
from krishiv_py.runtime.checkpoint.lease import Lease, take
from tests.gcs.store import Google


def note_of(store: Google, folder: str) -> dict[str, Any]:
    """What the note says."""
    found: dict[str, Any] = json.loads(unsealed(store.read(f"{folder}/krishiv/lease.json"), "note", ""))
    return found


def change(store: Google, folder: str, **values: Any) -> None:
    """Write the note as another owner would."""
    store.put(f"{folder}/krishiv/lease.json", sealed(json.dumps({**note_of(store, folder), **values}).encode()))


def test_one_of_many_that_ask_at_once_gets_it(used: Google) -> None:
    got: list[Lease] = []
    refused: list[str] = []
    ready = threading.Barrier(8)

    def ask(number: int) -> None:
        ready.wait()
        try:
            got.append(take(used.url("crowd"), f"query {number}"))
        except CheckpointError as problem:
            refused.append(str(problem))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(refused)) == (1, 7)
    owner = note_of(used, "crowd")["query"]
    assert all(f"in use (got: query '{owner}'" in text for text in refused)
    got[0].release()
    assert used.files("crowd") == []
    take(used.url("crowd"), "the next").release()


def test_a_dead_owner_is_followed_by_one(used: Google) -> None:
    take(used.url("dead"), "one")
    change(used, "dead", host="elsewhere", renewed=time.time() - 300)
    held = take(used.url("dead"), "two")
    with pytest.raises(CheckpointError, match="query 'two'"):
        take(used.url("dead"), "three")
    held.release()


def test_who_lost_it_does_not_write_over_the_other(used: Google) -> None:
    held = take(used.url("lost"), "one")
    assert held._note is not None
    held._note.renew()
    held._note.renew()
    change(used, "lost", token="another", query="two")
    with pytest.raises(CheckpointError, match=r"the right to the checkpoint was lost: .*it is of query 'two'"):
        held._note.renew()
    held.release()
    assert note_of(used, "lost")["query"] == "two"


def test_a_note_whose_answer_was_lost_is_its_own(used: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is repeated, and the store says that another note is there: it is the one of the request before."""
    real = Store.write_if

    def unheard(*args: Any) -> Any:
        real(*args)
        return real(*args)

    monkeypatch.setattr(Store, "write_if", unheard)
    held = take(used.url("again"), "one")
    monkeypatch.undo()
    assert held._note is not None
    held._note.renew()
    change(used, "again", renewed=time.time())  # what a renewal wrote that seemed to fail
    held._note.renew()
    held._note.renew()
    held.release()
    assert used.files("again") == []


def test_conditional_writes(used: Google) -> None:
    store, path = store_at(used.url("one"))
    assert store.version(path) is None
    first = store.write_if(path, b"1", None)
    assert first is not None and store.write_if(path, b"2", None) is None
    second = store.write_if(path, b"3", first)
    assert second == store.version(path) and store.write_if(path, b"4", first) is None
    assert store.write_if(f"{path}-none", b"5", "77") is None
    assert used.read("one") == b"3"
    with pytest.raises(OSError, match="404"):
        take("gs://nowhere/cp", "one")
