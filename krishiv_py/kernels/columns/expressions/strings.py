"""Functions of text that take a constant pattern or places: Spark's, in Arrow."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.kernels.columns.expressions.functions import in_case, is_text, require
from krishiv_py.kernels.columns.expressions.values import FaultError, Value, arrays, joined, misfit
from krishiv_py.plan.expressions.patterns import Regex, java_regex, like_regex, replacement


def text(value: Value) -> Value:
    """A text; null has every type."""
    require(pa.types.is_string, value)
    return pc.cast(value, pa.string())


def concat(values: list[Value]) -> Value:
    """Texts, or bytes, one after the other; null if one is."""
    require(is_text, *values)
    types = {v.type for v in values if not pa.types.is_null(v.type)}
    if len(types) > 1:
        raise misfit(*types)
    type_ = next(iter(types), pa.string())
    found, single = arrays(*(pc.cast(v, type_) for v in values))
    return joined(pc.binary_join_element_wise(*found, pa.scalar("", type_) if type_ == pa.string() else pa.scalar(b"")), single)


def substring(value: Value, start: int, length: int | None) -> Value:
    """From place `start` on, which counts from 1, below 0 from the end; at most `length` characters."""
    value = text(value)
    if length is not None and length <= 0:
        return pc.utf8_slice_codeunits(value, 0, 0)
    first = start - 1 if start > 0 else start
    stop = None if length is None else first + length
    if first < 0 and stop is not None and stop >= 0:
        stop = None
    return pc.utf8_slice_codeunits(value, first, stop)


def trim(name: str, value: Value, characters: str) -> Value:
    """Without blanks, or without `characters`, at both ends or one."""
    stripped = {"trim": pc.utf8_trim, "ltrim": pc.utf8_ltrim, "rtrim": pc.utf8_rtrim}[name]
    return stripped(text(value), characters=characters) if characters else text(value)


def like(value: Value, pattern: str, fold: bool) -> Value:
    """``LIKE``; without regard to case if `fold`."""
    value = text(value)
    if fold:
        value, pattern = in_case(value, upper=False), pattern.lower()
    return pc.match_substring_regex(value, like_regex(pattern))


def _ready(value: Value, regex: Regex) -> Value:
    """A text on which both kinds of regular expression agree about ``$``."""
    value = text(value)
    if regex.to_end:
        (column,), _ = arrays(value)
        if pc.any(pc.ends_with(column, "\r\n")).as_py():
            raise FaultError(r"a text ends with \r\n, before which Java's $ stands in a way of its own: write \z")
    return value


def rlike(value: Value, pattern: str) -> Value:
    """Whether a part of the text matches."""
    regex = java_regex(pattern, -1)
    return pc.match_substring_regex(_ready(value, regex), regex.text)


def regexp_extract(value: Value, pattern: str, group: int) -> Value:
    """A group of the first match; empty where nothing matches."""
    regex = java_regex(pattern, group)
    (column,), single = arrays(_ready(value, regex))
    found = pc.struct_field(pc.extract_regex(column, regex.text), 0)
    return joined(pc.if_else(pc.is_valid(column), pc.fill_null(found, ""), pa.scalar(None, pa.string())), single)


def regexp_replace(value: Value, pattern: str, by: str) -> Value:
    """Every match replaced."""
    regex = java_regex(pattern)
    return pc.replace_substring_regex(text(value), regex.text, replacement(by, regex.groups))


def split(value: Value, pattern: str) -> Value:
    """What lies between matches; empty texts stay."""
    (column,), single = arrays(text(value))
    found = pc.split_pattern_regex(column, java_regex(pattern).text)
    return joined(pc.cast(found, pa.list_(pa.string())), single)


def item(value: Value, at: int) -> Value:
    """The element at place `at` of a list, which counts from 0."""
    require(pa.types.is_list, value)
    if pa.types.is_null(value.type):
        return value
    (column,), single = arrays(value)
    lengths = pc.list_value_length(column)
    if pc.any(pc.less_equal(lengths, at)).as_py():
        raise FaultError(f"a list has no element {at}: it is shorter")
    if column.null_count:
        column = column.filter(column.is_valid()).take(pc.if_else(pc.is_valid(lengths), _ranks(column), None))
    return joined(pc.list_element(column, at), single)


def _ranks(column: pa.Array) -> pa.Array:
    """How many lists stand before each."""
    return pc.subtract(pc.cumulative_sum(pc.cast(pc.is_valid(column), pa.int64())), 1)


def ends_with(value: Value, part: str) -> Value:
    """Whether the text ends with a constant."""
    return pc.ends_with(text(value), part)
