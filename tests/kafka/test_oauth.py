"""Tokens of OAuth from a function of the user: read and written with them, renewed, and in no text."""

from __future__ import annotations

import base64
import json
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest

from krishiv_py import KafkaSink
from krishiv_py.connectors import kafka_source
from krishiv_py.connectors.kafka.settings import TokenCallback, connection
from krishiv_py.errors import PlanError, SourceError

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
