"""Columns next to the value of a record: key, time, headers, place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa

Meta: TypeAlias = Literal["key", "timestamp", "headers", "topic", "partition", "offset", "source"]
KeyFormat: TypeAlias = Literal["string", "bytes", "json", "avro"]
TIME: Final = pa.timestamp("us", "UTC")
HEADERS: Final = pa.list_(pa.struct([pa.field("name", pa.string()), pa.field("value", pa.binary())]))


def meta_type(what: Meta, key_format: KeyFormat) -> pa.DataType:
    """Return the type of a column next to the value."""
    types: dict[Meta, pa.DataType] = {
        "key": pa.string() if key_format == "string" else pa.binary(),
        "timestamp": TIME,
        "headers": HEADERS,
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "source": pa.string(),
    }
    return types[what]


def meta_column(what: Meta, type_: pa.DataType, values: Sequence[Any], topic: str, partition: int) -> pa.Array:
    """Return a column of messages.

    Raises
    ------
    UnicodeDecodeError
        For a key that is not a text.
    """
    if what == "key":
        return _keys([m.key() for m in values], type_)
    if what == "timestamp":
        return pa.array([_ms(m) for m in values], pa.int64()).cast(pa.timestamp("ms", "UTC")).cast(type_)
    if what == "headers":
        named = [[{"name": n, "value": v} for n, v in m.headers() or ()] for m in values]
        return pa.array(named, type_)
    if what == "offset":
        return pa.array([m.offset() for m in values], type_)
    texts: dict[Meta, Any] = {"topic": topic, "partition": partition, "source": f"{topic}-{partition}"}
    return pa.repeat(pa.scalar(texts[what], type_), len(values))


def _keys(keys: list[bytes | None], type_: pa.DataType) -> pa.Array:
    if pa.types.is_binary(type_):
        return pa.array(keys, type_)
    return pa.array([None if k is None else k.decode() for k in keys], type_)


def _ms(value: Any) -> int | None:
    """Return when a record was written; None if its writer gave no time."""
    kind, at_ms = value.timestamp()
    return None if kind == 0 else at_ms
