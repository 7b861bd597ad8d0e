"""Plots of rows, watermark, windows and lateness; needs matplotlib, which the extra ``plot`` installs.

Every function returns a :class:`matplotlib.figure.Figure` that belongs to no window: a notebook shows it (after
``%matplotlib inline``), ``figure.savefig("rows.png")`` writes it. Colours are those of Okabe and Ito, which colour-blind
readers tell apart; no meaning is in a colour alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from krishiv_py.arrays.types import Mask
from krishiv_py.display.arrivals import ArrivalOrder, RowsLike, arrivals, as_table, as_tables, late_table, require_name
from krishiv_py.display.axes import Band, TimeAxis, bands, in_lanes, unit_for
from krishiv_py.display.lag import LatenessProfile, late_over
from krishiv_py.errors import PlanError, missing_extra, shown
from krishiv_py.plan.durations import END_OF_TIME, UNSET, Duration

try:
    from matplotlib.axes import Axes
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
except ImportError as problem:
    raise missing_extra("matplotlib", "plot", "nothing can be drawn") from problem

_ROW, _LINE, _LATE, _OTHER, _BAND = "#0072B2", "#000000", "#D55E00", "#CC79A7", "#56B4E9"
_GREY: Final = "#707070"
_WIDTH: Final = 9.0  # inches
_MOST_KEYS: Final = 4
_MOST_TICKS: Final = 12


def timeline(
    batches: Sequence[RowsLike],
    *,
    time: str,
    lag: Duration | None = None,
    watermarks_us: Sequence[int] | None = None,
    results: RowsLike | None = None,
    late: RowsLike | None = None,
    key: str | None = None,
    keys: Sequence[object] | None = None,
    label: str | None = None,
) -> Figure:
    """Rows by event time and arrival, the watermark they met, the windows, and the rows that came too late.

    Time runs to the right, arrival upwards; a row left of the watermark's line came behind it.

    Parameters
    ----------
    batches : sequence of pyarrow.Table or list of dict
        The rows as they came, one table (or what a sender takes else) per micro-batch.
    time : str
        The event-time column: a timestamp, or integer milliseconds.
    lag : int or timedelta or str, optional
        The lag of the watermark (``int`` is milliseconds), from which the one in force in each batch follows.
    watermarks_us : sequence of int, optional
        Instead of `lag`: the watermark in force in each batch, µs, as ``Driver.watermark_us`` has it before a ``send``.
    results : pyarrow.Table, optional
        Results, whose ``window_start`` and ``window_end`` are drawn as bands.
    late : pyarrow.Table, optional
        Late rows, whole: of ``run().late``, ``query.late_rows()`` or ``StepOutput.late``.
    key : str, optional
        Draw each key in a panel of its own; without it all rows are in one.
    keys : sequence, optional
        Which keys, at the most four; those with the most refused rows, then the most rows, by default.
    label : str, optional
        The column of `results` that is written on the bands, for instance ``"count"``.

    Raises
    ------
    PlanError
        When both or neither of `lag` and `watermarks_us` are given, when a late row is in none of the batches, or when there
        are zero, or too many, keys to draw; for values that are not rows, and for batches with different columns.

    Examples
    --------
    >>> import pyarrow as pa
    >>> sent = [pa.table({"at": [1_000, 70_000]}), pa.table({"at": [2_000, 80_000]})]
    >>> figure = timeline(sent, time="at", lag="5 s")
    >>> figure.axes[-1].get_xlabel()
    'event time (s)'
    """
    for name, value in (("time", time), ("key", key or ""), ("label", label or "")):
        require_name(value, name)
    refused = None if late is None else late_table(late)
    came = arrivals(as_tables(batches), time, lag, watermarks_us, refused, key)
    windows = [] if results is None else bands(as_table(results, "results"), key, label)
    chosen = [None] if key is None else _chosen(came, keys)
    masks = [np.array([key is None or k == c for k in came.keys], np.bool_) for c in chosen]
    laned = [in_lanes([w for w in windows if w.key == c]) for c in chosen]
    drawn = np.any(masks, axis=0) & came.usable
    axis = TimeAxis.over(np.concatenate([came.times_us[drawn], [t for g in laned for w in g for t in (w.start_us, w.end_us)]]))
    per = [1.0] if results is None else [1.0, 0.06 + 0.055 * max((w.lane + 1 for g in laned for w in g), default=0)]
    heights = per * len(chosen)
    figure = Figure(figsize=(_WIDTH, 0.9 + 2.7 * sum(heights)), layout="constrained")
    grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for lane, (mask, group) in enumerate(zip(masks, laned, strict=True)):
        above, *below = grid[len(per) * lane : len(per) * (lane + 1)]
        _rows(above, axis, came, mask)
        for strip in below:
            _windows(above, strip, axis, group)
        title = "" if key is None else f"{key} = {chosen[lane]}"
        above.set_title(title, loc="left", fontsize="medium", fontweight="bold")
    _dress(figure, grid[-1], axis)
    return figure


def lateness(late: RowsLike) -> Figure:
    """Return by how much the late rows were older than the watermark, and how many were refused for another reason.

    Parameters
    ----------
    late : pyarrow.Table
        Late rows, with at least the three columns every late output ends in: the reason, the watermark, the lateness in the
        unit of the time column (ms if the watermark is a number, else µs).

    Raises
    ------
    PlanError
        When the table does not end in these columns.

    Examples
    --------
    >>> import pyarrow as pa
    >>> late = pa.table({"reason": ["late"] * 3, "watermark": [0] * 3, "lateness": [1_000, 2_000, 60_000]})
    >>> lateness(late).axes[0].get_xlabel()
    'behind the watermark (s)'
    """
    late = late_table(late)
    names = late.column_names[-3:]
    reasons = Counter(late[names[0]].to_pylist())
    late_us = late[names[2]].drop_null().to_numpy()
    others = set(reasons) - {"late"}
    figure = Figure(figsize=(_WIDTH, 3.6), layout="constrained")
    left, *right = figure.subplots(1, 2 if others else 1, squeeze=False, width_ratios=[3, 1.6] if others else [1])[0]
    unit, us = unit_for(int(late_us.max()) if len(late_us) else 0)
    if len(late_us):
        bins = min(40, max(10, len(late_us) // 10))
        left.hist(late_us / us, bins=bins, range=(0, late_us.max() / us), color=_ROW, edgecolor="white", linewidth=0.5)
        for share, style in ((50, "--"), (95, ":")):
            at_share = (
                float(np.percentile(late_us, share, method="inverted_cdf")) / us
            )  # a value that is there: so many are within
            left.axvline(at_share, color=_LINE, linestyle=style, label=f"{share} % within {at_share:.3g} {unit}")
        left.set_xlim(left=0)
        left.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, borderaxespad=0)
    left.yaxis.set_major_locator(MaxNLocator(integer=True))
    _plain(left, f"behind the watermark ({unit})", "late rows")
    left.set_title(f"{len(late_us):,} late rows".replace(",", "\u202f"), loc="left", fontsize="medium", fontweight="bold")
    for axes in right:
        _reasons(axes, reasons)
    return figure


def lags(profile: LatenessProfile) -> Figure:
    """Draw which part of the rows is late under each lag, with the lags of the profile as dots.

    Parameters
    ----------
    profile : LatenessProfile
        What :func:`krishiv_py.lateness_profile` gave.

    Raises
    ------
    PlanError
        For a value that is not a profile.

    Examples
    --------
    >>> from krishiv_py import lateness_profile
    >>> lags(lateness_profile([{"at": at} for at in (5_000, 1_000, 9_000)], "at")).axes[0].get_xlabel()
    'lag (s)'
    """
    if not isinstance(profile, LatenessProfile):
        raise PlanError("not a LatenessProfile", got=shown(profile), hint="pass lateness_profile(...)")
    steps = profile.behind_us
    unit, us = unit_for(int(steps[-1]) if len(steps) else 0)
    figure = Figure(figsize=(_WIDTH, 3.6), layout="constrained")
    axes = figure.subplots()
    if len(steps):
        share = 100 * (1 - np.cumsum(profile.behind_rows) / profile.rows)
        edges = np.concatenate([[0.0], steps / us, [steps[-1] / us * 1.05 + 1e-9]])
        top = 100 * late_over(profile, 0) / profile.rows
        axes.stairs(np.concatenate([[top], share]), edges, baseline=None, color=_ROW, linewidth=2, label="late rows")
        tried = profile.table["lag_us"].to_numpy() / us
        axes.scatter(tried, 100 * profile.table["late_share"].to_numpy(), color=_LATE, zorder=3, label="lags of the table")
        axes.legend(frameon=False)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    _plain(axes, f"lag ({unit})", "late rows (%)")
    return figure


def _chosen(came: ArrivalOrder, keys: Sequence[object] | None) -> list[object]:
    if keys is not None:
        if isinstance(keys, str) or not isinstance(keys, Sequence):
            raise PlanError("`keys` is a sequence", got=shown(keys), hint='pass keys=["a", "b"]')
        unknown = [k for k in keys if k not in came.keys]
        if unknown or not 1 <= len(keys) <= _MOST_KEYS:
            hint = f"name one to {_MOST_KEYS} keys that are among the rows"
            raise PlanError("`keys` cannot be drawn", got=repr(list(keys)), hint=hint)
        return list(keys)
    refused = Counter(k for k, why in zip(came.keys, came.reasons, strict=True) if why is not None)
    rows = Counter(came.keys)
    return sorted(sorted(rows, key=lambda k: (-refused[k], -rows[k], repr(k)))[:_MOST_KEYS], key=repr)


def _rows(axes: Axes, axis: TimeAxis, came: ArrivalOrder, mask: Mask) -> None:
    """Dots for the rows, crosses for the refused ones, and the watermark as a step line."""
    times, order = axis.at(came.times_us), np.arange(len(came.times_us))
    reason = np.array([why or "" for why in came.reasons])
    for why in ("", *sorted(set(came.reasons) - {None}, key=str)):
        here = mask & came.usable & (reason == why)
        if not here.any():
            continue
        if why == "":
            axes.scatter(times[here], order[here], s=14, color=_ROW, alpha=0.8, linewidths=0, label="row", zorder=3)
        else:
            mark, colour = ("X", _LATE) if why == "late" else ("s", _OTHER)
            axes.scatter(
                times[here],
                order[here],
                s=42,
                marker=mark,
                color=colour,
                edgecolors="white",
                linewidths=0.6,
                label=f"refused: {why}",
                zorder=4,
            )
    steps = [
        (us, begin - 0.5, end - 0.5)
        for us, begin, end in zip(came.watermarks_us, came.edges[:-1], came.edges[1:], strict=True)
        if us not in (UNSET, END_OF_TIME) and end > begin
    ]
    xs = [float(axis.at(us)) for us, _, _ in steps for _ in range(2)]
    ys = [y for _, begin, end in steps for y in (begin, end)]
    axes.plot(xs, ys, color=_LINE, linewidth=1.4, label="watermark in force", zorder=2)
    axes.set_ylim(-0.5, max(len(order), 1) - 0.5)
    _batches(axes, came.edges)
    _plain(axes, "", "row, by arrival")


def _batches(axes: Axes, edges: tuple[int, ...]) -> None:
    """Thin lines between micro-batches, and their numbers at the right."""
    every = -(-(len(edges) - 1) // _MOST_TICKS)
    for edge in edges[1:-1] if every == 1 else ():
        axes.axhline(edge - 0.5, color=_GREY, linewidth=0.5, linestyle=":", zorder=1)
    right = axes.secondary_yaxis("right")
    shown = range(0, len(edges) - 1, every)
    right.set_yticks([(edges[n] + edges[n + 1] - 1) / 2 for n in shown], [str(n) for n in shown])
    right.set_ylabel("micro-batch")
    right.tick_params(length=0)
    right.spines["right"].set_visible(False)


def _windows(above: Axes, below: Axes, axis: TimeAxis, group: list[Band]) -> None:
    """Bars in lanes below the rows; where none overlap, every other one is shaded up through the rows."""
    lanes = max((w.lane for w in group), default=-1) + 1
    lengths = {w.end_us - w.start_us for w in group}
    for number, window in enumerate(group):
        # windows of one length are shaded alike in all panels
        odd = (window.start_us // max(lengths) if len(lengths) == 1 else number) % 2
        start, end = float(axis.at(window.start_us)), float(axis.at(window.end_us))
        below.barh(window.lane, end - start, left=start, height=0.8, color=_BAND, edgecolor="white", linewidth=1.2)
        below.text((start + end) / 2, window.lane, window.text, ha="center", va="center", fontsize="x-small", clip_on=True)
        if lanes == 1:
            above.axvspan(start, end, color=_BAND, alpha=0.22 if odd else 0.1, linewidth=0, zorder=0)
    below.set_ylim(-0.6, max(lanes, 1) - 0.4)
    below.set_yticks([])
    below.set_ylabel("windows" if group else "", rotation=0, ha="right", va="center")
    for side in ("left", "right", "top"):
        below.spines[side].set_visible(False)


def _dress(figure: Figure, lowest: Axes, axis: TimeAxis) -> None:
    """The shared time axis, and one legend for all panels."""
    for axes in figure.axes:
        axes.margins(x=0.01)
    lowest.set_xlabel(axis.label)
    if axis.unit_us is None:
        locator = AutoDateLocator(maxticks=9)
        lowest.xaxis.set_major_locator(locator)
        lowest.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    handles = {text: handle for axes in figure.axes for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=4, frameon=False)


def _reasons(axes: Axes, reasons: Counter[str]) -> None:
    names = [name for name, _ in reasons.most_common()][::-1]
    bars = axes.barh(names, [reasons[n] for n in names], color=[_LATE if n == "late" else _OTHER for n in names])
    axes.bar_label(bars, padding=3)
    axes.margins(x=0.2)
    _plain(axes, "rows", "")
    axes.set_title("Refused, by reason", loc="left", fontsize="medium", fontweight="bold")


def _plain(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
