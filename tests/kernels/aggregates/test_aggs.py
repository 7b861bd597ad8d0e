"""Every aggregate against plain Python, and the laws that let partials be combined in any grouping."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import statistics
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.errors import AggregateOverflowError, OperatorError
from krishiv_py.kernels.aggregates import AggKernel, Rows, kernel_for
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.testing import Driver, stream_of

UTC = dt.timezone.utc
N = 4  # groups; some stay empty
Row = tuple[int, int, Any]  # group, event time, value
DECIMAL = pa.decimal128(12, 3)

FLOATS = st.floats(allow_nan=True, allow_infinity=True, width=64)
MILD_FLOATS = st.floats(min_value=-1e12, max_value=1e12, allow_nan=False)
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**53), 2**53),
    pa.float64(): FLOATS,
    pa.float32(): st.floats(width=32),
    DECIMAL: st.decimals(-(10**6), 10**6, allow_nan=False, places=3),
    pa.string(): st.text(max_size=3),
    pa.binary(): st.binary(max_size=3),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.timestamp("us"): st.datetimes(),
    pa.duration("us"): st.timedeltas(dt.timedelta(-10), dt.timedelta(10)),
}
NUMERIC = [pa.int8(), pa.int32(), pa.int64(), DECIMAL]
ANY = list(VALUES)


def rows_of(values: st.SearchStrategy[Any], max_size: int = 25) -> st.SearchStrategy[list[Row]]:
    """Rows with few groups and few times, so that ties are common; a fifth of the values is null."""
    nullable = st.one_of(st.none(), values, values, values, values)
    return st.lists(st.tuples(st.integers(0, N - 1), st.integers(-2, 2), nullable), max_size=max_size)


def kernel(call: AggCall, type_: pa.DataType) -> AggKernel:
    return kernel_for(call, type_)


def create(of: AggKernel, rows: Sequence[Row], type_: pa.DataType) -> list[pa.Array]:
    values = pa.array([r[2] for r in rows], type_)
    times = np.array([r[1] for r in rows], np.int64)
    partials = of.create(Rows(values, times, np.array([r[0] for r in rows], np.int64), N))
    assert [p.type for p in partials] == of.partial_types
    return partials


def merge(of: AggKernel, parts: Sequence[list[pa.Array]]) -> list[pa.Array]:
    """Partials of all groups, one after the other, folded group by group."""
    columns = [pa.concat_arrays([part[i] for part in parts]) for i in range(len(of.partial_types))]
    merged = of.merge(columns, np.tile(np.arange(N, dtype=np.int64), len(parts)), N)
    assert [p.type for p in merged] == of.partial_types
    return merged


def finished(of: AggKernel, partials: list[pa.Array]) -> list[Any]:
    result = of.finish(partials)
    assert result.type == of.result_type
    actual: list[Any] = result.to_pylist()
    return actual


def grouped(rows: Sequence[Row]) -> list[list[tuple[int, Any]]]:
    """(time, value) of the non-null values by group, in order of arrival."""
    return [[(t, v) for g, t, v in rows if g == i and v is not None] for i in range(N)]


def order(value: Any) -> tuple[bool, Any]:
    """NaN counts as the largest number."""
    nan = isinstance(value, float) and math.isnan(value)
    return (nan, 0.0 if nan else value)


def distinct(values: Sequence[Any]) -> list[Any]:
    actual: dict[tuple[bool, Any], Any] = {}
    for value in values:
        actual.setdefault(order(value), value)
    return [actual[k] for k in sorted(actual)]


def exact(value: Any) -> Fraction:
    return Fraction(value)


def interpolated(values: Sequence[Any], rank: float) -> float:
    ordered = sorted((float(v) for v in values), key=order)
    spot = rank * (len(ordered) - 1)
    low = math.floor(spot)
    below = ordered[low]
    if spot == low or below == ordered[low + 1]:
        return below
    return below * (low + 1 - spot) + ordered[low + 1] * (spot - low)  # as Spark does: infinities stay what they are


def per_group(of: Callable[[list[Any]], Any], rows: Sequence[Row], empty: Any = None) -> list[Any]:
    return [of([v for _, v in group]) if group else empty for group in grouped(rows)]


@attrs.frozen
class Known:
    """An aggregate, the types it takes, and what plain Python makes of rows."""

    call: AggCall
    types: list[pa.DataType]
    plain: Callable[[Sequence[Row]], list[Any]]
    tolerance: float = 0.0


def _float_sum(values: list[Any]) -> float:
    return float(sum(map(exact, values)))


def _mean(values: list[Any]) -> float:
    return float(sum(map(exact, values)) / len(values))


def _variance(values: list[Any]) -> float | None:
    doubles = [float(v) if isinstance(v, decimal.Decimal) else v for v in values]  # as the kernel takes them
    return float(statistics.variance(map(exact, doubles))) if len(values) > 1 else None


def _var_pop(values: list[Any]) -> float:
    return float(statistics.pvariance(exact(float(v) if isinstance(v, decimal.Decimal) else v) for v in values))


def _stddev(values: list[Any]) -> float | None:
    actual = _variance(values)
    return None if actual is None else math.sqrt(actual)


KNOWN = {
    "count": Known(kv.count("x"), ANY, lambda rows: per_group(len, rows, 0)),
    "sum of integers": Known(kv.sum("x"), NUMERIC, lambda rows: per_group(sum, rows)),
    "avg": Known(kv.avg("x"), NUMERIC, lambda rows: per_group(_mean, rows), 4e-16),
    "variance": Known(kv.variance("x"), NUMERIC, lambda rows: per_group(_variance, rows), 1e-15),
    "stddev": Known(kv.stddev("x"), NUMERIC, lambda rows: per_group(_stddev, rows), 1e-15),
    "var_pop": Known(kv.var_pop("x"), NUMERIC, lambda rows: per_group(_var_pop, rows), 1e-15),
    "stddev_pop": Known(kv.stddev_pop("x"), NUMERIC, lambda rows: per_group(lambda vs: math.sqrt(_var_pop(vs)), rows), 1e-15),
    "min": Known(kv.min("x"), ANY, lambda rows: per_group(lambda vs: min(vs, key=order), rows)),
    "max": Known(kv.max("x"), ANY, lambda rows: per_group(lambda vs: max(vs, key=order), rows)),
    "first": Known(kv.first("x"), ANY, lambda rows: [min(g, key=lambda e: e[0])[1] if g else None for g in grouped(rows)]),
    "last": Known(kv.last("x"), ANY, lambda rows: [max(g[::-1], key=lambda e: e[0])[1] if g else None for g in grouped(rows)]),
    "count_distinct": Known(kv.count_distinct("x"), ANY, lambda rows: per_group(lambda vs: len(distinct(vs)), rows, 0)),
    "collect_set": Known(kv.collect_set("x"), ANY, lambda rows: per_group(distinct, rows, [])),
    "collect_list": Known(
        kv.collect_list("x"), ANY, lambda rows: [[v for _, v in sorted(g, key=lambda e: e[0])] for g in grouped(rows)]
    ),
    "percentile": Known(
        kv.percentile("x", 0.3), [*NUMERIC, pa.float64()], lambda rows: per_group(lambda vs: interpolated(vs, 0.3), rows), 1e-12
    ),
    "median": Known(kv.percentile("x"), NUMERIC, lambda rows: per_group(lambda vs: interpolated(vs, 0.5), rows), 1e-12),
    "mode": Known(
        kv.mode("x"),
        ANY,
        lambda rows: per_group(lambda vs: min(vs, key=lambda v: (-sum(order(v) == order(w) for w in vs), order(v))), rows),
    ),
    "smallest": Known(kv.percentile("x", 0), [pa.float64()], lambda rows: per_group(lambda vs: interpolated(vs, 0), rows)),
    "largest": Known(kv.percentile("x", 1), [pa.float64()], lambda rows: per_group(lambda vs: interpolated(vs, 1), rows)),
}
CASES = [(name, type_) for name, known in KNOWN.items() for type_ in known.types]
IDS = [f"{name}-{type_}" for name, type_ in CASES]


def same(left: Any, right: Any, tolerance: float = 0.0, scale: float = 0.0) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(same(a, b, tolerance, scale) for a, b in zip(left, right, strict=True))
    if isinstance(left, float) and isinstance(right, (float, int)):
        if math.isnan(left) or math.isnan(right):
            return math.isnan(left) and math.isnan(right)
        if math.isinf(left) or math.isinf(right):
            return left == right
        return math.isclose(left, right, rel_tol=tolerance, abs_tol=tolerance * scale)
    return bool(left == right) and (left is None) == (right is None)


def scale_of(rows: Sequence[Row], known: Known) -> float:
    """Size of the numbers that went in: what rounding is measured by."""
    sizes = [abs(float(v)) for _, _, v in rows if isinstance(v, (int, float, decimal.Decimal)) and math.isfinite(v)]
    top = max(sizes, default=1.0)
    return 0.0 if known.call.func in ("variance", "stddev", "var_pop", "stddev_pop", "avg") else top


TRIED = settings.default.max_examples if settings.default else 40


@pytest.mark.parametrize(("name", "type_"), CASES, ids=IDS)
@settings(max_examples=TRIED // 3 or 1)  # of each of the 131 pairs; types share nearly all code
@given(data=st.data())
def test_against_plain_python_in_any_grouping(name: str, type_: pa.DataType, data: st.DataObject) -> None:
    """create(a + b + c) = merge(create(a), merge(create(b), create(c))) = merge(merge(create(a), create(b)), create(c))."""
    known = KNOWN[name]
    rows = data.draw(rows_of(VALUES[type_]))
    one, two = sorted((data.draw(st.integers(0, len(rows))), data.draw(st.integers(0, len(rows)))))
    wanted, scale = known.plain(rows), scale_of(rows, known)
    of = kernel(known.call, type_)
    a, b, c = (create(of, part, type_) for part in (rows[:one], rows[one:two], rows[two:]))
    for partials in (
        create(of, rows, type_),
        merge(of, [a, b, c]),
        merge(of, [merge(of, [a, b]), c]),
        merge(of, [a, merge(of, [b, c])]),
        merge(of, [merge(of, [a]), merge(of, [b]), merge(of, [c])]),
    ):
        actual = finished(of, partials)
        assert same(actual, wanted, known.tolerance, scale), (actual, wanted)


@given(rows=rows_of(MILD_FLOATS), cut=st.integers(0, 25))
def test_float_sums_are_right_to_rounding(rows: list[Row], cut: int) -> None:
    for call, plain in ((kv.sum("x"), _float_sum), (kv.avg("x"), _mean)):
        of = kernel(call, pa.float64())
        parts = [create(of, part, pa.float64()) for part in (rows[:cut], rows[cut:])]
        for actual in (finished(of, create(of, rows, pa.float64())), finished(of, merge(of, parts))):
            assert same(actual, per_group(plain, rows), 0.0 if call.func == "sum" else 4e-16)


@given(data=st.data(), scale=st.sampled_from([0, 3, 18, 38]), cut=st.integers(0, 25))
def test_a_mean_of_decimals_is_the_double_nearest_to_it(data: st.DataObject, scale: int, cut: int) -> None:
    type_ = pa.decimal128(38, scale)
    whole = st.one_of(st.integers(-(10**6), 10**6), st.integers(-(10**38) + 1, 10**38 - 1))
    rows = data.draw(rows_of(whole.map(lambda n: decimal.Decimal(n).scaleb(-scale, decimal.Context(prec=38)))))
    of = kernel(kv.avg("x"), type_)
    nearest = [float(Fraction(sum(map(exact, v))) / len(v)) if v else None for v in ([v for _, v in g] for g in grouped(rows))]
    assert finished(of, create(of, rows, type_)) == nearest
    assert finished(of, merge(of, [create(of, rows[:cut], type_), create(of, rows[cut:], type_)])) == nearest


@given(rows=rows_of(FLOATS))
def test_float_sums_with_nan_and_infinity_are_those_of_ieee(rows: list[Row]) -> None:
    assume(all(v is None or not math.isfinite(v) or abs(v) < 1e300 for _, _, v in rows))
    of = kernel(kv.sum("x"), pa.float64())
    actual = finished(of, create(of, rows, pa.float64()))
    for value, group in zip(actual, grouped(rows), strict=True):
        specials = [v for _, v in group if not math.isfinite(v)]
        if not specials:
            assert (value is None) == (not group)
        else:
            assert same(value, float(sum(specials)))


@given(rows=rows_of(st.floats(min_value=-1, max_value=1)), shift=st.sampled_from([1e6, 1e9]))
def test_variance_far_from_zero_keeps_its_digits(rows: list[Row], shift: float) -> None:
    """The textbook formula, mean of squares minus square of mean, would lose all of them."""
    moved = [(g, t, None if v is None else v + shift) for g, t, v in rows]
    of = kernel(kv.variance("x"), pa.float64())
    parts = [create(of, [r], pa.float64()) for r in moved] or [create(of, [], pa.float64())]
    assert same(finished(of, merge(of, parts)), per_group(_variance, moved), 1e-15)


# Integer sums

EDGE = st.sampled_from([2**63 - 1, -(2**63), 2**62, -(2**62), 1, -1, 0])


@given(rows=rows_of(EDGE), cut=st.integers(0, 25))
def test_integer_sums_overflow_only_in_the_result(rows: list[Row], cut: int) -> None:
    """Partial sums may leave 64 bits and come back; a result that is outside is an error, never a wrapped value."""
    of = kernel(kv.sum("x"), pa.int64())
    wanted = per_group(sum, rows)
    outside = any(total is not None and not -(2**63) <= total < 2**63 for total in wanted)
    ways = [
        create(of, rows, pa.int64()),
        merge(of, [create(of, part, pa.int64()) for part in (rows[:cut], rows[cut:])]),
        merge(of, [create(of, [row], pa.int64()) for row in rows] or [create(of, [], pa.int64())]),
    ]
    for partials in ways:
        if outside:
            with pytest.raises(AggregateOverflowError, match="left the 64-bit range"):
                of.finish(partials)
        else:
            assert finished(of, partials) == wanted


def test_an_overflow_names_the_aggregate_and_the_exact_value() -> None:
    of = kernel(kv.sum("x").alias("total"), pa.int64())
    with pytest.raises(OverflowError, match=r"AS total .*9223372036854775808"):
        of.finish(create(of, [(0, 0, 2**63 - 1), (0, 0, 1)], pa.int64()))


def test_decimal_sums_are_exact_to_38_digits_and_an_error_beyond() -> None:
    type_ = pa.decimal128(38, 2)
    most = decimal.Decimal("9" * 36 + ".99")  # the largest there is: 38 digits
    of = kernel(kv.sum("x"), type_)
    back = [(0, 0, most), (0, 0, most), (0, 0, decimal.Decimal(f"-{most}"))]
    assert finished(of, create(of, back, type_)) == [most, None, None, None]
    assert finished(of, merge(of, [create(of, [row], type_) for row in back])) == [most, None, None, None]
    with pytest.raises(AggregateOverflowError, match="38 digits"):
        of.finish(create(of, back[:2], type_))


# Distinct counts by sketch


@pytest.mark.parametrize("precision", [4, 10, 12, 14, 16])
@pytest.mark.parametrize("n", [0, 1, 10, 1_000, 30_000, 200_000])
def test_the_sketch_keeps_its_error_bound(n: int, precision: int) -> None:
    """Five standard errors, over four groups of different values: a failure by chance has odds of about 1 to a million."""
    of = kernel(kv.approx_count_distinct("x", precision), pa.int64())
    values = pa.array(np.arange(N * n, dtype=np.int64) * 7_919)
    times = np.zeros(N * n, np.int64)
    partials = of.create(Rows(values, times, np.repeat(np.arange(N, dtype=np.int64), n), N))
    error = 1.04 / math.sqrt(2**precision)
    for actual in finished(of, merge(of, [partials, partials])):
        assert abs(actual - n) <= 5 * error * n + 0.5


@given(rows=rows_of(st.text(max_size=2), 60), cut=st.integers(0, 60))
def test_the_sketch_of_few_values_is_exact_and_combines(rows: list[Row], cut: int) -> None:
    of = kernel(kv.approx_count_distinct("x", 16), pa.string())
    whole = create(of, rows, pa.string())
    assert finished(of, whole) == per_group(lambda vs: len(set(vs)), rows, 0)
    merged = merge(of, [create(of, rows[cut:], pa.string()), create(of, rows[:cut], pa.string())])
    assert [p.to_pylist() for p in merged] == [p.to_pylist() for p in whole]


# User-defined aggregates


class Joined:
    """Texts one after the other; shows the order in which values and accumulators come."""

    def create(self) -> list[str]:
        return []

    def add(self, accumulator: list[str], value: str) -> list[str]:
        accumulator.append(value)
        return accumulator

    def merge(self, left: list[str], right: list[str]) -> list[str]:
        return left + right

    def finish(self, accumulator: list[str]) -> str | None:
        return ",".join(accumulator) if accumulator else None


class JoinedAtOnce(Joined):
    """The same in its vectorised form."""

    def partial(self, values: pa.Array, groups: np.ndarray[Any, Any], n_groups: int) -> list[list[str]]:
        out: list[list[str]] = [[] for _ in range(n_groups)]
        for value, group in zip(values.to_pylist(), groups.tolist(), strict=True):
            out[group].append(value)
        return out


class Broken(Joined):
    """Fails on one value."""

    def add(self, accumulator: list[str], value: str) -> list[str]:
        return [*accumulator, str(1 / (value != "bad"))]


@pytest.mark.parametrize("aggregator", [Joined(), JoinedAtOnce()], ids=["rows", "vectorised"])
@given(rows=rows_of(st.sampled_from("abc")), cut=st.integers(0, 25))
def test_user_defined_aggregates_see_values_in_order_of_arrival(aggregator: Joined, rows: list[Row], cut: int) -> None:
    of = kernel(kv.udaf(aggregator, "x", pa.string()), pa.string())
    wanted = per_group(",".join, rows)
    assert finished(of, create(of, rows, pa.string())) == wanted
    assert finished(of, merge(of, [create(of, rows[:cut], pa.string()), create(of, rows[cut:], pa.string())])) == wanted


def test_a_failing_user_defined_aggregate_names_step_and_value() -> None:
    of = kernel(kv.udaf(Broken(), "x", pa.string()), pa.string())
    with pytest.raises(OperatorError, match=r"failed in `add` \(got: 'bad'\): ZeroDivisionError") as caught:
        create(of, [(0, 0, "good"), (0, 0, "bad")], pa.string())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_result_of_the_wrong_type_names_the_step() -> None:
    of = kernel(kv.udaf(Joined(), "x", pa.int64()), pa.string())
    with pytest.raises(OperatorError, match="failed in `finish`"):
        of.finish(create(of, [(0, 0, "a")], pa.string()))


@pytest.mark.parametrize(
    ("values", "want"),
    [
        ([1.0, -math.inf], -math.inf),
        ([1.0, math.inf], math.inf),
        ([1e308, -1e308], -5e307),
        ([math.inf, -math.inf], math.nan),
        ([math.inf, math.inf], math.inf),
        ([1.0, math.nan], math.nan),
    ],
)
def test_a_percentile_between_values_far_apart_is_weighted(values: list[float], want: float) -> None:
    stream = stream_of("at bigint, x double").watermark("at", 0).tumbling_window(10)
    driver = Driver(stream.agg(kv.percentile("x", 0.25).alias("p")))
    driver.send([{"at": 1, "x": x} for x in values])
    assert driver.close().results["p"].to_pylist() == pytest.approx([want], nan_ok=True)


@pytest.mark.one_in(5)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("trigger", [kv.Trigger(), kv.Trigger.on_every_element()], ids=["once", "each"])
@pytest.mark.parametrize("window", ["tumbling", "look-back", "session", "capped", "count"])
def test_numbers_that_are_not_finite_bring_no_warning(window: str, trigger: kv.Trigger) -> None:
    pool = [math.inf, -math.inf, math.nan, 1e308, -1e308, 2.0**600, 3.0, -0.1, 5e-324, None]
    keyed = stream_of("k bigint, at bigint, x double").watermark("at", 20).key_by("k")
    if window != "look-back":
        keyed = keyed.trigger(trigger)
    windows: dict[str, Callable[[], Any]] = {
        "tumbling": lambda: keyed.tumbling_window(50),
        "look-back": lambda: keyed.lookback_window(50),
        "session": lambda: keyed.session_window(5),
        "capped": lambda: keyed.session_window(5, max_duration=40),
        "count": lambda: keyed.count_window(7),
    }
    kinds = (kv.variance, kv.stddev, kv.sum, kv.avg, kv.percentile, kv.min, kv.max, kv.count_distinct)
    driver = Driver(windows[window]().agg(*(kind("x") for kind in kinds)))
    rng = np.random.default_rng(1)
    actual = []
    for start in range(0, 300, 60):
        picks = [pool[i] for i in rng.integers(len(pool), size=60)]
        actual += driver.send([{"k": i % 7, "at": start + i, "x": x} for i, x in enumerate(picks)]).results.to_pylist()
    actual += driver.close().results.to_pylist()
    assert any(row["variance_x"] is not None and math.isnan(row["variance_x"]) for row in actual)
