"""Define what the parser would lose of a text without a word: it is refused before."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlglot
from sqlglot.errors import ParseError

from krishiv_py.functions.known import FUNCTIONS
from krishiv_py.plan.durations import to_us

_CAPITAL_M: Final = re.compile(r"\s*[\d.]+\s*M\s*")
_LETTER: Final = re.compile(r"[^\W\d_]")
_UNITS: Final = re.compile(r"(\s*[+-]?\s*\d+(\.\d+)?\s*[A-Za-z]+)+\s*")
_POINT: Final = re.compile(r"\.\s*[0-9]")
_OTHERS: Final[dict[str, int]] = {
    **dict.fromkeys(("boolean", "date", "double", "float", "int", "string", "timestamp", "timestamp_ltz", "timestamp_ntz"), 1),
    **dict.fromkeys(("array_agg", "array_size", "collect_list"), 1),
    **dict.fromkeys(("array_append", "array_prepend", "left", "mod", "percentile", "right", "trunc"), 2),
    **dict.fromkeys(("any_value", "first", "first_value", "last", "last_value"), 2),
    **dict.fromkeys(("date_diff", "datediff"), 3),
}
"""How many arguments other calls have of which the parser takes more and forgets them."""
_SKIPPING: Final = ("any_value", "first", "first_value", "last", "last_value")
_CALL: Final = re.compile(r"\w\s*\(")


@functools.cache
def _most() -> Mapping[str, int]:
    """Return how many arguments calls of SQL text have; the parser takes more of some and forgets them."""
    known = {name: f.limits[1] + f.zoned for f in FUNCTIONS.values() if f.in_text for name in (f.name, *f.names)}
    return known | _OTHERS


def check_whole(text: str) -> None:
    """Refuse a text of which the parser would leave a part out.

    Raises
    ------
    sqlglot.errors.ParseError
        For a number after a value and a point, of which only the number would be kept (``1.5.2BD``), and for arguments that
        would be forgotten (``to_timestamp(s, 'yyyy', 'UTC')``).
    """
    if _POINT.search(text) is None and _CALL.search(text) is None:
        return
    tokens = sqlglot.tokenize(text, dialect="spark")
    for i, token in enumerate(tokens):
        kind, before = token.token_type, tokens[i - 1] if i else None
        if kind is sqlglot.TokenType.NUMBER and before is not None and before.token_type is sqlglot.TokenType.DOT and i > 1:
            _check_point(tokens[i - 2], before, token, text)
        if kind is sqlglot.TokenType.L_PAREN and before is not None and before.text.lower() in _most():
            _check_call(before.text.lower(), _arguments(tokens, i + 1))


def _check_point(before: Any, point: Any, number: Any, text: str) -> None:
    last = text[point.start - 1]
    if before.token_type is sqlglot.TokenType.NUMBER or last.isalnum() or last in "_`'\")]":
        text_of = text[before.start : number.end + 1]
        raise ParseError(f"{text_of} is not a number and not a name: a name in backquotes may begin with a digit")


def _arguments(tokens: Sequence[Any], begin: int) -> list[list[str]]:
    """Return the texts of the arguments that begin at a token, up to the bracket that closes."""
    depth = 0
    arguments: list[list[str]] = [[]]
    for place in range(begin, len(tokens)):  # no slice: a text may have thousands of calls
        token = tokens[place]
        kind = token.token_type
        if depth == 0 and kind is sqlglot.TokenType.COMMA:
            arguments.append([])
            continue
        depth += kind in (sqlglot.TokenType.L_PAREN, sqlglot.TokenType.L_BRACKET)
        depth -= kind in (sqlglot.TokenType.R_PAREN, sqlglot.TokenType.R_BRACKET)
        if depth < 0:
            break
        arguments[-1].append(token.text)
    return arguments


def _check_call(name: str, arguments: list[list[str]]) -> None:
    if name == "exists" and arguments and arguments[0][:1] and arguments[0][0].upper() in ("SELECT", "WITH"):
        return
    most = _most().get(name)
    if most is not None and len(arguments) > most:
        raise ParseError(f"{name} takes at most {most} argument{'s' if most > 1 else ''}, not {len(arguments)}")
    if name in _SKIPPING and len(arguments) == 2 and [a.lower() for a in arguments[1]] != ["true"]:
        raise ParseError(f"{name} skips nulls: its second argument is true; MIN_BY(x, ts) and MAX_BY(x, ts) give nulls too")
    if name == "named_struct" and len(arguments) % 2:
        raise ParseError(f"named_struct takes names and values by turns, not {len(arguments)} arguments")


def check_units(text: str) -> None:
    """Refuse ``INTERVAL '1' M`` as durations do, and ``INTERVAL '1 day 2'``.

    The parser makes a minute of the one and a day of the other, and keeps no trace of what was written.

    Raises
    ------
    DurationError
        For such a text.
    """
    if "INTERVAL" not in text.upper():
        return
    tokens = [*sqlglot.tokenize(text, dialect="spark"), None, None]
    for i, token in enumerate(tokens[:-2]):
        value, unit = tokens[i + 1], tokens[i + 2]
        if token is not None and token.text.upper() == "INTERVAL" and value is not None:
            for written in (value.text, f"{value.text} {'' if unit is None else unit.text}"):
                worded = written is value.text and value.token_type is sqlglot.TokenType.STRING and _LETTER.search(written)
                if _CAPITAL_M.fullmatch(written) or (worded and not _UNITS.fullmatch(written)):
                    to_us(written, "INTERVAL")
