"""Interval joins whose sides may be results of stages (§7, §9.1), row by row: a side says what it gives, by which time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tests.reference.joins import How


@dataclass(frozen=True)
class Row:
    """A row on its way into a join."""

    id: str
    key: str | None
    t: int


@dataclass
class Step:
    """What one call gives: pairs of ids with their time, and the ids of late rows by stage."""

    results: list[tuple[str | None, str | None, int]] = field(default_factory=list)
    late: list[str] = field(default_factory=list)


class Side(Protocol):
    """One side of the join, with the clock of its source."""

    lag: int
    reached: float

    def take(self, rows: Sequence[Row], w: float, out: Step) -> list[Row]:
        """What the stage gives of its rows under `w`."""
        ...

    def handed_on(self, w: float) -> float:
        """The watermark behind it."""
        ...


@dataclass
class Plain:
    """Rows as they come: the join itself judges them."""

    lag: int
    reached: float = -math.inf

    def take(self, rows: Sequence[Row], w: float, out: Step) -> list[Row]:
        return list(rows)

    def handed_on(self, w: float) -> float:
        return w


@dataclass
class Once:
    """The first row of a key within a time (§8)."""

    lag: int
    within: int
    lateness: int
    reached: float = -math.inf
    kept: list[Row] = field(default_factory=list)

    def take(self, rows: Sequence[Row], w: float, out: Step) -> list[Row]:
        passed = []
        for row in rows:
            if row.t < w - self.lateness:
                out.late.append(row.id)
            elif not any(k.key == row.key and abs(k.t - row.t) < self.within for k in self.kept):
                self.kept.append(row)
                passed.append(row)
        self.kept = [k for k in self.kept if k.t + self.within > w - self.lateness]
        return passed

    def handed_on(self, w: float) -> float:
        return w - self.lateness


@dataclass
class Counted:
    """Tumbling windows by key: each gives one row, when it is final (§5)."""

    lag: int
    size: int
    lateness: int
    reached: float = -math.inf
    open: set[tuple[str | None, int]] = field(default_factory=set)

    def take(self, rows: Sequence[Row], w: float, out: Step) -> list[Row]:
        for row in rows:
            if row.t < w - self.lateness:
                out.late.append(row.id)
                continue
            end = row.t - row.t % self.size + self.size
            if end > w - self.lateness:
                self.open.add((row.key, end))
        due = {(key, end) for key, end in self.open if end <= w - self.lateness}
        self.open -= due
        return [Row(f"{key}@{end}", key, end - 1) for key, end in due]

    def handed_on(self, w: float) -> float:
        return w - self.lateness


@dataclass
class Join:
    """§9.1 over two such sides; `lags`: what the join takes off the watermark of results."""

    left: Side
    right: Side
    lower: int
    upper: int
    how: How
    lateness: int
    idle_batches: bool = True
    lags: tuple[int, int] = (0, 0)
    held: list[tuple[str, Row]] = field(default_factory=list)
    met: set[tuple[str, str]] = field(default_factory=set)
    in_force: tuple[float, float] = (-math.inf, -math.inf)

    @property
    def _sides(self) -> tuple[Side, Side]:
        return self.left, self.right

    def send(self, left: Sequence[Row], right: Sequence[Row], *, ended: bool = False) -> Step:
        """A micro-batch, and the one without rows behind it."""
        out = Step()
        self._turn((left, right), out)
        for side, rows in zip(self._sides, (left, right), strict=True):
            side.reached = max([side.reached, *(r.t - side.lag for r in rows)]) if not ended else math.inf
        before, self.in_force = self.in_force, (self.left.reached, self.right.reached)
        if (self.idle_batches or ended) and self.in_force != before:
            self._turn(((), ()), out)
        return out

    def _turn(self, rows: tuple[Sequence[Row], Sequence[Row]], out: Step) -> None:
        """Both sides under what is in force, then the join."""
        w = min(side.handed_on(own) - lag for side, own, lag in zip(self._sides, self.in_force, self.lags, strict=True))
        for name, side, own, mine in zip(("left", "right"), self._sides, self.in_force, rows, strict=True):
            for row in side.take(mine, own, out):
                if isinstance(side, Plain) and row.t < w - self.lateness:
                    out.late.append(row.id)
                    continue
                for other, held in self.held:
                    if other != name:
                        self._meet(*((row, held) if name == "left" else (held, row)), out)
                self.held.append((name, row))
        self._leave(w, out)

    def _meet(self, left: Row, right: Row, out: Step) -> None:
        if left.key is None or left.key != right.key or not left.t + self.lower <= right.t <= left.t + self.upper:
            return
        if self.how == "semi" and ("left", left.id) not in self.met:
            out.results.append((left.id, None, left.t))
        if self.how in ("inner", "left", "right", "full"):
            out.results.append((left.id, right.id, max(left.t, right.t)))
        self.met |= {("left", left.id), ("right", right.id)}

    def _leave(self, w: float, out: Step) -> None:
        for name, row in list(self.held):
            if row.t + (self.upper if name == "left" else -self.lower) >= w - self.lateness:
                continue
            self.held.remove((name, row))
            given = self.how in (("left", "full", "anti") if name == "left" else ("right", "full"))
            if given and (name, row.id) not in self.met:
                out.results.append((row.id, None, row.t) if name == "left" else (None, row.id, row.t))
