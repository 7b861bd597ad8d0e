"""A plain reference of patterns: all rows of a key are there, and each start is tried with generators of ways, in their order.

A pattern is written as nested tuples, from which the library's pattern is built, too::

    ("step", name, condition)      ("seq", part, (link, absences, part), …)      ("or", part, …)
    ("rep", part, least, most, greedy)
"""

from __future__ import annotations

import builtins
import random
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from krishiv_py import absent, coalesce, col, count, last, lit, prev, step, sum
from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.patterns import Pattern

END = 1 << 62
Row = dict[str, Any]
Taken = tuple[tuple[str, int], ...]


@attrs.frozen(eq=False)
class Condition:
    """A condition for both sides: of the row `k` of `rows`, with what was taken, itself included where it has a name."""

    expr: Expr
    holds: Callable[[list[Row], int, Taken], bool]


def _values(rows: list[Row], taken: Taken, name: str) -> list[Any]:
    return [rows[k]["v"] for of, k in taken if of == name]


def kind(*letters: str) -> Condition:
    return Condition(col("c").isin(*letters), lambda rows, k, taken: rows[k]["c"] in letters)


def falls(own: str, before: str) -> Condition:
    """The value is below that of the row before in the step, or the last one of the step before."""

    def holds(rows: list[Row], k: int, taken: Taken) -> bool:
        mine, first = _values(rows, taken, own), _values(rows, taken, before)
        other = mine[-2] if len(mine) > 1 else first[-1] if first else None
        return other is not None and rows[k]["v"] < other

    return Condition(col("v") < coalesce(last(f"{own}.v", 1), last(f"{before}.v")), holds)


def both(one: Condition, other: Condition) -> Condition:
    return Condition(one.expr & other.expr, lambda rows, k, taken: one.holds(rows, k, taken) and other.holds(rows, k, taken))


def above(name: str) -> Condition:
    def holds(rows: list[Row], k: int, taken: Taken) -> bool:
        mine = _values(rows, taken, name)
        return bool(mine) and rows[k]["v"] >= mine[-1]

    return Condition(col("v") >= last(f"{name}.v"), holds)


def few(own: str, most: int) -> Condition:
    """So many rows of the step at the most, and their sum is small."""

    def holds(rows: list[Row], k: int, taken: Taken) -> bool:
        mine = _values(rows, taken, own)
        return len(mine) <= most and builtins.sum(mine) < 20

    return Condition((count(own) <= most) & (sum(f"{own}.v") < lit(20)), holds)


def rises() -> Condition:
    """The value is above that of the row of the key before."""
    return Condition(col("v") > prev("v"), lambda rows, k, taken: k > 0 and rows[k]["v"] > rows[k - 1]["v"])


@attrs.frozen(eq=False)
class Spec:
    """A pattern for both sides."""

    tree: Any
    within: int | None = None
    skip: str = "past_last"
    before: tuple[Condition, int] | None = None
    after: tuple[Condition, int] | None = None
    most: int = 100_000

    def pattern(self) -> Pattern:
        pattern = built(self.tree)
        if self.after is not None:
            pattern = pattern.without(self.after[0].expr, within=self.after[1])
        return pattern if self.before is None else absent(self.before[0].expr, within=self.before[1]).then(pattern)


def built(tree: Any) -> Pattern:
    """Return the library's pattern."""
    what, *parts = tree
    if what == "step":
        return step(parts[0], None if parts[1] is None else parts[1].expr)
    if what == "or":
        options = [built(part) for part in parts]
        pattern = options[0]
        for option in options[1:]:
            pattern = pattern | option
        return pattern
    if what == "rep":
        part, least, most, greedy = parts
        inner = built(part)
        if most is None:
            repeated = inner.zero_or_more() if least == 0 else inner.one_or_more()
        else:
            repeated = inner.optional() if (least, most) == (0, 1) else inner.times(least, most)
        return repeated if greedy else repeated.reluctant()
    pattern = built(parts[0])
    for link, absences, part in parts[1:]:
        for absence in absences:
            pattern = pattern.without(absence.expr)
        pattern = pattern.followed_by(built(part)) if link == "relaxed" else pattern.then(built(part))
    return pattern


class UndecidedError(Exception):
    """More rows, or time, may change the answer."""


class GivenUpError(Exception):
    """A start looked at too many rows."""


@attrs.define(eq=False)
class Attempt:
    """Tries one start."""

    spec: Spec
    rows: list[Row]
    start: int
    settled: int
    newest: int | None
    decided: int = 0
    timed_out: Taken | None = None
    limit: int = END

    def __attrs_post_init__(self) -> None:
        self.decided = self.rows[self.start]["at"]
        self.limit = END if self.spec.within is None else self.decided + self.spec.within

    def look(self, k: int) -> None:
        if k - self.start >= self.spec.most:
            raise GivenUpError
        self.decided = max(self.decided, self.rows[k]["at"])

    def there(self, k: int, taken: Taken) -> bool:
        """Return whether there is a row `k` within the time."""
        if k < len(self.rows) and self.rows[k]["at"] < self.limit:
            self.look(k)
            return True
        if k >= len(self.rows) and self.newest is None and self.limit > self.settled:
            raise UndecidedError
        self.decided = max(self.decided, self.limit if self.limit < END else self.newest or 0)
        if self.limit < END and taken and self.timed_out is None:
            self.timed_out = taken
        return False

    def ways(self, tree: Any, k: int, taken: Taken, relaxed: bool, absences: tuple[Condition, ...]) -> Iterator[Any]:
        what, *parts = tree
        if what == "step":
            name, condition = parts
            first = not taken
            while self.there(k, taken):
                more = (*taken, (name, k))
                if condition is None or condition.holds(self.rows, k, more):
                    yield k + 1, more, ()
                    return
                if first or not relaxed or any(one.holds(self.rows, k, taken) for one in absences):
                    return
                k += 1
        elif what == "or":
            for part in parts:
                yield from self.ways(part, k, taken, relaxed, absences)
        elif what == "rep":
            yield from self.repeated(parts, 0, k, taken, relaxed, absences)
        else:
            links = [("relaxed" if relaxed else "strict", (), parts[0]), *parts[1:]]
            yield from self.sequence(links, k, taken, absences)

    def sequence(self, links: list[Any], k: int, taken: Taken, absences: tuple[Condition, ...]) -> Iterator[Any]:
        if not links:
            yield k, taken, absences
            return
        link, more, part = links[0]
        for after in self.ways(part, k, taken, link == "relaxed", (*absences, *more)):
            yield from self.sequence(links[1:], *after)

    def repeated(self, parts: Any, n: int, k: int, taken: Taken, relaxed: bool, absences: Any) -> Iterator[Any]:
        part, least, most, greedy = parts
        choices = ["more", "enough"] if greedy else ["enough", "more"]
        for choice in choices:
            if choice == "enough" and n >= least:
                yield k, taken, absences
            if choice == "more" and (most is None or n < most):
                for next_k, next_taken, left in self.ways(part, k, taken, relaxed, absences):
                    if next_taken != taken or n < least:
                        yield from self.repeated(parts, n + 1, next_k, next_taken, relaxed, left)

    def end(self, taken: Taken) -> int | None:
        """Return when the match ends; None where something came."""
        last_row = taken[-1][1]
        if self.spec.after is None:
            return int(self.rows[last_row]["at"])
        condition, length = self.spec.after
        deadline = min(int(self.rows[last_row]["at"]) + length, self.limit)
        for k in range(last_row + 1, len(self.rows)):
            if self.rows[k]["at"] >= deadline:
                break
            if k - self.start >= self.spec.most:
                raise GivenUpError
            if condition.holds(self.rows, k, taken):
                self.look(k)
                return None
        if self.newest is None and deadline > self.settled:
            raise UndecidedError
        self.decided = max(self.decided, deadline)
        return deadline

    def match(self) -> tuple[Taken, int] | None:
        for _, taken, _ in self.ways(self.spec.tree, self.start, (), False, ()):
            if not taken:
                return None
            if (end := self.end(taken)) is not None:
                return taken, end
        return None


@attrs.define(eq=False)
class Reference:
    """One key."""

    spec: Spec
    waiting: list[Row] = attrs.field(factory=list)
    rows: list[Row] = attrs.field(factory=list)
    at: int = 0
    floor: int = 0

    def feed(self, rows: list[Row], settled: int, newest: int | None = None) -> list[Any]:
        """Return (kind, rows with their steps, decided, end) of what `rows` and a point in time decide."""
        self.waiting = sorted([*self.waiting, *rows], key=lambda row: row["at"])
        self.rows += [row for row in self.waiting if row["at"] < settled or newest is not None]
        self.waiting = [row for row in self.waiting if row["at"] >= settled and newest is None]
        out: list[Any] = []
        while self.at < len(self.rows):
            if self.blocked(self.at):
                self.at += 1
                continue
            attempt = Attempt(self.spec, self.rows, self.at, settled, newest)
            try:
                found = attempt.match()
            except UndecidedError:
                break
            except GivenUpError:
                self.floor = max(self.floor, self.rows[self.at + self.spec.most]["at"])
                out.append(("limit", [("", self.at)], self.floor, self.floor))
                self.at += 1
                continue
            self.floor = max(self.floor, attempt.decided)
            if found is None:
                if attempt.timed_out is not None:
                    out.append(("timeout", list(attempt.timed_out), attempt.limit, attempt.limit))
                self.at += 1
                continue
            taken, end = found
            out.append(("match", list(taken), self.floor, end))
            self.at = taken[-1][1] + 1 if self.spec.skip == "past_last" else self.at + 1
        return out

    def blocked(self, k: int) -> bool:
        if self.spec.before is None:
            return False
        condition, length = self.spec.before
        at = self.rows[k]["at"]
        return any(at - length < row["at"] < at and condition.holds(self.rows, n, ()) for n, row in enumerate(self.rows))


def random_tree(draw: random.Random, depth: int = 2, *, asked: bool = False, names: list[str] | None = None) -> Any:
    """Return a random pattern."""
    names = [] if names is None else names
    what = draw.choice(["step"] * (3 - depth) + ["seq", "seq", "rep", "or"]) if depth else "step"
    if what == "step":
        name = f"s{len(names)}"
        names.append(name)
        plain: list[Condition | None] = [kind(draw.choice("abc")), kind(*draw.sample("abcx", 2)), None, rises()]
        more: list[Condition | None] = [falls(name, names[0]), above(names[0]), few(name, draw.randint(1, 3))] if asked else []
        more += [both(kind("a", "b"), falls(name, names[0])), both(few(name, 2), rises())] if asked else []
        return ("step", name, draw.choice(plain + more * 2))
    if what == "or":
        return ("or", *(random_tree(draw, depth - 1, asked=asked, names=names) for _ in range(2)))
    if what == "rep":
        inner = random_tree(draw, depth - 1, asked=asked, names=names)
        if inner[0] == "rep":
            return inner
        least, most = draw.choice([(0, 1), (1, None), (0, None), (2, 2), (1, 3), (0, 2)])
        return ("rep", inner, least, most, draw.random() < 0.6)
    parts: list[Any] = [random_tree(draw, depth - 1, asked=asked, names=names)]
    for _ in range(draw.randint(1, 2)):
        absences = tuple(kind("x") for _ in range(draw.choice([0, 0, 1])))
        link = draw.choice(["strict", "relaxed"])
        parts.append((link, absences, random_tree(draw, depth - 1, asked=asked, names=names)))
    return ("seq", *parts)


def random_spec(draw: random.Random, *, asked: bool = False, most: int = 100_000) -> Spec:
    """Return a random pattern with its options."""
    return Spec(
        random_tree(draw, asked=asked),
        draw.choice([None, None, 8, 20]),
        draw.choice(["past_last", "next_row"]),
        draw.choice([None, None, None, (kind("x"), draw.choice([3, 9]))]),
        draw.choice([None, None, (kind("b", "x"), draw.choice([4, 15]))]),
        most,
    )
