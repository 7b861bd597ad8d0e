"""The tasks of a bounded run: the micro-batches that a streaming query would make, then the end of input.

Memory streams: every send is a batch, and the query is idle between two. Files read with ``max_files_per_batch``: that many
files of every source a batch, by modification time, one batch right after the other, as a query takes what is there. A user's
source plans its batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql import SparkSession

from krishiv_py.connectors.ranges import RangeSource, all_ranges
from krishiv_py.connectors.source import in_columns
from krishiv_py.engine.loop import NO_ROWS, follow, micro_batch, packed_results, stepping
from krishiv_py.engine.stage import FIRINGS, PREPARE, Notes, StageInput, StageOperator, StageOutput, count, none_counted, split
from krishiv_py.errors import PlanError
from krishiv_py.kernels.lanes import RowClock
from krishiv_py.kernels.prepare import RowPreparer, late_output
from krishiv_py.kernels.registry import begin_bucket
from krishiv_py.kernels.spec import Moment, OperatorSpec, Times
from krishiv_py.kernels.state.store import Bucket, MemoryStore
from krishiv_py.kernels.watermark import Clocks
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.nodes import FileSource, MemorySource, SourceNode
from krishiv_py.plan.running import Control
from krishiv_py.planner.physical import PhysicalPlan, SourceRead
from krishiv_py.runtime.batch import NEXT, RESULT, STAGE, OutgoingResults, StagePlace, address_of, addressed
from krishiv_py.runtime.ranges.log import RangeReader, tokens
from krishiv_py.runtime.reading import FileReader, ParquetReader, PathLocation, ScannedRows, arrow_scanned, file_reader
from krishiv_py.runtime.row_order import RowsInOrder
from krishiv_py.spark.scan import Reader, listed
from krishiv_py.spark.setup.types import flat_type
from krishiv_py.spark.setup.workers import release_memory, settle_worker
from krishiv_py.spark.storage import ShuffleFiles
from krishiv_py.spark.tasks.failures import in_task
from krishiv_py.spark.tasks.pack import CHUNK, LATE, NOTES, Root
from krishiv_py.spark.tasks.rows import done, packing_of, take
from krishiv_py.storage.sends.log import ReplayLog


@attrs.frozen
class TimedBatch:
    """One micro-batch: its number, and what is in force in it.

    Attributes
    ----------
    idle : bool
        Whether a query runs a batch without rows after it, waiting for input.
    """

    number: int
    moment: Moment
    idle: bool = True


@attrs.frozen(eq=False)
class Timetable:
    """The micro-batches of a finite input.

    Attributes
    ----------
    batches : tuple of TimedBatch
        The batches; the last one may be one without rows.
    files : list of dict
        For every stream of the plan, its files with the batch each belongs to.
    order : RowsInOrder or None
        How many rows the row clock would call late, where the rows were read in order.
    """

    batches: tuple[TimedBatch, ...]
    files: list[dict[str, TimedBatch]]
    order: RowsInOrder | None


def timetable(spark: SparkSession, plan: PhysicalPlan, now_us: int) -> Timetable | None:
    """Return the micro-batches of the streams of a plan; None where all there is would be one."""
    sources = [read.source for read in plan.reads]
    if all(isinstance(source, MemorySource) for source in sources):
        batches = _sent(plan.reads)
        return _timed(plan, batches, now_us, idle=True) if batches else None
    if any(_cut(s) for s in sources) and all(_divided(s) for s in sources):
        batches = _side_by_side([_batches_of(spark, s) for s in sources])
        return _timed(plan, batches, now_us, idle=False) if batches else None
    if any(_cut(s) for s in sources):
        raise PlanError(
            "these files cannot be taken batch by batch in a bounded run",
            got=", ".join(s.detail() for s in sources),
            then="late rows would be others than in a streaming query",
            hint="leave max_files_per_batch out, or read with streaming=True and "
            "start(sink, batches=Batches.available_now(flush=True))",
        )
    return None


def _cut(source: SourceNode) -> bool:
    return isinstance(source, RangeSource) or (isinstance(source, FileSource) and source.max_files_per_batch is not None)


def _divided(source: SourceNode) -> bool:
    """Return whether it is known which batches a query would make of a source."""
    return isinstance(source, RangeSource) or (isinstance(source, FileSource) and arrow_scanned(source))


def _batches_of(spark: SparkSession, source: SourceNode) -> list[list[str]]:
    """Files or ranges of a source by batch."""
    if isinstance(source, RangeSource):
        return tokens(all_ranges(source.source, source.name))
    assert isinstance(source, FileSource)
    paths = listed(spark, PathLocation(source.path, source.literal))
    size = source.max_files_per_batch or max(len(paths), 1)
    return [paths[start : start + size] for start in range(0, len(paths), size)]


def _sent(parts: Sequence[SourceRead]) -> list[list[tuple[int, str]]]:
    """Return all sent files with the numbers of their streams, each as a batch; of several streams in the order of sending."""
    files = [(number, path) for number, part in enumerate(parts) for path in replay_log_of(part.source).files()]
    if len(parts) > 1:
        readers = [stream_reader(part) for part in parts]
        files.sort(key=lambda f: next((s.now_us or 0 for s in readers[f[0]](one_path(f[1]))), 0))
    batches: dict[str, list[tuple[int, str]]] = {}
    for number, path in files:
        batches.setdefault(path, []).append((number, path))
    return list(batches.values())


def in_order(spark: SparkSession, read: SourceRead) -> list[str]:
    """Return the files or ranges of a stream in the order of its rows, as a query would plan them."""
    if isinstance(read.source, MemorySource):
        return list(replay_log_of(read.source).files())
    return [path for batch in _batches_of(spark, read.source) for path in batch]


def replay_log_of(source: SourceNode) -> ReplayLog:
    """Return the replay log of a memory stream."""
    assert isinstance(source, MemorySource)
    return ReplayLog(source.spool)


def _side_by_side(sources: list[list[list[str]]]) -> list[list[tuple[int, str]]]:
    """Return the batches of a query: of every source its next one."""
    batches: list[list[tuple[int, str]]] = [[] for _ in range(max(map(len, sources), default=0))]
    for index, batches_of_source in enumerate(sources):
        for number, paths in enumerate(batches_of_source):
            batches[number] += [(index, path) for path in paths]
    return batches


def _timed(plan: PhysicalPlan, batches: list[list[tuple[int, str]]], now_us: int, *, idle: bool) -> Timetable:
    """Return what is in force in every batch. Of memory streams the last file need not be read for that."""
    clocks, takers = Clocks(plan.clocks), [_takers(plan, read) for read in plan.reads]
    readers = [stream_reader(read) for read in plan.reads]
    by_read: list[dict[str, TimedBatch]] = [{} for _ in plan.reads]
    timed: list[TimedBatch] = []
    begun_us, order = now_us, RowsInOrder.of(plan, 1)
    in_force, before = attrs.evolve(clocks.moment(), now_us=now_us), None
    for number, batch in enumerate(batches):
        if plan.by_clock:
            now_us = max((us for index, path in batch for us in _sent_us(readers[index], path)), default=now_us)
        moment = attrs.evolve(in_force, now_us=now_us, begun_us=begun_us, before=before)
        timed.append(TimedBatch(number, moment, idle))
        for index, path in batch:
            by_read[index][path] = timed[-1]
            wanted = takers[index] and (number + 1 < len(batches) or not idle)
            pieces = readers[index](one_path(path)) if wanted else ()
            for scanned in pieces if order is None else order.watched(pieces):
                now_us = scanned.now_us if scanned.now_us is not None else now_us
                if scanned.control is not None:
                    clocks.take(scanned.control, plan.clock_inputs(plan.reads[index]), now_us)
                for taker in takers[index]:
                    taker.tell(clocks, scanned, timed[-1].moment, now_us)
        before = None if idle else in_force.every  # else a batch without rows has run since
        in_force = clocks.settle(now_us)
    if not idle:  # when the last files are done a query runs a batch without rows
        timed.append(TimedBatch(len(batches), attrs.evolve(in_force, now_us=now_us), idle))
    return Timetable(tuple(timed), by_read, order)


def _sent_us(reader: FileReader | RangeReader, path: str) -> list[int]:
    """Return when what is in a file was sent, if it was."""
    if not isinstance(reader, ParquetReader):
        return []
    return [s.now_us for s in reader(one_path(path)) if s.now_us is not None]


@attrs.frozen(eq=False)
class _ClockStage:
    """A stage that reads a stream, as far as the clock goes by its rows."""

    prepare: RowPreparer
    clock: int
    times: Times

    def tell(self, clocks: Clocks, scanned: ScannedRows, in_force: Moment, now_us: int) -> None:
        """Let the clock know of rows that were read."""
        if scanned.batch is not None:
            watermark_us = in_force.at(self.times).watermark_us
            clocks.saw(self.clock, self.prepare.maxima(scanned.batch, watermark_us, now_us, in_force.begun_us), now_us)


def _takers(plan: PhysicalPlan, read: SourceRead) -> list[_ClockStage]:
    every = ((plan.stages[number], branch) for number, branch in read.takers)
    return [_ClockStage(RowPreparer(b.spec), s.clock or 0, s.times) for s, b in every if not s.stateless]


def stream_reader(part: SourceRead) -> FileReader | RangeReader:
    """Return what reads the files or ranges of a stream."""
    schema = pa.schema([part.source.schema.field(n) for n in part.needs_columns])
    if isinstance(part.source, RangeSource):
        return RangeReader(schema, part.source.source, part.source.name)
    return file_reader(part.source, schema) if isinstance(part.source, FileSource) else ParquetReader(schema, sent=True)


def one_path(path: str) -> pa.RecordBatch:
    """Return a file name as a scan hands it on."""
    return pa.record_batch([pa.array([path])], names=["path"])


PACKED_TYPE: Final = flat_type("bucket int, batch int, seq bigint, kind string, blob binary")
NEWEST: Final = "newest"
"""Rows of this kind say the largest event time that a task has read."""
_SCHEMA: Final = pa.schema(
    [
        pa.field("bucket", pa.int32()),
        pa.field("batch", pa.int32()),
        pa.field("seq", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("blob", pa.binary()),
    ]
)


@attrs.frozen(eq=False)
class BoundedPack:
    """Before the shuffle: a stream is read once, for each of the stages that read it.

    Attributes
    ----------
    roots : tuple of Root
        Those stages. Rows of one without windows leave at once.
    reader : Reader
        Reads what Spark hands over.
    bucket_ids : tuple of int
        The buckets of every stage.
    by_file : dict or None
        In which batch a file is; without it the input is one batch.
    begun : Moment
        What is in force before any row.
    shuffle_files : ShuffleFiles
        Take large chunks.
    leaving : tuple of tuple of Leaving
        The outputs that rows of each root go to, which pass as they are.
    in_lanes : bool
        Whether one task reads the whole stream, in its order, and judges each row by those before it.
    dated : tuple of int
        The stages that need the largest event time of all streams at the end of input.
    """

    roots: tuple[Root, ...]
    reader: Reader
    bucket_ids: tuple[int, ...]
    by_file: dict[str, TimedBatch] | None
    begun: Moment
    shuffle_files: ShuffleFiles
    leaving: tuple[tuple[OutgoingResults, ...], ...]
    in_lanes: bool = False
    dated: tuple[int, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker("bounded")
        with in_task(self.roots[0].spec.label, PREPARE):
            yield from self._rows(batches)
        release_memory()

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stages = [StageOperator(root.spec) for root in self.roots]
        passed = [{**none_counted(), FIRINGS: 0} for _ in stages]
        newest_us = UNSET
        judging = [root.clock_after(None, self.begun) if root.rows_of is not None else None for root in self.roots]
        for seq, (timed, scanned) in enumerate(self._batches(batches)):
            if scanned.control is not None:  # what it tells is in the moments of the batches, and in clocks that go row by row
                self._advance_clocks(judging, scanned.control)
                continue
            for root, stage, leaving, counters, rows_clock in zip(
                self.roots, stages, self.leaving, passed, judging, strict=True
            ):
                if root.spec.operation.nature.stateless:
                    rows = list(self._passing(root, stage, scanned, leaving, counters))
                else:
                    rows, maxima = self._packed(root, stage, timed, scanned, rows_clock)
                    newest_us = max([newest_us, *maxima.values()])
                yield _rows_of(rows, timed.number, seq)
        for n in self.dated if newest_us != UNSET else ():
            for bucket in self.bucket_ids:
                yield _row(bucket, 0, addressed(NEWEST, n), str(newest_us).encode())
        for root, counters in zip(self.roots, passed, strict=True):
            if root.spec.operation.nature.stateless:
                yield _row(self.bucket_ids[0], 0, _output_kind(NOTES, root.number), Notes(counters).to_bytes())

    def _advance_clocks(self, judging: Sequence[RowClock | None], control: Control) -> None:
        """Let clocks that go row by row know of an explicit watermark."""
        for root, rows_clock in zip(self.roots, judging, strict=True):
            if rows_clock is not None and root.input is not None and control.watermark_us != UNSET:
                rows_clock.advance(control.watermark_us, root.input.noted(control).source)

    def _packed(
        self, root: Root, stage: StageOperator, timed: TimedBatch, scanned: ScannedRows, rows_clock: RowClock | None
    ) -> tuple[list[tuple[int, str, bytes]], dict[str, int]]:
        packing = stage.pack(timed.moment.at(root.times), rows_clock=rows_clock)
        if scanned.malformed:
            packing.refuse(in_columns(scanned.malformed))
        if scanned.batch is not None:
            packing.take(scanned.batch, scanned.partition)
        chunks = [part for chunk in packing.chunks() for part in split(chunk, stage.layout.key_names, self.bucket_ids)]
        rows = [(b, addressed(CHUNK, root.number), self.shuffle_files.give(t)) for b, t in chunks]
        rows += [(self.bucket_ids[0], addressed(LATE, root.number), self.shuffle_files.give(t)) for t in packing.late]
        notes = packing.notes
        return [*rows, (self.bucket_ids[0], addressed(NOTES, root.number), notes.to_bytes())], notes.maxima

    def _passing(
        self,
        root: Root,
        stage: StageOperator,
        scanned: ScannedRows,
        leaving: tuple[OutgoingResults, ...],
        counters: dict[str, int],
    ) -> Iterator[tuple[int, str, bytes]]:
        packing = packing_of(stage)
        take(packing, scanned)
        rows = done(stage, packing)
        count(counters, rows.counters)
        first, give = self.bucket_ids[0], self.shuffle_files.give
        if rows.results.num_rows:
            yield from ((first, out.kind, give(rows.results)) for out in leaving)
        if rows.late:
            yield first, _output_kind(LATE, root.number), give(late_output(stage.layout, rows.late))

    def _batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[TimedBatch, ScannedRows]]:
        for batch in batches:
            if self.by_file is None:
                only = TimedBatch(0, self.begun)
                for one in map(one_path, batch.column(0).to_pylist()) if self.in_lanes else (batch,):
                    yield from ((only, s) for s in self.reader(one))
                continue
            for path in batch.column(0).to_pylist():
                timed = self.by_file[path]
                yield from ((timed, s) for s in self.reader(one_path(path)))


@attrs.frozen(eq=False)
class BoundedSteps:
    """A stage of a bounded run: all its micro-batches, bucket by bucket, then the end of input, and what that gives.

    Attributes
    ----------
    spec : OperatorSpec
        Its specification.
    place : Place
        Where it is among the stages.
    batches : tuple of TimedBatch
        The micro-batches, with what is in force in each by every clock.
    shuffle_files : ShuffleFiles
        Take large chunks.
    """

    spec: OperatorSpec
    place: StagePlace
    batches: tuple[TimedBatch, ...]
    shuffle_files: ShuffleFiles

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker("bounded")
        with in_task(self.spec.label, self.spec.step):
            yield from self._rows(batches)
        release_memory()

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        read: dict[int, list[tuple[int, int, bytes]]] = {}
        given: dict[int, dict[int, list[pa.Table]]] = {}
        counters, ahead, maxima = {**none_counted(), FIRINGS: 0}, dict[str, int](), dict[str, int]()
        newest_us = UNSET
        for batch in batches:
            for row in batch.to_pylist():
                kind, to, _ = address_of(row["kind"])
                if to != self.place.number or STAGE in kind or kind == RESULT:
                    yield _row(row["bucket"], row["batch"], row["kind"], row["blob"], row["seq"])
                elif kind == NOTES:
                    noted = Notes.from_bytes(row["blob"])
                    count(counters, noted.counters)
                    count(ahead, noted.ahead)
                    for source, time_us in noted.maxima.items():
                        maxima[source] = max(maxima.get(source, time_us), time_us)
                elif kind == NEWEST:
                    if self.spec.operation.begins_everywhere:
                        read.setdefault(row["bucket"], [])
                    newest_us = max(newest_us, int(row["blob"]))
                elif kind == LATE:
                    yield self._out(_output_kind(LATE, to), row["blob"])
                elif kind == NEXT:
                    part = self.shuffle_files.take(row["blob"])
                    given.setdefault(row["bucket"], {}).setdefault(row["batch"], []).append(part)
                else:
                    read.setdefault(row["bucket"], []).append((row["batch"], row["seq"], row["blob"]))
        stage = StageOperator(stepping(self.spec))
        for bucket in sorted({*read, *given}):
            chunks = self._chunks(read.get(bucket, []))
            follows, now = self.place.follows, given.get(bucket, {})
            steps = (
                self._following(stage, bucket, chunks, now, newest_us)
                if follows
                else self._first(stage, bucket, chunks, newest_us)
            )
            yield from self._given(list(steps), counters)
        yield self._out(_output_kind(NOTES, self.place.number), Notes(counters, maxima, ahead=ahead).to_bytes())

    def _chunks(self, rows: list[tuple[int, int, bytes]]) -> dict[int, StageInput]:
        """Return what was read, by batch."""
        by_batch: dict[int, list[pa.Table]] = {}
        for number, _, blob in sorted(rows, key=lambda r: r[:2]):
            by_batch.setdefault(number, []).append(self.shuffle_files.take(blob))
        return {number: StageInput(chunks) for number, chunks in by_batch.items()}

    def _begun(self, bucket: int) -> Bucket:
        """Return a bucket as a run begins with it."""
        ids, initial = self.place.bucket_ids, self.spec.operation.initial
        held = Bucket(MemoryStore(), share=(ids.index(bucket), len(ids)))
        if initial is not None:
            begin_bucket(self.spec, held, initial)
        return held

    def _first(
        self, stage: StageOperator, bucket: int, read: dict[int, StageInput], newest_us: int
    ) -> Iterator[tuple[int, StageOutput]]:
        """Yield the steps of a stage that reads a source only."""
        held, times = self._begun(bucket), self.place.times
        for number, (timed, then, waits) in enumerate(turns(self.batches, newest_us)):
            packed, moment = read.get(timed.number, NO_ROWS), timed.moment.at(times)
            steps = micro_batch(stage, held, packed, moment, _always(then.at(times)), waits=waits)
            yield from ((2 * number + more, step) for more, step in enumerate(steps))

    def _following(
        self, stage: StageOperator, bucket: int, read: dict[int, StageInput], given: dict[int, list[pa.Table]], newest_us: int
    ) -> Iterator[tuple[int, StageOutput]]:
        """Yield the steps of a stage that takes the results of others, step by step (SEMANTICS §7.3)."""
        moments = [m.at(self.place.times) for m in step_moments(self.batches, newest_us)]
        held, late_moment = self._begun(bucket), Moment(UNSET, moments[0].now_us)
        for number, moment in enumerate(moments):
            batch, empty = divmod(number, 2)
            fresh = NO_ROWS if empty else read.get(self.batches[batch].number, NO_ROWS)
            if number not in given and not fresh.chunks and moment.watermark_us == late_moment.watermark_us:
                continue
            packed = packed_results(stage, given.get(number, []), late_moment, fresh)
            yield from ((number, step) for step in follow(stage, held, packed, late_moment, moment))
            late_moment = moment

    def _given(self, steps: list[tuple[int, StageOutput]], counters: dict[str, int]) -> Iterator[pa.RecordBatch]:
        """Yield the results and late rows of a bucket; its counters are added to `counters`."""
        results = pa.concat_tables([step.results for _, step in steps])
        for out in self.place.leaving if results.num_rows else ():
            yield self._out(out.kind, self.shuffle_files.give(out.of(results)))
        for following in self.place.following:
            for number, step in steps:
                for to, part in following.parts(step.results):
                    yield _row(to, number, addressed(NEXT, following.number), self.shuffle_files.give(part))
        late = [t for _, step in steps for t in step.late]
        if late:
            yield self._out(_output_kind(LATE, self.place.number), self.shuffle_files.give(pa.concat_tables(late)))
        for _, step in steps:
            count(counters, step.counters)

    def _out(self, kind: str, blob: bytes) -> pa.RecordBatch:
        """Something for the driver."""
        return _row(self.place.bucket_ids[0], 0, kind, blob)


def turns(batches: Sequence[TimedBatch], newest_us: int) -> Iterator[tuple[TimedBatch, Moment, bool]]:
    """Each batch of a first stage; what is in force after it, at last the end of input; whether one without rows follows."""
    last = batches[-1].moment
    ends = Moment(END_OF_TIME, last.now_us, others=(END_OF_TIME,) * len(last.others), newest_us=newest_us)
    for timed, then in zip(batches, [*(b.moment for b in batches[1:]), ends], strict=True):
        yield timed, then, timed.idle or then is ends


def step_moments(batches: Sequence[TimedBatch], newest_us: int) -> tuple[Moment, ...]:
    """Return what is in force in the steps of a first stage: of each batch, and of the batch without rows that may
    follow it.
    """
    every = ((timed.moment, then if waits else timed.moment) for timed, then, waits in turns(batches, newest_us))
    return tuple(moment for both in every for moment in both)


def _output_kind(kind: str, stage: int) -> str:
    """Return what something of a stage is called on its way to the driver."""
    return f"{kind}{STAGE}{stage}"


def _row(bucket: int, batch: int, kind: str, blob: bytes, seq: int = 0) -> pa.RecordBatch:
    return _rows_of([(bucket, kind, blob)], batch, seq)


def _rows_of(rows: list[tuple[int, str, bytes]], batch: int, seq: int) -> pa.RecordBatch:
    values: list[list[Any]] = [
        [r[0] for r in rows],
        [batch] * len(rows),
        [seq] * len(rows),
        [r[1] for r in rows],
        [r[2] for r in rows],
    ]
    return pa.RecordBatch.from_arrays([pa.array(v, f.type) for v, f in zip(values, _SCHEMA, strict=True)], schema=_SCHEMA)


def _always(then: Moment) -> Callable[[], Moment]:
    return lambda: then
