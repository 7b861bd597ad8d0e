"""State of keys untouched for a time is dropped and counted, never emitted as if complete (SEMANTICS §6.1).

The clock is the watermark, or processing time. A key is touched at what the clock shows in the batch that brings a row of it
to its bucket, or, by event time, at the event time of that row if it is ahead of the watermark; once the clock shows the time
to live more, its state is dropped. What is due in that step fires first. Fixed windows are remembered until they are over
(:mod:`~krishiv_py.kernels.wrappers.ttl_fixed`); of any other window, whose bounds follow from its rows, nothing is: later rows
of the key begin anew, as if it had never been seen. So a look-back or distinct-set window that reaches back beyond the drop
has the rows that came after it; where the time to live is longer than the window and the allowed lateness, by event time there
is none.

Keys are looked through sixteen times per time to live, so a touch is read about seventeen times, however many windows are
open, and state is read only where a key expired.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.kernels.arrays.grouping import group
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.results.contract import StepResult, WindowOperator
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.runs import Runs
from krishiv_py.kernels.state.store import ChunkStore, Meta
from krishiv_py.plan.durations import END_OF_TIME, UNSET

_STAMP, _LAST = "__at", "__last"
_OLDEST, _CHECKED = "ttl_oldest", "ttl_checked"
_ALL = 0
_CHECKS = 16


@runtime_checkable
class KeyDropping(WindowOperator, Protocol):
    """An operator that can forget keys."""

    def drop_keys(self, store: ChunkStore, meta: Meta, dead: pa.Table, watermark_us: int) -> int:
        """Remove these keys (columns named as in the layout) from state.

        Called after the step under the same watermark. Returns how many windows (of look-back windows: rows) will not have
        their result.
        """
        ...


class Expiring:
    """An operator whose keys have a time to live; how keys are dropped is up to the subclass."""

    def __init__(self, spec: OperatorSpec, inner: WindowOperator) -> None:
        assert spec.options.ttl is not None
        self.inner = inner
        self.layout = Layout(spec)
        self.ttl_us = spec.options.ttl.ttl_us
        self.by_event = spec.options.ttl.clock == "event"
        self.grain_us = max(self.ttl_us // _CHECKS, 1)

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
        """The step of the operator, then the keys whose time has come."""
        found = self.inner.step(store, meta, [c.drop_columns([_LAST]) for c in chunks], watermark_us, now_us)
        results = self._standing(store, meta, found.results, watermark_us)
        clock = watermark_us if self.by_event else now_us
        touched = Runs(store, meta, "touch", self._latest)
        if chunks and any(c.num_rows for c in chunks):
            self._touch(touched, meta, pa.concat_tables(chunks), UNSET if clock is None else clock)
        dropped = 0
        if clock is not None and clock not in (UNSET, END_OF_TIME) and _ALL in touched and self._due(meta, clock):
            dropped = self._expire(store, meta, touched, clock, watermark_us)
        wakeup = self._next_check(meta, clock) if _ALL in touched else None
        return attrs.evolve(
            found,
            results=results,
            firings=results.num_rows,
            counters={**found.counters, "ttl_dropped": dropped},
            wakeup_us=_earlier(found.wakeup_us, wakeup if self.by_event else None),
            wakeup_now_us=_earlier(found.wakeup_now_us, None if self.by_event else wakeup),
        )

    def state(self, store: ChunkStore, meta: Meta) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        return self.inner.state(store, meta)

    def _standing(self, store: ChunkStore, meta: Meta, results: pa.Table, watermark_us: int) -> pa.Table:
        """Results that may be written."""
        return results

    def _drop(self, store: ChunkStore, meta: Meta, dead: pa.Table, watermark_us: int) -> int:
        """Drop keys; returns how many windows went."""
        raise NotImplementedError

    def _touch(self, touched: Runs, meta: Meta, fresh: pa.Table, clock: int) -> None:
        last = fresh[_LAST].to_numpy()
        stamps = np.maximum(last, clock) if self.by_event else np.full(len(last), clock)
        keys = [fresh[k] for k in self.layout.key_names]
        touches = pa.Table.from_arrays([pa.array(stamps), *keys], names=[_STAMP, *self.layout.key_names])
        touched.append(_ALL, self._latest(touches))
        meta[_OLDEST] = min(meta.get(_OLDEST, END_OF_TIME), int(stamps.min()))

    def _latest(self, touches: pa.Table) -> pa.Table:
        """The latest touch of every key."""
        groups = group([touches[k] for k in self.layout.key_names], touches.num_rows)
        latest = np.full(groups.n, UNSET)
        np.maximum.at(latest, groups.ids, touches[_STAMP].to_numpy())
        keys = [touches[k].take(pa.array(groups.first)) for k in self.layout.key_names]
        return pa.Table.from_arrays([pa.array(latest), *keys], names=[_STAMP, *self.layout.key_names])

    def _due(self, meta: Meta, clock: int) -> bool:
        last: int | None = meta.get(_CHECKED)
        if last is not None and clock // self.grain_us <= last // self.grain_us:
            return False
        meta[_CHECKED] = clock
        return True

    def _next_check(self, meta: Meta, clock: int | None) -> int | None:
        """What the clock will show when the oldest touch is to be looked at."""
        oldest = int(meta[_OLDEST])
        if clock is None or clock == END_OF_TIME or oldest == UNSET:
            return None
        expires = oldest + self.ttl_us
        return expires if clock == UNSET else max((clock // self.grain_us + 1) * self.grain_us, expires)

    def _expire(self, store: ChunkStore, meta: Meta, touched: Runs, clock: int, watermark_us: int) -> int:
        """Drop what is due; returns how many windows went."""
        known = self._latest(pa.concat_tables(touched.load(_ALL)))
        stamps = known[_STAMP].to_numpy()
        stamps = np.where(stamps == UNSET, clock, stamps)  # touched before the clock ran: it starts now
        known = known.set_column(0, _STAMP, pa.array(stamps))
        gone = stamps <= clock - self.ttl_us
        rest = known.filter(pa.array(~gone))
        touched.replace(_ALL, rest)
        meta[_OLDEST] = int(stamps[~gone].min()) if rest.num_rows else END_OF_TIME
        return self._drop(store, meta, known.filter(pa.array(gone)), watermark_us) if gone.any() else 0


class ExpiringOperator(Expiring):
    """Windows of which nothing is kept once they are dropped."""

    def __init__(self, spec: OperatorSpec, inner: KeyDropping) -> None:
        super().__init__(spec, inner)
        self._keys = inner

    def _drop(self, store: ChunkStore, meta: Meta, dead: pa.Table, watermark_us: int) -> int:
        return self._keys.drop_keys(store, meta, dead, watermark_us)


def _earlier(left: int | None, right: int | None) -> int | None:
    return right if left is None else left if right is None else min(left, right)
