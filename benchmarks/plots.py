"""The pictures of the kept runs: CPU of each peer over that of krishiv_py, a dot per job."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final

import matplotlib

matplotlib.use("Agg")

from attrs import frozen
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from benchmarks.jobs import JOBS
from benchmarks.sides import SIDES
from benchmarks.summary import Summary, data_key

COLOURS: Final = {"J1": "#0b6e4f", "J2": "#1f77b4", "J3": "#d95f02", "J4": "#7b4ea3", "J5": "#c2185b", "F1": "#222222"}
SETS: Final = {"A": "10 000 keys", "B": "500 000 keys"}
GAP: Final = 0.9
"""Free space between two peers, in rows."""
TOUCHING: Final = 1.12
"""Dots whose ratio is below this touch."""
SHIFT: Final = 0.19
LEGEND_BELOW: Final = 0.5
"""Inches from the axis to the legend, past the label of the axis."""
NAMES: Final = {"J5": "tumbling 60 s, retractions", "F1": "tumbling 24 h, real flights"}
"""Jobs whose title is cut elsewhere than at the first comma."""


@frozen
class Picture:
    """A picture: the sides of a mode over one of ours."""

    mode: str
    own: str
    file: str
    caption: str
    left_out: tuple[str, ...] = ()


PICTURES: Final = (
    Picture("backlog", "krishiv", "ratios.png", "CPU of each peer over that of krishiv_py", ("krishiv_window",)),
    Picture("whole", "in_process", "in_process.png", "CPU of whole processes over that of krishiv_py in process"),
)


@frozen
class Dot:
    """How many times the CPU of ours a peer took for a job; where only a bound is known, at least that many."""

    side: str
    data: str
    job: str
    value: float
    sure: bool


def dots(result: Sequence[Summary], picture: Picture = PICTURES[0]) -> list[Dot]:
    """Of every peer and job of the mode; of two processors the worse figure."""
    shown = [s for s in result if s.mode == picture.mode and s.job in COLOURS]
    own = {(s.job, s.data, s.processor): s for s in shown if s.side == picture.own}
    worst: dict[tuple[str, str, str], Dot] = {}
    for other in shown:
        ours = own.get((other.job, other.data, other.processor))
        if ours is None or other.side in (picture.own, *picture.left_out):
            continue
        sure = ours.clear and other.clear
        value = other.cpu / ours.cpu if sure else other.low / ours.high
        place = (other.side, other.data, other.job)
        if value > 0 and (place not in worst or value < worst[place].value):
            worst[place] = Dot(*place, value, sure)
    order = {name: number for number, name in enumerate(SIDES)}
    return sorted(worst.values(), key=lambda dot: (order.get(dot.side, 99), data_key(dot.data), dot.job))


def data_title(name: str) -> str:
    """A set of events, for people."""
    head, size = data_key(name)
    return f"{SETS[head]}, {size // 1_000_000} M events" if head in SETS else "real flights, 0.3 M events"


def draw(result: Sequence[Summary], folder: Path) -> list[str]:
    """Draw the pictures; returns the lines that show them, none where nothing can be compared."""
    lines = []
    for picture in PICTURES:
        shown = dots(result, picture)
        if shown:
            folder.mkdir(parents=True, exist_ok=True)
            drawn(shown, picture, folder / picture.file)
            lines += ["", f"![{picture.caption}](img/{picture.file})"]
    return lines


def drawn(shown: Sequence[Dot], picture: Picture, path: Path) -> None:
    """Draw one picture."""
    rows = [list(of) for _, of in groupby(shown, key=lambda dot: (dot.side, dot.data))]
    peers = len({dot.side for dot in shown})
    figure, axis = plt.subplots(figsize=(10, 1.8 + 0.29 * (len(rows) + GAP * peers)))
    spots(rows, axis)
    frame(shown, picture, axis, axis.get_position().height * figure.get_figheight())
    figure.savefig(path, dpi=120, bbox_inches="tight", facecolor="white")
    plt.close(figure)


def apart(row: Sequence[Dot]) -> list[tuple[Dot, float]]:
    """The dots of a row with their shift in rows: those that would lie on each other alternate up and down."""
    ordered = sorted(row, key=lambda dot: dot.value)
    near = [right.value / left.value < TOUCHING for left, right in pairwise(ordered)]
    shifts = [SHIFT * (-1) ** n if any(near[max(0, n - 1) : n + 1]) else 0.0 for n in range(len(ordered))]
    return list(zip(ordered, shifts, strict=True))


def spots(rows: Sequence[Sequence[Dot]], axis: Axes) -> None:
    """A line for each peer and set of events, under the name of the peer, with its dots."""
    y, places, last = 0.0, [], ""
    for row in rows:
        side = row[0].side
        if side != last:
            y, last = y + GAP, side
            title = SIDES[side].title if side in SIDES else side
            label_place = axis.get_yaxis_transform()
            axis.text(-0.01, y, title, transform=label_place, ha="right", va="center", weight="bold", fontsize=9.5)
            y += 1
        axis.axhline(y, color="#e6e9ec", linewidth=0.8, zorder=0)
        for dot, shift in apart(row):
            edge, shape = COLOURS[dot.job], "o" if dot.sure else ">"
            face = edge if dot.sure else "white"
            axis.scatter(dot.value, y + shift, marker=shape, s=54, facecolor=face, edgecolor=edge, linewidth=1.4, zorder=3)
        places.append(y)
        y += 1
    axis.set_yticks(places, [data_title(row[0].data) for row in rows], fontsize=9)
    axis.set_ylim(y - 0.3, 0)


def frame(shown: Sequence[Dot], picture: Picture, axis: Axes, height: float) -> None:
    """Axis, the line where both are equal, and the legend; the axis is so many inches high."""
    values = [dot.value for dot in shown]
    low, high = min([0.5, *values]) / 1.6, max([2.0, *values]) * 1.6
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    axis.axvspan(low, 1, color="#fbeae8", zorder=-1)
    axis.axvline(1, color="#8a929a", linewidth=1.2, zorder=1)
    ticks = [tick for tick in (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000) if low <= tick <= high]
    axis.set_xticks(ticks, [f"{tick:g}×" for tick in ticks], fontsize=9)
    axis.set_xticks([], minor=True)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", color="#eef0f2", zorder=0)
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.set_xlabel(f"{picture.caption} (logarithmic)", fontsize=9.5)
    for x, text, side in ((1 / 1.08, "← peer needs less", "right"), (1.08, "krishiv_py needs less →", "left")):
        axis.text(x, 1.005, text, transform=axis.get_xaxis_transform(), ha=side, va="bottom", fontsize=9, color="#59636e")
    used = [job for job in COLOURS if any(dot.job == job for dot in shown)]
    marks = [mark(COLOURS[job], COLOURS[job], "o", f"{job} {NAMES.get(job, JOBS[job].title.split(',')[0])}") for job in used]
    if not all(dot.sure for dot in shown):
        marks.append(mark("white", "#59636e", ">", "at least: the rest is below noise"))
    place = (0.4, -LEGEND_BELOW / height)
    axis.legend(handles=marks, loc="upper center", bbox_to_anchor=place, ncols=4, frameon=False, fontsize=9)


def mark(face: str, edge: str, shape: str, label: str) -> Line2D:
    """An entry of the legend."""
    return Line2D([], [], marker=shape, linestyle="", markersize=7, markerfacecolor=face, markeredgecolor=edge, label=label)
