"""Pictures of what becomes of rows: copies of a row, and a row behind the watermark."""

from __future__ import annotations

from typing import Any, TypeAlias

from scripts.docs.drawing import BAR, LATE, LEFT, RIGHT, ROW, WIDTH, Axis, Picture

Namespace: TypeAlias = dict[str, Any]


def _cross(to: Picture, x: float, y: float) -> None:
    for slope in (5.0, -5.0):
        to.put("line", x1=x - 5, y1=y - slope, x2=x + 5, y2=y + slope, stroke=LATE, stroke_width=2.5)


def copies(made: Namespace) -> Picture:
    """Draw rows of one identity: those that pass, each with the time in which a copy of it is a duplicate."""
    axis, picture, within = Axis(-2.0, 32.0), Picture(height=112.0), 10
    axis.draw(picture, 74.0, [0.0, 10.0, 20.0, 30.0], lambda t: f"{t:g}")
    picture.write("event time, seconds", WIDTH - RIGHT, 108.0, "end", size=14)
    picture.write("passes", LEFT + 14, 14.0, "start", ROW, size=14)
    picture.write("is a duplicate", LEFT + 84, 14.0, "start", LATE, size=14)
    for second, passes in made["copies"]:
        x = axis.x(float(second))
        if passes:
            end = axis.x(float(second + within))
            picture.put("rect", x=x, y=32.0, width=end - x - 2, height=8.0, rx=3.0, fill=BAR, opacity=0.35)
            picture.put("circle", cx=x, cy=58.0, r=5.0, fill=ROW)
        else:
            _cross(picture, x, 58.0)
    return picture


def late_rules(made: Namespace) -> Picture:
    """Draw a row behind the watermark in a window that is open, once for each rule."""
    axis, picture = Axis(0.0, 80.0, left=92.0), Picture(height=150.0)
    for lane, (rule, late) in enumerate(made["refused"]):
        y, x = 46.0 + 36.0 * lane, axis.x(40.0)
        picture.put(
            "rect", x=axis.x(0.0), y=y - 13, width=axis.x(60.0) - axis.x(0.0), height=26.0, rx=4.0, fill=BAR, opacity=0.15
        )
        picture.write(f"by {rule}", 8.0, y + 5, "start", size=14)
        if late:
            _cross(picture, x, y)
        else:
            picture.put("circle", cx=x, cy=y, r=5.0, fill=ROW)
        picture.write("late" if late else "counted", x - 12, y + 5, "end", LATE if late else ROW, size=14)
    picture.write("window [0, 60)", axis.x(1.0), 26.0, "start", size=14)
    picture.line(axis.x(50.0), 18.0, axis.x(50.0), 106.0)
    picture.write("watermark 50", axis.x(51.0), 14.0, "start", size=14)
    axis.draw(picture, 108.0, [0.0, 20.0, 40.0, 60.0, 80.0], lambda t: f"{t:g}")
    picture.write("event time, seconds", WIDTH - RIGHT, 144.0, "end", size=14)
    return picture


def cuts(made: Namespace) -> Picture:
    """Draw rows in the order of their arrival, cut into batches in four ways, under both clocks; late ones are crosses."""
    picture, sizes = Picture(height=300.0), (1, 3, 5, 10)
    arrived, left, width = made["arrived"], 96.0, (WIDTH - RIGHT - 96.0) / len(made["arrived"])
    for half, (clock, title) in enumerate((("batch", "clock of batches"), ("row", "row clock"))):
        top = 26.0 + 140.0 * half
        picture.write(title, LEFT, top - 6, "start", size=14)
        for lane, size in enumerate(sizes):
            y = top + 18.0 + 25.0 * lane
            late, _ = made["cuts"][clock, size]
            picture.write(
                "one by one" if size == 1 else "all at once" if size == len(arrived) else f"by {size}", LEFT, y + 5, "start"
            )
            for start in range(0, len(arrived), size):
                most = min(size, len(arrived) - start)
                place = {"x": left + start * width + 2, "y": y - 10, "width": most * width - 4, "height": 20.0}
                picture.put("rect", **place, rx=4.0, fill=BAR, opacity=0.18)
            for number, second in enumerate(arrived):
                x = left + (number + 0.5) * width
                if second in late:
                    _cross(picture, x, y)
                else:
                    picture.put("circle", cx=x, cy=y, r=5.0, fill=ROW)
    picture.put("circle", cx=left + 6, cy=290.0, r=5.0, fill=ROW)
    picture.write("counted", left + 16, 295.0, "start", size=14)
    _cross(picture, left + 96, 290.0)
    picture.write("late", left + 106, 295.0, "start", size=14)
    return picture
