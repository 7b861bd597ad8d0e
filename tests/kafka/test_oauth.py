"""Tokens of OAuth from a function of the user: read and written with them, renewed, and in no text."""

from __future__ import annotations

import base64
import json
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from krishiv_py import KafkaSink, count
from krishiv_py.connectors import kafka_source
from krishiv_py.connectors.kafka.client import admin_module
from krishiv_py.connectors.kafka.settings import TokenCallback, connection
from krishiv_py.errors import PlanError, SourceError
from krishiv_py.testing import Driver, micro_batches, stream_of
from krishiv_py.testing.broker import Broker
from krishiv_py.testing.servers import free_ports

LOGIN = 'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
SECRET = "hunter2"


class TokenBroker(Broker):
    """A broker with a second listener that takes unsecured tokens."""

    tokens: str

    def _properties(self) -> str:
        (port,) = free_ports(1)
        self.tokens = f"127.0.0.1:{port}"
        lines = super()._properties().replace("listeners=PLAINTEXT", f"listeners=SASL_PLAINTEXT://{self.tokens},PLAINTEXT", 1)
        lines = lines.replace(
            "advertised.listeners=PLAINTEXT", f"advertised.listeners=SASL_PLAINTEXT://{self.tokens},PLAINTEXT"
        )
        return "\n".join(
            [
                lines,
                "sasl.enabled.mechanisms=OAUTHBEARER",
                "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
                f"listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config={LOGIN}",
                "",
            ]
        )


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenBroker]:
    """The broker."""
    broker = TokenBroker(Path(tmp_path_factory.mktemp("oauth")))
    broker.start()
    yield broker
    broker.kill()


def token(seconds: float = 300) -> tuple[str, float]:
    """A token without a signature, which ends after so many seconds."""
    now = time.time()
    parts = [{"alg": "none"}, {"sub": SECRET, "iat": now, "exp": now + seconds}]
    text = ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts)
    return f"{text}.", now + seconds


def of_text(_config: str | None) -> tuple[str, float]:
    """A token of a function that can be imported."""
    return token()


SASL: dict[str, Any] = {"security.protocol": "SASL_PLAINTEXT"}


def test_a_topic_is_read_and_written_with_tokens(tokens: TokenBroker) -> None:
    asked = admin_module().AdminClient({"bootstrap.servers": tokens.address})
    for made in asked.create_topics([admin_module().NewTopic("t", 1, 1)]).values():
        made.result()
    calls: list[str | None] = []

    def short(config: str | None) -> tuple[str, float]:
        calls.append(config)
        return token(4)

    told: dict[str, Any] = {"bootstrap_servers": tokens.tokens, "options": {**SASL, "oauth_cb": short}}
    plan = stream_of("k string, at bigint").watermark("at", "1 s").key_by("k").tumbling_window("1 s").agg(count())
    driver = Driver(plan, sink=KafkaSink("t", **told))
    driver.send([{"k": "a", "at": 0}])
    time.sleep(6)  # the first token has ended
    driver.send([{"k": "b", "at": 5_000}])
    driver.close()
    source = kafka_source("t", schema="k string", ending="latest", **told)
    assert [k for table in micro_batches(source) for k in table["k"].to_pylist()] == ["a", "b"]
    assert len(calls) > 3, "a token that ends is renewed"
    assert SECRET not in repr(source) + repr(source.connection) and token()[0] not in repr(source)


def test_the_function_is_the_same_one_in_tasks(tokens: TokenBroker) -> None:
    source = kafka_source(
        "t", bootstrap_servers=tokens.tokens, schema="k string", ending="latest", options={**SASL, "oauth_cb": of_text}
    )
    one, other = (pickle.loads(pickle.dumps(source)) for _ in range(2))
    assert one.connection == other.connection == source.connection and hash(one.connection) == hash(other.connection)
    assert connection("x", {"oauth_cb": of_text}, oauth=True) != connection("x", {"oauth_cb": of_text}, oauth=True)
    assert [k for table in micro_batches(one) for k in table["k"].to_pylist()] == ["a", "b"]


def raises(_config: str | None) -> Any:
    """No token."""
    raise PermissionError(SECRET)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (raises, "it raised PermissionError"),
        (lambda _: SECRET, "it returned str"),
        (lambda _: (SECRET, time.time() * 1_000), "divide milliseconds by 1000"),
        (lambda _: (SECRET, None), "no number of seconds"),
    ],
    ids=["raises", "text", "milliseconds", "none"],
)
def test_a_function_that_gives_no_token_is_an_error_that_shows_no_secret(call: Callable[..., Any], why: str) -> None:
    begun = time.monotonic()
    with pytest.raises(SourceError, match="the function oauth_cb gave no token") as refused:
        kafka_source("t", bootstrap_servers="127.0.0.1:1", schema="k string", timeout="1 s", options={**SASL, "oauth_cb": call})
    assert why in str(refused.value) and SECRET not in str(refused.value) and time.monotonic() - begun < 20


@pytest.mark.parametrize(
    "options",
    [
        {"oauth_cb": SECRET},
        {"oauth_cb": of_text, "sasl.mechanism": "PLAIN"},
        {"oauth_cb": of_text, "sasl.mechanisms": "SCRAM-SHA-256"},
        {"oauth_cb": of_text, "security.protocol": "SSL"},
        {"on_delivery": of_text},
    ],
    ids=["text", "plain", "scram", "ssl", "other"],
)
def test_what_takes_no_tokens_is_refused_at_the_call(options: dict[str, Any]) -> None:
    for make in (
        lambda: kafka_source("t", bootstrap_servers="x:1", schema="k string", options=options),
        lambda: KafkaSink("t", bootstrap_servers="x:1", options=options),
    ):
        with pytest.raises(PlanError) as refused:
            make()
        assert SECRET not in str(refused.value)


def test_tokens_need_no_further_option() -> None:
    found = connection("x", {"oauth_cb": of_text}, oauth=True)
    assert dict(found.settings) == {"sasl.mechanism": "OAUTHBEARER", "security.protocol": "SASL_SSL"}
    assert isinstance(found.config()["oauth_cb"], TokenCallback)
