"""Pictures of a query over its life: a changed plan, an archive before live rows, results that are withdrawn, a crash."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from scripts.docs.drawing import BAR, LATE, LEFT, OTHER, RIGHT, ROW, WIDTH, Axis, Picture

Namespace: TypeAlias = dict[str, Any]
_BROKEN: Final = {"fill": "none", "stroke": LATE, "stroke_width": 3.0}


def _window(
    to: Picture, axis: Axis, y: float, bounds: tuple[float, float], text: str, more: str = "", ends: bool = True
) -> None:
    """Draw a window as a bar with one or two lines of text below it; one that does not end here has no right edge."""
    begin, end = axis.x(bounds[0]), axis.x(bounds[1])
    to.put("line", x1=begin, y1=y, x2=end - (4.0 if ends else 0.0), y2=y, stroke=BAR, stroke_width=3.0)
    for x in (begin, end - 4)[: 1 + ends]:
        to.put("line", x1=x, y1=y - 5, x2=x, y2=y + 5, stroke=BAR, stroke_width=3.0)
    to.write(text, (begin + end) / 2, y + 18, size=14)
    if more:
        to.write(more, (begin + end) / 2, y + 35, fill=LATE if "null" in more else None, size=14)


def _arrow(to: Picture, x: float, top: float, bottom: float) -> None:
    to.line(x, top, x, bottom - 6)
    to.put("path", d=f"M{x:g} {bottom:g}l-4 -8h8z", class_="ink")


def changed_plan(made: Namespace) -> Picture:
    """Draw the rows and windows of a plan, the savepoint, and the windows of another plan that begins from it."""
    axis, picture = Axis(0.0, 200.0), Picture(height=320.0)
    rows, (kept,) = made["rows"], made["in_state"]
    seam = axis.x((rows[2] + rows[3]) / 2)
    for y, title, seconds in ((18.0, "first plan: count", rows[:3]), (194.0, "second plan: count and total", rows[3:])):
        picture.write(title, LEFT, y, "start", size=14)
        picture.line(axis.left, y + 22, axis.right, y + 22, opacity=0.5)
        for second in seconds:
            picture.put("circle", cx=axis.x(second), cy=y + 22, r=5.0, fill=ROW)
    for result in made["first_results"]:
        _window(picture, axis, 62.0, (result["window_start"] / 1_000, result["window_end"] / 1_000), f"count {result['count']}")
    begin = kept["window_start"] / 1_000
    _window(picture, axis, 62.0, (begin, (rows[2] + rows[3]) / 2), f"count {kept['count']}", ends=False)
    picture.put("rect", x=seam - 104, y=112.0, width=208.0, height=40.0, rx=6.0, fill=OTHER, fill_opacity=0.15, stroke=OTHER)
    picture.write("savepoint", seam, 128.0, size=14)
    picture.write(f"[{begin:g}, {begin + 60:g}): count {kept['count']}", seam, 146.0)
    _arrow(picture, seam, 84.0, 110.0)
    _arrow(picture, seam, 154.0, 174.0)
    for result in made["second_results"]:
        total = "null" if result["total"] is None else result["total"]
        bounds = (result["window_start"] / 1_000, result["window_end"] / 1_000)
        _window(picture, axis, 240.0, bounds, f"count {result['count']}", f"total {total}")
    axis.draw(picture, 284.0, [0.0, 60.0, 120.0, 180.0], lambda t: f"{t:g}")
    picture.write("event time, seconds", WIDTH - RIGHT, 316.0, "end", size=14)
    return picture


def history(made: Namespace) -> Picture:
    """Draw rows of an archive and live rows on one line of time, and the windows that have rows of both."""
    axis, picture = Axis(0.0, 200.0), Picture(height=166.0)
    past, live = ([row["at"] / 1_000 for row in made[name]] for name in ("past", "live"))
    seam = axis.x((past[-1] + live[0]) / 2)
    picture.put("rect", x=axis.left, y=2.0, width=seam - axis.left, height=116.0, fill=OTHER, opacity=0.13)
    picture.put("rect", x=seam, y=2.0, width=axis.right - seam, height=116.0, fill=ROW, opacity=0.13)
    picture.write("archive", seam - 8, 20.0, "end", OTHER, size=14)
    picture.write("live rows", seam + 8, 20.0, "start", ROW, size=14)
    for seconds, colour in ((past, OTHER), (live, ROW)):
        for second in seconds:
            picture.put("circle", cx=axis.x(second), cy=44.0, r=5.0, fill=colour)
    for result in made["counts"]:
        bounds = (result["window_start"] / 1_000, result["window_end"] / 1_000)
        of_past, of_live = (sum(bounds[0] <= second < bounds[1] for second in seconds) for seconds in (past, live))
        parts = [f"{n} {name}" for n, name in ((of_past, "archive"), (of_live, "live")) if n]
        _window(picture, axis, 74.0, bounds, f"count {result['count']}", " + ".join(parts) if len(parts) > 1 else "")
    axis.draw(picture, 124.0, [0.0, 60.0, 120.0, 180.0], lambda t: f"{t:g}")
    picture.write("event time, seconds", WIDTH - RIGHT, 158.0, "end", size=14)
    return picture


def ways(made: Namespace) -> Picture:
    """Draw what each way gives of one window after each step, and the sum of a reader who adds all rows up."""
    columns, picture = ("window ends", "late row", "input ends"), Picture(height=214.0)
    left, wide, top, high = 100.0, 76.0, 62.0, 44.0
    for n, name in enumerate(columns):
        picture.write(name, left + wide * (n + 0.5), 30.0)
    picture.write("added up", WIDTH - 44.0, 30.0)
    right = made["changes"]["final"][-1][-1][1]
    for lane, (way, steps) in enumerate(made["changes"].items()):
        y, total = top + high * lane, 0
        picture.line(LEFT, y - 20, WIDTH - RIGHT, y - 20, opacity=0.3)
        picture.write(way, LEFT, y + 7, "start", size=14)
        for n, step in enumerate(steps):
            for place, (op, value) in enumerate(step):
                taken = op in ("-U", "-D")
                total += -value if taken else value
                x = left + wide * (n + 0.5) + 38.0 * (place - (len(step) - 1) / 2)
                box = {"fill": "none", "stroke": LATE, "stroke_width": 1.5} if taken else {"fill": BAR, "opacity": 0.2}
                picture.put("rect", x=x - 16, y=y - 12, width=32.0, height=28.0, rx=4.0, **box)
                picture.write(f"−{value}" if taken else str(value), x, y + 7, fill=LATE if taken else None, size=15)
        picture.write(str(total), WIDTH - 44.0, y + 7, fill=BAR if total == right else LATE, size=16)
    foot = top + high * len(made["changes"]) + 2
    picture.put("rect", x=LEFT, y=foot - 12, width=18.0, height=14.0, rx=3.0, fill=BAR, opacity=0.2)
    picture.write("a row", LEFT + 24, foot, "start")
    picture.put("rect", x=LEFT + 84, y=foot - 12, width=18.0, height=14.0, rx=3.0, fill="none", stroke=LATE, stroke_width=1.5)
    picture.write("a row that is withdrawn", LEFT + 108, foot, "start")
    picture.height = foot + 12
    return picture


def crashes(made: Namespace) -> Picture:
    """Draw each start of a query with what its sink did then, where it broke off, and the rows that the sink shows after it."""
    picture, left, runs = Picture(height=194.0), 100.0, list[list[tuple[str, int]]]()
    for name, number in made["shelf"].calls:
        if name == "start":
            runs.append([])
        else:
            runs[-1].append((name, number))
    step, shown = (WIDTH - RIGHT - left) / len(runs), 0
    for name, y in (("start", 18.0), ("write", 54.0), ("commit", 96.0), ("rows shown", 172.0)):
        picture.write(name, LEFT, y + 5, "start", size=14)
    picture.line(LEFT, 148.0, WIDTH - RIGHT, 148.0, opacity=0.3)
    for n, run in enumerate(runs):
        x, begun = left + step * (n + 0.5), dict(run)
        picture.write(str(n + 1), x, 23.0, size=14)
        for name, y in (("write", 54.0), ("commit", 96.0)):
            if name in begun:
                shape = {"fill": BAR, "fill_opacity": 0.35} if name == "commit" else {"fill": "none"}
                picture.put("rect", x=x - 21, y=y - 13, width=42.0, height=26.0, rx=4.0, stroke=BAR, **shape)
                picture.write(f"n = {begun[name]}", x, y + 5)
        if not run:
            picture.write("skips", x, 76.0)
            picture.write(f"n = {shown - 1}", x, 92.0)
        elif "commit" not in begun:
            _breaks(picture, x, 75.0)
        elif runs[n + 1 : n + 2] == [[]]:
            _breaks(picture, x, 118.0)
        shown += "commit" in begun
        picture.write(str(shown), x, 177.0, size=14)
    return picture


def _breaks(to: Picture, x: float, y: float) -> None:
    """Draw where a query breaks off."""
    to.put("polyline", points=f"{x - 18:g},{y:g} {x - 6:g},{y - 5:g} {x + 6:g},{y + 5:g} {x + 18:g},{y:g}", **_BROKEN)
    to.write("breaks", x, y + 20, fill=LATE)
