"""Tumbling and hopping windows with triggers, discarding accumulation or pane columns (SEMANTICS §5.1 to §5.4).

A run of log entries (:mod:`~krishiv_py.kernels.state.window_log`) per window. Triggers that fire row by row keep rows apart
until they have been counted, and read the windows a batch touches; all others append partials and read a window only when it
fires.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from krishiv_py.kernels.aggregates.failed import told_where
from krishiv_py.kernels.arrays.grouping import distinct, group
from krishiv_py.kernels.arrays.sorting import sorted_unique, stable_order
from krishiv_py.kernels.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.assign import FixedAssigner
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.columns.place import place_of
from krishiv_py.kernels.firing.changelog import Firings, written
from krishiv_py.kernels.firing.prefixes import Folder, Units, units_of
from krishiv_py.kernels.input.lateness import floor_watermark
from krishiv_py.kernels.results.contract import StepResult
from krishiv_py.kernels.results.emit import Emitter
from krishiv_py.kernels.results.state_table import Opened
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.runs import Runs, remove_keys
from krishiv_py.kernels.state.store import ChunkStore, Meta
from krishiv_py.kernels.state.window_log import WINDOW, PairLog, Pairs
from krishiv_py.kernels.windows.fixed.plain import SLICE, FixedOperator
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.options.triggers import Interval
from krishiv_py.plan.windows.fixed import HoppingWindow

_FIRE_ROWS = 4_000_000


class TriggeredOperator:
    """See the module's docstring."""

    on_time_name = "on_time"
    new_name = "late"
    """The firing of a window whose first row came after its end, under ``late="watermark"``."""

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.window, HoppingWindow)
        self.window = spec.window
        self.layout = Layout(spec)
        self.assigner = FixedAssigner(spec.window)
        self.emitter = Emitter(self.layout)
        self.log = PairLog(self.layout)
        self._slices = FixedOperator(spec)
        self.lateness_us = spec.options.allowed_lateness_us
        self.trigger = spec.options.trigger
        self.discarding = spec.options.accumulation == "discarding"
        self.retract = spec.options.emit_mode == "retractions" and not self.discarding
        self.by_row = self.trigger.row_by_row
        self.folder = Folder(self.log, self.trigger, self.discarding, self.window.size_us)

    def combine(self, rows: pa.Table) -> pa.Table:
        """Rows as they are when single rows make windows fire, else partial aggregates by key and slice."""
        return rows if self.by_row else self._slices.combine(rows)

    def step(
        self, store: ChunkStore, meta: Meta, chunks: list[pa.Table], watermark_us: int, now_us: int | None = None
    ) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.contract.WindowOperator`."""
        runs = Runs(store, meta, WINDOW, self.log.compact)
        fired_at: int = meta.get("fired_at", UNSET)
        results: list[pa.Table] = []
        overdue: set[int] = set()
        if any(c.num_rows for c in chunks):
            overdue = self._take_in(runs, meta, pa.concat_tables(chunks), watermark_us, results)
        results += self._on_watermark(runs, fired_at, watermark_us, overdue)
        results += self._late_by_watermark(runs, meta, watermark_us)
        results += self._on_interval(runs, meta, watermark_us, now_us)
        meta["fired_at"] = max(fired_at, watermark_us)
        self._forget(runs, meta, floor_watermark(watermark_us, self.lateness_us))
        table = self.emitter.concat(results)
        return StepResult(
            table,
            self._wakeup(runs, meta, watermark_us),
            len(runs.names()),
            runs.total_rows(),
            table.num_rows,
            wakeup_now_us=self._wakeup_now(meta),
        )

    def _take_in(self, runs: Runs, meta: Meta, fresh: pa.Table, watermark_us: int, results: list[pa.Table]) -> set[int]:
        """Fold a batch in, firing row by row; returns overdue windows that now hold pairs without a watermark firing."""
        times = fresh[TIME if self.by_row else SLICE].to_numpy()
        horizon = floor_watermark(watermark_us, self.lateness_us)
        units = units_of(self.assigner, fresh.select(self.layout.key_names), times, horizon)
        if not units.n:
            return set()
        windows = sorted_unique(units.pair_windows)
        overdue = windows + self.window.size_us <= watermark_us
        unseen = {w for w in windows[overdue].tolist() if w not in runs}
        state = self._state(runs, windows[overdue | isinstance(self.trigger.early, int)], units)
        found = self.folder.fold(fresh, units, state, watermark_us, self.by_row)
        self._taken_in(fresh, units, watermark_us)
        if found.firings is not None:
            results.append(self._written(found.firings))
        self._append(runs, found.windows, found.entries)
        if isinstance(self.trigger.early, Interval):
            meta["changed"] = sorted({*meta.get("changed", ()), *windows[~overdue].tolist()})
        fresh_panes, late = self._notes(meta, "new_at"), self._notes(meta, "late_at")
        fresh_panes.update({str(w): watermark_us for w in found.waiting & unseen})
        late.update({str(w): watermark_us for w in found.waiting - unseen if str(w) not in fresh_panes})
        return found.unfired

    @staticmethod
    def _notes(meta: Meta, name: str) -> dict[str, int]:
        notes: dict[str, int] = meta.setdefault(name, {})
        return notes

    def _state(self, runs: Runs, looked: Ints, units: Units) -> Pairs:
        """The resolved state of the pairs a batch touches, as far as it has to be known."""
        held = [w for w in looked.tolist() if w in runs]
        if not held:
            return self.log.resolve(self.log.schema.empty_table(), np.empty(0, np.int64), units.n)
        log = self._load(runs, held)
        names = [WINDOW, *self.layout.key_names]
        both = pa.concat_tables([units.keys.select(names), log.select(names)])
        groups = group([both[n].to_numpy() if n == WINDOW else both[n] for n in names], both.num_rows)
        pair_of = np.full(groups.n, -1, np.int64)
        pair_of[groups.ids[: units.n]] = np.arange(units.n)
        ids = pair_of[groups.ids[units.n :]]
        return self.log.resolve(log.filter(pa.array(ids >= 0)), ids[ids >= 0], units.n)

    def _load(self, runs: Runs, windows: list[int], load: Callable[[int], list[pa.Table]] | None = None) -> pa.Table:
        tables = []
        for w in windows:
            run = pa.concat_tables((load or runs.load)(w))
            tables.append(run.append_column(WINDOW, pa.repeat(pa.scalar(w, pa.int64()), run.num_rows)))
        return pa.concat_tables(tables)

    def _append(self, runs: Runs, windows: Ints, entries: pa.Table) -> None:
        order = stable_order(windows)
        bounds = np.flatnonzero(np.diff(windows[order])) + 1
        table = entries.take(pa.array(order))
        for start, stop in zip([0, *bounds.tolist()], [*bounds.tolist(), len(order)], strict=True):
            if stop > start:
                runs.append(int(windows[order[start]]), table.slice(start, stop - start))

    def _portions(self, runs: Runs, windows: list[int]) -> list[list[int]]:
        """Windows in groups small enough to read in one go, ascending."""
        if not windows:
            return []
        weight = np.cumsum([runs.rows(w) for w in windows]) // _FIRE_ROWS
        return [part.tolist() for part in np.split(np.array(windows, np.int64), np.flatnonzero(np.diff(weight)) + 1)]

    def _on_watermark(self, runs: Runs, above: int, upto: int, overdue: set[int]) -> list[pa.Table]:
        """The firing when the end is passed, ascending, for pairs that have not had it."""
        due = [w for w in runs.names() if w in overdue or above < w + self.window.size_us <= upto]
        return self._fire(runs, due, upto, self.on_time_name)

    def _late_by_watermark(self, runs: Runs, meta: Meta, watermark_us: int) -> list[pa.Table]:
        """Windows that late rows changed under a smaller watermark than this (SEMANTICS §3.6)."""
        results = []
        for name, pane in (("new_at", self.new_name), ("late_at", "late")):
            notes = self._notes(meta, name)
            due = sorted(int(w) for w, at in notes.items() if at < watermark_us)
            for w in due:
                del notes[str(w)]
            results += self._fire(runs, due, watermark_us, pane, again=True)
        return results

    def _on_interval(self, runs: Runs, meta: Meta, watermark_us: int, now_us: int | None) -> list[pa.Table]:
        """Windows that changed, when the time has come."""
        early = self.trigger.early
        changed = [w for w in meta.get("changed", ()) if w + self.window.size_us > watermark_us]
        if not isinstance(early, Interval) or now_us is None or not changed:
            return []
        shown_at = meta.setdefault("shown_at", now_us)
        if now_us - shown_at < early.period_us:
            meta["changed"] = changed
            return []
        meta["changed"], meta["shown_at"] = [], now_us
        return self._fire(runs, changed, watermark_us, "early", again=True)

    def _fire(self, runs: Runs, windows: list[int], watermark_us: int, pane: str, again: bool = False) -> list[pa.Table]:
        """Fire whole windows, ascending: pairs with pending rows if `again`, else those without a watermark firing."""
        out = []
        for part in self._portions(runs, windows):
            log = self._load(runs, part)
            starts = log[WINDOW].to_numpy()
            groups = group([starts, *(log[k] for k in self.layout.key_names)], log.num_rows)
            state = self.log.resolve(log, groups.ids, groups.n)
            window = starts[groups.first]
            order = stable_order(window)
            changed = (state.pending > 0) & (state.done | (pane != "late"))  # a pair not done yet has its watermark firing
            order = order[changed[order] if again else ~state.done[order]]
            fires = np.ones(len(order), np.bool_) if again else self._worth(state)[order]
            keys = log.select([WINDOW, *self.layout.key_names]).take(pa.array(groups.first))
            firing = order[fires]
            value = self._value(log, groups.first, state, firing)
            stays = window + self.window.size_us > floor_watermark(watermark_us, self.lateness_us)
            self._remember(runs, state, order, stays[order], fires, value, keys, window, done=pane != "early")
            if len(firing):
                fired = Firings(
                    window[firing],
                    keys.take(pa.array(firing)),
                    value,
                    state.fired[firing],
                    np.full(len(firing), pane),
                    state.snaps,
                    state.snap_at[firing],
                )
                out.append(self._written(fired))
        return out

    def _written(self, firings: Firings) -> pa.Table:
        return written(self.log, self.emitter, self.window.size_us, firings, self.retract)

    def _taken_in(self, fresh: pa.Table, units: Units, watermark_us: int) -> None:
        """For operators that tell of single rows."""

    def _worth(self, state: Pairs) -> Mask:
        """Pairs whose watermark firing writes something: a log of changes, or of what is new, has no line for no change."""
        if not self.trigger.on_time:
            return np.zeros(len(state.done), np.bool_)
        if self.discarding:
            return state.pending > 0
        return (state.pending > 0) | (state.snap_at < 0) | (not self.retract)

    def _remember(
        self,
        runs: Runs,
        state: Pairs,
        order: Ints,
        stays: Mask,
        fires: Mask,
        value: pa.Table,
        keys: pa.Table,
        window: Ints,
        done: bool,
    ) -> None:
        """Snapshots of pairs that fired, flags of those that only passed their end, in windows that stay in state."""
        snapped, flagged = order[stays & fires], order[stays & ~fires]
        kept = value.filter(pa.array(stays[fires]))
        for pairs, content, is_snap in ((snapped, kept, True), (flagged, None, False)):
            if not len(pairs):
                continue
            partials = self.log.nothing(len(pairs)) if content is None or self.discarding else content
            n = len(pairs)
            entries = self.log.entries(
                keys.take(pa.array(pairs)),
                np.zeros(n, np.int64),
                state.fired[pairs] + is_snap,
                np.full(n, done),
                np.full(n, is_snap),
                partials,
            )
            self._append(runs, window[pairs], entries)

    def _value(self, log: pa.Table, first: Ints, state: Pairs, wanted: Ints) -> pa.Table:
        """What some pairs come to, given an entry of each: discarding, what came since their last firing."""
        if self.discarding:
            return state.pends.take(pa.array(state.pend_at[wanted]))
        with told_where(lambda pair: place_of(self.layout.spec, log, int(first[pair]))):
            return self.log.total(state, wanted)

    def state(self, store: ChunkStore, meta: Meta) -> pa.Table:
        """See ``WindowOperator``; when discarding, what came since the last firing."""
        runs, opened = Runs(store, meta, WINDOW, self.log.compact), Opened(self.layout)
        tables = [opened.empty()]
        for part in self._portions(runs, runs.names()):
            log = self._load(runs, part, runs.written)
            groups = group([log[WINDOW].to_numpy(), *(log[k] for k in self.layout.key_names)], log.num_rows)
            found = self.log.resolve(log, groups.ids, groups.n)
            held = found.pend_at >= 0 if self.discarding else (found.pend_at >= 0) | (found.snap_at >= 0)
            wanted = np.flatnonzero(held)
            value = self._value(log, groups.first, found, wanted)
            heads, updated = opened.heads(log, groups.ids, groups.n)
            heads = heads.take(pa.array(wanted))
            starts = heads[WINDOW].to_numpy()
            tables.append(opened.table(heads, updated[wanted], value.columns, starts, starts + self.window.size_us))
        return pa.concat_tables(tables)

    def drop_windows(self, store: ChunkStore, meta: Meta, dead: pa.Table, watermark_us: int) -> pa.Table:
        """See :class:`~krishiv_py.kernels.wrappers.ttl_fixed.WindowDropping`."""
        runs = Runs(store, meta, WINDOW, self.log.compact)
        names = [WINDOW, *self.layout.key_names]
        parts = [pa.schema([pa.field(WINDOW, pa.int64()), *self.layout.key_fields]).empty_table()]
        for window in runs.names():
            gone = remove_keys(runs, self.layout.key_names, dead, self.log.schema, window)
            parts.append(gone.add_column(0, WINDOW, pa.repeat(pa.scalar(window, pa.int64()), gone.num_rows)).select(names))
        return distinct(pa.concat_tables(parts), names)

    def _forget(self, runs: Runs, meta: Meta, horizon: int) -> None:
        for w in runs.names():
            if w + self.window.size_us <= horizon:
                self._closing(runs, w)
                runs.drop(w)
                self._notes(meta, "new_at").pop(str(w), None)
                self._notes(meta, "late_at").pop(str(w), None)

    def _closing(self, runs: Runs, window: int) -> None:
        """For operators that tell of windows before they are dropped."""

    def _wakeup(self, runs: Runs, meta: Meta, watermark_us: int) -> int | None:
        """The next watermark at which a window fires or is over; any larger one where late rows wait for it."""
        if meta["new_at"] or meta["late_at"]:
            return watermark_us + 1
        ends = np.array(runs.names(), np.int64) + self.window.size_us
        moments = np.concatenate([ends, ends + self.lateness_us])
        coming = moments[moments > watermark_us]
        return int(coming.min()) if len(coming) else None

    def _wakeup_now(self, meta: Meta) -> int | None:
        early = self.trigger.early
        if not isinstance(early, Interval) or not meta.get("changed") or "shown_at" not in meta:
            return None
        return int(meta["shown_at"]) + early.period_us
