"""Firing of windows: what is due, the gate of interval triggers, a user's trigger, and the order of what they write."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints, Mask, flags_at, pick
from krishiv_py.errors import RAISED, OperatorError, failure_text, shown
from krishiv_py.kernels.columns.layout import START, Layout, place_of
from krishiv_py.kernels.results import Emitter, Texts, compose
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Section
from krishiv_py.kernels.state.window_log import PairLog
from krishiv_py.kernels.watermark import floor_watermark
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.plan.options.triggers import CustomTrigger, OpenWindows, Trigger


@attrs.frozen
class FiringSpan:
    """Windows that end after `from_us` and not after `to_us` fire; those that end at or before `horizon_us` are over.

    Attributes
    ----------
    from_us, to_us : int
        The watermark before and now, each less what results wait for.
    horizon_us : int
        The watermark now, less what state waits for.
    reached_us : int
        The watermark now; it never moves back.
    """

    from_us: int
    to_us: int
    horizon_us: int
    reached_us: int


@attrs.frozen
class FiringDelay:
    """Says how far results and state stay behind the watermark.

    Attributes
    ----------
    wait_us : int
        A window fires when the watermark has passed its end by so much: with final results the allowed lateness.
    keep_us : int
        State of a window is kept until the watermark has passed its end by so much.
    left_us : int
        Windows that end up to here have left under another allowed lateness.
    written_us : int
        Windows that end up to here have fired under another allowed lateness.
    """

    wait_us: int
    keep_us: int
    left_us: int = UNSET
    written_us: int = UNSET

    @classmethod
    def of(cls, options: QueryOptions) -> FiringDelay:
        """Return what the plan says: results that may be followed by others do not wait."""
        lateness_us = options.allowed_lateness_us
        wait_us = lateness_us if options.emit_mode == "final" else 0
        return cls(wait_us, lateness_us, options.left_us, options.left_us)

    def due(self, moment: Moment, fired_at: int = UNSET) -> FiringSpan:
        """Return what is due at a moment, after all that was due up to the watermark `fired_at`."""
        reached = max(fired_at, moment.watermark_us)
        return FiringSpan(self.fired(fired_at), self.fired(reached), self.over(reached), reached)

    def fired(self, watermark_us: int) -> int:
        """Windows that end up to here have fired under this watermark."""
        return max(floor_watermark(watermark_us, self.wait_us), self.written_us)

    def over(self, watermark_us: int) -> int:
        """Windows that end up to here are over under this watermark."""
        return max(floor_watermark(watermark_us, self.keep_us), self.left_us)


class FiringOperator:
    """Base of operators whose windows fire: of the rows of a key, by their end."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.layout = Layout(spec)
        self.emitter = Emitter(self.layout)
        self.firing_delay = FiringDelay.of(spec.options)
        self.mode = spec.options.emit_mode

    def combine(self, rows: pa.Table) -> pa.Table:
        """Return the rows as they are, where each of them counts by itself."""
        return rows


@attrs.define
class IntervalGate(Section):
    """Says when what had changed was last shown: processing time in µs, None before anything changed."""

    shown_at: int | None = None

    def opens(self, trigger: Trigger, moment: Moment, *, changed: bool) -> bool:
        """Return whether it is time for what changed; the clock starts when something has changed for the first time."""
        period_us = trigger._period_us
        if period_us is None or moment.now_us is None or not changed:
            return False
        if self.shown_at is None:
            self.shown_at = moment.now_us
        if moment.now_us - self.shown_at < period_us:
            return False
        self.shown_at = moment.now_us
        return True

    def wakeup(self, trigger: Trigger, *, changed: bool) -> int | None:
        """Return the processing time at which it opens, if anything waits for that."""
        if trigger._period_us is None or self.shown_at is None or not changed:
            return None
        return self.shown_at + trigger._period_us


@attrs.frozen(eq=False)
class Firings:
    """Firings of one phase of a step, in order.

    Attributes
    ----------
    windows : ndarray of int64
        Start of every fired window, µs.
    keys, partials : pyarrow.Table
        Its key and what is written.
    index : ndarray of int64
        How many firings it had before.
    pane : ndarray of str
        ``early``, ``on_time`` or ``late``.
    old : pyarrow.Table
        What was there before, where `old_at` is not -1.
    old_at : ndarray of int64
        Row of `old`.
    """

    windows: Ints
    keys: pa.Table
    partials: pa.Table
    index: Ints
    pane: Texts
    old: pa.Table
    old_at: Ints


def written(log: PairLog, emitter: Emitter, size_us: int, firings: Firings, retract: bool) -> pa.Table:
    """Result rows of some firings."""
    n = len(firings.windows)
    picked = np.flatnonzero(firings.old_at >= 0) if retract else np.empty(0, np.int64)
    results = compose(np.arange(n), n + np.arange(len(picked)), picked)
    content = firings.partials
    if len(picked):
        content = pick(pa.concat_tables([content, pick(firings.old, firings.old_at[picked])]), results.result)
    names = log.layout.key_names
    keys = pick(firings.keys, results.cause).select(names)
    merged = pa.Table.from_arrays([*keys.columns, *content.columns], names=[*names, *content.schema.names])
    starts = firings.windows[results.cause]
    return emitter.rows(merged, starts, starts + size_us, results.op, firings.pane[results.cause], firings.index[results.cause])


@attrs.frozen(eq=False)
class WindowFacts:
    """Says how windows stand, an entry each.

    Attributes
    ----------
    keys : pyarrow.Table
        Their keys, among other columns perhaps.
    starts, ends, newest : ndarray of int64
        Bounds and the newest event time in µs.
    rows, pending, fired : ndarray of int64
        All rows, rows since the last firing, and firings so far.
    """

    keys: pa.Table
    starts: Ints
    ends: Ints
    rows: Ints
    pending: Ints
    fired: Ints
    newest: Ints

    def only(self, rows: Ints) -> WindowFacts:
        """Some of them."""
        counts = (v[rows] for v in (self.starts, self.ends, self.rows, self.pending, self.fired, self.newest))
        return WindowFacts(pick(self.keys, rows), *counts)


@attrs.define(eq=False)
class TriggerContext:
    """A user's trigger and what is in force as it is asked.

    Attributes
    ----------
    custom_trigger : CustomTrigger
        The trigger.
    layout : Layout
        Names the keys.
    moment : Moment
        What is in force.
    pairs : pyarrow.Table or None
        Only windows of these keys are asked about; None for all.
    left : set of int
        What asks notes here: whose windows do not all fire.
    """

    custom_trigger: CustomTrigger
    layout: Layout
    moment: Moment
    pairs: pa.Table | None = None
    left: set[int] = attrs.field(factory=set)

    def chosen(self, windows: WindowFacts, candidates: Mask, *, of: Ints) -> Mask:
        """Return which candidates among the windows fire; what the others are `of` is left."""
        chosen = np.flatnonzero(candidates)
        fires = answer(self.custom_trigger, self.layout, windows.only(chosen), self.moment)
        self.left.update(of[chosen[~fires]].tolist())
        return flags_at(chosen[fires], len(candidates))


def custom_trigger_of(trigger: Trigger) -> CustomTrigger | None:
    """Return the user's trigger that says when windows fire early, if one does."""
    return trigger.early if isinstance(trigger.early, CustomTrigger) else None


def answer(custom_trigger: CustomTrigger, layout: Layout, windows: WindowFacts, moment: Moment) -> Mask:
    """Return which windows fire.

    Raises
    ------
    OperatorError
        For a trigger that fails or breaks its contract; names it.
    """
    n = len(windows.starts)
    if not n:
        return np.zeros(0, np.bool_)
    question = _question(custom_trigger, layout, windows, moment)
    try:
        given = custom_trigger.trigger.fires(question)
        verdict = np.asarray(given)
    except RAISED as problem:  # user code: whatever it raises is reported with its class
        place = place_of(layout.spec, windows.keys, 0, (int(windows.starts[0]), int(windows.ends[0])))
        got = f"{n} windows, the first one {place.removeprefix('for ').removeprefix('in ')}"
        what = f"window trigger {custom_trigger.name} failed"
        raise OperatorError(what, got=got, then=failure_text(problem), hint="fix `fires` of the trigger") from problem
    if verdict.dtype != np.bool_ or verdict.shape != (n,):
        got = shown(given) if verdict.ndim == 0 else f"{verdict.dtype} of shape {verdict.shape}"
        what = f"window trigger {custom_trigger.name} does not return one bool for each of {n} windows"
        raise OperatorError(what, got=got, hint="return an array like windows.rows >= 100")
    return verdict


def _question(custom_trigger: CustomTrigger, layout: Layout, w: WindowFacts, moment: Moment) -> OpenWindows:
    names = [(inside, key) for inside, key in zip(layout.key_names, layout.spec.keys, strict=True) if key != START]
    starts = w.starts if len(names) == len(layout.key_names) else w.keys[layout.key_names[-1]].to_numpy()
    keys = w.keys.select([inside for inside, _ in names]).rename_columns([key for _, key in names])
    return OpenWindows(
        keys=keys,
        **{
            name: _locked(values)
            for name, values in (
                ("start", starts),
                ("end", w.ends),
                ("rows", w.rows),
                ("new_rows", w.pending),
                ("firings", w.fired),
                ("newest", w.newest),
            )
        },
        watermark=None if moment.watermark_us == UNSET else moment.watermark_us,
        now=None if custom_trigger.every_us is None else moment.now_us,
    )


def _locked(values: Ints) -> Ints:
    """Return a view of the numbers that user code cannot change."""
    seen = values.view()
    seen.flags.writeable = False
    return seen
