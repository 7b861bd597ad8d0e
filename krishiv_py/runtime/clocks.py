"""Determine which watermark is in force in a micro-batch, and how tasks come to know it.

Two ways. **Spark's clock**: a single source's watermark is Spark's own, shifted and scaled (:func:`clock_ms`); the write-
ahead log of a batch holds it before the batch runs. What it follows from, the newest event time, is in the ledger too, for
plans with another lag that go on from here. **The ledger**: several sources, idle time-outs and advances, intervals
and wall-clock TTLs need more than Spark keeps, so the driver writes what is in force in batch n+1 at the end of batch n,
before Spark marks that as done; for the first batch it does so at the start of the query. Spark's own watermark is then
only a counter of batches that keeps timers and empty batches going. Both are on disk before the batch that uses them runs,
so a repeated batch sees the same watermark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import attrs
import pyarrow as pa

from krishiv_py.kernels.spec import Moment
from krishiv_py.kernels.watermark import ClockInput, ClockPlan, Clocks, moment_of
from krishiv_py.plan.durations import END_OF_TIME, MAX_TIME_US, UNSET
from krishiv_py.plan.running import Control
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes, CheckpointOrigin
from krishiv_py.runtime.checkpoint.sparklog import planned
from krishiv_py.runtime.chunk_files import NEW_CHECKPOINT
from krishiv_py.storage.files import store_at
from krishiv_py.storage.store import Store, Stores

STEPPED: Final = "stepped"
"""The entry of the ledger that says what was in force in the last step of the batch before, where it fired by its own rows."""
_SHIFT: Final = 4_600_000_000_000_000
_END_MS: Final = 9_200_000_000_000_000
NOT_YET_MS: Final = 0
CLOCK_TYPE: Final = pa.timestamp("us", "UTC")
_KEPT = 50


class Clock(Protocol):
    """Says how tasks know what is in force, and what they tell Spark."""

    @property
    def checkpoint(self) -> str:
        """The checkpoint of the query."""

    @property
    def heartbeats_reach_buckets(self) -> bool:
        """Return whether rows wake every bucket in every batch, as timers follow a watermark that is not the query's."""

    @property
    def begun(self) -> CheckpointOrigin:
        """Return what was before micro-batch 0."""

    def takes_over(self, batch: int) -> bool:
        """Return whether the buckets take their state over from a savepoint in a micro-batch."""

    def in_force(self, batch: int) -> Moment:
        """Return what is in force in a micro-batch."""

    def judging(self, batch: int, *, before: bool) -> Moment:
        """Return what rows of a micro-batch are classified by: what is in force, and when the batch was planned.

        And where some rows are classified by the batch `before`, what was in force in that; each of it is on record.
        """

    def spark_ms(self, batch: int, next_us: int) -> int:
        """Return the value for Spark's watermark column, when this task would move the watermark to `next_us`."""

    def timer_ms(self, batch: int, wakeup_us: int | None, wakeup_now_us: int | None) -> int | None:
        """Return when Spark should wake a bucket that has something to do at that watermark, or at that processing time."""


@attrs.frozen
class RaisedWatermarks:
    """The watermarks that smaller lags of a changed plan put in force, by every clock, from a batch on (SEMANTICS §12.3)."""

    batch: int = 0
    every: tuple[int, ...] = ()

    @classmethod
    def of(cls, note: Mapping[str, Any], begun: CheckpointOrigin) -> RaisedWatermarks:
        """Return what the plan `note` of a checkpoint says."""
        since = note.get("since")
        return cls() if since is None else cls(since["batches"] - begun.batches, tuple(since["raised"]))

    def over(self, moment: Moment, batch: int) -> Moment:
        """Return what is in force in a batch, of which `moment` is on record."""
        if batch < self.batch or not self.every:
            return moment
        first, *others = map(max, moment.every, self.every)
        return attrs.evolve(moment, watermark_us=first, others=tuple(others))


@attrs.frozen
class SparkClock:
    """Spark's own watermark and write-ahead log."""

    checkpoint: str
    tick_us: int
    initial_us: int
    begun: CheckpointOrigin = attrs.field(factory=CheckpointOrigin)
    raised: RaisedWatermarks = attrs.field(factory=RaisedWatermarks)
    facts: LedgerClock | None = None
    """The files that note the newest event times."""
    heartbeats_reach_buckets: bool = attrs.field(default=False, init=False)
    stores: Stores = attrs.field(factory=Stores, eq=False, repr=False)

    def in_force(self, batch: int) -> Moment:
        """See Clock."""
        logged = planned(self.checkpoint, batch)
        mark = watermark_of(int(logged["batchWatermarkMs"]), self.tick_us)
        return self.raised.over(Moment(max(mark, self.initial_us, self.begun.watermark_us), planned_us(logged)), batch)

    def takes_over(self, batch: int) -> bool:
        """See Clock."""
        return batch == 0 and self.begun.elsewhere

    def judging(self, batch: int, *, before: bool) -> Moment:
        """See Clock."""
        mark = self.in_force(batch)
        return attrs.evolve(mark, begun_us=mark.now_us, before=_before(self, batch) if before else None)

    def spark_ms(self, batch: int, next_us: int) -> int:
        """See Clock."""
        return clock_ms(next_us, self.tick_us)

    def timer_ms(self, batch: int, wakeup_us: int | None, wakeup_now_us: int | None) -> int | None:
        """See Clock."""
        return None if wakeup_us is None else wakeup_ms(wakeup_us, self.tick_us)


@attrs.frozen
class LedgerClock:
    """Files ``<checkpoint>/krishiv/ledger/<batch>``, written by the driver."""

    checkpoint: str
    initial_us: int
    durable: bool = False
    heartbeats_reach_buckets: bool = False
    begun: CheckpointOrigin = attrs.field(factory=CheckpointOrigin)
    kept: int = 0
    raised: RaisedWatermarks = attrs.field(factory=RaisedWatermarks)
    stores: Stores = attrs.field(factory=Stores, eq=False, repr=False)

    def takes_over(self, batch: int) -> bool:
        """See Clock."""
        return batch == 0 and self.begun.elsewhere

    def in_force(self, batch: int) -> Moment:
        """See Clock."""
        entry = self.read(batch)
        if entry is None:
            return Moment(self.initial_us, 0)
        return self.raised.over(moment_of(entry, entry.get("begun_us", entry["now_us"])), batch)

    def judging(self, batch: int, *, before: bool) -> Moment:
        """See Clock."""
        begun_us = planned_us(planned(self.checkpoint, batch))
        return attrs.evolve(self.in_force(batch), begun_us=begun_us, before=_before(self, batch) if before else None)

    def clocks(self, batch: int, plan: ClockPlan) -> Clocks:
        """Return the clocks as they are before the rows of a batch."""
        entry = self.read(batch)
        return Clocks(plan) if entry is None else Clocks.restored(plan, entry)

    def after(self, batch: int, plan: ClockPlan, said: Sequence[tuple[int, dict[str, int], Sequence[Control]]]) -> Moment:
        """Return what is in force after a batch, by what its tasks have `said` of each clock: maxima and controls.

        The time is that on record, so all tasks and a repeated batch come to the same.
        """
        clocks, noted = self.clocks(batch, plan), (self.read(batch) or {}).get("now_us", 0)
        now_us = max([noted, *(control.now_us for _, _, controls in said for control in controls)])
        for clock, maxima, controls in said:
            clocks.saw(clock, maxima, now_us)
            for control in controls:
                clocks.note(clock, control, now_us)
        return clocks.settle(now_us)

    def stepped(self, batch: int) -> Moment:
        """Return what was in force in the last step before a batch that fires by its own rows."""
        entry = self.read(batch) or {}
        if STEPPED not in entry:
            return self.in_force(max(batch - 1, 0))
        first, *others = entry[STEPPED]
        return Moment(first, others=tuple(others))

    def expect(self, batch: int, plan: ClockPlan, partitions: Iterable[tuple[Sequence[ClockInput], Iterable[str]]]) -> None:
        """Note, before the tasks of a batch run, the partitions that sources know of: the watermark waits for their rows."""
        clocks, entry = self.clocks(batch, plan), self.read(batch) or {"now_us": 0}
        for inputs, names in partitions:
            clocks.expect(inputs, names, entry["now_us"])
        noted = {**entry, **clocks.saved()}
        if noted != entry:
            self.write(batch, noted)

    def begin(self, batch: int, now_us: int) -> None:
        """Note when a batch begins, before its tasks run; one that is repeated began when it did first."""
        entry = self.read(batch)
        if entry is not None and "begun_us" not in entry:
            self.write(batch, {**entry, "begun_us": now_us})

    def spark_ms(self, batch: int, next_us: int) -> int:
        """See Clock."""
        return batch + 1

    def timer_ms(self, batch: int, wakeup_us: int | None, wakeup_now_us: int | None) -> int | None:
        """See Clock: in every batch, as long as there is anything to do at all."""
        return None if self.heartbeats_reach_buckets or (wakeup_us is None and wakeup_now_us is None) else batch + 1

    def _place(self, batch: int) -> tuple[Store, str]:
        return store_at(f"{self.checkpoint}/krishiv/ledger/{batch:012d}.json")

    def read(self, batch: int, *, needed: bool = True) -> dict[str, Any] | None:
        """Return the entry for a batch; None for the first, if an earlier version of the library began the query.

        With Spark's clock it is not `needed`: an earlier version of the library wrote none.

        Raises
        ------
        CheckpointError
            When it is damaged or missing: without it rows would be classified by no watermark at all.
        """
        store, path = self._place(batch)
        return store.read_note(path, dict[str, Any], NEW_CHECKPOINT, needed=needed and batch > 0)

    def write(self, batch: int, entry: dict[str, Any]) -> None:
        """Write the entry for a batch, whole or not at all, and forget an old one."""
        store, path = self._place(batch)
        store.write_note(path, entry, durable=self.durable)
        _, old = self._place(batch - max(_KEPT, self.kept + 2))  # the last ones, the one before them, and the one to come
        store.delete(old)


def _before(clock: Clock, batch: int) -> tuple[int, ...] | None:
    """Return what was in force in the batch before."""
    return clock.in_force(batch - 1).every if batch else None


def planned_us(logged: dict[str, Any]) -> int:
    """Return when Spark planned a batch, by its log."""
    return int(logged["batchTimestampMs"]) * 1_000


def clock_for(plan: PhysicalPlan, checkpoint: str, *, durable: bool = False, kept: int = 0) -> SparkClock | LedgerClock:
    """Return the clock of a plan: that of its first stage, which those of the others follow. Of `kept` batches it knows all."""
    spec = plan.stages[0].spec
    begun = CheckpointOrigin.of(checkpoint)
    raised = RaisedWatermarks.of(CheckpointNotes(checkpoint).plan() or {}, begun)
    if plan.keeps_ledger:
        by_rows = plan.watermarked or bool(plan.in_lanes)  # rows of a batch that fires by its own reach every bucket
        return LedgerClock(checkpoint, spec.watermark.initial_us, durable, by_rows, begun, kept, raised)
    facts = LedgerClock(checkpoint, spec.watermark.initial_us, durable, kept=kept)
    return SparkClock(checkpoint, spec.tick_us, spec.watermark.initial_us, begun, raised, facts)


def clock_ms(watermark_us: int, tick_us: int) -> int:
    """Spark's watermark for ours.

    Spark keeps one non-negative watermark in milliseconds. Ours may be negative and has the resolution of the time column, so
    it travels shifted and scaled: one Spark "millisecond" stands for one tick (1 µs for timestamps, 1 ms for bigint columns).
    """
    if watermark_us == UNSET:
        return NOT_YET_MS
    if watermark_us == END_OF_TIME:
        return _END_MS
    return max(watermark_us // tick_us, -MAX_TIME_US) + _SHIFT


def watermark_of(ms: int, tick_us: int) -> int:
    """Our watermark for Spark's."""
    if ms <= NOT_YET_MS:
        return UNSET
    if ms >= _END_MS:
        return END_OF_TIME
    return (ms - _SHIFT) * tick_us


def wakeup_ms(watermark_us: int, tick_us: int) -> int:
    """Return the first clock value at which the watermark has reached `watermark_us`."""
    return min(-(-watermark_us // tick_us) + _SHIFT, _END_MS)
