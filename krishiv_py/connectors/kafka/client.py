"""A connection to a broker: settings of librdkafka that a user may set, and questions about partitions and offsets.

A process keeps one client for each connection while it is in use, and no longer: a client of librdkafka connects again for as
long as it lives, also to a broker that has ended.
"""

from __future__ import annotations

import importlib
import os
import re
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import TimeoutError as NoAnswer
from typing import Any, Final, Literal, TypeAlias

import attrs

from krishiv_py.errors import RAISED, PlanError, SourceError, failure_text, require_extra, shown
from krishiv_py.failures.redaction import HIDDEN, is_secret, shown_settings, shown_text
from krishiv_py.failures.transient import verdict
from krishiv_py.plan.checks import a_function, a_path, a_text
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
Option: TypeAlias = "str | int | float | bool | os.PathLike[str] | Callable[..., Any]"
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
        return SourceError(what, got=got, then=so, hint=hint, transient=may_pass(problem))


_LASTING: Final = re.compile(
    "AUTHORIZATION|AUTHENTICATION|^_?INVALID_|^MSG_SIZE_TOO_LARGE$|UNSUPPORTED|^_FENCED$|^_NOT_IMPLEMENTED$|^OFFSET_OUT_OF_RANGE$"
)
"""Names of librdkafka's errors that a repetition meets again; all others are of brokers that are away, or busy."""


def may_pass(problem: BaseException) -> bool:
    """Return whether a repetition may help about an exception of librdkafka's; nobody's answer is one that does."""
    error = problem.args[0] if problem.args else None
    if hasattr(error, "retriable"):
        return error_passes(error)
    return isinstance(problem, NoAnswer) or verdict(problem) == "transient"


def error_passes(error: Any) -> bool:
    """Return whether a repetition may help about an error of librdkafka's."""
    return bool(error.retriable()) or not _LASTING.search(error.name())


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
        if isinstance(value, os.PathLike):
            value = a_path(value, name, "pass a text, or a path")
        if not isinstance(value, (str, int, float)):
            got = type(value).__name__  # the value may be a secret
            hint = "pass a text, a number, True or False"
            raise PlanError(f"the option {name!r} has no such value", got=got, hint=hint)
        settings[name] = str(value).lower() if isinstance(value, bool) else str(value)
    if tokens is not None:
        _add_mechanism(settings)
    return Connection(address, tuple(sorted(settings.items())), tokens)


def _tokens(value: object) -> TokenCallback:
    hint = "pass a function that takes one argument and returns (token, seconds since the epoch at which it ends)"
    got = type(value).__name__  # the value may be a secret
    return TokenCallback(a_function(value, "the option 'oauth_cb' is a function", hint, got=got))


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


IDLE_S: Final = 60.0
"""For how long a client may be unused."""


class PooledClients:
    """Clients by what they were made of; each is ended when it was unused for `idle_s` seconds.

    Clients of a process that this one was forked from are neither used nor ended.
    """

    def __init__(self, make: Callable[..., Any], end: Callable[[Any], object] | None = None, idle_s: float = IDLE_S) -> None:
        self._make, self._end, self._idle_s = make, end, idle_s
        self._lock = threading.Lock()
        self._clients: dict[tuple[int, tuple[Hashable, ...]], tuple[Any, float]] = {}
        self._watched: set[int] = set()
        """Processes in which a timer runs."""

    def __call__(self, *key: Hashable) -> Any:
        """Return the client that was made of `key`, or a new one."""
        process = os.getpid()
        with self._lock:
            client = self._clients[process, key][0] if (process, key) in self._clients else self._make(*key)
            self._clients[process, key] = client, time.monotonic()
            if process not in self._watched:
                self._watched.add(process)
                self._look_again(self._idle_s)
        return client

    def _look_again(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._sweep)
        timer.name, timer.daemon = "krishiv_py Kafka clients", True
        timer.start()

    def _sweep(self) -> None:
        """End what was unused for too long; come back when the next may be."""
        process, now = os.getpid(), time.monotonic()
        with self._lock:
            own = {key: used for key, (_, used) in self._clients.items() if key[0] == process}
            unused = [self._clients.pop(key)[0] for key, used in own.items() if now - used >= self._idle_s]
            if left := [used for used in own.values() if now - used < self._idle_s]:
                self._look_again(min(left) + self._idle_s - now)
            else:
                self._watched.discard(process)
        for client in unused:
            if self._end is not None:
                self._end(client)


Place: TypeAlias = tuple[str, int]
"""A topic and one of its partitions."""
Offsets: TypeAlias = dict[Place, int]
When: TypeAlias = "Literal['earliest', 'latest'] | int"
"""An offset to look up: the first, the one after the last, or the first at a time, ms since the epoch."""
_ASK_S: Final = 5.0
_MADE_S: Final = 1.0
"""For how long a topic may be unknown: brokers tell of one that was made just now a moment later."""
_OPEN_S: Final = 5.0
"""For how long to wait for the end of transactions: a broker writes that of a committed one a moment after it said so."""


class NoTopicError(SourceError):
    """A topic is not there, or may not be seen."""


def kafka() -> Any:
    """Return the module ``confluent_kafka``.

    Raises
    ------
    MissingExtraError
        When it is not installed.
    """
    require_extra("Kafka", ("confluent_kafka",), "kafka", "no topic can be read or written")
    import confluent_kafka

    return confluent_kafka


def admin_module() -> Any:
    """Return the module ``confluent_kafka.admin``."""
    kafka()
    return importlib.import_module("confluent_kafka.admin")


def _new_admin(connection: Connection) -> Any:
    own = {k: v for k, v in connection.config().items() if k != "isolation.level"}
    return admin_module().AdminClient(own)


_admin = PooledClients(_new_admin)


def admin(connection: Connection) -> Any:
    """Return the admin client of this process.

    Raises
    ------
    SourceError
        When librdkafka refuses a setting.
    """
    try:
        return _admin(connection)
    except kafka().KafkaException as problem:
        raise connection.failed("a setting of Kafka is refused", problem, "see the settings of librdkafka") from None


def partitions(connection: Connection, topics: Iterable[str], within_s: float, so: str = "there are no rows") -> list[Place]:
    """Return the partitions of topics; without them something cannot be done, and the error says `so`.

    Raises
    ------
    SourceError
        When a topic does not exist, or no broker answers within so many seconds.
    """
    until, partitions = time.monotonic() + within_s, []
    for topic in topics:
        numbers = _metadata(connection, topic, until, so)
        partitions += [(topic, number) for number in sorted(numbers)]
    return partitions


def _metadata(connection: Connection, topic: str, until: float, so: str) -> Mapping[int, Any]:
    client, made = admin(connection), min(until, time.monotonic() + _MADE_S)
    while True:
        try:
            answer = client.list_topics(topic, timeout=min(_ASK_S, max(until - time.monotonic(), 0.1))).topics[topic]
        except kafka().KafkaException as problem:
            if time.monotonic() > until:
                hint = "see that the broker runs and can be reached, and that security options fit"
                raise connection.failed("no Kafka broker answers", problem, hint, so) from None
            continue
        if answer.error is None:
            partitions: Mapping[int, Any] = answer.partitions
            return partitions
        unknown = answer.error.code() == kafka().KafkaError.UNKNOWN_TOPIC_OR_PART
        if not (answer.error.retriable() or unknown) or time.monotonic() > (made if unknown else until):
            raise _no_topic(connection, topic, answer.error, so)
        time.sleep(0.1)


def matching(connection: Connection, pattern: str, within_s: float) -> list[str]:
    """Return the topics whose names begin as a regular expression says, as consumers of librdkafka match them.

    Topics of the broker itself, which begin with two underscores, belong only to a pattern that begins so.

    Raises
    ------
    SourceError
        When no broker answers within so many seconds.
    """
    until, own = time.monotonic() + within_s, pattern.startswith("^__")
    while True:
        try:
            topics = admin(connection).list_topics(timeout=min(_ASK_S, max(until - time.monotonic(), 0.1))).topics
            return sorted(name for name in topics if re.match(pattern, name) and (own or not name.startswith("__")))
        except kafka().KafkaException as problem:
            if time.monotonic() > until:
                hint = "see that the broker runs and can be reached, and that security options fit"
                raise connection.failed("no Kafka broker answers", problem, hint) from None


def _no_topic(connection: Connection, topic: str, error: Any, so: str) -> SourceError:
    got = f"{topic!r} at {connection.servers}: {error.str()}"
    hint = "create it, or see how its name is written and whether you may read it"
    passes = error_passes(error)  # a topic may be made, or its broker has not heard of it yet
    return NoTopicError("a topic cannot be read", got=got, then=so, hint=hint, transient=passes)


def _check_partitions(places: Iterable[Place], there: list[Place]) -> None:
    """Refuse partitions that a topic does not have any more: nothing but a new topic of the same name has fewer."""
    for topic, number in places:
        if (topic, number) not in there:
            n = sum(place[0] == topic for place in there)
            raise SourceError(
                "a topic has fewer partitions than before: it was deleted and made again",
                got=f"{topic} has {n}, and partition {number} was read",
                then="its offsets mean other records than those that were read",
                hint="begin with a new checkpoint; what the old topic held and was not read is lost",
            )


def offsets(connection: Connection, places: Mapping[Place, When], within_s: float, *, uncommitted: bool = False) -> Offsets:
    """Offsets of partitions; of a time after the last record, the one after the last.

    The last one is that before the first open transaction, but for `uncommitted` ones and where those are read.

    Raises
    ------
    SourceError
        When a partition does not exist, or no broker answers within so many seconds.
    """
    module, spec = kafka(), admin_module().OffsetSpec
    specs = {"earliest": spec.earliest(), "latest": spec.latest()}
    committed = not uncommitted and _reads_committed(connection)
    level = module.IsolationLevel.READ_COMMITTED if committed else module.IsolationLevel.READ_UNCOMMITTED
    until = time.monotonic() + within_s
    request = {
        module.TopicPartition(*place): specs[when] if isinstance(when, str) else spec.for_timestamp(when)
        for place, when in places.items()
    }
    while request:
        try:
            answer = admin(connection).list_offsets(request, isolation_level=level, request_timeout=_ASK_S)
            by_partition = {(p.topic, p.partition): future.result(timeout=_ASK_S + 1).offset for p, future in answer.items()}
            break
        except (module.KafkaException, NoAnswer) as problem:
            if time.monotonic() > until:
                hint = "see that the broker runs, and that all partitions of the topics have a leader"
                raise connection.failed("the offsets of a topic are not known", problem, hint) from None
            there = partitions(connection, {topic for topic, _ in places}, max(until - time.monotonic(), 0.1))
            _check_partitions(places, there)
    else:
        return {}
    without_offset = {place: "latest" for place, offset in by_partition.items() if offset < 0}
    last = offsets(connection, without_offset, within_s, uncommitted=uncommitted) if without_offset else {}  # type: ignore[arg-type]  # a literal
    return {place: last.get(place, offset) for place, offset in by_partition.items()}


def _reads_committed(connection: Connection) -> bool:
    return dict(connection.settings).get("isolation.level", "read_committed") == "read_committed"


def wait_for_commits(connection: Connection, places: Iterable[Place], within_s: float) -> None:
    """Wait until all that was committed before this call can be read; for transactions that stay open, 5 seconds.

    The answer comes before the broker has written it into the partitions. Until then their records cannot be read.

    Raises
    ------
    SourceError
        When no broker answers within so many seconds.
    """
    if not _reads_committed(connection):
        return
    until, open_ = time.monotonic() + _OPEN_S, offsets(connection, dict.fromkeys(places, "latest"), within_s, uncommitted=True)
    while True:
        now = offsets(connection, dict.fromkeys(open_, "latest"), within_s)
        open_ = {place: end for place, end in open_.items() if now[place] < end}
        if not open_ or time.monotonic() > until:
            return
        time.sleep(0.05)


def identities(connection: Connection, topics: Iterable[str], within_s: float) -> dict[str, str]:
    """Return what tells topics from others of the same name, made before or after; brokers before Kafka 2.8 do not say it.

    Raises
    ------
    SourceError
        When a topic does not exist, or no broker answers within so many seconds.
    """
    module, names, until = kafka(), list(topics), time.monotonic() + within_s
    if not names:
        return {}
    while True:
        try:
            answer = admin(connection).describe_topics(module.TopicCollection(names), request_timeout=_ASK_S)
            ids = {topic: future.result(timeout=_ASK_S + 1).topic_id for topic, future in answer.items()}
            break
        except (module.KafkaException, NoAnswer) as problem:
            if time.monotonic() > until:
                raise connection.failed("the topics are not known", problem, "see that the broker runs") from None
            partitions(connection, names, max(until - time.monotonic(), 0.1))
            time.sleep(0.1)
    known = {topic: id_ for topic, id_ in ids.items() if id_ is not None}
    return {
        topic: str(id_) for topic, id_ in known.items() if id_.get_most_significant_bits() or id_.get_least_significant_bits()
    }


def _new_committer(connection: Connection, group: str) -> Any:
    module = kafka()

    def done(error: Any, _places: Any) -> None:
        if error is not None:
            text = f"offsets are not committed for the group {group!r}: {connection.clean(error.str())}"
            warnings.warn(f"{text}. Hint: the query goes on; see to the rights of its user", RuntimeWarning, stacklevel=2)

    return module.Consumer({**connection.config(group_id=group, enable_auto_commit="false"), "on_commit": done})


_committer = PooledClients(_new_committer, end=lambda consumer: consumer.close())


def commit(connection: Connection, group: str, offsets: Offsets) -> None:
    """Commit offsets in the name of a group, in the background: only monitors read them."""
    module = kafka()
    try:
        consumer = _committer(connection, group)
    except module.KafkaException as problem:
        what = f"offsets are not committed for the group {group!r}"
        warnings.warn(
            str(connection.failed(what, problem, "the query goes on", "monitors see old ones")), RuntimeWarning, stacklevel=2
        )
        return
    consumer.poll(0)
    consumer.commit(offsets=[module.TopicPartition(*place, offset) for place, offset in offsets.items()], asynchronous=True)
