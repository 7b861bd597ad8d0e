"""Time to live: the state of idle keys and windows is dropped and counted (SEMANTICS §6.1).

The clock is the watermark, or processing time. A key is touched at the time of the clock in the batch that brings one of
its rows to its bucket. With event time, this is the event time of that row if it is ahead of the watermark. When the clock
has moved on by the TTL, the state is dropped. Windows that are due in that step fire first. Dropped fixed windows are
remembered until they are over. Other windows, whose bounds depend on their rows, are not remembered: the key starts again
like a new key. A look-back or distinct-set window that begins before the drop then holds only rows that came after it. With
event time this cannot happen if the TTL is longer than the window and the allowed lateness.

Expiry is checked 16 times per TTL. A queue says which keys may be due; the log of touches says whether they are. So a check
reads the keys that were touched a TTL ago, not all of them. State is read only if a key expired.

Dropped fixed windows are remembered without their content, so later rows do not make a result of the rest of a window.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import among, distinct, group, key_hashes
from krishiv_py.arrays.ranges import split
from krishiv_py.arrays.sorting import sorted_unique
from krishiv_py.arrays.types import Ints, largest_of, pick, with_column
from krishiv_py.kernels.columns.layout import START, TIME, Layout
from krishiv_py.kernels.results import StepResult, WindowOperator, earliest
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket, Runs, Section
from krishiv_py.kernels.state.timer_queue import DUE, DueQueue
from krishiv_py.kernels.state.window_log import HASH, WINDOW, KeyedLog
from krishiv_py.kernels.watermark import floor_watermark
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.options.query import StateTtlConfig

_STAMP, _LAST = "__at", "__last"
_BEFORE = "touch"
_CHECKS = 16
_TIMER = pa.schema([pa.field(HASH, pa.int64()), pa.field(DUE, pa.int64())])


@attrs.define
class _Clock(Section):
    """Says when keys were looked at: what the clock of the time to live showed, µs."""

    ttl_checked: int | None = None


@attrs.define
class _LeftClock(Section):
    """Says the same of the left side of a join."""

    ttl_checked_left: int | None = None


@attrs.define
class _RightClock(Section):
    """Says the same of the right side of a join."""

    ttl_checked_right: int | None = None


@attrs.frozen
class TouchNames:
    """The names under which it is stored when keys were touched: a log, a queue, and when they were looked at."""

    log: str
    queue: str
    clock: type[Section]
    checked: str


_OF_KEYS: Final = TouchNames("touched", "ttl", _Clock, "ttl_checked")
OF_SIDES: Final = (
    TouchNames("touched_left", "ttl_left", _LeftClock, "ttl_checked_left"),
    TouchNames("touched_right", "ttl_right", _RightClock, "ttl_checked_right"),
)
"""The names for the left and the right side of a join, each of which has a time to live of its own."""


@runtime_checkable
class KeyDropping(WindowOperator, Protocol):
    """An operator that can forget keys."""

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """Remove these keys (columns named as in the layout) from state.

        Called after the step under the same watermark. Returns how many windows (of look-back windows: rows) will not have
        their result.
        """


class Expiring:
    """An operator whose keys have a time to live; how keys are dropped is up to the subclass."""

    names: TouchNames = _OF_KEYS

    def __init__(self, spec: OperatorSpec, inner: WindowOperator) -> None:
        assert spec.options.ttl is not None
        self.inner = inner
        self.layout = Layout(spec)
        self.ttl_us = self.ttl_of(spec.options.ttl)
        self.by_event = spec.options.ttl.clock == "event"
        self.grain_us = max(self.ttl_us // _CHECKS, 1)
        fields = [pa.field(HASH, pa.int64()), pa.field(_STAMP, pa.int64())]
        self.touch_schema = pa.schema([*fields, *self.layout.key_fields])

    def ttl_of(self, ttl: StateTtlConfig) -> int:
        """Return how long a key lives, µs."""
        return ttl.ttl_us

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return what the operator makes of the rows, and the latest event time of every key."""
        combined = self.inner.combine(rows)
        n = rows.num_rows
        keys = [pa.chunked_array([*rows[k].chunks, *combined[k].chunks], rows[k].type) for k in self.layout.key_names]
        groups = group(list(keys), n + combined.num_rows)
        latest = largest_of(groups.ids[:n], rows[TIME].to_numpy(), groups.n, UNSET)
        return combined.append_column(_LAST, pa.array(latest[groups.ids[n:]]))

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """Run the step of the operator, then drop the keys whose time has come."""
        done = self.inner.step(bucket, self.chunks_within(chunks), moment)
        results = self._standing(bucket, done.results, moment)
        clock = moment.watermark_us if self.by_event else moment.now_us
        noted = self.names.clock.of(bucket)
        touched = _TouchLog(self, bucket, noted)
        fresh = self.touching(chunks) if any(c.num_rows for c in chunks) else None
        if fresh is not None and fresh.num_rows:
            self._touch(touched, fresh, UNSET if clock is None else clock)
        dead = None
        if clock is not None and clock not in (UNSET, END_OF_TIME) and touched.any and self._due(noted, clock):
            dead = touched.expired(clock)
        dropped = 0 if dead is None else self._drop(bucket, dead, moment.without_rows)
        sizes = done
        if dead is not None:  # what is held now, and when it is due: a step without rows fires nothing more
            sizes = self.inner.step(bucket, [], moment.without_rows)
        wakeup = self._next_check(touched.earliest, clock)
        noted.store(bucket)
        return attrs.evolve(
            done,
            results=results,
            firings=results.num_rows,
            counters={**done.counters, "ttl_dropped": done.counters.get("ttl_dropped", 0) + dropped},
            open_windows=sizes.open_windows,
            open_rows=sizes.open_rows,
            timers=sizes.timers,
            held_rows=sizes.held_rows,
            wakeup_us=earliest((sizes.wakeup_us, 0), (wakeup if self.by_event else None, 0)),
            wakeup_now_us=earliest((sizes.wakeup_now_us, 0), (None if self.by_event else wakeup, 0)),
        )

    def chunks_within(self, chunks: list[pa.Table]) -> list[pa.Table]:
        """Return the chunks as the operator within takes them."""
        return [c.drop_columns([_LAST]) for c in chunks]

    def touching(self, chunks: list[pa.Table]) -> pa.Table:
        """Return the keys that chunks touch, each with the latest event time of its rows."""
        return pa.concat_tables([c.select([_LAST, *self.layout.key_names]) for c in chunks])

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return self.inner.state(bucket)

    def _standing(self, bucket: Bucket, results: pa.Table, moment: Moment) -> pa.Table:
        """Results that may be written."""
        return results

    def _drop(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """Drop keys; returns how many windows went."""
        raise NotImplementedError

    def _touch(self, touched: _TouchLog, fresh: pa.Table, clock: int) -> None:
        stamps = np.full(fresh.num_rows, clock)
        if self.by_event:
            stamps = np.maximum(fresh[_LAST].to_numpy(), clock)
        touched.add([fresh[k] for k in self.layout.key_names], stamps)

    def _due(self, noted: Section, clock: int) -> bool:
        last = getattr(noted, self.names.checked)
        if last is not None and clock // self.grain_us <= last // self.grain_us:
            return False
        setattr(noted, self.names.checked, clock)
        return True

    def _next_check(self, earliest: int | None, clock: int | None) -> int | None:
        """Return what the clock will show when the first of the keys is to be looked at."""
        if clock is None or clock == END_OF_TIME or earliest is None or earliest == UNSET:
            return None
        return earliest if clock == UNSET else max((clock // self.grain_us + 1) * self.grain_us, earliest)


class _TouchLog:
    """Says when the keys of a bucket were touched: a log by key, and a queue that says when each may have expired.

    ::

        touched at   3      12 ...     the log: the latest is 12
        queue     3 + TTL  12 + TTL    the first is popped, the log tells of a later touch: nothing to do

    Queue times are rounded down to the moments of checks, so that touches of a key between two of them are one entry.
    """

    def __init__(self, of: Expiring, bucket: Bucket, noted: Section) -> None:
        self._of, self._noted = of, noted
        self._names = of.layout.key_names
        self._log = KeyedLog(bucket, of.names.log, of.touch_schema, self._compact)
        self._queue = DueQueue(bucket, of.names.queue, of.grain_us, _once)
        if f"runs:{_BEFORE}" in bucket.meta:
            self._converted(Runs(bucket, _BEFORE, None))
            for name in ("runs", "sums"):
                del bucket.meta[f"{name}:{_BEFORE}"]

    def _converted(self, before: Runs) -> None:
        """Take over the list of all keys that earlier versions had."""
        for run in before.names():
            touches = pa.concat_tables(before.load(run))
            before.drop(run)
            self.add([touches[k] for k in self._names], touches[_STAMP].to_numpy())

    @property
    def any(self) -> bool:
        """Return whether there are keys."""
        return len(self._queue) > 0

    @property
    def earliest(self) -> int | None:
        """Return when the first of the keys is to be looked at."""
        return self._queue.earliest

    def add(self, keys: list[pa.ChunkedArray], stamps: Ints) -> None:
        """Note that keys were touched."""
        hashes = pa.array(key_hashes(keys, len(stamps)))
        touches = self._latest(pa.Table.from_arrays([hashes, pa.array(stamps), *keys], schema=self._of.touch_schema))
        self._log.append(touches)
        self._arm(touches[HASH].to_numpy(), self._looked_at(touches[_STAMP].to_numpy()))

    def expired(self, clock: int) -> pa.Table | None:
        """Forget the keys that have expired, and return them; None without any."""
        timers = pa.concat_tables([_TIMER.empty_table(), *self._queue.pop(clock)])
        known = self._latest(self._log.lookup(sorted_unique(timers[HASH].to_numpy())))
        stamps = known[_STAMP].to_numpy()
        unset = stamps == UNSET  # touched before the clock ran: it starts now
        if unset.any():
            some = known.filter(pa.array(unset))
            self.add([some[k] for k in self._names], np.full(some.num_rows, clock))
        gone = ~unset & (stamps <= clock - self._of.ttl_us)
        again = ~unset & ~gone & (self._looked_at(stamps) <= clock)
        grain = self._of.grain_us
        self._arm(known[HASH].to_numpy()[again], np.full(int(again.sum()), (clock // grain + 1) * grain))
        if not len(self._queue):
            self._log.clear()
        return known.filter(pa.array(gone)) if gone.any() else None

    def _arm(self, hashes: Ints, due: Ints) -> None:
        timers = pa.Table.from_arrays([pa.array(hashes), pa.array(due)], schema=_TIMER)
        self._queue.insert(_once(timers), int(due.min()) if len(due) else UNSET)

    def _looked_at(self, stamps: Ints) -> Ints:
        """Return the check before which a key that was touched then cannot have expired."""
        grain = self._of.grain_us
        return np.where(stamps == UNSET, UNSET, (stamps + self._of.ttl_us) // grain * grain)

    def _latest(self, touches: pa.Table) -> pa.Table:
        """Return the latest touch of every key."""
        groups = group([touches[k] for k in self._names], touches.num_rows)
        latest = largest_of(groups.ids, touches[_STAMP].to_numpy(), groups.n, UNSET)
        return with_column(pick(touches, groups.first), _STAMP, pa.array(latest))

    def _compact(self, touches: pa.Table, oldest: bool) -> pa.Table:
        """Return the latest touches, without those of keys that expired at an earlier check."""
        latest, checked = self._latest(touches), getattr(self._noted, self._of.names.checked)
        stamps = latest[_STAMP].to_numpy()
        if checked is None or not (over := (stamps <= checked - self._of.ttl_us) & (stamps != UNSET)).any():
            return latest
        return latest.filter(pa.array(~over))


def _once(timers: pa.Table) -> pa.Table:
    """Each pair of hash and time once."""
    return distinct(timers, [HASH, DUE])


class _EmptyOperator:
    """Is the operator of a time to live whose keys are only noted."""

    def combine(self, rows: pa.Table) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        return rows

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        raise NotImplementedError

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        raise NotImplementedError


def begin_ttl(spec: OperatorSpec, bucket: Bucket, keys: pa.Table) -> None:
    """Note keys whose state was kept without this time to live: it begins when the clock is looked at next."""
    assert spec.options.ttl is not None
    for names in (_OF_KEYS,) if spec.options.ttl._sides is None else OF_SIDES:
        if keys.num_rows:
            of = Expiring(spec, _EmptyOperator())
            of.names, noted = names, names.clock.of(bucket)
            touched = _TouchLog(of, bucket, noted)
            touched.add([keys[k] for k in keys.column_names], np.full(keys.num_rows, UNSET))
            noted.store(bucket)


class ExpiringOperator(Expiring):
    """Windows of which nothing is kept once they are dropped."""

    def __init__(self, spec: OperatorSpec, inner: KeyDropping) -> None:
        super().__init__(spec, inner)
        self._keys = inner

    def _drop(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        return self._keys.drop_keys(bucket, dead, moment)


_GRAVE = "grave"
_BOUNDS = ("window_start", "window_end")


class WindowDropping(WindowOperator, Protocol):
    """An operator of fixed windows that can forget keys."""

    def drop_windows(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> pa.Table:
        """Remove these keys from state; returns window start (``w``, µs) and key of every window that will not be written."""


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
