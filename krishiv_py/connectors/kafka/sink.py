"""A topic as a sink: results, late rows, change logs; each batch is a transaction with its own note inside."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.connectors import json_texts
from krishiv_py.connectors.kafka.client import (
    Connection,
    Option,
    brokers,
    check_promise,
    connection,
    error_passes,
    kafka,
    partitions,
)
from krishiv_py.connectors.kafka.formats import encoding
from krishiv_py.connectors.sink import OnRepeat, OutputBatch, OutputName, TransactionalSink
from krishiv_py.connectors.tables import changes
from krishiv_py.connectors.tables.keys import OP, is_log
from krishiv_py.errors import RAISED, OperatorError, PlanError, SourceError, shown
from krishiv_py.plan.checks import a_switch, a_text, known_column, one_of, wait_us
from krishiv_py.storage.datasets import Dataset
from krishiv_py.types import type_text

if TYPE_CHECKING:
    from krishiv_py.connectors.kafka.formats.encoding import Encode, SinkFormat


_POLL_S: Final = 0.1
_CALL_S: Final = 6.0
"""A broker that runs answers a transactional call sooner. A user may wait for longer: then another producer is made."""
_OVERRUN_S: Final = 1.0
_OPEN_MS: Final = "300000"
"""The time that a transaction may be open. A restarted query ends at once what the one before it left open."""


_AGAIN: Final = "see to the broker and to the rights of the user, then start the query again: it goes on with this batch"
_HINTS: Final = {
    "MSG_SIZE_TOO_LARGE": 'allow larger ones, with options={"message.max.bytes": ...} and max.message.bytes of the topic',
    "INVALID_RECORD": "a compacted topic takes no record without a key: name its columns with key=",
    "UNKNOWN_TOPIC_OR_PART": "make the topic again, then start the query again: it goes on with this batch",
    "_UNKNOWN_TOPIC": "make the topic again, then start the query again: it goes on with this batch",
    "TOPIC_AUTHORIZATION_FAILED": "give the user the right to write the topic",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "give the user the right to use transactional ids that begin with krishiv-",
    "GROUP_AUTHORIZATION_FAILED": "give the user the right to commit for groups that begin with krishiv-",
    "INVALID_TRANSACTION_TIMEOUT": "leave the option transaction.timeout.ms out, or make it no longer than the broker allows",
    "_FENCED": "another process goes on with this query; let one query run from a checkpoint",
    "_MSG_TIMED_OUT": "see to the broker, or allow more time with timeout=; started again, the query goes on with this batch",
}
"""Hints by the name of librdkafka's error."""
_FOLLOWING: Final = ("_PURGE_QUEUE", "_PURGE_INFLIGHT")
"""The errors of messages that a failed transaction did not send."""
_PASSING: Final = frozenset(
    {
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "REQUEST_TIMED_OUT",
        "UNSTABLE_OFFSET_COMMIT",
        "_TIMED_OUT",
        "_TRANSPORT",
        "_WAIT_COORD",
    }
)
"""Errors of a reader that pass: a broker that has just started gives them. Transactional calls say so themselves."""


Message: TypeAlias = tuple["bytes | None", "bytes | None", "list[tuple[str, bytes | None]]"]
"""A message to write: value, key, headers."""


class AwayError(OperatorError):
    """A broker does not answer. To connect again may help: see :meth:`Writer.open`."""


@attrs.define(eq=False)
class Writer:
    """Writes the batches of one output of a query to a topic.

    The note of the last batch is the committed offset of a consumer group that nobody reads with, number of the batch plus
    one, of partition 0 of the topic. It is committed inside the transaction, so both become visible at once, and readers of the
    topic see nothing of it.

    Attributes
    ----------
    name : str
        Names the output for good: the transactional id, and the group of the note.
    transactional : bool
        Whether batches are transactions.
    within_s : float
        How long to wait for the broker.
    """

    connection: Connection
    topic: str
    name: str
    transactional: bool
    within_s: float
    _producer: Any = None
    _group: Any = None
    _failed: list[Any] = attrs.field(factory=list)

    def open(self) -> None:
        """Connect; end what an earlier process left open, and refuse it whatever it still sends.

        A producer whose coordinator was away for a moment may never find it again (librdkafka up to 2.16 at least, its issue
        5511). So none is waited for for long: another one is made, until `within_s` is over.
        """
        self.find()
        module, waits = kafka(), str(int(self.within_s * 1_000))
        defaults = {"linger_ms": "5", "partitioner": "murmur2_random", "queue_buffering_max_messages": "500000"}
        if self.transactional:
            defaults |= {"transactional_id": self.name, "transaction_timeout_ms": _OPEN_MS}
        else:
            defaults |= {"enable_idempotence": "true", "delivery_timeout_ms": waits}
        config = {**_written(self.connection.config(**defaults)), "delivery.report.only.error": True}
        until = time.monotonic() + self.within_s
        while True:
            try:
                self._producer = module.Producer({**config, "on_delivery": self._delivered})
            except module.KafkaException as problem:
                failed = self.connection.failed("no producer can be made", problem, _AGAIN, "nothing can be written")
                raise OperatorError(str(failed)) from None
            if not self.transactional:
                return
            try:
                self._repeat(lambda: self._producer.init_transactions(self._call_s))
                break
            except AwayError:
                if time.monotonic() > until:
                    raise
        reads = self.connection.config(group_id=self.name, enable_auto_commit="false", isolation_level="read_committed")
        self._group = module.Consumer(reads)

    def find(self) -> None:
        """See that the topic is there.

        Raises
        ------
        OperatorError
            When it is not, or no broker answers.
        """
        try:
            partitions(self.connection, (self.topic,), self.within_s, "nothing can be written")
        except SourceError as problem:
            raise OperatorError(str(problem), transient=problem.transient) from None

    def last(self) -> int | None:
        """Number of the last batch whose transaction was committed."""
        lengths: list[int] = []
        self._repeat(lambda: lengths.append(self._noted()), _PASSING, self.within_s)
        return None if lengths[-1] < 0 else lengths[-1] - 1

    def _noted(self) -> int:
        """Return the committed offset, negative if there is none. What is not known yet must not look like none."""
        (committed,) = self._group.committed([kafka().TopicPartition(self.topic, 0)], self.within_s)
        if committed.error is not None:
            raise kafka().KafkaException(committed.error)
        return int(committed.offset)

    def begin(self) -> None:
        """Begin a transaction."""
        self._failed = []
        self._repeat(self._producer.begin_transaction)

    def write(self, messages: Iterable[Message]) -> None:
        """Hand messages over; they are sent in the background.

        Raises
        ------
        OperatorError
            For a message that is too large, and when the broker takes none for too long.
        """
        produce = self._producer.produce
        for value, key, headers in messages:
            full_s = 0.0
            while True:
                try:
                    produce(self.topic, value, key, headers=headers)
                    break
                except BufferError:
                    full_s = full_s or time.monotonic()
                    if time.monotonic() > full_s + self._call_s:
                        raise self._error(None, f"no message was taken within {self._call_s:g} s", AwayError) from None
                    self._heard(self._producer.poll, _POLL_S)
                except kafka().KafkaException as problem:
                    raise self._error(problem.args[0]) from None
        self._heard(self._producer.poll, 0)

    def _heard(self, call: Callable[[float], int], wait_s: float) -> int:
        """Let librdkafka report; of a fatal error, such as another process that goes on with the query, it tells here too."""
        try:
            return call(wait_s)
        except kafka().KafkaException as problem:
            raise self._error(problem.args[0]) from None

    def commit(self, batch_id: int) -> None:
        """Commit, together with the note of the batch.

        Raises
        ------
        AwayError
            When the broker does not answer; whether the batch is there, :meth:`last` says after :meth:`open`.
        OperatorError
            When it refuses.
        """
        place = kafka().TopicPartition(self.topic, 0, batch_id + 1)
        group = self._group.consumer_group_metadata()
        self._repeat(
            lambda: self._producer.send_offsets_to_transaction([place], group, self._call_s)
        )  # messages go out meanwhile
        self._drain()
        self._repeat(lambda: self._producer.commit_transaction(self._call_s))

    def abort(self) -> None:
        """Take back what was written since :meth:`begin`."""
        if self._producer is not None:
            try:
                self._in_time(lambda: self._producer.abort_transaction(self._call_s), self._call_s)
            except (kafka().KafkaException, OperatorError):
                self._producer = None  # fenced, or no broker: whoever comes next ends the transaction

    def flush(self) -> None:
        """Wait until everything is there.

        Raises
        ------
        OperatorError
            When a message was not taken.
        """
        left = self._heard(self._producer.flush, self.within_s + 1)
        if left or self._failed:
            raise self._error(None, f"{left} messages were not taken within {self.within_s:g} s")

    def close(self) -> None:
        """Forget the connections."""
        if self._group is not None:
            self._group.close()
        self._producer = self._group = None

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failed.append(error)

    @property
    def _call_s(self) -> float:
        """Return how long a call may take."""
        return min(self.within_s, _CALL_S) if self.transactional else self.within_s

    def _drain(self) -> None:
        """Wait until all messages have gone out, as long as they become fewer."""
        left, since = len(self._producer), time.monotonic()
        while left and not self._failed:
            now = self._heard(self._producer.flush, _POLL_S)
            if now < left:
                left, since = now, time.monotonic()
            elif time.monotonic() > since + self._call_s:
                raise self._error(None, f"{now} messages do not go out for {self._call_s:g} s", AwayError)

    def _repeat(self, call: Callable[[], Any], passing: Set[str] = frozenset(), within_s: float | None = None) -> None:
        """Make a call, and again while the broker says that this helps, or an error is one of those that pass."""
        within_s = self._call_s if within_s is None else within_s
        until = time.monotonic() + 0.9 * within_s
        while True:
            try:
                self._in_time(call, within_s)
                return
            except kafka().KafkaException as problem:
                error = problem.args[0]
                if not (error.retriable() or error.name() in passing):
                    raise self._error(error) from None
                if time.monotonic() > until:
                    raise self._error(error, kind=AwayError) from None
                time.sleep(_POLL_S)

    def _in_time(self, call: Callable[[], Any], within_s: float) -> None:
        """Make a call in a thread of its own, and give up the producer where librdkafka overruns the time it was given.

        It does so for as long as a transaction may be open, in `send_offsets_to_transaction`, when the broker goes away.
        """
        failed: list[BaseException] = []

        def run() -> None:
            try:
                call()
            except RAISED as problem:
                failed.append(problem)

        thread = threading.Thread(target=run, name="krishiv-kafka", daemon=True)
        thread.start()
        thread.join(within_s + _OVERRUN_S)
        if thread.is_alive():
            raise self._error(None, f"no answer within {within_s + _OVERRUN_S:g} s", AwayError)
        if failed:
            raise failed[0]

    def _error(self, error: Any, text: str = "", kind: type[OperatorError] = OperatorError) -> OperatorError:
        """Return what went wrong: a message that was not taken says it better than the transaction that it spoiled."""
        if self._producer is not None:
            with contextlib.suppress(kafka().KafkaException):  # a fatal one is reported again by whatever is asked
                self._producer.poll(0)
        if kind is AwayError and self.transactional:
            self._producer = None  # nothing more is asked of it
        failed, self._failed = [e for e in self._failed if error is None or e.name() not in _FOLLOWING], []
        error = failed[0] if failed else error
        said = text if error is None else self.connection.clean(error.str())
        got = f"topic {self.topic} at {self.connection.servers}: {said}"
        seen = "its rows are not visible" if self.transactional else "some of its rows may be there"
        hint = _AGAIN if error is None else _HINTS.get(error.name(), _AGAIN)
        passes = error is None or error_passes(error)
        return kind("Kafka did not take a batch", got=got, then=seen, hint=hint, transient=passes)


def _written(config: dict[str, Any]) -> dict[str, Any]:
    """Settings without those that only readers know."""
    return {name: value for name, value in config.items() if name != "isolation.level"}


_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def a_topic(value: object) -> str:
    """Return the name of a topic, as Kafka has them."""
    hint = 'pass the name of a topic: KafkaSink("results", ...)'
    text = a_text(value, "topic", hint)
    if not _NAME.fullmatch(text) or text in (".", ".."):
        got, hint = shown(text), "letters A to Z, digits, and . _ -; 249 at most"
        raise PlanError("Kafka has no topics of such a name", got=got, hint=hint)
    return text


def key_columns(value: object) -> tuple[str, ...]:
    """Return the columns of a key, each once."""
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


Guarantee: TypeAlias = Literal["exactly_once", "at_least_once"]
_AT_A_TIME: Final = 50_000
_OTHER_COLUMNS: Final = 2_000
"""Bytes of a message that are not its value."""


@attrs.define(eq=False)
class _Output:
    """One output of a query that is being written.

    Attributes
    ----------
    writer : Writer
        Its connection.
    columns : list of str
        Those of the value.
    encode : callable or None
        What makes a value of a row; None of Arrow, where a value is many rows.
    rows : int
        How many rows of the batch were written.
    waiting : list of pyarrow.Table
        The rows of the batch that are folded when all of them are there.
    """

    writer: Writer
    columns: list[str]
    encode: Encode | None
    rows: int = 0
    waiting: list[pa.Table] = attrs.field(factory=list)


class _Outputs(dict[tuple[str, str], _Output]):
    """Outputs by query and name. They stay behind when a sink is copied to another process."""

    def __reduce__(self) -> tuple[type[_Outputs], tuple[()]]:
        return _Outputs, ()


class KafkaSink(TransactionalSink):
    """Writes rows to a topic of Kafka, exactly once (docs/kafka.md). Needs the extra ``kafka``.

    Each micro-batch is one transaction. The note that it was published is committed inside the transaction, as the offset of a
    consumer group, so a batch that is published again is recognised. Consumers must read with
    ``isolation.level=read_committed``. Every record has the headers ``krishiv-query``, ``krishiv-output``, ``krishiv-batch``
    and ``krishiv-row``, the number of the row in the batch.

    Parameters
    ----------
    topic : str
        The topic. It must exist.
    bootstrap_servers : str
        ``host:port``, several separated by commas.
    key : str or sequence of str, optional
        The columns of the key. One column is written as text (bytes as they are), several as a JSON object. Equal keys go to
        one partition, the same as with Java's producer.
    format : {"json", "avro", "protobuf", "arrow", "bytes"}
        How values are written: a JSON object, an Avro record or a protobuf message of all columns; Arrow IPC streams of many
        rows each; or the one column `value` (text or binary) as it is. Arrow takes no `key`, `headers` and `upsert`: rows have
        these.
    value : str, optional
        For ``format="bytes"``: the column that is the value.
    avro_schema : str, optional
        JSON text of the record schema that values are written with. By default it follows from the columns; each may be
        null.
    avro_references : mapping of str to (str, int), optional
        Types that `avro_schema` uses and does not define: the full name of each, and the name and version of its schema in the
        registry. They are looked up at the start, and the schema is registered with these references.
    protobuf_message : generated class or (path, str), optional
        The type of protobuf values, as for :meth:`krishiv_py.Session.read_kafka`. Every column must be a field; nulls
        are left out.
    schema_registry : str or mapping, optional
        Address of a registry, or settings of its client with ``url``: the schema is registered as ``<topic>-value``, and values
        begin with its number. Without it, they do not.
    headers : mapping of str to str, optional
        More headers: their names, and the columns they have.
    upsert : bool
        For a compacted topic: a row takes the place of the one with the same key. Of each batch the last row of a key is
        written, without ``op``; where a change log (column ``op``) withdraws it (``-U``, ``-D``), a tombstone. Needs a key
        without nulls.
    delivery : {"exactly_once", "at_least_once"}
        With or without transactions.
    timeout : str
        How long to wait for a broker before the query fails.
    options : mapping, optional
        Settings of librdkafka. Values of secret ones are never shown. ``oauth_cb`` is a function that returns tokens.

    Raises
    ------
    PlanError
        For arguments that mean nothing, and for options that the library sets itself.
    MissingExtraError
        When confluent-kafka, or what the format needs, is not installed.

    Examples
    --------
    >>> from krishiv_py import KafkaSink
    >>> KafkaSink("totals", bootstrap_servers="localhost:9092", key=["user", "window_start"], upsert=True)
    KafkaSink('totals', Connection(servers='localhost:9092', settings={}, oauth=None), exactly_once)
    >>> KafkaSink("totals", bootstrap_servers="localhost:9092", delivery="at_least_once").on_repeat
    'at_least_once'
    """

    __slots__ = ("_connection", "_guarantee", "_headers", "_key", "_outputs", "_upsert", "_values", "_within_s", "topic")

    def __init__(
        self,
        topic: str,
        *,
        bootstrap_servers: str,
        key: str | Sequence[str] | None = None,
        format: SinkFormat = "json",  # noqa: A002  # the name of the setting everywhere
        value: str | None = None,
        avro_schema: str | None = None,
        avro_references: Mapping[str, tuple[str, int]] | None = None,
        protobuf_message: Any = None,
        schema_registry: str | Mapping[str, str | int | float | bool] | None = None,
        headers: Mapping[str, str] | None = None,
        upsert: bool = False,
        delivery: Guarantee = "exactly_once",
        timeout: str = "60 s",
        options: Mapping[str, Option] | None = None,
    ) -> None:
        kafka()
        self.topic: str = a_topic(topic)
        self._connection: Connection = connection(brokers(bootstrap_servers), options, oauth=True)
        self._key = key_columns(key)
        self._values = encoding.values_of(format, value, avro_schema, protobuf_message, schema_registry, avro_references)
        self._headers = header_columns(headers)
        self._upsert = a_switch(upsert, "upsert")
        if self._upsert and not self._key:
            hint = 'name the columns of the key: key=["user", "window_start"]'
            raise PlanError("`upsert` needs a key", got="no key", hint=hint)
        if format == "arrow" and (key is not None or headers is not None or upsert):
            hint = 'leave `key`, `headers` and `upsert` out, or write one row a value: format="avro"'
            raise PlanError("a value of Arrow is many rows", got="a key or headers", hint=hint)
        one_of(delivery, "delivery", ("exactly_once", "at_least_once"))
        self._guarantee: Guarantee = delivery
        check_promise(self._connection.settings, transactions=delivery == "exactly_once")
        self._within_s = wait_us(timeout, "timeout") / 1_000_000
        self._outputs = _Outputs()

    def __repr__(self) -> str:
        return f"KafkaSink({self.topic!r}, {self._connection!r}, {self._guarantee})"

    @property
    def on_repeat(self) -> OnRepeat:  # type: ignore[override]  # follows from what was given
        """Return what happens to a batch that is published again."""
        return "skip" if self._guarantee == "exactly_once" else "at_least_once"

    @property
    def key(self) -> tuple[str, ...]:  # type: ignore[override]  # follows from what was given
        """Return the columns of which the topic has one row; none where all rows are records.

        Examples
        --------
        >>> from krishiv_py import KafkaSink
        >>> KafkaSink("totals", bootstrap_servers="localhost:9092", key="user", upsert=True).key
        ('user',)
        """
        return self._key if self._upsert else ()

    @property
    def title(self) -> str:
        """Return what errors and plans call it."""
        return f"KafkaSink {self.topic}"

    def dataset(self) -> Dataset:
        """Return the name of the topic."""
        return self._connection.dataset(self.topic)

    def check(self, output: OutputName, schema: pa.Schema) -> None:
        """Refuse columns of the `schema` of an `output` that cannot be written, and a topic that is not there.

        Raises
        ------
        ColumnError, PlanError
            For columns that there are not, or that the format does not have.
        OperatorError
            When there is no such topic, or no broker answers.
        """
        self._check(schema)
        Writer(self._connection, self.topic, self.title, False, self._within_s).find()

    def last_committed(self, batch: OutputBatch) -> int | None:
        """Connect, and read the note of the last transaction of this query and output of `batch`."""
        self._check(batch.schema)
        writer_id = (batch.query_id, batch.output)
        if (before := self._outputs.pop(writer_id, None)) is not None:
            before.writer.close()
        columns = self._columns(batch.schema)
        described = pa.schema([batch.schema.field(name) for name in columns])
        encode = None if self._values.format == "arrow" else self._values.encoder(self.topic, described)
        exactly = self._guarantee == "exactly_once"
        writer = Writer(self._connection, self.topic, f"krishiv-{batch.query_id}-{batch.output}", exactly, self._within_s)
        writer.open()
        self._outputs[writer_id] = _Output(writer, columns, encode)
        return writer.last() if exactly else None

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """Run the transaction of one `batch` with the rows of `tables`; again over a new connection if a broker went away."""
        until = time.monotonic() + self._within_s
        while True:
            try:
                super().write_tables(batch, tables)
                return
            except AwayError:
                if self._guarantee != "exactly_once" or time.monotonic() > until:
                    raise
            last = self.last_committed(batch)
            if last is not None and last >= batch.batch_id:  # it was committed, but the answer did not arrive
                return

    def begin(self, batch: OutputBatch) -> None:
        """Begin the transaction of a `batch`."""
        output = self._output(batch)
        output.rows, output.waiting = 0, []
        if self._guarantee == "exactly_once":
            output.writer.begin()

    def write(self, batch: OutputBatch, table: pa.Table) -> None:
        """Add the rows of `table` to the transaction of this `batch`; with `upsert` once all rows of it are there."""
        if self._upsert:
            self._output(batch).waiting.append(table)
        else:
            self._write(batch, table)

    def _write(self, batch: OutputBatch, table: pa.Table) -> None:
        output = self._output(batch)
        for part in table.combine_chunks().to_batches(max_chunksize=_AT_A_TIME):
            rows = pa.Table.from_batches([part])
            if output.encode is None:
                messages = self._streams(batch, rows.select(output.columns), output.rows)
            else:
                messages = self._messages(batch, rows, output.encode(rows.select(output.columns)), output.rows)
            output.writer.write(messages)
            output.rows += part.num_rows

    def commit(self, batch: OutputBatch) -> None:
        """Make the rows visible, together with the note of this `batch`."""
        output = self._output(batch)
        if output.waiting:
            rows, output.waiting = pa.concat_tables(output.waiting), []
            self._write(batch, changes.last_lines(rows, self._key, self.title))
        writer = output.writer
        if self._guarantee == "exactly_once":
            writer.commit(batch.batch_id)
        else:
            writer.flush()

    def abort(self, batch: OutputBatch) -> None:
        """Take back what was written of this `batch`, where there are transactions."""
        self._output(batch).waiting = []
        if self._guarantee == "exactly_once":
            self._output(batch).writer.abort()

    def _output(self, batch: OutputBatch) -> _Output:
        return self._outputs[batch.query_id, batch.output]

    def _columns(self, schema: pa.Schema) -> list[str]:
        """Return the columns of the value."""
        if self._values.column is not None:
            return [self._values.column]
        return [name for name in schema.names if not (self._upsert and name == OP and is_log(schema))]

    def _check(self, schema: pa.Schema) -> None:
        """Refuse columns that there are not."""
        where = f"{self.title}: "
        for name in self._key:
            known_column(name, schema.names, f"{where}key")
        for _, name in self._headers:
            known_column(name, schema.names, f"{where}headers")
        if self._values.column is not None:
            known_column(self._values.column, schema.names, f"{where}value")
            type_ = schema.field(self._values.column).type
            if not (pa.types.is_string(type_) or pa.types.is_binary(type_)):
                name, hint = self._values.column, 'use format="json"'
                if not (pa.types.is_nested(type_) or pa.types.is_duration(type_)):
                    hint = f'write .with_column({name!r}, col({name!r}).cast("string")), or use format="json"'
                raise PlanError(f"{where}a value is text or binary", got=type_text(type_), hint=hint)
        encoding.check_texts(pa.schema([schema.field(n) for n in (*self._key, *(c for _, c in self._headers))]), self.title)
        self._values.check(pa.schema([schema.field(name) for name in self._columns(schema)]), self.title)

    def _messages(self, batch: OutputBatch, table: pa.Table, values: list[bytes | None], first: int) -> Iterator[Message]:
        """Return the messages of rows; withdrawals are tombstones. None is kept: a garbage collection takes long."""
        n = table.num_rows
        ops = ["+I"] * n
        if self._upsert and is_log(table.schema):
            changes.check_marks(table.column(OP).combine_chunks())
            ops = table.column(OP).to_pylist()
        keys, own = self._keys(table), _own_headers(batch)
        columns = [[(name, v) for v in encoding.as_bytes(_text(table.column(c), c))] for name, c in self._headers]
        more: list[tuple[Any, ...]] = list(zip(*columns, strict=True)) if columns else [()] * n
        gone = changes.WITHDRAWN
        return (
            (None if ops[i] in gone else values[i], keys[i], [*own, ("krishiv-row", b"%d" % (first + i)), *more[i]])
            for i in range(n)
        )

    def _streams(self, batch: OutputBatch, table: pa.Table, first: int) -> Iterator[Message]:
        """Messages of many rows each, none larger than what the broker takes."""
        limit = dict(self._connection.settings).get("message.max.bytes", "1000000")
        parts = encoding.messages_of_rows(table, int(limit) - _OTHER_COLUMNS)
        own = _own_headers(batch)
        return ((value, None, [*own, ("krishiv-row", b"%d" % (first + begin))]) for value, begin in parts)

    def _keys(self, table: pa.Table) -> list[bytes | None]:
        if not self._key:
            return [None] * table.num_rows
        table = changes.one_form(table, self._key)
        if len(self._key) > 1:
            return encoding.as_bytes(json_texts.objects(table, self._key))
        keys = encoding.as_bytes(_text(table.column(self._key[0]), self._key[0]))
        if self._upsert and None in keys:
            hint = "name two columns or more, which are written as a JSON object with null"
            raise OperatorError(f"{self.title}: a row has no key", got=f"null in {self._key[0]!r}", hint=hint)
        return keys


def _text(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return a column as it is in a key or header: text and bytes as they are, other values as JSON writes them."""
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return column
    there = column.is_valid().to_pylist()
    written = [
        t.strip('"') if known else None for known, t in zip(there, json_texts.texts(column, name).to_pylist(), strict=True)
    ]
    return pa.chunked_array([written], pa.string())


def _own_headers(batch: OutputBatch) -> list[tuple[str, bytes | None]]:
    return [
        ("krishiv-query", batch.query_id.encode()),
        ("krishiv-output", batch.output.encode()),
        ("krishiv-batch", str(batch.batch_id).encode()),
    ]
