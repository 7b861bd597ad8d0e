"""Spellings that the parser has no rules for: Flink's table functions, and functions called like keywords."""

from __future__ import annotations

from typing import Any, Final

import sqlglot

_KEYWORDS: Final = frozenset({"WINDOW", "SESSION"})
_TABLE_FUNCTIONS: Final = frozenset({"TUMBLE", "HOP", "CUMULATE", "SESSION"})
PARTITION: Final = "partition_by"
"""What stands for PARTITION BY in the arguments of a table function."""


def readable(text: str) -> str:
    """Return the `text` of a statement as the parser reads it.

    ``TUMBLE(TABLE t, ...)`` loses its TABLE, ``SESSION(t PARTITION BY a, ...)`` gets ``partition_by(a)`` as an argument, and
    ``window(...)``, ``window.start`` and ``session(...)`` are put in backquotes.

    Raises
    ------
    sqlglot.errors.TokenError
        For text that is none.
    """
    tokens = sqlglot.tokenize(text, dialect="spark")
    changes: list[tuple[int, int, str]] = []
    for i, token in enumerate(tokens):
        word = _word(tokens, i, text)
        if word in _KEYWORDS and _names(tokens, i, text):
            changes.append((token.start, token.end + 1, f"`{text[token.start : token.end + 1]}`"))
        if word in _TABLE_FUNCTIONS and _word(tokens, i + 1, text) == "(":
            changes += _arguments(tokens, i + 2, text)
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _word(tokens: list[Any], i: int, text: str) -> str:
    """Return a token as it is in the text, in capitals; so a name in quotes is not a keyword."""
    return text[tokens[i].start : tokens[i].end + 1].upper() if 0 <= i < len(tokens) else ""


def _names(tokens: list[Any], i: int, text: str) -> bool:
    """Return whether a keyword is meant as a name: not in ``WINDOW w AS (...)`` and ``SESSION`` settings."""
    following = _word(tokens, i + 1, text)
    if _word(tokens, i, text) == "SESSION":
        return following == "("
    return not (following not in ("", "(", ".", ",", ")", "AS") and _word(tokens, i + 2, text) == "AS")


def _after_parenthesis(tokens: list[Any], i: int, text: str) -> int:
    """Return the token after the brackets that open at a token."""
    depth = 0
    while (word := _word(tokens, i, text)) != "":
        depth += (word == "(") - (word == ")")
        i += 1
        if depth == 0:
            break
    return i


def _arguments(tokens: list[Any], i: int, text: str) -> list[tuple[int, int, str]]:
    """Changes in the arguments of a table function, which begin at a token."""
    changes: list[tuple[int, int, str]] = []
    while _word(tokens, i + 1, text) == "=>" and _word(tokens, i, text) != "DATA":  # another one by name, before the table
        i += 2
        while _word(tokens, i, text) not in ("", ",", ")"):
            i = _after_parenthesis(tokens, i, text) if _word(tokens, i, text) == "(" else i + 1
        i += 1
    if _word(tokens, i, text) == "DATA" and _word(tokens, i + 1, text) == "=>":
        i += 2
    if _word(tokens, i, text) == "TABLE" and _word(tokens, i + 1, text) not in ("(", "", ",", ")"):
        changes.append((tokens[i].start, tokens[i].end + 1, ""))
        i += 1
    elif _word(tokens, i, text) == "(":
        i = _after_parenthesis(tokens, i, text)
    while _word(tokens, i, text) not in ("", ",", "(", ")") and not _word(tokens, i, text).startswith("PARTITION"):
        i += 1
    if _word(tokens, i, text).split() == ["PARTITION", "BY"]:  # one token of two words
        changes.append((tokens[i].start, tokens[i].end + 1, f", {PARTITION}("))
        i += 1
        while _word(tokens, i, text) not in ("", ")"):
            if _word(tokens, i, text) == "," and (
                _word(tokens, i + 1, text) == "DESCRIPTOR" or _word(tokens, i + 2, text) == "=>"
            ):
                break
            i = _after_parenthesis(tokens, i, text) if _word(tokens, i, text) == "(" else i + 1
        if _word(tokens, i, text):
            changes.append((tokens[i].start, tokens[i].start, ")"))
    return changes
