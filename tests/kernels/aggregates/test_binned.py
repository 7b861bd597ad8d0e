"""Approximate quantiles keep the error they state, and histograms count, in any grouping and every kind of window."""

from __future__ import annotations

import decimal
import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.errors import ExpressionError, PlanError
from krishiv_py.kernels.aggregates import AggKernel, Rows, kernel_for
from krishiv_py.testing import Driver, stream_of
from tests.kernels.aggregates.test_ranked import TRIED, WINDOWS

TINY = 2.2250738585072014e-308
RANKS = st.sampled_from([0, 1, 0.5, 0.07, 0.1, 0.25, 0.9, 0.99]) | st.floats(0, 1)
ERRORS = st.sampled_from([0.0001, 0.01, 0.25]) | st.floats(0.0001, 0.25)
DOUBLES = st.floats() | st.sampled_from([0.0, -0.0, TINY, -TINY, 5e-324, 1.7976931348623157e308, 1.0, 2.0, math.nan, -math.inf])


def order(value: float) -> tuple[bool, float]:
    return math.isnan(value), 0.0 if math.isnan(value) else value


def of_rank(values: list[float], rank: float) -> float:
    """The smallest value such that at least the part `rank` of all values is as small or smaller."""
    ordered = sorted(values, key=order)
    return next(v for n, v in enumerate(ordered, 1) if n / len(values) >= rank)


def near(actual: float, wanted: float, error: float) -> bool:
    if not math.isfinite(wanted) or abs(wanted) < TINY:
        return (math.isnan(actual) and math.isnan(wanted)) or actual == (0.0 if abs(wanted) < TINY else wanted)
    return abs(Fraction(actual) - Fraction(wanted)) <= Fraction(error) * abs(Fraction(wanted)) * (1 + Fraction(1, 10**12))


def partials(kernel: AggKernel, groups: list[list[Any]], type_: pa.DataType) -> list[pa.Array]:
    values = pa.array([v for group in groups for v in group], type_)
    ids = np.repeat(np.arange(len(groups)), [len(group) for group in groups]).astype(np.int64)
    return kernel.create(Rows(values, np.zeros(len(values), np.int64), ids, len(groups)))


def merged(kernel: AggKernel, parts: list[list[pa.Array]]) -> list[pa.Array]:
    n = len(parts[0][0])
    columns = [pa.concat_arrays(list(columns)) for columns in zip(*parts, strict=True)]
    return kernel.merge(columns, np.tile(np.arange(n, dtype=np.int64), len(parts)), n)


GROUPS = st.lists(st.lists(DOUBLES | st.none(), max_size=30), min_size=1, max_size=4)


@given(groups=GROUPS, ranks=st.lists(RANKS, min_size=1, max_size=3), error=ERRORS)
def test_the_error_is_the_one_stated(groups: list[list[float | None]], ranks: list[float], error: float) -> None:
    kernel = kernel_for(kv.approx_percentile("x", ranks, error), pa.float64())
    for actual, group in zip(kernel.finish(partials(kernel, groups, pa.float64())).to_pylist(), groups, strict=True):
        values = [v for v in group if v is not None]
        if not values:
            assert actual is None
            continue
        for value, rank in zip(actual, ranks, strict=True):
            assert near(value, of_rank(values, rank), error), (value, of_rank(values, rank))


@given(groups=GROUPS, cuts=st.lists(st.integers(0, 30), max_size=3), error=ERRORS, turned=st.booleans())
def test_merged_parts_are_the_whole_to_the_last_bit(
    groups: list[list[float | None]], cuts: list[int], error: float, turned: bool
) -> None:
    for call in (kv.approx_percentile("x", 0.3, error), kv.histogram("x", [-1.5, 0, 3])):
        kernel = kernel_for(call, pa.float64())
        ends = [0, *sorted(cuts), 30]
        parts = [partials(kernel, [g[a:b] for g in groups], pa.float64()) for a, b in itertools.pairwise(ends)]
        actual = merged(kernel, parts[::-1] if turned else parts)
        assert [p.to_pylist() for p in actual] == [p.to_pylist() for p in partials(kernel, groups, pa.float64())]


@given(rank=st.integers(0, 100), n=st.integers(1, 300))
def test_a_rank_is_not_rounded_past_its_value(rank: int, n: int) -> None:
    """0.07 * 100 is 7.000000000000001, and yet the seventh of hundred values is meant."""
    kernel = kernel_for(kv.approx_percentile("x", rank / 100, 0.0001), pa.int64())
    (actual,) = kernel.finish(partials(kernel, [list(range(1, n + 1))], pa.int64())).to_pylist()
    assert round(actual) == max(1, math.ceil(Fraction(rank, 100) * n))


@pytest.mark.parametrize(
    ("type_", "value"),
    [(pa.int8(), -128), (pa.uint64(), 2**64 - 1), (pa.float32(), 0.5), (pa.decimal128(20, 3), decimal.Decimal("-12.345"))],
)
def test_every_kind_of_number_is_taken(type_: pa.DataType, value: Any) -> None:
    quantile, counted = kernel_for(kv.approx_percentile("x", 1), type_), kernel_for(kv.histogram("x", [-1e30, 0]), type_)
    (actual,) = quantile.finish(partials(quantile, [[value, None, value]], type_)).to_pylist()
    assert near(actual, float(value), 0.01)
    assert counted.finish(partials(counted, [[value, None, value]], type_)).to_pylist() == [
        [0, 2 * (value < 0), 2 * (value > 0)]
    ]


@given(
    bounds=st.lists(st.integers(-(2**65), 2**65) | st.floats(-1e20, 1e20), min_size=1, max_size=5, unique=True).map(sorted),
    values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**53, 2**53 + 1, 0, -1])),
)
def test_whole_numbers_are_counted_exactly(bounds: list[float], values: list[int]) -> None:
    kernel = kernel_for(kv.histogram("x", bounds), pa.int64())
    wanted = [0] * (len(bounds) + 1)
    for value in values:
        wanted[sum(Fraction(bound) <= value for bound in bounds)] += 1
    assert kernel.finish(partials(kernel, [values, []], pa.int64())).to_pylist() == [wanted, [0] * len(wanted)]


def test_state_is_bounded_by_the_range_of_values() -> None:
    values = np.random.default_rng(3).lognormal(0, 2, 400_000)
    kernel = kernel_for(kv.approx_percentile("x", 0.5, 0.01), pa.float64())
    bins, _ = kernel.create(Rows(pa.array(values), np.zeros(len(values), np.int64), np.zeros(len(values), np.int64), 1))
    assert len(bins[0]) <= 165 * math.log10(values.max() / values.min()) + 2


ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b"]),
        "at": st.integers(0, 40),
        "x": st.sampled_from([0.0, -0.0, 1.5, -7.25, 8.0, 1e300, math.inf, -math.inf, math.nan, None]) | st.floats(-9, 9),
    }
)


@pytest.mark.parametrize("kind", WINDOWS)
@settings(max_examples=TRIED // 5 or 1)
@given(batches=st.lists(st.lists(ROW, max_size=12), max_size=4))
def test_every_kind_of_window_over_restarts(kind: str, batches: list[list[dict[str, Any]]]) -> None:
    stream = stream_of("k string, at bigint, x double").watermark("at", 10).key_by("k")
    calls = [kv.collect_list("x").alias("xs"), kv.approx_percentile("x", 0.9).alias("p"), kv.histogram("x", [0, 8]).alias("h")]
    driver = Driver(WINDOWS[kind](stream).agg(calls))
    results = []
    for number, batch in enumerate(batches):
        driver = driver.restarted() if number % 2 else driver
        results += driver.send(batch).results.to_pylist()
    for row in (*results, *driver.close().results.to_pylist()):
        xs = row["xs"]
        assert row["p"] is None if not xs else near(row["p"], of_rank(xs, 0.9), 0.01)
        assert row["h"] == [sum(x < 0 for x in xs), sum(0 <= x < 8 for x in xs), sum(x >= 8 or math.isnan(x) for x in xs)]


@pytest.mark.parametrize(
    "call",
    [
        lambda: kv.approx_percentile("x", 1.1),
        lambda: kv.approx_percentile("x", True),
        lambda: kv.approx_percentile("x", math.nan),
        lambda: kv.approx_percentile("x", []),
        lambda: kv.approx_percentile("x", [0.5, "1"]),  # type: ignore[list-item]
        lambda: kv.approx_percentile("x", "0.5"),  # type: ignore[arg-type]
        lambda: kv.approx_percentile("x", 0.5, 0),
        lambda: kv.approx_percentile("x", 0.5, 10_000),
        lambda: kv.approx_percentile("x", 0.5, math.nan),
        lambda: kv.histogram("x", []),
        lambda: kv.histogram("x", [1, 1]),
        lambda: kv.histogram("x", [2, 1]),
        lambda: kv.histogram("x", [math.nan]),
        lambda: kv.histogram("x", [1, math.inf]),
        lambda: kv.histogram("x", "12"),  # type: ignore[arg-type]
        lambda: kv.histogram("x", 5),  # type: ignore[arg-type]
        lambda: stream_of("at bigint, x string").watermark("at", 0).tumbling_window(10).agg(kv.approx_percentile("x")),
        lambda: stream_of("at bigint, x boolean").watermark("at", 0).tumbling_window(10).agg(kv.histogram("x", [1])),
    ],
)
def test_wrong_calls_are_refused(call: Any) -> None:
    with pytest.raises((PlanError, ExpressionError)):
        call()
