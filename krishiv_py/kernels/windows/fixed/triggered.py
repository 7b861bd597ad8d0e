"""Fixed windows and those of a user's assigner with triggers, discarding or panes (SEMANTICS §3.9, §5.1 to §5.4).

A run of log entries (:mod:`~krishiv_py.kernels.state.window_log`) per window. Triggers that fire row by row keep rows apart
until they have been counted, and read the windows a batch touches; all others append partials and read a window only when it
fires.

Windows that overlap and do not fire before their end share what they hold: rows are kept once, by slice
(:mod:`~krishiv_py.kernels.windows.fixed.plain`).

Windows of a user's assigner (SEMANTICS §3.9), run by the operators of fixed windows.

A window is known by both bounds, for several may start, or end, at one time. Inside, the start is one more key column, and the
end is the place of a tumbling window of one tick::

    user    window [start, end)          inside: key (user, start), window [end - tick, end)

So all windows that end at one time are one slice, which is read when that time comes, and triggers, lateness and emission
are those of fixed windows.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import among, distinct, group
from krishiv_py.arrays.ranges import portions, split
from krishiv_py.arrays.sorting import sorted_unique, stable_order
from krishiv_py.arrays.types import Ints, Mask, last_rows, pick
from krishiv_py.kernels.aggregates.base import FailingPlace
from krishiv_py.kernels.columns.layout import START, TIME, WINDOW_END, WINDOW_START, Layout, place_of
from krishiv_py.kernels.columns.times import FixedAssigner, unstamp
from krishiv_py.kernels.firing import (
    FiringOperator,
    Firings,
    FiringSpan,
    IntervalGate,
    TriggerContext,
    WindowFacts,
    custom_trigger_of,
    written,
)
from krishiv_py.kernels.prefixes import PrefixFold, Units, units_of
from krishiv_py.kernels.results import StateTables, StepResult
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket, FiringProgress, Runs, Section, SortedMap, remove_keys
from krishiv_py.kernels.state.window_log import LENT, WINDOW, KeyWindows, PairLog
from krishiv_py.kernels.windows.fixed.plain import SLICE, FixedOperator, SharedRows
from krishiv_py.plan.windows.fixed import HoppingWindow, TumblingWindow

_FIRE_ROWS = 4_000_000


@attrs.define
class ChangedWindows(Section):
    """Windows that changed and have not fired for it.

    Those that wait for the interval to pass are a map of their own: see :func:`_changed`.

    Attributes
    ----------
    new_at, late_at : dict
        For the watermark to grow: the watermark under which late rows came, to windows without and with an earlier firing.
    """

    new_at: dict[str, int] = attrs.field(factory=dict)
    late_at: dict[str, int] = attrs.field(factory=dict)

    def only(self, runs: Runs) -> ChangedWindows:
        """Without windows that are no longer in state."""
        return ChangedWindows(*({w: us for w, us in times.items() if int(w) in runs} for times in (self.new_at, self.late_at)))


def _changed(bucket: Bucket) -> SortedMap[int]:
    """Windows that changed and wait for the interval to pass; the values say nothing."""
    return bucket.map("changed", int)


@attrs.frozen(eq=False)
class _BatchWindows:
    """Holds what a batch brought: overdue windows with pairs that have had no watermark firing, open windows, and all pairs.

    Where windows share rows, these by slice, which are kept after the firings.
    """

    unfired: set[int] = attrs.field(factory=set)
    open: list[int] = attrs.field(factory=list)
    pairs: pa.Table | None = None
    slices: pa.Table | None = None


@attrs.frozen(eq=False)
class HeldWindows:
    """Holds what the windows of a bucket hold in one step.

    Attributes
    ----------
    own : Runs
        Entries by window.
    shared : SharedRows or None
        What windows hold together; None where each holds its own.
    ending : frozenset of int
        Windows that end in this step and have had no entries: all that they hold is shared.
    """

    own: Runs
    shared: SharedRows | None = None
    ending: frozenset[int] = frozenset()

    def __contains__(self, window: int) -> bool:
        return window in self.own or window in self.ending

    def load(self, windows: list[int], load: Callable[[int], list[pa.Table]] | None = None) -> tuple[pa.Table, int]:
        """Return the entries of some windows with the start of their window, and how many of the first are those of ending
        ones.
        """
        tables = [] if self.shared is None else self.shared.entries([w for w in windows if w in self.ending])
        lent = sum(t.num_rows for t in tables)
        for w in windows:
            if w in self.own:
                run = pa.concat_tables((load or self.own.load)(w))
                tables.append(run.append_column(WINDOW, pa.repeat(pa.scalar(w, pa.int64()), run.num_rows)))
        return pa.concat_tables(tables), lent

    def portions(self, windows: list[int]) -> list[list[int]]:
        """Windows, which are in ascending order, in groups small enough to read in one go."""
        rows = np.array([self.own.rows(w) if w in self.own else 0 for w in windows], np.int64)
        if self.shared is not None and self.ending and windows:
            rows += np.where([w in self.ending for w in windows], self.shared.sizes(windows), 0)
        return [windows[a:b] for a, b in portions(rows, _FIRE_ROWS)]

    def given(self, windows: KeyWindows, keys: pa.Table) -> KeyWindows:
        """Return the state of pairs with the content of snapshots that are lent."""
        return windows if self.shared is None else self.shared.given(windows, keys)

    def append(self, windows: Ints, entries: pa.Table) -> None:
        """Add entries to the windows they are of."""
        for window, part in split(entries, windows):
            self.own.append(window, part)


class TriggeredOperator(FiringOperator):
    """See the module's docstring."""

    on_time_name = "on_time"
    new_name = "late"
    """The first firing of a key whose first row in a window came after its end, under ``late="watermark"``."""

    def __init__(self, spec: OperatorSpec) -> None:
        assert isinstance(spec.operation, HoppingWindow)
        super().__init__(spec)
        self.window = spec.operation
        self.assigner = FixedAssigner(spec.operation.grid)
        self.trigger = spec.options.trigger
        self.custom_trigger = custom_trigger_of(self.trigger)
        self.log = PairLog(self.layout, counted=self.custom_trigger is not None)
        self._slices = FixedOperator(spec, counted=self.custom_trigger is not None)
        self.firing_delay = attrs.evolve(self.firing_delay, wait_us=0)
        self.discarding = spec.options.accumulation == "discarding"
        self.retract = spec.options.emit_mode == "retractions" and not self.discarding
        self.by_row = self.trigger._row_by_row
        self.shares = self.trigger._at_ends and self.window.slide_us < self.window.size_us
        """True if windows hold their rows in slices."""
        self.lends = self.shares and not self.discarding
        """True if windows that have ended do so, too; what a firing discards, none of them holds."""
        self.folder = PrefixFold(self.log, self.trigger, self.discarding, self.window.size_us)

    def combine(self, rows: pa.Table) -> pa.Table:
        """Rows as they are when single rows make windows fire, else partial aggregates by key and slice."""
        return rows if self.by_row else self._slices.combine(rows)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        runs, shared = Runs(bucket, WINDOW, self.log.compact), self._shared(bucket)
        waiting, gate, changed = ChangedWindows.of(bucket), IntervalGate.of(bucket), _changed(bucket)
        due = self.firing_delay.due(moment, FiringProgress.of(bucket).fired_at)
        results, taken = list[pa.Table](), _BatchWindows()
        ending = frozenset[int]() if shared is None else frozenset(w for w in shared.ending(due) if w not in runs)
        held = HeldWindows(runs, shared, ending)
        if any(c.num_rows for c in chunks):
            taken = self._take_in(held, waiting, pa.concat_tables(chunks), due, results)
            if self.trigger._period_us is not None:
                for window in taken.open:
                    changed[window] = 1
        passed = self._on_watermark(held, due, taken.unfired)
        results += self.emitter.by_end([*passed, *self._late_by_watermark(held, waiting, due)])
        results += self._early(held, changed, gate, moment, due, taken)
        self._forget(held, waiting, due.horizon_us)
        if shared is not None:
            if taken.slices is not None:
                shared.append(taken.slices, due)
            shared.forget(due)
        for section in (FiringProgress(due.reached_us), waiting, gate):
            section.store(bucket)
        table = self.emitter.concat(results)
        return StepResult(
            table,
            self._wakeup(held, waiting, due),
            len(runs) + (0 if shared is None else shared.opened(runs, due)),
            runs.total_rows() + (0 if shared is None else shared.total_rows()),
            table.num_rows,
            wakeup_now_us=gate.wakeup(self.trigger, changed=len(changed) > 0),
        )

    def _shared(self, bucket: Bucket) -> SharedRows | None:
        """Return what windows hold together; None where each holds its own."""
        return SharedRows(bucket, self._slices, self.log) if self.shares else None

    def _take_in(
        self, held: HeldWindows, waiting: ChangedWindows, fresh: pa.Table, due: FiringSpan, results: list[pa.Table]
    ) -> _BatchWindows:
        """Fold a batch in, firing row by row."""
        by_row, only, slices = self.by_row, None, None
        if held.shared is not None:
            if by_row:  # handlers see single rows, and nothing else goes by them
                every = units_of(self.assigner, fresh.select(self.layout.key_names), fresh[TIME].to_numpy(), due.horizon_us)
                self._taken_in(fresh, every, due.to_us)
                fresh, by_row = self._slices.combine(fresh), False
            apart, slices = held.shared.apart(held.own, due), fresh
            only = due.to_us, apart
            fresh = fresh if apart else fresh.filter(pa.array(fresh[SLICE].to_numpy() < due.to_us))
        times = fresh[SLICE if SLICE in fresh.column_names else TIME].to_numpy()
        units = units_of(self.assigner, fresh.select(self.layout.key_names), times, due.horizon_us, only)
        if not units.n:
            return _BatchWindows(slices=slices)
        windows = sorted_unique(units.pair_windows)
        overdue = windows + self.window.size_us <= due.to_us
        unseen = {w for w in windows[overdue].tolist() if w not in held}
        state = self._state(held, windows[overdue | isinstance(self.trigger.early, int)], units)
        folded = self.folder.fold(fresh, units, state, due.to_us, by_row)
        if held.shared is None:
            self._taken_in(fresh, units, due.to_us)
        if folded.firings is not None:
            results.append(self._written(folded.firings))
        held.append(folded.windows, folded.entries)
        waiting.new_at.update({str(w): due.to_us for w in folded.waiting & unseen})
        waiting.late_at.update({str(w): due.to_us for w in folded.waiting - unseen if str(w) not in waiting.new_at})
        return _BatchWindows(folded.unfired, windows[~overdue].tolist(), units.keys, slices)

    def _state(self, held: HeldWindows, looked: Ints, units: Units) -> KeyWindows:
        """Return the resolved state of the pairs a batch touches, as far as it has to be known."""
        known = [w for w in looked.tolist() if w in held]
        if not known:
            return self.log.resolve(self.log.schema.empty_table(), np.empty(0, np.int64), units.n)
        log, _ = held.load(known)
        names = [WINDOW, *self.layout.key_names]
        both = pa.concat_tables([units.keys.select(names), log.select(names)])
        groups = group([both[n].to_numpy() if n == WINDOW else both[n] for n in names], both.num_rows)
        pair_of = last_rows(groups.ids[: units.n], groups.n)
        ids = pair_of[groups.ids[units.n :]]
        content = self.log.resolve(log.filter(pa.array(ids >= 0)), ids[ids >= 0], units.n)
        if content.lent.any():
            lent = np.flatnonzero(content.lent)
            content = held.given(content, units.keys)
            if self.trigger.late != "batch":  # that fires now, so there will be another snapshot
                self._stand(held, content, lent, units.keys, pick(content.snaps, content.snap_at[lent]), snap=True)
        return content

    def _on_watermark(self, held: HeldWindows, due: FiringSpan, overdue: set[int]) -> list[pa.Table]:
        """Return the firing when the end is passed, ascending, for pairs that have not fired."""
        size, runs = self.window.size_us, held.own
        late = (w for w in overdue if w in runs)
        ended = {*runs.between(due.from_us - size + 1, due.to_us - size + 1), *held.ending, *late}
        return self._fire(held, sorted(ended), due, self.on_time_name)

    def _late_by_watermark(self, held: HeldWindows, waiting: ChangedWindows, due: FiringSpan) -> list[pa.Table]:
        """Windows that late rows changed under a smaller watermark than this (SEMANTICS §3.6)."""
        results = []
        for notes in (waiting.new_at, waiting.late_at):
            passed = sorted(int(w) for w, us in notes.items() if us < due.to_us)
            for w in passed:
                del notes[str(w)]
            results += self._fire(held, passed, due, "late", again=True)
        return results

    def _early(
        self,
        held: HeldWindows,
        changed: SortedMap[int],
        gate: IntervalGate,
        moment: Moment,
        due: FiringSpan,
        taken: _BatchWindows,
    ) -> list[pa.Table]:
        """Windows that have not ended: what changed when the time has come, or what a user's trigger says."""
        changed.remove(changed.between(None, due.to_us - self.window.size_us + 1))
        if self.custom_trigger is not None and not moment.calls_triggers:
            return []
        opens = gate.opens(self.trigger, moment, changed=len(changed) > 0)
        question = None
        if self.custom_trigger is not None:
            question = TriggerContext(self.custom_trigger, self.layout, moment, None if opens else taken.pairs)
        elif not opens:
            return []
        wanted = list(changed) if opens else taken.open
        early = self._fire(held, wanted, due, "early", again=True, question=question)
        if opens:
            changed.remove(w for w in wanted if question is None or w not in question.left)
        return early

    def _fire(
        self,
        held: HeldWindows,
        windows: list[int],
        due: FiringSpan,
        pane: str,
        *,
        again: bool = False,
        question: TriggerContext | None = None,
    ) -> list[pa.Table]:
        """Fire whole windows, ascending: pairs with pending rows if `again`, else those without a watermark firing.

        With a `question`, those of them that a user's trigger names.
        """
        out = []
        for part in held.portions(windows):
            log, lent = held.load(part)
            if question is not None and question.pairs is not None:
                log = log.filter(pa.array(among(log, question.pairs, [WINDOW, *self.layout.key_names])))
            starts = log[WINDOW].to_numpy()
            groups = group([starts, *(log[k] for k in self.layout.key_names)], log.num_rows)
            state = self.log.resolve(log, groups.ids, groups.n)
            window = starts[groups.first]
            order = stable_order(window)
            changed = (state.pending > 0) & (state.done | (pane != "late"))  # a pair not done yet has its watermark firing
            keys = pick(log.select([WINDOW, *self.layout.key_names]), groups.first)
            if question is not None:
                counts = state.rows, state.pending, state.fired, state.newest
                changed = question.chosen(WindowFacts(keys, window, window + self.window.size_us, *counts), changed, of=window)
            order = order[changed[order] if again else ~state.done[order]]
            fires = np.ones(len(order), np.bool_) if again else self._worth(state)[order]
            firing = order[fires]
            value = self._value(log, groups.first, state, firing)
            stays = window + self.window.size_us > due.horizon_us
            own = np.bincount(groups.ids[lent:], minlength=groups.n) > 0
            self._remember(held, state, order, stays[order], fires, value, keys, own, done=pane != "early")
            if len(firing):
                fired = Firings(
                    window[firing],
                    pick(keys, firing),
                    value,
                    state.fired[firing],
                    np.where(state.fired[firing] > 0, pane, self.new_name) if pane == "late" else np.full(len(firing), pane),
                    state.snaps,
                    state.snap_at[firing],
                )
                out.append(self._written(fired))
        return out

    def _written(self, firings: Firings) -> pa.Table:
        return written(self.log, self.emitter, self.window.size_us, firings, self.retract)

    def _taken_in(self, fresh: pa.Table, units: Units, watermark_us: int) -> None:
        """For operators that tell of single rows."""

    def _worth(self, state: KeyWindows) -> Mask:
        """Pairs whose watermark firing writes something: a log of changes, or of what is new, has no line for no change."""
        if not self.trigger.on_time:
            return np.zeros(len(state.done), np.bool_)
        if self.discarding:
            return state.pending > 0
        return (state.pending > 0) | (state.snap_at < 0) | (not self.retract)

    def _remember(
        self,
        held: HeldWindows,
        state: KeyWindows,
        order: Ints,
        stays: Mask,
        fires: Mask,
        value: pa.Table,
        keys: pa.Table,
        own: Mask,
        done: bool,
    ) -> None:
        """Snapshots of pairs that fired, flags of those that only passed their end, in windows that stay in state.

        The snapshots of pairs without entries of their `own` are lent. Such a pair that did not fire gets them now.
        """
        firing, flagged = order[fires], order[stays & ~fires]
        lends = stays[fires] & ~own[firing] & self.lends
        kept = stays[fires] & ~lends
        content = None if self.discarding else value.filter(pa.array(kept))
        pending = flagged[~own[flagged]]
        self._stand(held, state, pending, keys, pick(state.pends, state.pend_at[pending]), snap=False)
        for pairs, partials, snap, rows in (
            (firing[kept], content, True, state.rows if self.log.counted else 0 * state.fired),
            (firing[lends], None, True, np.full(len(own), LENT)),
            (flagged, None, False, 0 * state.fired),
        ):
            if not (n := len(pairs)):
                continue
            flags = state.fired[pairs] + snap, np.full(n, done), np.full(n, snap)
            newest = state.newest[pairs] if self.log.counted and snap else None
            partials = self.log.nothing(n) if partials is None else partials
            entries = self.log.entries(pick(keys, pairs), rows[pairs], *flags, partials, newest)
            held.append(keys[WINDOW].to_numpy()[pairs], entries)

    def _stand(
        self, held: HeldWindows, state: KeyWindows, pairs: Ints, keys: pa.Table, content: pa.Table, *, snap: bool
    ) -> None:
        """Give pairs entries of their own with what was shared of them: a snapshot, or what has not been part of a firing."""
        if len(pairs):
            rows = np.zeros(len(pairs), np.int64) if snap else state.pending[pairs]
            flags = state.fired[pairs], state.done[pairs], np.full(len(pairs), snap)
            held.append(keys[WINDOW].to_numpy()[pairs], self.log.entries(pick(keys, pairs), rows, *flags, content))

    def _value(self, log: pa.Table, first: Ints, state: KeyWindows, wanted: Ints) -> pa.Table:
        """Return what some pairs come to, given an entry of each: discarding, what came since their last firing."""
        if self.discarding:
            return pick(state.pends, state.pend_at[wanted])
        with FailingPlace(lambda pair: place_of(self.layout.spec, log, int(first[pair]))):
            return self.log.total(state, wanted)

    def state(self, bucket: Bucket) -> pa.Table:
        """See ``WindowOperator``; when discarding, what came since the last firing."""
        runs, opened = Runs(bucket, WINDOW, self.log.compact), StateTables(self.layout)
        shared, tables = self._shared(bucket), [opened.empty()]
        held = HeldWindows(runs, shared)
        for part in held.portions(runs.names()):
            log, _ = held.load(part, runs.written)
            groups = group([log[WINDOW].to_numpy(), *(log[k] for k in self.layout.key_names)], log.num_rows)
            heads, updated = opened.heads(log, groups.ids, groups.n)
            content = held.given(self.log.resolve(log, groups.ids, groups.n), heads)
            holds = content.pend_at >= 0 if self.discarding else (content.pend_at >= 0) | (content.snap_at >= 0)
            wanted = np.flatnonzero(holds)
            value = self._value(log, groups.first, content, wanted)
            heads = pick(heads, wanted)
            starts = heads[WINDOW].to_numpy()
            tables.append(opened.table(heads, updated[wanted], value.columns, starts, starts + self.window.size_us))
        if shared is not None:
            tables.append(shared.shown(runs, self.firing_delay.fired(FiringProgress.of(bucket).fired_at)))
        return pa.concat_tables(tables)

    def drop_windows(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> pa.Table:
        """See :class:`~krishiv_py.kernels.ttl.WindowDropping`."""
        runs = Runs(bucket, WINDOW, self.log.compact)
        names = [WINDOW, *self.layout.key_names]
        parts = [pa.schema([pa.field(WINDOW, pa.int64()), *self.layout.key_fields]).empty_table()]
        for window in runs.names():
            gone = remove_keys(runs, self.layout.key_names, dead, self.log.schema, window)
            parts.append(gone.add_column(0, WINDOW, pa.repeat(pa.scalar(window, pa.int64()), gone.num_rows)).select(names))
        shared = self._shared(bucket)
        if shared is not None:
            parts.append(shared.remove(dead, self.firing_delay.fired(FiringProgress.of(bucket).fired_at)))
        ChangedWindows.of(bucket).only(runs).store(bucket)
        changed = _changed(bucket)
        changed.remove([w for w in changed if w not in runs])
        return distinct(pa.concat_tables(parts), names)

    def _forget(self, held: HeldWindows, waiting: ChangedWindows, horizon: int) -> None:
        last = horizon - self.window.size_us
        for w in sorted({*held.own.between(None, last + 1), *(w for w in held.ending if w <= last)}):
            self._closing(held, w)
            if w in held.own:
                held.own.drop(w)
            waiting.new_at.pop(str(w), None)
            waiting.late_at.pop(str(w), None)

    def _closing(self, held: HeldWindows, window: int) -> None:
        """For operators that tell of windows before they are dropped."""

    def _wakeup(self, held: HeldWindows, waiting: ChangedWindows, due: FiringSpan) -> int | None:
        """Return the next watermark at which a window fires or is over; any larger one where late rows wait for it."""
        if waiting.new_at or waiting.late_at:
            return due.to_us + 1
        size, keep, runs = self.window.size_us, self.firing_delay.keep_us, held.own
        ends = (w + size for w in runs.between(due.to_us - size + 1, None, most=1))
        overs = (w + size + keep for w in runs.between(due.to_us - size - keep + 1, None, most=1))
        first = None if held.shared is None else held.shared.next_end(due)
        return min((*ends, *overs, *(() if first is None else (first,))), default=None)


def inside_of(spec: OperatorSpec) -> OperatorSpec:
    """Return the specification of the fixed windows inside; windows of size and slide are those themselves."""
    if spec.operation.extent.grid is not None:
        return spec
    return attrs.evolve(
        spec,
        row_schema=spec.row_schema.append(pa.field(START, pa.int64())),
        operation=TumblingWindow(spec.tick_us, spec.tick_us, keys=(*spec.keys, START), aggs=spec.aggs),
        late_columns=(),
    )


class AssignedOperator:
    """See the module's docstring."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.layout = Layout(spec)
        self.tick_us = spec.tick_us
        inside = inside_of(spec)
        slices = FixedOperator(
            inside, counted=not spec.options.fires_once and custom_trigger_of(spec.options.trigger) is not None
        )
        triggered = None if spec.options.fires_once else TriggeredOperator(inside)
        self.within = triggered or slices
        self.slices = slices
        self.by_row = triggered is not None and triggered.by_row
        self.prefix = SLICE if triggered is None else WINDOW
        self.start_name = self.within.layout.key_names[-1]

    def combine(self, rows: pa.Table) -> pa.Table:
        """Partial aggregates by key and window; rows as they are, with their window, when single rows make windows fire."""
        names = self.layout.key_names
        places = rows[WINDOW_END].to_numpy() - self.tick_us
        if self.by_row:
            columns = {n: rows[n] for n in rows.schema.names if n not in (WINDOW_START, WINDOW_END)}
            return pa.table({**columns, self.start_name: rows[WINDOW_START], SLICE: places})
        starts = rows[WINDOW_START].to_numpy()
        groups = group([*(rows[k] for k in names), starts, places], rows.num_rows)
        first = pa.array(groups.first)
        keys = [pick(rows[k], first) for k in names]
        partials = self.layout.create(rows, groups.ids, groups.n)
        arrays = [pa.array(places[groups.first]), *keys, pa.array(starts[groups.first]), *partials]
        return pa.Table.from_arrays(arrays + self.slices.counts(rows, groups), schema=self.slices.chunk_schema)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        done = self.within.step(bucket, chunks, moment)
        return attrs.evolve(done, results=self._outside(done.results, self.layout.result_schema))

    def state(self, bucket: Bucket) -> pa.Table:
        """See :class:`~krishiv_py.kernels.results.WindowOperator`."""
        return self._outside(self.within.state(bucket), StateTables(self.layout).schema)

    def _outside(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        """Results with the start in its place, not among the keys."""
        n = len(self.layout.key_names)
        starts = unstamp(table.column(n).to_numpy(), self.layout.spec.time_kind)
        return pa.Table.from_arrays([*table.columns[:n], starts, *table.columns[n + 2 :]], schema=schema)

    def drop_windows(self, bucket: Bucket, dead: pa.Table, moment: Moment) -> pa.Table:
        """Remove these keys from state; returns end (``w``), key and start of every window that will not be written."""
        runs, names = Runs(bucket, self.prefix, None), self.within.layout.key_names
        parts = [pa.schema(self.within.layout.key_fields).empty_table()]
        for run in runs.names():
            held = pa.concat_tables([t.select(names) for t in runs.load(run)])
            parts.append(held.filter(pa.array(among(held, dead, self.layout.key_names))))
        gone = self.within.drop_windows(bucket, distinct(pa.concat_tables(parts), names), moment)
        return gone.set_column(0, WINDOW, pa.array(gone[WINDOW].to_numpy() + self.tick_us)).rename_columns(
            [WINDOW, *self.layout.key_names, START]
        )
