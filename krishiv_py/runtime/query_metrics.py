"""Define what the driver knows of a running query: the reports of its buckets, summed up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import attrs

from krishiv_py.connectors.ranges import Backlog
from krishiv_py.engine.notes import Report, count
from krishiv_py.kernels.input.prepare import refused
from krishiv_py.kernels.input.watermark import ONLY
from krishiv_py.kernels.moment import Moment
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.running.progress import Progress, TableVersion, of_stages, waiting
from krishiv_py.planner.cut import StagePlan, input_stages, leading_stage
from krishiv_py.runtime.batch import stage_of
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.ranges.alignment import Alignment


@attrs.define(eq=False)
class BucketMetrics:
    """Metrics of all buckets, as the driver last heard of them; safe to read from any thread."""

    notes: CheckpointNotes
    stages: tuple[StagePlan, ...]
    last: int
    """The number of the stage whose buckets are kept without it."""
    moment: Moment
    """What is in force in the next batch."""
    aligned: tuple[Alignment, ...] = ()
    """Which sources wait for which."""
    every_batch: bool = False
    """Whether batches in which no bucket had anything to do are noted too: over Connect the client knows what is noted."""
    buckets: dict[str, Report] = attrs.field(factory=dict)
    batch_id: int = -1
    sources_us: dict[str, int] = attrs.field(factory=dict)
    advances: int = 0
    tables: dict[str, TableVersion] = attrs.field(factory=dict)
    """Which version of each table the last batch that was begun looks rows up in."""
    idle: tuple[str, ...] = ()
    """Sources that no watermark waits for."""
    began: float = attrs.field(factory=time.monotonic)
    """When the batch in hand was begun, s of a clock that never goes back."""
    seconds: float = 0.0
    shown_us: int = UNSET
    """The watermark after the last batch, µs."""
    ended_us: int | None = None
    doubts: tuple[str, ...] = ()
    """What looks wrong in the event times of this run."""
    partition_times_us: dict[str, int] = attrs.field(factory=dict)
    """How far each partition got in this run."""
    moved_us: dict[str, int] = attrs.field(factory=dict)
    """When the watermark of each source last moved in this run, µs since the epoch; under "" that of the whole query."""
    backlog: Callable[[], dict[str, Backlog]] = dict
    """Asks what no batch has taken, by source."""
    _lock: Any = attrs.field(factory=threading.Lock)

    def take(
        self,
        batch_id: int,
        reported: dict[str, Report],
        moment: Moment,
        sources_us: dict[str, int],
        *,
        whole: bool = False,
    ) -> None:
        """Remember what the buckets reported in a batch (or, `whole`, all there is), and where the watermark is."""
        with self._lock:
            self.buckets = dict(reported) if whole else {**self.buckets, **reported}
            self.batch_id = batch_id
            now = attrs.evolve(_latest(moment, self.moment), now_us=None)
            self.advances += now.later(self.moment)
            self.moment = now
            self.seconds, self.ended_us = time.monotonic() - self.began, time.time_ns() // 1_000
            reached = {**sources_us, ONLY: min(now.every)}
            before = {**self.sources_us, ONLY: self.shown_us}
            self.moved_us |= {name: self.ended_us for name, us in reached.items() if us != before.get(name, UNSET)}
            self.sources_us, self.shown_us = sources_us, min(now.every)
            if reported or self.every_batch:
                self._note()

    def note_waiting(self) -> None:
        """Note again, between two batches, as other sources are held back now; of numbers nothing is new."""
        with self._lock:
            self._note()

    def _note(self) -> None:
        now = self.moment
        saved = {bucket: report.saved() for bucket, report in self.buckets.items()}
        report = {"buckets": saved, "watermark": now.watermark_us, "sources": self.sources_us, "advances": self.advances}
        report |= (
            {
                "batch": self.batch_id,
                "held": self._held(),
                "waiting": self.waiting(),
                "idle": self.idle,
                "doubts": self.doubts,
                "partition times": self.partition_times_us,
                "backlog": self.backlog(),
            }
            if self.every_batch
            else {}
        )
        report |= {"seconds": self.seconds, "ended": self.ended_us}
        report |= {"tables": {n: attrs.astuple(t) for n, t in self.tables.items()}} if self.tables else {}
        report |= {"watermarks of further clocks": list(now.others)} if now.others else {}
        report |= {"moved": self.moved_us} if self.moved_us else {}
        self.notes.keep_metrics(report)

    def waiting(self) -> list[str]:
        """Return which sources are held back at the moment, in words."""
        return [words for alignment in self.aligned for words in alignment.waiting()]

    def restore(self) -> None:
        """Begin with what an earlier run of this checkpoint knew."""
        self._take_noted(self.notes.metrics())
        self.doubts, self.partition_times_us = (), {}  # of this run: doubts of an earlier one may be mended

    def _take_noted(self, kept: dict[str, Any]) -> None:
        self.buckets = {bucket: Report.restored(saved) for bucket, saved in kept.get("buckets", {}).items()}
        if "watermark" in kept:
            self.moment = Moment(kept["watermark"], others=tuple(kept.get("watermarks of further clocks", ())))
        self.batch_id = max(self.batch_id, kept.get("batch", -1))
        self.sources_us = kept.get("sources", {})
        self.advances = kept.get("advances", 0)
        self.idle = tuple(kept.get("idle", ()))
        self.seconds, self.ended_us = kept.get("seconds", 0.0), kept.get("ended")
        self.moved_us, self.shown_us = dict(kept.get("moved", {})), self.moment.watermark_us
        self.doubts, self.partition_times_us = tuple(kept.get("doubts", ())), kept.get("partition times", {})
        self.tables = {name: TableVersion(*version) for name, version in kept.get("tables", {}).items()}

    @property
    def open(self) -> int:
        """Return how many windows and rows are open, in all stages."""
        with self._lock:
            return sum(report.open_windows + report.open_rows for report in self.buckets.values())

    def progress(self) -> Progress:
        """The sums over all buckets."""
        with self._lock:
            entries, batch_id, moment = dict(self.buckets), self.batch_id, self.moment
        found = {}
        for number, stage in enumerate(self.stages):
            reached = moment.at(stage.times).watermark_us
            mine = [report for bucket, report in entries.items() if stage_of(bucket, self.last) == number]
            sums = _sums(mine, batch_id, reached, {} if number else dict(self.sources_us))
            found[stage.spec.name] = attrs.evolve(sums, batch_seconds=self.seconds, batch_ended_us=self.ended_us)
        first = self.stages[0].spec.name
        held, (backlog, by_partition) = self._held(), waiting(self.backlog())
        found[first] = attrs.evolve(
            found[first], idle_sources=self.idle, held_back=held, backlog=backlog, partition_backlog=by_partition
        )
        return attrs.evolve(
            of_stages(found, input_stages(self.stages), leading_stage(self.stages)),
            watermark_advances=self.advances,
            held_back=held,
            backlog=backlog,
            partition_backlog=by_partition,
            tables=dict(self.tables),
            doubts=self.doubts,
            partition_times_us=self.partition_times_us,
        )

    def _held(self) -> dict[str, int]:
        """Return how often each source was held back."""
        return {name: times for alignment in self.aligned for name, times in alignment.held.items()}


def _latest(one: Moment, other: Moment) -> Moment:
    """Of each clock the later time."""
    others = tuple(max(a, b) for a, b in zip(one.others, other.others, strict=True))
    return Moment(max(one.watermark_us, other.watermark_us), others=others)


def _sums(entries: list[Report], batch_id: int, watermark_us: int, sources_us: dict[str, int]) -> Progress:
    counters, given = dict[str, int](), dict[str, int]()
    for entry in entries:
        count(counters, entry.counters)
        count(given, entry.given)
    return Progress(
        batch_id=batch_id,
        watermark_us=watermark_us,
        rows=counters.get("rows", 0),
        late=refused(counters),
        counters=counters,
        open_windows=max((e.open_windows for e in entries), default=0),
        open_rows=sum(e.open_rows for e in entries),
        state_bytes=sum(e.state_bytes for e in entries),
        firings=counters.get("firings", 0),
        source_watermarks_us=sources_us,
        sink_rows=given,
    )
