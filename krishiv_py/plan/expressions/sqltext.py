"""SQL text before it is parsed: what the parser would log or lose is in an error."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import Any, Final

import sqlglot
from sqlglot import expressions as sg
from sqlglot.errors import ParseError

from krishiv_py.errors import ExpressionError, shown
from krishiv_py.functions.known import FUNCTIONS
from krishiv_py.plan.durations import to_us
from krishiv_py.plan.names import encodable

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
    except ExpressionError:
        raise
    except (ValueError, TypeError, AttributeError, LookupError) as problem:
        raise ParseError(f"the parser stumbles: {problem}") from problem


def respelled(text: str) -> str:
    """Return a text in spellings that the parser reads.

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
    """Return a text with functions that have a time zone under names of ours."""
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
"""The number of arguments of other calls, of which the parser takes more and forgets them."""
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
        For a number after a value and a point, of which only the number would be kept (``1.5.2BD``).
    ExpressionError
        For arguments that would be forgotten (``to_timestamp(s, 'yyyy', 'UTC')``), and half a surrogate pair.
    """
    if not encodable(text):
        raise ExpressionError("a text cannot be written as UTF-8", got=shown(text), hint="leave out half surrogate pairs")
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
        what = f"{name} takes at most {most} argument{'s' if most > 1 else ''}, not {len(arguments)}"
        known = next((f for f in FUNCTIONS.values() if name in (f.name, *f.names)), None)
        names = ", ".join(["x"] * most if known is None else [p.name for p in known.params])
        raise ExpressionError(what, got=_call_text(name, arguments), hint=f"write {name}({names})")
    if name in _SKIPPING and len(arguments) == 2 and [a.lower() for a in arguments[1]] != ["true"]:
        hint = f"write {name.upper()}(x), or MIN_BY(x, ts) and MAX_BY(x, ts), which give nulls too"
        raise ExpressionError(f"{name} skips nulls: its second argument is true", got=_call_text(name, arguments), hint=hint)
    if name == "named_struct" and len(arguments) % 2:
        hint = "write named_struct('a', x, 'b', y)"
        what = f"named_struct takes names and values by turns, not {len(arguments)} arguments"
        raise ExpressionError(what, got=_call_text(name, arguments), hint=hint)


def _call_text(name: str, arguments: list[list[str]]) -> str:
    return f"{name}({', '.join(' '.join(a) for a in arguments)})"


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
