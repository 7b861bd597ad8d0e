"""Sums and means of floats are a function of the values alone: never of order, batches, engine or grouping (SEMANTICS §5.6)."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.kernels.aggregates import AggKernel, Rows, kernel_for
from krishiv_py.kernels.aggregates.exact import Addends, ByRange, as_fraction, exact_sums
from krishiv_py.testing import Driver, stream_of

MOST, LEAST = 1.7976931348623157e308, 5e-324
EXTREMES = st.sampled_from([MOST, -MOST, 1e308, -1e308, LEAST, -LEAST, 2.0**960, 1.0, -1.0, 0.1, 0.0, -0.0, 1e16, 2.0**-1022])
HALVES = st.builds(lambda k, e: k * 2.0**e, st.integers(-5, 5), st.sampled_from([-108, -55, -54, -53, -1, 0, 52, 53]))
FINITE = st.one_of(
    st.floats(-1000, 1000), st.floats(allow_nan=False, allow_infinity=False), EXTREMES, HALVES, st.integers(-9, 9).map(float)
)
SPECIAL = st.one_of(FINITE, st.sampled_from([math.nan, math.inf, -math.inf]))
N = 3
Row = tuple[int, float | None]
ROWS = st.lists(st.tuples(st.integers(0, N - 1), st.one_of(st.none(), SPECIAL)), max_size=40)


def nearest(total: Fraction) -> float:
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def plain_sum(values: list[float]) -> float | None:
    if not values:
        return None
    special = {v for v in values if not math.isfinite(v)}
    if special:
        return special.pop() if len(special) == 1 else math.nan
    return nearest(sum(map(Fraction, values), Fraction()))


def plain_avg(values: list[float]) -> float | None:
    total = plain_sum(values)
    if total is None:
        return None
    if math.isinf(total) and all(map(math.isfinite, values)):
        return nearest(sum(map(Fraction, values), Fraction()) / len(values))
    return total / len(values)


def plain_variance(values: list[float]) -> float | None:
    """By the formula of the library, but in fractions up to its last two divisions."""
    if len(values) < 2:
        return None
    if not all(map(math.isfinite, values)):
        return math.nan
    n = len(values)
    spread = n * sum((Fraction(v) ** 2 for v in values), Fraction()) - sum(map(Fraction, values), Fraction()) ** 2
    if spread == 0 or Fraction(2) ** -1000 < spread < Fraction(2) ** 1020:
        return float(spread) / n / (n - 1)
    return nearest(spread / (n * (n - 1)))


def same(left: float | None, right: float | None) -> bool:
    """To the last bit, the sign of zero included; one NaN is like another."""
    if left is None or right is None:
        return left is right
    return (math.isnan(left) and math.isnan(right)) or left.hex() == right.hex()


def created(kernel: AggKernel, values: pa.Array, ids: Any, n: int) -> list[pa.Array]:
    groups = np.asarray(ids, np.int64)
    return kernel.create(Rows(values, np.zeros(len(groups), np.int64), groups, n))


def partials_of(call: Any, rows: list[Row]) -> list[pa.Array]:
    return created(kernel_for(call, pa.float64()), pa.array([v for _, v in rows], pa.float64()), [g for g, _ in rows], N)


def merged(call: Any, parts: list[list[pa.Array]]) -> list[pa.Array]:
    columns = [pa.concat_arrays(list(column)) for column in zip(*parts, strict=True)]
    actual: list[pa.Array] = kernel_for(call, pa.float64()).merge(columns, np.tile(np.arange(N), len(parts)), N)
    return actual


KNOWN = {"sum": (kv.sum("x"), plain_sum), "avg": (kv.avg("x"), plain_avg), "variance": (kv.variance("x"), plain_variance)}


@pytest.mark.parametrize(("call", "plain"), KNOWN.values(), ids=KNOWN)
@given(rows=ROWS, data=st.data())
@example(rows=[(0, 1e308), (0, -1e308), (0, 1.0)], data=None)
@example(rows=[(0, MOST), (0, MOST), (0, -MOST), (1, math.inf), (1, MOST), (2, math.inf), (2, -math.inf)], data=None)
@example(rows=[(0, 1.0), (0, 2.0**-53), (0, LEAST)], data=None)
@example(rows=[(0, -0.0), (0, -0.0)], data=None)
def test_any_grouping_gives_the_nearest_double(call: Any, plain: Any, rows: list[Row], data: st.DataObject | None) -> None:
    """The kept partials are equal too: so what is withdrawn is what was given."""
    wanted = [plain([v for g, v in rows if g == i and v is not None]) for i in range(N)]
    whole = partials_of(call, rows)
    if data is not None:
        rows = data.draw(st.permutations(rows))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    else:
        cuts = list(range(1, len(rows)))
    parts = [partials_of(call, rows[a:b]) for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    middle = len(parts) // 2
    nested = merged(call, [merged(call, part) for part in (parts[:middle], parts[middle:]) if part])
    for actual in (whole, merged(call, parts), nested):
        result = kernel_for(call, pa.float64()).finish(actual).to_pylist()
        assert all(map(same, result, wanted)), (result, wanted)
        assert repr([c.to_pylist() for c in actual]) == repr([c.to_pylist() for c in whole])


@given(values=st.lists(SPECIAL, min_size=1, max_size=30), data=st.data())
def test_ranges_are_summed_as_their_rows_alone(values: list[float], data: st.DataObject) -> None:
    """By differences of running totals: what lies around a range must leave no trace."""
    bounds = st.tuples(st.integers(0, len(values)), st.integers(0, len(values))).map(sorted)
    ranges = sorted(data.draw(st.lists(bounds, min_size=1, max_size=8)))
    low, high = (np.array([r[side] for r in ranges], np.int64) for side in (0, 1))
    actual = exact_sums(Addends([np.array(values)]), ByRange(low, high, len(values)), 2).terms[0].tolist()
    wanted = [plain_sum(values[a:b]) or 0.0 for a, b in ranges]
    assert all(map(same, actual, wanted)), (actual, wanted)


@given(groups=st.lists(st.lists(st.one_of(st.none(), SPECIAL), min_size=1, max_size=12), min_size=1, max_size=4))
def test_running_sums_are_those_of_every_prefix(groups: list[list[float | None]]) -> None:
    values = [v for g in groups for v in g]
    ids = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    for call, plain in KNOWN.values():
        kernel = kernel_for(call, pa.float64())
        alone = created(kernel, pa.array(values, pa.float64()), np.arange(len(values)), len(values))
        actual = kernel.finish(kernel.prefixes(alone, ids)).to_pylist()
        wanted = [plain([v for v in g[: i + 1] if v is not None]) for g in groups for i in range(len(g))]
        assert all(map(same, actual, wanted)), (actual, wanted)


@pytest.mark.parametrize("spread", ["cents", "lognormal", "decades", "any", "one group"])
def test_many_rows_and_groups(spread: str) -> None:
    """More rows than a block, against math.fsum; in thirds, in another order, and as ranges."""
    rng = np.random.default_rng(7)
    n, groups = 100_000, 1 if spread == "one group" else 500
    values = {
        "cents": np.round(rng.random(n) * 1000, 2),
        "lognormal": rng.lognormal(0, 4, n) * rng.choice([-1, 1], n),
        "decades": rng.random(n) * 10.0 ** rng.integers(-17, 7, n),
        "any": np.ldexp(rng.random(n) - 0.5, rng.integers(-1070, 1000, n)),
        "one group": np.where(np.arange(n) % 1000 == 0, 1e12, 1e-12) * (rng.random(n) - 0.5),
    }[spread]
    ids = rng.integers(0, groups, n)
    wanted = [math.fsum(values[ids == g].tolist()) for g in range(groups)]
    kernel = kernel_for(kv.sum("x"), pa.float64())

    def create(rows: np.ndarray[Any, np.dtype[np.int64]]) -> list[pa.Array]:
        return created(kernel, pa.array(values[rows]), ids[rows], groups)

    shuffled = rng.permutation(n)
    parts = [create(part) for part in np.array_split(shuffled, 3)]
    columns = [pa.concat_arrays(list(c)) for c in zip(*parts, strict=True)]
    for actual in (create(np.arange(n)), create(shuffled), kernel.merge(columns, np.tile(np.arange(groups), 3), groups)):
        assert kernel.finish(actual).to_pylist() == wanted
    ends = np.append(np.flatnonzero(np.diff(np.sort(ids))) + 1, n)
    order = np.argsort(ids, kind="stable")
    ranged = exact_sums(Addends([values[order]]), ByRange(np.append(0, ends[:-1]), ends, n), 2)
    assert ranged.terms[0].tolist() == wanted


@pytest.mark.parametrize("type_", [pa.float64(), pa.int64()], ids=str)
@pytest.mark.parametrize("start", [0, 1_700_000_000_000_000, 2**53 - 9])
@given(offsets=st.lists(st.integers(0, 9), min_size=2, max_size=12), cut=st.integers(0, 12))
def test_the_variance_of_epoch_microseconds(type_: pa.DataType, start: int, offsets: list[int], cut: int) -> None:
    """Sums of squares have 102 digits there, of which all but the last few cancel."""
    values = [start + o for o in offsets]
    kernel = kernel_for(kv.variance("x"), type_)
    parts = [created(kernel, pa.array(part, type_), [0] * len(part), 1) for part in (values[:cut], values[cut:])]
    columns = [pa.concat_arrays(list(c)) for c in zip(*parts, strict=True)]
    actual = kernel.finish(kernel.merge(columns, np.zeros(2, np.int64), 1)).to_pylist()
    assert actual == [plain_variance([float(o) for o in offsets])]
    assert actual[0] == pytest.approx(statistics.variance(offsets), rel=1e-15)


def test_the_variance_of_long_integers_is_theirs() -> None:
    values = [2**63 - 1, 2**63 - 5, -(2**63), 2**60 + 1]
    kernel = kernel_for(kv.variance("x"), pa.int64())
    actual = kernel.finish(created(kernel, pa.array(values), [0] * 4, 1))[0].as_py()
    assert actual == pytest.approx(float(statistics.variance(map(Fraction, values))), rel=1e-15)
    near = [2**63 - 1, 2**63 - 2, 2**63 - 3]  # one double for all three
    assert kernel.finish(created(kernel, pa.array(near), [0] * 3, 1)).to_pylist() == [1.0]


@given(limbs=st.lists(st.integers(-(2**32) + 1, 2**32 - 1), min_size=1, max_size=5), place=st.integers(-3, 60))
def test_numbers_of_the_state_are_read_as_written(limbs: list[int], place: int) -> None:
    wanted = sum(limb * Fraction(2) ** (32 * (place + i) - 1074) for i, limb in enumerate(limbs))
    assert as_fraction([place, *limbs]) == wanted


@given(values=st.lists(FINITE, min_size=1, max_size=24), size=st.integers(1, 30), each=st.integers(1, 5))
def test_a_log_of_counted_firings_does_not_depend_on_batches(values: list[float], size: int, each: int) -> None:
    plain = stream_of("key string, at bigint, x double").watermark("at", 1000).key_by("key")
    stream = plain.trigger(kv.Trigger.on_count(each)).emit("retractions").tumbling_window(100)
    rows = [{"key": "k", "at": i, "x": x} for i, x in enumerate(values)]
    logs = []
    for width in (1, size, len(rows)):
        driver = Driver(stream.agg(kv.sum("x").alias("s"), kv.avg("x").alias("m")))
        sent = [driver.send(rows[i : i + width]).results for i in range(0, len(rows), width)] + [driver.close().results]
        logs.append([row for table in sent for row in table.to_pylist()])
    assert repr(logs[0]) == repr(logs[1]) == repr(logs[2])
    standing: Any = None
    for row in logs[0]:
        shown = {n: v for n, v in row.items() if n != "op"}
        if row["op"] == "-U":
            assert repr(shown) == repr(standing)
        standing = None if row["op"] == "-U" else shown
    assert same(standing["s"], plain_sum(values))


@given(times=st.lists(st.tuples(st.integers(0, 30), FINITE), min_size=1, max_size=14), width=st.integers(1, 5))
def test_distinct_set_retractions_withdraw_what_was_given(times: list[tuple[int, float]], width: int) -> None:
    stream = stream_of("at bigint, x double").watermark("at", 0).key_by()
    stream = stream.trigger(kv.Trigger.on_every_element()).emit("retractions")
    windowed = stream.windowed_by(kv.SlidingWindows.of(10).grace(1000))
    driver = Driver(windowed.agg(kv.sum("x").alias("s"), kv.avg("x").alias("m")))
    rows = [{"at": t, "x": x} for t, x in times]
    sent = [driver.send(rows[i : i + width]).results for i in range(0, len(rows), width)] + [driver.close().results]
    standing: dict[tuple[int, int], str] = {}
    for row in (r for table in sent for r in table.to_pylist()):
        window, shown = (row["window_start"], row["window_end"]), repr((row["s"], row["m"]))
        if row["op"] in ("-U", "-D"):
            assert standing.pop(window) == shown
        else:
            assert window not in standing
            standing[window] = shown
    for (start, end), shown in standing.items():
        inside = [x for t, x in times if start <= t <= end]
        assert shown == repr((plain_sum(inside), plain_avg(inside)))


@pytest.mark.parametrize("call", [kv.min("x"), kv.max("x"), kv.percentile("x", 0), kv.percentile("x", 1)], ids=str)
@pytest.mark.parametrize("type_", [pa.float64(), pa.float32()], ids=str)
def test_of_two_zeros_it_does_not_show_which_came_first(call: Any, type_: pa.DataType) -> None:
    kernel = kernel_for(call, type_)
    for values in ([0.0, -0.0], [-0.0, 0.0], [-0.0]):
        alone = created(kernel, pa.array(values, type_), np.arange(len(values)), len(values))
        whole = created(kernel, pa.array(values, type_), [0] * len(values), 1)
        prefixes = kernel.prefixes(alone, np.zeros(len(values), np.int64))
        for actual in (whole, kernel.merge(alone, np.zeros(len(values), np.int64), 1), prefixes):
            assert {repr(v) for v in kernel.finish(actual).to_pylist()} == {"0.0"}
