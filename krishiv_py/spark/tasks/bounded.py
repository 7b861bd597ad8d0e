"""What runs in the tasks of a bounded run: rows are packed, each stage takes all its micro-batches, then the end of input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa

from krishiv_py.connectors.malformed import in_columns
from krishiv_py.engine.chain import follow, packed_results, stepping
from krishiv_py.engine.failures import PREPARE, STEP
from krishiv_py.engine.loop import NO_ROWS, micro_batch
from krishiv_py.engine.notes import FIRINGS, Notes, count, none_counted
from krishiv_py.engine.stage import BatchDone, Packed, Packing, Stage
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket, MemoryStore
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.spark.reading.scan import Reader
from krishiv_py.spark.reading.scanned import Scanned
from krishiv_py.spark.setup.workers import release_memory, settle_worker
from krishiv_py.spark.storage.shuffle_files import ShuffleFiles
from krishiv_py.spark.tasks.failures import in_task
from krishiv_py.spark.tasks.handing_on import NEXT, STAGE, HandingOn
from krishiv_py.spark.tasks.moments import TimedBatch, one_path
from krishiv_py.spark.tasks.pack import CHUNK, LATE, NOTES, split

RESULT: Final = "result"
DDL: Final = "bucket int, batch int, seq bigint, kind string, blob binary"
_SCHEMA: Final = pa.schema(
    [
        pa.field("bucket", pa.int32()),
        pa.field("batch", pa.int32()),
        pa.field("seq", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("blob", pa.binary()),
    ]
)
OUT_DDL: Final = "kind string, blob binary"
_OUT: Final = pa.schema([pa.field("kind", pa.string()), pa.field("blob", pa.binary())])


@attrs.frozen(eq=False)
class BoundedPack:
    """Before the shuffle. `by_file` says in which batch a file is; without it the input is one batch."""

    spec: OperatorSpec
    reader: Reader
    bucket_ids: tuple[int, ...]
    by_file: dict[str, TimedBatch] | None
    now_us: int
    shuffle_files: ShuffleFiles

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker("bounded")
        with in_task(self.spec.name, PREPARE):
            yield from self._rows(batches)
        release_memory()

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stage = Stage(self.spec)
        for seq, (timed, scanned) in enumerate(self._batches(batches)):
            if scanned.control is not None:  # what it tells is in the moments of the batches
                continue
            packing = stage.pack(timed.moment)
            if scanned.malformed:
                packing.refuse(in_columns(scanned.malformed))
            if scanned.batch is not None:
                packing.take(scanned.batch)
            rows = self._packed(packing, stage.layout.key_names)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([r[0] for r in rows], pa.int32()),
                    pa.array([timed.number] * len(rows), pa.int32()),
                    pa.array([seq] * len(rows), pa.int64()),
                    pa.array([r[1] for r in rows]),
                    pa.array([r[2] for r in rows], pa.binary()),
                ],
                schema=_SCHEMA,
            )

    def _packed(self, packing: Packing, keys: list[str]) -> list[tuple[int, str, bytes]]:
        chunk = packing.chunk()
        chunks = [] if chunk is None else split(chunk, keys, self.bucket_ids)
        rows = [(b, CHUNK, self.shuffle_files.give(t)) for b, t in chunks]
        rows += [(self.bucket_ids[0], LATE, self.shuffle_files.give(t)) for t in packing.late]
        return [*rows, (self.bucket_ids[0], NOTES, packing.notes.to_bytes())]

    def _batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[TimedBatch, Scanned]]:
        for batch in batches:
            if self.by_file is None:
                only = TimedBatch(0, Moment(self.spec.watermark.initial_us, self.now_us))
                yield from ((only, s) for s in self.reader(batch))
                continue
            for path in batch.column(0).to_pylist():
                timed = self.by_file[path]
                yield from ((timed, s) for s in self.reader(one_path(path)))


@attrs.frozen(eq=False)
class AfterShuffle:
    """A stage of a bounded run: all its micro-batches, bucket by bucket, and what that gives."""

    spec: OperatorSpec
    shuffle_files: ShuffleFiles
    handing: Handing

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker("bounded")
        with in_task(self.spec.name, STEP):
            yield from self._rows(batches)
        release_memory()

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    def _given(self, done: list[tuple[int, BatchDone]], counters: dict[str, int]) -> Iterator[pa.RecordBatch]:
        """The results and late rows of a bucket; its counters are added to `counters`."""
        yield from self.handing.results(done)
        late = [t for _, d in done for t in d.late]
        if late:
            yield self.handing.out(LATE, self.shuffle_files.give(pa.concat_tables(late)))
        for _, d in done:
            count(counters, d.counters)


@attrs.frozen(eq=False)
class BoundedSteps(AfterShuffle):
    """The first stage: each bucket's chunks, micro-batch by micro-batch, then the end of input."""

    batches: tuple[TimedBatch, ...]

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrived: dict[int, list[tuple[int, int, bytes]]] = {}
        counters = {**none_counted(), FIRINGS: 0}
        for batch in batches:
            for row in batch.to_pylist():
                if row["kind"] == NOTES:
                    count(counters, Notes.from_bytes(row["blob"]).counters)
                elif row["kind"] == LATE:
                    yield self.handing.out(LATE, row["blob"])
                else:
                    arrived.setdefault(row["bucket"], []).append((row["batch"], row["seq"], row["blob"]))
        stage = Stage(self.spec)
        for chunks in arrived.values():
            yield from self._given(list(self._bucket(stage, sorted(chunks, key=lambda c: c[:2]))), counters)
        yield self.handing.out(NOTES, Notes(counters).to_bytes())

    def _bucket(self, stage: Stage, chunks: list[tuple[int, int, bytes]]) -> Iterator[tuple[int, BatchDone]]:
        bucket = Bucket(MemoryStore())
        by_batch: dict[int, list[pa.Table]] = {}
        for number, _, blob in chunks:
            by_batch.setdefault(number, []).append(self.shuffle_files.take(blob))
        for at, (timed, then, waits) in enumerate(turns(self.batches)):
            packed = Packed(by_batch.get(timed.number, ()))
            steps = micro_batch(stage, bucket, packed, timed.moment, _always(then), waits=waits)
            yield from ((2 * at + more, step) for more, step in enumerate(steps))


@attrs.frozen(eq=False)
class BoundedBehind(AfterShuffle):
    """A stage behind another one: the results of each of its steps, in turn (SEMANTICS §7.3)."""

    moments: tuple[Moment, ...]
    """What is in force in this stage in each step of the first one."""

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrived: dict[int, dict[int, list[pa.Table]]] = {}
        counters = {**none_counted(), FIRINGS: 0}
        for batch in batches:
            for row in batch.to_pylist():
                if row["kind"] != NEXT:
                    yield self.handing.passed(row)
                    continue
                given = self.shuffle_files.take(row["blob"])
                arrived.setdefault(row["bucket"], {}).setdefault(row["batch"], []).append(given)
        stage = Stage(stepping(self.spec))
        for rows in arrived.values():
            yield from self._given(list(self._bucket(stage, rows)), counters)
        yield self.handing.out(NOTES, Notes(counters).to_bytes())

    def _bucket(self, stage: Stage, rows: dict[int, list[pa.Table]]) -> Iterator[tuple[int, BatchDone]]:
        bucket, judged = Bucket(MemoryStore()), Moment(UNSET, self.moments[0].now_us)
        for at, moment in enumerate(self.moments):
            if at not in rows and moment.watermark_us == judged.watermark_us:
                continue
            packed = packed_results(stage, pa.concat_tables(rows[at]), judged) if at in rows else NO_ROWS
            yield from ((at, step) for step in follow(stage, bucket, packed, judged, moment))
            judged = moment


def turns(batches: Sequence[TimedBatch]) -> Iterator[tuple[TimedBatch, Moment, bool]]:
    """Each batch of a first stage; what is in force after it, at last the end of input; whether one without rows follows."""
    ends = Moment(END_OF_TIME, batches[-1].moment.now_us)
    for timed, then in zip(batches, [*(b.moment for b in batches[1:]), ends], strict=True):
        yield timed, then, timed.idle or then is ends


def step_moments(batches: Sequence[TimedBatch]) -> tuple[Moment, ...]:
    """What is in force in the steps of a first stage: of each batch, and of the batch without rows that may follow it."""
    every = ((timed.moment, then if waits else timed.moment) for timed, then, waits in turns(batches))
    return tuple(moment for both in every for moment in both)


@attrs.frozen(eq=False)
class Handing:
    """What a stage of a bounded run gives: results to the next stage, or all to the driver."""

    number: int
    following: HandingOn | None
    shuffle_files: ShuffleFiles

    def results(self, done: list[tuple[int, BatchDone]]) -> Iterator[pa.RecordBatch]:
        """What the steps of a bucket gave, with their numbers."""
        if self.following is None:
            found = pa.concat_tables([step.results for _, step in done])
            if found.num_rows:
                yield self.out(RESULT, self.shuffle_files.give(found))
            return
        for at, step in done:
            for bucket, part in self.following.parts(step.results):
                yield _row(bucket, at, NEXT, self.shuffle_files.give(part))

    def out(self, kind: str, blob: bytes) -> pa.RecordBatch:
        """Something for the driver."""
        named = f"{kind}{STAGE}{self.number}"
        return _out(named, blob) if self.following is None else _row(self.following.bucket_ids[0], 0, named, blob)

    def passed(self, row: dict[str, Any]) -> pa.RecordBatch:
        """Something for the driver from an earlier stage."""
        if self.following is None:
            return _out(row["kind"], row["blob"])
        return _row(row["bucket"], 0, row["kind"], row["blob"])


def _row(bucket: int, batch: int, kind: str, blob: bytes) -> pa.RecordBatch:
    values = [[bucket], [batch], [0], [kind], [blob]]
    return pa.RecordBatch.from_arrays([pa.array(v, f.type) for v, f in zip(values, _SCHEMA, strict=True)], schema=_SCHEMA)


def _always(then: Moment) -> Callable[[], Moment]:
    return lambda: then


def _out(kind: str, blob: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([kind]), pa.array([blob], pa.binary())], schema=_OUT)
