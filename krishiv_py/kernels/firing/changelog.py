"""Result rows of triggered windows in the order in which they are written, withdrawals before what replaces them."""

from __future__ import annotations

from typing import TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.kernels.arrays.types import Ints
from krishiv_py.kernels.results.emit import Emitter
from krishiv_py.kernels.state.window_log import PairLog

Texts: TypeAlias = npt.NDArray[np.str_]


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
        What stood before, where `old_at` is not -1.
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
    names = log.layout.key_names
    picked = np.flatnonzero(firings.old_at >= 0) if retract else np.empty(0, np.int64)
    source = np.arange(n)
    op: str | Texts = np.where(firings.old_at >= 0, "+U", "+I") if retract else "+I"
    content = firings.partials
    if len(picked):
        content = pa.concat_tables([content, firings.old.take(pa.array(firings.old_at[picked]))])
        order = np.argsort(np.concatenate([2 * source + 1, 2 * picked]))
        source = np.concatenate([source, picked])[order]
        op = np.concatenate([op, np.full(len(picked), "-U")])[order]
        content = content.take(pa.array(order))
    keys = firings.keys.take(pa.array(source)).select(names)
    merged = pa.Table.from_arrays([*keys.columns, *content.columns], names=[*names, *content.schema.names])
    starts = firings.windows[source]
    return emitter.rows(merged, starts, starts + size_us, op, firings.pane[source], firings.index[source])
