"""The right to a checkpoint in a bucket of Amazon's."""

from __future__ import annotations

from typing import Any

import pytest

from krishiv_py.errors import CheckpointError
from krishiv_py.runtime.checkpoint.lease import take
from krishiv_py.storage.files import store_at
from krishiv_py.storage.local import DISK
from krishiv_py.storage.stores.s3 import S3
from tests.objectstore.store import Store
from tests.store_rules import LeaseRules


class TestLease(LeaseRules):
    """See LeaseRules."""


def test_a_store_without_conditional_writes_has_the_later_note(used: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*args: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(S3, "write_if", unknown)
    held = take(used.url("plain"), "one")
    with pytest.raises(CheckpointError, match="query 'one'"):
        take(used.url("plain"), "two")
    assert held._note is not None
    held._note.renew()
    held.release()


def test_a_version_that_is_not_there(used: Store) -> None:
    store, path = store_at(used.url("one"))
    assert store.write_if(f"{path}-none", b"5", "tag") is None
    assert DISK.version("/") is None
