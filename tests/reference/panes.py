"""Time-interval panes of SPL: states, events in order, repeated triggers, timing, index (§3.6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tests.reference.model import Batch, Key, Late, Row, Step, Watermark, WatermarkSpec, collect_list, sorted_values
from tests.reference.run import move
from tests.reference.watermark import Clock

Event = Literal["before_tuple_insertion", "after_tuple_insertion", "window_initial_full", "window_trigger", "window_close"]
State = Literal["incomplete", "complete", "closed"]
Timing = Literal["early", "on_complete", "late"]


@dataclass(frozen=True)
class PaneConfig:
    """Pane N covers ``[N*period + offset, + duration)``; ``period`` defaults to the duration."""

    duration: int
    period: int | None = None
    discard_age: int = 0
    offset: int = 0
    watermark: WatermarkSpec = field(default_factory=WatermarkSpec)

    def starts_of(self, t: int) -> list[int]:
        """The starts of the panes of a row, ascending."""
        period = self.duration if self.period is None else self.period
        last = t - (t - self.offset) % period
        starts = []
        while t < last + self.duration:
            starts.append(last)
            last -= period
        return starts[::-1]

    def state(self, start: int, watermark: Watermark) -> State:
        """§3.6: where a pane is."""
        end = start + self.duration
        if watermark < end:
            return "incomplete"
        return "complete" if watermark < end + self.discard_age else "closed"


@dataclass(frozen=True)
class PaneEvent:
    """One event; a trigger carries the partition's sorted values, ``collect_list`` of them, its timing and index."""

    step: int
    event: Event
    start: int
    key: Key
    values: tuple[int | None, ...]
    timing: Timing | None = None
    index: int | None = None
    listed: tuple[int, ...] = ()


@dataclass
class PaneLog:
    """All that can be observed."""

    events: list[PaneEvent] = field(default_factory=list)
    late: list[Late] = field(default_factory=list)
    unassigned: list[tuple[int, Row]] = field(default_factory=list)
    watermark_after: list[Watermark] = field(default_factory=list)


@dataclass
class _Partition:
    rows: list[tuple[int, int, int | None]] = field(default_factory=list)  # time, number of arrival, value
    updated: bool = False
    full: bool = False  # window_initial_full has been
    firings: int = 0

    @property
    def values(self) -> tuple[int | None, ...]:
        return sorted_values(value for _, _, value in self.rows)


@dataclass
class _Pane:
    partitions: dict[Key, _Partition] = field(default_factory=dict)


def run_panes(config: PaneConfig, steps: Iterable[Step]) -> PaneLog:
    """Rows are inserted batch by batch; every strictly larger watermark is notified after its batch."""
    run = _PaneRun(config)
    for number, step in enumerate(steps):
        run.step(number, step)
    return run.log


class _PaneRun:
    def __init__(self, config: PaneConfig) -> None:
        self.config = config
        self.clock = Clock(config.watermark)
        self.log = PaneLog()
        self.panes: dict[int, _Pane] = {}
        self.number = 0

    def step(self, number: int, step: Step) -> None:
        self.number = number
        rows = step.rows if isinstance(step, Batch) else []
        for row in rows:
            self._insert(row)
        before = self.clock.value
        move(self.clock, step, [row for row in rows if row.t is not None])
        if self.clock.value > before:
            for start in sorted(self.panes):
                self._notify(start)
        self.log.watermark_after.append(self.clock.value)

    def _insert(self, row: Row) -> None:
        if row.t is None:
            self.log.late.append(Late(self.number, row, "null_time"))
        elif row.t < self.clock.value - self.config.discard_age:
            self.log.late.append(Late(self.number, row, "late"))
        elif not self.config.starts_of(row.t):
            self.log.unassigned.append((self.number, row))
        else:
            for start in self.config.starts_of(row.t):
                partition = self.panes.setdefault(start, _Pane()).partitions.setdefault(row.key, _Partition())
                self._say("before_tuple_insertion", start, row.key, partition)
                partition.rows.append((row.t, len(partition.rows), row.value))
                partition.updated = True
                self._say("after_tuple_insertion", start, row.key, partition)

    def _notify(self, start: int) -> None:
        """§3.6: initial full and trigger the first time, then only what was updated; close before deletion."""
        state = self.config.state(start, self.clock.value)
        if state == "incomplete":
            return
        pane = self.panes[start]
        for key, partition in pane.partitions.items():
            first_time = not partition.full
            partition.full = True
            if first_time:
                self._say("window_initial_full", start, key, partition)
            if partition.updated:
                self._trigger(start, key, partition, "on_complete" if first_time else "late")
        if state == "closed":
            for key, partition in pane.partitions.items():
                self._say("window_close", start, key, partition)
            del self.panes[start]

    def _trigger(self, start: int, key: Key, partition: _Partition, timing: Timing) -> None:
        event = PaneEvent(
            self.number, "window_trigger", start, key, partition.values, timing, partition.firings, collect_list(partition.rows)
        )
        self.log.events.append(event)
        partition.firings += 1
        partition.updated = False

    def _say(self, event: Event, start: int, key: Key, partition: _Partition) -> None:
        self.log.events.append(PaneEvent(self.number, event, start, key, partition.values))
