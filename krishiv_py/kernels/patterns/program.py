"""A pattern as a program: what is tried after what, in the order of preference.

::

    small big+          0: take small   ► 1
                        1: take big     ► 2
                        2: split 1, else 3           a greedy repetition tries one more row first
                        3: match

Quantifiers with bounds are written out. A row that may not be passed over belongs to the take that it comes before, so a part
that can be left out is followed by two copies of the rest: one after it was taken, and one after it was not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

import attrs

from krishiv_py.errors import PlanError
from krishiv_py.plan.matching import Matching
from krishiv_py.plan.patterns import Alternatives, Chain, Pattern, Repetition, Step, absences_of

TAKE, SPLIT, LOOP, MATCH = range(4)
_MOST: Final = 20_000
Rest: TypeAlias = Callable[[int], int]


class Instruction(NamedTuple):
    """One instruction.

    Attributes
    ----------
    kind : int
        Take a row, try one way before another, begin a repetition once more, or end.
    element : int
        The condition that the row has to fulfil.
    relaxed : bool
        Whether rows that do not fit are passed over.
    wanted : int
        The conditions, as bits, at which passing over ends: its own, and those of rows that may not be passed over.
    goto, other : int
        What comes next, and what is tried when that fails.
    """

    kind: int
    element: int = -1
    relaxed: bool = False
    wanted: int = 0
    goto: int = -1
    other: int = -1


@attrs.frozen(eq=False)
class Program:
    """A compiled pattern.

    Attributes
    ----------
    code : tuple of Instruction
        The instructions.
    start : int
        The first one.
    after, before : int or None
        The number of the condition that no row may fulfil after the last row, and before the first one.
    """

    code: tuple[Instruction, ...]
    start: int
    after: int | None
    before: int | None


class _Compiler:
    """Writes the program of a pattern, from its end to its start."""

    def __init__(self, operation: Matching) -> None:
        self.code: list[Instruction] = []
        self._steps = {name: number for number, name in enumerate(operation.steps)}
        self.absent = {id(one): len(self._steps) + n for n, one in enumerate(absences_of(operation.pattern))}
        """The numbers of conditions that no row may fulfil."""

    def add(self, instruction: Instruction) -> int:
        """Write an instruction; return its place."""
        if len(self.code) >= _MOST:
            then = f"written out it has more than {_MOST} instructions"
            raise PlanError("the pattern is too long", got=f"{len(self._steps)} steps", then=then, hint="repeat fewer rows")
        self.code.append(instruction)
        return len(self.code) - 1

    def part(self, part: Pattern, relaxed: bool, without: int, rest: Rest) -> int:
        """Write a part of a pattern before the `rest`, which depends on what may not be passed over; return where it begins."""
        if isinstance(part, Step):
            number = self._steps[part.name]
            return self.add(Instruction(TAKE, number, relaxed, 1 << number | without, rest(0)))
        if isinstance(part, Alternatives):
            after = _once(rest)
            return self._either([self.part(option, relaxed, without, after) for option in part.options])
        if isinstance(part, Chain):
            return self._links(part, 0, relaxed, without, rest)
        assert isinstance(part, Repetition)
        return self._repeated(part, relaxed, without, _once(rest))

    def _links(self, chain: Chain, place: int, relaxed: bool, without: int, rest: Rest) -> int:
        if place == len(chain.links):
            return rest(without)
        link = chain.links[place]
        mine = relaxed if place == 0 else link.relaxed
        more = without | sum(1 << self.absent[id(one)] for one in link.without)
        return self.part(link.part, mine, more, _once(lambda left: self._links(chain, place + 1, False, left, rest)))

    def _either(self, ways: list[int]) -> int:
        begin = ways[-1]
        for way in reversed(ways[:-1]):
            begin = self.add(Instruction(SPLIT, goto=way, other=begin))
        return begin

    def _repeated(self, part: Repetition, relaxed: bool, without: int, rest: Rest) -> int:
        """Write a repetition from its last time to its first; what may not be passed over concerns the first only."""
        after = rest(0)
        if part.most is None:
            after = loop = self.add(Instruction(LOOP))
            self.code[loop] = _repetition(part, self.part(part.part, relaxed, 0, lambda _: loop), rest(0))
        last = part.least if part.most is None else part.most
        for number in reversed(range(1, last)):
            after = self._time(part, number, self.part(part.part, relaxed, 0, _goes_to(after)), rest(0))
        if last == 0 and not without:
            return after
        then = _goes_to(after) if not without else _once(lambda left: rest(left) if left else after)
        return self._time(part, 0, self.part(part.part, relaxed, without, then), rest(without))

    def _time(self, part: Repetition, number: int, more: int, enough: int) -> int:
        """Write one time of a repetition, which can be left out when there were enough before."""
        return more if number < part.least else self.add(_repetition(part, more, enough))


def _repetition(part: Repetition, more: int, enough: int) -> Instruction:
    """Return what tries one more time first, or going on."""
    return Instruction(LOOP, goto=more, other=enough) if part.greedy else Instruction(LOOP, goto=enough, other=more)


def _goes_to(place: int) -> Rest:
    return lambda _: place


def _once(rest: Rest) -> Rest:
    """Return a continuation that is written once for what may not be passed over."""
    written: dict[int, int] = {}

    def at(without: int) -> int:
        if without not in written:
            written[without] = rest(without)
        return written[without]

    return at


def compiled(operation: Matching) -> Program:
    """Return the program of a pattern.

    Raises
    ------
    PlanError
        For a pattern that is too long when it is written out.
    """
    compiler, chain = _Compiler(operation), operation.pattern
    end = compiler.add(Instruction(MATCH))
    try:
        start = compiler.part(chain, False, 0, lambda _: end)
    except RecursionError:
        hint = "use quantifiers such as .times(3), or fewer steps"
        raise PlanError("the pattern is nested too deeply", got=f"{len(operation.steps)} steps", hint=hint) from None
    before, after = (None if one is None else compiler.absent[id(one.condition)] for one in (chain.before, chain.after))
    return Program(tuple(compiler.code), start, after, before)
