"""The micro-batch loop: a batch, the one without rows after it, and stages that follow (SEMANTICS §7.3, §10)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import pick
from krishiv_py.engine.stage import StageInput, StageOperator, StageOutput
from krishiv_py.kernels.columns.layout import Layout, whole
from krishiv_py.kernels.columns.steps import prefixed
from krishiv_py.kernels.columns.times import stamp
from krishiv_py.kernels.results import WindowOperator
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket, ChunkStore
from krishiv_py.kernels.wrappers import AroundOperator
from krishiv_py.plan.durations import END_OF_TIME

NO_ROWS: Final = StageInput()


def micro_batch(
    stage: StageOperator, bucket: Bucket, packed: StageInput, moment: Moment, following: Callable[[], Moment], *, waits: bool
) -> Iterator[StageOutput]:
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
    if len(arrives_by) == 1 and pa.types.is_signed_integer((only := rows[arrives_by[0]]).type) and not only.null_count:
        values = only.to_numpy().astype(np.int64, copy=False)
        return rows if (values[1:] >= values[:-1]).all() else pick(rows, stable_order(values))
    if all(pa.types.is_int64(rows[name].type) and not rows[name].null_count for name in arrives_by):
        order = np.lexsort([rows[name].to_numpy() for name in reversed(arrives_by)])
        return rows if (order[1:] > order[:-1]).all() else pick(rows, order)
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


def packed_results(
    stage: StageOperator, given: Sequence[pa.Table], late_moment: Moment, read: StageInput = NO_ROWS
) -> StageInput:
    """Return what :func:`as_rows` gave, as of when the stages before fired last, so that none is late.

    `read` are rows of a source next to them, which are checked for lateness already; they come after.
    """
    if not given:
        return and_read(NO_ROWS, read)
    packing = stage.pack(late_moment, results=True)
    for batch in in_order(pa.concat_tables(given), stage.spec.arrives_by).combine_chunks().to_batches():
        packing.take(batch)
    return and_read(packing.packed(), read)


def and_read(results: StageInput, read: StageInput) -> StageInput:
    """Return `results` of the stages before, and after them the rows that were `read` from a source."""
    chunks = (*results.chunks, *read.chunks)
    return StageInput(chunks, (*results.late, *read.late), (*results.notes, *read.notes), of_source=len(read.chunks))


def follow(
    stage: StageOperator, bucket: Bucket, packed: StageInput, late_moment: Moment, moment: Moment
) -> Iterator[StageOutput]:
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
    yield stage.step(bucket, StageInput(packed.chunks[results:]), moment)


def early_results(layout: Layout, opened: pa.Table, watermark_us: int) -> pa.Table:
    """Results of the windows of a state table that have not fired.

    Parameters
    ----------
    layout : Layout
        Of an operator that gives results under their own names.
    opened : pyarrow.Table
        What its ``state`` gives.
    watermark_us : int
        The watermark in force. With updates, a window it has passed has its result already.
    """
    spec, schema = layout.spec, layout.result_schema
    fires_often = spec.options.emit_mode != "final" and spec.options.trigger.on_time and not spec.operation.extent.numbered
    if fires_often and opened.num_rows:
        ends = stamp(whole(opened.column(len(spec.keys) + 1)), spec.time_kind).times
        opened = opened.filter(pa.array(ends >= watermark_us if spec.operation.extent.inclusive else ends > watermark_us))
    n = opened.num_rows
    arrays = list(opened.columns[:-1])
    if spec.options.pane:
        arrays += [pa.repeat(pa.scalar("early"), n), pa.nulls(n, pa.int64())]
    return pa.Table.from_arrays(arrays, schema=schema)


@attrs.define(eq=False)
class Overlay:
    """A store over another one, which is read and never written."""

    below: ChunkStore
    own: dict[str, pa.Table] = attrs.field(factory=dict)

    def get(self, name: str) -> pa.Table:
        """See :class:`~krishiv_py.kernels.state.store.ChunkStore`."""
        return self.own[name] if name in self.own else self.below.get(name)

    def put(self, name: str, table: pa.Table) -> None:
        """See :class:`~krishiv_py.kernels.state.store.ChunkStore`."""
        self.own[name] = table

    def delete(self, name: str) -> None:
        """See :class:`~krishiv_py.kernels.state.store.ChunkStore`: the index of its owner knows the name no more."""
        self.own.pop(name, None)


def early(stage: StageOperator, bucket: Bucket, moment: Moment) -> pa.Table:
    """Return what is open in the bucket of an only stage, as early results."""
    if stage.spec.operation.nature.joins:  # its state is rows, and what they give is known only when they meet
        return as_if_ended(stage, bucket, moment)
    inner, around = _peeled(stage.operator)
    return _wrapped(around, early_results(Layout(stage.spec.plain), inner.state(bucket), moment.watermark_us))


def as_if_ended(stage: StageOperator, bucket: Bucket, late_moment: Moment, packed: StageInput = NO_ROWS) -> pa.Table:
    """Return what a stage would give if the input ended now, as early results.

    What the stages before it give is taken in by what is in force, as at the end of the input: windows that are over then are
    open for it.

    Parameters
    ----------
    stage : StageOperator
        One of several.
    bucket : Bucket
        Its state, which stays as it is.
    late_moment : Moment
        What is in force in this stage.
    packed : Packed
        What the stages before it would give, classified by that.
    """
    inner, around = _peeled(stage.operator)
    overlay = Bucket(Overlay(bucket.store), copy.deepcopy(bucket.meta), bucket.now_ms, bucket.pages, bucket.share)
    ended = Moment(END_OF_TIME, late_moment.now_us, calls_triggers=False)
    steps = (
        [(list(packed.chunks), attrs.evolve(late_moment, calls_triggers=False)), ([], ended)]
        if packed.chunks
        else [([], ended)]
    )
    given = pa.concat_tables([inner.step(overlay, chunks, moment).results for chunks, moment in steps])
    return _wrapped(around, _marked(stage, given))


def _peeled(operator: WindowOperator) -> tuple[WindowOperator, list[AroundOperator]]:
    """Return an operator without what is done to its results, and that, the outermost first."""
    around: list[AroundOperator] = []
    while isinstance(operator, AroundOperator):
        around.append(operator)
        operator = operator.inner
    return operator, around


def _wrapped(around: list[AroundOperator], results: pa.Table) -> pa.Table:
    for one in reversed(around):
        results = one.given(results)
    return results


def _marked(stage: StageOperator, results: pa.Table) -> pa.Table:
    """Results with the timing ``early`` and no index, where they tell it."""
    if not stage.spec.options.pane:
        return results
    n, names = results.num_rows, results.schema.names
    pane = {"pane_timing": pa.repeat(pa.scalar("early"), n), "pane_index": pa.nulls(n, pa.int64())}
    return pa.Table.from_arrays([pane.get(name, results[name]) for name in names], schema=results.schema)
