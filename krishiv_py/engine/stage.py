"""One stage of a plan as it runs: pack before the shuffle, step after it, and the notes that travel next to rows."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import buckets
from krishiv_py.arrays.ranges import portions
from krishiv_py.arrays.ranges import split as by_number
from krishiv_py.errors import KrishivError, failure_text, own_type
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.columns.steps import prefixed
from krishiv_py.kernels.lanes import RowClock, lane_of
from krishiv_py.kernels.prepare import COUNTERS, PreparedRows, RowPreparer, malformed_rows
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.results import StepResult, WindowOperator
from krishiv_py.kernels.spec import STOPWATCH, Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.watermark import ONLY
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.running import Control, under_new_names
from krishiv_py.planner.physical import OutputPlan

FIRINGS = "firings"
"""The name of the count of results."""


def none_counted() -> dict[str, int]:
    """Counters at the beginning."""
    return dict.fromkeys(COUNTERS, 0)


def count(into: dict[str, int], counted: Mapping[str, int]) -> None:
    """Add counters to others, in place."""
    for name, n in counted.items():
        if n or name not in into:
            into[name] = into.get(name, 0) + n


Reached: TypeAlias = tuple[int, int, int]
"""A partition in a batch: its largest event time, µs; its late rows; the largest time of those, µs."""


def reached(into: dict[str, Reached], more: Mapping[str, Reached]) -> None:
    """Add what partitions gave to what they gave before, in place."""
    for partition, (top_us, late, latest_late_us) in more.items():
        known = into.get(partition, (UNSET, 0, UNSET))
        into[partition] = max(known[0], top_us), known[1] + late, max(known[2], latest_late_us)


@attrs.define
class Notes:
    """Holds what one task learnt of a micro-batch next to its rows.

    Attributes
    ----------
    counters : dict
        Rows by fate.
    maxima : dict
        Largest event time by source, µs.
    advances : list of Control
        What the batch reported of the watermark.
    ahead : dict
        How many rows are too far ahead by source.
    partitions : dict
        What each partition gave of a source where all have one watermark.
    newest_us : int
        The largest event time of rows that the stage checked, µs.
    """

    counters: dict[str, int] = attrs.field(factory=none_counted)
    maxima: dict[str, int] = attrs.field(factory=dict)
    advances: list[Control] = attrs.field(factory=list)
    ahead: dict[str, int] = attrs.field(factory=dict)
    partitions: dict[str, Reached] = attrs.field(factory=dict)
    newest_us: int = UNSET

    def take(self, prepared: PreparedRows, partition: str = "") -> None:
        """Add what was learnt of a batch of rows, all of one partition where it has a name."""
        count(self.counters, prepared.counters)
        for source, time_us in prepared.maxima.items():
            self.maxima[source] = max(self.maxima.get(source, UNSET), time_us)
        count(self.ahead, prepared.ahead)
        self.newest_us = max(self.newest_us, prepared.newest_us)
        if partition and ONLY in prepared.maxima:
            given = prepared.maxima[ONLY], prepared.counters["late"], prepared.latest_late_us
            reached(self.partitions, {partition: given})

    def refuse(self, n: int) -> None:
        """Count malformed input."""
        count(self.counters, {"rows": n, "malformed": n})

    def latest_us(self) -> int:
        """Return the latest processing time that was given, µs; 0 if none was."""
        return max((a.now_us for a in self.advances), default=0)

    def to_bytes(self) -> bytes:
        """As it travels through a shuffle."""
        advances = [[a.watermark_us, a.source, a.now_us] for a in self.advances]
        return json.dumps([self.counters, self.maxima, advances, self.ahead, self.partitions, self.newest_us]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Notes:
        """Return what :meth:`to_bytes` wrote."""
        counters, maxima, advances, ahead, partitions, newest_us = json.loads(data)
        return cls(counters, maxima, [Control(*values) for values in advances], ahead, partitions, newest_us)


@attrs.frozen
class Report:
    """Holds what a bucket reports after a micro-batch.

    Attributes
    ----------
    counters : dict
        Rows by fate, and firings, since the query began.
    open_windows, open_rows, state_bytes : int
        What its state holds.
    notes : tuple of Notes
        The maxima and advances of the tasks whose notes came to it. Their counters are part of `counters`.
    wakeup_now_us : int or None
        The processing time at which it has something to do even without rows.
    given : dict
        Rows that went to outputs since the query began, by the name of the output.
    timers, held_rows : int
        Deadlines that are pending, and rows that are not settled.
    """

    counters: dict[str, int]
    open_windows: int
    open_rows: int
    state_bytes: int
    notes: tuple[Notes, ...] = ()
    wakeup_now_us: int | None = None
    given: dict[str, int] = attrs.field(factory=dict)
    timers: int = 0
    held_rows: int = 0

    def saved(self) -> dict[str, Any]:
        """As plain data, as the metrics file of a checkpoint holds it too; without partitions, which only a batch needs."""
        return {
            "counters": self.counters,
            "open_windows": self.open_windows,
            "open_rows": self.open_rows,
            "state_bytes": self.state_bytes,
            "notes": [[n.maxima, [[a.watermark_us, a.source, a.now_us] for a in n.advances], n.ahead] for n in self.notes],
            "wakeup_now": self.wakeup_now_us,
            **({"given": self.given} if self.given else {}),
            **({"waits": [self.timers, self.held_rows]} if self.timers or self.held_rows else {}),
        }

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> Report:
        """Return what :meth:`saved` gave."""
        notes = [
            Notes({}, maxima, [Control(*advance) for advance in advances], dict(*ahead))  # earlier versions kept no `ahead`
            for maxima, advances, *ahead in saved.get("notes", [])
        ]
        if saved.get("partitions"):
            notes.append(Notes({}, partitions={p: tuple(given) for p, given in saved["partitions"].items()}))
        sizes = saved["open_windows"], saved["open_rows"], saved["state_bytes"]
        counters, given, waits = under_new_names(saved["counters"]), saved.get("given", {}), saved.get("waits", (0, 0))
        return cls(counters, *sizes, tuple(notes), saved.get("wakeup_now"), given, *waits)

    def to_bytes(self) -> bytes:
        """As it travels to the driver."""
        partitions: dict[str, Reached] = {}
        for notes in self.notes:
            reached(partitions, notes.partitions)
        return json.dumps({**self.saved(), "partitions": partitions}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Report:
        """Return what :meth:`to_bytes` wrote."""
        return cls.restored(json.loads(data))


FLUSH_ROWS: Final = 7 << 16
"""So many rows that wait are combined: the more at once, the fewer are left to keep and to merge again.

It is a little less than two parts of a file, as they are read, of which some rows may be late.
"""
_FEW_BYTES: Final = 1 << 14
_CHUNK_BYTES: Final = 1 << 28
"""More is not combined at once: memory for it is needed several times over, and no text column may reach 2 GiB."""


@attrs.frozen(eq=False)
class StageInput:
    """Holds what a stage is given of a micro-batch, of one bucket: rows that are classified and combined.

    Attributes
    ----------
    chunks : sequence of pyarrow.Table
        Combined rows, in order of arrival.
    late : sequence of pyarrow.Table
        Rows that were refused when they were classified.
    notes : sequence of Notes
        What was learnt of them.
    of_source : int
        Of a stage after others: how many of the chunks, the last ones, are rows of a source that it reads itself.
    """

    chunks: Sequence[pa.Table] = ()
    late: Sequence[pa.Table] = ()
    notes: Sequence[Notes] = ()
    of_source: int = 0


@attrs.frozen(eq=False)
class StageOutput:
    """Holds what came out of a stage in a micro-batch, of one bucket.

    Attributes
    ----------
    results : pyarrow.Table
        Results, in firing order. They are the rows of the next stage, if there is one.
    late : list of pyarrow.Table
        Late rows: those refused when they were classified, then those the state refused. Tables without rows are left out.
    counters : dict
        What was counted in this batch, firings included.
    step : StepResult
        What the operator says of its state, and when it wants to be woken.
    moment : Moment
        What was in force.
    """

    results: pa.Table
    late: list[pa.Table]
    counters: dict[str, int]
    step: StepResult
    moment: Moment


NEWEST_ROW: Final = "newest_us"
"""The name under which a bucket notes the largest event time of all rows that its stage has checked (SEMANTICS §12.2)."""


class StageOperator:
    """A stage: its stateless half and its operator. One instance serves all buckets of a task.

    The results of a stage go to the next one in the same micro-batch: see :mod:`krishiv_py.engine.loop`.
    """

    def __init__(self, spec: OperatorSpec) -> None:
        self.spec = spec
        self.prepare = RowPreparer(spec)
        self.operator: WindowOperator = operator_for(spec)
        self.late_by_batch_before = spec.options.late_by_batch_before
        self.stateless = spec.operation.nature.stateless
        self.takes_turns = spec.watermark.by_row and spec.operation.takes_turns(spec.options)

    @property
    def layout(self) -> Layout:
        """Its columns."""
        return self.prepare.layout

    def pack(self, moment: Moment, *, results: bool = False, rows_clock: RowClock | None = None) -> BatchPacker:
        """Begin to pack the rows of a micro-batch, classified by the watermark of `moment`, or `results` of a stage.

        With a `rows_clock` each row is classified by those before it in its lane.
        """
        return BatchPacker(self, moment, results=results, rows_clock=rows_clock)

    def step(self, bucket: Bucket, packed: StageInput, moment: Moment) -> StageOutput:
        """Fold the rows of a micro-batch in and fire (SEMANTICS §2.3). Changes `bucket` in place.

        Rows that are classified by the batch before are folded in under its watermark; then windows fire (SEMANTICS §4.6).
        """
        STOPWATCH.set(time.perf_counter)
        late_moment = moment.late_moment if self.late_by_batch_before and packed.chunks else moment
        if self.takes_turns and packed.chunks:
            step = self._in_turns(bucket, packed.chunks, moment)
        else:
            step = self.operator.step(bucket, list(packed.chunks), late_moment)
        if late_moment is not moment:
            step = _one_after_the_other(step, self.operator.step(bucket, [], moment))
        if packed.notes and not self.stateless:
            newest_us = bucket.meta.get(NEWEST_ROW, UNSET)
            for notes in packed.notes:
                newest_us = max(newest_us, notes.newest_us)
            bucket.meta[NEWEST_ROW] = newest_us
        counted = dict(packed.notes[0].counters) if packed.notes else {}
        for notes in packed.notes[1:]:
            count(counted, notes.counters)
        count(counted, {**step.counters, FIRINGS: step.firings} if step.counters else {FIRINGS: step.firings})
        late = [t for t in (*packed.late, step.late) if t is not None and t.num_rows]
        return StageOutput(step.results, late, counted, step, moment)

    def _in_turns(self, bucket: Bucket, chunks: Sequence[pa.Table], moment: Moment) -> StepResult:
        """Fold chunks in one after the other: before a row that comes alone fires what the rows before it have made over.

        Only its key is looked at then, so a step for all keys is the last one.
        """
        marks = [(chunk.schema.metadata or {}).get(_TURN) for chunk in chunks]
        turns = [
            ([chunk], moment if mark is None else attrs.evolve(moment, alone_us=int(mark)))
            for chunk, mark in zip(chunks, marks, strict=True)
        ]
        first, *others = turns if marks[-1] is None else [*turns, ([], moment)]
        step = self.operator.step(bucket, *first)
        for turn in others:
            step = _one_after_the_other(step, self.operator.step(bucket, *turn))
        return step


_TURN: Final = b"krishiv_turn"
"""The name in the schema of a chunk whose row comes alone, of the watermark of the rows before it."""


def in_turn(chunk: pa.Table, watermark_us: int) -> pa.Table:
    """Return the chunk of a row that comes alone, under the watermark of the rows before it."""
    return chunk.replace_schema_metadata({_TURN: str(watermark_us).encode()})


def of_output(output: OutputPlan, results: pa.Table) -> pa.Table:
    """Return what leaves by an output of the results of its stage."""
    if not output.steps:
        return results if results.schema.names == output.schema.names else results.select(output.schema.names)
    if not results.num_rows:
        return output.schema.empty_table()
    return prefixed(output.steps, results.select(list(output.reads))).cast(output.schema)


def _one_after_the_other(first: StepResult, then: StepResult) -> StepResult:
    """Two steps of a bucket as one."""
    counters = dict(first.counters)
    count(counters, then.counters)
    late = [t for t in (first.late, then.late) if t is not None]
    return attrs.evolve(
        then,
        results=pa.concat_tables([first.results, then.results]),
        firings=first.firings + then.firings,
        counters=counters,
        late=pa.concat_tables(late) if late else None,
    )


class BatchPacker:
    """Rows of one micro-batch in one task: classified, counted, and combined when they are taken out."""

    def __init__(self, stage: StageOperator, moment: Moment, *, results: bool, rows_clock: RowClock | None = None) -> None:
        self._stage = stage
        self._rows_clock = rows_clock
        self._moment = moment.late_moment if stage.late_by_batch_before and not results else moment
        self._results = results
        self.notes = Notes()
        self.late: list[pa.Table] = []
        self._rows: list[pa.Table] = []
        self._turns: list[pa.Table] = []
        self._waiting, self._bytes = 0, 0

    def take(self, batch: pa.RecordBatch, partition: str = "") -> dict[str, int]:
        """Judge a batch of source rows, of one `partition` where it is known; gives its largest event times by source."""
        now, by_row = self._moment, self._rows_clock
        lane = None if by_row is None else (by_row, lane_of(self._stage.spec.stream, partition))
        prepared = self._stage.prepare(
            batch, now.watermark_us, now.now_us, begun_us=now.begun_us, results=self._results, lane=lane
        )
        self.notes.take(prepared, "" if by_row else partition)
        if prepared.late.num_rows:
            self.late.append(prepared.late)
        if prepared.turns:
            self._add_in_turns(prepared)
        elif prepared.rows.num_rows:
            self._add(prepared.rows)
        return prepared.maxima

    def _add_in_turns(self, prepared: PreparedRows) -> None:
        """Add rows of which some come alone: what waits is combined before each of them, and after it."""
        turns, done = list[pa.Table](), 0
        for place, watermark_us in prepared.turns:
            self._add(prepared.rows.slice(done, place - done))
            turns += self.chunks()
            self._add(prepared.rows.slice(place, 1))
            turns += [in_turn(chunk, watermark_us) for chunk in self.chunks()]
            done = place + 1
        self._add(prepared.rows.slice(done))
        self._turns = turns

    def _add(self, rows: pa.Table) -> None:
        if rows.num_rows:
            self._rows.append(rows)
            self._waiting += rows.num_rows
            self._bytes += self._size(rows)

    def _size(self, rows: pa.Table) -> int:
        """Return how many bytes rows take; of a few, what they take of larger buffers is not worth counting."""
        each = self._stage.layout.row_bytes
        if each is not None:
            return int(rows.num_rows * each)
        size = int(rows.get_total_buffer_size())
        return size if size <= _FEW_BYTES else int(rows.nbytes)

    def full(self, rows: int) -> bool:
        """Return whether :meth:`chunks` would combine so many rows, or so much that it is time to."""
        return self._waiting >= rows or self._bytes >= _CHUNK_BYTES

    def refuse(self, malformed: Mapping[str, Sequence[str | int | bytes | None]]) -> None:
        """Put inset aside that is not a row; columns are file, line, text and problem."""
        self.notes.refuse(len(malformed["problem"]))
        self.late.append(malformed_rows(self._stage.layout, malformed, self._moment.watermark_us))

    def chunks(self) -> list[pa.Table]:
        """Return the rows that wait, combined: a table, or several where they are too much for one; none if there are none."""
        rows, size, self._rows, self._waiting, self._bytes = self._rows, self._bytes, [], 0, 0
        turns, self._turns = self._turns, []
        if rows and size < _CHUNK_BYTES:
            return [*turns, self._stage.operator.combine(pa.concat_tables(rows))]
        parts = portions(np.array([table.nbytes for table in rows], np.int64), _CHUNK_BYTES)
        return turns + [self._stage.operator.combine(pa.concat_tables(rows[low:high])) for low, high in parts]

    def packed(self) -> StageInput:
        """Return all rows that wait, for a stage that has one bucket."""
        return StageInput(self.chunks(), self.late, (self.notes,))


def split(chunk: pa.Table, keys: Sequence[str], bucket_ids: Sequence[int]) -> list[tuple[int, pa.Table]]:
    """Return the rows of a chunk by bucket; rows keep their order."""
    if len(bucket_ids) == 1 or not keys:
        return [(bucket_ids[0], chunk)]
    bucket_of_row = buckets([chunk[k] for k in keys], chunk.num_rows, len(bucket_ids))
    return [(bucket_ids[i], part.combine_chunks()) for i, part in by_number(chunk, bucket_of_row)]


PREPARE: Final = "prepare"


def located(problem: BaseException, operator: str, step: str, batch: int | None = None) -> KrishivError:
    """Return an error of ours that says where `problem` was met."""
    where = f"operator {operator}, {step}" + ("" if batch is None else f", batch {batch}")
    said = str(problem) if isinstance(problem, KrishivError) else failure_text(problem)
    return own_type(type(problem))(f"{where}: {said}")


@attrs.frozen
class AtStep:
    """Lets an error of ours from the body of a ``with`` name where it was met; others pass as they are."""

    operator: str
    step: str
    batch: int

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        """Name the place."""
        if isinstance(problem, KrishivError):
            raise located(problem, self.operator, self.step, self.batch) from problem
