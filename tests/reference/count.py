"""Count windows: per key, every ``size`` rows in arrival order (§3.7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.reference.model import Batch, Close, Config, Emission, Key, Late, Observed, Seen, Step, result_of
from tests.reference.watermark import Clock

if TYPE_CHECKING:
    from tests.reference.model import Row


@dataclass(frozen=True)
class CountWindow:
    """``[k*slide, k*slide + size)`` in row numbers of the key, counted from 0."""

    size: int
    slide: int | None = None

    @property
    def period(self) -> int:
        """The distance of two starts."""
        return self.size if self.slide is None else self.slide

    def starts_of(self, n: int) -> list[int]:
        """The windows row number ``n`` belongs to."""
        return [k for k in range(0, n + 1, self.period) if n < k + self.size]


def run_count(config: Config, window: CountWindow, steps: Iterable[Step]) -> Observed:
    """A full window is written at once; what is not full at the end of input is written then (§2.5)."""
    run = _CountRun(config, window)
    for number, step in enumerate(steps):
        run.step(number, step)
        if isinstance(step, Close):
            break
    return run.finish()


class _CountRun:
    def __init__(self, config: Config, window: CountWindow) -> None:
        self.config = config
        self.window = window
        self.clock = Clock(config.watermark)
        self.out = Observed()
        self.rows_of: dict[Key, int] = {}
        self.open: dict[tuple[Key, int], list[Seen]] = {}

    def step(self, number: int, step: Step) -> None:
        timed: list[Row] = []
        if isinstance(step, Batch):
            timed = [row for row in step.rows if row.t is not None]
            for row in step.rows:
                self._row(number, row)
            self.clock.observe(timed, step.now)
        elif isinstance(step, Close):
            self.clock.close()
            for key, start in sorted(self.open, key=lambda at: (at[1], repr(at[0]))):
                self._write(number, key, start)
        else:
            self.clock.advance(step.to, step.source, step.now)
        self.out.watermark_after.append(self.clock.value)

    def finish(self) -> Observed:
        for (key, start), rows in self.open.items():
            self.out.still_open.append(result_of(key, start, start + self.window.size, rows))
        return self.out

    def _row(self, number: int, row: Row) -> None:
        if row.t is None:
            self.out.late.append(Late(number, row, "null_time"))
            return
        if self.config.late_rule == "event" and row.t < self.clock.value - self.config.allowed_lateness:
            self.out.late.append(Late(number, row, "late"))
            return
        n = self.rows_of.get(row.key, 0)
        self.rows_of[row.key] = n + 1
        starts = self.window.starts_of(n)
        if not starts:
            self.out.unassigned.append((number, row))
        for start in starts:
            self.open.setdefault((row.key, start), []).append(Seen(n, row, self.clock.value))
            if n == start + self.window.size - 1:
                self._write(number, row.key, start)

    def _write(self, number: int, key: Key, start: int) -> None:
        result = result_of(key, start, start + self.window.size, self.open.pop((key, start)))
        self.out.emissions.append(Emission(number, "+I", "final", result))
        self.out.closed.append(result)
