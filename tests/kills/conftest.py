"""A broker of its own, for it is killed, and a database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from krishiv_py.testing.broker import Broker, running
from tests.tables.conftest import server as server


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker on a free port."""
    with running() as actual:
        yield actual
