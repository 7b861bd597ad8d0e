"""Settings of librdkafka: which a user may set, and how they are shown."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs

from krishiv_py.errors import RAISED, PlanError, SourceError, failure_text, shown
from krishiv_py.plan.checks import a_text
from krishiv_py.redaction import HIDDEN, is_secret, shown_settings, shown_text
from krishiv_py.storage.datasets import Dataset, server_of

OWNED: Final[dict[str, str]] = {
    "bootstrap.servers": "bootstrap_servers=",
    "auto.offset.reset": "starting=",
    "enable.auto.commit": "commit_group=",
    "enable.auto.offset.store": "commit_group=",
    "enable.partition.eof": "nothing: ranges need it",
    "group.id": "commit_group=",
    "transactional.id": "nothing: it follows from the checkpoint",
}
"""Settings that would make a query inexact, and what to use for them."""
_ACKS: Final = ("acks", "request.required.acks")
_BROKER: Final = re.compile(r"((PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?[^\s/@,]+", re.IGNORECASE)
_MOST_PORTS: Final = 65_535
_FAR_S: Final = 100_000_000_000
"""Seconds since the epoch that are meant as milliseconds: the year 5138."""
_TOKEN_HINT: Final = "let it return (token, seconds since the epoch at which the token ends), in tasks too"
Option: TypeAlias = "str | int | float | bool | Callable[..., Any]"
"""The value of an option: a setting of librdkafka, or the function of ``oauth_cb``."""


@attrs.frozen
class TokenCallback:
    """The function of a user that returns tokens. Copies of it in tasks are the same one: clients are kept for it.

    Attributes
    ----------
    call : callable
        As confluent-kafka's ``oauth_cb``: it takes the text of ``sasl.oauthbearer.config`` or None, and returns the token and
        when it ends, in seconds since the epoch.
    name : str
        Tells it from others.
    """

    call: Callable[..., Any] = attrs.field(eq=False, repr=False)
    name: str = attrs.field(factory=lambda: uuid.uuid4().hex, repr=False)

    def __call__(self, config: str | None) -> Any:
        """Return a token. What goes wrong is noted, for librdkafka does not say it; its text may hold a secret."""
        _failed.pop(self.name, None)
        try:
            token = self.call(config)
        except RAISED as problem:
            _failed[self.name] = f"it raised {type(problem).__name__}"
            raise
        _failed[self.name] = _token_problem(token)
        if _failed[self.name]:
            raise ValueError(_failed[self.name])
        return token

    @property
    def problem(self) -> str:
        """Return what was wrong when it was called last in this process."""
        return _failed.get(self.name, "")


_failed: dict[str, str] = {}


def _token_problem(given: object) -> str:
    if not isinstance(given, tuple) or not 2 <= len(given) <= 4 or not isinstance(given[0], str):
        return f"it returned {type(given).__name__} in place of (token, seconds since the epoch)"
    ends = given[1]
    if isinstance(ends, bool) or not isinstance(ends, (int, float)) or not ends > 0:
        return "the end of its token is not a number of seconds since the epoch"
    return "the end of its token is not in seconds since the epoch: divide milliseconds by 1000" if ends > _FAR_S else ""


@attrs.frozen
class Connection:
    """Says how to reach a cluster: its address and more settings of librdkafka.

    Attributes
    ----------
    servers : str
        ``host:port``, separated by commas.
    settings : tuple of (str, str)
        Sorted by name.
    oauth : TokenCallback or None
        What makes tokens for the mechanism OAUTHBEARER.
    """

    servers: str = attrs.field(repr=shown_text)
    settings: tuple[tuple[str, str], ...] = attrs.field(default=(), repr=shown_settings)
    oauth: TokenCallback | None = None

    def config(self, **more: str) -> dict[str, Any]:
        """Return all of it as librdkafka takes it; underscores in the names of `more` are dots."""
        settings = {name.replace("_", "."): value for name, value in more.items()}
        tokens = {} if self.oauth is None else {"oauth_cb": self.oauth}
        return {"log_level": "0", **settings, **dict(self.settings), **tokens, "bootstrap.servers": self.servers}

    def dataset(self, topic: str) -> Dataset:
        """Return the name of a topic for other programs, by the first server."""
        return Dataset(f"kafka://{server_of(self.servers, 9092)}", topic)

    def clean(self, text: str) -> str:
        """Return a `text` of librdkafka without values of secret settings."""
        for name, value in self.settings:
            if is_secret(name) and value:
                text = text.replace(value, HIDDEN)
        return text

    def failed(self, what: str, problem: BaseException, hint: str, so: str = "there are no rows") -> SourceError:
        """Return the error for a call that the broker refused, or did not answer, `so` that something cannot be done."""
        said = problem.args[0].str() if problem.args and hasattr(problem.args[0], "str") else failure_text(problem)
        got = f"{self.servers}: {self.clean(said)}"
        if self.oauth is not None and self.oauth.problem:
            what, got, hint = "the function oauth_cb gave no token", f"{got}; {self.oauth.problem}", _TOKEN_HINT
        return SourceError(what, got=got, then=so, hint=hint)


def brokers(servers: object) -> str:
    """Addresses of brokers, ``host:port`` separated by commas; ``host`` alone stands for port 9092.

    Raises
    ------
    PlanError
        For anything else. A text with ``@`` is not shown: it may hold a password.
    """
    hint = 'write bootstrap_servers="host:9092"'
    if isinstance(servers, (list, tuple)):
        servers = ",".join(a_text(s, "bootstrap_servers", 'write "host:9092"') for s in servers)
    address = a_text(servers, "bootstrap_servers", hint)
    parts = [part.strip() for part in address.split(",") if part.strip()]
    for part in parts or [address]:
        _, colon, port = part.rpartition(":")
        of_port = not colon or part.endswith("]") or (port.isdecimal() and 0 < int(port) <= _MOST_PORTS)
        if not _BROKER.fullmatch(part) or not of_port:
            got = "a text with @" if "@" in address else shown(part)
            hint += ', several separated by commas; user and password belong in options={"sasl.username": ...}'
            raise PlanError("`bootstrap_servers` is not an address of a broker", got=got, hint=hint)
    return address


def check_promise(settings: tuple[tuple[str, str], ...], *, transactions: bool) -> None:
    """Refuse settings of a producer that drop what a sink promises.

    Raises
    ------
    PlanError
        Naming the option.
    """
    for name, value in settings:
        if name in _ACKS and value not in ("all", "-1"):
            got, so = f"{name}={value}", "a broker that fails would take rows with it, and nobody would know"
        elif name == "enable.idempotence" and transactions and value == "false":
            got, so = f"{name}={value}", "transactions need it"
        else:
            continue
        raise PlanError("the option drops what the sink promises", got=got, then=so, hint="leave it out")


def connection(servers: object, options: object, *, oauth: bool = False) -> Connection:
    """Return what a user gave for a cluster, whose address is checked before (:func:`brokers`), or of a registry.

    A cluster may have a function for tokens, `oauth`.

    Raises
    ------
    PlanError
        For a value that is not an address, for options that are not settings, and for settings that the library makes itself.
    """
    address = a_text(servers, "address", 'write "host:9092"; of a registry "http://host:8081"')
    if options is None:
        return Connection(address)
    if not isinstance(options, Mapping):
        raise PlanError(
            "`options` are settings of librdkafka by name",
            got=shown(type(options).__name__),
            hint='write options={"security.protocol": "SSL"}',
        )
    settings: dict[str, str] = {}
    tokens: TokenCallback | None = None
    for key, value in options.items():
        name = a_text(key, "options", 'write options={"security.protocol": "SSL"}')
        if name in OWNED:
            hint = f"use {OWNED[name]}" if OWNED[name].endswith("=") else f"leave it out; {OWNED[name]}"
            raise PlanError(f"the option {name!r} is set by the library", got="a value of yours", hint=hint)
        if name == "oauth_cb" and oauth:
            tokens = _tokens(value)
            continue
        if not isinstance(value, (str, int, float)):
            got = type(value).__name__  # the value may be a secret
            hint = "pass a text, a number, True or False"
            raise PlanError(f"the option {name!r} has no such value", got=got, hint=hint)
        settings[name] = str(value).lower() if isinstance(value, bool) else str(value)
    if tokens is not None:
        _add_mechanism(settings)
    return Connection(address, tuple(sorted(settings.items())), tokens)


def _tokens(value: object) -> TokenCallback:
    if not callable(value):
        hint = "pass a function that takes one argument and returns (token, seconds since the epoch at which it ends)"
        got = type(value).__name__  # the value may be a secret
        raise PlanError("the option 'oauth_cb' is a function", got=got, hint=hint)
    return TokenCallback(value)


def _add_mechanism(settings: dict[str, str]) -> None:
    """Complete settings that a function for tokens needs, and refuse others, under which nobody would call it."""
    kinds = [settings[name] for name in ("sasl.mechanism", "sasl.mechanisms") if name in settings]
    protocol = settings.setdefault("security.protocol", "SASL_SSL")
    if not kinds:
        settings["sasl.mechanism"] = "OAUTHBEARER"
    wrong = next((kind for kind in kinds if kind.upper() != "OAUTHBEARER"), None) or (
        None if protocol.upper().startswith("SASL_") else protocol
    )
    if wrong is not None:
        hint = 'leave both out, or write "sasl.mechanism": "OAUTHBEARER" and "security.protocol": "SASL_SSL"'
        raise PlanError("the option 'oauth_cb' is for tokens over SASL", got=wrong, hint=hint)
