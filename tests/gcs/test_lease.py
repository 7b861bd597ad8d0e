"""The right to a checkpoint in a bucket of Google's."""

from __future__ import annotations

import time
from typing import Any

import pytest

from krishiv_py.runtime.checkpoint.lease import take
from krishiv_py.storage.files import store_at
from krishiv_py.storage.stores.google import Google as Store
from tests.gcs.store import Google
from tests.store_rules import LeaseRules, change


class TestLease(LeaseRules):
    """See LeaseRules."""


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


def test_a_version_and_a_bucket_that_are_not_there(used: Google) -> None:
    store, path = store_at(used.url("one"))
    assert store.write_if(f"{path}-none", b"5", "77") is None
    with pytest.raises(OSError, match="404"):
        take("gs://nowhere/cp", "one")
