"""Fixed windows with a time to live: dropped windows are remembered, without their content, until they are over.

So later rows do not make a result of the rest of a window (SEMANTICS §6.1).
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from krishiv_py.kernels.arrays.grouping import among
from krishiv_py.kernels.arrays.sorting import sorted_unique, stable_order
from krishiv_py.kernels.arrays.types import Ints
from krishiv_py.kernels.input.lateness import floor_watermark
from krishiv_py.kernels.results.contract import WindowOperator
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.runs import Runs
from krishiv_py.kernels.state.store import ChunkStore, Meta
from krishiv_py.kernels.state.window_log import WINDOW
from krishiv_py.kernels.wrappers.ttl import Expiring
from krishiv_py.plan.windows.fixed import HoppingWindow

_GRAVE = "grave"


class WindowDropping(WindowOperator, Protocol):
    """An operator of fixed windows that can forget keys."""

    def drop_windows(self, store: ChunkStore, meta: Meta, dead: pa.Table, watermark_us: int) -> pa.Table:
        """Remove these keys from state; returns window start (``w``, µs) and key of every window that will not be written."""
        ...


class ExpiringFixed(Expiring):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec, inner: WindowDropping) -> None:
        super().__init__(spec, inner)
        assert isinstance(spec.window, HoppingWindow)
        self._windows = inner
        self.size_us = spec.window.size_us
        self.lateness_us = spec.options.allowed_lateness_us
        self.unit_us = spec.tick_us

    def state(self, store: ChunkStore, meta: Meta) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`; a window that lost rows will not be written."""
        found = self.inner.state(store, meta)
        graves = Runs(store, meta, _GRAVE, None)
        return self._without(graves, found) if graves.names() and found.num_rows else found

    def _standing(self, store: ChunkStore, meta: Meta, results: pa.Table, watermark_us: int) -> pa.Table:
        """Results of windows that lost no row; what is over is forgotten."""
        graves = Runs(store, meta, _GRAVE, None)
        if not graves.names():
            return results
        kept = self._without(graves, results) if results.num_rows else results
        horizon = floor_watermark(watermark_us, self.lateness_us)
        for window in graves.names():
            if window + self.size_us <= horizon:
                graves.drop(window)
        return kept

    def _without(self, graves: Runs, results: pa.Table) -> pa.Table:
        bounds = results["window_start"].cast(pa.int64()).combine_chunks().to_numpy() * self.unit_us
        names = [WINDOW, *self.layout.key_names]
        keys = [results[k] for k in self.layout.spec.keys]
        rows = pa.Table.from_arrays([pa.array(bounds), *keys], names=names)
        dead = [t for w in sorted_unique(bounds).tolist() if w in graves for t in graves.load(w)]
        return results.filter(pa.array(~among(rows, pa.concat_tables(dead), names))) if dead else results

    def _drop(self, store: ChunkStore, meta: Meta, dead: pa.Table, watermark_us: int) -> int:
        graves = Runs(store, meta, _GRAVE, None)
        gone = self._windows.drop_windows(store, meta, dead, watermark_us)
        windows = gone[WINDOW].to_numpy()
        order: Ints = stable_order(windows)
        bounds = np.flatnonzero(np.diff(windows[order])) + 1
        for part in np.split(order, bounds) if len(order) else ():
            graves.append(int(windows[part[0]]), gone.take(pa.array(part)))
        count: int = gone.num_rows
        return count
