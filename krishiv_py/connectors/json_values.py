"""JSON values as values of Arrow, by the rules of the library: each text and each value alone, whatever is next to it."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import functools
import itertools
import json
import math
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from json.encoder import encode_basestring
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.functions.computing.text import flags
from krishiv_py.types import article, type_text

_FLOATS: Final = {
    "NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "-Infinity": -math.inf,
    "INF": math.inf,
    "+INF": math.inf,
    "-INF": -math.inf,
}
_INTEGER: Final = re.compile(rb"-?\d{1,40}")
_FINER: Final = r"(\.\d{6})\d+"
_CUT: Final = re.compile(_FINER)

# patterns of RE2: texts that are values for sure, in which no part is out of range
_MONTH_DAY: Final = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
)
_LEAP_DAY: Final = r"(?:0[48]|[2468][048]|[13579][26])-02-29"
DATE: Final = rf"(?:[1-9]\d{{3}}-{_MONTH_DAY}|[1-9]\d{_LEAP_DAY})"
FINE_DATE: Final = rf"(?:(?:1[7-9]\d|2[01]\d|22[0-5])\d-{_MONTH_DAY}|(?:1[7-9]|2[0-2]){_LEAP_DAY})"
"""Dates of times in nanoseconds, which end in the year 2262."""
_CLOCK: Final = r"(?:[01]\d|2[0-3])(?::[0-5]\d(?::[0-5]\d(?:\.\d{1,6})?)?)?"
_ZONE: Final = r"(?:Z|[+-](?:0\d|1[0-4])(?::?[0-5]\d)?)"
TIME: Final = rf"{DATE}(?:[ T]{_CLOCK}{_ZONE}?)?"
_TIME_BEGINS: Final = (
    r"\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|[12]\d))"
    r"(?:$|[ T](?:[01]\d|2[0-3])(?:$|[Z+-]|:[0-5]\d(?:$|[Z+-]|:[0-5]\d)))"
)
"""The beginning of every text that is a time, and of some others."""
_LIKE_A_TIME: Final = re.compile(_TIME_BEGINS)
_OTHER_DATE: Final = r"0\d{3}-\d\d-\d\d|\d\d00-02-29"
"""Dates that `DATE` leaves out, among texts that are none."""
_HALF_A_PAIR: Final = "half a surrogate pair"
_HALF: Final = re.compile("[\ud800-\udfff]")
_LOCAL: Final = rf"{DATE}(?:[ T]{_CLOCK})?"
_ZONED: Final = rf"{DATE}[ T]{_CLOCK}{_ZONE}"
NUMBER: Final = r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d{1,2})?"
_FINITE: Final = r"-?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,2})?"  # patterns of longer ones take their time to get ready
INTEGERS: Final = {
    8: r"-?(?:\d|[1-9]\d|1[01]\d)",
    16: r"-?(?:0|[1-9]\d{0,3}|[12]\d{4})",
    32: r"-?(?:0|[1-9]\d{0,8}|1\d{9})",
    64: r"-?(?:0|[1-9]\d{0,17}|[1-8]\d{18})",
}


JsonObject: TypeAlias = tuple[tuple[str, Any], ...]
"""An object is the pairs of its names and values, as they are written; so nothing is lost of one that has a name twice."""
MISSING: Final = -1
TWICE: Final = -2


def places_of(names: Sequence[str], wanted: Iterable[str], as_written: bool) -> list[int]:
    """Return the place of each wanted name among those of an object.

    It is found as it is written, else (unless `as_written`) in another case. It is ``MISSING``, or ``TWICE`` where an object
    has it so, or in two other cases.
    """
    at = {name: place for place, name in enumerate(names)}
    again = (
        frozenset(name for name, number in Counter(names).items() if number > 1) if len(at) < len(names) else frozenset[str]()
    )
    by_small: dict[str, list[str]] = {}
    if not as_written and not at.keys() >= set(wanted := list(wanted)):
        for name in at:
            by_small.setdefault(name.lower(), []).append(name)
    places = []
    for name in wanted:
        same = [name] if name in at else by_small.get(name.lower(), [])
        twice = len(same) > 1 or not again.isdisjoint(same)
        places.append(TWICE if twice else at[same[0]] if same else MISSING)
    return places


def names_and_values(json_object: JsonObject) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Return the names of an object, and the values."""
    return tuple(zip(*json_object)) or ((), ())  # type: ignore[return-value]  # noqa: B905  # all are pairs


_KINDS: Final[dict[type, str]] = {bytes: "a number", str: "a text", bool: "a boolean", list: "a list", tuple: "an object"}
"""JSON values in words: a number is the bytes in which it was written."""


@functools.cache
def converter(type_: pa.DataType, as_written: bool) -> Callable[[Any], Any]:
    """Return a function from JSON values (never null) to Python values that Arrow takes for the type; it raises ValueError.

    Fields of objects are found as columns are: by their names `as_written`, or in another case too (:func:`places_of`).
    """
    is_ = pa.types
    if is_.is_boolean(type_):
        return lambda v: v if isinstance(v, bool) else _refuse(v, type_)
    if is_.is_integer(type_):
        return functools.partial(_integer, type_)
    if is_.is_floating(type_):
        return functools.partial(_float, type_)
    if is_.is_string(type_):
        return _text
    if is_.is_timestamp(type_):
        return functools.partial(_instant, type_)
    if is_.is_list(type_):
        return functools.partial(_list, type_, as_written)
    if is_.is_struct(type_):
        return functools.partial(_struct, type_, as_written)
    if is_.is_map(type_):
        return functools.partial(_map, type_, as_written)
    return functools.partial(_other, type_)


def _refuse(value: Any, type_: pa.DataType) -> Any:
    raise ValueError(_refusal(_KINDS.get(type(value), "null"), type_))


@functools.lru_cache(maxsize=1_024)
def _refusal(kind: str, type_: pa.DataType) -> str:
    return f"{kind} is not {article(type_text(type_))}"


def _integer(type_: pa.DataType, value: Any) -> int:
    if isinstance(value, bytes) and _INTEGER.fullmatch(value):
        number = int(value)
        if -(1 << (type_.bit_width - 1)) <= number < 1 << (type_.bit_width - 1):
            return number
    return int(_refuse(value, type_))


def _float(type_: pa.DataType, value: Any) -> float:
    """Return a number, or one of the texts by which Spark writes what JSON has no number for."""
    text = value.decode() if isinstance(value, bytes) else value
    if isinstance(text, str) and text in _FLOATS:
        return _FLOATS[text]
    if not isinstance(value, bytes):
        return float(_refuse(value, type_))
    number = float(value)
    if math.isinf(number):
        _refuse(value, type_)
    if type_.bit_width == 32:
        try:
            struct.pack("f", number)
        except OverflowError:
            return math.copysign(math.inf, number)
    return number


def _text(value: Any) -> str:
    """Return a text; other values as they were written, as in Spark."""
    return _encodable(value if type(value) is str else _written(value))


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise ValueError(_HALF_A_PAIR) from problem
    return text


_PLAIN: Final = frozenset((str, bytes, type(None)))
_WORDS: Final = {True: "true", False: "false", None: "null"}


def _written(value: Any) -> str:
    return _WRITERS[type(value)](value)


def _written_list(values: list[Any]) -> str:
    if values and type(values[0]) is bytes:  # most lists that begin with a number have numbers alone
        try:
            return f"[{b','.join(values).decode()}]"
        except TypeError:
            pass
    return f"[{','.join([_WRITERS[type(one)](one) for one in values])}]"


def _written_object(pairs: JsonObject) -> str:
    parts = []
    for name, one in pairs:
        parts.append(f"{encode_basestring(name)}:{_WRITERS[type(one)](one)}")
    return f"{{{','.join(parts)}}}"


_WRITERS: Final[dict[type, Callable[[Any], str]]] = {
    bytes: bytes.decode,
    str: encode_basestring,
    bool: _WORDS.__getitem__,
    type(None): _WORDS.__getitem__,
    list: _written_list,
    tuple: _written_object,
}


def written(values: Sequence[Any]) -> list[Any]:
    """Return values of a column of texts: what is no text as it was written; what is nested too deeply for that as it is."""
    try:
        return [value if type(value) in _PLAIN else _written(value) for value in values]
    except RecursionError:
        return [one for value in values for one in written([value])] if len(values) > 1 else list(values)


def _instant(type_: pa.DataType, value: Any) -> Any:
    """ISO 8601; without a zone it is UTC. Digits after the sixth of a second are cut off."""
    if type(value) is str and not _LIKE_A_TIME.match(value):
        value.encode()  # half a surrogate pair is an error of its own
    elif type(value) is str:
        text = pa.array([_CUT.sub(r"\1", value)])
        for parsed in (pa.timestamp("us", "UTC"), pa.timestamp("us")):
            try:
                return text.cast(parsed).cast(pa.int64()).cast(pa.timestamp("us", type_.tz)).cast(type_)[0].value
            except pa.ArrowInvalid:
                continue
    return _refuse(value, type_)


def _list(type_: pa.DataType, as_written: bool, value: Any) -> list[Any]:
    if not isinstance(value, list):
        _refuse(value, type_)
    convert = converter(type_.value_type, as_written)
    return [None if v is None else convert(v) for v in value]


def _struct(type_: pa.DataType, as_written: bool, value: Any) -> dict[str, Any]:
    if type(value) is not tuple:
        return dict(_refuse(value, type_))
    names, values = names_and_values(value)
    fields = {}
    for field, place in zip(type_, places_of(names, [field.name for field in type_], as_written), strict=True):
        if place == TWICE:
            raise ValueError(f"field {field.name!r} appears twice")
        one = None if place == MISSING else values[place]
        try:
            fields[field.name] = None if one is None else converter(field.type, as_written)(one)
        except ValueError as problem:
            raise ValueError(f"field {field.name!r}: {problem}") from problem
    return fields


def _map(type_: pa.DataType, as_written: bool, value: Any) -> list[tuple[Any, Any]]:
    if type(value) is not tuple:
        return list(_refuse(value, type_))
    names, values = names_and_values(value)
    if len(set(names)) < len(names):
        raise ValueError("a key of the map occurs twice")
    item = converter(type_.item_type, as_written)
    items = [None if one is None else item(one) for one in values]
    if pa.types.is_binary(type_.key_type):
        return list(zip([_other(type_.key_type, name) for name in names], items, strict=True))
    try:
        keys = pa.array(names, pa.string()).cast(type_.key_type).to_pylist()
    except pa.ArrowInvalid:
        keys = list(_refuse(value, type_))
    return list(zip(keys, items, strict=True))


def _other(type_: pa.DataType, value: Any) -> Any:
    """Dates in ISO form, decimals as numbers or texts, bytes as base64, as Spark writes them."""
    if isinstance(value, str | bytes):
        try:
            if pa.types.is_decimal(type_):
                return pa.scalar(decimal.Decimal(value if isinstance(value, str) else value.decode())).cast(type_).as_py()
            if isinstance(value, str) and pa.types.is_date32(type_):
                return dt.date.fromisoformat(value) if re.fullmatch(r"\d{4}-\d\d-\d\d", value) else _refuse(value, type_)
            if isinstance(value, str) and pa.types.is_binary(type_):
                return base64.b64decode(value, validate=True)
        except (ValueError, TypeError, binascii.Error, decimal.InvalidOperation, pa.ArrowException):  # TypeError: NaN
            return _refuse(value, type_)
    return _refuse(value, type_)


_FEW: Final = 250
_Scan: TypeAlias = "Callable[[str, int], tuple[Any, int]]"
"""Reads one value of a text, from a place on; it returns its end, too."""
_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_DECODER: Final = json.JSONDecoder(
    parse_int=str.encode, parse_float=str.encode, parse_constant=str.encode, object_pairs_hook=tuple
)
_SCAN: Final[_Scan] = getattr(_DECODER, "scan_once")  # noqa: B009  # which has no type
"""One for all texts, as to make one costs more than to read a row; a hook in Python would cost as much as the rest."""


LEVELS: Final = 300
"""So deep may values lie in each other: less than a stack of Python allows, so each version and each caller gives the same."""
_TOO_DEEP: Final = "nested too deeply"
_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.?[^"\\]*)*(?:"|\Z)', re.DOTALL)
"""Texts of JSON; it always finds an end, so none is read twice."""
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_STEPS_AT_A_TIME: Final = 1_024


def is_too_deep(text: bytes) -> bool:
    """Return whether values of a text lie deeper in each other than `LEVELS`."""
    if len(text) <= LEVELS or len(text.translate(None, _NO_BRACKETS)) <= LEVELS:
        return False
    outside = _STRINGS.sub(b"", text) if b"\\" in text else b"".join(text.split(b'"')[::2])
    steps = np.frombuffer(outside.translate(_STEPS, _NO_BRACKETS), np.int8)
    depth = 0
    for begin in range(0, len(steps), _STEPS_AT_A_TIME):
        depths = depth + np.cumsum(steps[begin : begin + _STEPS_AT_A_TIME], dtype=np.int64)
        if depths.max() > LEVELS:
            return True
        depth = int(depths[-1])
    return False


def values_of(raws: Sequence[bytes]) -> tuple[list[Any], dict[int, str]]:
    """Return the value of each text, None for a text that has none, and why, by place.

    One call reads all texts up to the next that has none.
    """
    problems = {i: _TOO_DEEP for i, raw in enumerate(raws) if len(raw) > LEVELS and is_too_deep(raw)}
    if problems:
        raws = [b"null" if i in problems else raw for i, raw in enumerate(raws)]
    texts = _decoded(raws, problems)
    found: list[tuple[Any, int]] = []
    scanned = map(_SCAN, texts, itertools.repeat(0))
    while len(found) < len(texts):
        try:
            found.extend(scanned)
            if len(found) < len(texts):  # no value begins where one was expected, maybe after blanks
                found.append(_after_all_blanks(texts[len(found)]))
        except (ValueError, RecursionError) as problem:
            place = len(found)
            problems[place] = reason(problem)
            found.append((None, len(texts[place])))
    values = [value for value, _ in found]
    ends = [end for _, end in found]
    if ends != list(map(len, texts)):
        for i, (text, end) in enumerate(zip(texts, ends, strict=True)):
            if end < len(text) and (end := _after_blanks(text, end)) < len(text):
                problems[i] = _incomplete("Extra data", end)
    for i in problems:
        values[i] = None
    return values, problems


def _decoded(raws: Sequence[bytes], problems: dict[int, str]) -> list[str]:
    try:
        return list(map(bytes.decode, raws))
    except UnicodeDecodeError:
        texts = []
    for i, raw in enumerate(raws):
        try:
            texts.append(raw.decode())
        except UnicodeDecodeError as problem:
            problems[i] = reason(problem)
            texts.append("null")
    return texts


def _after_all_blanks(text: str) -> tuple[Any, int]:
    if text.startswith("\ufeff"):
        raise ValueError(_incomplete("Unexpected UTF-8 BOM (decode using utf-8-sig)", 0))
    try:
        return _SCAN(text, _after_blanks(text, 0))
    except StopIteration as problem:
        raise ValueError(_incomplete("Expecting value", problem.value)) from None


def _after_blanks(text: str, begin: int) -> int:
    blanks = _BLANKS.match(text, begin)
    return begin if blanks is None else blanks.end()


def reason(problem: Exception) -> str:
    """Return the reason why a text is not a row."""
    if isinstance(problem, json.JSONDecodeError):
        return _incomplete(problem.msg, problem.pos)
    if isinstance(problem, UnicodeDecodeError):
        return f"not UTF-8 at byte {problem.start + 1}"
    return _TOO_DEEP if isinstance(problem, RecursionError) else str(problem)


def _incomplete(what: str, place: int) -> str:
    return f"incomplete JSON object ({what} at character {place + 1})"


def column(values: Sequence[Any], field: pa.Field, as_written: bool, reasons: dict[int, str]) -> pa.Array:
    """Return JSON values as a column, of which texts are :func:`written`; null for those that are none: `reasons` get why.

    Values that are of its type for sure are made together, and each of the others alone.
    """
    if len(reasons) == len(values):
        return pa.nulls(len(values), field.type)
    if reasons:  # such objects cannot be rows, whatever else is wrong with them
        values = list(values)
        for i in reasons:
            values[i] = None
    made, rest, wrong = _together(values, field.type)
    if wrong:
        half = pa.types.is_string(field.type)
        word = _KINDS[_ways(field.type)[0].kinds[0]]
        why = f"column {field.name!r}: {_HALF_A_PAIR}" if half else _misfit(field.name, word, field.type)
        reasons |= dict.fromkeys(wrong, why)
    taken = _taken(field.type)
    if rest and taken:
        misfits = {kind: _misfit(field.name, word, field.type) for kind, word in _KINDS.items() if kind not in taken}
        reasons |= {i: misfits[kind] for i in rest if (kind := type(values[i])) not in taken}
        rest = [i for i in rest if i not in reasons]
    if not rest:
        return made
    convert = converter(field.type, as_written)
    alone: list[Any] = []
    for i in rest:
        try:
            alone.append(convert(values[i]))
        except (ValueError, RecursionError) as problem:
            reasons[i] = f"column {field.name!r}: {problem}" if isinstance(problem, ValueError) else reason(problem)
            alone.append(None)
    if len(rest) == len(values):
        return pa.array(alone, field.type)
    if pa.types.is_nested(field.type) or pa.types.is_binary(field.type):
        every: list[Any] = [None] * len(values)
        for i, value in zip(rest, alone, strict=True):
            every[i] = value
        return pa.array(every, field.type)
    mask = np.zeros(len(values), np.bool_)
    mask[rest] = True
    return pc.replace_with_mask(made, pa.array(mask), pa.array(alone, field.type))


@functools.lru_cache(maxsize=1_024)
def _misfit(name: str, kind: str, type_: pa.DataType) -> str:
    return f"column {name!r}: {_refusal(kind, type_)}"


@functools.cache
def _taken(type_: pa.DataType) -> tuple[type, ...]:
    """Return the classes of JSON values that may be values of a type; none of them for all."""
    is_ = pa.types
    if is_.is_integer(type_):
        return (bytes,)
    if is_.is_floating(type_) or is_.is_decimal(type_):
        return (bytes, str)
    if is_.is_timestamp(type_) or is_.is_date32(type_):
        return (str,)
    return ()


@attrs.frozen
class _TextCast:
    """Texts that become values together.

    Attributes
    ----------
    kinds : tuple of type
        The classes of the JSON values.
    pattern : str
        Which of them are values for sure, for RE2; empty for all.
    casts : tuple of pyarrow.DataType
        The types through which the texts become values.
    other : str
        Which of the others may be values, for RE2; empty for all.
    """

    kinds: tuple[type, ...]
    pattern: str
    casts: tuple[pa.DataType, ...]
    other: str = ""


@functools.cache
def _ways(type_: pa.DataType) -> tuple[_TextCast, ...]:
    is_ = pa.types
    if is_.is_string(type_):
        return (_TextCast((str, bytes), "", ()),)
    if is_.is_signed_integer(type_):
        return (_TextCast((bytes,), INTEGERS[type_.bit_width], (type_,), r"-?\d{1,19}"),)
    if is_.is_float32(type_) or is_.is_float64(type_):
        return (_TextCast((bytes,), _FINITE, (pa.float64(), type_)),)
    if is_.is_date32(type_):
        return (_TextCast((str,), DATE, (type_,), _OTHER_DATE),)
    if is_.is_timestamp(type_) and type_.unit == "us":
        zoned = _TextCast((str,), _ZONED, (pa.timestamp("us", "UTC"), pa.int64(), type_), rf"{_TIME_BEGINS}(?s:.*)")
        return (zoned, _TextCast((str,), _LOCAL, (pa.timestamp("us"), pa.int64(), type_)))
    return ()


def _together(values: Sequence[Any], type_: pa.DataType) -> tuple[pa.Array, list[int], list[int]]:
    """Return the values that are of a type for sure, null for others, and the places of others.

    First the places of those that are to be looked at, then of texts that are no values.
    """
    every_kind, ways = set(map(type, values)), _ways(type_)
    kinds = every_kind - {type(None)}
    if not kinds:
        return pa.nulls(len(values), type_), [], []
    if kinds == {bool} and pa.types.is_boolean(type_):
        return pa.array(values, type_), [], []
    if len(values) < _FEW and not pa.types.is_timestamp(type_):  # each alone is made before a pattern is ready
        return pa.nulls(len(values), type_), [i for i, value in enumerate(values) if value is not None], []
    numbers = _numbers(values, ways[0].casts) if kinds == {bytes} and ways and ways[0].kinds == (bytes,) else None
    if numbers is not None:
        return numbers, [], []
    made, wrong = pa.nulls(len(values), type_), np.zeros(len(values), np.bool_)
    rest = np.ones(len(values), np.bool_)
    if len(kinds) < len(every_kind):
        rest[[i for i, value in enumerate(values) if value is None]] = False
    if ways and (pa.types.is_string(type_) or not kinds.isdisjoint(ways[0].kinds)):
        taken = ways[0].kinds
        some: Sequence[Any] = values
        if not kinds.issubset(taken):
            some = [v if type(v) in taken else None for v in values]
        try:
            texts = pa.array(some, pa.string())
        except UnicodeEncodeError:
            half = np.array([type(v) is str and _HALF.search(v) is not None for v in some], np.bool_)
            texts = pa.array([None if is_half else v for v, is_half in zip(some, half.tolist(), strict=True)], pa.string())
            wrong = half if pa.types.is_string(type_) else wrong
        if pa.types.is_timestamp(type_):
            finer = pc.match_substring_regex(texts, _FINER)
            texts = pc.replace_substring_regex(texts, _FINER, r"\1") if pc.any(finer).as_py() else texts
        for way in ways:
            if not rest.any():
                break
            sure = _matching(texts, way.pattern) if way.pattern else texts.is_valid()
            array = pc.if_else(sure, texts, pa.scalar(None, pa.string()))
            for cast in way.casts:
                array = array.cast(cast, safe=not pa.types.is_float32(cast))
            made = pc.coalesce(made, array)
            rest &= ~flags(sure)
        if ways[0].other and rest.any():
            wrong |= rest & flags(pc.invert(_matching(texts, ways[0].other)))
        if pa.types.is_floating(type_):
            far = [i for i in np.flatnonzero(rest).tolist() if type(values[i]) is bytes and _too_far(values[i])]
            wrong[far] = True
    return made, np.flatnonzero(rest & ~wrong).tolist(), np.flatnonzero(wrong).tolist()


def _numbers(texts: Sequence[Any], casts: Sequence[pa.DataType]) -> pa.Array | None:
    """Return numbers as they were written as numbers, and nulls; None where one is none of the type, or not finite."""
    array = pa.array(texts, pa.string())
    for cast in casts:
        try:
            array = array.cast(cast, safe=not pa.types.is_float32(cast))
        except pa.ArrowInvalid:
            return None
        if pa.types.is_float64(cast) and not pc.all(pc.is_finite(array)).as_py():
            return None
    return array


def _too_far(number: bytes) -> bool:
    return math.isinf(float(number)) and number.decode() not in _FLOATS


def _matching(texts: pa.Array, pattern: str) -> pa.Array:
    return pc.match_substring_regex(texts, rf"\A(?:{pattern})\z")
