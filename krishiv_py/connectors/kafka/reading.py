"""Records as rows: decoded, with the columns next to the value. Runs in tasks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.kafka.backlog import Times
from krishiv_py.connectors.kafka.client import Place
from krishiv_py.connectors.kafka.formats import avro, decoding, protobuf
from krishiv_py.connectors.kafka.formats.decoding import Decode, DecodedRows, decode_json, decode_registered_json
from krishiv_py.connectors.kafka.source import Tombstones, meta_column
from krishiv_py.connectors.source import Malformed

if TYPE_CHECKING:
    from krishiv_py.connectors.kafka.source import KafkaSource


_PIECE: Final = 32 << 20
"""Bytes of Arrow that are decoded at a time."""


def rows(
    source: KafkaSource, place: Place, fetched: Iterable[list[Any]], columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch | Malformed]:
    """Yield the rows in records of a partition, fetched in chunks, and the records that are none."""
    topic, partition = place
    wanted = [name for name in source.known if name in columns]
    schema = pa.schema([source.schema.field(name) for name in wanted])
    decode = _decoder(source, schema) if wanted or source.value_format == "arrow" else None
    for messages in _pieces(fetched) if source.value_format == "arrow" else fetched:
        decoded = None if decode is None else _decoded(decode, [m.value() for m in messages], source.tombstones)
        bad = dict(decoded.bad) if decoded is not None else {}
        bad |= _bad_keys(source, messages, columns, bad)
        keys, bad_keys = _decoded_keys(source, messages, columns)
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
        del messages  # before the next ones are fetched: until then no collection runs


def times(fetched: Iterable[list[Any]]) -> Times:
    """Return the offsets of records of a partition, and when they were written."""
    offsets, times = [], []
    for messages in fetched:
        offsets += [m.offset() for m in messages]
        times += [m.timestamp()[1] for m in messages]
        del messages  # before the next ones are fetched: until then no collection runs
    return np.array(offsets, np.int64), np.array(times, np.int64)


def _pieces(chunks: Iterable[list[Any]]) -> Iterator[list[Any]]:
    """Yield records of Arrow, which are many rows each, no more bytes at a time than fit into memory well."""
    for messages in chunks:
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


def _decoded(decode: Decode, values: list[bytes | None], tombstones: Tombstones) -> DecodedRows:
    """Return values as rows; tombstones are rows of nulls where they are asked for."""
    if tombstones == "malformed" or None not in values:
        return decode(values)
    places = [i for i, value in enumerate(values) if value is not None]
    decoded = decode([values[i] for i in places])
    bad = {places[i]: why for i, why in decoded.bad}
    good = iter(range(decoded.batch.num_rows))
    taken = [None if value is None else next(good) for i, value in enumerate(values) if i not in bad]
    return DecodedRows(decoded.batch.take(pa.array(taken, pa.int64())), tuple(sorted(bad.items())))


def _plain(schema: pa.Schema, values: Sequence[bytes | None]) -> DecodedRows:
    return DecodedRows(pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], schema=schema))


def _decoded_keys(
    source: KafkaSource, messages: list[Any], columns: tuple[str, ...]
) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """Return the columns of keys, null where a record has no key, and the keys that are none by place."""
    wanted = [name for name in source.key_known if name in columns]
    if not wanted:
        return {}, {}
    schema = pa.schema([source.schema.field(name) for name in wanted])
    keys: list[bytes | None] = [m.key() for m in messages]
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


def _without(decoded: DecodedRows | None, bad: dict[int, str], n: int) -> DecodedRows | None:
    """Return the rows without those of records that are bad for another reason than their value."""
    if decoded is None or len(bad) == len(decoded.bad):
        return decoded
    values = {i for i, _ in decoded.bad}
    kept = np.array([i not in bad for i in range(n) if i not in values], np.bool_)
    counts = decoded.counts
    whole = kept if counts is None else np.repeat(kept, counts)
    return DecodedRows(pc.filter(decoded.batch, pa.array(whole)), decoded.bad, None if counts is None else counts[kept])
