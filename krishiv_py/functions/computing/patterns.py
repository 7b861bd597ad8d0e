"""Patterns of LIKE and Java's regular expressions as RE2 reads them; what RE2 would read in another way is refused."""

from __future__ import annotations

from typing import Final, NoReturn

import attrs

from krishiv_py.errors import ExpressionError, shown

_SPACES: Final = r"\t\n\x0B\f\r "
_LINE_ENDS: Final = r"\n\r\x{85}\x{2028}\x{2029}"
_END: Final = rf"(?:\r\n|[{_LINE_ENDS}])?\z"
_MOST_REPEATS: Final = 1_000


def like_regex(pattern: str) -> str:
    """The regular expression of a LIKE pattern: ``%`` any text, ``_`` one character, a backslash takes the next as it is."""
    out = [r"(?s)\A"]
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == "\\":
            position += 1
            if position == len(pattern) or pattern[position] not in "%_\\":
                what = "a LIKE pattern has a backslash before another character"
                hint = r"write \% for a percent sign, \_ for an underscore, \\ for a backslash"
                raise ExpressionError(what, got=shown(pattern), then="Spark reads no such pattern", hint=hint)
            out.append(_plain(pattern[position]))
        else:
            out.append({"%": ".*", "_": "."}.get(char) or _plain(char))
        position += 1
    return "".join(out) + r"\z"


@attrs.frozen
class Regex:
    """A regular expression as RE2 reads it."""

    text: str
    """With one group called ``v`` if one was asked for, otherwise with the groups as they were."""
    groups: int
    nullable: bool
    """It matches an empty text."""
    to_end: bool
    """It has a ``$``, which in Java comes before a last line end too."""
    anchored: bool
    hidden: bool
    """A group lies within something that is repeated."""


def java_regex(pattern: str, group: int | None = None) -> Regex:
    """Java's regular expression `pattern` for RE2.

    Raises
    ------
    ExpressionError
        For what RE2 does not know or reads in another way: look-around, back references, flags, word bounds, possessive
        repeats, Unicode classes, repeats of what may be empty.
    """
    return _Reader(pattern, group).regex()


def _plain(char: str) -> str:
    return char if char.isalnum() or ord(char) > 0x7F else f"\\x{{{ord(char):x}}}"


class _Reader:
    """Goes through a pattern once."""

    def __init__(self, pattern: str, group: int | None) -> None:
        self.pattern, self.group = pattern, group
        self.position = self.groups = self.depth = 0
        self.to_end = self.anchored = self.hidden = False

    def regex(self) -> Regex:
        text, nullable = self.either()
        if self.position < len(self.pattern):
            self.refuse("a closing bracket without its opening one")
        if self.group == 0:
            text = f"(?P<v>{text})"
        return Regex(text, self.groups, nullable, self.to_end, self.anchored, self.hidden)

    def refuse(self, what: str) -> NoReturn:
        raise ExpressionError(
            "the regular expression cannot be evaluated as Spark does",
            got=shown(self.pattern),
            then=f"position {self.position} has {what}",
            hint="write it with characters, classes such as [a-z] and \\d, groups, |, and repeats; or use map_batches",
        )

    def peek(self) -> str:
        return self.pattern[self.position : self.position + 1]

    def take(self) -> str:
        char = self.peek()
        if not char:
            self.refuse("its end too early")
        self.position += 1
        return char

    def either(self) -> tuple[str, bool]:
        texts, nullable = [], False
        while True:
            text, empty = self.sequence()
            texts.append(text)
            nullable |= empty
            if self.peek() != "|":
                return "|".join(texts), nullable
            self.position += 1

    def sequence(self) -> tuple[str, bool]:
        texts, nullable = [], True
        while self.peek() not in ("", "|", ")"):
            text, empty = self.repeated()
            texts.append(text)
            nullable &= empty
        return "".join(texts), nullable

    def repeated(self) -> tuple[str, bool]:
        before = self.groups
        own = self.peek() == "(" and self.pattern[self.position + 1 : self.position + 2] != "?"
        text, nullable = self.atom()
        mark = self.peek()
        if mark not in ("*", "+", "?", "{") or not mark:
            return text, nullable
        if nullable:
            self.refuse("a repeat of what may be empty")
        self.hidden |= self.groups - before > int(own)
        self.position += 1
        least = 0 if mark in "*?" else 1
        if mark == "{":
            inside = ""
            while (char := self.take()) != "}":
                inside += char
            bounds = inside.split(",")
            if len(bounds) > 2 or not all(b.isascii() and b.isdigit() for b in bounds[: 1 + bool(bounds[-1])]):
                self.refuse("a repeat that cannot be read")
            if max(int(b) for b in bounds if b) > _MOST_REPEATS:
                self.refuse(f"more than {_MOST_REPEATS} repeats")
            least, mark = int(bounds[0]), f"{{{inside}}}"
        if self.peek() == "?":
            self.position += 1
            mark += "?"
        if self.peek() in ("*", "+", "?", "{") and self.peek():
            self.refuse("a possessive or double repeat")
        return text + mark, least == 0

    def atom(self) -> tuple[str, bool]:
        char = self.take()
        if char == ".":
            return f"[^{_LINE_ENDS}]", False
        if char == "^":
            self.anchored = True
            return r"\A", True
        if char == "$":
            if self.peek() not in ("", "|") or self.depth:
                self.refuse("a $ before its end")
            self.to_end = True
            return _END, True
        if char == "(":
            return self.bracket()
        if char == "[":
            return self.of_class(), False
        if char == "\\":
            return self.escaped()
        if char in "*+?{":
            self.refuse("a repeat of nothing")
        return _plain(char), False

    def bracket(self) -> tuple[str, bool]:
        opening = "("
        if self.peek() == "?":
            if self.pattern[self.position : self.position + 2] != "?:":
                self.refuse("a group of a special kind")
            self.position += 2
            opening = "(?:"
        else:
            self.groups += 1
            if self.group is not None:
                opening = "(?P<v>" if self.groups == self.group else "(?:"
        self.depth += 1
        text, nullable = self.either()
        self.depth -= 1
        if self.take() != ")":
            self.refuse("no closing bracket")
        return f"{opening}{text})", nullable

    def escaped(self) -> tuple[str, bool]:
        char = self.take()
        if char in "Az":
            self.anchored |= char == "A"
            return f"\\{char}", True
        if char in "sS":
            return f"[{'^' if char == 'S' else ''}{_SPACES}]", False
        return (f"\\{char}" if char in "dDwW" else self.character(char)), False

    def character(self, char: str) -> str:
        """An escaped character that stands for one."""
        if char in "tnrf":
            return f"\\{char}"
        if char in "xu":
            digits = self.pattern[self.position : self.position + (2 if char == "x" else 4)]
            if len(digits) != (2 if char == "x" else 4) or any(d not in "0123456789abcdefABCDEF" for d in digits):
                self.refuse("a character number that cannot be read")
            if 0xD800 <= int(digits, 16) < 0xE000:
                self.refuse("half of a character")
            self.position += len(digits)
            return f"\\x{{{digits}}}"
        if char.isalnum() or ord(char) > 0x7F:
            self.refuse(f"\\{char}")
        return _plain(char)

    def of_class(self) -> str:
        out = "["
        if self.peek() == "^":
            self.position += 1
            out += "^"
        first = True
        while first or self.peek() != "]":
            char = self.take()
            if (
                char == "["
                or (char == "&" and self.peek() == "&")
                or (first and char in "]^")
                or (char == "-" and not first and self.peek() != "]")
            ):
                self.refuse("a class of a special kind")
            first = False
            if char == "\\":
                char = self.take()
                if char in "dDwWs":
                    out += _SPACES if char == "s" else f"\\{char}"
                    continue
                low = self.character(char)
            else:
                low = _plain(char)
            out += low
            if self.peek() == "-" and self.pattern[self.position + 1 : self.position + 2] not in ("]", ""):
                self.position += 1
                high = self.take()
                if high in "[&-":
                    self.refuse("a class of a special kind")
                out += "-" + (self.character(self.take()) if high == "\\" else _plain(high))
        self.position += 1
        return out + "]"


def replacement(text: str, groups: int) -> str:
    """Java's replacement for RE2: ``$1`` is a group, a backslash takes the next character as it is."""
    out, position = "", 0
    while position < len(text):
        char = text[position]
        following = text[position + 1 : position + 2]
        if char == "\\" and following:
            out += "\\\\" if following == "\\" else following
            position += 1
        elif char == "$" and following.isascii() and following.isdigit() and not text[position + 2 : position + 3].isdigit():
            if int(following) > groups:
                raise _unreadable(text)
            out += f"\\{following}"
            position += 1
        elif char in "\\$":
            raise _unreadable(text)
        else:
            out += char
        position += 1
    return out


def _unreadable(text: str) -> ExpressionError:
    then = "it names no group of the regular expression"
    hint = r"write $1 for the first group, \$ for a dollar sign, \\ for a backslash"
    return ExpressionError("the replacement cannot be read", got=shown(text), then=then, hint=hint)


def check_pattern(name: str, args: tuple[object, ...]) -> None:
    """Refuse a pattern that cannot be evaluated; `args` are those of the function called `name`."""
    pattern = args[1]
    if name in ("like", "ilike"):
        like_regex(str(pattern))
        return
    group = args[2] if len(args) > 2 and isinstance(args[2], int) else 1
    regex = java_regex(str(pattern), group if name == "regexp_extract" else None)
    why = None
    if name == "regexp_extract":
        if not 0 <= group <= regex.groups:
            why = f"{regex.groups} groups, not {group}"
        elif regex.hidden and group:
            why = "a group within a repeat"
        elif regex.to_end and not group:
            why = "a $, after which a line end may follow"
    if name in ("regexp_count", "regexp_replace", "split"):
        if regex.nullable:
            why = "a match of an empty text"
        elif regex.to_end or (name != "regexp_replace" and regex.anchored) or (name == "split" and regex.groups):
            why = "an end, start or group, which it takes in another way"
    if why is not None:
        what = f"{name} cannot take this regular expression"
        raise ExpressionError(what, got=shown(pattern), then=f"it has {why}", hint="write it without, with (?:...) or \\z")
    if name == "regexp_replace":
        replacement(str(args[2]), regex.groups)
