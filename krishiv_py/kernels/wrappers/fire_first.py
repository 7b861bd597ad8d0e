"""Windows that are over fire before a batch is taken in (SEMANTICS §4.2, rule "window").

Under this rule a row may be late for one of its windows and in time for another, or late for a session unless that has ended
without it. A query that waits for input has run a batch without rows by then, and what was over is out; one whose input never
pauses has not. So the step of that batch is made up for, and both say the same.
"""

from __future__ import annotations

from typing import Final

import attrs
import pyarrow as pa

from krishiv_py.kernels.results.contract import StepResult, WindowOperator
from krishiv_py.kernels.state.store import ChunkStore, Meta
from krishiv_py.plan.durations import UNSET

_STEPPED: Final = "stepped_at"


class PunctualOperator:
    """See the module's docstring."""

    def __init__(self, inner: WindowOperator) -> None:
        self.inner = inner

    def combine(self, rows: pa.Table) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        return self.inner.combine(rows)

    def step(
        self, store: ChunkStore, meta: Meta, chunks: list[pa.Table], watermark_us: int, now_us: int | None = None
    ) -> StepResult:
        """One step, or two if the watermark has moved and there are rows."""
        moved = watermark_us > meta.get(_STEPPED, UNSET)
        meta[_STEPPED] = watermark_us
        over = self.inner.step(store, meta, [], watermark_us, now_us) if moved and any(c.num_rows for c in chunks) else None
        found = self.inner.step(store, meta, chunks, watermark_us, now_us)
        if over is None:
            return found
        counters = dict(over.counters)
        for name, n in found.counters.items():
            counters[name] = counters.get(name, 0) + n
        results = pa.concat_tables([over.results, found.results])
        return attrs.evolve(found, results=results, firings=over.firings + found.firings, counters=counters)

    def state(self, store: ChunkStore, meta: Meta) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        return self.inner.state(store, meta)
