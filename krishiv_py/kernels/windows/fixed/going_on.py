"""Fixed windows go on that fire otherwise than before: from slices to a log of firings, and back (SEMANTICS §12.3).

Plain windows hold slices, windows with triggers a log of entries each. A log says what has fired, and slices do not: windows
whose end the watermark had passed have. How many rows an open window holds is known where an aggregate counts all of them.
Then a trigger that counts takes them as they came, and fires with the next row where it would have fired with the last one, for
nobody has seen that result; else what the window holds counts as one row::

    slices    [a b c | d e]      log of [a b c]    snapshot of what has fired, or three rows that wait for their firing, or one
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.ranges import split
from krishiv_py.arrays.types import pick, with_column
from krishiv_py.errors import CheckpointError
from krishiv_py.kernels.columns.layout import noted_whole, of_no_rows, rows_counted
from krishiv_py.kernels.firing import custom_trigger_of
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket, Runs
from krishiv_py.kernels.state.window_log import SNAP, WINDOW, KeyWindows, PairLog
from krishiv_py.kernels.windows.fixed.plain import SLICE, FixedOperator, SharedRows
from krishiv_py.kernels.windows.fixed.triggered import TriggeredOperator, inside_of
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
    slices = Runs(bucket, SLICE, plain.merge)
    _log_windows(spec, bucket, plain, slices, plain.windows_of(slices.names(), over_us, END_OF_TIME), fired_us)


def with_rows_of_their_own(spec: OperatorSpec, bucket: Bucket, fired_us: int) -> None:
    """Let windows that overlap and held their rows together hold each its own, for they fire before their end from now on.

    Parameters
    ----------
    spec : OperatorSpec
        The windows as they fire from now on.
    bucket : Bucket
        What they hold.
    fired_us : int
        Windows that end up to there have fired.
    """
    if TriggeredOperator(inside_of(spec)).shares:
        return
    plain = FixedOperator(inside_of(spec))
    log = PairLog(plain.layout)
    shared, own = SharedRows(bucket, plain, log), Runs(bucket, WINDOW, log.compact)
    for window, keys, state in _windows_of(own, log):  # what is lent to them
        keys = keys.add_column(0, WINDOW, pa.repeat(pa.scalar(window, pa.int64()), keys.num_rows))
        if len(lent := np.flatnonzero(state.lent)):
            content = shared.given(state, keys)
            snaps = pick(content.snaps, content.snap_at[lent])
            flags = state.fired[lent], state.done[lent], np.ones(len(lent), np.bool_)
            own.append(window, log.entries(pick(keys, lent), np.zeros(len(lent), np.int64), *flags, snaps))
            if len(late := np.flatnonzero(state.lent & (state.pend_at >= 0))):
                pends = pick(state.pends, state.pend_at[late])
                flags = state.fired[late], state.done[late], np.zeros(len(late), np.bool_)
                own.append(window, log.entries(pick(keys, late), state.pending[late], *flags, pends))
    slices, over = Runs(bucket, "sl", plain.merge), Runs(bucket, "sl", plain.merge, "sl over")
    starts = [w for w in plain.windows_of(slices.names(), fired_us, END_OF_TIME) if w not in own]
    _log_windows(spec, bucket, plain, slices, starts, fired_us)
    for name in over.names():
        over.drop(name)


def _windows_of(own: Runs, log: PairLog) -> Iterator[tuple[int, pa.Table, KeyWindows]]:
    """Give each window that has a log, with its keys and what they come to."""
    for window in own.names():
        entries = pa.concat_tables(own.load(window))
        groups = group([entries[k] for k in log.layout.key_names], entries.num_rows)
        yield window, pick(entries.select(log.layout.key_names), groups.first), log.resolve(entries, groups.ids, groups.n)


def _log_windows(
    spec: OperatorSpec, bucket: Bucket, plain: FixedOperator, slices: Runs, starts: list[int], fired_us: int
) -> None:
    """Give windows entries of what they hold in slices, which go."""
    log, options = PairLog(plain.layout), spec.options
    own = Runs(bucket, WINDOW, log.compact)
    changed = bucket.map("changed", int)
    early, counted = options.trigger.early, rows_counted(plain.layout)
    every = early if isinstance(early, int) else END_OF_TIME
    for portion in plain.portions_of(slices, starts) if starts else ():
        content = plain.content(slices, portion)
        if content is None:
            continue
        merged = plain.merged(content)
        windows, partials = merged["w"].to_numpy(), merged.select(log.partial_schema.names)
        fired = windows + plain.window.size_us <= fired_us
        if options.accumulation == "discarding" and fired.any():
            partials = pick(partials, pa.array(np.arange(len(fired)), mask=fired))
        held = np.ones(len(fired), np.int64) if counted is None else merged[counted].to_numpy()
        times, rest = np.divmod(held, every)
        rows = np.where(fired, 0, np.where(rest == 0, every, rest))
        entries = log.entries(merged, rows, np.where(fired, 1, times), fired, fired, partials)
        for window, part in split(entries, windows):
            own.append(window, part)
        if options.trigger._period_us is not None:
            for window in np.unique(windows[~fired]).tolist():
                changed[window] = 1
    for name in slices.names():
        slices.drop(name)


def with_unknown_totals(spec: OperatorSpec, bucket: Bucket, mark: str) -> None:
    """Let windows that held the rows since they fired hold all of theirs: those that have fired are not whole.

    Parameters
    ----------
    spec : OperatorSpec
        The windows as they fire from now on.
    bucket : Bucket
        What they hold.
    mark : str
        The aggregate that says which windows are whole.
    """
    inside = inside_of(spec)
    layout = FixedOperator(inside).layout
    log = PairLog(layout, counted=custom_trigger_of(spec.options.trigger) is not None)
    own = Runs(bucket, WINDOW, log.compact)
    for window in own.names():
        entries = pa.concat_tables(own.load(window))
        shown = entries[SNAP].to_numpy()
        partials = pa.concat_tables([entries.select(log.partial_schema.names), of_no_rows(layout)])
        partials = pick(partials, np.where(shown, entries.num_rows, np.arange(entries.num_rows)))
        partials = noted_whole(layout, partials, ~shown, mark)
        for name in partials.column_names:
            entries = with_column(entries, name, partials[name])
        own.drop(window)
        own.append(window, entries)


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
    for window, keys, state in _windows_of(own, log):
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
        keys = pick(keys, held)
        rows = pa.Table.from_arrays(
            [pa.array(np.full(len(held), window)), *keys.columns, *log.total(state, held).columns], schema=plain.chunk_schema
        )
        if rows.num_rows:
            slices.append(window, rows)
    for window in own.names():
        own.drop(window)
    bucket.meta.pop("changed", None)
