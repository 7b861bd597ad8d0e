"""State of keys untouched for a time is dropped and counted, never emitted as if complete (SEMANTICS §6.1).

The clock is the watermark, or processing time. A key is touched at what the clock shows in the batch that brings a row of it,
or at the event time of that row if it is ahead of the watermark; once the clock shows the time to live more, its open windows
are dropped. They are remembered until they are over, without
their content, so that later rows do not make a result of the rest. Keys are looked through sixteen times per time to live,
so a touch is read about seventeen times, however many windows are open, and state is read only where a key expired.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.kernels.grouping import Ints, among, group
from krishiv_py.kernels.judge import floor_watermark
from krishiv_py.kernels.layout import TIME, Layout
from krishiv_py.kernels.operator import StepResult, WindowOperator
from krishiv_py.kernels.pairlog import WINDOW
from krishiv_py.kernels.runs import Runs
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state import ChunkStore, Meta
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.windows.fixed import HoppingWindow

_STAMP, _LAST = "__at", "__last"
_ALL = 0
_CHECKS = 16


class KeyDropping(WindowOperator, Protocol):
    """An operator that can forget keys."""

    def drop_keys(self, store: ChunkStore, meta: Meta, dead: pa.Table, watermark_us: int) -> pa.Table:
        """Remove these keys from state; returns window start (``w``, µs) and key of every window that will not be written."""
        ...


class ExpiringOperator:
    """An operator whose keys have a time to live."""

    def __init__(self, spec: OperatorSpec, inner: KeyDropping) -> None:
        assert spec.options.ttl is not None and isinstance(spec.window, HoppingWindow)
        self.inner = inner
        self.layout = Layout(spec)
        self.ttl_us = spec.options.ttl.ttl_us
        self.by_event = spec.options.ttl.clock == "event"
        self.grain_us = max(self.ttl_us // _CHECKS, 1)
        self.size_us = spec.window.size_us
        self.lateness_us = spec.options.allowed_lateness_us
        self.unit_us = spec.tick_us

    def combine(self, rows: pa.Table) -> pa.Table:
        """What the operator makes of the rows, and the latest event time of every key."""
        combined = self.inner.combine(rows)
        n = rows.num_rows
        keys = [pa.chunked_array([*rows[k].chunks, *combined[k].chunks], rows[k].type) for k in self.layout.key_names]
        groups = group(list(keys), n + combined.num_rows)
        latest = np.full(groups.n, UNSET)
        np.maximum.at(latest, groups.ids[:n], rows[TIME].to_numpy())
        return combined.append_column(_LAST, pa.array(latest[groups.ids[n:]]))

    def step(
        self, store: ChunkStore, meta: Meta, chunks: list[pa.Table], watermark_us: int, now_us: int | None = None
    ) -> StepResult:
        """The step of the operator, without dropped windows, then the keys whose time has come."""
        found = self.inner.step(store, meta, [c.drop_columns([_LAST]) for c in chunks], watermark_us, now_us)
        graves = Runs(store, meta, "grave", None)
        results = self._without(graves, found.results)
        clock = watermark_us if self.by_event else now_us
        touched = Runs(store, meta, "touch", self._latest)
        if chunks and any(c.num_rows for c in chunks):
            self._touch(touched, pa.concat_tables(chunks), UNSET if clock is None else clock)
        dropped = 0
        if clock is not None and clock not in (UNSET, END_OF_TIME) and _ALL in touched and self._due(meta, clock):
            dropped = self._expire(store, meta, touched, graves, clock, watermark_us)
        horizon = floor_watermark(watermark_us, self.lateness_us)
        for window in graves.names():
            if window + self.size_us <= horizon:
                graves.drop(window)
        wakeup = self._next_check(meta, clock) if _ALL in touched else None
        return attrs.evolve(
            found, results=results, firings=results.num_rows, counters={**found.counters, "ttl_dropped": dropped},
            wakeup_us=_earlier(found.wakeup_us, wakeup if self.by_event else None),
            wakeup_now_us=_earlier(found.wakeup_now_us, None if self.by_event else wakeup),
        )  # fmt: skip

    def _without(self, graves: Runs, results: pa.Table) -> pa.Table:
        """Results of windows that lost no row."""
        if not graves.names() or not results.num_rows:
            return results
        bounds = results["window_start"].cast(pa.int64()).combine_chunks().to_numpy() * self.unit_us
        names = [WINDOW, *self.layout.key_names]
        keys = [results[k] for k in self.layout.spec.keys]
        rows = pa.Table.from_arrays([pa.array(bounds), *keys], names=names)
        dead = [t for w in np.unique(bounds).tolist() if w in graves for t in graves.load(w)]
        return results.filter(pa.array(~among(rows, pa.concat_tables(dead), names))) if dead else results

    def _touch(self, touched: Runs, fresh: pa.Table, clock: int) -> None:
        last = fresh[_LAST].to_numpy()
        stamps = np.maximum(last, clock) if self.by_event else np.full(len(last), clock)
        keys = [fresh[k] for k in self.layout.key_names]
        touches = pa.Table.from_arrays([pa.array(stamps), *keys], names=[_STAMP, *self.layout.key_names])
        touched.append(_ALL, self._latest(touches))

    def _latest(self, touches: pa.Table) -> pa.Table:
        """The latest touch of every key."""
        groups = group([touches[k] for k in self.layout.key_names], touches.num_rows)
        latest = np.full(groups.n, UNSET)
        np.maximum.at(latest, groups.ids, touches[_STAMP].to_numpy())
        keys = [touches[k].take(pa.array(groups.first)) for k in self.layout.key_names]
        return pa.Table.from_arrays([pa.array(latest), *keys], names=[_STAMP, *self.layout.key_names])

    def _due(self, meta: Meta, clock: int) -> bool:
        last: int | None = meta.get("ttl_checked")
        if last is not None and clock // self.grain_us <= last // self.grain_us:
            return False
        meta["ttl_checked"] = clock
        return True

    def _next_check(self, meta: Meta, clock: int | None) -> int | None:
        """What the clock will show when the oldest touch is to be looked at."""
        if clock is None or clock in (UNSET, END_OF_TIME):
            return None
        boundary = (clock // self.grain_us + 1) * self.grain_us
        return max(boundary, int(meta.get("ttl_oldest", clock)) + self.ttl_us)

    def _expire(self, store: ChunkStore, meta: Meta, touched: Runs, graves: Runs, clock: int, watermark_us: int) -> int:
        """Drop what is due; returns how many windows went."""
        known = self._latest(pa.concat_tables(touched.load(_ALL)))
        stamps = known[_STAMP].to_numpy()
        stamps = np.where(stamps == UNSET, clock, stamps)  # touched before the clock ran: it starts now
        known = known.set_column(0, _STAMP, pa.array(stamps))
        gone = stamps <= clock - self.ttl_us
        rest = known.filter(pa.array(~gone))
        touched.replace(_ALL, rest)
        meta["ttl_oldest"] = int(stamps[~gone].min()) if rest.num_rows else clock
        if not gone.any():
            return 0
        dead = self.inner.drop_keys(store, meta, known.filter(pa.array(gone)), watermark_us)
        windows = dead[WINDOW].to_numpy()
        order: Ints = np.argsort(windows, kind="stable")
        bounds = np.flatnonzero(np.diff(windows[order])) + 1
        for part in np.split(order, bounds) if len(order) else ():
            graves.append(int(windows[part[0]]), dead.take(pa.array(part)))
        count: int = dead.num_rows
        return count


def _earlier(left: int | None, right: int | None) -> int | None:
    return right if left is None else left if right is None else min(left, right)
