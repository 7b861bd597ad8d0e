"""Joins as stages of a pipeline (§9), by nested loops: a side is a source or what another stage gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.reference.joins import How
from tests.reference.pipelines import ReferenceStage, Row, Watermark, Windows, in_order

Direction = Literal["backward", "forward", "nearest"]
GIVEN: dict[str, tuple[bool, bool]] = {
    "left": (True, False),
    "right": (False, True),
    "full": (True, True),
    "anti": (True, False),
}
"""Of which sides a row without a partner is given."""
PAIRS = ("inner", "left", "right", "full")


@dataclass(eq=False)
class Held:
    """A row of a side: its number in order of arrival, the watermark under which it came, whether it has met another."""

    side: int
    row: Row
    number: int
    under: Watermark
    met: bool = False
    done: bool = False


@dataclass(frozen=True)
class Met:
    """A result, with what it is ordered by: its time, then key, then the numbers of both rows."""

    row: Row
    left: int
    right: int


def of_both(left: Row | None, right: Row | None) -> int:
    """The number of a pair, by which pairs can be distinguished."""
    one, other = (None if row is None else row.n for row in (left, right))
    return (one or 0) + 2 * (100 if other is None else other)


@dataclass(kw_only=True)
class Join(ReferenceStage):
    """What joins have in common."""

    how: How
    held: list[Held] = field(default_factory=list)
    arrived: int = 0
    out: list[Met] = field(default_factory=list)
    unmatched: int = 0

    def take(self, side: int, row: Row, under: Watermark) -> list[Row]:
        self.arrived += 1
        new = Held(side, row, self.arrived, under)
        self.held.append(new)
        self.came(new)
        return []

    def came(self, new: Held) -> None:
        """What happens at once when a row comes."""

    def fire(self, given: list[Row]) -> list[Row]:
        """Behind other stages a join gives what was due before their results came, then what is due now (§7.3)."""
        late = any(isinstance(one, ReferenceStage) for one in self.inputs)
        rows = []
        for reached in (self.before, self.watermark) if late else (self.watermark,):
            self.due(reached)
            rows += [m.row for m in sorted(self.out, key=lambda m: (m.left, m.right))]
            self.out = []
        return sorted(rows, key=lambda r: (r.t, in_order(r.key)))

    def due(self, reached: Watermark) -> None:
        """What a watermark makes final."""
        raise NotImplementedError

    def alone(self, held: Held, t: int) -> None:
        """A row that meets nobody."""
        if not GIVEN.get(self.how, (False, False))[held.side]:
            self.unmatched += 1
            return
        row = held.row
        n = row.n if self.how == "anti" else of_both(*((row, None) if held.side == 0 else (None, row)))
        self.out.append(Met(Row(row.key, n, t), *((held.number, -1) if held.side == 0 else (-1, held.number))))

    def meet(self, left: Held, right: Held, t: int, *, first: bool) -> None:
        """Two rows that meet; a semi join gives the left one at its `first` match."""
        if self.how in PAIRS:
            self.out.append(Met(Row(left.row.key, of_both(left.row, right.row), t), left.number, right.number))
        elif self.how == "semi" and first:
            self.out.append(Met(Row(left.row.key, left.row.n, t), left.number, 0))


def equal_keys(one: Held, other: Held) -> bool:
    """Null keys never meet."""
    return one.row.key is not None and one.row.key == other.row.key


@dataclass(kw_only=True)
class Interval(Join):
    """§9.1."""

    lower: int
    upper: int

    @property
    def held_back(self) -> int:
        after, before = max(self.upper, 0), max(-self.lower, 0)
        return {"inner": 0, "right": before, "full": max(after, before)}.get(self.how, after)

    def came(self, new: Held) -> None:
        for other in [h for h in self.held if h.side != new.side and equal_keys(h, new)]:
            left, right = (new, other) if new.side == 0 else (other, new)
            if left.row.t + self.lower <= right.row.t <= left.row.t + self.upper:
                t = left.row.t if self.how == "semi" else max(left.row.t, right.row.t)
                self.meet(left, right, t, first=not left.met)
                left.met = right.met = True

    def due(self, reached: Watermark) -> None:
        for h in list(self.held):
            if h.row.t + (self.upper if h.side == 0 else -self.lower) < reached - self.lateness:
                self.held.remove(h)
                if not h.met:
                    self.alone(h, h.row.t)


@dataclass(kw_only=True)
class Asof(Join):
    """§9.2."""

    direction: Direction
    tolerance: float = math.inf

    @property
    def held_back(self) -> int:
        return 0 if self.direction == "backward" else int(self.tolerance)

    def due(self, reached: Watermark) -> None:
        rights = [h for h in self.held if h.side == 1]
        for h in [h for h in self.held if h.side == 0 and not h.done]:
            if reached - self.lateness <= h.row.t + self.held_back:
                continue
            h.done = True
            actual = [r for r in rights if equal_keys(h, r) and self._near(r.row.t - h.row.t)]
            if actual:
                best = min(actual, key=lambda r: (abs(r.row.t - h.row.t), r.row.t, -r.number))
                self.meet(h, best, h.row.t, first=True)
            else:
                self.alone(h, h.row.t)

    def _near(self, distance: int) -> bool:
        on_the_side = {"backward": distance <= 0, "forward": distance >= 0, "nearest": True}[self.direction]
        return on_the_side and abs(distance) <= self.tolerance


@dataclass(kw_only=True)
class InWindows(Join):
    """§9.3."""

    windows: Windows
    by_window: bool
    fired: set[tuple[int, int]] = field(default_factory=set)

    def is_late(self, t: int, under: Watermark) -> bool:
        if not self.by_window:
            return super().is_late(t, under)
        return all(end + self.lateness <= under for _, end in self.windows(t))

    def entered(self, h: Held) -> list[tuple[int, int]]:
        """The windows of a row that were not over when it came."""
        return [w for w in self.windows(h.row.t) if w[1] + self.lateness > h.under]

    def due(self, reached: Watermark) -> None:
        final = {w for h in self.held for w in self.entered(h) if w[1] + self.lateness <= reached}
        for window in sorted(final - self.fired):
            self.fired.add(window)
            self._give(window, [h for h in self.held if window in self.entered(h)])

    def _give(self, window: tuple[int, int], rows: Sequence[Held]) -> None:
        met: set[int] = set()
        for left in [h for h in rows if h.side == 0]:
            for right in [h for h in rows if h.side == 1 and equal_keys(left, h)]:
                self.meet(left, right, window[1] - 1, first=left.number not in met)
                met |= {left.number, right.number}
        for h in rows:
            if h.number not in met:
                self.alone(h, window[1] - 1)
