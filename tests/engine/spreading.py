"""A stage whose state goes from one number of buckets to another between the steps, as it does from engine to engine."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence

import attrs
import pyarrow as pa
import pytest

from krishiv_py.arrays.grouping import buckets
from krishiv_py.arrays.ranges import split
from krishiv_py.engine.stage import StageInput, StageOperator, StageOutput, count
from krishiv_py.in_process.stage import ProcessStage, Workers
from krishiv_py.kernels.results import StepResult
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.spread import BucketContent, spread
from krishiv_py.kernels.state.store import Bucket, MemoryStore
from krishiv_py.planner.cut import StagePlan


class SpreadStage(StageOperator):
    """Runs each step in as many buckets as the next of `numbers` says; those with nothing to do are left out, as on Spark.

    What looks at the state of the stage itself, such as a snapshot, sees nothing.
    """

    def __init__(self, spec: OperatorSpec, numbers: Iterator[int]) -> None:
        super().__init__(spec)
        self.numbers = numbers
        self.held = [Bucket(MemoryStore())]
        self._last: list[StepResult | None] = [None]

    def step(self, bucket: Bucket, packed: StageInput, moment: Moment) -> StageOutput:
        """See Stage."""
        n = next(self.numbers)
        if n != len(self.held):
            self.held = [one.bucket() for one in spread(map(BucketContent.of, self.held), len(self.spec.keys), n)]
            self._last = [None] * n
        done = []
        for number, (held, given) in enumerate(zip(self.held, self._parts(packed, n), strict=True)):
            last = self._last[number]
            if not given.chunks and number and last is not None and not _due(last, moment):
                continue
            done.append(super().step(attrs.evolve(held, now_ms=bucket.now_ms), given, moment))
            self._last[number] = done[-1].step
        return _together(done, self._last)

    def _parts(self, packed: StageInput, n: int) -> list[StageInput]:
        chunks: list[list[pa.Table]] = [[] for _ in range(n)]
        for chunk in packed.chunks:
            moment = buckets([chunk[k] for k in self.layout.key_names], chunk.num_rows, n)
            for number, part in split(chunk, moment):
                chunks[number].append(part.combine_chunks())
        first, *others = chunks
        return [attrs.evolve(packed, chunks=first), *(StageInput(mine) for mine in others)]


def copied(held: Sequence[Bucket]) -> list[Bucket]:
    """Buckets with the same state."""
    return [Bucket(one.store, copy.deepcopy(one.meta)) for one in (BucketContent.of(h).bucket() for h in held)]


def _due(last: StepResult, moment: Moment) -> bool:
    by_event = last.wakeup_us is not None and last.wakeup_us <= moment.watermark_us
    return by_event or last.wakeup_now_us is not None


def _together(done: Sequence[StageOutput], last: Sequence[StepResult | None]) -> StageOutput:
    counters: dict[str, int] = {}
    for one in done:
        count(counters, one.counters)
    results = pa.concat_tables([one.results for one in done])
    steps = [step for step in last if step is not None]
    step = attrs.evolve(
        done[-1].step,
        wakeup_us=min((s.wakeup_us for s in steps if s.wakeup_us is not None), default=None),
        wakeup_now_us=min((s.wakeup_now_us for s in steps if s.wakeup_now_us is not None), default=None),
    )
    late = [t for one in done for t in one.late]
    return attrs.evolve(done[-1], results=results, late=late, counters=counters, step=step)


def spread_stages(monkeypatch: pytest.MonkeyPatch, numbers: Sequence[int]) -> None:
    """Let all stages that begin from now on run in these numbers of buckets in turn."""

    def of(_: type[ProcessStage], plan: StagePlan, workers: Workers) -> ProcessStage:
        made = made_of(plan, workers)
        made.stage = made.buckets[0].stage = SpreadStage(made.stage.spec, itertools.cycle(numbers))
        return made

    def go_on_from(stage: ProcessStage, other: ProcessStage) -> None:
        restarted(stage, other)
        before, after = other.stage, stage.stage
        assert isinstance(before, SpreadStage) and isinstance(after, SpreadStage)
        after.held = copied(before.held)

    made_of, restarted = ProcessStage.of, ProcessStage.go_on_from
    monkeypatch.setattr(ProcessStage, "go_on_from", go_on_from)
    monkeypatch.setattr(ProcessStage, "of", classmethod(of))
