"""Aggregates of one kind over several columns are computed at once, and each is what it is alone."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import avg, col, count, max, sum
from krishiv_py.errors import AggregateOverflowError
from krishiv_py.kernels.aggregates import kernel_for
from krishiv_py.kernels.aggregates.base import Rows
from krishiv_py.kernels.aggregates.numbers import FloatSum
from krishiv_py.kernels.columns import layout
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled

_INTS, _FLOATS, _DECIMALS = (tuple(f"{kind}{n}" for n in range(4)) for kind in "ifd")
_DDL = ", ".join(
    [
        "user string, at bigint",
        *(f"{name} bigint" for name in _INTS),
        *(f"{name} double" for name in _FLOATS),
        *(f"{name} decimal(12, 2)" for name in _DECIMALS),
    ]
)
_ALL = (*_INTS, *_FLOATS, *_DECIMALS)


def _batches(seed: int, most: int = 30) -> list[list[dict[str, Any]]]:
    dice = random.Random(seed)

    def value(kind: str) -> Any:
        number = dice.choice([None, 0, dice.randrange(-1_000, 1_000), dice.randrange(2**58)])
        if number is None or kind == "i":
            return number
        return number / 7 if kind == "f" else Decimal(number % 10**9) / 100

    def row() -> dict[str, Any]:
        return {"user": dice.choice("abc"), "at": dice.randrange(60), **{name: value(name[0]) for name in _ALL}}

    return [[row() for _ in range(dice.randrange(most))] for _ in range(4)]


def _plan(window: str) -> kv.ResultStream:
    keyed = stream_of(_DDL).watermark("at", 20).key_by("user")
    some = [made(name) for made in (sum, avg, count) for name in _ALL]
    more = [count(), max("i0"), sum("i1").filter(col("f1") > 0).alias("some"), sum("i2").alias("again")]
    windows = {
        "tumbling": keyed.tumbling_window(10),
        "hopping": keyed.hopping_window(20, 10).emit("retractions").allowed_lateness(5),
        "sessions": keyed.session_window(3),
        "rows": keyed.count_window(4),
    }
    return windows[window].agg(*some, *more)


def _given(window: str, batches: list[list[dict[str, Any]]]) -> list[pa.Table]:
    driver = Driver(_plan(window))
    return [*(driver.send(batch).results for batch in batches), driver.close().results]


@pytest.mark.parametrize("window", ["tumbling", "hopping", "sessions", "rows"])
@settings(max_examples=scaled(10))
@given(seed=st.integers(0, 2**32), values=st.sampled_from([60, 300, 1 << 18]))
def test_each_is_what_it_is_alone(window: str, seed: int, values: int) -> None:
    batches = _batches(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "_JOINED_VALUES", 1)
        alone = _given(window, batches)
        patch.setattr(layout, "_JOINED_VALUES", values)
        assert _given(window, batches) == alone


def test_the_sum_that_is_too_large_is_named() -> None:
    driver = Driver(_plan("tumbling"))
    none = dict.fromkeys(_ALL)
    rows = [{"user": "b", "at": n, **none, "i3": 2**62} for n in range(3)]
    with pytest.raises(AggregateOverflowError, match=r"sum\(i3\)"):
        driver.send([{"user": "a", "at": 0, **none}, *rows, {"user": "c", "at": 50, **none}])


def test_equal_kinds_over_columns_of_one_type_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    kernel = type(kernel_for(sum("i0"), pa.int64()))
    create = kernel.create

    def counted(self: Any, rows: Any) -> list[pa.Array]:
        calls.append(rows.n)
        return create(self, rows)

    monkeypatch.setattr(kernel, "create", counted)
    driver = Driver(stream_of(_DDL).watermark("at", 20).key_by("user").tumbling_window(10).agg(*map(sum, _INTS)))
    driver.send([{"user": "a", "at": 1, **dict.fromkeys(_ALL, 1)}])
    assert calls == [len(_INTS)]


def test_a_kernel_of_a_users_own_is_computed_alone() -> None:
    class Later(FloatSum):
        """A sum of the values after the first second, which looks at times."""

        def create(self, rows: Rows) -> list[pa.Array]:
            assert len(rows.times) == len(rows.ids)
            return super().create(rows)

    assert FloatSum.joins_columns and not Later.joins_columns
    assert layout._alike([Later(), Later()], [0, 1], [pa.float64()] * 2) == []
    assert layout._alike([FloatSum(), FloatSum()], [0, 1], [pa.float64()] * 2) == [[0, 1]]
