"""Triggers of tumbling and hopping windows, against the plain reference and by hand (SEMANTICS §5.1 to §5.3)."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.errors import PlanError
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests import reference as ref
from tests.kernels.fixed.fixed_runs import Query, driven, expected, queries, rows, sets, steps, without_repeats


@given(queries, steps)
def test_every_step_writes_what_the_reference_writes(query: Query, given_steps: list[ref.Step]) -> None:
    seen, _ = driven(query, given_steps)
    assert sets(without_repeats(seen)) == sets(without_repeats(expected(query, given_steps)))


@given(queries, steps, st.integers(0, 11))
def test_a_restart_changes_nothing(query: Query, given_steps: list[ref.Step], at: int) -> None:
    assert driven(query, given_steps, restart_at=at)[0] == driven(query, given_steps)[0]


@given(queries, st.lists(rows, max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_row_by_row_triggers_do_not_depend_on_batches(query: Query, given_rows: list[ref.Row], cuts: list[int]) -> None:
    query = replace(query, lag=1000, trigger=replace_early(query.trigger))
    edges = sorted({0, *cuts, len(given_rows)})
    batched: list[ref.Step] = [ref.Batch(given_rows[a:b]) for a, b in pairwise(edges)]
    single: list[ref.Step] = [ref.Batch([row]) for row in given_rows]
    logs = [driven(query, [*some, ref.Close()])[0] for some in (batched, single)]
    first, second = [[line for lines in log[:-1] for line in lines] for log in logs]
    assert first == second
    assert sets(logs[0][-1:]) == sets(logs[1][-1:])


def replace_early(trigger: kv.Trigger) -> kv.Trigger:
    """The trigger with an early part that counts."""
    return trigger if isinstance(trigger.early, int) else kv.Trigger(early=3, on_time=trigger.on_time, late=trigger.late)


ALL = {
    "count": kv.count(),
    "n": kv.count("value"),
    "sum": kv.sum("value"),
    "min": kv.min("value"),
    "max": kv.max("value"),
    "avg": kv.avg("value"),
    "floats": kv.sum(kv.col("value").cast("double") * 0.1),
    "text": kv.max(kv.col("value").cast("string")),
    "decimal": kv.sum(kv.col("value").cast(pa.decimal128(25, 2))),
    "stddev": kv.stddev("value"),
    "first": kv.first("value"),
    "last": kv.last("value"),
    "distinct": kv.count_distinct("value"),
    "approx": kv.approx_count_distinct("value"),
    "list": kv.collect_list("value"),
    "set": kv.collect_set("value"),
    "median": kv.percentile("value"),
    "some": kv.sum("value").filter(kv.col("value") > 50),
}


@given(st.lists(rows, min_size=1, max_size=70), st.lists(st.integers(0, 70), max_size=3))
def test_running_aggregates_are_those_of_every_prefix(given_rows: list[ref.Row], cuts: list[int]) -> None:
    """A prefix of the rows, closed, gives the same as the firing after its last row."""
    given_rows = [replace(r, t=5, key="k", value=None if (r.value or 0) % 7 == 0 else r.value) for r in given_rows]
    plain = stream_of("key string, at bigint, value bigint").watermark("at", 1000).key_by("key")
    aggs = [call.alias(name) for name, call in ALL.items()]
    each = Driver(plain.trigger(kv.Trigger.on_every_element()).tumbling_window(10).agg(aggs))
    data = [{"key": r.key, "at": r.t, "value": r.value} for r in given_rows]
    edges = sorted({0, *cuts, len(data)})
    actual = [row for a, b in pairwise(edges) for row in each.send(data[a:b]).results.to_pylist()]
    for length in {1, len(data) // 2 or 1, len(data)}:
        once = Driver(plain.tumbling_window(10).agg(aggs))
        once.send(data[:length])
        (whole,) = once.close().results.to_pylist()
        got = actual[length - 1]
        assert {n: v for n, v in got.items() if n not in CLOSE} == {n: v for n, v in whole.items() if n not in CLOSE}
        for name in CLOSE:
            assert got[name] == pytest.approx(whole[name])


CLOSE = ("stddev",)


def test_float_sums_are_exact_however_rows_were_batched() -> None:
    values = [0.1, 1e16, -1e16, 0.3, 0.7, 1e-9, 1e308, -1e308] * 23
    plain = stream_of("at bigint, x double").watermark("at", 1000).trigger(kv.Trigger.on_every_element())
    stream = plain.tumbling_window(10).agg(kv.sum("x").alias("s"), kv.avg("x").alias("m"))
    wanted = [(math.fsum(values[:i]), math.fsum(values[:i]) / i) for i in range(1, len(values) + 1)]
    for width in (1, 7, len(values)):
        driver = Driver(stream)
        sent = [driver.send([{"at": 1, "x": x} for x in values[i : i + width]]) for i in range(0, len(values), width)]
        assert [(r["s"], r["m"]) for got in sent for r in got.results.to_pylist()] == wanted


def test_integer_sums_beyond_64_bits_are_found_in_a_prefix() -> None:
    stream = stream_of("at bigint, x bigint").watermark("at", 1000).trigger(kv.Trigger.on_every_element())
    driver = Driver(stream.tumbling_window(10).agg(kv.sum("x").alias("s")))
    with pytest.raises(OverflowError):
        driver.send([{"at": 1, "x": 2**62}, {"at": 1, "x": 2**62}, {"at": 1, "x": -(2**62)}])


#   rows      |1 2 3 4 5 6 7|      on_count(3): after 3 and 6, then all 7 on time
def test_counting_and_the_watermark_firing() -> None:
    query = Query(size=100, lag=1000, trigger=kv.Trigger.on_count(3))
    log, _ = driven(query, [ref.Batch([ref.Row("k", t, t) for t in range(1, 8)]), ref.Close()])
    assert [(pane, len(values)) for lines in log for _, pane, _, _, _, values in lines] == [
        ("early", 3),
        ("early", 6),
        ("on_time", 7),
    ]


def test_the_watermark_firing_comes_even_without_change() -> None:
    log, _ = driven(Query(lag=1000, trigger=kv.Trigger.on_every_element()), [ref.Batch([ref.Row("k", 1, 1)]), ref.Close()])
    assert [pane for lines in log for _, pane, *_ in lines] == ["early", "on_time"]


def interval_driver() -> tuple[Driver, ManualClock]:
    stream = stream_of("key string, at bigint").watermark("at", 1000).key_by("key")
    clock = ManualClock()
    windowed = stream.trigger(kv.Trigger.on_interval("10 s")).tumbling_window(100).with_pane()
    return Driver(windowed.agg(kv.count()), clock=clock), clock


def shown(driver: Driver, rows: list[dict[str, object]] | None = None) -> list[tuple[str, int, str, int]]:
    out = driver.tick() if rows is None else driver.send(rows)
    return [(r["key"], r["count"], r["pane_timing"], r["pane_index"]) for r in out.results.to_pylist()]


def test_intervals_fire_what_changed_also_without_rows() -> None:
    driver, clock = interval_driver()
    a, b = {"key": "a", "at": 1}, {"key": "b", "at": 2}
    assert shown(driver, [a, b]) == []
    clock.advance("9999 ms")
    assert shown(driver, [a]) == []
    clock.advance("1 ms")
    assert shown(driver) == [("a", 2, "early", 0), ("b", 1, "early", 0)]
    clock.advance("30 s")
    assert shown(driver) == []  # nothing changed
    assert shown(driver, [b]) == [("b", 2, "early", 1)]  # only what changed
    clock.advance("5 s")
    assert shown(driver, [a]) == []  # at most every 10 s
    clock.advance("5 s")
    assert shown(driver) == [("a", 3, "early", 1)]
    assert [(r["key"], r["count"], r["pane_timing"]) for r in driver.close().results.to_pylist()] == [
        ("a", 3, "on_time"),
        ("b", 2, "on_time"),
    ]


def test_triggers_are_checked_values() -> None:
    for wrong in (0, -1, True, 1.5, "sometimes"):
        with pytest.raises(PlanError):
            kv.Trigger(early=wrong)  # type: ignore[arg-type]
        with pytest.raises(PlanError):
            kv.Trigger(late=wrong)  # type: ignore[arg-type]
    assert kv.Trigger(early="each") == kv.Trigger(early=1)
    assert kv.Trigger.on_watermark() == kv.Trigger()
