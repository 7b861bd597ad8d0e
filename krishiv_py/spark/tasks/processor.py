"""The stateful operator: kernels inside ``transformWithState``, keyed by bucket."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from krishiv_py.arrays.grouping import by_size
from krishiv_py.engine.closing import CLOSED, forget
from krishiv_py.engine.loop import NO_ROWS, as_if_ended, early, follow, packed_results, stepping
from krishiv_py.engine.stage import FIRINGS, Notes, Report, StageInput, StageOperator, count, none_counted
from krishiv_py.errors import OperatorError
from krishiv_py.kernels.prepare import late_output
from krishiv_py.kernels.registry import begin_bucket
from krishiv_py.kernels.results import StepResult
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.spread import BucketContent
from krishiv_py.kernels.state.store import Bucket, Meta, Pages, mapped, stored
from krishiv_py.kernels.watermark import ClockPlan
from krishiv_py.plan.durations import MAX_TIME_US, UNSET
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.plan.running import Control, under_new_names
from krishiv_py.runtime.batch import EARLY, METRICS, NEXT, OF_LATE_ROWS, StagePlace, address_of, addressed, kind_of
from krishiv_py.runtime.checkpoint.notes import STATE as SAVED
from krishiv_py.runtime.chunk_files import BucketChunks, ChunkFolder
from krishiv_py.runtime.clocks import Clock, LedgerClock, clock_ms, wakeup_ms, watermark_of
from krishiv_py.runtime.outputs import TaskOutput
from krishiv_py.runtime.savepoints import read_bucket
from krishiv_py.spark.setup.types import flat_type
from krishiv_py.spark.setup.workers import release_memory, settle_worker
from krishiv_py.spark.storage import ShuffleFiles
from krishiv_py.spark.tasks.failures import in_task
from krishiv_py.spark.tasks.pack import CHUNK, CLOSE, LATE, MOVES, NOTES, RAW, SNAPSHOT, TICK, batch_number
from krishiv_py.storage.checksums import decode, encode

OUT_TYPE: Final = flat_type("kind string, bucket int, blob binary")
LATE_ROWS: Final = "late"
FILE: Final = "file"
META: Final = "meta"
_OF_THE_FIRST: Final = frozenset({CHUNK, CLOSE, LATE, MOVES, NOTES, RAW, SNAPSHOT, TICK})


_SIZES: Final = "sizes"
_BYTES: Final = "bytes"


class SparkPages:
    """Pages of large maps in a Spark map state."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def read(self, name: str) -> Any:
        """See Pages."""
        return json.loads(bytes(self._state.getValue((name,))[0]))

    def write(self, name: str, note: Any) -> None:
        """See Pages."""
        self._state.updateValue((name,), (json.dumps(note).encode(),))

    def remove(self, name: str) -> None:
        """See Pages."""
        self._state.removeKey((name,))


class SparkStore:
    """Chunks in a Spark map state, large ones in files it names; sizes are kept in the meta dictionary."""

    def __init__(self, state: Any, meta: Meta, pages: Pages, blobs: BucketChunks | None) -> None:
        self._state = state
        self._sizes = mapped(meta, _SIZES, str, pages)
        self._blobs = blobs
        self.bytes = int(meta[_BYTES] if _BYTES in meta else sum(self._sizes.values()))

    def get(self, name: str) -> pa.Table:
        """See ChunkStore."""
        mapped = self._blobs.read(name) if self._blobs is not None else None
        return decode(bytes(self._state.getValue((name,))[0])) if mapped is None else mapped

    def put(self, name: str, table: pa.Table) -> None:
        """See ChunkStore."""
        written = self._blobs.write(name, table) if self._blobs is not None else None
        if written is None:
            blob = encode(table)
            written = blob, len(blob)
        self.bytes += written[1] - self._sizes.get(name, 0)
        self._sizes[name] = written[1]
        self._state.updateValue((name,), (written[0],))

    def delete(self, name: str) -> None:
        """See ChunkStore."""
        if self._blobs is not None:
            self._blobs.drop(name)
        self.bytes -= self._sizes[name]
        del self._sizes[name]
        self._state.removeKey((name,))


@attrs.define(eq=False, repr=False, slots=False)
class BucketProcessor:
    """One instance per task; every bucket is one grouping key. What Spark calls is in :mod:`~krishiv_py.spark.tasks.rows`."""

    _spec: OperatorSpec
    _output: TaskOutput | None = None
    _clock: Clock | None = None
    _blobs: ChunkFolder | None = None
    _shuffle_files: ShuffleFiles | None = None
    _place: StagePlace = attrs.field(factory=StagePlace)
    moves: ClockPlan | None = None
    """The clocks, where a batch fires by its own rows, which are classified one by one."""

    def open(self, handle: StatefulProcessorHandle, state: Any) -> None:
        """Begin a task, with the handle of its operator and its one state variable."""
        settle_worker("operator")
        self._handle = handle
        self._state = state
        self._stage = StageOperator(stepping(self._spec))
        self._stepped: set[int] = set()
        mark = self._spec.watermark
        self._mark = MarkCheck(self._spec.name, self._spec.tick_us, mark.lag_us if isinstance(mark, WatermarkSpec) else 0)

    def handle_rows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        """Fold the bucket's chunks in and fire."""
        batch = self._batch()
        with in_task(self._spec.label, f"{self._spec.step} of bucket {key[0]}", batch, self._checkpoint):
            yield from self._fold(int(key[0]), batch, rows, timerValues)

    def _fold(self, bucket: int, batch: int, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        in_force = self._in_force(batch, timerValues)
        chunks: list[pa.Table] = []
        late: list[pa.Table] = []
        notes: list[Notes] = []
        now_us, snapshot, mine, closing, moves = in_force.now_us or 0, False, False, b"", list[bytes]()
        take = decode if self._shuffle_files is None else self._shuffle_files.of_batch(batch).take
        if self._place.number:
            yield from self._following(bucket, batch, rows, in_force, take)
            return
        for row in sorted(rows, key=lambda r: r.seq):
            if row.kind not in _OF_THE_FIRST:
                yield Row(kind=row.kind, bucket=row.bucket, blob=bytes(row.blob))
                continue
            mine = True
            if row.kind == RAW:
                prepared = self._prepared(bytes(row.blob), in_force)
                chunks += prepared.chunks
                late += prepared.late
                notes += prepared.notes
                continue
            if self._clock is not None and row.in_force != in_force.watermark_us:
                raise OperatorError(
                    f"{self._spec.name}: a batch was prepared under watermark {row.in_force} but runs under "
                    f"{in_force.watermark_us}: its late rows would be wrong. "
                    "Hint: this is a bug in krishiv_py, please report it"
                )
            if row.kind == SNAPSHOT:
                snapshot = True
            elif row.kind == CLOSE:
                closing = bytes(row.blob)  # every task says the same
            elif row.kind == TICK:
                now_us = max(now_us, int(bytes(row.blob)))
            elif row.kind == NOTES:
                notes.append(Notes.from_bytes(bytes(row.blob)))
            elif row.kind == MOVES:
                moves.append(bytes(row.blob))
            else:
                (chunks if row.kind == CHUNK else late).append(take(bytes(row.blob)))
        if not mine:  # a timer of its own tells it when something is due
            return
        moment = attrs.evolve(in_force, now_us=now_us)
        packed, then = StageInput(chunks, late, notes), self._then(batch, moves)
        yield from self._step(bucket, batch, moment, packed, then=then, snapshot=snapshot, closing=closing)

    def _then(self, batch: int, moves: list[bytes]) -> Moment | None:
        """Return what is in force after the rows of a batch that fires by them; all tasks say how far these have come."""
        if self.moves is None:
            return None
        assert isinstance(self._clock, LedgerClock)
        said = [(clock, maxima, [Control(*one) for one in advances]) for clock, maxima, advances in map(json.loads, moves)]
        return self._clock.after(batch, self.moves, said)

    def _following(
        self, bucket: int, batch: int, rows: Iterator[Any], moment: Moment, take: Callable[[bytes], pa.Table]
    ) -> Iterator[Row]:
        """Take what the stages before gave, or was read from a source, and let pass what is meant for others."""
        given: list[pa.Table] = []
        given_early: list[pa.Table] = []
        snapshot, closing = False, b""
        packed: list[tuple[int, str, bytes]] = []
        moves: list[bytes] = []
        for row in rows:
            kind, to, seq = address_of(row.kind)
            if to != self._place.number:
                yield Row(kind=row.kind, bucket=row.bucket, blob=bytes(row.blob))
            elif kind == NEXT:
                given.append(take(bytes(row.blob)))
            elif kind == EARLY:
                given_early.append(take(bytes(row.blob)))
            elif kind == SNAPSHOT:
                snapshot = True
            elif kind == CLOSE:
                closing = bytes(row.blob)
            elif kind == MOVES:
                moves.append(bytes(row.blob))
            elif kind != TICK:
                packed.append((seq, kind, bytes(row.blob)))
        assert self._clock is not None
        read = NO_ROWS
        if self._place.reads:
            packed.sort(key=lambda row: row[0])
            tables = {
                kind_wanted: [take(blob) for _, kind, blob in packed if kind == kind_wanted] for kind_wanted in (CHUNK, LATE)
            }
            read = StageInput(
                tables[CHUNK], tables[LATE], [Notes.from_bytes(blob) for _, kind, blob in packed if kind == NOTES]
            )
        then = self._then(batch, moves)
        if not self._place.follows:
            yield from self._step(bucket, batch, moment, read, then=then, snapshot=snapshot, closing=closing)
            return
        stepped_us, late_moment = self._clock.begun.stepped_us, Moment(UNSET)
        if not batch and self._clock.takes_over(batch) and stepped_us:
            late_moment = Moment(stepped_us[self._place.number])
        elif batch or self._clock.takes_over(batch):
            late_moment = self._stepped_before(batch).at(self._place.times)
        late_moment = attrs.evolve(late_moment, now_us=moment.now_us)
        folded = packed_results(self._stage, given, late_moment, read)
        moment = moment if then is None else attrs.evolve(then, now_us=moment.now_us)
        yield from self._step(
            bucket, batch, moment, folded, late_moment=late_moment, snapshot=snapshot, given_early=given_early, closing=closing
        )

    def _stepped_before(self, batch: int) -> Moment:
        """Return what was in force in the last step before a batch."""
        assert self._clock is not None
        if self.moves is None:
            return self._clock.in_force(max(batch - 1, 0))
        assert isinstance(self._clock, LedgerClock)
        return self._clock.stepped(batch)

    def handle_timer(self, key: Any, timerValues: Any) -> Iterator[Row]:
        """Fire what is due although no row came."""
        bucket = int(key[0])
        if bucket not in self._stepped:
            batch = self._batch()
            with in_task(self._spec.label, f"{self._spec.step} of bucket {bucket}", batch, self._checkpoint):
                yield from self._step(bucket, batch, self._in_force(batch, timerValues), NO_ROWS)

    def close(self) -> None:
        """The task is over."""
        release_memory()

    @property
    def _checkpoint(self) -> str | None:
        return None if self._clock is None else self._clock.checkpoint

    def _batch(self) -> int:
        return batch_number(self._checkpoint or "")

    def _in_force(self, batch: int, timers: Any) -> Moment:
        if self._clock is not None:
            before = self._place.reads and self._spec.options.late_by_batch_before
            return self._clock.judging(batch, before=True) if before else self._clock.in_force(batch)
        self._mark.spark_ms = timers.getCurrentWatermarkInMs()
        mark = watermark_of(self._mark.spark_ms, self._spec.tick_us)
        return Moment(max(mark, self._spec.watermark.initial_us), 0)  # begun_us: it knows no clock

    def _prepared(self, blob: bytes, in_force: Moment) -> StageInput:
        """Rows that came unjudged: combined, and the late ones with their notes."""
        packing = self._stage.pack(in_force)
        for part in decode(blob).to_batches():
            packing.take(part)
        return packing.packed()

    def _load(self) -> Meta:
        kept: Any = self._state.getValue((META,))
        if kept is None:
            return {}
        loaded: Meta = json.loads(bytes(kept[0]))
        return loaded

    def _taken_over(self, bucket: int) -> BucketContent | None:
        """Return what the savepoint has of a bucket."""
        place, position = self._place, self._place.bucket_ids.index(bucket)
        return read_bucket(f"{self._checkpoint}/{SAVED}", place.number, position)

    def _step(
        self,
        bucket: int,
        batch: int,
        in_force: Moment,
        packed: StageInput,
        *,
        late_moment: Moment | None = None,
        then: Moment | None = None,
        snapshot: bool = False,
        given_early: Sequence[pa.Table] = (),
        closing: bytes = b"",
    ) -> Iterator[Row]:
        meta = self._load()
        taken = self._taken_over(bucket) if self._clock is not None and self._clock.takes_over(batch) else None
        if taken is not None:
            meta = taken.meta
        counters = under_new_names(meta.setdefault("counters", {**none_counted(), FIRINGS: 0}))
        if self._clock is None:
            self._mark(meta, [n.maxima for n in packed.notes])
        now_us = max([in_force.now_us or 0, *(n.latest_us() for n in packed.notes)])
        follows = self._place.times
        pages = SparkPages(self._state)
        blobs = BucketChunks(self._blobs, bucket, batch, meta, pages) if self._blobs is not None else None
        store = SparkStore(self._state, meta, pages, blobs)
        for name, table in {} if taken is None else taken.tables.items():
            store.put(name, table)
        ids = self._place.bucket_ids
        share = (ids.index(bucket), len(ids)) if self._clock is not None else (0, 1)
        held = Bucket(store, meta, now_us // 1_000 or None, pages, share)  # 0: no clock has been read yet
        initial = self._spec.operation.initial
        if initial is not None and not batch and (taken is None or not (taken.tables or taken.meta)):
            begin_bucket(self._spec, held, initial)
        moment = attrs.evolve(in_force.at(follows), now_us=now_us)
        if closing and (batch or taken is not None):
            assert self._clock is not None
            stepped = attrs.evolve(self._stepped_before(batch).at(follows), now_us=now_us)
            forgotten = forget(self._stage, held, decode(closing), stepped)
            count(counters, {CLOSED: forgotten} if forgotten else {})
        if late_moment is None:
            every = [self._stage.step(held, packed, moment)]
            if then is not None:
                moment = attrs.evolve(then.at(follows), now_us=now_us)
                every.append(self._stage.step(held, NO_ROWS, moment))
        else:
            every = list(follow(self._stage, held, packed, attrs.evolve(late_moment, now_us=now_us), moment))
        if blobs is not None:
            blobs.tidy()
        for done in every:
            count(counters, done.counters)
        step = every[-1].step
        if not self._place.number:
            self._set_timer(meta, self._timer_ms(bucket, batch, in_force, step))
        meta[_BYTES] = store.bytes
        kept = stored(meta)  # before anybody looks at what is open: pages that have changed are written
        shown = [self._early(held, moment, given_early)] if snapshot else []
        results = pa.concat_tables([done.results for done in every])
        leaving = pa.concat_tables([results, *shown])
        given = [(out.name, out.kind, out.of(leaving)) for out in self._place.leaving]
        late = [table for done in every for table in done.late]
        if late:
            given.append((OF_LATE_ROWS, self._kind(LATE_ROWS), late_output(self._stage.layout, late)))
        left = kept.setdefault("given", {})
        count(left, {name: table.num_rows for name, _, table in given})
        self._state.updateValue((META,), (json.dumps(kept).encode(),))
        self._stepped.add(bucket)
        for _, kind, table in given:
            yield from self._emit(kind, bucket, table)
        yield from self._hand_on(bucket, batch, results, shown)
        maxima = tuple(packed.notes) if self._place.reads else ()  # the watermark follows the rows of the source
        sizes = step.open_windows, step.open_rows, store.bytes
        report = Report(counters, *sizes, maxima, step.wakeup_now_us, left, step.timers, step.held_rows)
        yield Row(kind=self._kind(METRICS), bucket=bucket, blob=report.to_bytes())

    def _kind(self, kind: str) -> str:
        return kind_of(kind, self._place.number, self._place.last)

    def _early(self, held: Bucket, moment: Moment, given: Sequence[pa.Table]) -> pa.Table:
        """Return what is open, as early results; of several stages with what those before give early."""
        if not self._place.number and self._place.next_operator is None:
            return early(self._stage, held, moment)
        packed = packed_results(self._stage, given, moment)
        return as_if_ended(self._stage, held, moment, packed)

    def _hand_on(self, bucket: int, batch: int, results: pa.Table, shown: Sequence[pa.Table]) -> Iterator[Row]:
        give = encode if self._shuffle_files is None else self._shuffle_files.of_batch(batch).give
        for following in self._place.following:
            for kind, tables in ((NEXT, [results]), (EARLY, shown)):
                for to, rows in itertools.chain.from_iterable(map(following.parts, tables)):
                    for part in by_size(rows):
                        yield Row(kind=addressed(kind, following.number), bucket=to, blob=give(part))
        next_operator, ids = self._place.next_operator, self._place.bucket_ids
        if next_operator is not None and bucket == ids[0]:  # one is enough, and this one always steps
            for to in ids:
                yield Row(kind=addressed(SNAPSHOT if shown else TICK, next_operator), bucket=to, blob=b"0")

    def _emit(self, kind: str, bucket: int, table: pa.Table) -> Iterator[Row]:
        if not table.num_rows:
            return
        written = self._output.write(kind, bucket, table, self._batch()) if self._output is not None else None
        if written is None:
            for part in by_size(table):
                yield Row(kind=kind, bucket=bucket, blob=encode(part))
        else:
            yield Row(kind=FILE, bucket=bucket, blob=json.dumps(written).encode())

    def _timer_ms(self, bucket: int, batch: int, in_force: Moment, step: StepResult) -> int | None:
        if self._clock is not None:
            wakeup_us, place = step.wakeup_us, self._place
            if place.next_operator is not None and bucket == place.bucket_ids[0] and not in_force.ended:
                wakeup_us = max(in_force.watermark_us, -MAX_TIME_US) + self._spec.tick_us  # later stages go on as time does
            return self._clock.timer_ms(batch, wakeup_us, step.wakeup_now_us)
        return None if step.wakeup_us is None else wakeup_ms(step.wakeup_us, self._spec.tick_us)

    def _set_timer(self, meta: Meta, wanted: int | None) -> None:
        armed = meta.get("timer")
        if wanted != armed:
            if armed is not None and armed in set(self._handle.listTimers()):
                self._handle.deleteTimer(armed)
            if wanted is not None:
                self._handle.registerTimer(wanted)
        meta["timer"] = wanted


_OURS_FROM_MS: Final = 10**13
"""Real times in milliseconds are below (year 2286); ours travel shifted by 4.5e15, so few rows are below."""


@attrs.define
class MarkCheck:
    """Holds Spark's watermark against what a bucket has seen, where it is all we have: in frames that go on in plain Spark."""

    operator: str
    tick_us: int
    lag_us: int
    spark_ms: int = 0

    def __call__(self, meta: Meta, maxima: list[dict[str, int]]) -> None:
        """Refuse a batch under a watermark that is not ours although rows of earlier ones must have moved it."""
        if meta.get("moved") and self.spark_ms < _OURS_FROM_MS:
            hint = "write to_dataframe(checkpoint=...), and start with the query that reads the frame"
            what = f"{self.operator}: another watermark holds back the one of to_dataframe()"
            then = "no window would ever end"
            raise OperatorError(what, got=f"{self.spark_ms} after rows that moved it", then=then, hint=hint)
        newest = [time_us for by_source in maxima for time_us in by_source.values()]
        if newest and clock_ms(max(max(newest) - self.lag_us, -MAX_TIME_US), self.tick_us) >= _OURS_FROM_MS:
            meta["moved"] = True
