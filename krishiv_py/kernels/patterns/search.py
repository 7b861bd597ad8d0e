"""The search for a pattern in the rows of one key: the first start that is not decided, and the ways from there in order.

A way that fails goes back to the last choice that is left. Where the rows of a key end before the answer is known, the start is
undecided, and so are those after it. All that a search looks at is settled, so what it decides holds for ever; it notes the
last point in time that it depended on, which is the event time of its result.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import attrs

from krishiv_py.kernels.patterns.program import LOOP, MATCH, TAKE, Program
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.matching import SkipTo

ANY_ROW: Final = -1
"""The bits of conditions where any further row may decide."""
BUT: Final = -2
"""Less the number of a condition: rows that do not fulfil it may decide."""
GIVEN_UP: Final = UNSET
"""The end of a match for which too many rows were to be looked at."""
_BLOCK: Final = 1_024
_WIDE: Final = 1 << 20
"""So many rows of matches are looked at at once."""
_MOST_WAYS: Final = 1_000_000
"""A start that has tried so many ways is given up."""
Kind: TypeAlias = Literal["match", "limit", "timeout"]
Answers: TypeAlias = "Generator[Question, list[bool], None]"


@attrs.define(eq=False)
class Question:
    """Rows for which a condition is asked that depends on the rows of the match.

    Attributes
    ----------
    element : int
        The condition.
    rows : range
        The rows.
    steps, taken : list of int
        The rows of the match so far, with the step of each.
    in_run : bool
        Whether each row is asked for as if those before it belonged to the match, too.
    """

    element: int
    rows: range
    steps: list[int]
    taken: list[int]
    in_run: bool


@attrs.frozen(eq=False)
class Found:
    """A start that was decided otherwise than by finding nothing.

    Attributes
    ----------
    kind : {"match", "limit", "timeout"}
        A match; a row that was given up as a start; rows of a start whose time is over.
    steps, rows : list of int
        The rows, with the step of each.
    decided_us, end_us : int
        When it was decided, and when the match ends.
    """

    kind: Kind
    steps: list[int]
    rows: list[int]
    decided_us: int
    end_us: int


class NamedValue(NamedTuple):
    """A value of the rows of a match: of one row by its place, or how many rows there are.

    Attributes
    ----------
    step : int
        The step whose rows count; -1 for all of them.
    place : int
        The place from the first row, or from the last one with -1 for the last one.
    counts : bool
        Whether the number of the rows is the value.
    mine : int
        1 where the row that is asked for counts among them, else 0.
    """

    step: int
    place: int
    counts: bool
    mine: int


@attrs.frozen(eq=False)
class Settings:
    """Holds what all searches of a stage share.

    Attributes
    ----------
    program : Program
        The pattern.
    within_us, after_us : int or None
        How long a match may take, and how long nothing may follow it.
    skip : (SkipTo, int)
        Where the search goes on after a match, with the number of the step.
    most_rows : int
        How many rows a start may look at.
    asked : int
        The conditions, as bits, that depend on the rows of the match.
    named : tuple of tuple of NamedValue or None
        The values of these rows that each condition names; None where one of them is more than a row, or a number of rows.
    timeouts : bool
        Whether rows of a start whose time is over are wanted.
    ends_early : bool
        Whether absence beyond the largest event time does not count when the input ends.
    """

    program: Program
    within_us: int | None
    after_us: int | None
    skip: tuple[SkipTo, int]
    most_rows: int
    asked: int
    named: tuple[tuple[NamedValue, ...] | None, ...]
    timeouts: bool
    ends_early: bool


class Ahead(Protocol):
    """Conditions over rows of a match for all rows at once, where those that they name lie at the same distances."""

    def of(self, element: int, distances: tuple[int, ...]) -> bytes | None:
        """Return 1 or 0 for each row; None where that is not known."""


@attrs.frozen(eq=False)
class StepRows:
    """The rows of a step, of many keys.

    Attributes
    ----------
    times : list of int
        Event times, µs.
    bits : list of int
        The conditions that each fulfils; of one that depends on the match, the part that does not.
    starts : list of int
        The rows with which a match can begin.
    stops : dict of int to list of int
        For bits of conditions, the rows that fulfil one of them.
    settled_us : int
        Before this time there are no further rows.
    newest_us : int or None
        The largest event time, once the input has ended.
    ahead : Ahead
        What is known of the other part.
    """

    times: list[int]
    bits: list[int]
    starts: list[int]
    stops: dict[int, list[int]]
    settled_us: int
    newest_us: int | None
    ahead: Ahead


class UndecidedError(Exception):
    """A start is not decided."""


class SkipError(Exception):
    """The search would go on at the same start, or at a step without rows."""


@attrs.define(eq=False)
class _Block:
    """Answers that are known: for rows from `begin` on, while the match has the rows that it had."""

    begin: int
    taken: int
    in_run: bool
    answers: list[bool]


Choice: TypeAlias = tuple[int, int, tuple[int, ...]]
"""Another place of the program to go on from, the row that is next there, and the loops that were entered at this row."""


@attrs.frozen(eq=False)
class _Way:
    """The way of a start that was given up. The next start goes on along it from the first place that both have::

        start 7   a b b b b b b b b ?     more rows than a start may look at
        start 8     a b···············b ? takes b at the same place of the program, and goes on behind the last row

    Attributes
    ----------
    at : Choice
        Where it was.
    steps, rows, places : list of int
        The rows of the match, with the step of each, and the place in the program after it.
    choices : list of Choice
        The ways that were left.
    tried : set of (int, int)
        Places in the program and rows that are known to lead nowhere, or lie on this way.
    since : int
        The first row for which `tried` counts.
    """

    at: Choice
    steps: list[int]
    rows: list[int]
    places: list[int]
    choices: list[Choice]
    tried: set[tuple[int, int]]
    since: int

    def position(self, row: int, place: int) -> int | None:
        """Return the position of a row, if the program went on at this place after it; else None."""
        position = bisect_left(self.rows, row)
        is_here = position < len(self.rows) and self.rows[position] == row and self.places[position] == place
        return position if is_here else None

    def choices_after(self, row: int) -> list[Choice]:
        """Return the choices that were made after a row was taken."""
        return self.choices[bisect_right(self.choices, row, key=lambda choice: choice[1]) :]


class KeySearch:
    """Searches the rows of one key.

    Attributes
    ----------
    found : list of Found
        What was decided.
    at : int
        The first row that is undecided; the end of the rows when all are decided.
    until_us : int
        When it is decided at the latest.
    bits : int
        The conditions of rows that may decide it before.
    dropped : int
        How many absences did not count at the end of the input.
    """

    def __init__(self, settings: Settings, rows: StepRows, begin: int, end: int) -> None:
        self.settings, self.rows, self.end = settings, rows, end
        self.at = begin
        self.found: list[Found] = []
        self.until_us, self.bits, self.dropped = END_OF_TIME, 0, 0
        self._failed: set[tuple[int, int]] = set()
        self._start = self._stop = self._last = begin
        self._limit, self._decided = END_OF_TIME, UNSET
        self._blocks: dict[int, _Block] = {}
        self._floor = rows.times[begin]
        self._way: _Way | None = None
        """The way of the start before, if it was given up and no condition depends on the rows of a match."""
        self._forgets = settings.within_us is not None
        """True if a way that failed for one start may not fail for a later one."""

    def run(self) -> Answers:
        """Decide starts as long as the rows allow; yields what is asked, and is sent the answers."""
        starts, end, name = self.rows.starts, self.end, self.settings.skip
        place = bisect_left(starts, self.at)
        while place < len(starts) and starts[place] < end:
            self.at = start = starts[place]
            try:
                found = yield from self._attempt(start)
            except UndecidedError:
                return
            next_row = start + 1
            if found is not None:
                self.found.append(found)
                if found.kind == "match":
                    next_row = self._after(found, name, start)
            place = bisect_left(starts, next_row, place)
        self.at = end

    @staticmethod
    def _after(found: Found, skip: tuple[SkipTo, int], start: int) -> int:
        kind, step = skip
        if kind == "past_last":
            return found.rows[-1] + 1
        if kind == "next_row":
            return start + 1
        places = [row for of, row in zip(found.steps, found.rows, strict=True) if of == step]
        if not places:
            raise SkipError("the step has no row in the match")
        row = places[0] if kind == "first" else places[-1]
        if row == start:
            raise SkipError("it is the first row of the match")
        return row

    def _attempt(self, start: int) -> Generator[Question, list[bool], Found | None]:
        """Try the ways from a start in the order of preference."""
        settings, all_bits, all_stops = self.settings, self.rows.bits, self.rows.stops
        code, asked, failed = settings.program.code, settings.asked, self._failed
        way, self._way = self._way, None
        self._begin(start)
        stop, steps, taken, of_step = self._stop, self._steps, self._taken, self._of_step
        places, choices = list[int](), list[Choice]()
        loops: tuple[int, ...] = ()
        visited, tried, since = set[tuple[int, int]](), set[tuple[int, int]](), END_OF_TIME
        pc, row, tries = settings.program.start, start, 0
        while True:
            kind, element, relaxed, wanted, goto, other = code[pc]
            if kind == TAKE:
                passes = relaxed and bool(taken)
                known = self._decided_fit(element, row) if asked and row < stop and not passes else None
                if known is not None:
                    fits, place = known, row
                    if row > self._last:
                        self._last = row
                elif asked:
                    fits, place = yield from self._next_fit(element, row, passes, wanted)
                    if place < 0:
                        return self._give_up()
                else:
                    place = row
                    if passes:
                        stops = all_stops[wanted]
                        found = bisect_left(stops, row)
                        place = stops[found] if found < len(stops) else stop
                    fits = False
                    if place >= stop:
                        if self._beyond(self._deciding(pc)):
                            if settings.program.after is None:
                                tried |= visited
                                since = 0 if since == END_OF_TIME else since
                                self._way = _Way((pc, row, loops), steps, taken, places, choices, tried, since)
                            return self._give_up()
                    else:
                        if place > self._last:
                            self._last = place
                        fits = bool(all_bits[place] >> element & 1)
                if fits:
                    steps.append(element)
                    taken.append(place)
                    pc, row, loops = goto, place + 1, ()
                    if asked:
                        of_step[element].append(place)
                        continue
                    places.append(goto)
                    if way is not None and (position := way.position(place, goto)) is not None:
                        steps += way.steps[position + 1 :]
                        taken += way.rows[position + 1 :]
                        places += way.places[position + 1 :]
                        choices += way.choices_after(place)
                        (pc, row, loops), tried, since = way.at, way.tried, max(way.since, place + 1)
                        self._last, way = max(self._last, row - 1), None
                    continue
            elif kind == MATCH:
                if not taken:  # an empty match is the one that is preferred, and gives nothing
                    break
                end_us = yield from self._nothing_after(taken[-1])
                if end_us == GIVEN_UP:
                    return self._give_up()
                if end_us is not None:
                    return Found("match", steps, taken, self._settle(), end_us)
            else:
                state = pc, row
                leads_nowhere = not asked and (
                    state in visited or (row > start and state in failed) or (row >= since and state in tried)
                )
                if not leads_nowhere and not (kind == LOOP and pc in loops):
                    visited.add(state)
                    choices.append((other, row, loops))
                    if kind == LOOP:
                        loops = (*loops, pc)
                    pc = goto
                    continue
            if not choices:
                break
            tries += 1
            if asked and tries > _MOST_WAYS:
                return self._give_up()
            pc, row, loops = choices.pop()
            if taken and taken[-1] >= row:
                had = bisect_left(taken, row)
                for element in steps[had:] if asked else ():
                    of_step[element].pop()
                del steps[had:], taken[had:], places[had:]
                if asked:
                    self._blocks = {key: block for key, block in self._blocks.items() if block.taken <= had}
        self._settle()
        if self._timed_out is None and visited and not asked and (not self._forgets or self._floor < self._limit):
            failed |= {state for state in visited if state[1] > start}
        return self._timed_out

    def _begin(self, start: int) -> None:
        """Begin with a start: how far it may look, and what is known of it."""
        rows, settings, end = self.rows, self.settings, self.end
        limit = END_OF_TIME if settings.within_us is None else rows.times[start] + settings.within_us
        stop = end if limit == END_OF_TIME else bisect_left(rows.times, limit, start, end)
        self._start, self._limit, self._last, self._decided = start, limit, start, UNSET
        self._closed = stop < end or rows.newest_us is not None or limit <= rows.settled_us
        self._stop = min(stop, start + settings.most_rows)
        self._given_up = self._stop < stop
        self._timed_out: Found | None = None
        self._steps: list[int] = []
        self._taken: list[int] = []
        self._of_step: list[list[int]] = [[] for _ in settings.named] if settings.asked else []
        self._blocks = {}

    def _settle(self) -> int:
        """Return when the start is decided: no earlier than those before it."""
        self._floor = max(self._floor, self._decided, self.rows.times[self._last])
        return self._floor

    def _beyond(self, bits: int) -> bool:
        """Return whether a start is to be given up that needs a row which is not there; else the way fails, or waits."""
        if self._given_up:
            return True
        if not self._closed:
            self.until_us, self.bits = self._limit, bits
            raise UndecidedError
        end_us = self._limit if self._limit != END_OF_TIME else self.rows.newest_us
        assert end_us is not None
        self._decided = max(self._decided, end_us)
        if self.settings.timeouts and self._limit != END_OF_TIME and self._timed_out is None and self._taken:
            steps, taken = self._steps.copy(), self._taken.copy()
            self._timed_out = Found("timeout", steps, taken, self._limit, self._limit)
        return False

    def _deciding(self, pc: int) -> int:
        """Return the conditions of rows that may decide what a start waits for at a place of the program.

        A repetition that takes one more row first goes on with each row that fits, so such a row decides nothing.
        """
        code = self.settings.program.code
        _, element, relaxed, wanted, goto, _ = code[pc]
        loops = code[goto].kind == LOOP and code[goto].goto == pc
        if not relaxed:
            return BUT - element if loops else ANY_ROW
        return 0 if loops and wanted == 1 << element else wanted

    def _give_up(self) -> Found:
        start = self._start
        last = min(start + self.settings.most_rows, self.end - 1)
        self._floor = max(self._floor, self.rows.times[last])
        return Found("limit", [-1], [start], self._floor, self._floor)

    def _nothing_after(self, last: int) -> Generator[Question, list[bool], int | None]:
        """Look up to when nothing came after the last row; None where something did."""
        element, times = self.settings.program.after, self.rows.times
        if element is None:
            return times[last]
        assert self.settings.after_us is not None
        deadline = min(times[last] + self.settings.after_us, self._limit)
        stop = bisect_left(times, deadline, last, self.end)
        over = min(stop, self._start + self.settings.most_rows)
        came, place, stops = False, last + 1, self.rows.stops[1 << element]
        found = bisect_left(stops, place)
        while not came and found < len(stops) and stops[found] < over:
            place = stops[found]
            came = yield from self._test(element, place, over, in_run=False)
            found += 1
        if came:
            self._last = max(self._last, place)
            return None
        if over < stop:
            return GIVEN_UP
        newest = self.rows.newest_us
        if newest is None and deadline > self.rows.settled_us:
            self.until_us, self.bits = deadline, 1 << element
            raise UndecidedError
        if newest is not None and self.settings.ends_early and deadline > newest:
            self.dropped += 1
            self._decided = max(self._decided, newest)
            return None
        self._decided = max(self._decided, deadline)
        return deadline

    def _next_fit(
        self, element: int, row: int, relaxed: bool, wanted: int
    ) -> Generator[Question, list[bool], tuple[bool, int]]:
        """Look whether a row fits, and which; -1 to give the start up."""
        stops = self.rows.stops[wanted] if relaxed else []
        while True:
            if relaxed:
                found = bisect_left(stops, row)
                row = stops[found] if found < len(stops) else self._stop
            if row >= self._stop:
                return False, (-1 if self._beyond(wanted if relaxed else ANY_ROW) else row)
            self._last = max(self._last, row)
            if (yield from self._test(element, row, self._stop, in_run=not relaxed)):
                return True, row
            if not relaxed:
                return False, row
            for other in _bits_of(wanted & ~(1 << element)):
                if (yield from self._test(other, row, self._stop, in_run=False)):
                    return False, row
            row += 1

    def _decided_fit(self, element: int, row: int) -> bool | None:
        """Return whether a row fulfils a condition; None where that is to be asked."""
        rows, settings = self.rows, self.settings
        if not rows.bits[row] >> element & 1:
            return False
        if not settings.asked >> element & 1:
            return True
        named = settings.named[element]
        if named is None:
            return None
        answers = rows.ahead.of(element, tuple([self._distance(each, row) for each in named]))
        return None if answers is None else bool(answers[row])

    def _distance(self, named: NamedValue, row: int) -> int:
        """Return how far before a row the one is that is named, -1 for none; or how many rows there are."""
        step, place, counts, mine = named
        rows = self._taken if step < 0 else self._of_step[step]
        had = len(rows)
        if counts:
            return had + mine
        at = place if place >= 0 else had + mine + place
        if 0 <= at < had:
            return row - rows[at]
        return 0 if mine and at == had else -1

    def _test(self, element: int, row: int, stop: int, *, in_run: bool) -> Generator[Question, list[bool], bool]:
        """Ask whether a row fulfils a condition, together with those that come after it."""
        known = self._decided_fit(element, row)
        if known is not None:
            return known
        block, had = self._blocks.get(element), len(self._taken)
        many = 1
        if block is not None and block.in_run == in_run:
            place = row - block.begin
            same = had == block.taken
            if in_run and place and had == block.taken + place:
                same = self._taken[-1] == row - 1 and set(self._steps[block.taken :]) == {element}
            elif in_run and place:
                same = False
            if same and 0 <= place < len(block.answers):
                return block.answers[place]
            if same and place == len(block.answers):
                many = min(4 * len(block.answers), _BLOCK, max(1, _WIDE // (had + 1)))
        rows = range(row, min(row + many, stop))
        answers: list[bool] = yield Question(element, rows, self._steps.copy(), self._taken.copy(), in_run)
        self._blocks[element] = _Block(row, had, in_run, answers)
        return answers[0]


def _bits_of(bits: int) -> list[int]:
    return [number for number in range(bits.bit_length()) if bits >> number & 1]
