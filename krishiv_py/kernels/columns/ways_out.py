"""Says what to write instead of an operation on types that do not fit: an expression to copy, in text and in Python."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Final, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.plan.expressions.expr import BinOp, Col, Expr, Func, Lit
from krishiv_py.types import as_number, is_numeric, part_of, type_text

_OF_ONE_TYPE: Final = "use values of one type; the table of conversions is in docs/expressions.md"
_COMPARISONS: Final = {"=": "==", "==": "==", "<>": "!=", "!=": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
Both: TypeAlias = tuple[str, str]
"""An expression in text, and the same in Python."""


@attrs.frozen
class _Side:
    """One side of an operator: how it is written in text and in Python, its type, and its constant if it is one."""

    text: str
    python: str
    type_: pa.DataType
    constant: object = None

    @property
    def kind(self) -> str:
        """The word for the values of its type."""
        type_ = self.type_
        kinds: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
            ("flag", pa.types.is_boolean),
            ("number", is_numeric),
            ("text", lambda t: pa.types.is_string(t) or pa.types.is_large_string(t)),
            ("length", pa.types.is_duration),
            ("time", pa.types.is_temporal),
            ("parts", lambda t: part_of("x", t) is not None),
        )
        return next((name for name, holds in kinds if holds(type_)), "other")

    def number(self, other: pa.DataType) -> Both:
        """Return the side as a number, which a text is in the type of the other side."""
        if self.kind == "text":
            return self.cast(type_text(other) if is_numeric(other) else "double")
        texts = {
            "flag": f"CAST({self.text} AS int)",
            "length": f"unix_micros(timestamp_seconds(0) + {self.text})",
            "time": f"unix_millis(CAST({self.text} AS timestamp))",
        }
        return texts.get(self.kind, self.text), as_number(self.python, self.type_) or self.python

    def cast(self, name: str) -> Both:
        """Return the side in the type of this name."""
        return f"CAST({self.text} AS {name})", f'{self.python}.cast("{name}")'

    def moment(self, other: pa.DataType) -> Both:
        """Return the side as a time of the type of the other one; a whole number is of milliseconds, another one of seconds."""
        text, python = self.cast(type_text(other))
        if pa.types.is_integer(self.type_):
            text, python = f"timestamp_millis({self.text})", f'func("timestamp_millis", {self.python})'
        elif self.kind == "number":
            text, python = self.cast("timestamp")
        if self.kind == "number" and other != pa.timestamp("us", "UTC"):
            text, python = f"CAST({text} AS {type_text(other)})", f'{python}.cast("{type_text(other)}")'
        return text, python

    def condition(self) -> Both:
        """Return a condition over the side."""
        if self.kind == "flag":
            return self.text, self.python
        if self.kind == "number":
            return f"{self.text} <> 0", f"({self.python} != 0)"
        if self.kind == "text":
            return f"{self.text} = 'yes'", f'({self.python} == "yes")'
        return f"{self.text} IS NOT NULL", f"{self.python}.is_not_null()"


def _side(expr: Expr, type_: pa.DataType, letter: str) -> _Side:
    if isinstance(expr, Col):
        name = expr.name if expr.name.isidentifier() else f"`{expr.name}`"
        return _Side(name, f"col({expr.name!r})".replace("'", '"'), type_)
    if isinstance(expr, Lit) and isinstance(expr.value, int) and not isinstance(expr.value, bool):
        return _Side(str(expr.value), f"lit({expr.value})", type_, expr.value)
    if isinstance(expr, Lit) and isinstance(expr.value, str) and expr.value.isalnum():
        return _Side(f"'{expr.value}'", f'lit("{expr.value}")', type_, expr.value)
    return _Side(letter, f'col("{letter}")', type_, expr.value if isinstance(expr, Lit) else None)


def _said(both: Both) -> str:
    return f"{both[0]} in text, {both[1]} in Python"


def way_out(expr: Expr, types: list[pa.DataType]) -> str:
    """Return what to write instead of an expression whose operands, of these types, it does not take."""
    if isinstance(expr, BinOp) and len(types) == 2:
        left, right = _side(expr.left, types[0], "x"), _side(expr.right, types[1], "y")
        return _of_operator(expr.op, left, right)
    if isinstance(expr, Func) and expr.name == "concat" and len(types) == len(expr.args):
        sides = [_side(a, t, letter) for a, t, letter in zip(expr.args, types, "xyz" * len(types), strict=False)]
        if all(side.kind in ("flag", "number", "text", "time") for side in sides):
            texts = [(s.text, s.python) if s.kind == "text" else s.cast("string") for s in sides]
            return f"write {_said((' || '.join(t for t, _ in texts), 'concat(' + ', '.join(p for _, p in texts) + ')'))}"
    if len(types) == 1 and not is_numeric(types[0]) and as_number("x", types[0]) is not None:
        return f"make a number of it first: {_said(_side(Col('x'), types[0], 'x').number(pa.float64()))}"
    return _OF_ONE_TYPE


def _of_operator(op: str, left: _Side, right: _Side) -> str:
    for side in (left, right):
        if (part := part_of(side.python, side.type_)) is not None:
            return f"name a part of it: {_said((part_of(side.text, side.type_, in_text=True) or '', part))}"
    kinds = {left.kind, right.kind}
    if op in ("and", "or"):
        return f"write {_said(_joined(op, left.condition(), right.condition()))}"
    if "other" in kinds:
        return _of_bytes(op, left, right)
    if op in _COMPARISONS:
        return _of_comparison(op, left, right)
    if "text" in kinds and op == "+":
        texts = [(s.text, s.python) if s.kind == "text" else s.cast("string") for s in (left, right)]
        whole_text = f"join texts with ||: {' || '.join(t for t, _ in texts)}"
        numbers = _said(_joined(op, left.number(right.type_), right.number(left.type_)))
        return f"{whole_text}; add numbers in texts: {numbers}"
    if kinds == {"time", "text"} and op == "-":
        return f"write {_said(_joined(op, *_moments(left, right)))}"
    if op in ("+", "-") and "number" in kinds and kinds & {"time", "length"}:
        return _of_shift(op, left, right)
    if kinds == {"time"} and op == "+":
        return f"the time between two is {_said(_joined('-', (left.text, left.python), (right.text, right.python)))}"
    return f"compute with numbers: {_said(_joined(op, left.number(right.type_), right.number(left.type_)))}"


def _of_bytes(op: str, left: _Side, right: _Side) -> str:
    """Return what to write where one side is of bytes, or of null only: they are compared with texts."""
    if op in _COMPARISONS and {left.kind, right.kind} == {"other", "text"}:
        made = [s.cast("string") if s.kind == "other" else (s.text, s.python) for s in (left, right)]
        return f"write {_said(_joined(op, *made))}"
    return _OF_ONE_TYPE


def _of_comparison(op: str, left: _Side, right: _Side) -> str:
    kinds = {left.kind, right.kind}
    if "time" in kinds and kinds <= {"time", "text", "number"}:
        made = _said(_joined(op, *_moments(left, right)))
        number = left if left.kind == "number" else right
        if "number" in kinds and pa.types.is_integer(number.type_):
            return f"make a time of the number, here of milliseconds: {made}; timestamp_seconds is of seconds"
        if "number" in kinds:
            return f"make a time of the number, here of seconds: {made}"
        return f"cast the text: {made}"
    if kinds == {"flag", "text"}:
        sides = [s.cast("boolean") if s.kind == "text" else (s.text, s.python) for s in (left, right)]
        return f"cast the text: {_said(_joined(op, *sides))}"
    if kinds <= {"flag", "number", "text"}:
        return f"cast one side: {_said(_joined(op, left.number(right.type_), right.number(left.type_)))}"
    if kinds == {"length", "number"}:
        return f"compare microseconds: {_said(_joined(op, left.number(right.type_), right.number(left.type_)))}"
    return _OF_ONE_TYPE


def _of_shift(op: str, left: _Side, right: _Side) -> str:
    """Return what to write for a time, or a length of time, and a number that is added or subtracted."""
    number, other = (left, right) if left.kind == "number" else (right, left)
    if other.kind == "length" and not pa.types.is_integer(number.type_):
        made = f"CAST({number.text} AS timestamp) {op} {other.text}", f'{number.python}.cast("timestamp") {op} {other.python}'
        return f"make a time of the number, here of seconds: {_said(made)}"
    if other.kind == "length":
        start = f"a whole number that is a time is of milliseconds: write timestamp_millis({number.text}) {op} "
        if isinstance(other.constant, dt.timedelta):
            whole = round(other.constant.total_seconds() * 1000)
            return f"{start}INTERVAL {whole / 1000:g} SECONDS, or {number.text} {op} {whole}"
        return f"{start}{other.text}"
    seconds = f"(CAST({number.text} AS timestamp) - timestamp_seconds(0))"
    python = f'({number.python}.cast("timestamp") - func("timestamp_seconds", 0))'
    if isinstance(number.constant, int):
        seconds, python = f"INTERVAL '{number.constant}' SECOND", f"timedelta(seconds={number.constant})"
    made = f"{other.text} {op} {seconds}", f"{other.python} {op} {python}"
    return f"write a length of time, here of seconds: {_said(made)}"


def _moments(left: _Side, right: _Side) -> tuple[Both, Both]:
    time = (left if left.kind == "time" else right).type_
    first, second = [(s.text, s.python) if s.kind == "time" else s.moment(time) for s in (left, right)]
    return first, second


def _joined(op: str, left: Both, right: Both) -> Both:
    signs = {"and": ("AND", "&"), "or": ("OR", "|")}
    text, python = signs.get(op, (op, _COMPARISONS.get(op, op)))
    return f"{left[0]} {'=' if text == '==' else text} {right[0]}", f"{left[1]} {python} {right[1]}"
