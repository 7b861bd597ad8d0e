"""One broker for all tests of a process, and topics with what is in them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer

from krishiv_py.connectors.kafka.client import admin_module
from krishiv_py.testing.broker import Broker, running

_NUMBER = itertools.count()


@pytest.hookimpl(tryfirst=True)  # xdist looks at marks in a hook of its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process of the test run starts a broker, not both."""
    for item in items:
        if "broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("kafka"))


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker on a free port."""
    with running() as found:
        yield found


@pytest.fixture
def topic(broker: Broker) -> Callable[..., str]:
    """Makes topics."""
    asked = admin_module().AdminClient({"bootstrap.servers": broker.address})

    def make(partitions: int = 1, **settings: str) -> str:
        name = f"topic-{os.getpid()}-{next(_NUMBER)}"
        new = admin_module().NewTopic(name, partitions, 1, config={k.replace("_", "."): v for k, v in settings.items()})
        for made in asked.create_topics([new]).values():
            made.result()
        return name

    return make


Record = tuple[int, bytes | None]
"""Partition and value."""


def send(broker: Broker, topic: str, records: Sequence[Record], **more: Any) -> None:
    """Write records, in order."""
    to = Producer({"bootstrap.servers": broker.address})
    for partition, value in records:
        to.produce(topic, value, partition=partition, **more)
        to.poll(0)
    assert to.flush(30) == 0
