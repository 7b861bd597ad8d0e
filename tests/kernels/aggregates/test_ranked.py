"""Ranks, modes and conditions: what every result says is what the rows of its own window say, listed next to it."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.errors import ExpressionError, PlanError
from krishiv_py.testing import Driver, stream_of

WINDOWS: dict[str, Callable[[KeyedStream], Any]] = {
    "tumbling": lambda s: s.tumbling_window(16),
    "hopping": lambda s: s.hopping_window(16, 5),
    "session": lambda s: s.session_window(3),
    "capped": lambda s: s.session_window(3, max_duration=12),
    "count": lambda s: s.count_window(5),
    "look-back": lambda s: s.lookback_window(9),
    "every row": lambda s: s.trigger(kv.Trigger.on_every_element()).tumbling_window(16),
    "discarding": lambda s: s.trigger(kv.Trigger.on_count(2)).accumulation("discarding").tumbling_window(16),
    "updates": lambda s: s.allowed_lateness(20).tumbling_window(16),
    "retractions": lambda s: s.allowed_lateness(20).emit("retractions").hopping_window(16, 5),
}
TRIED = settings.default.max_examples if settings.default else 40
NUMBERS = (0.0, -0.0, 1.5, 1.5, -7.25, math.inf, -math.inf, math.nan, None)
WHOLE = kv.func("named_struct", kv.lit("x"), kv.col("x"), kv.lit("s"), kv.col("s"), kv.lit("n"), kv.col("n"))
CALLS = (
    kv.collect_list(WHOLE).alias("rows"),
    kv.top_k(3, "x", "s").alias("top"),
    kv.bottom_k(2, "x", "s", "n").alias("bottom"),
    kv.top_k(1, "n").alias("most"),
    kv.top_k(2, "s", "n").filter("n > 1").alias("some"),
    kv.max_by("s", "x").alias("s_of_max"),
    kv.min_by("n", "x").alias("n_of_min"),
    kv.min_by("x", "s").alias("x_of_min"),
    kv.mode("x").alias("common_x"),
    kv.mode("s").alias("common_s"),
    kv.median("n"),
    kv.count_if("n > 1").alias("large"),
    kv.bool_and("n > 0").alias("every"),
    kv.bool_or("n > 3").alias("some_large"),
    kv.any_value("s").alias("s"),
    kv.bit_and("n").alias("bits_of_all"),
    kv.bit_or("n").alias("bits_of_any"),
    kv.bit_xor("n").alias("odd_bits"),
)


def order(value: Any) -> Any:
    """NaN is above all numbers; the zeros are equal."""
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else (False, value)


def ranked(rows: list[dict[str, Any]], by: str, *, largest: bool) -> list[dict[str, Any]]:
    """Rows one by one: the first that no other is before, again and again; of equal ones the first listed."""
    left, actual = [r for r in rows if r[by] is not None], []
    while left:
        best = left[0]
        for row in left[1:]:
            if (order(row[by]) > order(best[by])) if largest else (order(row[by]) < order(best[by])):
                best = row
        index = next(i for i, row in enumerate(left) if row is best)
        actual.append(left.pop(index))
    return actual + [r for r in rows if r[by] is None]


def fields(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{n: r[n] for n in names} for r in rows]


def value_by(rows: list[dict[str, Any]], value: str, by: str, *, largest: bool) -> Any:
    actual = ranked([r for r in rows if r[by] is not None], by, largest=largest)
    return actual[0][value] if actual else None


def mode(values: list[Any]) -> Any:
    there = [v for v in values if v is not None]
    return min(there, key=lambda v: (-sum(order(v) == order(w) for w in there), order(v)), default=None)


def plain(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By hand, from the rows in order of time and arrival."""
    numbers = sorted(r["n"] for r in rows if r["n"] is not None)
    half = len(numbers) // 2
    return {
        "top": fields(ranked(rows, "x", largest=True)[:3], "x", "s"),
        "bottom": fields(ranked(rows, "x", largest=False)[:2], "x", "s", "n"),
        "most": fields(ranked(rows, "n", largest=True)[:1], "n"),
        "some": fields(ranked([r for r in rows if (r["n"] or 0) > 1], "s", largest=True)[:2], "s", "n"),
        "s_of_max": value_by(rows, "s", "x", largest=True),
        "n_of_min": value_by(rows, "n", "x", largest=False),
        "x_of_min": value_by(rows, "x", "s", largest=False),
        "common_x": mode([r["x"] for r in rows]),
        "common_s": mode([r["s"] for r in rows]),
        "median_n": (numbers[half] + numbers[-half - 1]) / 2 if numbers else None,
        "large": sum(n > 1 for n in numbers),
        "every": all(n > 0 for n in numbers) if numbers else None,
        "some_large": any(n > 3 for n in numbers) if numbers else None,
        "s": next((r["s"] for r in rows if r["s"] is not None), None),
        "bits_of_all": functools.reduce(operator.and_, numbers) if numbers else None,
        "bits_of_any": functools.reduce(operator.or_, numbers) if numbers else None,
        "odd_bits": functools.reduce(operator.xor, numbers) if numbers else None,
    }


def comparable(value: Any) -> Any:
    """NaN equals itself, and the zeros are one."""
    return repr(value).replace("-0.0", "0.0")


ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from("ab"),
        "at": st.integers(0, 40),
        "x": st.sampled_from(NUMBERS),
        "s": st.sampled_from(["p", "q", "r", None]),
        "n": st.sampled_from([0, 1, 2, 4, None]),
    }
)


@pytest.mark.parametrize("kind", WINDOWS)
@settings(max_examples=TRIED // 5 or 1)  # of each of the ten kinds
@given(batches=st.lists(st.lists(ROW, max_size=12), max_size=4))
def test_results_are_those_of_the_rows_listed(kind: str, batches: list[list[dict[str, Any]]]) -> None:
    stream = stream_of("k string, at bigint, x double, s string, n bigint").watermark("at", 10).key_by("k")
    driver = Driver(WINDOWS[kind](stream).agg(CALLS))
    results = []
    for number, batch in enumerate(batches):
        driver = driver.restarted() if number % 2 else driver
        results += driver.send(batch).results.to_pylist()
    results += driver.close().results.to_pylist()
    for row in results:
        want = plain(row["rows"])
        assert comparable({n: row[n] for n in want}) == comparable(want)


def test_equal_ranks_go_by_time_then_arrival() -> None:
    stream = stream_of("at bigint, x bigint, s string").watermark("at", 100).tumbling_window(10)
    driver = Driver(stream.agg(kv.top_k(3, "x", "s"), kv.max_by("s", "x"), kv.min_by("s", "x")))
    driver.send([{"at": 5, "x": 1, "s": "late"}, {"at": 2, "x": 1, "s": "first"}])
    driver.send([{"at": 2, "x": 1, "s": "second"}, {"at": 3, "x": None, "s": "none"}])
    (row,) = driver.close().results.to_pylist()
    assert [r["s"] for r in row["top_k_x"]] == ["first", "second", "late"]
    assert row["max_by_s_x"] == row["min_by_s_x"] == "first"


def test_names_and_types() -> None:
    stream = stream_of("at bigint, x bigint, s string").watermark("at", 0).tumbling_window(10)
    plan = stream.agg(kv.top_k(3, kv.col("x") * 2, "s").alias("t"), kv.bottom_k(1, "x"), kv.mode("s"), kv.count_if("x > 1"))
    driver = Driver(plan)
    schema = driver.close().results.schema
    assert schema.field("mode_s").type == pa.string()
    assert schema.field("bottom_k_x").type.value_type == pa.struct([("x", pa.int64())])
    assert schema.field("t").type.value_type.field(1).name == "s"
    assert "top_k(" in plan.explain() and "k=3" in plan.explain()


@pytest.mark.parametrize(
    "call",
    [
        lambda: kv.top_k(0, "x"),
        lambda: kv.top_k(True, "x"),
        lambda: kv.bottom_k(10_001, "x"),
        lambda: kv.top_k(2, "x", "X"),
        lambda: kv.top_k(2, "*"),
        lambda: kv.max_by("*", "x"),
        lambda: kv.min_by(3, "x"),  # type: ignore[arg-type]
        lambda: stream_of("at bigint, x bigint").watermark("at", 0).tumbling_window(10).agg(kv.bool_and("x")),
        lambda: (
            stream_of("at bigint, x bigint")
            .watermark("at", 0)
            .tumbling_window(10)
            .agg(kv.max_by("x", kv.func("named_struct", kv.lit("f"), kv.col("x"))))
        ),
    ],
)
def test_what_cannot_be_ranked_is_refused_at_the_call(call: Callable[[], Any]) -> None:
    with pytest.raises((ExpressionError, PlanError), match="Hint"):
        call()
