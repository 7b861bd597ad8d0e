"""Tokens of OAuth from a function of the user: read and written with them, renewed, and in no text."""

from __future__ import annotations

import base64
import itertools
import json
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest

from krishiv_py import Batches, KafkaSink, Session, count
from krishiv_py.connectors import kafka_source
from krishiv_py.connectors.kafka.client import TokenCallback, connection
from krishiv_py.errors import PlanError, SourceError
from krishiv_py.testing import Driver, micro_batches, stream_of
from krishiv_py.testing.broker import Broker
from tests.kafka.conftest import send

SECRET = "hunter2"


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


def keys_of(topic: str, tokens: str, call: Callable[..., Any]) -> list[str]:
    """Return the keys in a topic that is read with tokens."""
    source = kafka_source(
        topic, bootstrap_servers=tokens, schema="k string", ending="latest", options={**SASL, "oauth_cb": call}
    )
    return [k for table in micro_batches(source) for k in table["k"].to_pylist()]


@pytest.mark.slow
def test_a_topic_is_read_and_written_with_tokens(topic: Callable[..., str], tokens: str) -> None:
    """A token ends while the sink is open, and the connection with it, unless the next token is sent in time."""
    name, calls = topic(), itertools.count()

    def short(_config: str | None) -> tuple[str, float]:
        next(calls)
        return token(4)

    plan = stream_of("k string, at bigint").watermark("at", "1 s").key_by("k").tumbling_window("1 s").agg(count())
    driver = Driver(plan, sink=KafkaSink(name, bootstrap_servers=tokens, options={**SASL, "oauth_cb": short}))
    driver.send([{"k": "a", "at": 0}, {"k": "b", "at": 5_000}])
    before = next(calls)
    time.sleep(6)
    assert next(calls) > before + 1, "a token that ends is followed by another one"
    driver.close()
    assert keys_of(name, tokens, short) == ["a", "b"]


@pytest.mark.slow
def test_tokens_are_made_in_tasks_of_spark(
    session: Session, broker: Broker, topic: Callable[..., str], tokens: str, tmp_path: Any
) -> None:
    """A function that can only be sent with cloudpickle, as one of a notebook."""
    name, to = topic(2), topic()
    send(broker, name, [(n % 2, json.dumps({"k": "ab"[n % 2], "at": n}).encode()) for n in range(10)])
    secret = SECRET

    def made(_config: str | None) -> tuple[str, float]:
        assert secret == SECRET
        return token()

    reached: dict[str, Any] = {"bootstrap_servers": tokens, "options": {**SASL, "oauth_cb": made}}
    plan = session.read_kafka(name, schema="k string, at bigint", **reached).watermark("at", 0).key_by("k")
    query = (
        plan.tumbling_window(10)
        .agg(count())
        .start(KafkaSink(to, **reached), checkpoint=str(tmp_path / "c"), batches=Batches.available_now(flush=True))
    )
    query.await_termination()
    assert sorted(keys_of(to, tokens, made)) == ["a", "b"]
    assert SECRET not in query.explain() + repr(query)


def test_a_token_that_the_broker_refuses_is_an_error_without_it(topic: Callable[..., str], tokens: str) -> None:
    text, ends = token(-60)
    with pytest.raises(SourceError) as refused:
        kafka_source(
            topic(),
            bootstrap_servers=tokens,
            schema="k string",
            timeout="3 s",
            options={**SASL, "oauth_cb": lambda _: (text, ends + 600)},
        )
    assert text not in str(refused.value) and SECRET not in str(refused.value) and tokens in str(refused.value)


def test_the_function_is_the_same_one_in_tasks() -> None:
    reached = connection("x", {"oauth_cb": of_text}, oauth=True)
    one, other = (pickle.loads(pickle.dumps(reached)) for _ in range(2))
    assert one == other == reached and hash(one) == hash(other) == hash(reached)
    assert connection("x", {"oauth_cb": of_text}, oauth=True) != reached
    text, _ends = reached.config()["oauth_cb"](None)
    assert SECRET not in repr(reached) and text not in repr(reached) + repr(reached.config())


def raises(_config: str | None) -> Any:
    """No token."""
    raise PermissionError(SECRET)


@pytest.mark.slow
def test_a_function_that_gives_no_token_is_an_error_that_shows_no_secret() -> None:
    begun = time.monotonic()
    options = {**SASL, "oauth_cb": raises}
    with pytest.raises(SourceError, match=r"the function oauth_cb gave no token.*it raised PermissionError") as refused:
        kafka_source("t", bootstrap_servers="127.0.0.1:1", schema="k string", timeout="1 s", options=options)
    assert SECRET not in str(refused.value) and time.monotonic() - begun < 20


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (raises, "it raised PermissionError"),
        (lambda _: SECRET, "it returned str"),
        (lambda _: (SECRET, time.time() * 1_000), "divide milliseconds by 1000"),
        (lambda _: (SECRET, None), "not a number of seconds"),
    ],
    ids=["raises", "text", "milliseconds", "none"],
)
def test_the_error_says_what_the_function_gave(call: Callable[..., Any], why: str) -> None:
    """The client, which waits ten seconds for a token, makes the same calls."""
    reached = connection("x", {"oauth_cb": call}, oauth=True)
    with pytest.raises((PermissionError, ValueError)):
        reached.config()["oauth_cb"](None)
    text = str(reached.failed("no broker answers", TimeoutError("x"), "a hint"))
    assert "the function oauth_cb gave no token" in text and why in text and SECRET not in text


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


def test_tokens_need_no_other_option() -> None:
    actual = connection("x", {"oauth_cb": of_text}, oauth=True)
    assert dict(actual.settings) == {"sasl.mechanism": "OAUTHBEARER", "security.protocol": "SASL_SSL"}
    assert isinstance(actual.config()["oauth_cb"], TokenCallback)
