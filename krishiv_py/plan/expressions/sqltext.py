"""Quiet SQL parsing: what the parser would log about a text is told by the error for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, Final

import sqlglot
from sqlglot.errors import ParseError

from krishiv_py.plan.durations import to_us

_OURS: Final[ContextVar[bool]] = ContextVar("krishiv_sql_text", default=False)


def _of_others(record: Any) -> bool:
    """Whether a record is of somebody else's use of sqlglot."""
    return not _OURS.get()


_CAPITAL_M: Final = re.compile(r"\s*[\d.]+\s*M\s*")
_LETTER: Final = re.compile(r"[^\W\d_]")
_UNITS: Final = re.compile(r"(\s*[+-]?\s*\d+(\.\d+)?\s*[A-Za-z]+)+\s*")
_POINT: Final = re.compile(r"\.\s*[0-9]")

sqlglot.logger.addFilter(_of_others)


@contextmanager
def quiet_parser() -> Iterator[None]:
    """Let sqlglot log nothing in the body: without a configured logger its warnings land on standard error."""
    token = _OURS.set(True)
    try:
        yield
    finally:
        _OURS.reset(token)


@contextmanager
def one_kind_of_error() -> Iterator[None]:
    """Let every error of the parser be one of its own: for some texts it has a bare ``ValueError``.

    Raises
    ------
    sqlglot.errors.ParseError
        Instead of whatever else the body raises, but for nesting that is too deep.
    """
    try:
        yield
    except (ValueError, TypeError, AttributeError, LookupError) as problem:
        raise ParseError(f"the parser stumbles: {problem}") from problem


def check_points(text: str) -> None:
    """Refuse a number behind a value and a point: of ``1.5.2BD`` the parser would keep the 2, and lose what stands before it.

    Raises
    ------
    sqlglot.errors.ParseError
        For such a text.
    """
    if _POINT.search(text) is None:
        return
    tokens = sqlglot.tokenize(text, dialect="spark")
    for before, point, number in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if point.token_type is not sqlglot.TokenType.DOT or number.token_type is not sqlglot.TokenType.NUMBER:
            continue
        last = text[point.start - 1]
        if before.token_type is sqlglot.TokenType.NUMBER or last.isalnum() or last in "_`'\")]":
            told = text[before.start : number.end + 1]
            raise ParseError(f"{told} is no number, and no name: a name in backquotes may begin with a digit")


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
    for at, token in enumerate(tokens[:-2]):
        value, unit = tokens[at + 1], tokens[at + 2]
        if token is not None and token.text.upper() == "INTERVAL" and value is not None:
            for written in (value.text, f"{value.text} {'' if unit is None else unit.text}"):
                worded = written is value.text and value.token_type is sqlglot.TokenType.STRING and _LETTER.search(written)
                if _CAPITAL_M.fullmatch(written) or (worded and not _UNITS.fullmatch(written)):
                    to_us(written, "INTERVAL")


def one_text(text: str) -> str:
    """The same with ``'it''s'`` written as ``'it\\'s'``: two quotes in a text are one, as in Spark from version 4 on.

    The parser makes two texts of it that follow one another, and loses the quote between them.
    """
    if "''" not in text and '""' not in text:
        return text
    out, at, tokens = "", 0, sqlglot.tokenize(text, dialect="spark")
    for one, other in pairwise(tokens):
        if one.token_type is not sqlglot.TokenType.STRING or other.token_type is not sqlglot.TokenType.STRING:
            continue
        if other.start == one.end + 1 and text[one.end] == text[other.start]:
            out += text[at : one.end] + "\\" + text[one.end]
            at = other.start + 1
    return out + text[at:]
