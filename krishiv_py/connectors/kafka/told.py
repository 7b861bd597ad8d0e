"""Define what a user tells a sink of topic, key and headers, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import a_text

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def a_topic(value: object) -> str:
    """The name of a topic, as Kafka has them."""
    hint = 'pass the name of a topic: KafkaSink("results", ...)'
    text = a_text(value, "topic", hint)
    if not _NAME.fullmatch(text) or text in (".", ".."):
        got, hint = shown(text), "letters A to Z, digits, and . _ -; 249 at most"
        raise PlanError("Kafka has no topics of such a name", got=got, hint=hint)
    return text


def key_columns(value: object) -> tuple[str, ...]:
    """The columns of a key, each once."""
    names = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or len(set(map(str, names))) < len(names):
        raise PlanError("`key` names columns", got=shown(value), hint='write key="user" or key=["a", "b"]')
    return tuple(a_text(name, "key", 'write key="user" or key=["user", "window_start"]') for name in names)


def header_columns(value: object) -> tuple[tuple[str, str], ...]:
    """Names of headers, and their columns."""
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        hint = 'write headers={"name": "column"}'
        raise PlanError("`headers` are names with columns", got=shown(value), hint=hint)
    for name, column in value.items():
        a_text(name, "headers", 'write headers={"name": "column"}')
        a_text(column, "headers", 'write headers={"name": "column"}')
        if name.startswith("krishiv-"):
            hint = "choose a name that does not begin with krishiv-"
            raise PlanError("a header has a name of the library", got=name, hint=hint)
    return tuple(value.items())
