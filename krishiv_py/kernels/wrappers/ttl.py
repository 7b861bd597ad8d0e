"""Drops and counts the state of idle keys; never emits it as if it were complete (SEMANTICS §6.1).

The clock is the watermark, or processing time. A key is touched at the time of the clock in the batch that brings one of its
rows to its bucket. With event time, this is the event time of that row if it is ahead of the watermark. When the clock has
moved on by the TTL, the state is dropped. Windows that are due in that step fire first. Dropped fixed windows are remembered
until they are over (:mod:`~krishiv_py.kernels.wrappers.ttl_fixed`). Other windows, whose bounds depend on their rows, are not
remembered: the key starts again like a new key. A look-back or distinct-set window that begins before the drop then holds only
rows that came after it. With event time this cannot happen if the TTL is longer than the window and the allowed lateness.

Expiry is checked 16 times per TTL, so a touch is read about 17 times, for any number of open windows. State is read only if a
key expired.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.picking import pick
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.results.contract import StepResult, WindowOperator
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.chunk_tiers import Runs
from krishiv_py.kernels.state.sections import Section
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.plan.durations import END_OF_TIME, UNSET

_STAMP, _LAST = "__at", "__last"
_ALL = 0
_CHECKS = 16


@attrs.define
class _Clock(Section):
    """The oldest touch of a key, and when keys were looked at: what the clock of the time to live showed, µs."""

    ttl_oldest: int = END_OF_TIME
    ttl_checked: int | None = None


@runtime_checkable
class KeyDropping(WindowOperator, Protocol):
    """An operator that can forget keys."""

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
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

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """The step of the operator, then the keys whose time has come."""
        found = self.inner.step(bucket, [c.drop_columns([_LAST]) for c in chunks], moment)
        results = self._standing(bucket, found.results, moment)
        clock = moment.watermark_us if self.by_event else moment.now_us
        touched, noted = Runs(bucket, "touch", self._latest), _Clock.of(bucket)
        if chunks and any(c.num_rows for c in chunks):
            fresh = pa.concat_tables([c.select([_LAST, *self.layout.key_names]) for c in chunks])
            self._touch(touched, noted, fresh, UNSET if clock is None else clock)
        dropped, held = 0, touched.total_rows()
        if clock is not None and clock not in (UNSET, END_OF_TIME) and _ALL in touched and self._due(noted, clock):
            dropped = self._expire(bucket, touched, noted, clock, moment)
        sizes = found
        if touched.total_rows() < held:  # what is held now, and when it is due: a step without rows fires nothing more
            sizes = self.inner.step(bucket, [], attrs.evolve(moment, asks=False))
        wakeup = self._next_check(noted, clock) if _ALL in touched else None
        noted.store(bucket)
        return attrs.evolve(
            found,
            results=results,
            firings=results.num_rows,
            counters={**found.counters, "ttl_dropped": dropped},
            open_windows=sizes.open_windows,
            open_rows=sizes.open_rows,
            wakeup_us=_earlier(sizes.wakeup_us, wakeup if self.by_event else None),
            wakeup_now_us=_earlier(sizes.wakeup_now_us, None if self.by_event else wakeup),
        )

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        return self.inner.state(bucket)

    def _standing(self, bucket: Bucket, results: pa.Table, moment: Moment) -> pa.Table:
        """Results that may be written."""
        return results

    def _drop(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """Drop keys; returns how many windows went."""
        raise NotImplementedError

    def _touch(self, touched: Runs, noted: _Clock, fresh: pa.Table, clock: int) -> None:
        last = fresh[_LAST].to_numpy()
        stamps = np.maximum(last, clock) if self.by_event else np.full(len(last), clock)
        keys = [fresh[k] for k in self.layout.key_names]
        touches = pa.Table.from_arrays([pa.array(stamps), *keys], names=[_STAMP, *self.layout.key_names])
        touched.append(_ALL, self._latest(touches))
        noted.ttl_oldest = min(noted.ttl_oldest, int(stamps.min()))

    def _latest(self, touches: pa.Table) -> pa.Table:
        """The latest touch of every key."""
        groups = group([touches[k] for k in self.layout.key_names], touches.num_rows)
        latest = np.full(groups.n, UNSET)
        np.maximum.at(latest, groups.ids, touches[_STAMP].to_numpy())
        keys = [pick(touches[k], groups.first) for k in self.layout.key_names]
        return pa.Table.from_arrays([pa.array(latest), *keys], names=[_STAMP, *self.layout.key_names])

    def _due(self, noted: _Clock, clock: int) -> bool:
        last = noted.ttl_checked
        if last is not None and clock // self.grain_us <= last // self.grain_us:
            return False
        noted.ttl_checked = clock
        return True

    def _next_check(self, noted: _Clock, clock: int | None) -> int | None:
        """What the clock will show when the oldest touch is to be looked at."""
        oldest = noted.ttl_oldest
        if clock is None or clock == END_OF_TIME or oldest == UNSET:
            return None
        expires = oldest + self.ttl_us
        return expires if clock == UNSET else max((clock // self.grain_us + 1) * self.grain_us, expires)

    def _expire(self, bucket: Bucket, touched: Runs, noted: _Clock, clock: int, moment: Moment) -> int:
        """Drop what is due; returns how many windows went."""
        known = self._latest(pa.concat_tables(touched.load(_ALL)))
        stamps = known[_STAMP].to_numpy()
        stamps = np.where(stamps == UNSET, clock, stamps)  # touched before the clock ran: it starts now
        known = known.set_column(0, _STAMP, pa.array(stamps))
        gone = stamps <= clock - self.ttl_us
        rest = known.filter(pa.array(~gone))
        touched.replace(_ALL, rest)
        noted.ttl_oldest = int(stamps[~gone].min()) if rest.num_rows else END_OF_TIME
        return self._drop(bucket, known.filter(pa.array(gone)), moment) if gone.any() else 0


class ExpiringOperator(Expiring):
    """Windows of which nothing is kept once they are dropped."""

    def __init__(self, spec: OperatorSpec, inner: KeyDropping) -> None:
        super().__init__(spec, inner)
        self._keys = inner

    def _drop(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        return self._keys.drop_keys(bucket, dead, moment)


def _earlier(left: int | None, right: int | None) -> int | None:
    return right if left is None else left if right is None else min(left, right)
