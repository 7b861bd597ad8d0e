"""What would never end, or fill the memory, is refused with the number and a way out (docs/costs.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.errors import OperatorError, PlanError
from krishiv_py.testing import Driver, stream_of

KEYED = stream_of("key string, at bigint, value bigint").watermark("at", 1_000).key_by("key")


@pytest.mark.parametrize(
    "make",
    [
        lambda **more: KEYED.hopping_window("1 day", "1 ms", **more),
        lambda **more: KEYED.hopping_window("1 day", "1 ms", **more),
        lambda **more: KEYED.count_window(86_400_000, 1, **more),
        lambda **more: kv.TimeIntervalWindowOptions("1 day", creation_period="1 ms", **more),
    ],
)
def test_windows_that_overlap_without_measure_are_refused_at_the_call(make: Callable[..., Any]) -> None:
    with pytest.raises(PlanError, match=r"(?s)86,400,000 windows, more than 100,000.*max_overlap=86400000"):
        make()
    make(max_overlap=86_400_000)
    for wrong in (0, -1, True, 1.5, None):
        with pytest.raises(PlanError, match="max_overlap"):
            make(max_overlap=wrong)


def test_an_hour_every_second_works() -> None:
    driver = Driver(KEYED.hopping_window("1 h", "1 s").agg(kv.count(), kv.first("value"), kv.last("value")))
    given = []
    for batch in range(3):
        driver = driver.restarted()
        moment = batch * 1_500
        rows = [{"key": "a", "at": moment, "value": batch}, {"key": "b", "at": moment + 1, "value": batch}]
        given += driver.send(rows).results.to_pylist()
    assert driver.open_windows == 3_603
    actual = [r for r in given + driver.close().results.to_pylist() if r["key"] == "a"]
    ends = list(range(1_000, 3_603_001, 1_000))
    assert [r["window_end"] for r in actual] == ends
    for row in actual:
        held = [n for n in range(3) if row["window_start"] <= n * 1_500 < row["window_end"]]
        assert (row["count"], row["first_value"], row["last_value"]) == (len(held), held[0], held[-1])


def test_rows_far_apart_in_windows_close_together() -> None:
    driver = Driver(KEYED.hopping_window(1_000, 1).agg(kv.count()))
    first = driver.send([{"key": "a", "at": moment, "value": 1} for moment in (-(10**12), 10**12)]).results
    assert first["count"].to_pylist() == driver.close().results["count"].to_pylist() == [1] * 1_000


LISTS: dict[str, Callable[[KeyedStream], Any]] = {
    "collect_list": lambda s: s.lookback_window(100).agg(kv.collect_list("value")),
    "collect_set": lambda s: s.lookback_window(100, exclude_self=True).agg(kv.collect_set("value")),
    "matches()": lambda s: s.lookback_window(100).matches(),
    "pairs()": lambda s: s.lookback_window(100).pairs("left_value > right_value"),
    "collect_list, distinct": lambda s: s.windowed_by(kv.SlidingWindows.of(100)).agg(kv.collect_list("value")),
    "windows reported row by row": lambda s: (
        s.emit("updates").trigger(kv.Trigger.on_every_element()).windowed_by(kv.SlidingWindows.of(100)).agg(kv.count())
    ),
}


@pytest.mark.parametrize("what", LISTS)
def test_lists_that_grow_with_the_square_are_refused_by_key(what: str) -> None:
    rows = [{"key": key, "at": i, "value": i} for i in range(100) for key in ("hot", f"k{i}")]
    free = Driver(LISTS[what](KEYED))
    free.send(rows)
    total = free.close().results.num_rows
    driver = Driver(LISTS[what](KEYED.max_listed(1_500)))
    with pytest.raises(OperatorError, match=r"(?s)more than 1,500 values of one key.*'hot'.*Hint.*\.max_listed\("):
        driver.send(rows)
        driver.close()
    enough = Driver(LISTS[what](KEYED.max_listed(400_000)))
    enough.send(rows)
    assert enough.close().results.num_rows == total


def test_sets_of_few_values_are_no_trouble() -> None:
    driver = Driver(KEYED.max_listed(300).lookback_window(1_000).agg(kv.collect_set("value")))
    driver.send([{"key": "a", "at": i, "value": i % 2} for i in range(150)])
    assert driver.close().results["collect_set_value"].to_pylist()[1:] == [[0, 1]] * 149


def test_the_limit_is_a_number_and_shown() -> None:
    for wrong in (0, -5, True, "many"):
        with pytest.raises(PlanError, match="values"):
            KEYED.max_listed(wrong)  # type: ignore[arg-type]
    assert "max_listed=7" in KEYED.max_listed(7).lookback_window(1).agg(kv.count()).explain()
