"""One broker for all tests of a process, and topics with what is in them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer

from krishiv_py.connectors.kafka.client import admin_module
from krishiv_py.testing.broker import Broker, free_ports, running

_NUMBER = itertools.count()


@pytest.hookimpl(tryfirst=True)  # xdist looks at marks in a hook of its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process of the test run starts a broker, not both."""
    for item in items:
        if "broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("kafka"))


_TOKENS = "listener.name.sasl_plaintext.oauthbearer"
_LOGIN = 'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'


class TokenBroker(Broker):
    """A broker with a second listener, at `tokens`, which takes OAuth tokens without a signature.

    A connection ends when its token does.
    """

    tokens: str

    def _properties(self) -> str:
        self.tokens = f"127.0.0.1:{free_ports(1)[0]}"
        plain, both = "listeners=PLAINTEXT://", f"listeners=SASL_PLAINTEXT://{self.tokens},PLAINTEXT://"
        more = [
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms=OAUTHBEARER",
            f"{_TOKENS}.sasl.jaas.config={_LOGIN}",
            f"{_TOKENS}.connections.max.reauth.ms=3600000",
            "",
        ]
        return super()._properties().replace(plain, both) + "\n".join(more)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker on free ports."""
    with running(kind=TokenBroker) as actual:
        yield actual


@pytest.fixture
def tokens(broker: Broker) -> str:
    """The address at which the broker takes tokens."""
    assert isinstance(broker, TokenBroker)
    return broker.tokens


@pytest.fixture
def topic(broker: Broker) -> Callable[..., str]:
    """Makes topics."""
    requested = admin_module().AdminClient({"bootstrap.servers": broker.address})

    def make(partitions: int = 1, **settings: str) -> str:
        name = f"topic-{os.getpid()}-{next(_NUMBER)}"
        new = admin_module().NewTopic(name, partitions, 1, config={k.replace("_", "."): v for k, v in settings.items()})
        for made in requested.create_topics([new]).values():
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
