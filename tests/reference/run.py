"""The micro-batch model (§2.3): judge by the watermark in force, fold in, fire, move the watermark, fire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from tests.reference.arrival import run_arrivals
from tests.reference.count import CountWindow, run_count
from tests.reference.emission import Firings
from tests.reference.lateness import Horizon
from tests.reference.lookback import LookBack
from tests.reference.model import (
    Advance,
    Batch,
    Close,
    Config,
    Key,
    Late,
    Observed,
    Row,
    Seen,
    Step,
    Watermark,
    Window,
    order_of,
)
from tests.reference.watermark import Clock


class Kind(Protocol):
    """A kind of window over event time, given all rows of one key."""

    @property
    def inclusive(self) -> bool:
        """Whether the end belongs to the window."""

    @property
    def merging(self) -> bool:
        """Whether windows merge, so that each row is in exactly one."""

    def belongs_nowhere(self, row: Seen) -> bool:
        """Whether no window at all, open or closed, would hold the row."""

    def late(self, held: Sequence[Seen], batch: Sequence[Seen], horizon: Horizon, watermark: Watermark) -> set[int]:
        """The numbers of the rows of a batch that are late by the window rule (§4.2)."""

    def windows(self, held: Sequence[Seen], horizon: Horizon) -> list[Window]:
        """All windows the accepted rows make, with their rows."""


def take_in(config: Config, clock: Clock, number: int, batch: Batch, out: Observed) -> list[Row]:
    """Set aside rows without time and rows too far ahead; the rest moves the watermark, late or not (§1.3, §4.4)."""
    rows = []
    for row in batch.rows:
        if row.t is None:
            out.late.append(Late(number, row, "null_time"))
        elif config.future is not None and config.future.refuses(row.t, clock.value, batch.now):
            out.late.append(Late(number, row, "future"))
        else:
            rows.append(row)
    return rows


def move(clock: Clock, step: Step, rows: Iterable[Row]) -> None:
    """The watermark after a step."""
    if isinstance(step, Batch):
        clock.observe(rows, step.now)
    elif isinstance(step, Advance):
        clock.advance(step.to, step.source, step.now)
    else:
        clock.close()


class Reference:
    """Runs a query over steps, slowly: windows are made again from all accepted rows whenever they are looked at."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def run(self, steps: Iterable[Step]) -> Observed:
        """Everything that can be observed of the run."""
        if isinstance(self.config.window, CountWindow):
            return run_count(self.config, self.config.window, steps)
        if isinstance(self.config.window, LookBack) and self.config.window.on_arrival:
            return run_arrivals(self.config, self.config.window, steps)
        return _Run(self.config, self.config.window).run(steps)


class _Run:
    def __init__(self, config: Config, kind: Kind) -> None:
        self.config = config
        self.kind = kind
        self.horizon = Horizon(kind.inclusive, config.allowed_lateness)
        self.clock = Clock(config.watermark)
        self.firings = Firings(config, self.horizon, kind.merging)
        self.held: dict[Key, list[Seen]] = {}
        self.gone: set[tuple[Key, int, int, int | None]] = set()
        self.count = 0
        self.out = Observed()

    def run(self, steps: Iterable[Step]) -> Observed:
        for number, step in enumerate(steps):
            rows = take_in(self.config, self.clock, number, step, self.out) if isinstance(step, Batch) else []
            fresh = self.count
            self._fold_in(number, rows)
            self.firings.after_batch(number, self._open_windows(), self.clock.value)
            self.firings.ask(number, self._open_windows(), fresh, self.clock.value)
            move(self.clock, step, rows)
            self._batch_without_rows(number)
            self.out.watermark_after.append(self.clock.value)
            if isinstance(step, Close):
                break
        self.out.emissions = self.firings.log
        for w in sorted(self._open_windows(), key=order_of):
            self.out.still_open.append(w.result())
        return self.out

    def _fold_in(self, step: int, rows: Sequence[Row]) -> None:
        watermark = self.clock.value
        candidates: list[Seen] = []
        for row in rows:
            seen = Seen(self.count, row, watermark)
            self.count += 1
            if self.kind.belongs_nowhere(seen):
                self.out.unassigned.append((step, row))
            else:
                candidates.append(seen)
        late = self._late(candidates)
        for seen in candidates:
            if seen.number in late:
                self.out.late.append(Late(step, seen.row, "late"))
            else:
                self._add(step, seen)

    def _late(self, candidates: Sequence[Seen]) -> set[int]:
        """§4.2, by either rule."""
        watermark = self.clock.value
        if self.config.late_rule == "event":
            return {s.number for s in candidates if self.horizon.too_old(s.t, watermark)}
        late: set[int] = set()
        for key in {s.row.key for s in candidates}:
            batch = [s for s in candidates if s.row.key == key]
            late |= self.kind.late(self.held.get(key, []), batch, self.horizon, watermark)
        return late

    def _add(self, step: int, seen: Seen) -> None:
        key = seen.row.key
        trigger = self.config.trigger
        row_by_row = trigger.early is not None or isinstance(trigger.late, int)
        before = {w.identity: w.rows for w in self._windows_of(key)} if row_by_row else {}
        self.held.setdefault(key, []).append(seen)
        if row_by_row:
            changed = [w for w in self._windows_of(key) if before.get(w.identity) != w.rows]
            self.firings.after_row(step, changed, self.clock.value)

    def _batch_without_rows(self, step: int) -> None:
        """Under the new watermark, windows fire and close, in ascending end order."""
        watermark = self.clock.value
        windows = sorted(self._open_windows(), key=order_of)
        self.firings.on_watermark(step, windows, watermark)
        for window in windows:
            if self.horizon.closed(window.end, watermark):
                self.firings.on_close(step, window)
                self.out.closed.append(window.result())
                self._drop(window)

    def _drop(self, window: Window) -> None:
        """A closed session takes its rows along; other windows share rows, so only the window is marked."""
        if self.kind.merging:
            left = {s.number for s in window.rows}
            self.held[window.key] = [s for s in self.held[window.key] if s.number not in left]
        else:
            self.gone.add(window.identity)

    def _windows_of(self, key: Key) -> list[Window]:
        actual = self.kind.windows(self.held.get(key, []), self.horizon)
        return [w for w in actual if w.identity not in self.gone]

    def _open_windows(self) -> list[Window]:
        return [w for key in self.held for w in self._windows_of(key)]
