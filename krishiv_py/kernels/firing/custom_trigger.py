"""Asking a user's trigger which open windows fire (SEMANTICS §5.7), and holding it to its contract."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.errors import RAISED, OperatorError, failure_text, shown
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.columns.place import START, place_of
from krishiv_py.kernels.moment import Moment
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.options.triggers import CustomTrigger, OpenWindows, Trigger


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
class Question:
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
        chosen_mask = np.zeros(len(candidates), np.bool_)
        chosen_mask[chosen[fires]] = True
        return chosen_mask


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
        raise OperatorError(
            f"window trigger {custom_trigger.name} failed",
            got=got,
            then=failure_text(problem),
            hint="fix `fires` of the trigger",
        ) from problem
    if verdict.dtype != np.bool_ or verdict.shape != (n,):
        got = shown(given) if verdict.ndim == 0 else f"{verdict.dtype} of shape {verdict.shape}"
        raise OperatorError(
            f"window trigger {custom_trigger.name} does not return one bool for each of {n} windows",
            got=got,
            hint="return an array like windows.rows >= 100",
        )
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
    """Return the same numbers, so that user code cannot change them."""
    seen = values.view()
    seen.flags.writeable = False
    return seen
