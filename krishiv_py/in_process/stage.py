"""A stage that runs in this process: its operator and its state in memory, in one bucket for each worker."""

from __future__ import annotations

import contextvars
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Final, TypeVar

import attrs
import pyarrow as pa

from krishiv_py.engine.closing import CLOSED, forget, key_dropping
from krishiv_py.engine.loop import and_read, as_if_ended, as_rows, early, follow, packed_results, stepping
from krishiv_py.engine.stage import FIRINGS, PREPARE, AtStep, StageInput, StageOperator, StageOutput, count, none_counted, split
from krishiv_py.kernels.firing import custom_trigger_of
from krishiv_py.kernels.prepare import late_output, refused
from krishiv_py.kernels.registry import begin_bucket
from krishiv_py.kernels.results import StepResult, in_order, keys_held
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.spread import BucketContent, spread
from krishiv_py.kernels.state.store import Bucket, ClockDeadline, MemoryStore, Meta, Pages, stored
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.running import FAILED_DROPPED, Progress, call_seconds_of, counts_of
from krishiv_py.planner.cut import StagePlan
from krishiv_py.storage.checksums import decode, encode

T = TypeVar("T")

FEW_ROWS: Final = 8_192
"""Fewer rows are not shared out: handing them to a thread would cost more than it saves."""


def parted(each: Sequence[T], most: int) -> list[Sequence[T]]:
    """Return things in at most so many runs of equal length, in their order; at least one run."""
    size = max(-(-len(each) // most), 1)
    return [each[low : low + size] for low in range(0, max(len(each), 1), size)]


@attrs.define(eq=False)
class Workers:
    """Threads that share the work of a micro-batch: the buckets of a stage, and the parts of what is read.

    The kernels work on whole columns and let go of Python's lock meanwhile, so threads use several cores. They share the memory
    of the process: no row is copied from one to another.

    Attributes
    ----------
    count : int
        How many tasks run at once; 1: none is handed to a thread.
    """

    count: int = 1
    _pool: ThreadPoolExecutor | None = attrs.field(default=None, init=False)

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run tasks, and return what they give, in their order.

        Raises
        ------
        Exception
            The error of the first task that failed, when the others are done.
        """
        if self.count == 1 or len(tasks) < 2:
            return [task() for task in tasks]
        futures = [self._submit(task) for task in tasks[1:]]
        try:
            first = tasks[0]()  # the thread that waits works too
        finally:
            wait(futures)
        return [first, *(future.result() for future in futures)]

    def ahead(self, tasks: Iterable[Callable[[], T]]) -> Iterator[T]:
        """Run tasks, at most `count` at once, and give what they return in their order, while later ones run."""
        if self.count == 1:
            yield from (task() for task in tasks)
            return
        running, waiting = list[Future[T]](), iter(tasks)
        try:
            for task in waiting:
                running.append(self._submit(task))
                if len(running) == self.count:
                    yield running.pop(0).result()
            while running:
                yield running.pop(0).result()
        finally:
            for future in running:
                future.cancel()
            wait(running)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _submit(self, task: Callable[[], T]) -> Future[T]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count, "krishiv-worker")
        return self._pool.submit(contextvars.copy_context().run, task)  # lookup tables of a batch are in the context


_DROPPED: Final = ("future_dropped", "unassigned", "duplicates")


def dropped(counters: Mapping[str, int]) -> int:
    """Return how many rows were dropped that are counted and in no late output (SEMANTICS §4.3)."""
    return sum(n for name, n in counters.items() if name in _DROPPED or name.startswith(FAILED_DROPPED))


@attrs.define(eq=False)
class StageBucket:
    """The keys of a stage that one worker has: their state, and when something is due in it.

    Attributes
    ----------
    stage : StageOperator
        What runs. Each bucket has its own, since buckets run at the same time.
    rests : bool
        Whether nothing is to be done before the operator wants to be woken.
    pages : Pages or None
        Where pages of large maps are kept; None: in memory.
    share : tuple of (int, int)
        Which bucket of how many it is.
    """

    stage: StageOperator
    rests: bool
    store: MemoryStore = attrs.field(factory=MemoryStore)
    meta: Meta = attrs.field(factory=dict)
    pages: Pages | None = None
    share: tuple[int, int] = (0, 1)
    open_windows: int = 0
    open_rows: int = 0
    timers: int = 0
    held_rows: int = 0
    _wakeup: tuple[int | None, int | None] | None = None
    """The watermark and the processing time at which the operator wants to be woken, since the last step of this run."""
    _nothing: StageOutput | None = None
    """The result of a step that has nothing to do."""
    _no_results: pa.Table = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._no_results = self.stage.layout.result_schema.empty_table()

    def at(self, now_us: int) -> Bucket:
        """Return its state as a kernel changes it."""
        return Bucket(self.store, self.meta, now_us // 1_000, self.pages, self.share)

    def state(self) -> pa.Table:
        """Return the windows in state, with their aggregates so far."""
        return self.stage.operator.state(Bucket(self.store, self.meta, pages=self.pages))

    def did(self, done: StageOutput) -> None:
        """Note what a step left."""
        self.left(done.step)
        self._wakeup = done.step.wakeup_us, done.step.wakeup_now_us

    @property
    def clock_due_us(self) -> int | None:
        """Return the processing time at which something is due in it; None where nothing is."""
        return ClockDeadline.of(Bucket(self.store, self.meta)).clock_due

    def left(self, step: StepResult) -> None:
        """Note how much is open."""
        self.open_windows, self.open_rows, self._nothing = step.open_windows, step.open_rows, None
        self.timers, self.held_rows = step.timers, step.held_rows

    def resting(self, moment: Moment) -> StageOutput | None:
        """Return the result of a step that has no rows and nothing to do, so none is made; None where there may be something.

        The last step of an operator says when it has to be woken. On Spark buckets rest by the same rule.
        """
        if self._wakeup is None or not self.rests:
            return None
        wakeup_us, wakeup_now_us = self._wakeup
        if wakeup_now_us is not None or (wakeup_us is not None and wakeup_us <= moment.watermark_us):
            return None
        if self._nothing is None:
            none = self._no_results
            self._nothing = StageOutput(none, [], {}, StepResult(none, wakeup_us, self.open_windows, self.open_rows, 0), moment)
        return self._nothing


@attrs.define(eq=False)
class ProcessStage:
    """One stage of a plan, and what it holds.

    Attributes
    ----------
    stage : StageOperator
        Its two halves.
    plan : StagePlan
        What it reads, and which clocks it follows.
    workers : Workers
        What runs its buckets; there is one for each worker, and one alone without keys.
    handed : Moment
        What was in force in its last step, when the stages before fired last.
    """

    stage: StageOperator
    plan: StagePlan
    workers: Workers = attrs.field(factory=Workers)
    handed: Moment = attrs.field(factory=lambda: Moment(UNSET))
    counters: dict[str, int] = attrs.field(factory=lambda: {**none_counted(), FIRINGS: 0})
    left: dict[str, int] = attrs.field(factory=dict)
    """Rows that went to outputs, by name."""
    buckets: list[StageBucket] = attrs.field(init=False)
    _no_late_rows: pa.Table = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.buckets = self.made(self.workers.count)
        self._no_late_rows = late_output(self.stage.layout, [])

    @classmethod
    def of(cls, plan: StagePlan, workers: Workers) -> ProcessStage:
        """Return a stage that has seen nothing."""
        return cls(StageOperator(stepping(plan.spec) if plan.after else plan.spec), plan, workers)

    def begin(self) -> None:
        """Put the states in that a query begins with."""
        states = self.spec.operation.initial
        if states is not None:
            bucket = Bucket(MemoryStore())
            begin_bucket(self.spec, bucket, states)
            self._fill([BucketContent.of(bucket)], [0, states.num_rows])

    @property
    def spec(self) -> OperatorSpec:
        """Its specification."""
        return self.stage.spec

    @property
    def most_buckets(self) -> int:
        """Return how many buckets are of use: without a key all rows belong together."""
        return self.workers.count if self.spec.keys else 1

    def made(self, number: int) -> list[StageBucket]:
        """Return so many empty buckets, or one where there is no key.

        A user's trigger may say at any time that something is to be done, and what is remembered of duplicates, and of right
        rows that nothing waits for, is shown by the watermark: such buckets do not rest.
        """
        spec = self.spec
        rests = custom_trigger_of(spec.options.trigger) is None and spec.options.ttl is None and not spec.operation.remembers
        operators = [self.stage, *(StageOperator(spec) for _ in range(1, number if spec.keys else 1))]
        count = len(operators)
        return [StageBucket(operator, rests, share=(place, count)) for place, operator in enumerate(operators)]

    @property
    def open_windows(self) -> int:
        """Return how many windows are open."""
        return self.spec.operation.open_windows(bucket.open_windows for bucket in self.buckets)

    def pending(self) -> tuple[int, int]:
        """Return how many deadlines are pending, and how many rows are not settled."""
        first, *others = self.buckets
        if not others:
            return first.timers, first.held_rows
        return sum(bucket.timers for bucket in self.buckets), sum(bucket.held_rows for bucket in self.buckets)

    @property
    def open_rows(self) -> int:
        """Return how many rows are kept."""
        return sum(bucket.open_rows for bucket in self.buckets)

    @property
    def nbytes(self) -> int:
        """Return how many bytes its state takes."""
        return sum(bucket.store.nbytes for bucket in self.buckets)

    def state(self) -> pa.Table:
        """Return the windows in state, with their aggregates so far."""
        parts = [bucket.state() for bucket in self.buckets]
        if len(parts) == 1 or self.spec.operation.state_fields:  # fields of a user's class are no bounds of windows
            return pa.concat_tables(parts)
        return in_order(parts, len(self.spec.keys))

    @property
    def held_keys(self) -> int:
        """Return how many keys have something in state; without a key 1, or 0."""
        return sum(keys_held(bucket.store.tables.values(), self.stage.layout.key_names) for bucket in self.buckets)

    def forget(self, keys: pa.Table, moment: Moment) -> int:
        """Drop keys, at the `moment` of the last step; gives how many windows will not have their result."""
        moment, forgotten = moment.at(self.plan.times), 0
        for number, part in self.shared(keys):
            bucket = self.buckets[number]
            held = bucket.at(moment.now_us or 0)
            forgotten += forget(bucket.stage, held, part, moment)
            again = attrs.evolve(moment, calls_triggers=False)  # at that moment nothing fires
            bucket.left(key_dropping(bucket.stage).step(held, [], again))
        count(self.counters, {CLOSED: forgotten} if forgotten else {})
        return forgotten

    def late_of(self, batches_done: Sequence[StageOutput]) -> pa.Table:
        """Return the late rows of a batch."""
        late = [table for done in batches_done for table in done.late]
        return late_output(self.stage.layout, late) if late else self._no_late_rows

    def shared(self, rows: pa.Table) -> list[tuple[int, pa.Table]]:
        """Return rows by the bucket of their key, in their order."""
        return split(rows, self.stage.layout.key_names, range(len(self.buckets)))

    def by_bucket(self, packed: StageInput) -> list[StageInput]:
        """Return what each bucket takes of a batch; what is known of all of it goes with the first."""
        if len(self.buckets) == 1:
            return [packed]
        chunks: list[list[pa.Table]] = [[] for _ in self.buckets]
        for chunk in packed.chunks:
            for number, part in self.shared(chunk):
                chunks[number].append(part)
        return [attrs.evolve(packed, chunks=chunks[0]), *(StageInput(given) for given in chunks[1:])]

    def step(self, read: Sequence[StageInput], moment: Moment, batch_id: int) -> list[StageOutput]:
        """Take rows that were `read` from a source, by bucket, and fire."""
        moment = moment.at(self.plan.times)

        def steps(bucket: StageBucket, mine: StageInput) -> list[StageOutput]:
            return [bucket.stage.step(bucket.at(moment.now_us or 0), mine, moment)]

        done = self._stepped(read, moment, batch_id, steps)
        self.handed = moment
        return done

    def follow(
        self, before: Mapping[int, pa.Table], read: Sequence[StageInput], moment: Moment, batch_id: int
    ) -> list[StageOutput]:
        """Take the results of the stages before, by their number, and the rows that were `read` with them, and fire."""
        moment = moment.at(self.plan.times)
        late_moment = attrs.evolve(self.handed, now_us=moment.now_us)
        given = self._given(before, late_moment, batch_id)

        def steps(bucket: StageBucket, mine: StageInput) -> list[StageOutput]:
            return list(follow(bucket.stage, bucket.at(moment.now_us or 0), mine, late_moment, moment))

        every = [and_read(results, rows) for results, rows in zip(given, read, strict=True)]
        done = self._stepped(every, moment, batch_id, steps)
        self.handed = moment if moment.before is None else attrs.evolve(moment, before=None)
        return done

    def _stepped(
        self,
        read: Sequence[StageInput],
        moment: Moment,
        batch_id: int,
        steps: Callable[[StageBucket, StageInput], list[StageOutput]],
    ) -> list[StageOutput]:
        """Let each bucket take its rows and fire; those that have nothing to do rest."""
        dones: list[list[StageOutput]] = []
        due: list[int] = []
        for number, (bucket, mine) in enumerate(zip(self.buckets, read, strict=True)):
            rests = None if mine.chunks or mine.late or mine.notes else bucket.resting(moment)
            dones.append([] if rests is None else [rests])
            if rests is None:
                due.append(number)
        if due:
            spec = self.spec
            with AtStep(spec.label, spec.step, batch_id):
                if len(due) > 1 and self._large(due, read):
                    done = self.workers.run([partial(steps, self.buckets[n], read[n]) for n in due])
                else:
                    done = [steps(self.buckets[n], read[n]) for n in due]
            for number, some in zip(due, done, strict=True):
                dones[number] = some
                for one in some:
                    count(self.counters, one.counters)
                    self.buckets[number].did(one)
        return dones[0] if len(dones) == 1 else [one for some in dones for one in some]

    def _large(self, due: Sequence[int], read: Sequence[StageInput]) -> bool:
        """Return whether buckets have so much to do that threads are of use."""
        size = sum(chunk.num_rows for n in due for chunk in read[n].chunks)
        size += sum(self.buckets[n].open_windows + self.buckets[n].open_rows for n in due)
        return bool(size >= FEW_ROWS)

    def _given(self, before: Mapping[int, pa.Table], late_moment: Moment, batch_id: int) -> list[StageInput]:
        """Return the results of the stages before as rows, by bucket."""
        with AtStep(self.spec.label, PREPARE, batch_id):
            came = ((b.spec, before[b.after]) for b in self.plan.inputs if b.after is not None and b.after in before)
            given = [as_rows(spec, results) for spec, results in came if results.num_rows]
            return self.by_bucket(packed_results(self.stage, given, late_moment))

    def early(self, moment: Moment) -> pa.Table:
        """Return what is open, as early results."""
        now_us = moment.now_us or 0
        return pa.concat_tables([early(bucket.stage, bucket.at(now_us), moment) for bucket in self.buckets])

    def as_if_ended(self, before: Mapping[int, pa.Table], now_us: int, batch_id: int) -> pa.Table:
        """Return what it would give if the input ended now; `before` is what the stages before would give."""
        late_moment = attrs.evolve(self.handed, now_us=now_us)
        packed = self._given(before, late_moment, batch_id)
        with AtStep(self.spec.label, self.spec.step, batch_id):
            shares = zip(self.buckets, packed, strict=True)
            return pa.concat_tables([as_if_ended(b.stage, b.at(now_us), late_moment, mine) for b, mine in shares])

    def progress(self, batch_id: int, watermark_us: int, sources_us: dict[str, int]) -> Progress:
        """Return the progress of the stage."""
        timers, held_rows = self.pending()
        return Progress(
            batch_id=batch_id,
            watermark_us=watermark_us,
            rows=self.counters["rows"],
            late=refused(self.counters),
            counters=counts_of(self.counters),
            open_windows=self.open_windows,
            open_rows=self.open_rows,
            timers=timers,
            held_rows=held_rows,
            call_seconds=call_seconds_of(self.counters),
            state_bytes=self.nbytes,
            firings=self.counters[FIRINGS],
            source_watermarks_us=sources_us,
            sink_rows=dict(self.left),
        )

    def content(self) -> list[BucketContent]:
        """Return the content of its buckets, as values."""
        held = [Bucket(MemoryStore(dict(b.store.tables)), dict(stored(b.meta)), pages=b.pages) for b in self.buckets]
        return [BucketContent.of(bucket) for bucket in held]

    def take_over(self, held: Iterable[BucketContent], opened: Sequence[int]) -> None:
        """Put state in place of that of its buckets; `opened` are the windows and rows that are open, in all of them."""
        taken = list(held)
        if any(content.tables or content.meta for content in taken):  # else the stage is new
            self._empty()
            self._fill(taken, opened)

    def _empty(self) -> None:
        for bucket in self.buckets:
            bucket.store, bucket.meta = type(bucket.store)(), {}
            if bucket.pages is not None:
                bucket.pages = type(bucket.pages)()

    def _fill(self, taken: list[BucketContent], opened: Sequence[int]) -> None:
        spread_out = taken if len(taken) == len(self.buckets) else spread(taken, len(self.spec.keys), len(self.buckets))
        for bucket, content in zip(self.buckets, spread_out, strict=True):
            for name, table in content.tables.items():
                bucket.store.put(name, table)
            bucket.meta = content.meta
        self.buckets[0].open_windows, self.buckets[0].open_rows = opened  # each bucket counts its own with its next step

    def go_on_from(self, other: ProcessStage) -> None:
        """Take over what a checkpoint would keep of another one: plain bytes, nothing else."""
        self.counters, self.left = json.loads(json.dumps(other.counters)), dict(other.left)
        self.handed = other.handed
        self._empty()
        for bucket, before in zip(self.buckets, other.buckets, strict=True):
            bucket.meta = json.loads(json.dumps(stored(before.meta)))
            bucket.open_windows, bucket.open_rows = before.open_windows, before.open_rows
            for name, table in before.store.tables.items():
                bucket.store.put(name, decode(encode(table)))
