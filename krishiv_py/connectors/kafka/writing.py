"""Producers of a sink: one for each output of a query, with or without transactions."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence, Set
from typing import Any, Final, TypeAlias

import attrs

from krishiv_py.connectors.kafka.client import kafka, partitions
from krishiv_py.connectors.kafka.settings import Connection
from krishiv_py.errors import RAISED, OperatorError, SourceError

_POLL_S: Final = 0.1
_CALL_S: Final = 6.0
"""A broker that runs answers a transactional call sooner. A user may wait for longer: then another producer is made."""
_OVERRUN_S: Final = 1.0
_OPEN_MS: Final = "300000"
"""How long a transaction may be open. A restarted query ends at once what the one before it left open."""


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
"""What helps, by the name of librdkafka's error."""
_FOLLOWING: Final = ("_PURGE_QUEUE", "_PURGE_INFLIGHT")
"""Why messages were not taken that a transaction which failed left behind."""
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
"""What is written: value, key, headers."""


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
            raise OperatorError(str(problem)) from None

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

    def write(self, messages: Sequence[Message]) -> None:
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
        self._drain()
        place = kafka().TopicPartition(self.topic, 0, batch_id + 1)
        group = self._group.consumer_group_metadata()
        self._repeat(lambda: self._producer.send_offsets_to_transaction([place], group, self._call_s))
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
        return kind("Kafka did not take a batch", got=got, then=seen, hint=hint)


def _written(config: dict[str, Any]) -> dict[str, Any]:
    """Settings without those that only readers know."""
    return {name: value for name, value in config.items() if name != "isolation.level"}
