"""One server for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from krishiv_py.storage import store as settings
from tests.azure.store import Storage, running


@pytest.fixture(scope="session")
def store() -> Iterator[Storage]:
    """A server on a free port."""
    with running() as actual:
        yield actual


@pytest.fixture
def used(store: Storage) -> Iterator[Storage]:
    """The same, and this process reaches it."""
    before = dict(settings._known)
    settings.use(store.settings)
    yield store
    settings.use(before)
    if store.account is not None:
        store.account.answer = 0
