"""Result rows of triggered windows in the order in which they are written, withdrawals before what replaces them."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.results import Emitter, Texts, compose
from krishiv_py.kernels.state.window_log import PairLog


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
