"""One server for all tests of a process; Spark runs in jobs of their own, for its session needs other jars."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from krishiv_py.storage import store as settings
from tests.objectstore.store import Store, running


@pytest.hookimpl(tryfirst=True)  # before the test runner looks for groups, also where this folder alone is run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process of the test run starts the server, not both."""
    for item in items:
        if item.path.parent.name == "objectstore" and "store" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("objectstore"))


@pytest.fixture(scope="session")
def store() -> Iterator[Store]:
    """A server on a free port."""
    with running() as actual:
        yield actual


@pytest.fixture
def used(store: Store) -> Iterator[Store]:
    """The same, and this process reaches it."""
    before = dict(settings._known)
    settings.use(store.settings)
    yield store
    settings.use(before)
