"""Plots of the kept runs, bars with the spread of the rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

OURS, THEIRS = "#0b6e4f", "#9aa5b1"


class Bar(Protocol):
    """What is drawn of a side."""

    @property
    def job(self) -> str:
        """Name of the job."""

    @property
    def data(self) -> str:
        """Name of the data."""

    @property
    def side(self) -> str:
        """Name of the side."""

    @property
    def processor(self) -> str:
        """What it ran on."""

    @property
    def title(self) -> str:
        """The side, for people."""

    @property
    def unit(self) -> str:
        """What the cost is counted by."""

    @property
    def cpu(self) -> float:
        """CPU seconds per unit, median."""

    @property
    def low(self) -> float:
        """Lowest."""

    @property
    def high(self) -> float:
        """Highest."""


def draw(mode: str, bars: Sequence[Bar], folder: Path) -> list[str]:
    """One picture per mode, a panel per job, data and processor with sides to compare; returns the lines that show it."""
    drawn = [bar for bar in bars if bar.low > 0]
    sides = Counter(map(case_of, drawn))
    # where ours is below the noise there is nothing to compare
    ours = {case_of(bar) for bar in drawn if bar.side.startswith("krishiv")}
    several = len({bar.processor for bar in drawn}) > 1
    panels = [case for case, count in sides.items() if count > 1 and case in ours]
    if not panels:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(6.4 * columns, 0.6 + 2.6 * rows), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, case in zip(axes.flat, panels, strict=False):
        panel([bar for bar in drawn if case_of(bar) == case][::-1], axis)
        axis.set_title(", ".join(case if several else case[:2]), fontsize=10, loc="left")
    figure.tight_layout()
    figure.savefig(folder / f"{mode}.png", dpi=110)
    plt.close(figure)
    return ["", f"![{mode}](img/{mode}.png)"]


def case_of(bar: Bar) -> tuple[str, str, str]:
    """What is compared in one panel."""
    return bar.job, bar.data, bar.processor


def panel(bars: Sequence[Bar], axis: Axes) -> None:
    """Bars of one job and data: a rate where events are counted (longer is better), else a cost (shorter is better)."""
    rate = bars[0].unit == "event"
    middle = [1 / bar.cpu if rate else bar.cpu for bar in bars]
    ends = [(1 / bar.high, 1 / bar.low) if rate else (bar.low, bar.high) for bar in bars]
    spread = [
        [m - low for m, (low, _) in zip(middle, ends, strict=True)],
        [high - m for m, (_, high) in zip(middle, ends, strict=True)],
    ]
    colours = [OURS if bar.side.startswith("krishiv") else THEIRS for bar in bars]
    told = axis.barh([bar.title for bar in bars], middle, xerr=spread, color=colours, error_kw={"elinewidth": 1, "capsize": 2})
    axis.bar_label(told, [f"{m:,.0f}" if rate else f"{m:.3f}" for m in middle], padding=6, fontsize=8)
    axis.margins(x=0.18)
    if rate:
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.xaxis.set_major_locator(MaxNLocator(5))
    axis.set_xlabel("events per CPU second" if rate else f"CPU seconds per {bars[0].unit}", fontsize=9)
    if max(high for _, high in ends) > 30 * min(low for low, _ in ends):
        axis.set_xscale("log")
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
