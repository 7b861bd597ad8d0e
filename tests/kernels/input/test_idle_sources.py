"""A source that is silent leaves the minimum when it has been silent for long enough, whenever somebody times."""

from __future__ import annotations

from typing import Any

import krishiv_py as kv
from krishiv_py.plan.durations import UNSET
from krishiv_py.testing import Driver, ManualClock, stream_of, union_of

IDLE_S = 30
NAMES = ("a", "b", "c")


def declared() -> kv.MultiSourceWatermarkSpec:
    spec = kv.MultiSourceWatermarkSpec.new(idle_timeout=f"{IDLE_S} s")
    for name in NAMES:
        spec = spec.source(name, kv.WatermarkSpec.fixed_lag(0))
    return spec


def test_a_source_that_never_sends_does_not_hold_the_rows_of_others_when_nothing_else_comes() -> None:
    rows = stream_of("site string, at bigint").with_watermark(declared(), "at", source_column="site")
    driver = Driver(rows.tumbling_window("10 s").agg(kv.count()), clock=(clock := ManualClock()))
    driver.send([{"site": name, "at": 12_000 + n} for n, name in enumerate("ab")])
    clock.advance(f"{IDLE_S} s")
    assert driver.tick().watermark_us == UNSET
    clock.advance("1 hour")
    assert driver.tick().watermark_us == 12_000_000, "c went before a and b, which nobody looked at"
    driver.send([{"site": "c", "at": 11_000}])
    assert driver.watermark_us == 12_000_000, "it never moves back, and waits for c"


def test_a_side_of_results_that_never_sent_anything_is_passed_over_when_nothing_else_comes() -> None:
    def counted() -> kv.ResultStream:
        return stream_of("k bigint, at bigint").watermark("at", 0).key_by("k").tumbling_window(10).agg(kv.count())

    given: list[Any] = []
    for times in (1, 100):
        joined = counted().window_join(counted(), on="k", window=kv.windows.tumbling(10), how="left", idle_timeout="30 s")
        driver = Driver(joined, clock=(clock := ManualClock()))
        driver.tick()
        clock.advance("1 s")
        rows = driver.send({"left": [{"k": 1, "at": 1}, {"k": 1, "at": 55}]}).results.num_rows
        for _ in range(times):
            clock.advance(60_000 // times)
            rows += driver.tick().results.num_rows
        given.append((rows, driver.watermark_us))
    assert given[0] == given[1] and given[0][0] == 1


def test_partitions_as_sources_with_one_that_is_empty_give_results() -> None:
    streams = {name: stream_of("at bigint") for name in NAMES}
    union = union_of(streams).with_watermark(declared(), "at", source_column="source")
    driver = Driver(union.tumbling_window(10).agg(kv.count()), clock=(clock := ManualClock()))
    driver.send({"a": [{"at": n} for n in range(100)], "b": [{"at": n} for n in range(100)]})
    clock.advance(f"{IDLE_S * 2} s")
    assert driver.tick().results.num_rows == 9
