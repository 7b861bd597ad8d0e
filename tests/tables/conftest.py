"""One server for all tests of a process."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from tests.tables.server import Server, programs, running

_NUMBER = itertools.count()


@pytest.hookimpl(tryfirst=True)  # xdist looks at marks in a hook of its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process of the test run starts a server, not both."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "server" in names and "session" not in names and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("postgres"))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server on a free port; where it is not installed, an error in CI, and elsewhere a skip."""
    if programs() is None:
        why = "PostgreSQL is not installed (no initdb). Hint: bash scripts/install-system"
        if "CI" in os.environ or "KRISHIV_FIXED_EXAMPLES" in os.environ:  # the second is set by .ci/run
            pytest.fail(why)
        pytest.skip(why)
    with running() as actual:
        yield actual


@pytest.fixture
def table() -> Callable[[], str]:
    """Names of tables that nobody else has."""
    return lambda: f"t{next(_NUMBER)}"
