"""Fixed windows go on that fire otherwise than before: from slices to a log of firings, and back (SEMANTICS §12.3).

Plain windows hold slices, windows with triggers a log of entries each. A log says what has fired, and slices do not: windows
whose end the watermark had passed have. How many rows a slice was made of is not known either, so what an open window holds
counts as one row for a trigger that counts::

    slices    [a b c | d e]      log of [a b c]    snapshot, or one row that waits for its firing
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.ranges import split
from krishiv_py.errors import CheckpointError
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket, Runs
from krishiv_py.kernels.state.window_log import WINDOW, PairLog
from krishiv_py.kernels.windows.fixed.plain import SLICE, FixedOperator
from krishiv_py.kernels.windows.fixed.triggered import inside_of
from krishiv_py.plan.durations import END_OF_TIME


def with_log(spec: OperatorSpec, bucket: Bucket, over_us: int, fired_us: int) -> None:
    """Let windows that held slices have a log of firings each.

    Parameters
    ----------
    spec : OperatorSpec
        The windows as they fire from now on.
    bucket : Bucket
        What they hold.
    over_us, fired_us : int
        Windows that end up to there have left, or have fired.
    """
    plain = FixedOperator(inside_of(spec))
    log, options = PairLog(plain.layout), spec.options
    slices, own = Runs(bucket, SLICE, plain.merge), Runs(bucket, WINDOW, log.compact)
    starts = plain.windows_of(slices.names(), over_us, END_OF_TIME)
    changed = bucket.map("changed", int)
    for portion in plain.portions_of(slices, starts) if starts else ():
        content = plain.content(slices, portion)
        if content is None:
            continue
        merged = plain.merged(content)
        windows, partials = merged["w"].to_numpy(), merged.select(log.partial_schema.names)
        fired = windows + plain.window.size_us <= fired_us
        if options.accumulation == "discarding" and fired.any():
            partials = pick(partials, pa.array(np.arange(len(fired)), mask=fired))
        rows = np.where(fired, 0, 1)
        entries = log.entries(merged, rows, fired.astype(np.int64), fired, fired, partials)
        for window, part in split(entries, windows):
            own.append(window, part)
        if options.trigger._period_us is not None:
            for window in np.unique(windows[~fired]).tolist():
                changed[window] = 1
    for name in slices.names():
        slices.drop(name)


def without_log(spec: OperatorSpec, bucket: Bucket, fired_us: int) -> None:
    """Let windows that had a log of firings hold slices, for one that each of them is.

    Parameters
    ----------
    spec : OperatorSpec
        The windows as they fire from now on.
    bucket : Bucket
        What they hold.
    fired_us : int
        Windows that end up to there have fired.

    Raises
    ------
    CheckpointError
        Where results have to follow, or to be withdrawn, that nobody would know of.
    """
    plain = FixedOperator(inside_of(spec))
    log, mode = PairLog(plain.layout), spec.options.emit_mode
    slices, own = Runs(bucket, SLICE, plain.merge), Runs(bucket, WINDOW, log.compact)
    for window in own.names():
        entries = pa.concat_tables(own.load(window))
        groups = group([entries[k] for k in log.layout.key_names], entries.num_rows)
        state = log.resolve(entries, groups.ids, groups.n)
        over = window + plain.window.size_us <= fired_us
        shown = (state.pend_at < 0) if over else (state.snap_at < 0)
        if (mode == "retractions" or (over and mode == "updates")) and not shown.all():
            raise CheckpointError(
                f"windows of {spec.name} cannot go on without their trigger yet",
                got="rows that no result has shown" if over else "early results of windows that have not ended",
                then="their result would lack rows" if over else "they would stand next to the result at the end",
                hint="make the savepoint once these windows have fired, or keep the trigger",
            )
        held = np.flatnonzero((state.pend_at >= 0) | (state.snap_at >= 0))
        keys = pick(entries.select(log.layout.key_names), groups.first[held])
        rows = pa.Table.from_arrays(
            [pa.array(np.full(len(held), window)), *keys.columns, *log.total(state, held).columns], schema=plain.chunk_schema
        )
        if rows.num_rows:
            slices.append(window, rows)
    for window in own.names():
        own.drop(window)
    bucket.meta.pop("changed", None)
