"""Windows whose keys have a time to live, over plain lists: what fires, what is late, what is dropped (SEMANTICS §6.1)."""

from __future__ import annotations

import math
from collections import Counter
from typing import TypeAlias

import attrs

Row: TypeAlias = tuple[str, int]
"""Key, time in ms."""
Line: TypeAlias = tuple[str, int, int, int]
"""Key, start, end, rows."""


@attrs.frozen
class ModelWindow:
    """A window of one key: bounds, numbers of its rows, what makes it another than those of equal bounds, when it is over."""

    start: int
    end: int
    rows: tuple[int, ...]
    anchor: int
    over: float

    @property
    def identity(self) -> tuple[int, int, int]:
        return (self.start, self.end, self.anchor)


def sessions(rows: list[tuple[int, int]], size: int, cap: int | None) -> list[ModelWindow]:
    walks: list[list[tuple[int, int]]] = []
    for number, t in sorted(rows, key=lambda r: (r[1], r[0])):
        if walks and t - walks[-1][-1][1] < size and (cap is None or t - walks[-1][0][1] < cap):
            walks[-1].append((number, t))
        else:
            walks.append([(number, t)])
    actual = []
    for walk in walks:
        first, end = walk[0][1], walk[-1][1] + size
        end = end if cap is None else min(end, first + cap)
        actual.append(ModelWindow(first, end, tuple(n for n, _ in walk), 0, end))
    return actual


def windows(kind: str, rows: list[tuple[int, int]], size: int) -> list[ModelWindow]:
    """The windows of one key's rows (number, time), in order of arrival."""
    if kind == "session":
        return sessions(rows, size, None)
    if kind == "capped":
        return sessions(rows, size, 2 * size)
    if kind == "count":
        step = size % 4 + 1
        parts = [rows[i : i + step] for i in range(0, len(rows), step)]
        return [
            ModelWindow(i * step, i * step + step, tuple(n for n, _ in part), 0, -math.inf if len(part) == step else math.inf)
            for i, part in enumerate(parts)
        ]
    if kind == "lookback":
        return [
            ModelWindow(t - size, t + size, tuple(n for n, u in rows if abs(u - t) <= size), number, t + size + 1)
            for number, t in rows
        ]
    starts = {t - size for _, t in rows} | {t + 1 for _, t in rows}
    inside = {s: tuple(n for n, u in rows if s <= u <= s + size) for s in starts}
    return [ModelWindow(s, s + size, held, 0, s + size + 1) for s, held in inside.items() if held]


@attrs.define
class Model:
    """One query; `kind` as in :func:`windows`, `ttl` and `size` in ms."""

    kind: str
    clock: str
    ttl: int
    size: int
    mark: float = -math.inf
    checked: int | None = None
    arrived: int = 0
    dropped: int = 0
    held: dict[str, list[tuple[int, int]]] = attrs.field(factory=dict)
    touched: dict[str, float] = attrs.field(factory=dict)
    fired: dict[str, set[tuple[int, int, int]]] = attrs.field(factory=dict)
    lines: Counter[Line] = attrs.field(factory=Counter)
    places: dict[int, set[str]] = attrs.field(factory=dict)
    """Of every row, by its number, where it ended."""

    def send(self, rows: list[Row], now: int) -> None:
        """A batch, and the one without rows that follows when the watermark moves."""
        for key, t in rows:
            if t < self.mark:
                self.places.setdefault(self.arrived, set()).add("late")
            else:
                self.held.setdefault(key, []).append((self.arrived, t))
                stamp = now if self.clock == "processing" else max(t, self.mark)
                self.touched[key] = max(stamp, self.touched.get(key, stamp))
            self.arrived += 1
        self._step(now)
        top = max((t for _, t in rows), default=-math.inf)
        if top > self.mark:
            self.mark = top
            self._step(now)

    def close(self, now: int) -> None:
        """The end of input."""
        self.mark = math.inf
        self._step(now)

    def _open(self, key: str) -> list[ModelWindow]:
        done = self.fired.setdefault(key, set())
        return [w for w in windows(self.kind, self.held.get(key, []), self.size) if w.identity not in done]

    def _put(self, window: ModelWindow, place: str) -> None:
        for number in (window.anchor,) if self.kind == "lookback" else window.rows:
            self.places.setdefault(number, set()).add(place)

    def _step(self, now: int) -> None:
        for key in self.held:
            for w in self._open(key):
                if w.over <= self.mark:
                    self.fired[key].add(w.identity)
                    self.lines[key, w.start, w.end, len(w.rows)] += 1
                    self._put(w, "result")
        clock = now if self.clock == "processing" else self.mark
        if not self.touched or math.isinf(clock):
            return
        cell = int(clock) * 1_000 // max(self.ttl * 1_000 // 16, 1)
        if self.checked is not None and cell <= self.checked:
            return
        self.checked = cell
        for key in [k for k, moment in self.touched.items() if moment + self.ttl <= clock]:
            for w in self._open(key):
                self.dropped += 1
                self._put(w, "dropped")
            del self.touched[key], self.held[key], self.fired[key]
