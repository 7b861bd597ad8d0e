"""Define what stages would give if the input ended now, while their state stays as it is (SEMANTICS §10)."""

from __future__ import annotations

import copy

import attrs
import pyarrow as pa

from krishiv_py.engine.loop import NO_ROWS
from krishiv_py.engine.stage import Packed, StageOperator
from krishiv_py.kernels.columns.layout import Layout, whole
from krishiv_py.kernels.columns.times import stamp
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results import WindowOperator
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket, ChunkStore
from krishiv_py.kernels.wrappers.results import AroundOperator, ProjectedOperator
from krishiv_py.plan.durations import END_OF_TIME


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
    return _wrapped(around, early_results(Layout(_plain(stage.spec)), inner.state(bucket), moment.watermark_us))


def as_if_ended(stage: StageOperator, bucket: Bucket, late_moment: Moment, packed: Packed = NO_ROWS) -> pa.Table:
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
    overlay = Bucket(Overlay(bucket.store), copy.deepcopy(bucket.meta), bucket.now_ms, bucket.pages)
    ended = Moment(END_OF_TIME, late_moment.now_us, calls_triggers=False)
    steps = (
        [(list(packed.chunks), attrs.evolve(late_moment, calls_triggers=False)), ([], ended)]
        if packed.chunks
        else [([], ended)]
    )
    given = pa.concat_tables([inner.step(overlay, chunks, moment).results for chunks, moment in steps])
    return _wrapped(around, _marked(stage, given))


def _plain(spec: OperatorSpec) -> OperatorSpec:
    """Without what is done to results."""
    return attrs.evolve(spec, output=None, after=(), followed=False)


def _peeled(operator: WindowOperator) -> tuple[WindowOperator, list[ProjectedOperator | AroundOperator]]:
    """Return an operator without what is done to its results, and that, the outermost first."""
    around: list[ProjectedOperator | AroundOperator] = []
    while isinstance(operator, (ProjectedOperator, AroundOperator)):
        around.append(operator)
        operator = operator.inner
    return operator, around


def _wrapped(around: list[ProjectedOperator | AroundOperator], results: pa.Table) -> pa.Table:
    for one in reversed(around):
        if isinstance(one, ProjectedOperator):
            results = one.project(results)
        else:
            results = one.changed(results) if results.num_rows else one.schema.empty_table()
    return results


def _marked(stage: StageOperator, results: pa.Table) -> pa.Table:
    """Results with the timing ``early`` and no index, where they tell it."""
    if not stage.spec.options.pane:
        return results
    n, names = results.num_rows, results.schema.names
    pane = {"pane_timing": pa.repeat(pa.scalar("early"), n), "pane_index": pa.nulls(n, pa.int64())}
    return pa.Table.from_arrays([pane.get(name, results[name]) for name in names], schema=results.schema)
