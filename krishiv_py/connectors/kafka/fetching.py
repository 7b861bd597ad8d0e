"""Records of a range of offsets, as librdkafka fetches them; consumers are kept for the life of a process."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Iterator
from typing import Any, Final

from krishiv_py.connectors.kafka.client import NoTopicError, kafka, partitions
from krishiv_py.connectors.kafka.settings import Connection
from krishiv_py.errors import SourceError

CHUNK: Final = 20_000
"""Records that are decoded at a time: more do not stay in the caches of a processor, and cost a quarter more."""
_WAIT_S: Final = 0.1
_LOOK_S: Final = 2.0
"""The time between two looks for a topic while nothing comes."""


_KEPT: Final = 4
_idle: dict[tuple[Connection, int], list[Any]] = {}
"""Consumers that nobody reads with, by connection and process. One reads one range at a time: it has one position."""


@contextlib.contextmanager
def _consumer(connection: Connection) -> Iterator[Any]:
    """A consumer for the time of the body, for nobody else."""
    waiting = _idle.setdefault((connection, os.getpid()), [])
    try:
        consumer = waiting.pop()
    except IndexError:
        consumer = _connected(connection)
    try:
        yield consumer
    finally:
        consumer.unassign()
        if len(waiting) < _KEPT:
            waiting.append(consumer)
        else:
            consumer.close()


def _connected(connection: Connection) -> Any:
    own = {
        "fetch_queue_backoff_ms": "5",
        "fetch_wait_max_ms": "20",  # what is asked for is there; a request that waits holds up the next range
        "max_partition_fetch_bytes": str(4 << 20),
        "enable_partition_eof": "true",
        "auto_offset_reset": "error",
        "enable_auto_commit": "false",
    }
    try:
        return kafka().Consumer(connection.config(group_id="krishiv", **own))
    except kafka().KafkaException as problem:
        raise connection.failed("a setting of Kafka is refused", problem, "see the settings of librdkafka") from None


def records(
    connection: Connection,
    topic: str,
    partition: int,
    begin: int,
    end: int,
    within_s: float,
    *,
    pass_over: bool = False,
    may_go: bool = False,
) -> Iterator[list[Any]]:
    """Yield the records from offset `begin` up to, but not including, `end`, in chunks of messages; none has an error.

    There may be fewer than offsets: markers of transactions and what compaction removed are not records. Expired ones
    are passed over with a warning where `pass_over` says so, and so is a topic that has gone, with `may_go`.

    Raises
    ------
    SourceError
        When records have expired, the topic has gone, or nothing comes within so many seconds.
    """
    if begin >= end:
        return
    module, where = kafka(), f"{topic}, partition {partition}"
    with _consumer(connection) as consumer:
        consumer.assign([module.TopicPartition(topic, partition, begin)])
        position, until, look = begin, time.monotonic() + within_s, time.monotonic() + _LOOK_S
        while position < end:
            messages = consumer.consume(min(CHUNK, end - position), timeout=_WAIT_S)
            kept = [m for m in messages if m.error() is None]
            if kept:
                position = kept[-1].offset() + 1
                while kept and kept[-1].offset() >= end:
                    kept.pop()
            if kept:
                yield kept
            if len(kept) < len(messages):
                for message in messages:
                    error = message.error()
                    if error is not None and error.code() == module.KafkaError._PARTITION_EOF:
                        position = max(position, message.offset())
                    elif error is not None and pass_over and _is_expired(error):
                        position = _passed_over(
                            consumer, where, module.TopicPartition(topic, partition), position, end, within_s
                        )
                    elif error is not None and may_go and error.code() in _unknown():
                        _warn_gone(where, end - position)
                        return
                    elif error is not None:
                        _check(connection, error, where, position, end)
            if messages:
                until, look = time.monotonic() + within_s, time.monotonic() + _LOOK_S
            elif may_go and time.monotonic() > look:  # librdkafka does not say for half a minute that a topic is unknown
                look = time.monotonic() + _LOOK_S
                if _has_gone(connection, topic):
                    _warn_gone(where, end - position)
                    return
            elif time.monotonic() > until:
                raise SourceError(
                    "records of a topic do not come",
                    got=f"{where}, offsets {position} to {end}, for {within_s:g} s",
                    then="the batch cannot be finished",
                    hint="see to the broker, then start the query again: it goes on with this batch",
                )


def _has_gone(connection: Connection, topic: str) -> bool:
    try:
        partitions(connection, [topic], _LOOK_S)
    except NoTopicError:
        return True
    except SourceError:  # no broker answers: whoever waits for records sees to that
        return False
    return False


def _unknown() -> tuple[Any, ...]:
    codes = kafka().KafkaError
    return codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION


def _warn_gone(where: str, missing: int) -> None:
    warnings.warn(f"topic {where} has gone before it was read: {missing} offsets are lost", RuntimeWarning, stacklevel=2)


def _is_expired(error: Any) -> bool:
    codes = kafka().KafkaError
    return bool(error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE))


def _passed_over(consumer: Any, where: str, place: Any, position: int, end: int, within_s: float) -> int:
    """Go on with the first record that is kept; its offset.

    Raises
    ------
    SourceError
        When the broker does not say which one it is, or it lies before: then it is not that records expired.
    """
    try:
        first, _ = consumer.get_watermark_offsets(place, timeout=within_s)
    except kafka().KafkaException:
        first = position
    if first <= position:
        raise expired(where, f"offset {position} of a batch up to {end}")
    warn_passed(where, min(first, end) - position, first)
    place.offset = first
    consumer.assign([place])
    return int(first)


def warn_passed(where: str, missing: int, first: int) -> None:
    """Say that records expired and are passed over."""
    warnings.warn(
        f"records of topic {where} expired before they were read: {missing} offsets are passed over, the next one is {first}. "
        "Hint: keep records for longer",
        RuntimeWarning,
        stacklevel=3,
    )


def _check(connection: Connection, error: Any, where: str, position: int, end: int) -> None:
    """Raise what will not pass by itself."""
    codes = kafka().KafkaError
    if _is_expired(error):
        raise expired(where, f"offset {position} of a batch up to {end}")
    if error.fatal() or error.code() in (
        *_unknown(),
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes._AUTHENTICATION,
        codes.SASL_AUTHENTICATION_FAILED,
    ):
        raise SourceError(
            "a topic can no longer be read",
            got=f"{where}, offset {position}: {connection.clean(error.str())}",
            then="the batch cannot be finished",
            hint="put the topic or the right to read it back, then start the query again; or begin with a new checkpoint",
        )


def expired(where: str, got: str) -> SourceError:
    """Return the error for records that are not kept any more."""
    return SourceError(
        f"records of topic {where} are not there any more",
        got=got,
        then="they were never read, and are lost",
        hint='keep them for longer; on_lost="warn" goes on with what is left',
    )
