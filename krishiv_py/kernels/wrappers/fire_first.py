"""Fires windows that are over before a batch is added (SEMANTICS §4.2, rule "window").

Under this rule a row may be late for one of its windows and on time for another, or late for a session unless that has ended
without it. A query that waits for input has already run an empty batch, which fired the windows that were over. A query whose
input never pauses has not run it. This wrapper runs the missing empty step first, so both queries give the same results.
"""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results import StepResult, WindowOperator
from krishiv_py.kernels.state.store import Bucket, Section
from krishiv_py.plan.durations import UNSET


@attrs.define
class _Stepped(Section):
    """The watermark of the last step."""

    stepped_at: int = UNSET


class PunctualOperator:
    """See the module's docstring."""

    def __init__(self, inner: WindowOperator) -> None:
        self.inner = inner

    def combine(self, rows: pa.Table) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return self.inner.combine(rows)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """One step, or two if the watermark has moved and there are rows."""
        moved = moment.watermark_us > _Stepped.of(bucket).stepped_at
        _Stepped(moment.watermark_us).store(bucket)
        first = moved and any(c.num_rows for c in chunks)
        over = self.inner.step(bucket, [], attrs.evolve(moment, calls_triggers=False)) if first else None
        done = self.inner.step(bucket, chunks, moment)
        if over is None:
            return done
        counters = dict(over.counters)
        for name, n in done.counters.items():
            counters[name] = counters.get(name, 0) + n
        results = pa.concat_tables([over.results, done.results])
        return attrs.evolve(done, results=results, firings=over.firings + done.firings, counters=counters)

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return self.inner.state(bucket)
