"""The page that shows what a session runs: made on the server, of plain values, and complete without a network.

A page is a head with styles and a small script, and a part that the script fetches again every two seconds. Both are pure
functions of :class:`View` values, so that they can be tested and printed without a server.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.display.arrivals import late_table
from krishiv_py.display.html import cell, digits, number, shown, size
from krishiv_py.display.times import Times, times_html
from krishiv_py.errors import PlanError
from krishiv_py.failures.redaction import redacted
from krishiv_py.plan.durations import END_OF_TIME, UNSET, show_instant, show_length, show_us
from krishiv_py.plan.running import Progress

_WIDE: Final = 200
_HIGH: Final = 58
_ACROSS: Final = 46
_DOWN: Final = 16
_EDGE: Final = 2
_LONGEST: Final = 27
"""Letters that fit into a box."""


@attrs.frozen
class Box:
    """A source, a stage or an output.

    Attributes
    ----------
    kind : {"source", "stage", "output"}
        What it is.
    name, detail, numbers : str
        Its three lines.
    inputs : tuple of int
        The boxes that rows come from, by their place in the list; they stand before it.
    """

    kind: str
    name: str
    detail: str = ""
    numbers: str = ""
    inputs: tuple[int, ...] = ()


def drawn(boxes: tuple[Box, ...]) -> str:
    """Return the drawing as SVG; its colours come from the page.

    Examples
    --------
    >>> "per minute" in drawn((Box("source", "events"), Box("stage", "per minute", inputs=(0,))))
    True
    """
    columns: list[int] = []
    for box in boxes:
        columns.append(1 + max((columns[n] for n in box.inputs), default=-1))
    last = max((c for c, box in zip(columns, boxes, strict=True) if box.kind == "stage"), default=0)
    columns = [last + 1 if box.kind == "output" else c for c, box in zip(columns, boxes, strict=True)]
    used = [0] * (max(columns) + 1)
    places: list[tuple[int, int]] = []
    for box, column in zip(boxes, columns, strict=True):
        # a box lies below all that an arrow to it passes: the arrow bends in the gap after its beginning, and then is level
        passed = min((columns[n] for n in box.inputs), default=column - 1) + 1
        row = max(used[passed : column + 1])
        places.append((_EDGE + column * (_WIDE + _ACROSS), _EDGE + row * (_HIGH + _DOWN)))
        used[passed : column + 1] = [row + 1] * (column + 1 - passed)
    wide = max(x for x, _ in places) + _WIDE + _EDGE
    high = max(y for _, y in places) + _HIGH + _EDGE
    arrows = "".join(_arrow(places[n], places[number]) for number, box in enumerate(boxes) for n in box.inputs)
    label = ", ".join(f"{box.kind} {box.name}" for box in boxes)
    return (
        f"<svg class='graph' width='{wide}' height='{high}' viewBox='0 0 {wide} {high}' role='img' aria-label='{shown(label)}'>"
        + arrows
        + "".join(_box(box, *place) for box, place in zip(boxes, places, strict=True))
        + "</svg>"
    )


def _box(box: Box, x: int, y: int) -> str:
    lines = [(line, style) for line, style in ((box.name, "name"), (box.detail, "soft"), (box.numbers, "soft")) if line]
    text = "".join(
        f"<text x='{x + 10}' y='{y + 18 + 17 * n}' class='{style}'>{shown(_cut(line))}</text>"
        for n, (line, style) in enumerate(lines)
    )
    whole = shown(", ".join(line for line, _ in lines))
    frame = f"<rect class='{box.kind}' x='{x}' y='{y}' width='{_WIDE}' height='{_HIGH}' rx='6'/>"
    return f"<g><title>{whole}</title>{frame}{text}</g>"


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _arrow(one: tuple[int, int], other: tuple[int, int]) -> str:
    x, y, to_x, to_y = one[0] + _WIDE, one[1] + _HIGH // 2, other[0], other[1] + _HIGH // 2
    bend = x + _ACROSS
    middle = x + _ACROSS // 2
    return (
        f"<path class='arrow' d='M{x} {y}C{middle} {y} {middle} {to_y} {bend - 6} {to_y}H{to_x - 6}'/>"
        f"<path class='head' d='M{to_x - 7} {to_y - 4}L{to_x} {to_y}L{to_x - 7} {to_y + 4}Z'/>"
    )


_CHART: Final = (240, 56)
_MOST_LATE: Final = 8
_MOST_COUNTED: Final = 100_000
"""Of how many late rows, the last ones, the lateness is drawn."""
_LONGEST_CELL: Final = 40
_NEAR_US: Final = 10 * 366 * 24 * 3_600 * 1_000_000
"""A watermark that is farther from the clock than ten years is not compared with it."""
_SIGNS: Final = {"running": "●", "stopped": "■", "failed": "✖", "stuck": "⚠"}
_ORDER: Final = ("failed", "stuck", "running", "stopped")
"""Queries that need somebody are first."""
_MOST_OPEN: Final = 3
"""Of more queries only those that need somebody are shown whole; the others are folded."""
_STEPS_US: Final = tuple(10**n * m * 1_000 for n in range(9) for m in (1, 2, 5))


@attrs.frozen
class Sample:
    """The numbers of a query at one moment.

    Attributes
    ----------
    at_s : float
        When, s of a clock that never goes back.
    rows, late, open_windows, state_bytes, batch_id : int
        As in the progress.
    batch_seconds : float
        How long the last micro-batch took.
    watermark_us : int
        The watermark, µs since the epoch.
    """

    at_s: float
    rows: int
    late: int
    open_windows: int
    state_bytes: int
    batch_id: int
    batch_seconds: float
    watermark_us: int

    @classmethod
    def of(cls, progress: Progress, at_s: float) -> Sample:
        """Return the numbers of a progress."""
        return cls(
            at_s,
            progress.rows,
            sum(progress.late.values()),
            progress.open_windows,
            progress.state_bytes,
            progress.batch_id,
            progress.batch_seconds,
            progress.watermark_us,
        )


@attrs.frozen(eq=False)
class View:
    """Holds what the page shows of a query.

    Attributes
    ----------
    name, status : str
        The name of the query, and ``running``, ``stopped`` or ``failed``.
    progress : Progress
        Its progress now.
    boxes : tuple of Box
        Sources, stages and outputs.
    samples : sequence of Sample
        The numbers of the last minutes, oldest first.
    problem : str or None
        What made it fail.
    late : dict
        By stage its late rows, where they are in memory and are to be shown.
    times : sequence of dict
        Seconds by the kind of part, of the last batches.
    """

    name: str
    status: str
    progress: Progress
    boxes: tuple[Box, ...] = ()
    samples: Sequence[Sample] = ()
    problem: str | None = None
    late: dict[str, pa.Table] = attrs.field(factory=dict)
    times: Times = ()

    @property
    def standing(self) -> str:
        """Return its status, and ``stuck`` for a query that runs and does not go on (``progress.stuck``)."""
        return "stuck" if self.status == "running" and self.progress.stuck else self.status


def page(title: str, views: Iterable[View], nonce: str, now_us: int | None = None) -> str:
    """Return the whole page.

    Parameters
    ----------
    title : str
        The heading.
    views : iterable of View
        The queries.
    nonce : str
        The word by which the browser knows the script of the page from one that somebody slipped in.
    now_us : int, optional
        The time by the clock, µs since the epoch.
    """
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>{shown(title)}</title><style>{_part('page.css')}</style></head><body>"
        f"<header><h1>{shown(title)}</h1><p id='news' role='status'></p></header>"
        f"<main id='now'>{content(views, now_us)}</main>"
        f"<script nonce='{nonce}'>{_part('page.js')}</script></body></html>"
    )


@functools.cache
def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


def content(views: Iterable[View], now_us: int | None = None) -> str:
    """Return the part of the page that is fetched again and again."""
    now = time.time_ns() // 1_000 if now_us is None else now_us
    listed = sorted(views, key=lambda view: _ORDER.index(view.standing) if view.standing in _ORDER else len(_ORDER))
    if not listed:
        return "<p class='aside'>No query runs in this session. The page shows each query that is started.</p>"
    many = len(listed) > _MOST_OPEN
    parts = [_query(view, now, folded=many and view.standing not in ("failed", "stuck")) for view in listed]
    return "\n".join([*([_overview(listed, now)] if len(listed) > 1 else []), *parts])


def _overview(views: Sequence[View], now_us: int) -> str:
    """Return one line for each query."""
    standing = [view.standing for view in views]
    counts = ", ".join(f"{standing.count(one)} {one}" for one in _ORDER if one in standing)
    lines = "".join(_line(view, now_us) for view in views)
    names = ("query", "status", "watermark", "rows", "rows/s", "late", "backlog", "last batch")
    head = "".join(f"<th>{name}</th>" for name in names)
    return (
        f"<nav class='overview' aria-label='all queries'><h2>{len(views)} queries <span class='aside'>{counts}</span></h2>"
        f"<div class='scroll'><table><tr>{head}</tr>{lines}</table></div></nav>"
    )


def _line(view: View, now_us: int) -> str:
    now, standing = view.progress, view.standing
    ended = "none yet" if now.batch_ended_us is None else f"{_span(max(now_us - now.batch_ended_us, 0))} ago"
    cells = [
        _distance(now.watermark_us, now_us) or _instant(now.watermark_us),
        number(now.rows),
        _rate(view.samples) if view.status == "running" else "",
        number(sum(now.late.values())),
        number(sum(now.backlog.values())) if now.backlog else "",
        ended,
    ]
    name = shown(view.name)
    link = f"<a href='#{_anchor(view.name)}'>{name}</a>"
    status = f"<span class='{shown(standing)}'>{_SIGNS.get(standing, '?')} {shown(standing)}</span>"
    return f"<tr><td>{link}</td><td>{status}</td>" + "".join(f"<td>{shown(one)}</td>" for one in cells) + "</tr>"


def _anchor(name: str) -> str:
    return f"query-{quote(redacted(name), safe='')}"


def _query(view: View, now_us: int, *, folded: bool = False) -> str:
    standing = view.standing
    sign = _SIGNS.get(standing, "?")
    failed = f"<p class='failure'><b>✖ failed</b> {shown(view.problem)}</p>" if view.problem else ""
    stuck = view.progress.stuck.values() if standing == "stuck" else ()
    doubts = "".join(
        f"<p class='warning'><b>⚠ {kind}</b> {shown(doubt)}</p>"
        for kind, doubts in (("stuck", stuck), ("warning", _warnings(view.progress)))
        for doubt in doubts
    )
    status = f"<span class='{shown(standing)}'>{sign} {shown(standing)}</span>"
    title = f"<h2>{shown(view.name)} {status}</h2>"
    begin = f"<details class='whole'><summary>{title}</summary>" if folded else title
    return "".join(
        [
            f"<section id='{_anchor(view.name)}' data-query='{shown(view.name)}'>{begin}",
            failed,
            doubts,
            _tiles(view, now_us),
            f"<div class='scroll'>{drawn(view.boxes)}</div>" if view.boxes else "",
            _charts(view.samples),
            _times(view.times),
            _sources(view.progress, now_us),
            _stages(view.progress),
            _late(view),
            f"<details class='why'><summary>{_QUESTIONS[view.status == 'failed']}</summary><p></p></details>",
            "</details></section>" if folded else "</section>",
        ]
    )


_QUESTIONS: Final = ("Why has the oldest open window not fired?", "What happens to the windows that are open?")


def _warnings(progress: Progress) -> list[str]:
    """Return what looks wrong, in words."""
    idle = [f"source {name} is idle: no watermark waits for it" for name in progress.idle_sources]
    ahead = ((name, times) for name, times in progress.held_back.items() if times)
    held = [f"source {name} was put off {times} times, as it is too far ahead of others" for name, times in ahead]
    share = _late_share(progress)
    many = [f"{100 * share:.1f} % of the rows were refused as late or without a time"] if share > _MANY else []
    return [*progress.doubts, *many, *idle, *held]


_MANY: Final = 0.01


def _late_share(progress: Progress) -> float:
    """Return the part of its rows that was late, from 0 to 1; of several stages the largest, as a row may be late in each."""
    stages = list(progress.stages.values()) or [progress]
    return max(sum(one.late.values()) / one.rows if one.rows else 0.0 for one in stages)


def _tiles(view: View, now_us: int) -> str:
    now, samples = view.progress, view.samples
    late = sum(now.late.values())
    given = {name: n for name, n in now.sink_rows.items() if name != "late_rows"}
    share = f"{digits(100 * _late_share(now))} % of the rows" if now.rows else "no rows yet"
    ended = now.batch_ended_us
    ago = "none yet" if ended is None else f"ended {_span(max(now_us - ended, 0))} ago"
    tiles = [
        ("watermark", _instant(now.watermark_us), _distance(now.watermark_us, now_us)),
        ("rows", number(now.rows), f"{_rate(samples)} rows/s"),
        ("late rows", number(late), share),
        ("open windows", number(now.open_windows), f"{size(now.state_bytes)} of state"),
        (
            "results",
            number(sum(given.values()) if given else now.firings),
            ", ".join(f"{n:,} to {name}" for name, n in given.items()),
        ),
        ("last batch", f"{1_000 * now.batch_seconds:,.0f} ms", f"number {now.batch_id}, {ago}" if now.batch_id >= 0 else ago),
    ]
    if now.timers or now.held_rows:
        tiles.append(("timers", number(now.timers), f"{now.held_rows:,} rows that are not settled"))
    if now.call_seconds:
        each = now.call_seconds / max(now.counters.get("calls", 0), 1)
        calls = f"{now.counters.get('calls', 0):,} calls, {1e6 * each:,.1f} µs each"
        tiles.append(("in your functions", f"{now.call_seconds:,.1f} s", calls))
    if now.backlog:
        tiles.append(("backlog", number(sum(now.backlog.values())), ", ".join(now.backlog)))
    body = "".join(
        f"<div><dt>{shown(name)}</dt><dd>{shown(value)}<small>{shown(note)}</small></dd></div>" for name, value, note in tiles
    )
    return f"<dl class='tiles'>{body}</dl>"


def _charts(samples: Sequence[Sample]) -> str:
    """Draw the numbers of the last minutes as lines."""
    if len(samples) < 3:  # two samples make one rate, which is not a line
        return ""
    times_s = np.array([s.at_s for s in samples])
    took, rows = np.diff(times_s), np.diff([s.rows for s in samples])
    marks = np.array([float(s.watermark_us) if UNSET < s.watermark_us < END_OF_TIME else np.nan for s in samples])
    watermark = np.diff(marks) / 1e6 / np.maximum(took, 1e-9)
    lines = [
        ("rows a second", rows / np.maximum(took, 1e-9), ",.0f"),
        ("watermark, seconds a second", watermark, ",.1f"),
        ("open windows", np.array([float(s.open_windows) for s in samples[1:]]), ",.0f"),
        ("milliseconds of the last batch", np.array([1e3 * s.batch_seconds for s in samples[1:]]), ",.1f"),
    ]
    span = _span(round(1e6 * (times_s[-1] - times_s[0])))
    charts = [
        _chart(title, values, f"{values[-1]:{form}}" if np.isfinite(values[-1]) else "-", span) for title, values, form in lines
    ]
    return f"<div class='charts'>{''.join(charts)}</div>"


def _chart(title: str, values: np.ndarray[tuple[int], np.dtype[np.float64]], last: str, span: str) -> str:
    width, height = _CHART
    finite = np.isfinite(values)
    top = float(values[finite].max()) if finite.any() else 0.0
    scale = (height - 6) / top if top > 0 else 0.0
    step = width / max(len(values) - 1, 1)
    points = " ".join(f"{i * step:.1f},{height - 3 - max(v, 0.0) * scale:.1f}" for i, v in enumerate(values) if np.isfinite(v))
    most = digits(top, 4)
    label = f"{title} over the last {span}: now {last}, at most {most}"
    return (
        f"<figure><figcaption>{shown(title)} <b>{shown(last)}</b></figcaption>"
        f"<svg viewBox='0 0 {width} {height}' preserveAspectRatio='none' role='img' aria-label='{shown(label)}'>"
        f"<path class='axis' d='M0 {height - 3}H{width}'/><polyline points='{points}'/></svg>"
        f"<small>{shown(span)}, at most {most}</small></figure>"
    )


def _times(times: Times) -> str:
    bars = times_html(times)
    return f"<h3>Time of a batch</h3>{bars}" if bars else ""


def _sources(progress: Progress, now_us: int) -> str:
    """Return what each source has reached, where there are several."""
    marks = {name: us for name, us in progress.source_watermarks_us.items() if name}
    if not marks:
        return ""
    newest = max(marks.values())
    lines = [
        (
            name,
            _instant(us),
            "the newest" if us == newest else f"{_span(newest - us)} behind the newest" if us > UNSET else "no rows yet",
            "idle" if name in progress.idle_sources else "",
            str(progress.backlog.get(name, "")),
            str(progress.held_back.get(name, "")),
        )
        for name, us in sorted(marks.items(), key=lambda item: item[1])
    ]
    return _table("Sources", ("source", "watermark", "delay", "", "backlog", "put off"), lines)


def _stages(progress: Progress) -> str:
    """Return the numbers of each stage, where there are several."""
    lines = [
        (
            name,
            _instant(one.watermark_us),
            number(one.rows),
            number(sum(one.late.values())),
            number(one.firings),
            number(one.open_windows),
            number(one.open_rows),
            size(one.state_bytes),
        )
        for name, one in progress.stages.items()
    ]
    names = ("stage", "watermark", "rows", "late", "results", "open windows", "rows in state", "state")
    return _table("Stages", names, lines) if lines else ""


def _late(view: View) -> str:
    counted = [(reason, number(n)) for reason, n in view.progress.late.items() if n]
    if not counted:
        return ""
    parts = [_table("Late rows by reason", ("reason", "rows"), counted)]
    for stage, rows in view.late.items():
        if rows.num_rows:
            parts.append(_histogram(rows.slice(max(rows.num_rows - _MOST_COUNTED, 0))))
            last = rows.slice(max(rows.num_rows - _MOST_LATE, 0))
            columns = [[cell(v, _LONGEST_CELL) for v in column.to_pylist()] for column in last.columns]
            with suppress(PlanError):  # a late output without a lateness
                columns[-1] = ["" if us is None else show_length(us) for us in late_table(last).columns[-1].to_pylist()]
            lines = zip(*columns, strict=True)
            parts.append(_table(f"Last late rows of {stage}", rows.column_names, list(lines)))
    return "".join(parts)


def _histogram(rows: pa.Table) -> str:
    """Draw by how much rows came after the watermark, where the late output says so."""
    try:
        given = late_table(rows).columns[-1].drop_null().to_numpy()
    except PlanError:
        return ""
    late_us = given[given >= 0]
    if not len(late_us):
        return ""
    edges = np.array((0, *_STEPS_US))
    counts = np.histogram(late_us, np.append(edges, np.iinfo(np.int64).max))[0]
    used = np.flatnonzero(counts)
    first, last = int(used[0]), int(used[-1])
    most = int(counts.max())
    bars = "".join(
        f"<tr><td>{'under ' + _span(int(edges[1])) if n == 0 else 'from ' + _span(int(edges[n]))}</td>"
        f"<td class='bar'><i style='width:{100 * int(counts[n]) / most:.1f}%'></i></td><td>{number(int(counts[n]))}</td></tr>"
        for n in range(first, last + 1)
    )
    return f"<h3>How late they were</h3><div class='scroll'><table class='bars'>{bars}</table></div>"


def _table(title: str, names: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{shown(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{shown(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return f"<h3>{shown(title)}</h3><div class='scroll'><table><tr>{head}</tr>{body}</table></div>"


def _rate(samples: Sequence[Sample]) -> str:
    """Return rows a second over the last five samples."""
    if len(samples) < 2:
        return "-"
    first, last = samples[max(len(samples) - 6, 0)], samples[-1]
    return number(round((last.rows - first.rows) / max(last.at_s - first.at_s, 1e-9)))


def _distance(time_us: int, now_us: int) -> str:
    """Return how far a watermark is behind the clock; nothing where it is not a time of these years."""
    if not UNSET < time_us < END_OF_TIME:
        return "no event time yet" if time_us == UNSET else "all input has ended"
    if abs(now_us - time_us) > _NEAR_US:
        return ""
    if time_us > now_us:
        return f"{_span(time_us - now_us)} ahead of the clock"
    return f"{_span(now_us - time_us)} behind the clock"


def _span(length_us: int) -> str:
    """Return a length of time in two digits or so: what a person reads."""
    for unit_us, name in ((86_400_000_000, "days"), (3_600_000_000, "h"), (60_000_000, "min"), (1_000_000, "s"), (1_000, "ms")):
        if length_us >= unit_us:
            return f"{digits(length_us / unit_us)} {name}"
    return show_us(length_us)


def _instant(time_us: int) -> str:
    """Return an instant in a form that breaks between day and time, without zeros at its end.

    Examples
    --------
    >>> _instant(1_500_000)
    '1970-01-01 00:00:01.5 Z'
    """
    text = show_instant(time_us)
    if not UNSET < time_us < END_OF_TIME or not text.endswith("Z"):
        return text
    day, _, clock = text.removesuffix("Z").partition("T")
    return f"{day} {clock.rstrip('0').rstrip('.') if '.' in clock else clock} Z"
