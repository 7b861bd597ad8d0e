"""A plan as it runs in this process: its stages, its clocks, and its micro-batches. It knows no checkpoint and no sink."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.connectors.source import in_columns
from krishiv_py.engine.loop import NO_ROWS
from krishiv_py.engine.stage import FLUSH_ROWS, PREPARE, AtStep, Notes, StageInput, StageOperator, StageOutput, count, of_output
from krishiv_py.engine.time_watch import TimeWatch
from krishiv_py.in_process.stage import FEW_ROWS, ProcessStage, Workers
from krishiv_py.kernels.lanes import RowClock
from krishiv_py.kernels.spec import Moment
from krishiv_py.kernels.watermark import ONLY, Clocks
from krishiv_py.logs import batch_part
from krishiv_py.planner.physical import OutputPlan, PhysicalPlan
from krishiv_py.runtime.reading import ScannedRows
from krishiv_py.runtime.savepoints import PlanChange

StreamRows: TypeAlias = "list[tuple[StageOperator, Iterable[ScannedRows]]]"
"""For each stream that a stage reads: the stage with the steps of this stream in front, and what was read of it."""


@attrs.define(eq=False)
class ProcessBatch:
    """A micro-batch that runs.

    Attributes
    ----------
    plan : PhysicalPlan
        Which stage reads what.
    stages : sequence of ProcessStage
        The stages, in the order of the plan.
    batch_id : int
        Its number.
    moment : Moment
        What is in force in it.
    ahead : TimeWatch
        Warns of future rows.
    done : list of list of BatchDone
        What each stage has given so far.
    """

    plan: PhysicalPlan
    stages: Sequence[ProcessStage]
    batch_id: int
    moment: Moment
    ahead: TimeWatch
    done: list[list[StageOutput]] = attrs.field(init=False)
    reached: Moment = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.reached = self.moment
        self.done = [[] for _ in self.stages]

    def run(
        self, sent: Mapping[int, StreamRows] | None, clocks: Clocks, settled: Callable[[], Moment], *, waits: bool
    ) -> list[list[StageOutput]]:
        """Run it: all rows are checked for lateness before the clocks go on.

        Parameters
        ----------
        sent : dict or None
            Its rows, as each of the stages reads them that read a source, by the number of the stage.
        clocks : Clocks
            Learn of their times.
        settled : callable
            What is in force after it.
        waits : bool
            Whether a batch without rows may follow.

        Sets `reached` to what was in force in the last step.
        """
        roots = self.plan.roots
        judging = [row_clock(self.plan, n, clocks, self.moment) for n in roots] if clocks.by_row else [None] * len(roots)
        packs = {
            n: self._packed(n, [] if sent is None else sent.get(n, []), clocks, rows_clock)
            for n, rows_clock in zip(roots, judging, strict=True)
        }
        self._turn(packs, self.moment, self.plan.roots)
        then = settled()
        moved = [n for n in self.plan.roots if self._reached(n, then) > self._reached(n, self.moment)]
        if (waits or clocks.by_row) and moved:
            self._turn({}, then, moved)
            self.reached = then
        return self.done

    def leaving(self, output: OutputPlan, early: Sequence[pa.Table]) -> pa.Table:
        """Return what leaves by an output: what its stage has given, then `early` results of it."""
        given = [*(d.results for d in self.done[output.stage]), *early]
        filled = [results for results in given if results.num_rows] or given[:1]
        spec = self.plan.stages[output.stage].spec
        with AtStep(spec.label, spec.step, self.batch_id):
            return of_output(output, filled[0] if len(filled) == 1 else pa.concat_tables(filled))

    def _reached(self, number: int, moment: Moment) -> int:
        return moment.at(self.plan.stages[number].times).watermark_us

    def _packed(self, number: int, sent: StreamRows, clocks: Clocks, rows_clock: RowClock | None) -> list[StageInput]:
        stage = self.plan.stages[number]
        with batch_part("pack", stage.spec.name), AtStep(stage.spec.label, PREPARE, self.batch_id):
            if not sent:
                return self._no_rows(number)
            moment, to = self.moment.at(stage.times), self.stages[number]
            clock, now_us = stage.clock or 0, self.moment.now_us or 0
            packed_rows = packed(sent, moment, lambda maxima: clocks.saw(clock, maxima, now_us), to, rows_clock)
        self.ahead.take(number, packed_rows[0].notes)
        return packed_rows

    def _no_rows(self, number: int) -> list[StageInput]:
        return [NO_ROWS] * len(self.stages[number].buckets)

    def _turn(self, packs: Mapping[int, list[StageInput]], moment: Moment, roots: Sequence[int]) -> None:
        """One step of every stage in turn: of those that read a source only, of `roots`."""
        given: dict[int, pa.Table] = {}
        for number, stage in enumerate(self.stages):
            if not stage.plan.after and number not in roots:
                continue
            read = packs.get(number) or self._no_rows(number)
            with batch_part("step", stage.plan.spec.name):
                if stage.plan.after:
                    done = stage.follow(given, read, moment, self.batch_id)
                else:
                    done = stage.step(read, moment, self.batch_id)
            self.done[number] += done
            if len(self.stages) > 1:
                given[number] = pa.concat_tables([d.results for d in done])


def row_clock(plan: PhysicalPlan, number: int, clocks: Clocks, moment: Moment) -> RowClock | None:
    """Return what classifies the rows of a stage one by one; None where the watermark of the batch does."""
    stage = plan.stages[number]
    if not stage.spec.watermark.by_row or stage.clock is None:
        return None
    return clocks.trackers[stage.clock].row_clock(stage.watermark, moment.at(stage.times).watermark_us)


@attrs.frozen(eq=False)
class Parts:
    """Rows of a batch in parts that can be read at the same time."""

    each: Sequence[Iterable[ScannedRows]]

    def __iter__(self) -> Iterator[ScannedRows]:
        return itertools.chain.from_iterable(self.each)


@attrs.frozen(eq=False)
class _PackedPart:
    chunks: list[list[tuple[int, pa.Table]]]
    late: list[pa.Table]
    notes: Notes
    maxima: list[dict[str, int]]


def packed(
    sent: StreamRows,
    moment: Moment,
    saw: Callable[[dict[str, int]], None],
    to: ProcessStage,
    rows_clock: RowClock | None = None,
) -> list[StageInput]:
    """Return the rows of a batch by bucket, checked for lateness and combined; `saw` learns of their times by source.

    A `rows_clock` goes from row to row, so it judges the parts of a stream one after the other.
    """
    chunks: list[list[pa.Table]] = [[] for _ in to.buckets]
    late, notes = list[pa.Table](), list[Notes]()
    for stage, scanned in sent:
        parts = _in_parts(scanned, to.workers.count) if rows_clock is None else [scanned]
        alone = len(parts) == 1
        tasks = (
            partial(_packed_part, stage if alone else StageOperator(stage.spec), part, moment, to, rows_clock) for part in parts
        )
        for part in [task() for task in tasks] if alone else to.workers.ahead(tasks):
            for shares in part.chunks:
                for number, chunk in shares:
                    chunks[number].append(chunk)
            late += part.late
            notes.append(part.notes)
            for maxima in part.maxima:
                saw(maxima)
    first, *others = chunks
    return [StageInput(first, late, notes), *(StageInput(mine) for mine in others)]


def _packed_part(
    stage: StageOperator, rows: Iterable[ScannedRows], moment: Moment, to: ProcessStage, rows_clock: RowClock | None
) -> _PackedPart:
    packing, shares, maxima = (
        stage.pack(moment, rows_clock=rows_clock),
        list[list[tuple[int, pa.Table]]](),
        list[dict[str, int]](),
    )
    for scanned in rows:
        if scanned.malformed:
            packing.refuse(in_columns(scanned.malformed))
        if scanned.batch is None:
            continue
        maxima.append(packing.take(scanned.batch, scanned.partition))
        if packing.full(FLUSH_ROWS):
            shares += [to.shared(chunk) for chunk in packing.chunks()]
    shares += [to.shared(chunk) for chunk in packing.chunks()]
    return _PackedPart(shares, packing.late, packing.notes, maxima)


def _in_parts(scanned_rows: Iterable[ScannedRows], most: int) -> Sequence[Iterable[ScannedRows]]:
    """Return rows in parts for as many workers, or as one part where they are few."""
    if most == 1 or not isinstance(scanned_rows, (list, Parts)):
        return [scanned_rows]
    if isinstance(scanned_rows, Parts):
        return scanned_rows.each
    rows = sum(scanned.batch.num_rows for scanned in scanned_rows if scanned.batch is not None)
    if rows < FEW_ROWS:
        return [scanned_rows]
    parts, share = [list[ScannedRows]()], -(-rows // most)
    room = share
    for scanned in scanned_rows:
        batch = scanned.batch
        while batch is not None and batch.num_rows > room:
            parts[-1].append(attrs.evolve(scanned, batch=batch.slice(0, room)))
            scanned, batch = attrs.evolve(scanned, control=None, malformed=()), batch.slice(room)
            parts.append([])
            room = share
        parts[-1].append(scanned if batch is scanned.batch else attrs.evolve(scanned, batch=batch))
        room -= 0 if batch is None else batch.num_rows
    return parts


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
    done: list[list[StageOutput]]


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
    since : PlanChange or None
        The facts of the plan before, of a core that began from a savepoint.
    moved_us : dict
        When the watermark of each source last moved, µs since the epoch; under ``""`` the least one.
    """

    def __init__(self, plan: PhysicalPlan, title: str, now_us: int, workers: Workers | None = None) -> None:
        self.plan = plan
        self.workers = workers or Workers()
        self.stages = [ProcessStage.of(stage, self.workers) for stage in plan.stages]
        self._by_clock = [stage for stage in self.stages if stage.spec.operation.has_clock_deadlines]
        for stage in self.stages:
            stage.begin()
        self.clocks = Clocks(plan.clocks)
        self.in_force = self.clocks.settle(now_us)
        self.before = self.in_force.every
        self.batch_id = 0
        self.since: PlanChange | None = None
        self.advances = 0
        self.idle: tuple[str, ...] = ()
        self.moved_us: dict[str, int] = {}
        self._shown = self._watermarks()
        self.ahead = TimeWatch(plan, title)

    @property
    def clock_due_us(self) -> int | None:
        """Return the processing time at which something is due though no row comes; None where nothing is."""
        if not self._by_clock:
            return None
        due = (bucket.clock_due_us for stage in self._by_clock for bucket in stage.buckets)
        return min((us for us in due if us is not None), default=None)

    def moment(self, now_us: int, begun_us: int | None) -> Moment:
        """Return what is in force, for a batch that begins now."""
        now, before = self.in_force, self.before
        return Moment(now.watermark_us, now_us, others=now.others, begun_us=begun_us, before=before, newest_us=now.newest_us)

    def stepped(self, now_us: int) -> Moment:
        """Return what was in force in the last step, for who changes the state between two batches."""
        return attrs.evolve(self.moment(now_us, None), watermark_us=self.before[0], others=self.before[1:], before=None)

    def run(
        self,
        sent: Mapping[int, StreamRows] | None,
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

    def follow_lags(self, now_us: int) -> bool:
        """Let the watermark follow lags that have changed since the last batch, at `now_us`; gives whether it has moved."""
        before, self.in_force = self.in_force, self.clocks.settle(now_us)
        self._shown = self._watermarks()
        return self.in_force.later(before)

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
