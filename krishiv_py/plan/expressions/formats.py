"""Patterns of ``date_format``, with the letters of Java's that give the same text everywhere; schemas of ``from_json``."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import attrs
import pyarrow as pa

from krishiv_py.errors import ExpressionError, SchemaError, message, shown
from krishiv_py.lazy import lazy

if TYPE_CHECKING:
    from krishiv_py.plan.expressions import parse
else:
    parse = lazy("krishiv_py.plan.expressions.parse")

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


@lru_cache(maxsize=256)
def json_type(text: str) -> pa.DataType:
    """The struct of a DDL schema such as ``"id bigint, tags array<string>"``.

    Raises
    ------
    ExpressionError
        For what is no schema, and for types that are not read from JSON.
    """
    try:
        schema = parse.parse_schema(text)
    except SchemaError as problem:
        raise ExpressionError(f"from_json: {problem}") from problem
    if len(set(schema.names)) < len(schema.names):
        raise _unread("two fields of one name", text)
    for field in schema:
        _check(field.type, text)
    return pa.struct(list(schema))


def _check(type_: pa.DataType, text: str) -> None:
    if pa.types.is_struct(type_):
        if len({f.name for f in type_}) < type_.num_fields:
            raise _unread("two fields of one name", text)
        for field in type_:
            _check(field.type, text)
    elif pa.types.is_list(type_):
        _check(type_.value_type, text)
    elif not (
        pa.types.is_string(type_) or pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_)
    ):
        raise _unread(str(type_), text)


def _unread(what: str, text: str) -> ExpressionError:
    return ExpressionError(
        message(
            f"from_json does not read {what}",
            shown(text),
            "its values would be others than Spark's",
            "read string, boolean, whole and floating-point numbers, struct and array; cast a string to anything else",
        )
    )
