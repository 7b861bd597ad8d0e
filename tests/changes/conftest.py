"""The servers of the tests of Kafka and of tables, for programs that read one and write the other."""

from __future__ import annotations

import pytest

from tests.kafka.conftest import broker as broker
from tests.kafka.conftest import topic as topic
from tests.tables.conftest import server as server
from tests.tables.conftest import table as table


@pytest.hookimpl(tryfirst=True)  # xdist looks at marks in a hook of its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process of the test run starts both."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        if item.path.parent.name == "changes" and ("broker" in names or "server" in names):
            item.add_marker(pytest.mark.xdist_group("kafka" if "broker" in names else "postgres"))
