"""Chains of stages, row by row (§7 to §9): what each stage gives is the input of the next one in the same batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Watermark = float


@dataclass(frozen=True)
class Row:
    """A key, a number and an event time."""

    key: str | None
    n: int | None
    t: int


Batch = Mapping[str, Sequence[Row]]
Windows = Callable[[int], list[tuple[int, int]]]
"""The windows of a time, as start and end."""


def in_order(key: str | None) -> tuple[bool, str]:
    """Nulls first (§7.3)."""
    return key is not None, key or ""


@dataclass
class Source:
    """Rows as they come; its watermark follows them (§2.2)."""

    name: str
    lag: int
    reached: Watermark = -math.inf

    def saw(self, batch: Batch) -> None:
        """Follow the rows of a batch, late ones like others."""
        self.reached = max([self.reached, *(row.t - self.lag for row in batch.get(self.name, ()))])


@dataclass(kw_only=True)
class ReferenceStage:
    """What all stages do: judge what comes, and hand on a watermark."""

    inputs: Sequence[Source | ReferenceStage]
    lags: Sequence[int]
    filtered: Sequence[bool]
    """Of which inputs a filter keeps nulls and what 3 does not divide."""
    lateness: int = 0
    before: Watermark = -math.inf
    late: int = 0

    @property
    def watermark(self) -> Watermark:
        """What is in force: the least of its inputs (§2.4)."""
        return min(one.reached - lag for one, lag in zip(self.inputs, self.lags, strict=True))

    @property
    def reached(self) -> Watermark:
        """What it hands on (§7.2)."""
        return self.watermark - self.lateness - self.held_back

    @property
    def held_back(self) -> int:
        """How far results may be behind the watermark less the lateness."""
        return 0

    def run(self, batch: Batch) -> list[Row]:
        """Results of a step. Rows of stages are classified by what was in force before, those of a source by what is (§7.3)."""
        came = []
        for read in (False, True):
            for side, one in enumerate(self.inputs):
                if isinstance(one, Source) is read:
                    under = self.watermark if read else self.before
                    rows = batch.get(one.name, ()) if isinstance(one, Source) else one.run(batch)
                    came += [(side, row, under) for row in rows if not self.filtered[side] or row.n is None or row.n % 3]
        given: list[Row] = []
        for side, row, under in came:
            if self.is_late(row.t, under):
                self.late += 1
            else:
                given += self.take(side, row, under)
        given = self.fire(given)
        self.before = self.watermark
        return given

    def is_late(self, t: int, under: Watermark) -> bool:
        """§4.2, rule "event"."""
        return t < under - self.lateness

    def take(self, side: int, row: Row, under: Watermark) -> list[Row]:
        """Take a row in; what is given at once."""
        raise NotImplementedError

    def fire(self, given: list[Row]) -> list[Row]:
        """What the watermark makes final, with what was given at once, in the order in which it goes on."""
        raise NotImplementedError


@dataclass(kw_only=True)
class Once(ReferenceStage):
    """§8: the first of each identity."""

    by_number: bool
    within: int
    kept: list[Row] = field(default_factory=list)

    def take(self, side: int, row: Row, under: Watermark) -> list[Row]:
        for k in self.kept:
            if k.key == row.key and (k.n == row.n or not self.by_number) and abs(k.t - row.t) < self.within:
                return []
        self.kept.append(row)
        return [row]

    def fire(self, given: list[Row]) -> list[Row]:
        self.kept = [k for k in self.kept if k.t + self.within > self.watermark - self.lateness]
        if self.by_number:
            given.sort(key=lambda r: (r.n is not None, r.n or 0))
        return sorted(given, key=lambda r: (r.t, in_order(r.key)))


Aggregate = Literal["count", "sum", "max", "first", "last", "count_distinct", "mode"]


def aggregated(name: Aggregate, rows: Sequence[Row]) -> int | None:
    """§5.6, over rows in order of arrival; nulls are skipped."""
    if name == "count":
        return len(rows)
    numbers = [r.n for r in rows if r.n is not None]
    if name == "count_distinct":
        return len(set(numbers))
    if not numbers:
        return None
    if name in ("sum", "max"):
        return sum(numbers) if name == "sum" else max(numbers)
    if name == "mode":
        return max(sorted(set(numbers)), key=numbers.count)
    valued = sorted((r for r in rows if r.n is not None), key=lambda r: r.t)
    return valued[0].n if name == "first" else valued[-1].n


@dataclass(eq=False)
class Held:
    """A row in state, and the watermark under which it came."""

    row: Row
    under: Watermark
    done: bool = False


@dataclass(kw_only=True)
class Windowed(ReferenceStage):
    """Windows of one kind, each with its result when it is final."""

    aggregate: Aggregate
    by_key: bool
    held: list[Held] = field(default_factory=list)

    def take(self, side: int, row: Row, under: Watermark) -> list[Row]:
        self.held.append(Held(row if self.by_key else Row("all", row.n, row.t), under))
        return []

    def fire(self, given: list[Row]) -> list[Row]:
        actual = [(end, start, key, self.result(key, rows, self.time(end))) for start, end, key, rows in self.final()]
        return [result for *_, result in sorted(actual, key=lambda f: (f[0], f[1], in_order(f[2])))]

    def result(self, key: str | None, rows: Iterable[Held], t: int) -> Row:
        """That of a window, over its rows."""
        return Row(key, aggregated(self.aggregate, [h.row for h in rows]), t)

    def time(self, end: int) -> int:
        """The event time of a result (§7.1)."""
        return end - 1

    def keys(self) -> set[str | None]:
        """The keys of what is held."""
        return {h.row.key for h in self.held}

    def final(self) -> list[tuple[int, int, str | None, list[Held]]]:
        """The windows that are final and were not before: start, end, key, rows."""
        raise NotImplementedError


@dataclass(kw_only=True)
class Fixed(Windowed):
    """§3.1, §3.2, §11.1; a row enters those of its windows that are not over when it comes."""

    windows: Windows
    by_window: bool
    fired: set[tuple[int, int, str | None]] = field(default_factory=set)

    def is_late(self, t: int, under: Watermark) -> bool:
        if not self.by_window:
            return super().is_late(t, under)
        return all(end + self.lateness <= under for _, end in self.windows(t))

    def final(self) -> list[tuple[int, int, str | None, list[Held]]]:
        actual: dict[tuple[int, int, str | None], list[Held]] = {}
        for h in self.held:
            for start, end in self.windows(h.row.t):
                if h.under < end + self.lateness <= self.watermark:
                    actual.setdefault((start, end, h.row.key), []).append(h)
        new = {window: rows for window, rows in actual.items() if window not in self.fired}
        self.fired |= set(new)
        return [(*window, rows) for window, rows in new.items()]


@dataclass(kw_only=True)
class Sessions(Windowed):
    """§3.3."""

    gap: int
    longest: float

    def final(self) -> list[tuple[int, int, str | None, list[Held]]]:
        out = []
        for key in self.keys():
            sessions: list[list[Held]] = []
            for h in sorted((h for h in self.held if h.row.key == key), key=lambda h: h.row.t):
                joins = sessions and h.row.t - sessions[-1][-1].row.t < self.gap
                if joins and h.row.t - sessions[-1][0].row.t < self.longest:
                    sessions[-1].append(h)
                else:
                    sessions.append([h])
            for rows in sessions:
                start, end = rows[0].row.t, min(rows[-1].row.t + self.gap, rows[0].row.t + self.longest)
                if end + self.lateness <= self.watermark:
                    out.append((start, int(end), key, [h for h in self.held if h in rows]))
        over = [h for *_, rows in out for h in rows]
        self.held = [h for h in self.held if h not in over]
        return out


@dataclass(kw_only=True)
class LookBack(Windowed):
    """§3.4, §11.4: a result for every row, when nothing can be in its window any more, or at once."""

    size: int
    two_sided: bool
    without_itself: bool
    on_arrival: bool

    @property
    def _after(self) -> int:
        return self.size if self.two_sided else 0

    @property
    def held_back(self) -> int:
        return 0 if self.on_arrival else self._after

    def take(self, side: int, row: Row, under: Watermark) -> list[Row]:
        super().take(side, row, under)
        return [self._of(self.held[-1])] if self.on_arrival else []

    def fire(self, given: list[Row]) -> list[Row]:
        if not self.on_arrival:
            due = [h for h in self.held if not h.done and self.watermark - self.lateness > h.row.t + self._after]
            for h in due:
                h.done = True
            given = sorted((self._of(h) for h in due), key=lambda r: in_order(r.key))
        return sorted(given, key=lambda r: r.t)

    def _of(self, own: Held) -> Row:
        t = own.row.t
        met = [h for h in self.held if h.row.key == own.row.key and t - self.size <= h.row.t <= t + self._after]
        return self.result(own.row.key, [h for h in met if not (self.without_itself and h is own)], t)


@dataclass(kw_only=True)
class Distinct(Windowed):
    """§3.5; its grace is the lateness."""

    size: int
    fired: set[tuple[int, int, str | None]] = field(default_factory=set)

    def time(self, end: int) -> int:
        return end

    def final(self) -> list[tuple[int, int, str | None, list[Held]]]:
        out = []
        for key in self.keys():
            rows = [h for h in self.held if h.row.key == key]
            times = {h.row.t for h in rows}
            after = {t + 1 for t in times if any(t < u <= t + 1 + self.size for u in times)}
            for start in {t - self.size for t in times} | after:
                end = start + self.size
                if end < self.watermark - self.lateness and (start, end, key) not in self.fired:
                    self.fired.add((start, end, key))
                    out.append((start, end, key, [h for h in rows if start <= h.row.t <= end]))
        return out
