"""Patterns of ``date_format``: the letters of Java's ``DateTimeFormatter`` that give the same text everywhere."""

from __future__ import annotations

from typing import Final

import attrs

from krishiv_py.errors import ExpressionError, message, shown

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
    at = 0
    while at < len(pattern):
        char = pattern[at]
        end = at + 1
        if char == "'":
            end = pattern.find("'", at + 1)
            if end < 0:
                raise _unknown(pattern, "a quotation mark that is not closed")
            out.append(Piece(text=pattern[at + 1 : end] or "'"))
            end += 1
        elif char.isascii() and char.isalpha():
            while end < len(pattern) and pattern[end] == char:
                end += 1
            if end - at not in _COUNTS.get(char, ()):
                raise _unknown(pattern, pattern[at:end])
            out.append(Piece(char, end - at))
        elif char in "[]{}#" or ord(char) > 0x7F:
            raise _unknown(pattern, char)
        else:
            out.append(Piece(text=char))
        at = end
    return out


def _unknown(pattern: str, what: str) -> ExpressionError:
    return ExpressionError(
        message(
            "the pattern of a time cannot be read",
            shown(pattern),
            f"it has {what}",
            "use yyyy MM dd HH mm ss SSSSSS, yy, MMM, MMMM, E, EEEE, hh, a, and text in single quotes",
        )
    )
