"""KIP-450, sliding window aggregations: what its text says, and its example as a whole pipeline."""

from __future__ import annotations

from typing import Any

import krishiv_py as kv
from krishiv_py import SlidingWindows
from krishiv_py.testing import Driver, StepOutput, stream_of

FORWARD = SlidingWindows.of(10, direction="forward")
BACKWARD = SlidingWindows.of(10)


def driver_of(windows: SlidingWindows, lag: int = 0) -> Driver:
    return Driver(stream_of("at bigint").watermark("at", lag).windowed_by(windows).agg(kv.count()))


def triples(out: StepOutput) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in out.results.to_pylist()]


def everything(windows: SlidingWindows, *times: int) -> list[tuple[Any, ...]]:
    driver = driver_of(windows, 1_000)
    return triples(driver.send([{"at": t} for t in times])) + triples(driver.close())


def test_the_public_interface() -> None:
    windows = SlidingWindows.of("10 s").grace("2 s")
    assert (windows.size, windows.grace_period_ms) == (10_000, 2_000)
    assert windows.windows_for(15_000) == {5_000: (5_000, 15_000), 15_001: (15_001, 25_001)}
    assert windows == SlidingWindows.of(10_000).grace(2_000) != SlidingWindows.of(10_000)
    assert hash(windows) == hash(SlidingWindows.of(10_000).grace(2_000))
    assert str(windows) == "SlidingWindows.of(10000).grace(2000)"


def test_grace_defaults_to_zero() -> None:
    assert SlidingWindows.of(10).grace_period_ms == 0


def test_one_window_for_each_distinct_set_of_records() -> None:
    """
    ::

        size 10     0 · · · · 5 · · · · · 11
        own 0      [-10 … 0]  {0}
        own 5      [-5 … 5]   {0, 5}
        right 0    [1 … 11]   {5, 11}  also own 11: the same window, once
        right 5    [6 … 16]   {11}
    """
    assert everything(BACKWARD, 0, 5, 11) == [(-10, 0, 1), (-5, 5, 2), (1, 11, 2), (6, 16, 1)]


def test_both_time_bounds_are_inclusive() -> None:
    assert (0, 10, 2) in everything(BACKWARD, 0, 10)
    assert (0, 10, 2) in everything(FORWARD, 0, 10)
    assert [count for _, _, count in everything(BACKWARD, 0, 11)] == [1, 1]


def test_forward_windows_start_before_they_end_one_for_each_distinct_timestamp() -> None:
    """Each new record gives exactly one output unless one of its timestamp has been seen."""
    found = everything(FORWARD, 0, 5, 5, 12, 5, 30)
    assert found == [(0, 10, 4), (5, 15, 4), (12, 22, 1), (30, 40, 1)]


def test_a_record_is_output_when_its_end_is_before_stream_time_minus_grace() -> None:
    driver = driver_of(SlidingWindows.of(10, direction="forward").grace(5))
    assert triples(driver.send([{"at": 0}])) == []
    assert triples(driver.send([{"at": 15}])) == []  # 10 < 15 - 5 is false
    assert triples(driver.send([{"at": 16}])) == [(0, 10, 1)]


def test_a_new_record_can_trigger_any_number_of_outputs() -> None:
    driver = driver_of(FORWARD)
    assert triples(driver.send([{"at": 0}, {"at": 3}, {"at": 7}])) == []
    assert triples(driver.send([{"at": 100}])) == [(0, 10, 3), (3, 13, 2), (7, 17, 1)]


def test_out_of_order_data_within_grace_is_kept_and_triggers_nothing() -> None:
    driver = driver_of(SlidingWindows.of(10, direction="forward").grace(20))
    driver.send([{"at": 30}])
    out = driver.send([{"at": 10}, {"at": 32}, {"at": 31}])
    assert triples(out) == [] and out.late.num_rows == 0
    out = driver.send([{"at": 40}, {"at": 20}])
    assert triples(out) == [] and out.late.num_rows == 0
    assert triples(driver.send([{"at": 41}])) == [(10, 20, 2)]


def test_out_of_order_data_outside_grace_is_dropped_and_counted() -> None:
    driver = driver_of(SlidingWindows.of(10).grace(5))
    driver.send([{"at": 100}])
    out = driver.send([{"at": 94}, {"at": 95}])
    assert out.late["at"].to_pylist() == [94]
    assert driver.counters["late"] == 1


def test_hopping_windows_with_an_advance_of_one_only_resemble_this() -> None:
    """As many windows as the size has milliseconds, for one record; and the last bound does not belong to them."""
    hopping = Driver(stream_of("at bigint").watermark("at", 0).hopping_window(10, 1).agg(kv.count()))
    hopping.send([{"at": 50}])
    assert hopping.close().results.num_rows == 10
    assert len(everything(BACKWARD, 50)) == 1


def test_the_counting_example_as_a_whole_pipeline() -> None:
    """``source.groupBy((key, value) -> value).windowedBy(SlidingWindows.of(size).grace(d)).count()``."""
    source = stream_of("value string, at bigint")
    counts = source.watermark("at", 0).key_by("value").windowed_by(SlidingWindows.of("10 s").grace("2 s")).agg(kv.count())
    driver = Driver(counts)
    sent = [("a", 1_000), ("b", 4_000), ("a", 8_000), ("a", 7_000), ("a", 8_000), ("b", 20_000), ("a", 9_000), ("b", 60_000)]
    outs = [driver.send([{"value": value, "at": at}]) for value, at in sent] + [driver.close()]
    assert [row for out in outs for row in triples(out)] == [
        ("a", -9_000, 1_000, 1),
        ("b", -6_000, 4_000, 1),
        ("a", -3_000, 7_000, 2),
        ("a", -2_000, 8_000, 4),
        ("a", 1_001, 11_001, 3),
        ("a", 7_001, 17_001, 2),
        ("b", 10_000, 20_000, 1),
        ("b", 50_000, 60_000, 1),
    ]
    assert [row["at"] for out in outs for row in out.late.to_pylist()] == [9_000]
