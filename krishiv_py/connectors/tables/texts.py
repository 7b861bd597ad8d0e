"""Arrow as the text that PostgreSQL's COPY reads, column by column (PostgreSQL 15, "COPY", "Text Format")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.values import check_years, not_written

_ROWS: Final = 20_000
"""Rows that become one text: a text of Arrow holds 2 GiB."""
_HEX: Final = np.frombuffer(b"".join(b"%02x" % n for n in range(256)), np.uint16)


def copied(table: pa.Table) -> Iterator[bytes]:
    """Yield the rows of a table as lines for ``COPY ... FROM STDIN``.

    Raises
    ------
    OperatorError
        For a value that PostgreSQL does not have: the character U+0000 in a text, or a time before year 1 or after 9999.
    """
    for begin in range(0, table.num_rows, _ROWS):
        part = table.slice(begin, _ROWS).combine_chunks()
        columns = [
            _escaped(_text(values.combine_chunks(), name), values.type)
            for values, name in zip(part.columns, part.schema.names, strict=True)
        ]
        lines = pc.binary_join_element_wise(*columns, "\t")
        ended = pc.binary_join_element_wise(lines, "", "\n")
        last = np.frombuffer(ended.buffers()[1], np.int32)[len(ended)]
        yield memoryview(ended.buffers()[2])[:last].tobytes()


def _escaped(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_nested(kind):
        for char, instead in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
            values = pc.replace_substring(values, char, instead)
    return pc.fill_null(values, "\\N")


def _text(values: pa.Array, name: str) -> pa.Array:
    """Values as PostgreSQL reads them."""
    kind = values.type
    if pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type):
        return _bracketed(values, _element(values, name, json=False), "{", "}", "NULL")
    if pa.types.is_nested(kind):
        return _json(values, name)
    return _plain(values, name)


def _plain(values: pa.Array, name: str) -> pa.Array:
    kind = values.type
    if pa.types.is_null(kind):
        return pa.nulls(len(values), pa.string())
    if pa.types.is_binary(kind):
        return _hexed(values)
    if pa.types.is_timestamp(kind):
        check_years(values, name, "PostgreSQL")
        whole = values.cast(pa.timestamp("us")).cast(pa.string())
        return pc.binary_join_element_wise(whole, "+00", "") if kind.tz is not None else whole
    if pa.types.is_date32(kind):
        check_years(values, name, "PostgreSQL")
        return values.cast(pa.string())
    if pa.types.is_duration(kind):
        return pc.binary_join_element_wise(values.cast(pa.int64()).cast(pa.string()), " microseconds", "")
    if pa.types.is_string(kind):
        if pc.any(pc.match_substring(values, "\0"), min_count=0).as_py():
            hint = "take it out: it is not part of a text in PostgreSQL"
            raise not_written(name, "PostgreSQL", "the character U+0000", hint)
        return values
    return values.cast(pa.string())


def _hexed(values: pa.Array) -> pa.Array:
    r"""Bytes as ``\x00ff``, without a look at each value."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    data = values.buffers()[2]
    used = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]] if data is not None else np.empty(0, np.uint8)
    text = pa.Array.from_buffers(
        pa.string(), len(values), [None, pa.py_buffer(2 * (offsets - offsets[0])), pa.py_buffer(_HEX[used].tobytes())]
    )
    prefixed = pc.binary_join_element_wise("\\x", text, "")
    return pc.if_else(values.is_valid(), prefixed, pa.scalar(None, pa.string()))


def _element(values: pa.Array, name: str, *, json: bool) -> pa.Array:
    """Return the values in lists, as their texts in the list."""
    inner = values.flatten()
    if json:
        return _json(inner, name)
    text = _plain(inner, name)
    if pa.types.is_string(inner.type) or pa.types.is_binary(inner.type):
        for char in ("\\", '"'):
            text = pc.replace_substring(text, char, f"\\{char}")
        return pc.binary_join_element_wise('"', text, '"', "")
    quoted = pa.types.is_timestamp(inner.type) or pa.types.is_duration(inner.type)
    return pc.binary_join_element_wise('"', text, '"', "") if quoted else text


def _bracketed(values: pa.Array, inner: pa.Array, left: str, right: str, nothing: str) -> pa.Array:
    """Return the texts of lists from the texts of what is in them."""
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))]).astype(np.int32))
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, pc.fill_null(inner, nothing)), ",")
    return pc.if_else(values.is_valid(), pc.binary_join_element_wise(left, joined, right, ""), pa.scalar(None, pa.string()))


def _json(values: pa.Array, name: str) -> pa.Array:
    """Values as JSON; numbers that JSON does not have are texts."""
    kind = values.type
    if pa.types.is_map(kind):
        pairs = pa.ListArray.from_arrays(
            values.offsets, pa.StructArray.from_arrays([values.keys, values.items], ["key", "value"])
        )
        values = pc.if_else(values.is_valid(), pairs, pa.scalar(None, pairs.type)) if values.null_count else pairs
        kind = values.type
    if pa.types.is_list(kind):
        return _bracketed(values, _element(values, name, json=True), "[", "]", "null")
    if pa.types.is_struct(kind):
        parts: list[pa.Array | str] = []
        for n, field in enumerate(kind):
            label = _quoted(pa.array([field.name]))[0].as_py()
            parts += [f"{'{' if n == 0 else ','}{label}:", pc.fill_null(_json(values.field(n), name), "null")]
        whole = pc.binary_join_element_wise(*parts, "}", "")
        return pc.if_else(values.is_valid(), whole, pa.scalar(None, pa.string()))
    text = _plain(values, name)
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_finite(values), text, pc.binary_join_element_wise('"', text, '"', ""))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return text
    return _quoted(text)


def _quoted(values: pa.Array) -> pa.Array:
    """Texts as JSON has them."""
    for char, instead in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        values = pc.replace_substring(values, char, instead)
    if pc.any(pc.match_substring_regex(values, "[\x01-\x1f]"), min_count=0).as_py():
        for code in range(1, 32):
            values = pc.replace_substring(values, chr(code), f"\\u{code:04x}")
    return pc.binary_join_element_wise('"', values, '"', "")
