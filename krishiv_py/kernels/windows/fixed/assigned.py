"""Windows of a user's assigner (SEMANTICS §3.9), run by the operators of fixed windows.

A window is known by both bounds, for several may start, or end, at one time. Inside, the start is one more key column, and the
end is the place of a tumbling window of one tick::

    user    window [start, end)          inside: key (user, start), window [end - tick, end)

So all windows that end at one time are one slice, which is read when that time comes, and triggers, lateness and emission
are those of fixed windows.
"""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.arrays.grouping import among, distinct, group
from krishiv_py.arrays.picking import pick
from krishiv_py.kernels.columns.layout import WINDOW_END, WINDOW_START, Layout
from krishiv_py.kernels.columns.place import START
from krishiv_py.kernels.columns.times import unstamp
from krishiv_py.kernels.firing.custom_trigger import custom_trigger_of
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results import StateTables, StepResult
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.chunk_tiers import Runs
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import WINDOW
from krishiv_py.kernels.windows.fixed.plain import SLICE, FixedOperator
from krishiv_py.kernels.windows.fixed.triggered import TriggeredOperator
from krishiv_py.plan.windows.fixed import TumblingWindow


class AssignedOperator:
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.layout = Layout(spec)
        self.tick_us = spec.tick_us
        inside = attrs.evolve(
            spec,
            row_schema=spec.row_schema.append(pa.field(START, pa.int64())),
            operation=TumblingWindow(spec.tick_us, spec.tick_us, keys=(*spec.keys, START), aggs=spec.aggs),
            late_columns=(),
        )
        slices = FixedOperator(
            inside, counted=not spec.options.fires_once and custom_trigger_of(spec.options.trigger) is not None
        )
        triggered = None if spec.options.fires_once else TriggeredOperator(inside)
        self.within = triggered or slices
        self.slices = slices
        self.by_row = triggered is not None and triggered.by_row
        self.prefix = SLICE if triggered is None else WINDOW
        self.start_name = self.within.layout.key_names[-1]

    def combine(self, rows: pa.Table) -> pa.Table:
        """Partial aggregates by key and window; rows as they are, with their window, when single rows make windows fire."""
        names = self.layout.key_names
        places = rows[WINDOW_END].to_numpy() - self.tick_us
        if self.by_row:
            columns = {n: rows[n] for n in rows.schema.names if n not in (WINDOW_START, WINDOW_END)}
            return pa.table({**columns, self.start_name: rows[WINDOW_START], SLICE: places})
        starts = rows[WINDOW_START].to_numpy()
        groups = group([*(rows[k] for k in names), starts, places], rows.num_rows)
        first = pa.array(groups.first)
        keys = [pick(rows[k], first) for k in names]
        partials = self.layout.create(rows, groups.ids, groups.n)
        arrays = [pa.array(places[groups.first]), *keys, pa.array(starts[groups.first]), *partials]
        return pa.Table.from_arrays(arrays + self.slices.counts(rows, groups), schema=self.slices.chunk_schema)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        done = self.within.step(bucket, chunks, moment)
        return attrs.evolve(done, results=self._outside(done.results, self.layout.result_schema))

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return self._outside(self.within.state(bucket), StateTables(self.layout).schema)

    def _outside(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """Results with the start in its place, not among the keys."""
        n = len(self.layout.key_names)
        starts = unstamp(table.column(n).to_numpy(), self.layout.spec.time_kind)
        return pa.Table.from_arrays([*table.columns[:n], starts, *table.columns[n + 2 :]], schema=schema)

    def drop_windows(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> pa.Table:
        """Remove these keys from state; returns end (``w``), key and start of every window that will not be written."""
        runs, names = Runs(bucket, self.prefix, None), self.within.layout.key_names
        parts = [pa.schema(self.within.layout.key_fields).empty_table()]
        for run in runs.names():
            held = pa.concat_tables([t.select(names) for t in runs.load(run)])
            parts.append(held.filter(pa.array(among(held, dead, self.layout.key_names))))
        gone = self.within.drop_windows(bucket, distinct(pa.concat_tables(parts), names), moment)
        return gone.set_column(0, WINDOW, pa.array(gone[WINDOW].to_numpy() + self.tick_us)).rename_columns(
            [WINDOW, *self.layout.key_names, START]
        )
