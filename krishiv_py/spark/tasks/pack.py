"""Before the shuffle: rows become classified, combined Arrow chunks per bucket (runs in mapInArrow)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import attrs
import pyarrow as pa
from pyspark import TaskContext

from krishiv_py.connectors.source import in_columns
from krishiv_py.engine.stage import FLUSH_ROWS, PREPARE, StageOperator, split
from krishiv_py.errors import OperatorError
from krishiv_py.kernels.columns.steps import FailedRows, apply_prefix
from krishiv_py.kernels.lanes import RowClock
from krishiv_py.kernels.prepare import RowPreparer, late_output
from krishiv_py.kernels.spec import FIRST_CLOCK, Moment, OperatorSpec, Times
from krishiv_py.kernels.watermark import ClockInput, ClockSpec, WatermarkTracker, meant
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.nodes import SourceNode
from krishiv_py.plan.options.watermarks import AnyWatermarkSpec
from krishiv_py.plan.running import Control
from krishiv_py.planner.cut import Branch
from krishiv_py.planner.physical import PhysicalPlan, reloads
from krishiv_py.runtime.batch import addressed
from krishiv_py.runtime.clocks import CLOCK_TYPE, Clock, LedgerClock, SparkClock, clock_ms
from krishiv_py.runtime.closings import CLOSED, by_bucket, noted_keys
from krishiv_py.runtime.ranges.log import has_ended
from krishiv_py.runtime.reading import ScannedRows
from krishiv_py.spark.scan import Reader
from krishiv_py.spark.setup.types import flat_type
from krishiv_py.spark.setup.workers import release_memory, settle_worker
from krishiv_py.spark.storage import ShuffleFiles
from krishiv_py.spark.tasks.failures import in_task
from krishiv_py.storage.checksums import encode


def batch_setting(checkpoint: str) -> str:
    """Return where tasks find the number of the running micro-batch over Spark Connect, which does not tell it them."""
    return f"spark.krishiv.batch.{_mark(checkpoint)}"


def closing_setting(checkpoint: str) -> str:
    """Return where tasks find the number of the last micro-batch that closes keys."""
    return f"spark.krishiv.closing.{_mark(checkpoint)}"


def batch_number(checkpoint: str) -> int:
    """Return the number of the running micro-batch of the query with this checkpoint, from the task."""
    context = TaskContext.get()
    assert context is not None
    number = context.getLocalProperty("streaming.sql.batchId") or context.getLocalProperty(batch_setting(checkpoint))
    assert number is not None
    return int(number)


def closing_keys(checkpoint: str, batch: int) -> dict[int, pa.Table]:
    """Return the keys that the running micro-batch closes, by the number of the stage, from the task."""
    context = TaskContext.get()
    assert context is not None
    return noted_keys(checkpoint, batch) if context.getLocalProperty(closing_setting(checkpoint)) == str(batch) else {}


def _mark(checkpoint: str) -> str:
    return hashlib.sha256(checkpoint.encode()).hexdigest()[:16]


CHUNK: Final = "chunk"
LATE: Final = "late"
TICK: Final = "tick"
SNAPSHOT: Final = "snapshot"
RAW: Final = "raw"
NOTES: Final = "notes"
CLOSE: Final = "close"
MOVES: Final = "moves"
"""The maxima and controls of a task, for stages that fire by the rows of their own batch."""
PACKED_TYPE: Final = flat_type("bucket int, wm timestamp, kind string, seq bigint, in_force bigint, blob binary")
PACKED: Final = pa.schema(
    [
        pa.field("bucket", pa.int32()),
        pa.field("wm", CLOCK_TYPE),
        pa.field("kind", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("in_force", pa.int64()),
        pa.field("blob", pa.binary()),
    ]
)


Passing: TypeAlias = tuple[str, bytes]
"""The name of a row for the driver, and its content."""


class PassesRows(Protocol):
    """Takes the rows of an output without windows in one task."""

    def take(self, scanned: ScannedRows) -> Iterator[Passing]:
        """Take what a reader gave, and yield what goes to the driver."""

    def finish(self) -> Iterator[Passing]:
        """Yield what is left, and the report."""


class PassedOutput(Protocol):
    """An output without windows next to others."""

    def begun(self, task: int) -> PassesRows:
        """Begin with a task of this number."""


@attrs.frozen(eq=False)
class Root:
    """A stage that reads a stream of a source.

    Attributes
    ----------
    spec : OperatorSpec
        Its specification, with the steps of this stream in front.
    number : int
        Its number.
    times : tuple of (int, int)
        The clocks its watermark follows.
    clock : int
        The clock that its rows go by.
    input : ClockInput or None
        The stream as that clock has it; None for control files, which speak to the clock alone.
    rows_of : (ClockSpec, WatermarkSpec or MultiSourceWatermarkSpec) or None
        The clock, and the watermark of the stage, where each row is classified by those before it.
    """

    spec: OperatorSpec
    number: int = 0
    times: Times = FIRST_CLOCK
    clock: int = 0
    input: ClockInput | None = None
    rows_of: tuple[ClockSpec, AnyWatermarkSpec] | None = None

    def rows_clock(self, clock: Clock, batch: int, in_force: Moment) -> RowClock | None:
        """Return what judges the rows of a batch one by one, as the ledger has it; None where the watermark does."""
        if self.rows_of is None:
            return None
        assert isinstance(clock, LedgerClock)
        return self.clock_after(clock.read(batch), in_force)

    def clock_after(self, entry: Mapping[str, Any] | None, in_force: Moment) -> RowClock:
        """Return what judges rows one by one after what an entry of the ledger has; None: nothing has come."""
        assert self.rows_of is not None
        plan, mark = self.rows_of
        tracker = WatermarkTracker(plan.watermark, inputs=plan.inputs)
        if entry is not None:
            saved = [entry["tracker"], *entry.get("others", [])][self.clock]
            tracker = WatermarkTracker.restored(plan.watermark, saved, plan.inputs)
        return tracker.row_clock(mark, in_force.at(self.times).watermark_us)


def root_of(plan: PhysicalPlan, number: int, branch: Branch) -> Root:
    """Return a stage of this number, as it reads a stream."""
    stage = plan.stages[number]
    by_row = stage.spec.watermark.by_row and stage.clock is not None
    rows_of = (plan.clocks.clocks[stage.clock or 0], stage.watermark) if by_row else None
    return Root(branch.spec, number, stage.times, stage.clock or 0, stage.clock_input(branch), rows_of)


@attrs.frozen(eq=False)
class PackTask:
    """The mapInArrow function of the streaming adapter. One instance is pickled to every task.

    Rows are read once, and packed for each of the stages that read them; `passed` takes the rows of outputs without windows.
    The `others` are the streams, with their numbers, that have one watermark with this one where Spark keeps it.
    """

    roots: tuple[Root, ...]
    reader: Reader
    bucket_ids: tuple[int, ...]
    clock: Clock
    shuffle_files: ShuffleFiles
    passed: tuple[PassedOutput, ...] = ()
    others: tuple[tuple[int, SourceNode], ...] = ()
    moving: tuple[int, ...] = ()
    """The stages that fire by the rows of their own batch, as these are classified one by one."""

    @property
    def spec(self) -> OperatorSpec:
        """That of the first stage."""
        return self.roots[0].spec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker("pack")
        context = TaskContext.get()
        assert context is not None
        number = batch_number(self.clock.checkpoint)
        with in_task(self.spec.label, PREPARE, number, self.clock.checkpoint):
            task = _Task(self, number, context.partitionId() << 32)
            others = [one.begun(context.partitionId()) for one in self.passed]
            for batch in batches:
                for scanned in self.reader(batch):
                    yield from task.take(scanned)
                    for other in others:
                        yield from task.passing(other.take(scanned))
            for other in others:
                yield from task.passing(other.finish())
            yield from task.finish()
        release_memory()


class _Share:
    """Holds what one task packs for one stage."""

    def __init__(self, root: Root, in_force: Moment, rows_clock: RowClock | None) -> None:
        self.root = root
        self.stage = StageOperator(root.spec)
        self.packing = self.stage.pack(in_force.at(root.times), rows_clock=rows_clock)


class _Task:
    """One task's share of a micro-batch."""

    def __init__(self, pack: PackTask, batch: int, first_seq: int) -> None:
        self._pack = pack
        self._batch = batch
        self._give = pack.shuffle_files.of_batch(batch).give
        self._in_force = pack.clock.judging(batch, before=any(r.spec.options.late_by_batch_before for r in pack.roots))
        self._shares = [_Share(root, self._in_force, root.rows_clock(pack.clock, batch, self._in_force)) for root in pack.roots]
        self._share_of_clock = {share.root.clock: share for share in reversed(self._shares)}
        self._tracker = WatermarkTracker(pack.spec.watermark)
        self._seq = first_seq
        self._any = False
        operations = [root.spec.operation for root in pack.roots]
        first_batch = not batch and any(operation.begins_everywhere for operation in operations)
        follows = any(reloads(look) for operation in operations for look in operation.tables)
        self._begins = first_batch or follows or pack.clock.takes_over(batch)
        """True where each bucket has something to do: in the first batch, after a savepoint, and to follow a table."""

    def take(self, scanned: ScannedRows) -> Iterator[pa.RecordBatch]:
        """Judge a batch, or note a control; hand chunks on when enough rows are waiting."""
        if scanned.only_time:
            return
        self._any = True
        if scanned.control is not None:
            marks = [share.root.spec.watermark for share in self._share_of_clock.values()]
            for share in self._share_of_clock.values():
                if meant(scanned.control, share.root.spec.watermark, marks):
                    control = share.root.input.noted(scanned.control) if share.root.input else scanned.control
                    share.packing.notes.advances.append(control)
                    self._move(control)
            return
        for share in self._shares:
            if scanned.malformed:
                share.packing.refuse(in_columns(scanned.malformed))
            if scanned.batch is None:
                continue
            self._tracker.saw(share.packing.take(scanned.batch, scanned.partition), 0)
            if share.packing.full(FLUSH_ROWS):
                yield from self._flush(share)

    def _move(self, control: Control) -> None:
        """Move the watermark that Spark keeps; the streams that share it end together."""
        ends = control.watermark_us == END_OF_TIME
        if isinstance(self._pack.clock, SparkClock) and control.watermark_us != UNSET and not (ends and self._any_goes_on()):
            self._tracker.advance(control.watermark_us, None if ends else control.source, 0)

    def _any_goes_on(self) -> bool:
        """Return whether one of the other streams has not ended by this batch."""
        return not all(has_ended(source, n, self._pack.clock.checkpoint, self._batch) for n, source in self._pack.others)

    def passing(self, rows: Iterator[Passing]) -> Iterator[pa.RecordBatch]:
        """Rows for the driver, on their way through the operators."""
        rows_done = list(rows)
        if rows_done:
            self._any = True
            yield self._rows([(self._pack.bucket_ids[0], kind, blob) for kind, blob in rows_done])

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left, the late rows and the notes."""
        for share in self._shares:
            yield from self._flush(share)
        if self._any or self._begins:
            for share in self._shares:
                yield self._rows(self._ending(share))
            yield from self._closing()
            if all(share.root.number for share in self._shares):  # the first operator wakes those after it
                yield self._rows([(self._pack.bucket_ids[0], TICK, b"0")])

    def _closing(self) -> Iterator[pa.RecordBatch]:
        """Yield the keys that the batch closes, for the buckets that have them; every task says the same."""
        ids, closing = self._pack.bucket_ids, closing_keys(self._pack.clock.checkpoint, self._batch)
        rows = [(b, addressed(CLOSE, to), blob) for to, keys in closing.items() for b, blob in by_bucket(keys, ids)]
        if rows:
            yield self._rows([(ids[0], CLOSED, b""), *rows])

    def _ending(self, share: _Share) -> list[tuple[int, str, bytes]]:
        first, notes, to = self._pack.bucket_ids[0], share.packing.notes, share.root.number
        rows = [(first, addressed(NOTES, to), notes.to_bytes())]
        if self._pack.moving:
            said = json.dumps([share.root.clock, notes.maxima, [attrs.astuple(a) for a in notes.advances]]).encode()
            rows += [(b, addressed(MOVES, n), said) for n in self._pack.moving for b in self._pack.bucket_ids]
        if share.packing.late:
            rows.append((first, addressed(LATE, to), self._give(late_output(share.stage.layout, share.packing.late))))
        if self._begins:
            rows += [(b, addressed(TICK, to), b"0") for b in self._pack.bucket_ids]
        elif (
            notes.advances or self._pack.clock.heartbeats_reach_buckets
        ):  # every bucket has something to do when the time moves
            now = str(notes.latest_us()).encode()
            rows += [(b, TICK, now) for b in self._pack.bucket_ids[1:]]
        if any(a.snapshot for a in notes.advances):
            rows += [(b, SNAPSHOT, b"") for b in self._pack.bucket_ids]
        return rows

    def _flush(self, share: _Share) -> Iterator[pa.RecordBatch]:
        for chunk in share.packing.chunks():
            parts = split(chunk, share.stage.layout.key_names, self._pack.bucket_ids)
            kind = addressed(CHUNK, share.root.number, self._seq)
            yield self._rows([(b, kind, self._give(t)) for b, t in parts])

    def _rows(self, rows: list[tuple[int, str, bytes]]) -> pa.RecordBatch:
        first, self._seq = self._seq, self._seq + len(rows)
        clock = self._pack.clock.spark_ms(self._batch, self._tracker.settle(0))
        return _packed(rows, clock, first, self._in_force.watermark_us)


def _packed(rows: list[tuple[int, str, bytes]], clock: int, first: int, in_force: int) -> pa.RecordBatch:
    n = len(rows)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([r[0] for r in rows], pa.int32()),
            pa.array([clock * 1_000] * n, CLOCK_TYPE),
            pa.array([r[1] for r in rows]),
            pa.array(range(first, first + n), pa.int64()),
            pa.array([in_force] * n, pa.int64()),
            pa.array([r[2] for r in rows], pa.binary()),
        ],
        schema=PACKED,
    )


def _check_none_aside(aside: Sequence[FailedRows]) -> None:
    """Refuse rows that would go to the late output, which a frame does not have.

    Raises
    ------
    OperatorError
        For the first of them; names the expectation or the function.
    """
    for one in aside:
        if not one.dropped:
            what = f"{one.rows.num_rows} rows have to go to the late output, which to_dataframe() does not have"
            raise OperatorError(what, got=one.name, hint='start(sink) the query instead, or write on_fail="drop" or "fail"')


@attrs.frozen(eq=False)
class RawPack:
    """For frames that go on in plain Spark: nobody knows their checkpoint, so rows travel unjudged to the operator."""

    spec: OperatorSpec
    reader: Reader
    bucket_ids: tuple[int, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker("pack")
        context = TaskContext.get()
        assert context is not None
        with in_task(self.spec.label, PREPARE):
            yield from self._rows(batches, context.partitionId() << 32)
        release_memory()

    def _rows(self, batches: Iterator[pa.RecordBatch], seq: int) -> Iterator[pa.RecordBatch]:
        prepare, tracker = RowPreparer(self.spec), WatermarkTracker(self.spec.watermark)
        for batch in batches:
            for scanned in self.reader(batch):
                if scanned.only_time:
                    continue
                chunks: list[tuple[int, pa.Table | None]] = [(self.bucket_ids[0], None)]
                if scanned.malformed:
                    raise scanned.malformed[0].error()  # nobody would see it: such a frame has one output
                if scanned.control is not None:
                    tracker.advance(scanned.control.watermark_us, scanned.control.source, 0)
                else:
                    assert scanned.batch is not None
                    aside: list[FailedRows] = []
                    rows = pa.Table.from_batches([apply_prefix(self.spec.prefix, scanned.batch, aside)])
                    _check_none_aside(aside)
                    tracker.saw(prepare.maxima(scanned.batch, UNSET, 0), 0)
                    chunks = [(b, t) for b, t in split(rows, list(self.spec.keys), self.bucket_ids)]
                clock = clock_ms(tracker.settle(0), self.spec.tick_us)
                for bucket, table in chunks:
                    row = (bucket, TICK, b"0") if table is None else (bucket, RAW, encode(table))
                    yield _packed([row], clock, seq, UNSET)
                    seq += 1
