"""Aggregates of overlapping ranges against the same aggregates over the rows of each range, one range at a time."""

from __future__ import annotations

import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.arrays.ranges import Ranges, expand
from krishiv_py.arrays.types import Ints
from krishiv_py.errors import AggregateOverflowError
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.windows.ranged.ranges import range_partials
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.testing import stream_of

SCHEMA = pa.schema(
    [
        ("at", pa.int64()),
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("d", pa.decimal128(10, 2)),
        ("z", pa.timestamp("us", "UTC")),
        ("b", pa.int8()),
    ]
)


class Longest:
    """The longest text."""

    def create(self) -> str:
        return ""

    def add(self, accumulator: str, value: str) -> str:
        return max(accumulator, value, key=len)

    def merge(self, left: str, right: str) -> str:
        return max(left, right, key=len)

    def finish(self, accumulator: str) -> str:
        return accumulator


AGGS = [
    kv.count(),
    *(f(c).alias(f"{f.__name__}_{c}") for f in (kv.count, kv.min, kv.max, kv.first, kv.last) for c in "ifsdzb"),
    *(f(c) for f in (kv.sum, kv.avg, kv.stddev, kv.percentile) for c in "ifdb"),
    kv.count_distinct("s"),
    kv.collect_list("s"),
    kv.collect_set("i"),
    kv.approx_count_distinct("i"),
    kv.udaf(Longest(), "s", pa.string()),
    kv.sum("i").filter("b > 0").alias("some"),
]


def layout_of(aggs: list[AggCall]) -> Layout:
    return Layout(stream_of(SCHEMA).watermark("at", 0).lookback_window(10).agg(aggs)._spec())


ALL = layout_of(AGGS)


def rows_of(layout: Layout, seed: int, n: int, nulls: float) -> pa.Table:
    """Random working rows, ordered by time; huge and tiny floats, NaN, integers near the end of the range."""
    rng = np.random.default_rng(seed)
    wide = rng.integers(-(2**62), 2**62, n) if seed % 3 == 0 else rng.integers(-5, 5, n)
    floats = rng.choice([1e16, 1.0, -1e16, math.nan, 0.1, -0.0], n, p=[0.1, 0.3, 0.1, 0.05, 0.35, 0.1])
    columns: dict[str, list[Any]] = {
        "i": [int(v) // max(n, 1) for v in wide],
        "f": floats.tolist(),
        "s": [f"{'ab' * (int(v) % 4)}{v % 7}" for v in wide],
        "d": [decimal.Decimal(int(v) % 1000) / 100 for v in wide],
        "z": [int(v) % 10**9 for v in wide],
        "b": [int(v) % 5 - 2 for v in wide],
    }
    arrays: dict[str, Any] = {TIME: pa.array(np.sort(rng.integers(-3 * n, 3 * n + 1, n)))}
    source = {}
    for name, values in columns.items():
        masked = [None if rng.random() < nulls else v for v in values]
        source[name] = pa.array(masked, pa.int64() if name == "z" else SCHEMA.field(name).type).cast(SCHEMA.field(name).type)
    for i, (value, where) in enumerate(layout.inputs):
        column = source[repr(value)]
        if where is not None:
            both = zip(column.to_pylist(), source["b"].to_pylist(), strict=True)
            column = pa.array([v if (b or 0) > 0 else None for v, b in both], column.type)
        arrays[f"a{i}"] = column
    return pa.table(arrays)


def ranges_of(rng: np.random.Generator, n: int, m: int, block: Ints) -> Ranges:
    low = np.sort(rng.integers(0, n, m))
    return Ranges(low, np.minimum(low + 1 + rng.integers(0, max(n // 2, 1), m), n), block)


def close(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-9, abs_tol=64) or a == b
    return bool(a == b)


@given(seed=st.integers(0, 2**32), n=st.integers(1, 60), m=st.integers(1, 20), nulls=st.sampled_from([0.0, 0.3, 1.0]))
def test_every_aggregate_over_ranges(seed: int, n: int, m: int, nulls: float) -> None:
    layout = ALL
    rows = rows_of(layout, seed, n, nulls)
    r = ranges_of(np.random.default_rng(seed), n, m, rows[TIME].to_numpy() // 7)
    moment, ids = expand(r.low, r.high)
    wanted = layout.create(rows.take(pa.array(moment)), ids, m)
    names = [f.name for f in layout.partial_fields]
    actual = layout.finish(pa.table(range_partials(layout, rows, r), names=names))
    for call, one, other in zip(AGGS, layout.finish(pa.table(wanted, names=names)), actual, strict=True):
        pairs = list(zip(one.to_pylist(), other.to_pylist(), strict=True))
        assert all(close(a, b) for a, b in pairs), (str(call), pairs)


@given(seed=st.integers(0, 2**32), n=st.integers(600, 2_000))
def test_long_ranges_are_reduced_by_block(seed: int, n: int) -> None:
    layout = layout_of([kv.sum("f"), kv.min("i"), kv.max("i"), kv.sum("i")])
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(-n, n, n))
    values = rng.integers(-1000, 1000, n)
    rows = pa.table({TIME: times, "a0": values.astype(float), "a1": values})
    r = ranges_of(rng, n, 50, times // 50)
    out = range_partials(layout, rows, r)
    ends = list(zip(r.low.tolist(), r.high.tolist(), strict=True))
    by_name = dict(zip([f.name for f in layout.partial_fields], out, strict=True))
    assert by_name["p0_0"].to_pylist() == [float(values[a:b].sum()) for a, b in ends]
    assert by_name["p1_0"].to_pylist() == [int(values[a:b].min()) for a, b in ends]
    assert by_name["p2_0"].to_pylist() == [int(values[a:b].max()) for a, b in ends]


@given(seed=st.integers(0, 2**32), n=st.integers(1, 1_500), before=st.integers(0, 40))
def test_rounding_depends_on_the_rows_of_a_range_alone(seed: int, n: int, before: int) -> None:
    """So that it does not matter how a stream was cut into batches, or which route it took."""
    rng = np.random.default_rng(seed)
    times, values = np.sort(rng.integers(-n, n, n)), rng.random(n)
    alone = Ranges(np.zeros(1, np.int64), np.array([n]), times // 20).reduce(np.add, values)
    around = np.concatenate([rng.random(before), values, rng.random(7)])
    shifted = np.concatenate([np.full(before, times[0] - 1), times, np.full(7, times[-1])])
    low = np.array([0, before])
    among = Ranges(low, np.array([before + 1, before + n]), shifted // 20).reduce(np.add, around)
    assert alone[0].hex() == among[1].hex()


def test_small_values_survive_huge_ones_that_left_the_range() -> None:
    """A running total would have swallowed them."""
    values = np.array([1e300, 1.0, 2.0, 3.0])
    r = Ranges(np.array([0, 1, 2]), np.array([2, 3, 4]), np.zeros(4, np.int64))
    assert r.reduce(np.add, values).tolist() == [1e300, 3.0, 5.0]


def test_an_integer_sum_overflows_only_if_the_result_does() -> None:
    layout = layout_of([kv.sum("i")])
    top = 2**63 - 1
    rows = pa.table({TIME: np.arange(4), "a0": pa.array([top, top, -top, 1])})
    names = [f.name for f in layout.partial_fields]
    fine = Ranges(np.array([0, 1]), np.array([1, 4]), np.zeros(4, np.int64))
    assert layout.finish(pa.table(range_partials(layout, rows, fine), names=names))[0].to_pylist() == [top, 1]
    over = Ranges(np.array([0]), np.array([2]), np.zeros(4, np.int64))
    with pytest.raises(AggregateOverflowError, match=str(2 * top)):
        layout.finish(pa.table(range_partials(layout, rows, over), names=names))
