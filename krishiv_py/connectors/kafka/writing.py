"""Producers of a sink: one for each output of a query, with or without transactions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import attrs

from krishiv_py.connectors.kafka.client import kafka, partitions
from krishiv_py.connectors.kafka.settings import Connection
from krishiv_py.errors import OperatorError, message

_POLL_S: Final = 0.1
_OPEN_MS: Final = "300000"
"""How long a transaction may be open. A restarted query ends at once what the one before it left open."""


Message: TypeAlias = tuple["bytes | None", "bytes | None", "list[tuple[str, bytes | None]]"]
"""What is written: value, key, headers."""


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
    _failed: list[str] = attrs.field(factory=list)

    def open(self) -> None:
        """Connect; end what an earlier process left open, and refuse it whatever it still sends."""
        partitions(self.connection, (self.topic,), self.within_s)
        module, waits = kafka(), str(int(self.within_s * 1_000))
        told = {"linger_ms": "5", "partitioner": "murmur2_random", "queue_buffering_max_messages": "500000"}
        if not self.transactional:
            told |= {"enable_idempotence": "true", "delivery_timeout_ms": waits}
            config = _written(self.connection.config(**told))
            self._producer = module.Producer({**config, "delivery.report.only.error": True, "on_delivery": self._delivered})
            return
        own = {"transactional_id": self.name, "transaction_timeout_ms": _OPEN_MS}
        self._producer = module.Producer(_written(self.connection.config(**told, **own)))
        self._repeat(lambda: self._producer.init_transactions(self.within_s))
        reads = self.connection.config(group_id=self.name, enable_auto_commit="false", isolation_level="read_committed")
        self._group = module.Consumer(reads)

    def last(self) -> int | None:
        """Number of the last batch whose transaction was committed."""
        asked = [kafka().TopicPartition(self.topic, 0)]
        found: list[Any] = []
        self._repeat(lambda: found.extend(self._group.committed(asked, self.within_s)))
        return None if found[0].offset < 0 else int(found[0].offset) - 1

    def begin(self) -> None:
        """Begin a transaction."""
        self._repeat(self._producer.begin_transaction)

    def write(self, messages: Sequence[Message]) -> None:
        """Hand messages over; they are sent in the background."""
        produce, poll = self._producer.produce, self._producer.poll
        for value, key, headers in messages:
            while True:
                try:
                    produce(self.topic, value, key, headers=headers)
                    break
                except BufferError:
                    poll(_POLL_S)
        poll(0)

    def commit(self, batch_id: int) -> None:
        """Commit, together with the note of the batch."""
        place = kafka().TopicPartition(self.topic, 0, batch_id + 1)
        group = self._group.consumer_group_metadata()
        self._repeat(lambda: self._producer.send_offsets_to_transaction([place], group, self.within_s))
        self._repeat(lambda: self._producer.commit_transaction(self.within_s))

    def abort(self) -> None:
        """Take back what was written since :meth:`begin`."""
        if self._producer is not None:
            try:
                self._producer.abort_transaction(self.within_s)
            except kafka().KafkaException:
                self._producer = None  # fenced, or no broker: whoever comes next ends the transaction

    def flush(self) -> None:
        """Wait until everything is there.

        Raises
        ------
        OperatorError
            When a message was not taken.
        """
        left = self._producer.flush(self.within_s + 1)
        if left or self._failed:
            failed, self._failed = self._failed, []
            raise self._error(failed[0] if failed else f"{left} messages were not taken within {self.within_s:g} s")

    def close(self) -> None:
        """Forget the connections."""
        if self._group is not None:
            self._group.close()
        self._producer = self._group = None

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failed.append(self.connection.clean(error.str()))

    def _repeat(self, call: Callable[[], Any]) -> None:
        """Make a call, and again while the broker says that this helps."""
        until = time.monotonic() + self.within_s
        while True:
            try:
                call()
                return
            except kafka().KafkaException as problem:
                error = problem.args[0]
                if not error.retriable() or time.monotonic() > until:
                    raise self._error(self.connection.clean(error.str())) from None
                time.sleep(_POLL_S)

    def _error(self, text: str) -> OperatorError:
        got = f"topic {self.topic} at {self.connection.servers}: {text}"
        hint = "see to the broker and to the rights of the user, then start the query again: it goes on with this batch"
        return OperatorError(message("Kafka did not take a batch", got, "its rows are not visible", hint))


def _written(config: dict[str, str | int | float | bool]) -> dict[str, str | int | float | bool]:
    """Settings without those that only readers know."""
    return {name: value for name, value in config.items() if name != "isolation.level"}
