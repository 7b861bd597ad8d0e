"""Plain reference of process functions (SEMANTICS §14): one key after the other, row by row."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

END = math.inf


class Ctx:
    """What a function sees of a key."""

    def __init__(self, key: Any) -> None:
        self.key = key
        self.time: float = -END
        self.pending: dict[str, float] = {}
        self.closing = False
        self.dropped = 0
        self.gone = False

    def timer(self, name: str, *, after: int | None = None, at: float | None = None) -> None:
        if self.closing:
            self.dropped += 1
            return
        self.pending[name] = self.time + after if after is not None else at  # type: ignore[assignment]

    def cancel(self, name: str) -> None:
        self.pending.pop(name, None)

    def forget(self) -> None:
        self.gone = True
        self.pending.clear()


@attrs.define(eq=False)
class OneKey:
    """The rows, the state and the timers of a key."""

    function: Any
    make: Callable[[], Any]
    ttl: float
    ctx: Ctx
    rows: list[tuple[int, int, dict[str, Any]]] = attrs.field(factory=list)
    state: Any = None
    called: float = -END
    written: float = -END
    out: list[tuple[float, Any, Any]] = attrs.field(factory=list)

    def call(self, time: float, call: Callable[[Any], Iterable[Any] | None]) -> None:
        self.ctx.time = time
        before = copy.deepcopy(self.state)
        if self.state is None or time >= self.written + self.ttl:
            self.state, before = self.make(), None
        self.out += [(time, self.ctx.key, result) for result in call(self.state) or ()]
        self.called = time
        if self.state != before:
            self.written = time
        if self.ctx.gone:
            self.ctx.gone, self.state = False, None

    def fire_one(self, name: str) -> None:
        at = self.ctx.pending.pop(name)
        self.call(max(at, self.called), lambda state: self.function.on_timer(name, state, self.ctx))

    def fire(self, upto: float) -> None:
        while True:
            due = [(at, name) for name, at in self.ctx.pending.items() if at <= upto]
            if not due:
                return
            self.fire_one(min(due)[1])

    def late(self, row: dict[str, Any], settled: float) -> None:
        """Take a late row at the time of the last call, or at the time up to which all is settled."""
        self.call(max(self.called, settled), lambda state: self.function.on_late(row, state, self.ctx))
        self.fire(settled)

    def settle(self, below: float) -> None:
        """Take the rows before a time, and the timers up to it."""
        self.rows.sort(key=lambda row: row[:2])
        while self.rows and self.rows[0][0] < below:
            time, _, row = self.rows.pop(0)
            self.fire(time)
            self.call(time, lambda state, row=row: self.function.on_row(row, state, self.ctx))  # type: ignore[misc]

    def finish(self, newest: float, *, fire: bool) -> None:
        """End the input: rows, timers up to the newest time, and those that are left once."""
        self.settle(END)
        self.fire(newest)
        left = dict(self.ctx.pending)
        if fire:
            self.ctx.closing = True
            for at, name in sorted((at, name) for name, at in left.items()):
                if self.ctx.pending.get(name) == at:
                    self.fire_one(name)
        self.ctx.dropped += len(self.ctx.pending)
        self.ctx.pending.clear()


def process(
    batches: list[list[dict[str, Any]]],
    function: Any,
    make: Callable[[], Any],
    *,
    lag: int,
    lateness: int = 0,
    ttl: float = END,
    fire: bool = True,
    late_passes: bool = False,
    initial: Mapping[Any, Any] | None = None,
) -> tuple[list[list[tuple[float, Any, Any]]], list[list[dict[str, Any]]], dict[Any, OneKey]]:
    """Return the results of each batch and of the end, the late rows of each batch, and the keys.

    The columns are ``k`` and ``at``. The step of a batch is followed by one under the watermark after it.
    """
    keys = {key: OneKey(function, make, ttl, Ctx(key), state=state, written=END) for key, state in (initial or {}).items()}
    watermark = newest = -END
    arrived, steps, late = 0, [], []

    def step(below: float, *, ends: bool = False, before: Sequence[Any] = ()) -> list[tuple[float, Any, Any]]:
        for one in keys.values():
            if ends:
                one.finish(newest, fire=fire)
            else:
                one.settle(below)
                one.fire(below)
        out = [*before, *(result for one in keys.values() for result in one.out)]
        for one in keys.values():
            one.out = []
        return sorted(out, key=lambda result: (result[0], result[1] is not None, result[1] or ""))

    for batch in batches:
        refused = []
        for row in batch:
            arrived += 1
            if row["at"] < watermark - lateness:
                refused.append(row)
            else:
                one = keys.setdefault(row["k"], OneKey(function, make, ttl, Ctx(row["k"])))
                one.rows.append((row["at"], arrived, row))
        first = step(watermark - lateness)
        if late_passes:
            for row in sorted(refused, key=lambda row: row["at"]):
                keys.setdefault(row["k"], OneKey(function, make, ttl, Ctx(row["k"]))).late(row, watermark - lateness)
            first = step(watermark - lateness, before=first)
        newest = max([newest, *(row["at"] for row in batch)])
        watermark = max(watermark, newest - lag)
        steps.append(first + step(watermark - lateness))
        late.append(refused)
    steps.append(step(END, ends=True))
    return steps, late, keys
