"""One server for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from krishiv_py.storage.store import known_settings, use
from tests.hdfs.server import Server, running


@pytest.hookimpl(tryfirst=True)  # xdist looks at marks in a hook of its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process of the test run starts them, not both."""
    for item in items:
        if "hdfs" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("hdfs"))


@pytest.fixture(scope="session")
def hdfs() -> Iterator[Server]:
    """A namenode and datanodes on free ports."""
    with running() as actual:
        yield actual


@pytest.fixture
def settings() -> Iterator[None]:
    """The settings of this process are put back."""
    before = known_settings()
    yield
    use(before)
