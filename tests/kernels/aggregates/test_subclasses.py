"""An aggregate that is made from another one by overriding some of its methods is right in every window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import krishiv_py as k
from krishiv_py import SlidingWindows, udaf
from krishiv_py.kernels.aggregates.base import KERNELS, AggKernel, Rows
from krishiv_py.kernels.aggregates.numbers import FloatSum
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.testing import Driver, stream_of

Kernel = Callable[[AggKernel], AggKernel]
CALLS: dict[str, Callable[[Any], AggCall]] = {
    **{
        f.__name__: f for f in (k.sum, k.avg, k.min, k.max, k.stddev, k.var_pop, k.median, k.mode, k.first, k.last, k.any_value)
    },
    **{f.__name__: f for f in (k.collect_list, k.collect_set, k.count_distinct, k.approx_count_distinct)},
    "percentile": lambda column: k.percentile(column, 0.25),
}


def _instance(class_: type[AggKernel], kernel: AggKernel) -> AggKernel:
    kind: Any = type(kernel)
    fields = attrs.fields(kind)
    return class_(**{f.alias: getattr(kernel, f.name) for f in fields})


def _of_halves(kernel: AggKernel) -> AggKernel:
    """Return a kernel with the same partials, of half of each value."""

    class Halves(type(kernel)):  # type: ignore[misc]
        """Sees halves."""

        def create(self, rows: Rows) -> list[pa.Array]:
            return list(super().create(attrs.evolve(rows, values=pc.divide(rows.values, 2.0))))

    return _instance(Halves, kernel)


def _mixed(kernel: AggKernel) -> AggKernel:
    """Return the same, where a class apart from the kernels brings the method."""

    class Mixin:
        """Sees halves."""

        def create(self, rows: Rows) -> list[pa.Array]:
            return list(super().create(attrs.evolve(rows, values=pc.divide(rows.values, 2.0))))  # type: ignore[misc]

    class Mixed(Mixin, type(kernel)):  # type: ignore[misc]
        """Sees halves."""

    @attrs.frozen
    class Mended(Mixed):
        """Overrides nothing."""

    return _instance(Mended, kernel)


def _doubled(kernel: AggKernel) -> AggKernel:
    """Return a kernel with the same partials and twice the result."""

    class Doubled(type(kernel)):  # type: ignore[misc]
        """Gives twice the result."""

        def finish(self, partials: list[pa.Array]) -> pa.Array:
            return pc.multiply(super().finish(partials), pa.scalar(2, self.result_type))

    return _instance(Doubled, kernel)


def _windows(call: AggCall) -> dict[str, list[Any]]:
    """Return the results of an aggregate in windows that compute it in all ways: by groups, by prefixes, by ranges."""
    stream = stream_of("at bigint, v double").watermark("at", 0)
    shapes = {
        "tumbling": stream.tumbling_window(1_000),
        "hopping": stream.hopping_window(40, 10),
        "look-back": stream.lookback_window(50),
        "look-back over many rows": stream.lookback_window(400),
        "distinct sets": stream.windowed_by(SlidingWindows.of(30)),
        "session": stream.session_window(15),
        "session with a longest": stream.session_window(15, max_duration=60),
        "count": stream.count_window(7),
    }
    results = {}
    for name, window in shapes.items():
        driver = Driver(window.agg(call.alias("x")))
        rows = [{"at": 4 * n + n // 9 * 20, "v": float(n % 13)} for n in range(90)]
        tables = [driver.send(rows[i : i + 45]).results for i in range(0, 90, 45)] + [driver.close().results]
        results[name] = [x for table in tables for x in table["x"].to_pylist()]
        assert results[name]
    return results


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("name", "change"), [(name, _of_halves) for name in CALLS] + [("sum", _mixed), ("avg", _mixed)])
def test_other_partials(name: str, change: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look-back windows gave the sum of whole values for that of halves, as `ranges` was that of the other kernel."""
    expected = _windows(CALLS[name](k.col("v") / 2))
    call = CALLS[name]("v")
    make = KERNELS[type(call)]
    monkeypatch.setitem(KERNELS, type(call), lambda one, type_: change(make(one, type_)))
    assert _windows(call) == expected


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name", ["sum", "avg", "max", "stddev", "median", "count_distinct", "approx_count_distinct", "percentile"]
)
def test_other_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = CALLS[name]("v")
    expected = {window: [None if x is None else 2 * x for x in values] for window, values in _windows(call).items()}
    make = KERNELS[type(call)]
    monkeypatch.setitem(KERNELS, type(call), lambda one, type_: _doubled(make(one, type_)))
    assert _windows(call) == expected


def test_what_a_class_says_itself_holds() -> None:
    """A subclass may say that a shortcut is still right, and one that overrides nothing else inherits all."""

    class Named(FloatSum):
        """Another name."""

        def noted(self, func: str) -> str:
            return "named"

    class Stated(FloatSum):
        """Sees the values as they are."""

        ranges = FloatSum.ranges

        def create(self, rows: Rows) -> list[pa.Array]:
            return super().create(rows)

    assert vars(Named).keys().isdisjoint({"ranges", "prefixes"}) and Named.ranges is FloatSum.ranges
    assert Stated.ranges is FloatSum.ranges


class Largest:
    """An aggregator with a vectorised form."""

    def create(self) -> list[float]:
        """Return nothing yet."""
        return []

    def add(self, accumulator: list[float], value: float) -> list[float]:
        """Return the larger value."""
        return [max([*accumulator, value])]

    def merge(self, left: list[float], right: list[float]) -> list[float]:
        """Return the larger value."""
        return [max([*left, *right])]

    def finish(self, accumulator: list[float]) -> float | None:
        """Return it."""
        return accumulator[0] if accumulator else None

    def partial(self, values: pa.Array, groups: Any, n: int) -> list[list[float]]:
        """Return the largest value of each group."""
        return [[float(max(values.to_numpy()[groups == g]))] if (groups == g).any() else [] for g in np.arange(n)]


class LargestBelow(Largest):
    """Takes values below 7 only, and says nothing of `partial`."""

    def add(self, accumulator: list[float], value: float) -> list[float]:
        """Return the larger value."""
        return super().add(accumulator, value) if value < 7 else accumulator

    def merge(self, left: list[float], right: list[float]) -> list[float]:
        """Return the larger value."""
        return [max([*left, *right])] if left or right else []


class Twice(Largest):
    """Gives twice the largest value, with the same `partial`."""

    def finish(self, accumulator: list[float]) -> float | None:
        """Return it."""
        return 2 * accumulator[0] if accumulator else None


def test_aggregators_of_users() -> None:
    """A subclass with another `add` took the `partial` of its base: values that it leaves out counted."""
    below = _windows(udaf(LargestBelow(), "v", pa.float64()))
    assert below == _windows(k.max("v").filter("v < 7"))
    assert _windows(udaf(Twice(), "v", pa.float64())) == {n: [2 * x for x in xs] for n, xs in _windows(k.max("v")).items()}
