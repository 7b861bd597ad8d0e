"""Records of a range of offsets, as librdkafka fetches them; a consumer is kept for the life of a process."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator
from typing import Any, Final

from krishiv_py.connectors.kafka.client import kafka
from krishiv_py.connectors.kafka.settings import Connection
from krishiv_py.errors import SourceError, message

CHUNK: Final = 20_000
"""Records that are decoded at a time: more do not stay in the caches of a processor, and cost a quarter more."""
_WAIT_S: Final = 0.1


@functools.lru_cache(maxsize=4)
def _consumer(connection: Connection, _process: int) -> Any:
    own = {
        "fetch_queue_backoff_ms": "5",
        "max_partition_fetch_bytes": str(4 << 20),
        "enable_partition_eof": "true",
        "auto_offset_reset": "error",
        "enable_auto_commit": "false",
    }
    return kafka().Consumer(connection.config(group_id="krishiv", **own))


def records(connection: Connection, topic: str, partition: int, begin: int, end: int, within_s: float) -> Iterator[list[Any]]:
    """The records from offset `begin` up to, but not including, `end`, in chunks of messages; none has an error.

    There may be fewer than offsets: markers of transactions and what compaction removed are no records.

    Raises
    ------
    SourceError
        When records have expired, the topic has gone, or nothing comes within so many seconds.
    """
    if begin >= end:
        return
    module = kafka()
    try:
        consumer = _consumer(connection, os.getpid())
        consumer.assign([module.TopicPartition(topic, partition, begin)])
    except module.KafkaException as problem:
        raise connection.failed("a setting of Kafka is refused", problem, "see the settings of librdkafka") from None
    at, until = begin, time.monotonic() + within_s
    try:
        while at < end:
            found = consumer.consume(min(CHUNK, end - at), timeout=_WAIT_S)
            kept = [m for m in found if m.error() is None]
            if kept:
                at = kept[-1].offset() + 1
                while kept and kept[-1].offset() >= end:
                    kept.pop()
            if kept:
                yield kept
            if len(kept) < len(found):
                for told in found:
                    error = told.error()
                    if error is not None and error.code() == module.KafkaError._PARTITION_EOF:
                        at = max(at, told.offset())
                    elif error is not None:
                        _check(connection, error, f"{topic}, partition {partition}", at, end)
            if found:
                until = time.monotonic() + within_s
            elif time.monotonic() > until:
                raise SourceError(
                    message(
                        "records of a topic do not come",
                        f"{topic}, partition {partition}, offsets {at} to {end}, for {within_s:g} s",
                        "the batch cannot be finished",
                        "see to the broker, then start the query again: it goes on with this batch",
                    )
                )
    finally:
        consumer.unassign()


def _check(connection: Connection, error: Any, where: str, at: int, end: int) -> None:
    """Raise what will not pass by itself."""
    codes = kafka().KafkaError
    if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
        raise expired(where, f"offset {at} of a batch up to {end}")
    if error.fatal() or error.code() in (
        codes.UNKNOWN_TOPIC_OR_PART,
        codes._UNKNOWN_PARTITION,
        codes._UNKNOWN_TOPIC,
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes._AUTHENTICATION,
        codes.SASL_AUTHENTICATION_FAILED,
    ):
        raise SourceError(
            message(
                "a topic can no longer be read",
                f"{where}, offset {at}: {connection.clean(error.str())}",
                "the batch cannot be finished",
                "put the topic or the right to read it back, then start the query again; or begin with a new checkpoint",
            )
        )


def expired(where: str, got: str) -> SourceError:
    """The error for records that are not kept any more."""
    return SourceError(
        message(
            f"records of topic {where} are not there any more",
            got,
            "they were never read, and are lost",
            'keep them for longer; on_lost="warn" goes on with what is left',
        )
    )
