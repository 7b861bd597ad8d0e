"""Aggregates of overlapping ranges, with and without a hole, against the same aggregates made row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.arrays.ranges import Ranges, below, smallest
from krishiv_py.kernels.aggregates.base import Rows
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.windows.ranged.ranges import range_values
from krishiv_py.testing import stream_of

Text = kv.col("v").cast("string")


class Joined:
    """A user aggregate whose result tells the order of its rows."""

    def create(self) -> str:
        return ""

    def add(self, accumulator: str, value: int) -> str:
        return accumulator + f"{value},"

    def merge(self, left: str, right: str) -> str:
        return left + right

    def finish(self, accumulator: str) -> str:
        return accumulator


AGGS = {
    "count": kv.count(),
    "n": kv.count("v"),
    "sum": kv.sum("v"),
    "min": kv.min("v"),
    "max": kv.max("x"),
    "least": kv.min("x"),
    "text": kv.max(Text),
    "first": kv.first("v"),
    "last": kv.last("v"),
    "distinct": kv.count_distinct("v"),
    "texts": kv.count_distinct(Text),
    "approx": kv.approx_count_distinct("v", precision=4),
    "sketch": kv.approx_count_distinct("x"),
    "list": kv.collect_list("v"),
    "set": kv.collect_set("v"),
    "floats": kv.collect_set("x"),
    "median": kv.percentile("x"),
    "p90": kv.percentile("v", 0.9),
    "top": kv.percentile("x", 1),
    "decimal": kv.sum(kv.col("v").cast(pa.decimal128(25, 2))),
    "user": kv.udaf(Joined(), "v", pa.string()),
    "some": kv.count_distinct("v").filter("v > 3"),
}
LAYOUT = Layout(
    stream_of("at bigint, v bigint, x double")
    .watermark("at", 0)
    .lookback_window(1)
    .agg([call.alias(name) for name, call in AGGS.items()])
    ._spec()
)


def table(rng: np.random.Generator, n: int, values: int, nulls: float) -> pa.Table:
    columns: dict[str, Any] = {TIME: np.sort(rng.integers(0, n // 2 + 1, n))}
    for i, field in enumerate(f for f in LAYOUT.row_schema if f.name.startswith("a")):
        drawn = rng.integers(0, values, n)
        if pa.types.is_floating(field.type):
            special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0])
            mixed = np.where(rng.random(n) < 0.1, rng.choice(special, n), drawn / 4)
            column = pa.array(mixed, field.type, mask=rng.random(n) < nulls)
        else:
            column = pa.array(drawn, pa.int64(), mask=rng.random(n) < nulls).cast(field.type)
        columns[f"a{i}"] = column
    return pa.table(columns)


def ranges(rng: np.random.Generator, n: int, q: int, width: int) -> Ranges:
    low = np.sort(rng.integers(0, n, q))
    high = np.minimum(np.maximum.accumulate(low + 1 + rng.integers(0, width, q)), n)
    return Ranges(low, np.maximum.accumulate(high), np.arange(n) // 7)


def by_hand(rows: pa.Table, r: Ranges, holes: np.ndarray[Any, Any] | None) -> list[list[Any]]:
    """Every range by itself, its rows created at once."""
    out = []
    for kernel, moment in zip(LAYOUT.kernels, LAYOUT.input_of, strict=True):
        column = []
        for i, (low, high) in enumerate(zip(r.low.tolist(), r.high.tolist(), strict=True)):
            picked = np.array([p for p in range(low, high) if holes is None or p != holes[i]], np.int64)
            values = None if moment is None else rows[f"a{moment}"].combine_chunks().take(pa.array(picked))
            given = Rows(values, rows[TIME].to_numpy()[picked], np.zeros(len(picked), np.int64), 1)
            column += kernel.finish(kernel.create(given)).to_pylist()
        out.append(column)
    return out


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 60),
    values=st.sampled_from([1, 3, 50]),
    nulls=st.sampled_from([0, 0.3, 1]),
    width=st.sampled_from([1, 5, 60]),
    left_out=st.booleans(),
)
def test_values_are_those_of_the_rows_in_each_range(
    seed: int, n: int, values: int, nulls: float, width: int, left_out: bool
) -> None:
    check(seed, n, values, nulls, width, left_out, 12)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("left_out", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_long_ranges_take_no_other_value(seed: int, left_out: bool) -> None:
    check(seed, 900, 40, 0.1, 700, left_out, 30)


def check(seed: int, n: int, values: int, nulls: float, width: int, left_out: bool, q: int) -> None:
    rng = np.random.default_rng(seed)
    rows, r = table(rng, n, values, nulls), ranges(rng, n, q, width)
    holes = rng.integers(r.low, r.high) if left_out else None
    actual = [column.to_pylist() for column in range_values(LAYOUT, rows, r, holes)]
    for name, got, want in zip(AGGS, actual, by_hand(rows, r, holes), strict=True):
        assert repr(got) == repr(want), name  # to the sign of a zero


@given(st.lists(st.integers(0, 20), min_size=1, max_size=40), st.data())
def test_order_statistics(values: list[int], data: st.DataObject) -> None:
    low = data.draw(st.integers(0, len(values) - 1))
    high = data.draw(st.integers(low + 1, len(values)))
    k = data.draw(st.integers(0, high - low - 1))
    bound = data.draw(st.sampled_from(values))
    ranks, first, stop = np.array(values), np.array([low]), np.array([high])
    assert smallest(ranks, first, stop, np.array([k])).tolist() == [sorted(values[low:high])[k]]
    assert below(ranks, first, stop, np.array([bound])).tolist() == [len([v for v in values[low:high] if v < bound])]
