"""Functions of text. Places count characters; patterns and lengths are constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.errors import ExpressionError, shown
from krishiv_py.functions.computing.checks import is_text, require, text
from krishiv_py.functions.computing.lists import chained, item_of, turned
from krishiv_py.functions.computing.patterns import Regex, check_pattern, java_regex, like_regex, replacement
from krishiv_py.functions.computing.values import FaultError, arrays, joined, misfit
from krishiv_py.functions.definition import Pattern, SqlNode, Text, Value, Whole, example, function

_LONGEST: Final = 10_000


def _check_length(name: str, args: tuple[Any, ...]) -> None:
    if isinstance(args[1], int) and args[1] > _LONGEST:
        raise ExpressionError(f"{name} takes at most {_LONGEST}", got=shown(args[1]), hint="pass fewer")


def _in_case(value: Value, upper: bool) -> Value:
    """``upper(x)``, ``lower(x)``: one letter may become two, as ß becomes SS."""
    require(pa.types.is_string, value)
    (column,), single = arrays(pc.cast(value, pa.string()))
    ascii_ = pc.string_is_ascii(column)
    result = pc.ascii_upper(column) if upper else pc.ascii_lower(column)
    if pc.all(ascii_).as_py() is not False:
        return joined(result, single)
    distinct = column.dictionary_encode()
    texts = [None if x is None else x.upper() if upper else x.lower() for x in distinct.dictionary.to_pylist()]
    return joined(pa.array(texts, pa.string()).take(distinct.indices), single)


@function("text", "string", node=SqlNode("Lower"))
@example("lower('ÅB')", "åb")
def lower(value: Value) -> Value:
    """Return the text in lower case."""
    return _in_case(value, upper=False)


@function("text", "string", node=SqlNode("Upper"))
@example("upper('ß')", "SS")
def upper(value: Value) -> Value:
    """Return the text in upper case; one letter may become two."""
    return _in_case(value, upper=True)


@function("text", "int", node=SqlNode("Length"))
@example("length('日本')", 2)
def length(value: Value) -> Value:
    """Return the number of characters of a text, of bytes of binary."""
    require(is_text, value)
    return pc.binary_length(value) if pa.types.is_binary(value.type) else pc.utf8_length(pc.cast(value, pa.string()))


@function("text", "int", node=(SqlNode("ByteLength"), SqlNode("OctetLength")))
@example("octet_length('日本')", 6)
def octet_length(value: Value) -> Value:
    """Return the number of bytes of binary, or of a text as UTF-8."""
    require(is_text, value)
    return pc.binary_length(pc.cast(value, pa.string()) if pa.types.is_null(value.type) else value)


def _found_in(value: Value, part: Value, at_start: bool) -> Value:
    """``contains(text, part)``, ``starts_with(text, part)``."""
    require(is_text, value, part)
    if not pa.types.is_null(value.type) and not pa.types.is_null(part.type) and value.type != part.type:
        raise misfit(value.type, part.type)
    if pa.types.is_null(part.type) or (isinstance(part, pa.Scalar) and not part.is_valid):
        (texts,), single = arrays(value)
        return joined(pa.nulls(len(texts), pa.bool_()), single)
    if isinstance(part, pa.Scalar):
        return (pc.starts_with if at_start else pc.match_substring)(value, part.as_py())
    (texts, parts), single = arrays(value, part)
    hit: Callable[[Any, Any], bool] = (lambda a, b: a.startswith(b)) if at_start else (lambda a, b: b in a)
    pairs = zip(texts.to_pylist(), parts.to_pylist(), strict=True)
    return joined(pa.array([None if a is None or b is None else hit(a, b) for a, b in pairs], pa.bool_()), single)


@function("text", "boolean", node=SqlNode("StartsWith", "this expression"), names=("startswith",))
@example("startswith('abc', 'ab')", True)
def starts_with(value: Value, part: Value) -> Value:
    """Return whether the text starts with `part`, a column or constant."""
    return _found_in(value, part, at_start=True)


@function("text", "boolean", node=SqlNode("EndsWith", "this expression"), names=("endswith",))
@example("endswith('abc', 'bc')", True)
def ends_with(value: Value, part: Text) -> Value:
    """Return whether the text ends with `part`, a constant."""
    return pc.ends_with(text(value), part)


@function("text", "boolean", node=SqlNode("Contains", "this expression"))
@example("contains('abc', 'b')", True)
def contains(value: Value, part: Value) -> Value:
    """Return whether `part`, a column or constant, lies in the text."""
    return _found_in(value, part, at_start=False)


def _like(value: Value, pattern: str, *, fold: bool) -> Value:
    value = text(value)
    if fold:
        value, pattern = _in_case(value, upper=False), pattern.lower()
    return pc.match_substring_regex(value, like_regex(pattern))


@function("text", "boolean", node=SqlNode("Like", "this expression"), check=check_pattern)
@example("'abc' LIKE 'a%'", True)
def like(value: Value, pattern: Pattern) -> Value:
    r"""Return whether the whole text is like `pattern`: ``%`` is any text, ``_`` one character, ``\%`` a percent sign."""
    return _like(value, pattern, fold=False)


@function("text", "boolean", node=SqlNode("ILike", "this expression"), check=check_pattern)
@example("'abc' ILIKE 'A%'", True)
def ilike(value: Value, pattern: Pattern) -> Value:
    """Return what ``like`` does with this `pattern`, upper and lower case alike."""
    return _like(value, pattern, fold=True)


def _ready(value: Value, regex: Regex) -> Value:
    """A text on which both kinds of regular expression agree about ``$``."""
    value = text(value)
    if regex.to_end:
        (column,), _ = arrays(value)
        if pc.any(pc.ends_with(column, "\r\n")).as_py():
            raise FaultError(r"a text ends with \r\n, before which Java's $ is in a way of its own: write \z")
    return value


@function("text", "boolean", node=SqlNode("RegexpLike", "this expression"), check=check_pattern)
@example("'abc' RLIKE 'b+'", True)
def rlike(value: Value, pattern: Pattern) -> Value:
    """Return whether a part of the text matches Java's regular expression `pattern`.

    Raises
    ------
    ExpressionError
        For a pattern that cannot be evaluated as Spark does: look-around, back references, flags, word bounds.
    """
    regex = java_regex(pattern, -1)
    return pc.match_substring_regex(_ready(value, regex), regex.text)


@function("text", "string", node=SqlNode("RegexpExtract", "this expression group"), check=check_pattern)
@example("regexp_extract('a-7', '([a-z])-([0-9])', 2)", "7")
def regexp_extract(value: Value, pattern: Pattern, group: Whole = 1) -> Value:
    """Return the group numbered `group` (0: all) of the first match of `pattern`; empty text where nothing matches."""
    regex = java_regex(pattern, group)
    (column,), single = arrays(_ready(value, regex))
    extracted = pc.struct_field(pc.extract_regex(column, regex.text), 0)
    return joined(pc.if_else(pc.is_valid(column), pc.fill_null(extracted, ""), pa.scalar(None, pa.string())), single)


@function("text", "string", node=SqlNode("RegexpReplace", "this expression replacement"), check=check_pattern)
@example("regexp_replace('a7', '([0-9])', '-$1')", "a-7")
def regexp_replace(value: Value, pattern: Pattern, by: Text) -> Value:
    """Return the text with every match of `pattern` replaced `by` a text, in which ``$1`` is the first group."""
    regex = java_regex(pattern)
    return pc.replace_substring_regex(text(value), regex.text, replacement(by, regex.groups))


@function("text", "int", node=SqlNode("RegexpCount", "this expression"), check=check_pattern)
@example("regexp_count('banana', 'an')", 2)
def regexp_count(value: Value, pattern: Pattern) -> Value:
    """Return how often the regular expression `pattern` matches."""
    return pc.cast(pc.count_substring_regex(text(value), java_regex(pattern).text), pa.int32())


@function("text", "array<string>", node=SqlNode("RegexpSplit", "this expression"), check=check_pattern)
@example("split('a/b', '/')", ["a", "b"])
def split(value: Value, pattern: Pattern) -> Value:
    """Return the list of the texts between matches of the regular expression `pattern`; ``.split("/")[0]`` is the first."""
    (column,), single = arrays(text(value))
    parts = pc.split_pattern_regex(column, java_regex(pattern).text)
    return joined(pc.cast(parts, pa.list_(pa.string())), single)


@function("text", "string", node=SqlNode("Substring", "this start length"))
@example("substring('abcd', 2, 2)", "bc")
def substring(value: Value, start: Whole, length: Whole | None = None) -> Value:
    """Return at most `length` characters from place `start` on, which counts from 1, below 0 from the end."""
    value = text(value)
    if length is not None and length <= 0:
        return pc.utf8_slice_codeunits(value, 0, 0)
    first = start - 1 if start > 0 else start
    stop = None if length is None else first + length
    if first < 0 and stop is not None and stop >= 0:
        stop = None
    return pc.utf8_slice_codeunits(value, first, stop)


def _trimmed(strip: Callable[..., Value], value: Value, characters: str) -> Value:
    return strip(text(value), characters=characters) if characters else text(value)


@function(
    "text",
    "string",
    node=(SqlNode("Trim", "this expression"), SqlNode("Trim", "this expression", position="BOTH")),
    names=("btrim",),
    short=True,
)
@example("trim(' a ')", "a")
def trim(value: Value, characters: Text = " ") -> Value:
    """Return the text without blanks, or without `characters`, at both ends."""
    return _trimmed(pc.utf8_trim, value, characters)


@function("text", "string", node=SqlNode("Trim", "this expression", position="LEADING"), short=True)
@example("ltrim('  a')", "a")
def ltrim(value: Value, characters: Text = " ") -> Value:
    """Return the text without blanks, or without `characters`, at the beginning only."""
    return _trimmed(pc.utf8_ltrim, value, characters)


@function("text", "string", node=SqlNode("Trim", "this expression", position="TRAILING"), short=True)
@example("TRIM(TRAILING 'x' FROM 'axx')", "a")
def rtrim(value: Value, characters: Text = " ") -> Value:
    """Return the text without blanks, or without `characters`, at the end only."""
    return _trimmed(pc.utf8_rtrim, value, characters)


def _padded(value: Value, length: int, by: str, *, left: bool) -> Value:
    (column,), single = arrays(text(value))
    cut = pc.utf8_slice_codeunits(column, 0, max(length, 0))
    if not by or length <= 0:
        return joined(cut, single)
    fills = pa.array([(by * length)[:n] for n in range(length + 1)])
    fill = fills.take(pc.subtract(length, pc.utf8_length(cut)))
    return joined(pc.binary_join_element_wise(*((fill, cut) if left else (cut, fill)), ""), single)


@function("text", "string", node=SqlNode("Pad", "this expression fill_pattern", is_left=True), check=_check_length)
@example("lpad('7', 3, '0')", "007")
def lpad(value: Value, length: Whole, by: Text = " ") -> Value:
    """Return the text with `by` before it, again and again, or cut, so that it has `length` characters."""
    return _padded(value, length, by, left=True)


@function("text", "string", node=SqlNode("Pad", "this expression fill_pattern", is_left=False), check=_check_length)
@example("rpad('7', 3, '0')", "700")
def rpad(value: Value, length: Whole, by: Text = " ") -> Value:
    """Return the text with `by` after it, again and again, or cut, so that it has `length` characters."""
    return _padded(value, length, by, left=False)


def _check_part(name: str, args: tuple[Any, ...]) -> None:
    if args[2] == 0:
        raise ExpressionError("split_part counts from 1", got="0", hint="pass 1, or -1 for the last part")


@function("text", "string", node=SqlNode("SplitPart", "this delimiter part_index"), check=_check_part)
@example("split_part('a.b.c', '.', -1)", "c")
def split_part(value: Value, delimiter: Text, part: Whole) -> Value:
    """Return the `part` between delimiters, counted from 1, below 0 from the end; `delimiter` is plain text."""
    (column,), single = arrays(text(value))
    if not delimiter:
        return joined(column if part in (1, -1) else pc.utf8_slice_codeunits(column, 0, 0), single)
    parts = pc.split_pattern(column, delimiter)
    lengths = pc.list_value_length(parts)
    places = pc.add(lengths, part) if part < 0 else pc.if_else(pc.is_valid(lengths), part - 1, lengths)
    inside = pc.and_(pc.greater_equal(places, 0), pc.less(places, lengths))
    picked = item_of(parts, pc.if_else(inside, places, pa.scalar(None, pa.int32())))
    return joined(pc.if_else(inside, picked, pc.utf8_slice_codeunits(column, 0, 0)), single)


def _chain(values: tuple[Value, ...]) -> Value:
    require(is_text, *values)
    types = {v.type for v in values if not pa.types.is_null(v.type)}
    if len(types) > 1:
        raise misfit(*types)
    type_ = next(iter(types), pa.string())
    texts, single = arrays(*(pc.cast(v, type_) for v in values))
    return joined(pc.binary_join_element_wise(*texts, pa.scalar("", type_) if type_ == pa.string() else pa.scalar(b"")), single)


@function("text", "string, binary or array", node=(SqlNode("Concat", "*expressions"), SqlNode("DPipe", "this expression")))
@example("'a' || 'b'", "ab")
def concat(value: Value, *others: Value) -> Value:
    """Return the text, bytes or list, then `others`, columns or constants; null if one is null."""
    values = (value, *others)
    return chained(list(values)) if any(pa.types.is_list(x.type) for x in values) else _chain(values)


@function("text", "string", node=SqlNode("ConcatWs", "*expressions"), method=False)
@example("concat_ws('-', 'a', NULL, 'b')", "a-b")
def concat_ws(separator: Value, *values: Value) -> Value:
    """Return texts, and those in lists, with a separator between them; nulls are left out. Null if the separator is."""
    require(pa.types.is_string, separator)
    for value in values:
        if not pa.types.is_list(value.type) or not (
            pa.types.is_string(value.type.value_type) or pa.types.is_null(value.type.value_type)
        ):
            require(pa.types.is_string, value)
    (between, *columns), single = arrays(pc.cast(separator, pa.string()), *values)
    if not columns:
        return joined(pc.if_else(between.is_valid(), "", between), single)
    if not any(pa.types.is_list(c.type) for c in columns):
        result = pc.cast(columns[0], pa.string())
        for column in columns[1:]:  # Arrow's own way to skip nulls loses the rows in which all are null
            more = pc.cast(column, pa.string())
            result = pc.coalesce(pc.binary_join_element_wise(result, more, between), result, more)
        return joined(pc.if_else(between.is_valid(), pc.fill_null(result, ""), between), single)
    rows = zip(between.to_pylist(), *(c.to_pylist() for c in columns), strict=True)
    return joined(pa.array([_joined_row(first, rest) for first, *rest in rows], pa.string()), single)


def _joined_row(separator: str | None, values: list[str | list[str | None] | None]) -> str | None:
    if separator is None:
        return None
    parts = [x for value in values for x in (value if isinstance(value, list) else [value])]
    return separator.join(x for x in parts if x is not None)


def _of_distinct(value: Value, change: Callable[[str], str]) -> Value:
    """A change of texts, made once for equal ones."""
    (column,), single = arrays(text(value))
    known = column.dictionary_encode()
    changed = pa.array([None if x is None else change(x) for x in known.dictionary.to_pylist()], pa.string())
    return joined(changed.take(known.indices), single)


@function("text", "int", node=SqlNode("StrPosition", "this substr"))
@example("instr('abc', 'c')", 3)
def instr(value: Value, part: Value) -> Value:
    """Return the place of the first character of `part`, a column or constant, from 1 on; 0 if it is not in the text."""
    value, part = text(value), text(part)
    (column,), single = arrays(value)
    if isinstance(part, pa.Scalar) and part.is_valid and pc.all(pc.string_is_ascii(column)).as_py() is not False:
        return pc.cast(pc.add(pc.find_substring(value, part.as_py()), 1), pa.int32())
    (column, parts), single = arrays(value, part)
    pairs = zip(column.to_pylist(), parts.to_pylist(), strict=True)
    positions = [None if x is None or y is None else x.find(y) + 1 for x, y in pairs]
    return joined(pa.array(positions, pa.int32()), single)


@function("text", "string", node=SqlNode("Replace", "this expression replacement", fill=""))
@example("replace('aXb', 'X', '-')", "a-b")
def replace(value: Value, part: Text, by: Text = "") -> Value:
    """Return the text with every `part`, a plain text, exchanged for the text `by`."""
    return pc.replace_substring(text(value), part, by) if part else text(value)


@function("text", "string", node=SqlNode("Translate", "this from to"))
@example("translate('abc', 'ab', 'x')", "xc")
def translate(value: Value, characters: Text, by: Text) -> Value:
    """Return the text with each of the `characters` exchanged for the one at its place in `by`, or left out."""
    table: dict[int, str | None] = {}
    for i, char in enumerate(characters):
        table.setdefault(ord(char), by[i] if i < len(by) else None)
    return _of_distinct(value, lambda x: x.translate(table))


@function("text", "string or array", node=SqlNode("Reverse"))
@example("reverse('abc')", "cba")
def reverse(value: Value) -> Value:
    """Return the characters of the text, or the elements of the list, from the end on."""
    return turned(value) if pa.types.is_list(value.type) else pc.utf8_reverse(text(value))


@function("text", "string", node=SqlNode("Repeat", "this times"), check=_check_length)
@example("repeat('ab', 2)", "abab")
def repeat(value: Value, times: Whole) -> Value:
    """Return the text so many `times`."""
    (column,), single = arrays(text(value))
    return joined(pc.binary_repeat(column, max(times, 0)), single)
