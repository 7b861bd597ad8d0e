"""Patterns of ``date_format``, with the letters of Java's that give the same text everywhere."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import attrs

from krishiv_py.errors import ExpressionError, shown

_COUNTS: Final = {
    "y": (2, 4),
    "M": (1, 2, 3, 4),
    "d": (1, 2),
    "D": (1, 3),
    "E": (1, 2, 3, 4),
    "H": (1, 2),
    "h": (1, 2),
    "m": (1, 2),
    "s": (1, 2),
    "S": (1, 2, 3, 4, 5, 6),
    "a": (1,),
}


@attrs.frozen
class Piece:
    """So many times a letter, or plain text."""

    letter: str = ""
    count: int = 0
    text: str = ""


def pieces_of(pattern: str) -> list[Piece]:
    """A pattern in pieces.

    Raises
    ------
    ExpressionError
        For letters, or numbers of them, that are not known here.
    """
    out: list[Piece] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        end = position + 1
        if char == "'":
            end = pattern.find("'", position + 1)
            if end < 0:
                raise _unknown(pattern, "a quotation mark that is not closed")
            out.append(Piece(text=pattern[position + 1 : end] or "'"))
            end += 1
        elif char.isascii() and char.isalpha():
            while end < len(pattern) and pattern[end] == char:
                end += 1
            if end - position not in _COUNTS.get(char, ()):
                raise _unknown(pattern, pattern[position:end])
            out.append(Piece(char, end - position))
        elif char in "[]{}#" or ord(char) > 0x7F:
            raise _unknown(pattern, char)
        else:
            out.append(Piece(text=char))
        position = end
    return out


_READ: Final = {
    ("y", 4): "(?P<y>[0-9]{4})",
    ("M", 1): "(?P<m>[0-9]{1,2})",
    ("M", 2): "(?P<m>[0-9]{2})",
    ("d", 1): "(?P<d>[0-9]{1,2})",
    ("d", 2): "(?P<d>[0-9]{2})",
    ("H", 1): "(?P<H>[0-9]{1,2})",
    ("H", 2): "(?P<H>[0-9]{2})",
    ("m", 1): "(?P<M>[0-9]{1,2})",
    ("m", 2): "(?P<M>[0-9]{2})",
    ("s", 1): "(?P<S>[0-9]{1,2})",
    ("s", 2): "(?P<S>[0-9]{2})",
}
_SPECIAL: Final = frozenset(r"\.^$|?*+()[]{}")
_ALL_GROUPS: Final = "ymdHMSf"


def check_read(pattern: str) -> None:
    """Refuse a pattern by which no text can be read as a time.

    Raises
    ------
    ExpressionError
        For names of months and days, halves of days, years of two digits, and what is there twice.
    """
    read_regex(pattern)


@lru_cache(maxsize=256)
def read_regex(pattern: str) -> str:
    """The regular expression of texts that a pattern reads, with a group for each part of the time; empty ones are not read."""
    out: list[str] = []
    seen: list[str] = []
    for piece in pieces_of(pattern):
        if piece.text:
            out.append("".join("\\" + c if c in _SPECIAL else c for c in piece.text))
            continue
        group = f"(?P<f>[0-9]{{1,{piece.count}}})" if piece.letter == "S" else _READ.get((piece.letter, piece.count))
        if group is None or piece.letter in seen:
            raise ExpressionError(
                "texts cannot be read by this pattern",
                got=shown(pattern),
                then=f"{piece.letter * piece.count} is not read, or is there twice",
                hint="use yyyy, MM or M, dd or d, HH or H, mm or m, ss or s, S to SSSSSS, and text in single quotes",
            )
        seen.append(piece.letter)
        out.append(group)
    known = {"y": "y", "M": "m", "d": "d", "H": "H", "m": "M", "s": "S", "S": "f"}
    missing = [g for g in _ALL_GROUPS if g not in {known[letter] for letter in seen}]
    return "^" + "".join(out) + "".join(f"(?P<{g}>)" for g in missing) + r"\z"


def _unknown(pattern: str, what: str) -> ExpressionError:
    return ExpressionError(
        "the pattern of a time cannot be read",
        got=shown(pattern),
        then=f"it has {what}",
        hint="use yyyy MM dd HH mm ss SSSSSS, yy, MMM, MMMM, E, EEEE, hh, a, and text in single quotes",
    )
