"""One micro-batch of a driver: rows go to the stages that read them, results to those that follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
import pyarrow as pa

from krishiv_py.engine.failures import PREPARE, STEP, at_step
from krishiv_py.engine.loop import NO_ROWS, micro_batch
from krishiv_py.engine.stage import BatchDone, Packed
from krishiv_py.kernels.input.watermark import WatermarkTracker
from krishiv_py.kernels.moment import Moment
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.testing.driven import DrivenStage
from krishiv_py.testing.sends import Sent, packed


@attrs.define(eq=False)
class DrivenBatch:
    """A micro-batch that runs.

    Attributes
    ----------
    plan : PhysicalPlan
        Which stage reads what.
    stages : sequence of DrivenStage
        The stages, in the order of the plan.
    batch_id : int
        Its number.
    moment : Moment
        What is in force in it, for the first stage.
    done : list of list of BatchDone
        What each stage has given so far.
    """

    plan: PhysicalPlan
    stages: Sequence[DrivenStage]
    batch_id: int
    moment: Moment
    done: list[list[BatchDone]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.done = [[] for _ in self.stages]

    def run(
        self, sent: list[Sent] | None, tracker: WatermarkTracker, settled: Callable[[], Moment], *, waits: bool
    ) -> list[list[BatchDone]]:
        """Run it: all rows are judged before the clock goes on.

        Parameters
        ----------
        sent : list of Sent or None
            Its rows, as each of the stages reads them that read the source.
        tracker : WatermarkTracker
            Learns of their times.
        settled : callable
            What is in force after it.
        waits : bool
            Whether a batch without rows may follow.
        """
        roots = self.plan.roots
        packs = [self._packed(number, None if sent is None else sent[at], tracker) for at, number in enumerate(roots)]
        for number, rows in zip(roots, packs, strict=True):
            self._read(number, rows, settled, waits=waits)
        return self.done

    def _packed(self, number: int, sent: Sent | None, tracker: WatermarkTracker) -> Packed:
        root = self.stages[number]
        with at_step(root.spec.name, PREPARE, self.batch_id):
            if sent is None:
                return NO_ROWS
            return packed(sent, self.moment.behind(root.behind_us), tracker, self.moment.now_us or 0)

    def _read(self, number: int, rows: Packed, settled: Callable[[], Moment], *, waits: bool) -> None:
        """One stage that reads the source, and those behind it."""
        root = self.stages[number]

        def following() -> Moment:
            return settled().behind(root.behind_us)

        bucket = root.bucket(self.moment.now_us or 0)
        steps = micro_batch(root.stage, bucket, rows, self.moment.behind(root.behind_us), following, waits=waits)
        at = self.moment
        while (step := self._next(root, steps)) is not None:
            root.account(step)
            self.done[number].append(step)
            self._follow(number, attrs.evolve(step, moment=at))
            at = settled()

    def _next(self, root: DrivenStage, steps: Iterator[BatchDone]) -> BatchDone | None:
        with at_step(root.spec.name, STEP, self.batch_id):
            return next(steps, None)

    def _follow(self, number: int, before: BatchDone) -> None:
        """Let the results of a stage go through those behind it; `before` has what is in force in the first stage."""
        for follower in self.plan.followers(number):
            given = self.stages[follower].follow(before, self.batch_id)
            self.done[follower] += given
            results = pa.concat_tables([d.results for d in given])
            self._follow(follower, attrs.evolve(given[-1], results=results, moment=before.moment))
