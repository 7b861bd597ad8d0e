"""Quiet SQL parsing: what the parser would log about a text is in the error for it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, Final

import sqlglot
from sqlglot import expressions as sg
from sqlglot.errors import ParseError

from krishiv_py.functions.known import FUNCTIONS

_ZONELESS: Final = re.compile(r"\bwithout\s+time\s+zone\b", re.IGNORECASE)
_OURS: Final[ContextVar[bool]] = ContextVar("krishiv_sql_text", default=False)


def _of_others(record: Any) -> bool:
    """Return whether a record is of somebody else's use of sqlglot."""
    return not _OURS.get()


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


def respelled(text: str) -> str:
    """Return the same in spellings that the parser reads.

    Two quotes in a text are one, as in Spark from version 4 on: ``'it''s'`` becomes ``'it\\'s'``. The parser makes two texts of
    it that follow one another, and loses the quote between them. ``TIMESTAMP WITHOUT TIME ZONE`` becomes ``TIMESTAMP_NTZ``: the
    parser reads a timestamp with a zone. ``hour(at, 'Europe/Berlin')``, which the parser refuses, gets a name of ours, and so
    does ``from_utc_timestamp``, which it takes for ``AT TIME ZONE``.
    """
    text = _with_zones(text)
    zoneless = _ZONELESS.search(text) is not None
    if "''" not in text and '""' not in text and not zoneless:
        return text
    out, position, tokens = "", 0, sqlglot.tokenize(text, dialect="spark")
    for one, other in pairwise(tokens):
        if one.token_type is not sqlglot.TokenType.STRING or other.token_type is not sqlglot.TokenType.STRING:
            continue
        if other.start == one.end + 1 and text[one.end] == text[other.start]:
            out += text[position : one.end] + "\\" + text[one.end]
            position = other.start + 1
    out += text[position:]
    return _without_zone(out) if zoneless else out


ZONED: Final = "krishiv_zoned_"
"""In front of the names of functions whose last argument is a time zone."""


@functools.cache
def _of_zones() -> tuple[Mapping[str, int], re.Pattern[str]]:
    """Return how many arguments functions have that end with a time zone, 0 for those that always do; and how a call begins."""
    widths: dict[str, int] = {}
    for known in FUNCTIONS.values():
        zone = known.params[-1]
        if known.in_text and (known.zoned or zone.kind == "Zone"):
            many = known.limits[1] + known.zoned if known.zoned or zone.optional else 0
            widths |= dict.fromkeys((known.name, *known.names), many)
    return widths, re.compile(rf"\b(?:{'|'.join(widths)})\s*\(", re.IGNORECASE)


def _with_zones(text: str) -> str:
    """Return the same with functions that have a time zone under names of ours."""
    if "(" not in text or _of_zones()[1].search(text) is None:
        return text
    tokens = sqlglot.tokenize(text, dialect="spark")
    calls: list[list[int]] = []  # of open brackets: where the function comes before it, and how many arguments so far
    tokens_out = []
    for i, token in enumerate(tokens):
        kind = token.token_type
        if kind in (sqlglot.TokenType.L_PAREN, sqlglot.TokenType.L_BRACKET):
            calls.append([i - 1, 1])
        elif kind is sqlglot.TokenType.COMMA and calls:
            calls[-1][1] += 1
        elif kind in (sqlglot.TokenType.R_PAREN, sqlglot.TokenType.R_BRACKET) and calls:
            name, n = calls.pop()
            wanted = _of_zones()[0].get(text[tokens[name].start : tokens[name].end + 1].lower()) if name >= 0 else None
            if wanted is not None and wanted in (0, n):
                tokens_out.append(tokens[name].start)
    for start in sorted(tokens_out, reverse=True):
        text = text[:start] + ZONED + text[start:]
    return text


def _without_zone(text: str) -> str:
    """``TIMESTAMP_NTZ`` for ``TIMESTAMP WITHOUT TIME ZONE``; not inside of texts, which are tokens of their own."""
    tokens = sqlglot.tokenize(text, dialect="spark")
    words = [text[t.start : t.end + 1].upper() for t in tokens]
    for i in range(len(words) - 3, 0, -1):
        if words[i : i + 3] != ["WITHOUT", "TIME", "ZONE"]:
            continue
        type_ = i - 1 if words[i - 1] != ")" else i - 4  # TIMESTAMP(3) WITHOUT TIME ZONE
        if type_ >= 0 and words[type_] == "TIMESTAMP":
            rest = text[: tokens[i].start] + text[tokens[i + 2].end + 1 :]
            text = rest[: tokens[type_].start] + "TIMESTAMP_NTZ" + rest[tokens[type_].end + 1 :]
    return text


def note_quotes(tree: sg.Expression, text: str) -> None:
    """Note on each text constant of a `tree` that was parsed from `text` whether it was written in double quotes.

    Spark reads ``"a"`` as a text, other systems as the column ``a``. The parser keeps only the place of a constant.
    """
    if '"' not in text:
        return
    for node in tree.find_all(sg.Literal):
        start = node.meta.get("start")
        if isinstance(node.parent, (sg.Bracket, sg.Column)):
            continue  # m["a"], the key of a map or a field; e."a", a name
        if node.is_string and start is not None and text[start : start + 1] == '"':
            node.meta["doubled"] = True


def is_doubled(node: object) -> bool:
    """Return whether a node is a text constant in double quotes."""
    return isinstance(node, sg.Literal) and bool(node.is_string) and bool(node.meta.get("doubled"))


def spelled(node: Any) -> str:
    """Return a node as text; its kind where the parser cannot write what it has read: ``match_against(a, b)``."""
    try:
        return str(node.sql("spark"))
    except (ValueError, TypeError, AttributeError, LookupError):
        return str(node.key)
