"""Fixed windows with a time to live: dropped windows are remembered, without their content, until they are over.

So later rows do not make a result of the rest of a window (SEMANTICS §6.1).
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from krishiv_py.arrays.grouping import among
from krishiv_py.arrays.ranges import split
from krishiv_py.arrays.sorting import sorted_unique
from krishiv_py.kernels.columns.place import START
from krishiv_py.kernels.input.lateness import floor_watermark
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results import WindowOperator
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.chunk_tiers import Runs
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.state.window_log import WINDOW
from krishiv_py.kernels.wrappers.ttl import Expiring

_GRAVE = "grave"
_BOUNDS = ("window_start", "window_end")


class WindowDropping(WindowOperator, Protocol):
    """An operator of fixed windows that can forget keys."""

    def drop_windows(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> pa.Table:
        """Remove these keys from state; returns window start (``w``, µs) and key of every window that will not be written."""
        ...


class ExpiringFixed(Expiring):
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec, inner: WindowDropping, size_us: int | None = None) -> None:
        super().__init__(spec, inner)
        self._windows = inner
        self.size_us = spec.operation.extent.length_us if size_us is None else size_us
        self.lateness_us = spec.options.allowed_lateness_us
        self.unit_us = spec.tick_us

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`; a window that lost rows will not be written."""
        rows = self.inner.state(bucket)
        graves = Runs(bucket, _GRAVE, None)
        return self._without(graves, rows) if len(graves) and rows.num_rows else rows

    def _standing(self, bucket: Bucket, results: pa.Table, moment: Moment) -> pa.Table:
        """Results of windows that lost no row; what is over is forgotten."""
        graves = Runs(bucket, _GRAVE, None)
        if not len(graves):
            return results
        kept = self._without(graves, results) if results.num_rows else results
        horizon = floor_watermark(moment.watermark_us, self.lateness_us)
        for window in graves.between(None, horizon - self.size_us + 1):
            graves.drop(window)
        return kept

    def _without(self, graves: Runs, results: pa.Table) -> pa.Table:
        bounds = results["window_start"].cast(pa.int64()).combine_chunks().to_numpy() * self.unit_us
        names = [WINDOW, *self.layout.key_names]
        keys = [results[k] for k in self.layout.spec.keys]
        rows = pa.Table.from_arrays([pa.array(bounds), *keys], names=names)
        dead = [t for w in sorted_unique(bounds).tolist() if w in graves for t in graves.load(w)]
        return results.filter(pa.array(~among(rows, pa.concat_tables(dead), names))) if dead else results

    def _drop(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        graves = Runs(bucket, _GRAVE, None)
        gone = self._windows.drop_windows(bucket, dead, moment)
        for window, part in split(gone, gone[WINDOW].to_numpy()):
            graves.append(window, part)
        count: int = gone.num_rows
        return count


class ExpiringAssigned(ExpiringFixed):
    """The same for windows that are known by both bounds: they are remembered by end, next to their start and key."""

    def __init__(self, spec: OperatorSpec, inner: WindowDropping) -> None:
        super().__init__(spec, inner, 0)

    def _without(self, graves: Runs, results: pa.Table) -> pa.Table:
        starts, ends = (results[n].cast(pa.int64()).combine_chunks().to_numpy() * self.unit_us for n in _BOUNDS)
        names = [WINDOW, *self.layout.key_names, START]
        keys = [results[k] for k in self.layout.spec.keys]
        rows = pa.Table.from_arrays([pa.array(ends), *keys, pa.array(starts)], names=names)
        dead = [t for w in sorted_unique(ends).tolist() if w in graves for t in graves.load(w)]
        return results.filter(pa.array(~among(rows, pa.concat_tables(dead), names))) if dead else results
