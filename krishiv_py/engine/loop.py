"""The micro-batch loop: a batch, the batch without rows after it, and stages that follow in the same one (SEMANTICS §7.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.picking import pick
from krishiv_py.engine.stage import BatchDone, Packed, StageOperator
from krishiv_py.kernels.columns.evaluate import prefixed
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket

NO_ROWS: Final = Packed()


def micro_batch(
    stage: StageOperator, bucket: Bucket, packed: Packed, moment: Moment, following: Callable[[], Moment], *, waits: bool
) -> Iterator[BatchDone]:
    """Run a micro-batch of one bucket, and the batch without rows that may follow it (SEMANTICS §2.3).

    Parameters
    ----------
    stage : StageOperator
        What runs.
    bucket : Bucket
        Its state, changed in place.
    packed : Packed
        The rows of the batch.
    moment : Moment
        What is in force in it.
    following : callable
        What is in force after it; asked when it is done.
    waits : bool
        Whether the query waits for input after it, or the input has ended. Only then does a batch without rows follow, and
        only if the watermark has moved. Spark itself follows the same rule in a streaming query.
    """
    yield stage.step(bucket, packed, moment)
    then = following()
    if waits and then.watermark_us > moment.watermark_us:
        yield stage.step(bucket, NO_ROWS, then)


def in_order(rows: pa.Table, arrives_by: Sequence[str]) -> pa.Table:
    """Return the `rows` by end, start and key, nulls first; equal ones stay as they came."""
    if rows.num_rows < 2 or not arrives_by:
        return rows
    names = rows.column_names
    keys: list[tuple[str, str]] = []
    for name in arrives_by:
        if rows[name].null_count:  # false sorts before true
            rows = rows.append_column(f"{name}_valid", pc.is_valid(rows[name]))
            keys.append((f"{name}_valid", "ascending"))
        keys.append((name, "ascending"))
    return pick(rows, pc.sort_indices(rows, sort_keys=keys)).select(names)


def stepping(spec: OperatorSpec) -> OperatorSpec:
    """Return a specification whose stateless steps were run before the shuffle."""
    return attrs.evolve(spec, prefix=())


def as_rows(spec: OperatorSpec, results: pa.Table) -> pa.Table:
    """Return the results of a stage as rows of the one of `spec`, after its stateless steps."""
    return prefixed(spec.prefix, results.select(list(spec.needs_columns)))


def packed_results(stage: StageOperator, given: Sequence[pa.Table], late_moment: Moment, read: Packed = NO_ROWS) -> Packed:
    """Return what :func:`as_rows` gave, as of when the stages before fired last, so that none is late.

    `read` are rows of a source next to them, which are checked for lateness already; they come after.
    """
    if not given:
        return and_read(NO_ROWS, read)
    packing = stage.pack(late_moment, results=True)
    for batch in in_order(pa.concat_tables(given), stage.spec.arrives_by).combine_chunks().to_batches():
        packing.take(batch)
    return and_read(packing.packed(), read)


def and_read(results: Packed, read: Packed) -> Packed:
    """Return `results` of the stages before, and after them the rows that were `read` from a source."""
    chunks = (*results.chunks, *read.chunks)
    return Packed(chunks, (*results.late, *read.late), (*results.notes, *read.notes), of_source=len(read.chunks))


def follow(stage: StageOperator, bucket: Bucket, packed: Packed, late_moment: Moment, moment: Moment) -> Iterator[BatchDone]:
    """Fold results of the stages before in, then fire.

    Parameters
    ----------
    stage : StageOperator
        What runs.
    bucket : Bucket
        Its state, changed in place.
    packed : Packed
        The results of the stages before, and rows of a source next to them.
    late_moment, moment : Moment
        What was in force in this stage when those before fired last, and what is in force now.
    """
    options = stage.spec.options
    if not packed.of_source or options.late_rule != "window" or options.late_by_batch_before:
        yield from micro_batch(stage, bucket, packed, late_moment, lambda: moment, waits=True)
        return
    # Rows of a source were checked by `moment`: they enter no window that has ended by then, on time for another or not.
    results = len(packed.chunks) - packed.of_source
    yield stage.step(bucket, attrs.evolve(packed, chunks=packed.chunks[:results]), late_moment)
    yield stage.step(bucket, Packed(packed.chunks[results:]), moment)
