"""A range of offsets as rows: fetched by librdkafka, decoded, with the columns next to the value. Runs in tasks."""

from __future__ import annotations

import contextlib
import functools
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.kafka.client import Connection, NoTopicError, kafka, partitions
from krishiv_py.connectors.kafka.formats import avro, decoding, protobuf
from krishiv_py.connectors.kafka.formats.decoding import Decode, Decoded, decode_json, decode_registered_json
from krishiv_py.connectors.kafka.source import meta_column
from krishiv_py.connectors.source import Malformed
from krishiv_py.errors import SourceError

if TYPE_CHECKING:
    from krishiv_py.connectors.kafka.source import KafkaSource


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


_PIECE: Final = 32 << 20
"""Bytes of Arrow that are decoded at a time."""


def rows(
    source: KafkaSource, topic: str, partition: int, begin: int, end: int, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch | Malformed]:
    """Yield the rows of a range, and the records that are none."""
    wanted = [name for name in source.known if name in columns]
    schema = pa.schema([source.schema.field(name) for name in wanted])
    decode = _decoder(source, schema) if wanted or source.value_format == "arrow" else None
    pass_over = source.on_lost == "warn"
    fetched = records(
        source.connection, topic, partition, begin, end, source.within_s, pass_over=pass_over, may_go=source.may_go
    )
    for messages in _pieces(source, fetched):
        decoded = None if decode is None else decode([m.value() for m in messages])
        bad = dict(decoded.bad) if decoded is not None else {}
        bad |= _bad_keys(source, messages, columns, bad)
        keys, bad_keys = _decoded_keys(source, [m.key() for m in messages], columns)
        bad = bad_keys | bad
        if bad:
            keep = pa.array([i not in bad for i in range(len(messages))])
            keys = {name: array.filter(keep) for name, array in keys.items()}
            for i in sorted(bad):
                m = messages[i]
                yield Malformed(
                    topic=topic, partition=partition, offset=m.offset(), key=m.key(), value=m.value(), problem=bad[i]
                )
            decoded = _without(decoded, bad, len(messages))
            messages = [m for i, m in enumerate(messages) if i not in bad]
        if messages:
            arrays = {name: decoded.batch.column(name) for name in wanted} if decoded is not None else {}
            for what, name in source.meta:
                if name in columns:
                    keys[name] = meta_column(what, source.schema.field(name).type, messages, topic, partition)
            for name, decoded_key in keys.items():
                arrays[name] = (
                    decoded_key if decoded is None or decoded.counts is None else _repeated(decoded_key, decoded.counts)
                )
            kept = [name for name in source.schema.names if name in arrays]
            yield pa.RecordBatch.from_arrays([arrays[n] for n in kept], names=kept)


def _pieces(source: KafkaSource, chunks: Iterator[list[Any]]) -> Iterator[list[Any]]:
    """Chunks of records; of Arrow, where a record is many rows, no more bytes at a time than fit into memory well."""
    for messages in chunks:
        if source.value_format != "arrow":
            yield messages
            continue
        begin, size = 0, 0
        for i, m in enumerate(messages):
            size += len(m.value() or b"")
            if size > _PIECE:
                yield messages[begin : i + 1]
                begin, size = i + 1, 0
        if begin < len(messages):
            yield messages[begin:]


def _repeated(column: pa.Array, counts: npt.NDArray[np.int64]) -> pa.Array:
    """Return a value of `column` for each row of its record."""
    return column.take(pa.array(np.repeat(np.arange(len(column)), counts)))


def _decoder(source: KafkaSource, schema: pa.Schema) -> Decode:
    if source.value_format == "bytes":
        return functools.partial(_plain, schema)
    if source.value_format == "arrow":
        return functools.partial(decoding.decode_arrow, schema)
    if source.value_format == "avro":
        return functools.partial(
            avro.decode_avro, schema, source.registry, source.avro_schema, reader=source.avro_reader_schema
        )
    if source.value_format == "protobuf":
        assert source.protobuf is not None
        return functools.partial(protobuf.decode_protobuf, schema, source.protobuf, source.registry)
    if source.registry is not None:
        return functools.partial(decode_registered_json, schema, source.known, source.registry)
    return functools.partial(decode_json, schema, source.known)


def _plain(schema: pa.Schema, values: Sequence[bytes | None]) -> Decoded:
    return Decoded(pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=schema))


def _decoded_keys(
    source: KafkaSource, keys: list[bytes | None], columns: tuple[str, ...]
) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """Return the columns of keys, null where a record has no key, and the keys that are none by place."""
    wanted = [name for name in source.key_known if name in columns]
    if not wanted:
        return {}, {}
    schema = pa.schema([source.schema.field(name) for name in wanted])
    places = [i for i, key in enumerate(keys) if key is not None]
    there = [key for key in keys if key is not None]
    if source.key_format == "avro":
        registry = source.registry if source.avro_key_schema is None else None
        single = len(source.key_known) == 1
        decoded = avro.decode_avro(schema, registry, source.avro_key_schema, there, single=single)
    else:
        decoded = decode_json(schema, source.key_known, there)
    bad = {places[i]: f"its key: {why}" for i, why in decoded.bad}
    rows: list[int | None] = [None] * len(keys)
    for row, i in enumerate(i for i in places if i not in bad):
        rows[i] = row
    taken = decoded.batch.take(pa.array(rows, pa.int64()))
    return {name: taken.column(name) for name in wanted}, bad


def _bad_keys(source: KafkaSource, messages: list[Any], columns: tuple[str, ...], known: dict[int, str]) -> dict[int, str]:
    """Keys that are not text, where the text is read."""
    if source.key_format != "string" or not any(what == "key" and name in columns for what, name in source.meta):
        return {}
    bad = {}
    for i, m in enumerate(messages):
        key = m.key()
        if key is None or i in known or key.isascii():
            continue
        try:
            key.decode()
        except UnicodeDecodeError as problem:
            bad[i] = f"its key is not UTF-8 at byte {problem.start + 1}"
    return bad


def _without(decoded: Decoded | None, bad: dict[int, str], n: int) -> Decoded | None:
    """Return the rows without those of records that are bad for another reason than their value."""
    if decoded is None or len(bad) == len(decoded.bad):
        return decoded
    values = {i for i, _ in decoded.bad}
    kept = np.array([i not in bad for i in range(n) if i not in values], np.bool_)
    counts = decoded.counts
    whole = kept if counts is None else np.repeat(kept, counts)
    return Decoded(pc.filter(decoded.batch, pa.array(whole)), decoded.bad, None if counts is None else counts[kept])
