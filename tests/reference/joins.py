"""Joins by nested loops (§9): every row is compared with every other, whenever something is looked at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

How = Literal["inner", "left", "right", "full", "semi", "anti"]
Side = Literal["left", "right"]
Watermark = float
SIDES: tuple[Side, Side] = ("left", "right")


@dataclass(frozen=True)
class Row:
    """A row of one side; `id` distinguishes rows that are equal otherwise."""

    side: Side
    id: int
    key: str | None
    t: int


@dataclass(frozen=True)
class Result:
    """What is given: the ids of both rows, None for the side that is missing, and the time."""

    left: int | None
    right: int | None
    t: int


@dataclass
class Given:
    """What one batch gives."""

    results: list[Result] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    unmatched: int = 0


@dataclass
class Clock:
    """The watermark over both sides (§2.4)."""

    lags: dict[Side, int]
    reached: dict[Side, Watermark] = field(default_factory=lambda: dict.fromkeys(SIDES, -math.inf))
    passive: frozenset[Side] = frozenset()

    def saw(self, rows: Iterable[Row]) -> None:
        """Follow the rows of a batch, late ones like others."""
        for row in rows:
            self.reached[row.side] = max(self.reached[row.side], row.t - self.lags[row.side])

    @property
    def value(self) -> Watermark:
        """The minimum over the sides, but for passive ones."""
        return min(reached for side, reached in self.reached.items() if side not in self.passive)


@dataclass
class IntervalJoin:
    """§9.1, row by row."""

    lower: int
    upper: int
    how: How
    lateness: int
    clock: Clock
    idle_batches: bool = True
    held: list[Row] = field(default_factory=list)
    met: set[tuple[Side, int]] = field(default_factory=set)
    in_force: Watermark = -math.inf

    def send(self, rows: Sequence[Row]) -> Given:
        """A micro-batch, and the one without rows behind it."""
        out = Given()
        self._batch(rows, out)
        self.clock.saw(rows)
        self._follow(out)
        return out

    def close(self) -> Given:
        """The end of input on both sides."""
        out = Given()
        self._batch([], out)
        self.clock.reached = dict.fromkeys(SIDES, math.inf)
        self._follow(out, ended=True)
        return out

    def _follow(self, out: Given, *, ended: bool = False) -> None:
        before, self.in_force = self.in_force, self.clock.value
        if (self.idle_batches or ended) and self.in_force > before:
            self._batch([], out)

    def _batch(self, rows: Sequence[Row], out: Given) -> None:
        for row in rows:
            if row.t < self.in_force - self.lateness:
                out.late.append(row.id)
                continue
            for other in self.held:
                self._meet(row, other, out)
            self.held.append(row)
        self._leave(out)

    def _meet(self, row: Row, other: Row, out: Given) -> None:
        if row.side == other.side or row.key is None or row.key != other.key:
            return
        left, right = (row, other) if row.side == "left" else (other, row)
        if not left.t + self.lower <= right.t <= left.t + self.upper:
            return
        if self.how == "semi" and ("left", left.id) not in self.met:
            out.results.append(Result(left.id, None, left.t))
        if self.how in ("inner", "left", "right", "full"):
            out.results.append(Result(left.id, right.id, max(left.t, right.t)))
        self.met |= {("left", left.id), ("right", right.id)}

    def _leave(self, out: Given) -> None:
        """§9.1: `l` stays until ``l.t + upper < W - L``, `r` until ``r.t - lower < W - L``."""
        for row in list(self.held):
            reach = self.upper if row.side == "left" else -self.lower
            given = self.how in (("left", "full", "anti") if row.side == "left" else ("right", "full"))
            waits = given or row.key is not None  # nobody meets a null key: it stays only where it will be given
            if waits and row.t + reach >= self.in_force - self.lateness:
                continue
            self.held.remove(row)
            if (row.side, row.id) in self.met:
                continue
            if not given:
                out.unmatched += 1
            else:
                out.results.append(Result(row.id, None, row.t) if row.side == "left" else Result(None, row.id, row.t))


@dataclass
class AsofJoin:
    """§9.2, row by row: a left row waits, then looks at every right row that ever came."""

    direction: Literal["backward", "forward", "nearest"]
    tolerance: int | None
    how: Literal["left", "inner"]
    lateness: int
    clock: Clock
    idle_batches: bool = True
    allow_exact: bool = True
    waiting: list[Row] = field(default_factory=list)
    rights: list[Row] = field(default_factory=list)
    in_force: Watermark = -math.inf

    def send(self, rows: Sequence[Row]) -> Given:
        """A micro-batch, and the one without rows behind it."""
        out = Given()
        for row in rows:
            if row.t < self.in_force - self.lateness:
                out.late.append(row.id)
            else:
                (self.waiting if row.side == "left" else self.rights).append(row)
        self._give(out)
        self.clock.saw(rows)
        self._follow(out, ended=False)
        return out

    def close(self) -> Given:
        """The end of input on both sides."""
        out = Given()
        self._give(out)
        self.clock.reached = dict.fromkeys(SIDES, math.inf)
        self._follow(out, ended=True)
        return out

    def _follow(self, out: Given, *, ended: bool) -> None:
        before, self.in_force = self.in_force, self.clock.value
        if (self.idle_batches or ended) and self.in_force > before:
            self._give(out)

    def _give(self, out: Given) -> None:
        ahead = 0 if self.direction == "backward" else self.tolerance or 0
        due = [row for row in self.waiting if row.t + ahead < self.in_force - self.lateness]
        for row in due:
            self.waiting.remove(row)
            actual = [r for r in self.rights if self._fits(row, r)]
            if actual:
                best = min(actual, key=lambda r: (abs(r.t - row.t), r.t, -r.id))
                out.results.append(Result(row.id, best.id, row.t))
            elif self.how == "left":
                out.results.append(Result(row.id, None, row.t))
            else:
                out.unmatched += 1

    def _fits(self, left: Row, right: Row) -> bool:
        if left.key is None or left.key != right.key:
            return False
        if self.tolerance is not None and abs(right.t - left.t) > self.tolerance:
            return False
        if right.t == left.t and not self.allow_exact:
            return False
        return {"backward": right.t <= left.t, "forward": right.t >= left.t, "nearest": True}[self.direction]


@dataclass
class VersionedJoin(AsofJoin):
    """§16.7, row by row: of the changes at or before a left row the newest one, unless it deletes."""

    deletes: dict[int, bool] = field(default_factory=dict)
    sequence: dict[int, int] = field(default_factory=dict)

    def _give(self, out: Given) -> None:
        for row in [row for row in self.waiting if row.t < self.in_force - self.lateness]:
            self.waiting.remove(row)
            changes = [r for r in self.rights if self._fits(row, r)]
            newest = max(changes, key=lambda r: (r.t, self.sequence.get(r.id, 0), r.id), default=None)
            valid = newest is not None and not self.deletes[newest.id]
            if valid or self.how == "left":
                out.results.append(Result(row.id, newest.id if newest is not None and valid else None, row.t))
            else:
                out.unmatched += 1


@dataclass(frozen=True)
class InWindow:
    """What a window gives: its start, and the ids of both rows."""

    start: int
    left: int | None
    right: int | None


@dataclass
class WindowJoin:
    """§9.3, window by window. A row enters those of its windows that are not over when it arrives (§4.2)."""

    size: int
    slide: int
    how: How
    lateness: int
    by_window: bool
    clock: Clock
    idle_batches: bool = True
    windows: dict[int, list[Row]] = field(default_factory=dict)
    in_force: Watermark = -math.inf

    def starts(self, row: Row) -> list[int]:
        """The windows of a row, by their start."""
        return [s for s in range(row.t - self.size + 1, row.t + 1) if s % self.slide == 0]

    def over(self, start: int) -> bool:
        """Whether a window has ended for good."""
        return start + self.size <= self.in_force - self.lateness

    def send(self, rows: Sequence[Row]) -> tuple[list[InWindow], list[int], int]:
        """A micro-batch, and the one without rows behind it: results, late rows, rows of windows without a partner."""
        results, late = [], []
        for row in rows:
            last = max(self.starts(row), default=0) + self.size if self.by_window else row.t + 1
            if last <= self.in_force - self.lateness:
                late.append(row.id)
                continue
            for start in self.starts(row):
                if not self.over(start):
                    self.windows.setdefault(start, []).append(row)
        results += self._fire()
        self.clock.saw(rows)
        before, self.in_force = self.in_force, self.clock.value
        if self.idle_batches and self.in_force > before:
            results += self._fire()
        return self._reported(results, late)

    def close(self) -> tuple[list[InWindow], list[int], int]:
        """The end of input on both sides."""
        results = self._fire()
        self.in_force = math.inf
        return self._reported([*results, *self._fire()], [])

    @staticmethod
    def _reported(actual: list[InWindow | None], late: list[int]) -> tuple[list[InWindow], list[int], int]:
        return [f for f in actual if f is not None], late, actual.count(None)

    def _fire(self) -> list[InWindow | None]:
        """The windows that are final now; None for a row without a partner that is not given."""
        out: list[InWindow | None] = []
        for start in sorted(filter(self.over, self.windows)):
            rows = self.windows.pop(start)
            out += self._window(start, [r for r in rows if r.side == "left"], [r for r in rows if r.side == "right"])
        return out

    def _window(self, start: int, lefts: list[Row], rights: list[Row]) -> list[InWindow | None]:
        pairs = [(x, y) for x in lefts for y in rights if x.key is not None and x.key == y.key]
        met = {row.id for pair in pairs for row in pair}
        out: list[InWindow | None] = []
        if self.how in ("inner", "left", "right", "full"):
            out += [InWindow(start, x.id, y.id) for x, y in pairs]
        if self.how == "semi":
            out += [InWindow(start, x.id, None) for x in lefts if x.id in met]
        for row in (*lefts, *rights):
            if row.id in met:
                continue
            if row.side == "left" and self.how in ("left", "full", "anti"):
                out.append(InWindow(start, row.id, None))
            elif row.side == "right" and self.how in ("right", "full"):
                out.append(InWindow(start, None, row.id))
            else:
                out.append(None)
        return out
