"""Draw the pictures of the docs from what the examples of their pages give: ``python scripts/docs/pictures.py``.

A page with pictures has examples that run. A picture is drawn from the values that the examples above it have made, so both
always agree. `tests/docs` compares the pictures in the repository with new ones.
"""

from __future__ import annotations

import doctest
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from scripts.docs import fates, inside, life
from scripts.docs.drawing import BAR, LATE, OTHER, RIGHT, ROW, WIDTH, Axis, Picture

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "docs" / "img" / "drawn"
_NAMED = re.compile(r"!\[[^\]]*\]\(img/drawn/([\w-]+)\.svg\)")
Namespace: TypeAlias = dict[str, Any]


@attrs.frozen
class Bar:
    """A window with its result; `closed` says whether the end belongs to it."""

    start: float
    end: float
    text: str
    closed: bool = False


def _lanes(bars: Sequence[Bar], spare: float) -> list[int]:
    """Return the lane of each bar, so that bars of one lane do not meet."""
    ends: list[float] = []
    result = []
    for bar in bars:
        lane = next((n for n, end in enumerate(ends) if end + spare <= bar.start), len(ends))
        if lane == len(ends):
            ends.append(bar.end)
        ends[lane] = bar.end
        result.append(lane)
    return result


def windows(
    times: Sequence[float], bars: Sequence[Bar], ticks: Sequence[float], label: Callable[[float], str], unit: str
) -> Picture:
    """Draw rows as dots on the line of time, and below it the windows as bars with their results."""
    every = [*times, *(b.start for b in bars), *(b.end for b in bars)]
    axis = Axis(min(*every, ticks[0]), max(*every, ticks[-1]))
    picture = Picture()
    for time in times:
        picture.put("circle", cx=axis.x(time), cy=18.0, r=5.0, fill=ROW)
    axis.draw(picture, 32.0, ticks, label)
    picture.write(unit, WIDTH - RIGHT, 12.0, "end", size=14)
    lanes = _lanes(bars, 0.0 if all(not b.closed for b in bars) else 0.6)
    for bar, lane in zip(bars, lanes, strict=True):
        y, begin, end = 72.0 + 24.0 * lane, axis.x(bar.start), axis.x(bar.end)
        picture.put("line", x1=begin, y1=y, x2=end - (0.0 if bar.closed else 6.0), y2=y, stroke=BAR, stroke_width=3.0)
        picture.put("line", x1=begin, y1=y - 6, x2=begin, y2=y + 6, stroke=BAR, stroke_width=3.0)
        shape = {"fill": BAR} if bar.closed else {"fill": "none", "stroke": BAR, "stroke_width": 1.5}
        picture.put("circle", cx=end - (0.0 if bar.closed else 3.0), cy=y, r=3.0, **shape)
        picture.write(bar.text, (begin + end) / 2, y - 5, size=14)
    picture.height = 72.0 + 24.0 * max(lanes, default=0) + 14.0
    return picture


def _of_seconds(name: str, closed: bool = False) -> Callable[[Namespace], Picture]:
    """Return how the windows of an example are drawn whose times are in ms."""

    def draw(made: Namespace) -> Picture:
        bars = [Bar(start, end, str(n), closed) for start, end, n in made["results"](made[name])]
        times = [row["at"] / 1_000 for row in made["rows"]]
        return windows(times, bars, [float(t) for t in range(0, 41, 10)], lambda t: f"{t:g}", "seconds")

    return draw


def _by_count(made: Namespace) -> Picture:
    """Draw windows over rows: each bar goes from its first row to its last one."""
    from krishiv_py.testing import Driver

    times = [row["at"] / 1_000 for row in made["rows"]]
    result = Driver(made["by_count"]).send(made["rows"]).results.to_pylist()
    bars = [Bar(times[r["window_start"]], times[r["window_end"] - 1], str(r["count"]), closed=True) for r in result]
    return windows(times, bars, [float(t) for t in range(0, 41, 10)], lambda t: f"{t:g}", "seconds")


def _calendar(made: Namespace) -> Picture:
    """Draw days, in hours of UTC since the first shown midnight."""
    first = made["dt"].datetime(2024, 3, 30, tzinfo=made["dt"].timezone.utc)

    def hours(instant: Any) -> float:
        return float((instant - first).total_seconds() / 3_600)

    def date(hour: float) -> str:
        day = first + made["dt"].timedelta(hours=hour)
        return f"{day.day} {day:%B}"

    bars = []
    for day in made["days"]:
        start, end = hours(day["window_start"]), hours(day["window_end"])
        bars.append(Bar(start, end, f"{day['count']} in {end - start:g} h"))
    return windows([hours(row["at"]) for row in made["sold"]], bars, [0.0, 24.0, 48.0, 72.0], date, "UTC")


Step: TypeAlias = tuple[Any, ...]
"""The second of a row, the windows that fired with it, whether it was late, the watermark after it; of several, its source."""


def _cross(to: Picture, x: float, y: float, colour: str) -> None:
    for slope in (5.0, -5.0):
        to.put("line", x1=x - 5, y1=y - slope, x2=x + 5, y2=y + slope, stroke=colour, stroke_width=2.5)


def arrivals(steps: Sequence[Step], ticks: Sequence[float], line: bool = True) -> Picture:
    """Draw rows by event time, to the right, and arrival, downwards; and the watermark as a line that they move."""
    axis, top, gap, picture = (
        Axis(ticks[0] - 4.0, ticks[-1], left=34.0, right=WIDTH - 94.0 if line else WIDTH - RIGHT),
        48.0,
        23.0,
        Picture(),
    )
    bottom = top + gap * len(steps)
    for tick in ticks:
        picture.line(axis.x(tick), top - 14, axis.x(tick), bottom, stroke_dasharray="2 3", opacity=0.6)
        picture.write(f"{tick:g}", axis.x(tick), top - 18)
    picture.write("event time, seconds →", axis.right, 12.0, "end", size=14)
    picture.put("text", "arrival ↓", x=4.0, y=12.0, class_="ink", style="font-size:14px")
    known = [step[3] for step in steps if line and step[3] > -1_000]
    path, last = [], axis.x(max(axis.low, known[0])) if known else 0.0
    for number, (second, fired, late, mark, *source) in enumerate(steps):
        y, colour = top + gap * number, OTHER if source == ["south"] else ROW
        picture.write(str(number + 1), 20.0, y + 5, "end", size=14)
        if line and mark > -1_000:
            now = axis.x(max(mark, axis.low))
            path += [f"{last:g},{y:g}", f"{now:g},{y:g}"]
            last = now
        if late:
            _cross(picture, axis.x(second), y, LATE)
        else:
            picture.put("circle", cx=axis.x(second), cy=y, r=5.0, fill=colour)
        said = ["late"] if late else [f"[{start}, {start + 10}): {n}" for start, n in fired]
        for i, words in enumerate(said):
            picture.write(words, axis.right + 8, y + 5 - 17 * (len(said) - 1 - i), "start", LATE if late else BAR, size=14)
    if path:
        path.append(f"{last:g},{bottom:g}")
        shape = {"fill": "none", "stroke": BAR, "stroke_width": 2.0, "stroke_linejoin": "round"}
        picture.put("polyline", points=" ".join(path), **shape)
    picture.height = bottom + 4.0
    return picture


def _steps(name: str) -> Callable[[Namespace], Picture]:
    """Return how the steps of an example are drawn."""
    return lambda made: arrivals(made[name], [0.0, 10.0, 20.0] if name != "idle" else [0.0, 10.0, 20.0, 30.0, 40.0])


def _lines(made: Namespace) -> Picture:
    """Draw the result of each window over the rows as they arrive, each change with its lines of the change log."""
    seconds, picture = made["arrivals"], Picture(height=200.0)
    axis, base, unit = Axis(0.0, len(seconds) + 1.2, left=30.0), 160.0, 20.0
    axis.draw(picture, base, [n + 1.0 for n in range(len(seconds))], lambda n: f"{n:g}")
    picture.write("arrival →", WIDTH - RIGHT, base + 35, "end", size=14)
    for value in (2, 4, 6):
        picture.write(str(value), 22.0, base - unit * value + 5, "end", size=14)
        picture.line(30.0, base - unit * value, WIDTH - RIGHT, base - unit * value, stroke_dasharray="2 3", opacity=0.5)
    for start, colour in ((0, ROW), (10, OTHER)):
        path, value = [], 0
        for second, op, window, count in made["lines"]:
            if window == start and op != "-U":
                x = axis.x(seconds.index(second) + 1.0)
                path += [f"{x:g},{base - unit * value:g}", f"{x:g},{base - unit * count:g}"]
                picture.write("+I" if op == "+I" else "-U +U", x - 3, base - unit * count - 5, "end", colour, size=13)
                value = count
        path.append(f"{WIDTH - RIGHT:g},{base - unit * value:g}")
        picture.put("polyline", points=" ".join(path), fill="none", stroke=colour, stroke_width=2.0)
        picture.write(f"[{start}, {start + 10})", 60.0 + 90.0 * (start // 10), 14.0, "start", colour)
    return picture


def _appears(moment: float, whole: float) -> str:
    """Return the animation of what is there from a second on, in a picture that begins again after `whole` seconds."""
    percent = 100 * moment / whole
    return f"@keyframes s{round(moment * 10)}{{0%,{percent:.1f}%{{opacity:0}}{percent + 1:.1f}%,100%{{opacity:1}}}}"


def moving(made: Namespace) -> Picture:
    """Draw rows as they come, one after the other; the watermark as a line that they move, and the window that fires.

    Who asks for less motion sees the end: the animations are off, and everything is there.
    """
    steps, every, begin = made["moving"], 1.4, 0.6
    whole = begin + every * len(steps) + 3.0
    axis, top, bottom, picture = Axis(0.0, 120.0), 62.0, 122.0, Picture(height=176.0)
    styles, marks = dict[str, str](), [(0.0, axis.low)]

    def from_second(moment: float) -> str:
        styles.setdefault(f"s{round(moment * 10)}", _appears(moment, whole))
        return f"animation:s{round(moment * 10)} {whole:g}s linear infinite"

    for start in (0, 60):
        x, width = axis.x(start), axis.x(start + 60) - axis.x(start)
        picture.put("rect", x=x + 2, y=top, width=width - 4, height=bottom - top, rx=4.0, fill=BAR, opacity=0.12)
        picture.write(f"window [{start}, {start + 60})", x + width - 4, top - 8, "end", size=14)
    axis.draw(picture, bottom + 10, [0.0, 30.0, 60.0, 90.0, 120.0], lambda t: f"{t:g}")
    picture.write("event time, seconds", WIDTH - RIGHT, bottom + 46, "end", size=14)
    for number, (second, fired, late, mark) in enumerate(steps):
        moment, y = begin + every * number, top + 14.0 + 8.0 * (number % 5)
        shown = from_second(moment)
        if late:
            for slope in (5.0, -5.0):
                x = axis.x(second)
                picture.put("line", x1=x - 5, y1=y - slope, x2=x + 5, y2=y + slope, stroke=LATE, stroke_width=2.5, style=shown)
            text = {"text_anchor": "middle", "class_": "ink", "style": f"font-size:14px;fill:{LATE};{shown}"}
            picture.put("text", "late: side output", x=axis.x(30.0), y=bottom - 6, **text)
        else:
            picture.put("circle", cx=axis.x(second), cy=y, r=5.0, fill=ROW, style=shown)
        for start, count in fired:
            text = {
                "text_anchor": "middle",
                "class_": "ink",
                "style": f"font-weight:bold;fill:{BAR};{from_second(moment + 0.5)}",
            }
            picture.put("text", f"count {count}", x=axis.x(start + 30.0), y=20.0, **text)
        marks.append((moment + 0.3, max(float(mark), axis.low)))
    frames, last = [], axis.low
    for moment, mark in marks:
        frames += [f"{100 * moment / whole:.1f}%{{transform:translateX({axis.x(last) - axis.x(marks[-1][1]):g}px)}}"]
        frames += [f"{100 * (moment + 0.2) / whole:.1f}%{{transform:translateX({axis.x(mark) - axis.x(marks[-1][1]):g}px)}}"]
        last = mark
    picture.style = "".join(styles.values()) + f"@keyframes mark{{{''.join(frames)}100%{{transform:translateX(0)}}}}"
    picture.style += "@media(prefers-reduced-motion:reduce){*{animation:none!important}}"
    moves, x = f"animation:mark {whole:g}s linear infinite", axis.x(marks[-1][1])
    picture.line(x, 30.0, x, bottom + 10, style=f"{moves};stroke-width:2")
    text = {"class_": "ink", "style": f"font-size:14px;{moves}"}
    picture.put("text", "watermark", x=x + 5, y=36.0, **text)
    return picture


PAGES: dict[str, dict[str, Callable[[Namespace], Picture]]] = {
    "index.md": {"moving": moving},
    "windows.md": {
        **{name: _of_seconds(name) for name in ("tumbling", "hopping", "cumulating", "session", "bounded", "panes", "own")},
        **{name: _of_seconds(name, closed=True) for name in ("lookback", "sliding")},
        "by_count": _by_count,
        "calendar": _calendar,
    },
    "event-time.md": {
        "arrival": lambda made: arrivals(
            [(second, [], False, 0) for second in made["arrivals"]], [0.0, 10.0, 20.0], line=False
        ),
        **{name: _steps(name) for name in ("watermark", "patient", "lenient", "idle")},
        "triggers": _lines,
    },
    "stages.md": {"walk": inside.walk},
    "joins.md": {"interval": inside.interval, "asof": inside.asof, "same_window": inside.same_window},
    "process.md": {"sequence": inside.sequence},
    "absence.md": {"silence": inside.silence},
    "patterns.md": {"pattern": inside.pattern},
    "changelogs.md": {"content": inside.content},
    "change-data-capture.md": {"capture": inside.capture},
    "same-answer.md": {"cuts": fates.cuts},
    "late-events.md": {"late_rules": fates.late_rules},
    "deduplication.md": {"copies": fates.copies},
    "savepoints.md": {"changed_plan": life.changed_plan},
    "history.md": {"history": life.history},
    "results-that-change.md": {"ways": life.ways},
    "outputs.md": {"crashes": life.crashes},
    "state.md": {"open": inside.open_windows, "buckets": inside.buckets},
}


def drawn(page: str) -> dict[str, str]:
    """Return the pictures of a page as texts of SVG files, by name; the examples above a picture run first."""
    text, made = (ROOT / "docs" / page).read_text(encoding="utf-8"), Namespace()
    result, done = {}, 0
    for mark in _NAMED.finditer(text):
        for example in doctest.DocTestParser().get_examples(text[done : mark.start()]):
            exec(compile(example.source, page, "single"), made)
        done = mark.end()
        result[mark[1]] = PAGES[page][mark[1]](made).svg()
    return result


def main() -> None:
    """Draw all pictures into their folder."""
    FOLDER.mkdir(exist_ok=True)
    sys.displayhook = lambda _: None
    for page in PAGES:
        for name, text in drawn(page).items():
            (FOLDER / f"{name}.svg").write_text(text, encoding="utf-8")
            print(f"docs/img/drawn/{name}.svg")


if __name__ == "__main__":
    main()
