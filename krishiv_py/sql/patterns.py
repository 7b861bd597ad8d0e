"""``MATCH_RECOGNIZE``: patterns over the rows of a key (SEMANTICS §15).

The parser reads a call of a function, into which the clauses are rewritten::

    FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY at MEASURES A.v AS v PATTERN (A B+) DEFINE B AS v > 1) AS m
    FROM match_recognize(t, partition_by(k), order_by(at), measures(A.v AS v), pattern('A B+'), define(v > 1 AS B)) AS m
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Any, Final

import attrs
from sqlglot import expressions as sg

from krishiv_py.api.stages.results import ResultStream
from krishiv_py.errors import PlanError
from krishiv_py.plan.aggregates.selections import first, last
from krishiv_py.plan.expressions.expr import Alias, Col, Expr, col, replaced
from krishiv_py.plan.expressions.parse import expr_of
from krishiv_py.plan.matching import MATCHED, NUMBER, STEP
from krishiv_py.plan.patterns import Chain, Frame, Link, Pattern, Repetition, prev, step
from krishiv_py.sql.grouped import aggregate, is_aggregate
from krishiv_py.sql.scope import Column, Env, Relation
from krishiv_py.sql.statements import refused
from krishiv_py.sql.windows import interval_us

_SHOW: Final = (
    "write FROM orders MATCH_RECOGNIZE (PARTITION BY user ORDER BY ts MEASURES LAST(B.amount) AS amount "
    "PATTERN (A B+) DEFINE A AS amount < 1, B AS amount > 500) AS m"
)
_PARTS: Final = re.compile(r"\s*(?:(?P<name>\w+)|(?P<sign>[()|*+?]|\{[^}]*\}|[\^$]))", re.UNICODE)
_BOUNDS: Final = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_FUNCTIONS: Final = {"match_first": first, "match_last": last, "match_prev": prev}


def _names_of(call: sg.Expression, name: str) -> list[sg.Expression]:
    """Return what a clause has; nothing where it was left out."""
    for part in call.expressions:
        if isinstance(part, sg.Anonymous) and part.name.lower() == name:
            return list(part.expressions)
    return []


def matched(call: sg.Anonymous, rows: Relation, alias: str | None, env: Env) -> Relation:
    """Return the matches of a pattern in rows.

    Raises
    ------
    PlanError
        For what the clauses cannot be, and clauses that are missing.
    """
    texts = {name: [n.name for n in _names_of(call, name)] for name in ("pattern", "skip", "per_match")}
    if not texts["pattern"]:
        raise PlanError("MATCH_RECOGNIZE has no PATTERN", got=call.sql("spark"), hint=_SHOW)
    defined = {d.alias: d.this for d in _names_of(call, "define")}
    reader = _PatternReader(texts["pattern"][0], rows, {name.lower(): node for name, node in defined.items()})
    pattern = reader.read()
    if unknown := [name for name in defined if name.lower() not in reader.steps]:
        hint = f"its names are {', '.join(reader.steps.values())}"
        raise PlanError("DEFINE has a name that PATTERN does not have", got=unknown[0], hint=hint)
    every = bool(texts["per_match"]) and texts["per_match"][0].upper().startswith("ALL")
    order = [n.this if isinstance(n, sg.Ordered) else n for n in _names_of(call, "order_by")]
    names = [_column_name(rows, node) for node in order]
    if not names or names[0] not in rows.times:
        hint = f"write ORDER BY {rows.times[0]}" if rows.times else "read a stream with event time"
        raise PlanError("MATCH_RECOGNIZE goes in order of event time", got=", ".join(names) or "no ORDER BY", hint=hint)
    keys = [_column_name(rows, node) for node in _names_of(call, "partition_by")]
    within = _names_of(call, "within")
    named = {m.alias: m.this for m in _names_of(call, "measures")}
    special = {name: kind for name, node in named.items() if (kind := _special(node, every)) is not None}
    measures = [Alias(Frame(reader.expr(node), every), name) for name, node in named.items() if name not in special]
    stream: ResultStream = (
        rows.timed(rows.stream, env.lag_us)
        .key_by(*keys)
        .match(
            pattern,
            measures=measures,
            within=None if not within else dt.timedelta(microseconds=interval_us(within[0], "WITHIN")),
            skip=_skip(texts["skip"], reader.steps),
            rows="all" if every else "one",
            order_by=names[1:],
        )
    )
    shown = stream.schema.names[: -2 - len(measures) - 1] if every else keys
    columns = [Column(alias, rows.label(col(name)), name) for name in shown if name not in (STEP, NUMBER, MATCHED)]
    for name in named:
        made = special.get(name, name)
        columns.append(Column(alias, name, made, "time" if made == MATCHED else None))
    if MATCHED not in special.values():
        columns.append(Column(alias, MATCHED, MATCHED, "time", hidden=True))
    return Relation(stream, tuple(columns))


def _special(node: sg.Expression, every: bool) -> str | None:
    """Return the column of results that a function without arguments names."""
    if not isinstance(node, sg.Anonymous):
        return None
    made = {"match_rowtime": MATCHED, "classifier": STEP, "match_number": NUMBER}.get(node.name.lower())
    if made in (STEP, NUMBER) and not every:
        raise refused(f"{node.name.upper()}() of a whole match", node.sql("spark"), "write ALL ROWS PER MATCH")
    return made


def _column_name(rows: Relation, node: sg.Expression) -> str:
    expr = rows.expr(node)
    if not isinstance(expr, Col):
        raise refused("an expression here", node.sql("spark"), "select it under a name in a query in brackets, and name it")
    return expr.name


def _skip(texts: list[str], steps: dict[str, str]) -> str:
    text = " ".join(texts[0].upper().split()) if texts else "PAST LAST ROW"
    if text in ("PAST LAST ROW", "TO NEXT ROW"):
        return "past_last" if text == "PAST LAST ROW" else "next_row"
    words = text.split()
    if words[:1] != ["TO"] or len(words) not in (2, 3) or words[-1].lower() not in steps:
        hint = "write AFTER MATCH SKIP PAST LAST ROW, TO NEXT ROW, TO FIRST a or TO LAST a"
        raise PlanError("AFTER MATCH says where the search goes on", got=texts[0], hint=hint)
    return f"{'first' if words[1] == 'FIRST' else 'last'} {steps[words[-1].lower()]}"


@attrs.define(eq=False)
class _PatternReader:
    """Reads the text of a pattern, and expressions that name its steps.

    Attributes
    ----------
    text : str
        The pattern.
    rows : Relation
        The rows.
    defined : dict of str to Expression
        The conditions, by name in small letters.
    steps : dict of str to str
        The names that were read, by their small letters.
    """

    text: str
    rows: Relation
    defined: dict[str, sg.Expression]
    steps: dict[str, str] = attrs.field(factory=dict)
    _tokens: list[str] = attrs.field(factory=list)
    _at: int = 0

    def read(self) -> Pattern:
        """Return the pattern."""
        place = 0
        while self.text[place:].strip():
            token = _PARTS.match(self.text, place)
            if token is None:
                raise self._wrong(self.text[place:].strip()[:20])
            self._tokens.append(token[0].strip())
            place = token.end()
        for token_text in self._tokens:
            if token_text.isidentifier():
                self.steps.setdefault(token_text.lower(), token_text)
        pattern = self._either()
        if self._at < len(self._tokens):
            raise self._wrong(self._tokens[self._at])
        return pattern

    def _wrong(self, got: str) -> PlanError:
        if got.startswith("{-") or got in ("^", "$") or got.upper() == "PERMUTE":
            return refused(f"{got} in PATTERN", self.text, "leave it out")
        hint = "write names with |, brackets and the quantifiers *, +, ?, {2}, {2,}, {2,3}: PATTERN (A (B | C)+ D)"
        return PlanError("the pattern cannot be read", got=f"{got!r} in {self.text}", hint=hint)

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _either(self) -> Pattern:
        pattern = self._sequence()
        while self._peek() == "|":
            self._at += 1
            pattern = pattern | self._sequence()
        return pattern

    def _sequence(self) -> Pattern:
        pattern: Pattern | None = None
        while self._peek() == "(" or self._peek().isidentifier():
            part = self._quantified()
            pattern = part if pattern is None else pattern.then(part)
        if pattern is None:
            raise self._wrong(self._peek() or "the end")
        return pattern

    def _quantified(self) -> Pattern:
        token = self._peek()
        self._at += 1
        if token == "(":
            part = self._either()
            if self._peek() != ")":
                raise self._wrong(self._peek() or "the end")
            self._at += 1
        elif token.upper() == "PERMUTE" and self._peek() == "(":
            raise self._wrong(token)
        else:
            part = self._step(self.steps[token.lower()])
        sign = self._peek()
        bounds = _BOUNDS.fullmatch(sign)
        least, most = 0, None
        if sign in ("*", "+", "?"):
            least, most = (1 if sign == "+" else 0), (1 if sign == "?" else None)
        elif bounds is not None and (bounds[1] or bounds[3]):
            least, most = int(bounds[1] or 0), int(bounds[3]) if bounds[3] else (None if bounds[2] else int(bounds[1]))
        elif sign.startswith("{"):
            raise self._wrong(sign)
        else:
            return part
        self._at += 1
        if isinstance(part, Repetition):
            part = Chain((Link(part),))
        repeated = part.at_least(least) if most is None else part.times(least, most)
        if self._peek() == "?":
            self._at += 1
            return repeated.reluctant()
        return repeated

    def _step(self, name: str) -> Pattern:
        node = self.defined.get(name.lower())
        return step(name) if node is None else step(name, self.expr(node))

    # ---- expressions

    def expr(self, node: sg.Expression) -> Expr:
        """Return an expression that names steps: ``LAST(A.price)``, ``B.price - A.price``."""
        calls: dict[str, Expr] = {}

        def column(part: sg.Expression) -> sg.Expression:
            return self._column(part) if isinstance(part, sg.Column) else part

        def call(part: sg.Expression) -> sg.Expression:
            made = self._call(part)
            if made is None:
                return part
            name = f"\x01{len(calls)}"
            calls[name] = made
            return sg.Column(this=sg.to_identifier(name, quoted=True))

        named = node.transform(column)
        read = expr_of(named.transform(call))
        return replaced(read, lambda one: calls.get(one.name, one) if isinstance(one, Col) else one)

    def _column(self, node: sg.Column) -> sg.Expression:
        step_name = self.steps.get(node.table.lower()) if node.table else None
        if isinstance(node.this, sg.Star):
            if step_name is None:
                return node
            return sg.Column(this=sg.to_identifier(step_name, quoted=True))
        if step_name is None:
            return self.rows.resolved(node)
        actual = self.rows.resolved(sg.Column(this=node.this))
        if not isinstance(actual, sg.Column) or actual.table:
            raise refused("a field of a struct of a step", node.sql("spark"), "select it under a name in a query in brackets")
        return sg.Column(this=sg.to_identifier(f"{step_name}.{actual.name}", quoted=True))

    def _call(self, node: sg.Expression) -> Expr | None:
        if isinstance(node, sg.Anonymous):
            name = node.name.lower()
            if name in _FUNCTIONS:
                return self._placed(node, _FUNCTIONS[name])
            if name in ("match_final", "match_running"):
                return Frame(self.expr_of_names(node.expressions[0]), name == "match_running")
            if name in ("next", "match_next"):
                raise refused("NEXT", node.sql("spark"), "match one row more, and name its column")
        if is_aggregate(node):
            return aggregate(node)
        return None

    def expr_of_names(self, node: sg.Expression) -> Expr:
        """Return an expression whose columns are named already."""
        made = self._call(node)
        return expr_of(node) if made is None else made

    def _placed(self, node: sg.Anonymous, function: Any) -> Expr:
        given = node.expressions
        offset = given[1] if len(given) == 2 else None
        if len(given) not in (1, 2) or not (offset is None or (isinstance(offset, sg.Literal) and offset.is_int)):
            name = node.name.upper().removeprefix("MATCH_")
            raise PlanError(
                f"{name} takes a value and a number of rows", got=node.sql("spark"), hint=f"write {name}(A.price, 1)"
            )
        inner = given[0]
        if isinstance(inner, sg.Anonymous) and inner.name.lower() == "match_last" and function is prev:
            inner = inner.expressions[0]  # PREV(LAST(A.price)): the row before the last one of A
        arg = expr_of(inner)
        made: Expr = function(arg) if offset is None else function(arg, int(offset.name))
        return made
