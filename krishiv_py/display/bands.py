"""Windows as a timeline draws them: bars in lanes, so that those which overlap stand one above the other."""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.display.arrivals import a_table, instants, kind_of
from krishiv_py.errors import ColumnError, PlanError
from krishiv_py.plan.checks import known_column


@attrs.frozen
class Band:
    """A window ``[start, end)``, in µs, of a key, with what is written on it."""

    start_us: int
    end_us: int
    key: object
    text: str
    lane: int = 0


def bands(results: pa.Table, key: str | None, label: str | None) -> list[Band]:
    """The windows of a table of results, by start; of a window that fired several times the last result counts.

    Parameters
    ----------
    results : pyarrow.Table
        Results of a query; withdrawn ones (``op`` is ``-U`` or ``-D``) leave no band unless they were replaced.
    key : str or None
        The key column, None when the windows of all keys are drawn together.
    label : str or None
        The column whose value is written on a band.
    """
    a_table(results, "results")
    for name in ("window_start", "window_end", *(n for n in (key, label) if n is not None)):
        known_column(name, results.column_names, "timeline, results")
    if label is not None and results.column_names.index("window_start") > (key is not None):
        # one window then has several results, and no single label
        names = ", ".join(results.column_names[: results.column_names.index("window_start")])
        raise PlanError(
            "`label` needs the results of one key per panel",
            got=f"keys {names}",
            then="a band would show the value of one of them",
            hint="pass key=..., or leave the label out",
        )
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
