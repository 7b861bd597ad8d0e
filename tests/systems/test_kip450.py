"""KIP-450, sliding window aggregations: what its text says, and its example as a whole pipeline."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import krishiv_py as kv
import krishiv_py.windows
from krishiv_py import SlidingWindows
from krishiv_py.errors import ColumnError, PlanError
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
    actual = everything(FORWARD, 0, 5, 5, 12, 5, 30)
    assert actual == [(0, 10, 4), (5, 15, 4), (12, 22, 1), (30, 40, 1)]


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
    outs = [driver.send([{"value": value, "at": moment}]) for value, moment in sent] + [driver.close()]
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


SOURCE = stream_of("value string, at bigint, n bigint").watermark("at", 0).key_by("value")


@pytest.mark.parametrize(
    "windows",
    [
        SlidingWindows.of(10),
        kv.windows.tumbling(10),
        kv.windows.hopping(10, 5),
        kv.windows.session(5),
        kv.windows.lookback(10),
        kv.windows.count_rows(2),
        kv.calendar_window("day"),
        kv.TimeIntervalWindowOptions("10 ms"),
    ],
    ids=repr,
)
def test_windowed_by_takes_every_window(windows: Any) -> None:
    counted = SOURCE.windowed_by(windows).count()
    assert counted.explain() == SOURCE.window(windows).agg(kv.count()).explain()
    with pytest.raises(PlanError, match="not a window"):
        SOURCE.windowed_by(10)  # type: ignore[arg-type]


ROWS = [
    {"value": v, "at": moment, "n": n}
    for v, moment, n in [("a", 1, 5), ("a", 3, None), ("a", 4, 7), ("b", 2, None), ("a", 40, 1)]
]


def test_reduce_combines_two_by_two() -> None:
    reduced = SOURCE.windowed_by(SlidingWindows.of(10)).reduce("n", lambda a, b: a * 10 + b)
    assert reduced.schema.field("reduce_n").type == pa.int64()
    driver = Driver(reduced)
    actual = [tuple(r.values()) for out in (driver.send(ROWS), driver.restarted().close()) for r in out.results.to_pylist()]
    assert actual == [
        ("a", -9, 1, 5),
        ("b", -8, 2, None),
        ("a", -7, 3, 5),
        ("a", -6, 4, 57),
        ("a", 2, 12, 7),
        ("a", 4, 14, 7),
        ("a", 30, 40, 1),
    ]
    most = SOURCE.emit("updates").trigger(kv.Trigger.on_every_element()).windowed_by(kv.windows.tumbling(10)).reduce("n", max)
    assert [r["reduce_n"] for r in Driver(most).send(ROWS[:3]).results.to_pylist()] == [5, 5, 7]
    with pytest.raises(PlanError, match="function of two values"):
        SOURCE.windowed_by(SlidingWindows.of(10)).reduce("n", "max")  # type: ignore[arg-type]
    with pytest.raises(ColumnError, match="m"):
        SOURCE.windowed_by(SlidingWindows.of(10)).reduce("m", max)


@pytest.mark.parametrize("emit", ["updates", "retractions"])
def test_a_table_shows_the_last_value_of_every_window(emit: Any) -> None:
    """``KTable<Windowed<String>, Long>``: updates replace one another, and what was merged away is gone."""
    counts = SOURCE.emit(emit).trigger(kv.Trigger.on_every_element()).session_window(5).count()
    driver = Driver(counts)
    sent = [("a", 10), ("a", 16), ("b", 11), ("a", 13), (None, 30)]
    tables = [driver.send([{"value": v, "at": moment, "n": 1} for v, moment in sent]).results, driver.close().results]
    view = kv.table_view(pa.concat_tables(tables))
    last = sorted((tuple(r.values()) for r in view.to_pylist()), key=repr)
    assert ("a", 10, 21, 3) in last and ("b", 11, 16, 1) in last and (None, 30, 35, 1) in last
    assert len(last) == (3 if emit == "retractions" else 5)  # only the change log tells that two sessions became one
    assert view.column_names == ["value", "window_start", "window_end", "count"]


def test_a_table_view_needs_columns_that_name_its_rows() -> None:
    table = pa.table({"k": [1, 1], "n": [1, 2]})
    assert kv.table_view(table, by=["k"]).to_pylist() == [{"k": 1, "n": 2}]
    with pytest.raises(PlanError, match=r"(?s)window_end.*Hint: name columns of the results: k, n"):
        kv.table_view(table)
    with pytest.raises(PlanError, match="'m'"):
        kv.table_view(table, by=["m"])
    with pytest.raises(PlanError, match="table of results"):
        kv.table_view([1])
    assert kv.table_view(table.slice(0, 0), by=["k"]).num_rows == 0


def test_one_output_for_each_distinct_timestamp_is_an_option() -> None:
    rows = [{"value": "a", "at": moment, "n": 1} for moment in (0, 3, 3, 7, 100)]
    driver = Driver(SOURCE.windowed_by(SlidingWindows.of(10, direction="forward")).count())
    assert driver.send(rows).results.num_rows + driver.close().results.num_rows == len({r["at"] for r in rows})
