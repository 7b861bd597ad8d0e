"""Spellings that the parser has no rules for: Flink's table functions, and functions called like keywords."""

from __future__ import annotations

from typing import Any, Final

import sqlglot

_KEYWORDS: Final = frozenset({"WINDOW", "SESSION"})
_TABLE_FUNCTIONS: Final = frozenset({"TUMBLE", "HOP", "CUMULATE", "SESSION"})
PARTITION: Final = "partition_by"
"""What stands for PARTITION BY in the arguments of a table function."""


def readable(text: str) -> str:
    """The `text` of a statement as the parser reads it.

    ``TUMBLE(TABLE t, ...)`` loses its TABLE, ``SESSION(t PARTITION BY a, ...)`` gets ``partition_by(a)`` as an argument, and
    ``window(...)``, ``window.start`` and ``session(...)`` are put in backquotes.

    Raises
    ------
    sqlglot.errors.TokenError
        For text that is none.
    """
    tokens = sqlglot.tokenize(text, dialect="spark")
    changes: list[tuple[int, int, str]] = []
    for at, token in enumerate(tokens):
        word = _word(tokens, at, text)
        if word in _KEYWORDS and _names(tokens, at, text):
            changes.append((token.start, token.end + 1, f"`{text[token.start : token.end + 1]}`"))
        if word in _TABLE_FUNCTIONS and _word(tokens, at + 1, text) == "(":
            changes += _arguments(tokens, at + 2, text)
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _word(tokens: list[Any], at: int, text: str) -> str:
    """A token as it is in the text, in capitals; so a name in quotes is not a keyword."""
    return text[tokens[at].start : tokens[at].end + 1].upper() if 0 <= at < len(tokens) else ""


def _names(tokens: list[Any], at: int, text: str) -> bool:
    """Return whether a keyword is meant as a name: not in ``WINDOW w AS (...)`` and ``SESSION`` settings."""
    following = _word(tokens, at + 1, text)
    if _word(tokens, at, text) == "SESSION":
        return following == "("
    return not (following not in ("", "(", ".", ",", ")", "AS") and _word(tokens, at + 2, text) == "AS")


def _behind(tokens: list[Any], at: int, text: str) -> int:
    """The token behind the brackets that open at a token."""
    depth = 0
    while (word := _word(tokens, at, text)) != "":
        depth += (word == "(") - (word == ")")
        at += 1
        if depth == 0:
            break
    return at


def _arguments(tokens: list[Any], at: int, text: str) -> list[tuple[int, int, str]]:
    """Changes in the arguments of a table function, which begin at a token."""
    changes: list[tuple[int, int, str]] = []
    while _word(tokens, at + 1, text) == "=>" and _word(tokens, at, text) != "DATA":  # another one by name, before the table
        at += 2
        while _word(tokens, at, text) not in ("", ",", ")"):
            at = _behind(tokens, at, text) if _word(tokens, at, text) == "(" else at + 1
        at += 1
    if _word(tokens, at, text) == "DATA" and _word(tokens, at + 1, text) == "=>":
        at += 2
    if _word(tokens, at, text) == "TABLE" and _word(tokens, at + 1, text) not in ("(", "", ",", ")"):
        changes.append((tokens[at].start, tokens[at].end + 1, ""))
        at += 1
    elif _word(tokens, at, text) == "(":
        at = _behind(tokens, at, text)
    while _word(tokens, at, text) not in ("", ",", "(", ")") and not _word(tokens, at, text).startswith("PARTITION"):
        at += 1
    if _word(tokens, at, text).split() == ["PARTITION", "BY"]:  # one token of two words
        changes.append((tokens[at].start, tokens[at].end + 1, f", {PARTITION}("))
        at += 1
        while _word(tokens, at, text) not in ("", ")"):
            if _word(tokens, at, text) == "," and (
                _word(tokens, at + 1, text) == "DESCRIPTOR" or _word(tokens, at + 2, text) == "=>"
            ):
                break
            at = _behind(tokens, at, text) if _word(tokens, at, text) == "(" else at + 1
        if _word(tokens, at, text):
            changes.append((tokens[at].start, tokens[at].start, ")"))
    return changes
