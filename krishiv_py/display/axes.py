"""Axes of time and lanes of windows, as timelines draw them."""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from krishiv_py.arrays.types import Ints
from krishiv_py.display.arrivals import instants, kind_of
from krishiv_py.errors import ColumnError, PlanError
from krishiv_py.plan.checks import known_column

_UNITS: Final = (("ms", 1_000), ("s", 1_000_000), ("min", 60_000_000), ("h", 3_600_000_000), ("d", 86_400_000_000))
_NEAR_EPOCH_US: Final = 10 * 86_400_000_000


def unit_for(length_us: int) -> tuple[str, int]:
    """Return the largest unit of which `length_us` holds at least three, and its microseconds; at least a millisecond.

    Examples
    --------
    >>> unit_for(90_000_000), unit_for(200_000_000)
    (('s', 1000000), ('min', 60000000))
    """
    return next((u for u in reversed(_UNITS) if length_us >= 3 * u[1]), _UNITS[0])


@attrs.frozen
class TimeAxis:
    """Says how event times are drawn.

    Attributes
    ----------
    label : str
        The axis' label, with its unit.
    unit_us : int or None
        Microseconds a unit of the axis is long; None for calendar time.
    """

    label: str
    unit_us: int | None

    @classmethod
    def over(cls, times_us: Ints) -> TimeAxis:
        """Return an axis that shows all `times_us`.

        Times within ten days of the epoch are the small numbers of an example or a test, so no date is shown for them.
        """
        if len(times_us) and np.abs(times_us).max() > _NEAR_EPOCH_US:
            return cls("event time (UTC)", None)
        unit, us = unit_for(int(times_us.max() - times_us.min()) if len(times_us) else 0)
        return cls(f"event time ({unit})", us)

    def at(self, times_us: Ints | int) -> npt.NDArray[np.float64]:
        """Positions of times on the axis: the unit, or matplotlib's days since the epoch."""
        return np.asarray(times_us, np.float64) / (self.unit_us or 86_400_000_000)


@attrs.frozen
class Band:
    """A window ``[start, end)``, in µs, of a key, with what is written on it."""

    start_us: int
    end_us: int
    key: object
    text: str
    lane: int = 0


def bands(results: pa.Table, key: str | None, label: str | None) -> list[Band]:
    """Return the windows of a table of results, by start; of a window that fired several times the last result counts.

    Parameters
    ----------
    results : pyarrow.Table
        Results of a query; withdrawn ones (``op`` is ``-U`` or ``-D``) leave no band unless they were replaced.
    key : str or None
        The key column, None when the windows of all keys are drawn together.
    label : str or None
        The column whose value is written on a band.
    """
    for name in ("window_start", "window_end", *(n for n in (key, label) if n is not None)):
        known_column(name, results.column_names, "timeline, results")
    if label is not None and results.column_names.index("window_start") > (key is not None):
        # one window then has several results, and no single label
        names = ", ".join(results.column_names[: results.column_names.index("window_start")])
        then = "a band would show the value of one of them"
        hint = "pass key=..., or leave the label out"
        raise PlanError("`label` needs the results of one key per panel", got=f"keys {names}", then=then, hint=hint)
    kind = kind_of(results, "window_start")
    starts, usable = instants(results["window_start"], kind)
    ends, _ = instants(results["window_end"], kind)
    if not usable.all():
        raise ColumnError("windows without bounds", got="null or out of range", hint="leave those results out")
    n = results.num_rows
    keys = [None] * n if key is None else results[key].to_pylist()
    texts = [""] * n if label is None else [_shown(v) for v in results[label].to_pylist()]
    ops = results["op"].to_pylist() if "op" in results.column_names else ["+I"] * n
    last: dict[tuple[int, int, str], Band] = {}
    for start, end, of, text, op in zip(starts.tolist(), ends.tolist(), keys, texts, ops, strict=True):
        if op.startswith("-"):
            last.pop((start, end, repr(of)), None)
        else:
            last[start, end, repr(of)] = Band(start, end, of, text)
    return sorted(last.values(), key=lambda b: (b.start_us, b.end_us))


def in_lanes(sorted_bands: list[Band]) -> list[Band]:
    """Give each band the lowest lane that is free at its start."""
    free_from: list[int] = []
    placed = []
    for band in sorted_bands:
        lane = next((i for i, free in enumerate(free_from) if free <= band.start_us), len(free_from))
        free_from[lane : lane + 1] = [band.end_us]
        placed.append(attrs.evolve(band, lane=lane))
    return placed


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
