"""Patterns of JSON texts that are rows as far as can be seen at a glance, for one look at all texts of a block.

Arrow refuses a whole block for one text. Which one, a pattern tells in a part of the time that Arrow takes to read it. A
pattern decides on speed only: what it takes Arrow still reads, and may refuse, and what it leaves out is read by Python.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.connectors.json_values import DATE, FINE_DATE, INTEGERS, NUMBER, TIME
from krishiv_py.functions.computing.text import flags
from krishiv_py.functions.computing.values import Mask

_WS: Final = r"[ \t\r\n]*"
_PLAIN: Final = r'[^"\\\x00-\x1f]'
_HALF: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_CODE: Final = r"\\u(?:[0-9a-ce-fA-CE-F][0-9a-fA-F]|[dD][0-7])[0-9a-fA-F]{2}"
_TEXT: Final = rf'"(?:{_PLAIN}|\\["\\/bfnrt]|{_CODE}|{_HALF})*"'
_WORDS: Final = "true|false|null"
_LEVELS: Final = 4
"""So deep may a value be that nobody asks for."""
_LONGEST: Final = 200_000
"""Longer patterns take more memory than RE2 has."""
_FINE: Final = rf'"{FINE_DATE}(?:[ T][0-9:.Z+-]*)?"'
"""Times in nanoseconds: Arrow refuses the others."""


def _any() -> str:
    nested = r'[\[{](?:[^"\[\]{}]|' + _TEXT + r")*[\]}]"
    for _ in range(_LEVELS - 1):
        nested = r'[\[{](?:[^"\[\]{}]|' + _TEXT + "|" + nested + r")*[\]}]"
    return f"(?:{_TEXT}|{NUMBER}|{_WORDS}|{nested})"


_ANY: Final = _any()


@attrs.frozen
class RowShape:
    """The shape of rows.

    Attributes
    ----------
    row : str
        A pattern of objects whose wanted columns have values of their types.
    twice : str
        A pattern of texts in which a wanted name may appear twice.
    """

    row: str
    twice: str

    def rows(self, texts: pa.Array) -> Mask:
        """Return which of some texts look like rows."""
        return _matching(texts, self.row)

    def doubtful(self, texts: pa.Array) -> Mask:
        """Return which of some texts may have a name twice, or begin with a comma."""
        return _matching(texts, rf"\A,|{self.twice}")


def _matching(texts: pa.Array, pattern: str) -> Mask:
    try:
        return flags(pc.match_substring_regex(texts, pattern))
    except pa.ArrowInvalid:  # too large for RE2
        return np.zeros(len(texts), np.bool_)


@functools.lru_cache(maxsize=64)
def shape(schema: pa.Schema, spelling: tuple[tuple[str, str], ...], any_case: bool, unit: str) -> RowShape | None:
    """Return the shape of rows of a schema, whose names are spelt so; None where no pattern can tell.

    `any_case` says that other spellings of a name mean it too; `unit` is that in which Arrow reads times.
    """
    try:
        pair = _pair([(f.name, f.type) for f in schema], dict(spelling), any_case, unit)
    except _NoPatternError:
        return None
    row = rf"\A(?:(?:\A{_WS}\{{|,){_WS}{pair}{_WS})+\}}{_WS}\z"  # a pair once: RE2 takes its time for long patterns
    twice = named_twice([dict(spelling).get(name, name) for name in schema.names])
    return RowShape(row, twice) if len(row) <= _LONGEST else None


def named_twice(names: Sequence[str]) -> str:
    """Return a pattern of texts in which one of some names may appear twice, unless it is escaped."""
    return "|".join(f'(?s:"{name}"{_WS}:.*"{name}"{_WS}:)' for name in map(re.escape, names))


class _NoPatternError(Exception):
    """No pattern can tell."""


def _pair(fields: Sequence[tuple[str, pa.DataType]], spelling: dict[str, str], any_case: bool, unit: str) -> str:
    """Return a pattern of a name and its value."""
    by_value: dict[str, list[str]] = {}
    for name, type_ in fields:
        by_value.setdefault(_value(type_, spelling, any_case, unit), []).append(re.escape(spelling.get(name, name)))
    pairs = [f'"(?:{"|".join(names)})"{_WS}:{_WS}(?:{value}|null)' for value, names in by_value.items()]
    pairs.append(rf'"{_other([name for name, _ in fields], any_case)}{_WS}:{_WS}{_ANY}')
    return f"(?:{'|'.join(pairs)})"


def _value(type_: pa.DataType, spelling: dict[str, str], any_case: bool, unit: str) -> str:
    is_ = pa.types
    if is_.is_boolean(type_):
        return "true|false"
    if is_.is_signed_integer(type_):
        return INTEGERS[type_.bit_width]
    if is_.is_floating(type_):
        return NUMBER
    if is_.is_string(type_):
        return _TEXT
    if is_.is_date32(type_):
        return f'"{DATE}"'
    if is_.is_timestamp(type_):
        return f'"{TIME}"' if unit == "us" else _FINE
    if is_.is_list(type_):
        item = f"(?:{_value(type_.value_type, spelling, any_case, unit)}|null){_WS}"
        return rf"\[{_WS}(?:{item}(?:,{_WS}{item})*)?\]"
    if is_.is_struct(type_):
        pair = _pair([(f.name, f.type) for f in type_], spelling, any_case, unit) + _WS
        return rf"\{{{_WS}(?:{pair}(?:,{_WS}{pair})*)?\}}"
    raise _NoPatternError


def _other(names: Sequence[str], any_case: bool) -> str:
    """Return a pattern of the rest of a name, and its quote, that is none of some names."""
    folded = {name.lower() if any_case else name for name in names}
    if any(re.search(r'["\\\x00-\x1f]', name) for name in names) or (any_case and len(folded) < len(names)):
        raise _NoPatternError
    if any_case and not all(name.isascii() for name in folded):
        raise _NoPatternError
    return _none_of(folded, r"\x{130}\x{212a}" if any_case else "", any_case)  # whose small letters are those of ASCII


def _none_of(endings: set[str], never: str, any_case: bool) -> str:
    following: dict[str, set[str]] = {}
    for ending in endings - {""}:
        following.setdefault(ending[0], set()).add(ending[1:])
    letters = {c: (f"[{c}{c.upper()}]" if any_case and c.isalpha() else re.escape(c)) for c in following}
    begun = "".join(f"{c}{c.upper()}" if any_case and c.isalpha() else re.escape(c) for c in following)
    free = rf'[^"\\\x00-\x1f{never}]*"'
    parts = [rf'[^"\\\x00-\x1f{never}{begun}]{free}']
    parts += [letters[c] + _none_of(rest, never, any_case) for c, rest in following.items()]
    if "" not in endings:
        parts.append('"')
    return f"(?:{'|'.join(parts)})"
