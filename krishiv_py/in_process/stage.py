"""A stage that runs in this process: its operator and its state in memory, all in one bucket."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa

from krishiv_py.engine.chain import as_rows, follow, packed_results, stepping
from krishiv_py.engine.closing import CLOSED, forget, key_dropping
from krishiv_py.engine.failures import PREPARE, STEP, AtStep
from krishiv_py.engine.loop import NO_ROWS
from krishiv_py.engine.notes import FIRINGS, count, none_counted
from krishiv_py.engine.snapshot import as_if_ended
from krishiv_py.engine.stage import BatchDone, Packed, StageOperator
from krishiv_py.kernels.firing.asked import asked_by
from krishiv_py.kernels.input.malformed import late_output
from krishiv_py.kernels.input.prepare import refused
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results.contract import StepResult
from krishiv_py.kernels.results.state_table import keys_held
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.sorted_map import Pages
from krishiv_py.kernels.state.store import Bucket, MemoryStore, Meta, stored
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.running.counters import FAILED_DROPPED
from krishiv_py.plan.running.progress import Progress
from krishiv_py.planner.cut import StagePlan

_DROPPED: Final = ("future_dropped", "unassigned", "duplicates")


def dropped(counters: Mapping[str, int]) -> int:
    """Return how many rows were dropped that are counted and in no late output (SEMANTICS §4.3)."""
    return sum(n for name, n in counters.items() if name in _DROPPED or name.startswith(FAILED_DROPPED))


@attrs.define(eq=False)
class ProcessStage:
    """One stage of a plan, and what it holds.

    Attributes
    ----------
    stage : Stage
        Its two halves.
    plan : StagePlan
        What it reads, and which clocks it follows.
    handed : Moment
        What was in force in it when the stages before fired last.
    """

    stage: StageOperator
    plan: StagePlan
    handed: Moment = attrs.field(factory=lambda: Moment(UNSET))
    store: MemoryStore = attrs.field(factory=MemoryStore)
    meta: Meta = attrs.field(factory=dict)
    pages: Pages | None = None
    """Where pages of large maps are kept; None: in memory."""
    counters: dict[str, int] = attrs.field(factory=lambda: {**none_counted(), FIRINGS: 0})
    open_windows: int = 0
    open_rows: int = 0
    left: dict[str, int] = attrs.field(factory=dict)
    """Rows that went to outputs, by name."""
    _wakeup: tuple[int | None, int | None] | None = None
    """The watermark and the processing time at which the operator wants to be woken, since the last step of this run."""
    _nothing: BatchDone | None = None
    """The result of a step that has nothing to do."""
    _rests: bool = attrs.field(init=False)
    """True where nothing is to be done before the operator wants to be woken: a user's trigger may say otherwise, and what is
    remembered of duplicates, and of right rows that nothing waits for, is shown by the watermark."""
    _no_late_rows: pa.Table = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        spec = self.spec
        self._rests = asked_by(spec.options.trigger) is None and spec.options.ttl is None and not spec.operation.remembers
        self._no_late_rows = late_output(self.stage.layout, [])

    @classmethod
    def of(cls, plan: StagePlan) -> ProcessStage:
        """A stage that has seen nothing."""
        return cls(StageOperator(stepping(plan.spec) if plan.after else plan.spec), plan)

    @property
    def spec(self) -> OperatorSpec:
        """Its specification."""
        return self.stage.spec

    def bucket(self, now_us: int) -> Bucket:
        """Its state."""
        return Bucket(self.store, self.meta, now_us // 1_000, self.pages)

    def state(self) -> pa.Table:
        """Return the windows in state, with their aggregates so far."""
        return self.stage.operator.state(Bucket(self.store, self.meta, pages=self.pages))

    @property
    def held_keys(self) -> int:
        """Return how many keys have something in state; without a key 1, or 0."""
        return keys_held(self.store.tables.values(), self.stage.layout.key_names)

    def forget(self, keys: pa.Table, moment: Moment) -> int:
        """Drop keys, at the `moment` of the last step; gives how many windows will not have their result."""
        moment = moment.at(self.plan.times)
        bucket = self.bucket(moment.now_us or 0)
        lost = forget(self.stage, bucket, keys, moment)
        left = key_dropping(self.stage).step(
            bucket, [], attrs.evolve(moment, asks=False)
        )  # again at that moment: nothing fires
        self.open_windows, self.open_rows, self._nothing = left.open_windows, left.open_rows, None
        count(self.counters, {CLOSED: lost} if lost else {})
        return lost

    def account(self, done: BatchDone) -> None:
        """Count what was done."""
        count(self.counters, done.counters)
        self.open_windows, self.open_rows = done.step.open_windows, done.step.open_rows
        self._wakeup, self._nothing = (done.step.wakeup_us, done.step.wakeup_now_us), None

    def late_of(self, found: Sequence[BatchDone]) -> pa.Table:
        """The late rows of a batch."""
        late = [table for done in found for table in done.late]
        return late_output(self.stage.layout, late) if late else self._no_late_rows

    def resting(self, moment: Moment) -> BatchDone | None:
        """Return the result of a step that has no rows and nothing to do, so none is made; None where there may be something.

        The last step of an operator says when it has to be woken. On Spark buckets rest by the same rule.
        """
        if self._wakeup is None or not self._rests:
            return None
        wakeup_us, wakeup_now_us = self._wakeup
        if wakeup_now_us is not None or (wakeup_us is not None and wakeup_us <= moment.watermark_us):
            return None
        if self._nothing is None:
            none = self.stage.layout.result_schema.empty_table()
            self._nothing = BatchDone(none, [], {}, StepResult(none, wakeup_us, self.open_windows, self.open_rows, 0), moment)
        return self._nothing

    def step(self, read: Packed, moment: Moment, batch_id: int) -> BatchDone:
        """Take rows that were `read` from a source, and fire."""
        moment = moment.at(self.plan.times)
        rests = self.resting(moment) if read is NO_ROWS else None
        if rests is not None:
            return rests
        with AtStep(self.spec.name, STEP, batch_id):
            done = self.stage.step(self.bucket(moment.now_us or 0), read, moment)
        self.account(done)
        return done

    def follow(self, before: Mapping[int, pa.Table], read: Packed, moment: Moment, batch_id: int) -> list[BatchDone]:
        """Take the results of the stages before, by their number, and the rows that were `read` with them, and fire."""
        moment = moment.at(self.plan.times)
        judged = attrs.evolve(self.handed, now_us=moment.now_us)
        packed = self._packed(before, read, judged, batch_id)
        rests = None if packed.chunks or packed.late or packed.notes else self.resting(moment)
        if rests is not None:
            self.handed = attrs.evolve(moment, before=None)
            return [rests]
        with AtStep(self.spec.name, STEP, batch_id):
            found = list(follow(self.stage, self.bucket(moment.now_us or 0), packed, judged, moment))
        self.handed = attrs.evolve(moment, before=None)
        for done in found:
            self.account(done)
        return found

    def _packed(self, before: Mapping[int, pa.Table], read: Packed, judged: Moment, batch_id: int) -> Packed:
        with AtStep(self.spec.name, PREPARE, batch_id):
            came = ((b.spec, before[b.after]) for b in self.plan.inputs if b.after is not None and b.after in before)
            given = [as_rows(spec, results) for spec, results in came if results.num_rows]
            return packed_results(self.stage, given, judged, read)

    def as_if_ended(self, before: Mapping[int, pa.Table], now_us: int, batch_id: int) -> pa.Table:
        """Return what it would give if the input ended now; `before` is what the stages before would give."""
        judged = attrs.evolve(self.handed, now_us=now_us)
        packed = self._packed(before, NO_ROWS, judged, batch_id)
        with AtStep(self.spec.name, STEP, batch_id):
            return as_if_ended(self.stage, self.bucket(now_us), judged, packed)

    def progress(self, batch_id: int, watermark_us: int, sources_us: dict[str, int]) -> Progress:
        """The progress of the stage."""
        return Progress(
            batch_id=batch_id,
            watermark_us=watermark_us,
            rows=self.counters["rows"],
            late=refused(self.counters),
            counters=dict(self.counters),
            open_windows=self.open_windows,
            open_rows=self.open_rows,
            state_bytes=self.store.nbytes,
            firings=self.counters[FIRINGS],
            source_watermarks_us=sources_us,
            sink_rows=dict(self.left),
        )

    def go_on_from(self, other: ProcessStage) -> None:
        """Take over what a checkpoint would keep of another one: plain bytes, nothing else."""
        saved: dict[str, Any] = json.loads(json.dumps({"meta": stored(other.meta), "counters": other.counters}))
        self.meta, self.counters, self.left = saved["meta"], saved["counters"], dict(other.left)
        self.handed, self.open_windows, self.open_rows = other.handed, other.open_windows, other.open_rows
        for name, table in other.store.tables.items():
            sink = io.BytesIO()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            self.store.put(name, pa.ipc.open_stream(sink.getvalue()).read_all())
