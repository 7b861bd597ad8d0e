"""A plan as it runs in this process: its stages, its clocks, and what is in force. It knows no checkpoint and no sink."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import attrs
import pyarrow as pa

from krishiv_py.engine.stage import BatchDone, count
from krishiv_py.engine.time_watch import TimeWatch
from krishiv_py.in_process.batch import ProcessBatch, Sent
from krishiv_py.in_process.stage import ProcessStage
from krishiv_py.in_process.workers import Workers
from krishiv_py.kernels.spec import Moment
from krishiv_py.kernels.watermark import ONLY, Clocks
from krishiv_py.logs import batch_part
from krishiv_py.planner.physical import PhysicalPlan


@attrs.frozen(eq=False)
class BatchOutput:
    """Holds what a micro-batch gives.

    Attributes
    ----------
    results : dict
        Results by the name of their output.
    late : list of pyarrow.Table
        Late rows of each stage, in the order of the plan.
    done : list of list of BatchDone
        What each stage gave, step by step.
    """

    results: dict[str, pa.Table]
    late: list[pa.Table]
    done: list[list[BatchDone]]


class Core:
    """Runs the micro-batches of a plan.

    Parameters
    ----------
    plan : PhysicalPlan
        The plan.
    title : str
        The name of the query, for warnings.
    now_us : int
        Processing time, µs since the epoch.
    workers : Workers, optional
        What runs the buckets of its stages; without it there is one, and no thread.

    Attributes
    ----------
    moved_us : dict
        When the watermark of each source last moved, µs since the epoch; under ``""`` the least one.
    """

    def __init__(self, plan: PhysicalPlan, title: str, now_us: int, workers: Workers | None = None) -> None:
        self.plan = plan
        self.workers = workers or Workers()
        self.stages = [ProcessStage.of(stage, self.workers) for stage in plan.stages]
        self.clocks = Clocks(plan.clocks)
        self.in_force = self.clocks.settle(now_us)
        self.before = self.in_force.every
        self.batch_id = 0
        self.advances = 0
        self.idle: tuple[str, ...] = ()
        self.moved_us: dict[str, int] = {}
        self._shown = self._watermarks()
        self.ahead = TimeWatch(plan, title)

    def moment(self, now_us: int, begun_us: int | None) -> Moment:
        """Return what is in force, for a batch that begins now."""
        now = self.in_force
        return Moment(now.watermark_us, now_us, now.calls_triggers, now.others, begun_us, self.before)

    def stepped(self, now_us: int) -> Moment:
        """Return what was in force in the last step, for who changes the state between two batches."""
        return attrs.evolve(self.moment(now_us, None), watermark_us=self.before[0], others=self.before[1:], before=None)

    def run(
        self,
        sent: Mapping[int, Sent] | None,
        now_us: int,
        *,
        begun_us: int | None = None,
        waits: bool = True,
        snapshot: bool = False,
        publish: Callable[[int, BatchOutput], None] = lambda batch_id, output: None,
    ) -> BatchOutput:
        """Run a micro-batch, and count it.

        Parameters
        ----------
        sent : dict or None
            Its rows, as each of the stages that read a source reads them, by the number of the stage.
        now_us : int
            Processing time, µs since the epoch.
        begun_us : int, optional
            The clock when the batch began, which rows of the future are ahead of; None where nobody set it.
        waits : bool
            Whether a batch without rows may follow at once, as nothing else is waiting.
        snapshot : bool
            Whether it also gives what is open, as early results.
        publish : callable
            Takes the number of the batch and what it gives; a batch that cannot be published is not counted.
        """
        batch = ProcessBatch(self.plan, self.stages, self.batch_id, self.moment(now_us, begun_us), self.ahead)
        done = batch.run(sent, self.clocks, lambda: self._settled(now_us), waits=waits)
        self.before = batch.reached.every
        shown = self._early(now_us, begun_us) if snapshot else {}
        late = [stage.late_of(done_parts) for stage, done_parts in zip(self.stages, done, strict=True)]
        results = {o.name: batch.leaving(o, shown.get(o.stage, [])) for o in self.plan.outputs}
        output_of_batch = BatchOutput(results, late, done)
        with batch_part("publish"):
            publish(self.batch_id, output_of_batch)
        for output in self.plan.outputs:
            count(self.stages[output.stage].left, {output.name: results[output.name].num_rows})
        for stage, rows in zip(self.stages, late, strict=True):
            count(stage.left, {"late_rows": rows.num_rows} if rows.num_rows else {})
        self.batch_id += 1
        return output_of_batch

    def put_back(self, clocks: Clocks, moved_us: Mapping[str, int]) -> None:
        """Go on with clocks of an earlier run."""
        self.clocks, self.in_force = clocks, clocks.moment()
        self.moved_us, self._shown = dict(moved_us), self._watermarks()

    def go_on_from(self, other: Core) -> None:
        """Take over what a checkpoint would keep of another one: plain bytes, nothing else."""
        clocks = Clocks.restored(self.plan.clocks, json.loads(json.dumps(other.clocks.saved())))
        self.put_back(clocks, other.moved_us)
        self.before, self.advances, self.batch_id = other.before, other.advances, other.batch_id
        for stage, before in zip(self.stages, other.stages, strict=True):
            stage.go_on_from(before)

    def _early(self, now_us: int, begun_us: int | None) -> dict[int, Sequence[pa.Table]]:
        """Return what is open, by stage."""
        only = self.stages[0]
        if len(self.stages) == 1:
            moment = self.moment(now_us, begun_us).at(only.plan.times)
            return {0: [only.early(moment)]}
        early: dict[int, pa.Table] = {}
        for number, stage in enumerate(self.stages):
            early[number] = stage.as_if_ended(early, now_us, self.batch_id)
        return {number: [table] for number, table in early.items()}

    def _settled(self, now_us: int) -> Moment:
        before, self.in_force = self.in_force, self.clocks.settle(now_us)
        self.advances += self.in_force.later(before)
        self.idle = tuple(self.clocks.idle(now_us))
        before_us, self._shown = self._shown, self._watermarks()
        self.moved_us |= {name: now_us for name, us in self._shown.items() if us != before_us.get(name)}
        return self.in_force

    def _watermarks(self) -> dict[str, int]:
        """Return the watermark of each source, and under ``""`` the least of all clocks, µs."""
        return {**self.clocks.reached, ONLY: min(self.in_force.every)}
