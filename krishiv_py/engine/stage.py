"""One stage of a plan as it runs: pack before the shuffle, step after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import buckets
from krishiv_py.arrays.ranges import portions
from krishiv_py.arrays.ranges import split as by_number
from krishiv_py.engine.notes import FIRINGS, Notes, count
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.input.prepare import Prepare
from krishiv_py.kernels.input.rows import malformed_rows
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.registry import operator_for
from krishiv_py.kernels.results import StepResult, WindowOperator
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket

_FEW_BYTES: Final = 1 << 14
_CHUNK_BYTES: Final = 1 << 28
"""More is not combined at once: memory for it is needed several times over, and no text column may reach 2 GiB."""


@attrs.frozen(eq=False)
class Packed:
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
class BatchDone:
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


class StageOperator:
    """A stage: its stateless half and its operator. One instance serves all buckets of a task.

    The results of a stage go to the next one in the same micro-batch: see :mod:`krishiv_py.engine.loop`.
    """

    def __init__(self, spec: OperatorSpec) -> None:
        self.spec = spec
        self.prepare = Prepare(spec)
        self.operator: WindowOperator = operator_for(spec)

    @property
    def layout(self) -> Layout:
        """Its columns."""
        return self.prepare.layout

    def pack(self, moment: Moment, *, results: bool = False) -> Packing:
        """Begin to pack the rows of a micro-batch, classified by the watermark of `moment`, or `results` of a stage."""
        return Packing(self, moment, results=results)

    def step(self, bucket: Bucket, packed: Packed, moment: Moment) -> BatchDone:
        """Fold the rows of a micro-batch in and fire (SEMANTICS §2.3). Changes `bucket` in place.

        Rows that are classified by the batch before are folded in under its watermark; then windows fire (SEMANTICS §4.6).
        """
        late_moment = moment.late_moment if self.spec.options.late_by_batch_before and packed.chunks else moment
        step = self.operator.step(bucket, list(packed.chunks), late_moment)
        if late_moment is not moment:
            step = _one_after_the_other(step, self.operator.step(bucket, [], moment))
        counted = dict(packed.notes[0].counters) if packed.notes else {}
        for notes in packed.notes[1:]:
            count(counted, notes.counters)
        count(counted, {**step.counters, FIRINGS: step.firings} if step.counters else {FIRINGS: step.firings})
        late = [t for t in (*packed.late, step.late) if t is not None and t.num_rows]
        return BatchDone(step.results, late, counted, step, moment)


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


class Packing:
    """Rows of one micro-batch in one task: classified, counted, and combined when they are taken out."""

    def __init__(self, stage: StageOperator, moment: Moment, *, results: bool) -> None:
        self._stage = stage
        self._moment = moment.late_moment if stage.spec.options.late_by_batch_before and not results else moment
        self._results = results
        self.notes = Notes()
        self.late: list[pa.Table] = []
        self._rows: list[pa.Table] = []
        self._waiting, self._bytes = 0, 0

    def take(self, batch: pa.RecordBatch, partition: str = "") -> dict[str, int]:
        """Judge a batch of source rows, of one `partition` where it is known; gives its largest event times by source."""
        now = self._moment
        prepared = self._stage.prepare(batch, now.watermark_us, now.now_us, begun_us=now.begun_us, results=self._results)
        self.notes.take(prepared, partition)
        if prepared.late.num_rows:
            self.late.append(prepared.late)
        if prepared.rows.num_rows:
            self._rows.append(prepared.rows)
            self._waiting += prepared.rows.num_rows
            self._bytes += self._size(prepared.rows)
        return prepared.maxima

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
        if rows and size < _CHUNK_BYTES:
            return [self._stage.operator.combine(pa.concat_tables(rows))]
        parts = portions(np.array([table.nbytes for table in rows], np.int64), _CHUNK_BYTES)
        return [self._stage.operator.combine(pa.concat_tables(rows[low:high])) for low, high in parts]

    def packed(self) -> Packed:
        """Return all of it, for a stage that has one bucket."""
        return Packed(self.chunks(), self.late, (self.notes,))


def split(chunk: pa.Table, keys: Sequence[str], bucket_ids: Sequence[int]) -> list[tuple[int, pa.Table]]:
    """Return the rows of a chunk by bucket; rows keep their order."""
    if len(bucket_ids) == 1 or not keys:
        return [(bucket_ids[0], chunk)]
    bucket_of_row = buckets([chunk[k] for k in keys], chunk.num_rows, len(bucket_ids))
    return [(bucket_ids[i], part.combine_chunks()) for i, part in by_number(chunk, bucket_of_row)]
