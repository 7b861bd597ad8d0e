"""Functions of text that take a constant pattern or places: Spark's, in Arrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.functions.computing.compare import compare
from krishiv_py.functions.computing.functions import in_case, is_text, require
from krishiv_py.functions.computing.patterns import Regex, java_regex, like_regex, replacement
from krishiv_py.functions.computing.values import FaultError, Value, arrays, common, joined, misfit


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


def item(value: Value, at: Value) -> Value:
    """The element at place `at` of a list, which counts from 0."""
    require(pa.types.is_list, value)
    require(pa.types.is_integer, at)
    if pa.types.is_null(value.type):
        return value
    if isinstance(at, pa.Scalar) and at.is_valid:
        return _element(value, at.as_py())
    (column, places), single = arrays(value, pc.cast(at, pa.int64()))
    lengths = pc.cast(pc.list_value_length(column), pa.int64())
    outside = pc.fill_null(pc.or_(pc.less(places, 0), pc.greater_equal(places, lengths)), False)
    if pc.any(outside).as_py():
        row = pc.index(outside, True).as_py()
        raise FaultError(f"a list of length {lengths[row]} has no element {places[row]}")
    known = pc.and_(pc.is_valid(places), pc.is_valid(lengths))
    starts = pc.cast(pa.array(column.offsets[:-1]), pa.int64())
    return joined(column.values.take(pc.if_else(known, pc.add(starts, places), pa.scalar(None, pa.int64()))), single)


def element_at(value: Value, at: Value) -> Value:
    """The element of a list at a place that counts from 1, below 0 from the end."""
    if pa.types.is_null(value.type):
        return item(value, at)
    require(pa.types.is_list, value)
    require(pa.types.is_integer, at)
    (column, places), single = arrays(value, pc.cast(at, pa.int64()))
    if pc.any(pc.and_(pc.equal(places, 0), column.is_valid())).as_py():
        raise FaultError("element_at counts from 1: a list has no element 0")
    lengths = pc.cast(pc.list_value_length(column), pa.int64())
    found = item(column, pc.if_else(pc.greater(places, 0), pc.subtract(places, 1), pc.add(lengths, places)))
    return found[0] if single else found


def _element(value: Value, at: int) -> Value:
    if at < 0:
        raise FaultError("a list has no element below 0")
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


def size(value: Value) -> Value:
    """How many elements a list or map has; null of null."""
    if pa.types.is_map(value.type):
        (column,), single = arrays(value)
        lengths = pc.subtract(column.offsets[1:], column.offsets[:-1])
        return joined(pc.if_else(pc.is_valid(column), lengths, pa.scalar(None, pa.int32())), single)
    require(pa.types.is_list, value)
    return pc.cast(value if pa.types.is_null(value.type) else pc.list_value_length(value), pa.int32())


def pad(name: str, value: Value, length: int, by: str) -> Value:
    """``lpad``, ``rpad``: filled up with `by`, or cut, to `length` characters."""
    (column,), single = arrays(text(value))
    cut = pc.utf8_slice_codeunits(column, 0, max(length, 0))
    if not by or length <= 0:
        return joined(cut, single)
    fills = pa.array([(by * length)[:n] for n in range(length + 1)])
    fill = fills.take(pc.subtract(length, pc.utf8_length(cut)))
    return joined(pc.binary_join_element_wise(*((fill, cut) if name == "lpad" else (cut, fill)), ""), single)


def split_part(value: Value, delimiter: str, part: int) -> Value:
    """The part numbered `part`, from 1 on, from the end if negative; empty where there is none."""
    (column,), single = arrays(text(value))
    if not delimiter:
        return joined(column if part in (1, -1) else pc.utf8_slice_codeunits(column, 0, 0), single)
    parts = pc.split_pattern(column, delimiter)
    lengths = pc.list_value_length(parts)
    places = pc.add(lengths, part) if part < 0 else pc.if_else(pc.is_valid(lengths), part - 1, lengths)
    inside = pc.and_(pc.greater_equal(places, 0), pc.less(places, lengths))
    found = item(parts, pc.if_else(inside, places, pa.scalar(None, pa.int32())))
    return joined(pc.if_else(inside, found, pc.utf8_slice_codeunits(column, 0, 0)), single)


def regexp_count(value: Value, pattern: str) -> Value:
    """How often a regular expression matches."""
    return pc.cast(pc.count_substring_regex(text(value), java_regex(pattern).text), pa.int32())


def array_contains(value: Value, wanted: Value) -> Value:
    """Whether an element equals the value; null if none does and one is null."""
    require(pa.types.is_list, value)
    (column, needles), single = arrays(value, wanted)
    n = len(column)
    if pa.types.is_null(column.type) or pa.types.is_null(needles.type):
        return joined(pa.nulls(n, pa.bool_()), single)
    if common(column.type.value_type, needles.type) is None:
        raise misfit(column.type, needles.type)
    parents = pc.list_parent_indices(column)
    same = compare("==", pc.list_flatten(column), needles.take(parents))
    rows = parents.to_numpy(zero_copy_only=False)
    hits = np.bincount(rows[pc.fill_null(same, False).to_numpy(zero_copy_only=False)], minlength=n) > 0
    open_ = np.bincount(rows[same.is_null().to_numpy(zero_copy_only=False)], minlength=n) > 0
    missing = pc.or_(column.is_null(), needles.is_null()).to_numpy(zero_copy_only=False)
    return joined(pa.array(hits, mask=missing | (open_ & ~hits)), single)
