"""Patterns over the rows of a key: steps in sequence, alternatives, groups, quantifiers and absence (SEMANTICS §15).

A pattern is a value. Parts are put together from left to right, and each method gives another pattern::

    absent(x, within="1 h") .then(step("a", …)) .followed_by(step("b", …).one_or_more()) .without(y, within="5 min")
    └ nothing before ─────┘       └ this row, and ─────────── a later one, and more of them ┘ └ nothing after ──────┘
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import attrs

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import a_number, expression
from krishiv_py.plan.durations import Duration, show_us, to_us
from krishiv_py.plan.expressions.expr import Aggregate, Expr, aggregate_in, col, identity_of, python_text
from krishiv_py.plan.names import encodable

MOST_TIMES: Final = 1_000
"""A quantifier with bounds names at most so many rows."""


@attrs.frozen(eq=False, repr=False)
class Pattern:
    """A part of a pattern: a step, a sequence, alternatives, or one of these with a quantifier.

    Examples
    --------
    >>> from krishiv_py import col, step
    >>> small = step("small", col("amount") < 1)
    >>> big = step("big", col("amount") > 500)
    >>> small.then(big.one_or_more())
    small big+
    >>> small.times(2, 3).without(col("kind") == "confirm").followed_by(big.one_or_more().reluctant())
    small{2,3} [no (kind == 'confirm')] .. big+?
    >>> (small.at_least(2) | big.optional()).then(step("end").zero_or_more())
    (small{2,} | big?) end*
    """

    def then(self, other: Pattern) -> Pattern:
        """Let the next row of the key be the first one of `other`."""
        return _sequence(self, other, "then", relaxed=False)

    def followed_by(self, other: Pattern) -> Pattern:
        """Let the first row that fits be the first one of `other`; rows in between that do not fit are passed over."""
        return _sequence(self, other, "followed_by", relaxed=True)

    def without(self, condition: Pattern | Expr | str, within: Duration | None = None) -> Pattern:
        """Let no row for which a condition is true come after the last row so far.

        Parameters
        ----------
        condition : Pattern or Expr or str
            A step, of which the condition counts, or the condition.
        within : int or timedelta or str, optional
            At the end of a pattern: for how long; ``int`` is milliseconds. Between two parts none may come before the row that
            the next part begins with, however long that takes.
        """
        chain, absent = _chain(self, "without"), _condition(condition, "without")
        if within is None:
            return attrs.evolve(chain, pending=(*chain.pending, absent))
        if chain.pending:
            raise PlanError(
                "a pattern ends with one absence",
                got=".without(x).without(y, within=...)",
                hint="write both conditions as one: .without(x | y, within=...)",
            )
        return attrs.evolve(chain, after=Absent(absent, to_us(within, "within")))

    def times(self, least: int, most: int | None = None) -> Pattern:
        """Repeat this part `least` times, or from `least` up to `most` times, as often as possible.

        Parameters
        ----------
        least, most : int
            How often, each at most 1 000.
        """
        least = a_number(least, "least", 0, "write .times(3)", most=MOST_TIMES)
        most = least if most is None else a_number(most, "most", 1, "write .times(3, 5)", most=MOST_TIMES)
        if most < least or most == 0:
            raise PlanError("`most` is below `least`, or 0", got=f"times({least}, {most})", hint="write .times(3, 5)")
        return _repeated(self, least, most)

    def at_least(self, least: int) -> Pattern:
        """Repeat this part `least` times or more, as often as possible.

        Parameters
        ----------
        least : int
            How often, at most 1 000.
        """
        return _repeated(self, a_number(least, "least", 0, "write .at_least(3)", most=MOST_TIMES), None)

    def one_or_more(self) -> Pattern:
        """Repeat this part as often as possible, at least once."""
        return _repeated(self, 1, None)

    def zero_or_more(self) -> Pattern:
        """Repeat this part as often as possible, or leave it out."""
        return _repeated(self, 0, None)

    def optional(self) -> Pattern:
        """Take this part if possible, or leave it out."""
        return _repeated(self, 0, 1)

    def reluctant(self) -> Pattern:
        """Repeat as rarely as possible."""
        if not isinstance(self, Repetition):
            hint = "write it behind a quantifier: .one_or_more().reluctant()"
            raise PlanError("only what is repeated can be reluctant", got=repr(self), hint=hint)
        return attrs.evolve(self, greedy=False)

    def __or__(self, other: Pattern) -> Pattern:
        mine, others = (part.options if isinstance(part, Alternatives) else (part,) for part in (self, _part(other, "|")))
        return Alternatives((*mine, *others))

    def _children(self) -> tuple[Pattern, ...]:
        return ()

    def _text(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self._text()

    def __bool__(self) -> bool:
        hint = "write | between alternatives, and .then(...) or .followed_by(...) between parts in sequence"
        raise PlanError("a pattern has no truth value", got=repr(self), hint=hint)


@attrs.frozen(eq=False, repr=False)
class Step(Pattern):
    """One row for which a condition is true; without one any row."""

    name: str
    condition: Expr | None = None

    def _text(self) -> str:
        return self.name


@attrs.frozen(eq=False)
class Absent:
    """No row for which a condition is true, for so long, µs."""

    condition: Expr
    within_us: int

    def __str__(self) -> str:
        return f"[no {self.condition!r} within {show_us(self.within_us)}]"


@attrs.frozen(eq=False)
class Link:
    """A part of a sequence, and how its first row follows the row before.

    Attributes
    ----------
    part : Pattern
        The part.
    relaxed : bool
        Whether rows are passed over until one fits.
    without : tuple of Expr
        Conditions of rows that may not be passed over.
    """

    part: Pattern
    relaxed: bool = False
    without: tuple[Expr, ...] = ()


@attrs.frozen(eq=False, repr=False)
class Chain(Pattern):
    """Parts in sequence.

    Attributes
    ----------
    links : tuple of Link
        The parts.
    pending : tuple of Expr
        Conditions of rows that may not come before the next part.
    before, after : Absent or None
        What may not come before the first row, and after the last one.
    """

    links: tuple[Link, ...]
    pending: tuple[Expr, ...] = ()
    before: Absent | None = None
    after: Absent | None = None

    def _children(self) -> tuple[Pattern, ...]:
        return tuple(link.part for link in self.links)

    def _text(self) -> str:
        texts = [] if self.before is None else [str(self.before)]
        for number, link in enumerate(self.links):
            texts += [f"[no {each!r}]" for each in link.without]
            texts += [".."] if link.relaxed and number else []
            texts.append(_grouped(link.part))
        texts += [f"[no {each!r}]" for each in self.pending]
        return " ".join([*texts, *([] if self.after is None else [str(self.after)])])


@attrs.frozen(eq=False, repr=False)
class Alternatives(Pattern):
    """One of several parts, the first that leads to a match."""

    options: tuple[Pattern, ...]

    def _children(self) -> tuple[Pattern, ...]:
        return self.options

    def _text(self) -> str:
        return "(" + " | ".join(map(repr, self.options)) + ")"


@attrs.frozen(eq=False, repr=False)
class Repetition(Pattern):
    """A part so many times, without end for a `most` of None; as often as possible, or as rarely."""

    part: Pattern
    least: int
    most: int | None
    greedy: bool = True

    def _children(self) -> tuple[Pattern, ...]:
        return (self.part,)

    def _text(self) -> str:
        most = "" if self.most is None else self.most
        exact = f"{{{self.least}}}" if self.least == self.most else f"{{{self.least},{most}}}"
        sign = {(1, None): "+", (0, None): "*", (0, 1): "?"}.get((self.least, self.most), exact)
        return _grouped(self.part) + sign + ("" if self.greedy else "?")


@attrs.frozen(repr=False, eq=False)
class AbsentStart:
    """Holds what may not come before the first row of a pattern."""

    absent: Absent

    def then(self, first: Pattern) -> Pattern:
        """Let a pattern begin with `first`."""
        part = _part(first, "absent(...).then")
        chain = part if isinstance(part, Chain) else Chain((Link(part),))
        if chain.before is not None:
            hint = "write both conditions as one: absent(x | y, within=...)"
            raise PlanError("a pattern begins with one absence", got=repr(chain), hint=hint)
        return attrs.evolve(chain, before=self.absent)

    def __repr__(self) -> str:
        return str(self.absent)


def step(name: str, condition: Expr | str | None = None) -> Pattern:
    """Return a step of a pattern: one row for which a condition is true.

    Parameters
    ----------
    name : str
        What conditions and measures call its rows: ``first("placed.amount")``.
    condition : Expr or str, optional
        Over the columns of the row, ``prev("price")``, and rows of steps so far, with this row under its own name:
        ``col("price") > last("top.price")``, ``count("small") <= 3``. Null is false; without a condition every row fits.

    Raises
    ------
    PlanError
        For a name that is no plain word.

    Examples
    --------
    >>> from krishiv_py import col, last, step
    >>> step("top").then(step("up", col("price") > last("top.price")))
    top up
    """
    if not isinstance(name, str) or not name.isidentifier() or not encodable(name):
        raise PlanError("a step is named by one word", got=shown(name), hint='write step("placed", col("kind") == "placed")')
    return Step(name, None if condition is None else _any_expression(condition, f"step({name!r})"))


def absent(condition: Pattern | Expr | str, within: Duration) -> AbsentStart:
    """Return the start of a pattern before whose first row, at t, no row of the key lies in ``(t - within, t)``.

    Parameters
    ----------
    condition : Pattern or Expr or str
        A step, of which the condition counts, or the condition that no row may fulfil.
    within : int or timedelta or str
        How long before; ``int`` is milliseconds.

    Examples
    --------
    >>> from krishiv_py import absent, col, step
    >>> absent(col("kind") == "login", within="30 min").then(step("transfer", col("kind") == "transfer"))
    [no (kind == 'login') within 30 min] transfer
    """
    return AbsentStart(Absent(_condition(condition, "absent"), to_us(within, "within")))


def steps_of(pattern: Pattern) -> Iterator[Step]:
    """Yield the steps of a pattern, from left to right."""
    pending = [pattern]
    while pending:
        part = pending.pop()
        if isinstance(part, Step):
            yield part
        pending += reversed(part._children())


def absences_of(pattern: Pattern) -> Iterator[Expr]:
    """Yield the conditions of rows that may not come, from left to right."""
    if isinstance(pattern, Chain):
        if pattern.before is not None:
            yield pattern.before.condition
        for link in pattern.links:
            yield from link.without
            yield from absences_of(link.part)
        if pattern.after is not None:
            yield pattern.after.condition
    else:
        for part in pattern._children():
            yield from absences_of(part)


def checked(pattern: object, within_us: int | None) -> Chain:
    """Return a pattern as a sequence.

    Raises
    ------
    PlanError
        For what is none, steps of one name with several conditions, absence that is neither between two parts nor at an end,
        and absence at the end without a length of time.
    """
    if isinstance(pattern, AbsentStart):
        then = "there is no row that it could be before"
        raise PlanError("a pattern begins with a row", got=repr(pattern), then=then, hint="write absent(...).then(step(...))")
    if not isinstance(pattern, Pattern):
        raise PlanError("match takes a pattern", got=shown(pattern), hint='write .match(step("a", col("kind") == "a"))')
    chain = pattern if isinstance(pattern, Chain) else Chain((Link(pattern),))
    if chain.pending:
        if within_us is None:
            hint = 'say for how long: .without(x, within="15 min"), or .match(..., within="1 h")'
            raise PlanError("absence at the end of a pattern needs a length of time", got=repr(chain), hint=hint)
        condition = chain.pending[0]
        for more in chain.pending[1:]:
            condition = condition | more
        chain = attrs.evolve(chain, pending=(), after=Absent(condition, within_us))
    known: dict[str, Step] = {}
    for one in steps_of(chain):
        other = known.setdefault(one.name, one)
        mine, others = (None if s.condition is None else identity_of(s.condition) for s in (one, other))
        if mine != others:
            hint = f'give one of them another name: step("{one.name}_2", ...)'
            raise PlanError("two steps of one name have several conditions", got=shown(one.name), hint=hint)
    return chain


def _any_expression(condition: object, where: str) -> Expr:
    return condition if isinstance(condition, Expr) else expression(condition, where)


def _condition(condition: object, where: str) -> Expr:
    if isinstance(condition, Step) and condition.condition is not None:
        return condition.condition
    if isinstance(condition, Pattern):
        hint = f'write .{where}(col("kind") == "paid")'
        raise PlanError(f"{where} takes a condition, or a step with one", got=repr(condition), hint=hint)
    return _any_expression(condition, where)


def _part(other: object, where: str) -> Pattern:
    if isinstance(other, AbsentStart):
        hint = "begin the pattern with it, or write .without(x) between two parts"
        raise PlanError("absent(...) stands at the start of a pattern", got=repr(other), hint=hint)
    if not isinstance(other, Pattern):
        hint = 'write step("a") | step("b")' if where == "|" else f'write .{where}(step("b", col("kind") == "b"))'
        raise PlanError(f"{where} takes a part of a pattern", got=shown(other), hint=hint)
    return other


def _inner(part: Pattern) -> Pattern:
    """Refuse absence at an end of a part, which is then no end of the pattern."""
    if isinstance(part, Chain) and (part.before is not None or part.after is not None or part.pending):
        hint = "write absence at the ends of the whole pattern, and .without(x) between two parts"
        raise PlanError("absence with a length of time is at an end of the pattern", got=repr(part), hint=hint)
    return part


def _chain(part: Pattern, where: str) -> Chain:
    chain = part if isinstance(part, Chain) else Chain((Link(part),))
    if chain.after is not None:
        then = "nothing can follow: the match is decided when the time has passed"
        raise PlanError(f"{where} after an absence with a length of time", got=repr(part), then=then, hint="write it before")
    return chain


def _sequence(first: Pattern, other: object, where: str, *, relaxed: bool) -> Chain:
    chain, part = _chain(first, where), _part(other, where)
    after: Any = None
    pending: tuple[Expr, ...] = ()
    if isinstance(part, Chain):
        after, pending, part = part.after, part.pending, attrs.evolve(part, after=None, pending=())
    link = Link(_inner(part), relaxed, chain.pending)
    return attrs.evolve(chain, links=(*chain.links, link), pending=pending, after=after)


def _repeated(part: Pattern, least: int, most: int | None) -> Repetition:
    if isinstance(part, Repetition):
        hint = "write one quantifier, or put the repeated part into a sequence with others"
        raise PlanError("a part that is repeated cannot be repeated again", got=repr(part), hint=hint)
    return Repetition(_inner(part), least, most)


def _grouped(part: Pattern) -> str:
    return f"({part._text()})" if isinstance(part, Chain) else part._text()


@attrs.frozen(eq=False, repr=False)
class Prev(Aggregate):
    """The value of the row of the same key so many rows before, or after where that is negative."""

    _called: ClassVar[str] = "a value of the row before"
    _is_of: ClassVar[str] = "prev and next are values of other rows"
    _belongs: ClassVar[str] = 'write .key_by("user").with_previous(before=prev("price")), or use prev in a pattern'
    arg: Expr
    rows: int = 1

    def __attrs_post_init__(self) -> None:
        if (inner := aggregate_in(self.arg)) is not None:
            name = "prev" if self.rows > 0 else "next"
            hint = f'write {name}("price"), or {name}("price", 2)'
            raise PlanError(f"{name} takes columns of one row", got=repr(inner), hint=hint)

    def _written(self) -> str:
        name, n = ("prev", self.rows) if self.rows > 0 else ("next", -self.rows)
        return f"{name}({python_text(self.arg)})" if n == 1 else f"{name}({python_text(self.arg)}, {n})"

    def _parts(self) -> tuple[Any, ...]:
        n = abs(self.rows)
        return ("PREV(" if self.rows > 0 else "NEXT(", self.arg, f", {n})" if n > 1 else ")")

    def _children(self) -> tuple[Expr, ...]:
        return (self.arg,)


@attrs.frozen(eq=False, repr=False)
class Frame(Aggregate):
    """A value of the rows of a match up to the row it is shown with, or of all of them."""

    arg: Expr
    running: bool

    def _parts(self) -> tuple[Any, ...]:
        return ("RUNNING " if self.running else "FINAL ", self.arg)

    def _children(self) -> tuple[Expr, ...]:
        return (self.arg,)


def prev(arg: Expr | str, rows: int = 1) -> Prev:
    """Return the value that `arg` has in the row before this one, in event time, of the same key; null where there is none.

    Parameters
    ----------
    arg : Expr or str
        A column, or an expression over columns of one row.
    rows : int
        How many rows before, at most 1 000.

    Examples
    --------
    >>> from krishiv_py import col, prev, step
    >>> step("up", (col("price") > prev("price")) & (prev("price") > prev("price", 2)))
    up
    """
    most = a_number(rows, "rows", 1, 'write prev("price"), or prev("price", 2)', most=MOST_TIMES)
    return Prev(col(arg) if isinstance(arg, str) else _any_expression(arg, "prev"), most)


def next(arg: Expr | str, rows: int = 1) -> Prev:  # noqa: A001  # the word for it, as in SQL's patterns
    """Return the value that `arg` has in the row after this one, in event time, of the same key; null where none comes.

    A row is given once that row is settled, so the results of :meth:`~krishiv_py.KeyedStream.with_previous` wait for it.

    Parameters
    ----------
    arg : Expr or str
        A column, or an expression over columns of one row.
    rows : int
        How many rows after, at most 1 000.

    Examples
    --------
    >>> from krishiv_py import col, next
    >>> col("price") < next("price")
    (price < NEXT(price))
    """
    most = a_number(rows, "rows", 1, 'write next("price"), or next("price", 2)', most=MOST_TIMES)
    return Prev(col(arg) if isinstance(arg, str) else _any_expression(arg, "next"), -most)
