"""The right to a checkpoint in a bucket: of two that ask at once one gets it, and who lost it is told."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from krishiv_py.disk.checksums import sealed, unsealed
from krishiv_py.disk.files import store_at
from krishiv_py.disk.local import DISK
from krishiv_py.disk.stores.s3 import S3
from krishiv_py.errors import CheckpointError
from krishiv_py.runtime.checkpoint.lease import Lease, take
from tests.objectstore.store import BUCKET, Store


def note_of(store: Store, folder: str) -> dict[str, Any]:
    """What the note says."""
    data = store.client().get_object(Bucket=BUCKET, Key=f"{folder}/krishiv/lease.json")["Body"].read()
    found: dict[str, Any] = json.loads(unsealed(data, "note", ""))
    return found


def change(store: Store, folder: str, **values: Any) -> None:
    """Write the note as another owner would."""
    data = sealed(json.dumps({**note_of(store, folder), **values}).encode())
    store.client().put_object(Bucket=BUCKET, Key=f"{folder}/krishiv/lease.json", Body=data)


def test_one_of_many_that_ask_at_once_gets_it(used: Store) -> None:
    got: list[Lease] = []
    refused: list[str] = []
    ready = threading.Barrier(8)

    def ask(number: int) -> None:
        ready.wait()
        try:
            got.append(take(f"s3a://{BUCKET}/crowd", f"query {number}"))
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
    assert "crowd/krishiv/lease.json" not in used.keys("crowd")


def test_a_dead_owner_is_followed_by_one(used: Store) -> None:
    take(f"s3a://{BUCKET}/dead", "one")
    change(used, "dead", host="elsewhere", renewed=time.time() - 300)
    held = take(f"s3a://{BUCKET}/dead", "two")
    with pytest.raises(CheckpointError, match="query 'two'"):
        take(f"s3a://{BUCKET}/dead", "three")
    held.release()


def test_who_lost_it_does_not_write_over_the_other(used: Store) -> None:
    held = take(f"s3a://{BUCKET}/lost", "one")
    assert held._note is not None
    held._note.renew()
    held._note.renew()
    change(used, "lost", token="another", query="two")
    with pytest.raises(CheckpointError, match=r"the right to the checkpoint was lost: .*it is of query 'two'"):
        held._note.renew()
    held.release()
    assert note_of(used, "lost")["query"] == "two"


def test_a_renewal_whose_answer_was_lost_is_its_own(used: Store) -> None:
    held = take(f"s3a://{BUCKET}/again", "one")
    assert held._note is not None
    change(used, "again", renewed=time.time())  # what a request wrote that seemed to fail
    held._note.renew()
    held._note.renew()
    held.release()


def test_a_store_without_conditional_writes_has_the_later_note(used: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(S3, "write_if", unknown)
    held = take(f"s3a://{BUCKET}/plain", "one")
    with pytest.raises(CheckpointError, match="query 'one'"):
        take(f"s3a://{BUCKET}/plain", "two")
    assert held._note is not None
    held._note.renew()
    held.release()


def test_conditional_writes(used: Store) -> None:
    store, path = store_at(f"s3a://{BUCKET}/one")
    assert store.version(path) is None
    first = store.write_if(path, b"1", None)
    assert first is not None and store.write_if(path, b"2", None) is None
    second = store.write_if(path, b"3", first)
    assert second == store.version(path) and store.write_if(path, b"4", first) is None
    assert store.write_if(f"{path}-none", b"5", "tag") is None
    assert DISK.version("/") is None
