"""count_distinct and percentile fired row by row: what every result says is what its own list of values says."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.kernels.windows import count as count_triggered
from krishiv_py.testing import Driver, stream_of

WINDOWS: dict[str, Callable[[KeyedStream], Any]] = {
    "tumbling": lambda s: s.tumbling_window(16),
    "hopping": lambda s: s.hopping_window(16, 4),
    "session": lambda s: s.session_window(3),
    "capped": lambda s: s.session_window(3, max_duration=12),
    "count": lambda s: s.count_window(9),
    "sliding count": lambda s: s.count_window(12, 3),
}
NUMBERS = (0.0, -0.0, 1.5, -7.25, 1e300, math.inf, -math.inf, math.nan, None)
RESULTS = (
    kv.count_distinct("s").alias("names"),
    kv.count_distinct("x").alias("numbers"),
    kv.percentile("x").alias("half"),
    kv.percentile("x", 0.9).alias("high"),
    kv.percentile("n", 0.0).alias("least"),
    kv.count(),
    kv.sum("x").alias("total"),
)
LISTS = (kv.collect_list("s").alias("ls"), kv.collect_list("x").alias("lx"), kv.collect_list("n").alias("ln"))
Batches = list[list[dict[str, Any]]]


def bits(value: Any) -> Any:
    """Numbers by their bits, so that NaN equals itself and 0.0 is not -0.0."""
    if not isinstance(value, float):
        return value
    return struct.pack("d", math.nan if math.isnan(value) else value)


def plain(x: float) -> float:
    """The one NaN and the one zero."""
    return math.nan if math.isnan(x) else x + 0.0


def percentile(values: list[float], part: float) -> float | None:
    """By hand: between the two nearest values."""
    if not values:
        return None
    ordered = sorted((plain(float(v)) for v in values), key=lambda v: (math.isnan(v), v))
    spot = part * (len(ordered) - 1)
    low = math.floor(spot)
    below, above = ordered[low], ordered[min(low + 1, len(ordered) - 1)]
    if spot == low or below == above:
        return below
    part = spot - low
    if math.isfinite(above - below):
        return below + (above - below) * part
    return below * (1 - part) + above * part


def log(window: str, emit: Any, accumulation: Any, every: int, batches: Batches, *, lists: bool) -> list[Any]:
    """All results, with restarts."""
    keyed = stream_of("k bigint, at bigint, s string, x double, n bigint").watermark("at", 10).key_by("k")
    keyed = keyed.allowed_lateness(8).emit(emit).accumulation(accumulation).trigger(kv.Trigger(every, late="each"))
    driver = Driver(WINDOWS[window](keyed).agg(*RESULTS, *(LISTS if lists else ())))
    actual: list[Any] = []
    for number, rows in enumerate(batches):
        actual += driver.send(rows).results.to_pylist()
        if number % 2:
            driver = driver.restarted()
    actual += driver.close().results.to_pylist()
    return actual


@st.composite
def streams(draw: st.DrawFn) -> Batches:
    n = draw(st.integers(1, 70))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    times = np.cumsum(rng.choice([0, 1, 1, 2, 5], n)) + rng.integers(-3, 4, n)
    rows = [
        {
            "k": int(rng.integers(2)),
            "at": int(t),
            "s": [None, "a", "b", "ä"][rng.integers(4)],
            "x": NUMBERS[rng.integers(len(NUMBERS))],
            "n": [None, 3, -(1 << 62), 9][rng.integers(4)],
        }
        for t in times
    ]
    edges = [0, *sorted(draw(st.lists(st.integers(0, n), max_size=4))), n]
    return [rows[a:b] for a, b in pairwise(edges)]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("window", WINDOWS)
@given(
    streams(),
    st.sampled_from(["updates", "retractions"]),
    st.sampled_from(["accumulating", "discarding"]),
    st.sampled_from([1, 1, 2, 5]),
)
def test_results_are_those_of_their_rows(window: str, batches: Batches, emit: Any, accumulation: Any, every: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(count_triggered, "_WORTH", 0)
        alone = log(window, emit, accumulation, every, batches, lists=False)
    listed = log(window, emit, accumulation, every, batches, lists=True)
    assert len(alone) == len(listed)
    for row, stated in zip(alone, listed, strict=True):
        assert {name: bits(v) for name, v in row.items()} == {name: bits(stated[name]) for name in row}
        assert row["names"] == len(set(stated["ls"]))
        assert row["numbers"] == len({bits(plain(x)) for x in stated["lx"]})
        for name, values, part in (("half", "lx", 0.5), ("high", "lx", 0.9), ("least", "ln", 0.0)):
            assert bits(row[name]) == bits(percentile(stated[values], part))
