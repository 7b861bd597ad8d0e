"""Deduplication (SEMANTICS §8): the first row of an identity passes at once, and is remembered while a duplicate can come.

A batch looks its identities up by hash. Only rows whose hash is in state, or more than once in the batch, are compared by
value; the others pass.

Rows that have passed are found by a hash of their identity, in runs that expire. A run knows the middle and the latest of its
times. When the middle one is over, more than half of its rows are, and it is written again without them; when the latest is, it
goes unread. So expiry costs what expires, whatever is held.

Determine which of some rows pass, in order of arrival: those that no row of their identity that passed is close to.

What a row is compared with depends on the rows before it, so rows are decided in rounds: the first undecided row of every
identity passes, and the rows close to it do not. Where an identity has many rows that pass in one batch, a few rounds are not
enough. Its rows in order of time and arrival are then gone through by jumps from one that passes to the next::

    rows in order of time   ●  ×  ×  ●  ×  ●
    jumps by `within`       └───────►└────►

and only rows that arrive out of that order one by one.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group_rows, key_hashes
from krishiv_py.arrays.sorting import pair_order, sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask, flags_at, last_rows, pick, values_at
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.columns.times import time_type, unstamp
from krishiv_py.kernels.results import StepResult
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import WRITTEN, Bucket, Section
from krishiv_py.kernels.state.window_log import HASH, DeadKeys, KeyedLog, middle_and_latest
from krishiv_py.kernels.watermark import floor_watermark
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.operation import DUPLICATE, Deduplication

ROUNDS: Final = 4
_LARGEST: Final = 1 << 62


def first_arrivals(ids: Ints, times: Ints, held_ids: Ints, held_times: Ints, within: int) -> Mask:
    """Rows that pass, by SEMANTICS §8.

    Parameters
    ----------
    ids, times : ndarray of int64
        Identity, as a number from 0, and event time of each row, in order of arrival.
    held_ids, held_times : ndarray of int64
        The same of rows that passed before.
    within : int
        Rows less than so far apart are duplicates.
    """
    passed = np.zeros(len(ids), np.bool_)
    n = 1 + max(int(ids.max(initial=-1)), int(held_ids.max(initial=-1)))
    left = np.flatnonzero(~_close(ids, times, held_ids, held_times, within, n))
    for _ in range(ROUNDS):
        if not len(left):
            return passed
        mine, first = ids[left], np.full(n, -1, np.int64)
        first[mine[::-1]] = left[::-1]  # of several writes to one place the last one counts
        passed[first[first >= 0]] = True
        left = left[np.abs(times[left] - times[first[mine]]) >= within]
    if len(left):
        passed[left[_in_turn(ids[left], times[left], within)]] = True
    return passed


def _close(ids: Ints, times: Ints, held_ids: Ints, held_times: Ints, within: int, n: int) -> Mask:
    """Rows that a held row of their identity is close to."""
    if not len(held_ids):
        return np.zeros(len(ids), np.bool_)
    if int(np.bincount(held_ids, minlength=n).max()) == 1:
        rows = last_rows(held_ids, n)
        mine = rows[ids]
        close: Mask = (mine >= 0) & (np.abs(times - held_times[mine]) < within)
        return close
    moments = sorted_unique(held_times)
    width = len(moments) + 1
    held = np.sort(held_ids * width + np.searchsorted(moments, held_times))
    low = ids * width + np.searchsorted(moments, times - within, side="right")
    high = ids * width + np.searchsorted(moments, times + within, side="left")
    return np.searchsorted(held, high) > np.searchsorted(held, low)


def _in_turn(ids: Ints, times: Ints, within: int) -> Ints:
    """Positions of rows that pass, none of which a row that passed before is close to."""
    order = pair_order(ids, times)
    arrival, ordered = order, times[order]
    gaps = np.diff(ordered)
    apart = (np.diff(ids[order]) != 0) | (gaps >= within)
    starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(apart) + 1])
    part = np.zeros(len(ids), np.int64)
    part[1:] = np.cumsum(apart)
    turned = flags_at(part[1:][~apart & (np.diff(arrival) < 0)], len(starts))
    if len(starts) * within >= _LARGEST:
        turned[:] = True
    straight = np.flatnonzero(~turned[part])
    crooked = np.sort(arrival[turned[part]])
    part_of = values_at(order, part, len(ids))
    kept = [
        arrival[straight][_jumps(ordered[straight], part[straight], within)],
        crooked[_one_by_one(part_of[crooked], times[crooked], within)],
    ]
    return np.concatenate(kept)


def _jumps(times: Ints, parts: Ints, within: int) -> Ints:
    """Positions that pass of rows in order of time and arrival; rows of different parts are not close."""
    if not len(times):
        return times
    steps = np.where(np.diff(parts) != 0, within, np.diff(times))
    line = np.concatenate([np.zeros(1, np.int64), np.cumsum(steps)])  # parts follow one another, just far enough apart
    following = np.searchsorted(line, line + within).tolist()
    jumps, row = [], 0
    while row < len(following):
        jumps.append(row)
        row = following[row]
    return np.array(jumps, np.int64)


def _one_by_one(parts: Ints, times: Ints, within: int) -> Ints:
    """Positions that pass, in order of arrival. At most one row passes in a stretch of `within`."""
    passed: dict[tuple[int, int], int] = {}
    kept = []
    for row, (part, time) in enumerate(zip(parts.tolist(), times.tolist(), strict=True)):
        stretch = time // within
        before, after = passed.get((part, stretch - 1)), passed.get((part, stretch + 1))
        if (part, stretch) in passed or (before is not None and time - before < within):
            continue
        if after is None or after - time >= within:
            passed[part, stretch] = time
            kept.append(row)
    return np.array(kept, np.int64)


_MIDDLE, _LATEST = range(2)
NAME: Final = "dedup"


class PassedLog(KeyedLog):
    """Rows that passed. Those at or before `over_us` are over: no row that is not late is close to one of them."""

    def __init__(self, bucket: Bucket, layout: Layout, over_us: int) -> None:
        fields = [pa.field(HASH, pa.int64()), pa.field(TIME, pa.int64()), *layout.key_fields]
        super().__init__(bucket, NAME, pa.schema(fields), lambda rows, _: self.alive(rows))
        self.schema = self._schema
        self._over = over_us

    @property
    def next_us(self) -> int | None:
        """The event time at whose end :meth:`expire` has something to do."""
        return min((run[2][_MIDDLE] for run in self._runs), default=None)

    def expire(self) -> None:
        """Forget rows that are over: whole runs, and parts of a run once they are more than half of it."""
        for run in list(self._runs):
            times = run[2]
            if times[_MIDDLE] > self._over:
                continue
            index = self._runs.index(run)
            kept = self.alive(pa.concat_tables(self._load(run))) if times[_LATEST] > self._over else None
            self._delete(run)
            del self._runs[index]
            if kept is not None and kept.num_rows:
                self._write(run[0][0], kept)
                self._runs.insert(index, self._runs.pop())

    def alive(self, rows: pa.Table) -> pa.Table:
        """Return the rows that are not over."""
        alive = rows[TIME].to_numpy() > self._over
        return rows if alive.all() else rows.filter(pa.array(alive))

    def _write(self, number: int, rows: pa.Table) -> None:
        super()._write(number, rows)
        self._runs[-1].append(middle_and_latest(rows))


_ANY: Final = 1 << 61
"""No two times are so far apart: in the preset ``spark`` all that is remembered makes a duplicate (SEMANTICS §4.6)."""


@attrs.define
class _DedupProgress(Section):
    """The watermark of the last step."""

    dedup_at: int = UNSET


class DedupOperator:
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, Deduplication)
        self.within = spec.operation.within_us
        self.by_state = spec.options.late_by_batch_before
        self.keep_us = self.within + spec.options.allowed_lateness_us
        self.aside = spec.operation.duplicates == "side_output"
        self.layout = layout = Layout(spec)
        self._columns = [layout.working[n] for n in layout.result_schema.names]
        self._late_columns = [layout.working[n] for n in spec.late_columns] if self.aside else []

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return the rows as they are."""
        return rows

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        _DedupProgress(moment.watermark_us).store(bucket)
        log = self._log(bucket, moment.watermark_us)
        log.expire()
        results, late, dropped = self.layout.result_schema.empty_table(), None, 0
        fresh = pa.concat_tables(chunks) if chunks else None
        if fresh is not None and fresh.num_rows:
            passed = self._pass(log, fresh)
            dropped = len(passed) - int(np.count_nonzero(passed))
            if dropped and self.aside:
                late = self._refused(fresh.filter(pa.array(~passed)), moment.watermark_us)
            fresh = fresh.filter(pa.array(passed)) if dropped else fresh
            results = pa.Table.from_arrays([fresh[n] for n in self._columns], schema=self.layout.result_schema)
        expires = log.next_us
        wakeup = None if expires is None else expires + self.keep_us
        return StepResult(results, wakeup, 0, len(log), results.num_rows, {"duplicates": dropped}, late)

    def state(self, bucket: Bucket) -> pa.Table:
        """Identities with the event time of a row that passed, until when it is remembered, and ``last_update``."""
        log = self._log(bucket, _DedupProgress.of(bucket).dedup_at)
        rows = log.written()
        times: Ints = rows[TIME].to_numpy()
        alive = times > self._over(_DedupProgress.of(bucket).dedup_at)
        rows, times = rows.filter(pa.array(alive)), times[alive]
        kind, keys = self.layout.spec.time_kind, self.layout.spec.keys
        until = unstamp(times + self.keep_us, kind)
        columns = [*(rows[k] for k in self.layout.key_names), unstamp(times, kind), until]
        columns.append(unstamp(rows[WRITTEN].to_numpy(), "timestamp"))
        types = [*self.layout.key_types, time_type(kind), time_type(kind), time_type("timestamp")]
        names = [*keys, *(Deduplication.free_name(n, keys) for n in ("passed_at", "kept_until", "last_update"))]
        return pick(pa.Table.from_arrays(columns, schema=pa.schema(list(zip(names, types, strict=True)))), stable_order(times))

    def drop_keys(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> int:
        """See :class:`~krishiv_py.kernels.ttl.KeyDropping`; counts rows that would have been remembered longer."""
        gone = DeadKeys.of(dead, self.layout.key_names)
        removed = self._log(bucket, moment.watermark_us).remove(gone.hashes, gone.rows)
        return int(np.count_nonzero(removed[TIME].to_numpy() > self._over(moment.watermark_us)))

    def _over(self, watermark_us: int) -> int:
        return floor_watermark(watermark_us, self.keep_us)

    def _log(self, bucket: Bucket, watermark_us: int) -> PassedLog:
        return PassedLog(bucket, self.layout, self._over(watermark_us))

    def _pass(self, log: PassedLog, fresh: pa.Table) -> Mask:
        """Rows that pass; they are remembered."""
        keys = [fresh[k] for k in self.layout.key_names]
        hashes = key_hashes(list(keys), fresh.num_rows)
        order = stable_order(hashes)
        ordered = hashes[order]
        again = np.zeros(len(ordered) + 1, np.bool_)
        np.equal(ordered[1:], ordered[:-1], out=again[1:-1])
        held = log.lookup(ordered[~again[:-1]])
        if self.by_state:
            held = log.alive(held)
        doubtful = again[1:] | again[:-1]
        if held.num_rows:
            known = sorted_unique(held[HASH].to_numpy())
            positions = np.minimum(np.searchsorted(known, ordered), len(known) - 1)
            doubtful |= known[positions] == ordered
        passed = np.ones(fresh.num_rows, np.bool_)
        if doubtful.any():
            rows = np.sort(order[doubtful])
            passed[rows] = self._compared(held, pick(fresh, rows))
        kept = order if passed.all() else order[passed[order]]
        columns = [pa.array(hashes), fresh[TIME], *keys]
        log.append(pick(pa.Table.from_arrays(columns, schema=log.schema), kept))
        return passed

    def _compared(self, held: pa.Table, rows: pa.Table) -> Mask:
        """Return which rows pass, of those that may be duplicates of held ones, or of one another."""
        groups = group_rows(self.layout.key_names, held, rows)
        n = held.num_rows
        held_times, times = held[TIME].to_numpy(), rows[TIME].to_numpy()
        return first_arrivals(groups.ids[n:], times, groups.ids[:n], held_times, _ANY if self.by_state else self.within)

    def _refused(self, rows: pa.Table, watermark_us: int) -> pa.Table:
        """Duplicates in the late layout."""
        reasons = pa.repeat(pa.scalar(DUPLICATE), rows.num_rows)
        notes = self.layout.refusal_notes(reasons, watermark_us)
        return pa.Table.from_arrays([*(rows[c] for c in self._late_columns), *notes], schema=self.layout.late_schema)
