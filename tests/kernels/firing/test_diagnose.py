"""Why a window has not fired, in words a user can act on."""

from __future__ import annotations

from krishiv_py import MemorySink, MultiSourceWatermarkSpec, WatermarkSpec, count, windows
from krishiv_py.testing import Driver, ManualClock, stream_of


def test_one_source() -> None:
    driver = Driver(stream_of("at bigint").watermark("at", 5_000).tumbling_window(10_000).agg(count()))
    assert "it is unset" in driver.why_not_fired(10_000)
    driver.send([{"at": 12_000}])
    said = driver.why_not_fired(20_000)
    assert "reaches 1970-01-01T00:00:20Z; it is 1970-01-01T00:00:07Z" in said
    assert "event time 1970-01-01T00:00:25Z or later" in said
    driver.close()
    assert "it has fired if a row of it was accepted in time" in driver.why_not_fired(20_000)


def test_a_time_at_which_no_window_ends_is_reported() -> None:
    stream = stream_of("at bigint").watermark("at", 0)
    driver = Driver(stream.hopping_window(10_000, 5_000, 1_000).agg(count()))
    driver.send([{"at": 90_000}])
    said = driver.why_not_fired(12_000)
    nearest = "1970-01-01T00:00:11Z and at 1970-01-01T00:00:16Z"
    assert said == f"no window ends at 1970-01-01T00:00:12Z: the nearest end at {nearest}"
    assert "does not wait" in driver.why_not_fired(11_000)
    assert "count windows do not wait for the watermark" in Driver(stream.count_window(3).agg(count())).why_not_fired(10_000)


def test_windows_whose_end_belongs_to_them_wait_for_a_watermark_beyond_it() -> None:
    stream = stream_of("at bigint").watermark("at", 0)
    driver = Driver(stream.lookback_window(5_000).agg(count()))
    driver.send([{"at": 10_000}])
    assert "reaches 1970-01-01T00:00:10.001000Z; it is 1970-01-01T00:00:10Z" in driver.why_not_fired(10_000)
    assert driver.send([{"at": 10_001}]).results.num_rows == 1
    assert "does not wait" in driver.why_not_fired(10_000)


def test_when_all_sources_are_silent_the_watermark_holds() -> None:
    lags = MultiSourceWatermarkSpec.new(idle_timeout="30 s")
    lags = lags.source("a", WatermarkSpec.fixed_lag(0)).source("b", WatermarkSpec.fixed_lag(0))
    clock = ManualClock()
    stream = stream_of("at bigint, source string").with_watermark(lags, "at", source_column="source")
    driver = Driver(stream.tumbling_window(10_000).agg(count()), clock=clock)
    driver.send([{"at": 5_000, "source": "a"}, {"at": 4_000, "source": "b"}])
    clock.advance("20 s")
    driver.send([{"at": 6_000, "source": "a"}])
    clock.advance("20 s")
    driver.tick()
    said = driver.why_not_fired(10_000)
    assert "source 'a' is at 1970-01-01T00:00:06Z" in said and "source 'b' is at" not in said
    assert "is left out ('b' at the moment) while another one speaks" in said
    clock.advance("1 h")
    driver.tick()
    said = driver.why_not_fired(10_000)
    assert "all sources are silent for longer than 30 s, so the watermark holds until one speaks" in said
    assert "left out" not in said


def test_final_results_wait_for_the_allowed_lateness() -> None:
    windows = stream_of("at bigint").watermark("at", 0).allowed_lateness(3_000).emit("final").tumbling_window(10_000)
    said = Driver(windows.agg(count())).why_not_fired(10_000)
    assert "reaches 1970-01-01T00:00:13Z (its end and the allowed lateness of 3 s" in said


def test_the_source_that_holds_the_watermark_is_named() -> None:
    lags = MultiSourceWatermarkSpec.new(idle_timeout="30 s")
    for name in ("a", "b", "c"):
        lags = lags.source(name, WatermarkSpec.fixed_lag(1_000))
    stream = stream_of("at bigint, source string").with_watermark(lags, "at", source_column="source")
    driver = Driver(stream.tumbling_window(10_000).agg(count()))
    driver.send([{"at": 50_000, "source": "a"}, {"at": 4_000, "source": "b"}])
    said = driver.why_not_fired(10_000)
    assert "source 'b' is at 1970-01-01T00:00:03Z and needs a row at 1970-01-01T00:00:11Z or later" in said
    assert "source 'c' has sent nothing" in said
    assert "'a'" not in said
    assert "silent for longer than 30 s is left out" in said


def test_a_stage_behind_names_the_time_of_a_row_of_the_source() -> None:
    counts = stream_of("at bigint").watermark("at", 3).tumbling_window(10).allowed_lateness(50).emit("final").agg(count())
    driver = Driver(counts.watermark("window_time", 7).tumbling_window(100).allowed_lateness(20).emit("final").agg(count()))
    driver.send([{"at": 1}])
    assert "event time 1970-01-01T00:00:00.180000Z or later" in driver.why_not_fired(100)
    assert driver.send([{"at": 179}]).results.num_rows == 0
    assert driver.send([{"at": 180}]).results.num_rows == 1
    assert "does not wait" in driver.why_not_fired(100)


def test_every_source_that_holds_a_join_of_results_is_named_with_the_time_it_needs() -> None:
    left = stream_of("k string, at bigint").watermark("at", 0).key_by("k").tumbling_window(10)
    right = stream_of("k string, seen bigint").watermark("seen", 4).drop_duplicates("k", within=5)
    joined = (
        left.allowed_lateness(30)
        .emit("final")
        .agg(count())
        .window_join(right, "k", window=windows.tumbling(20), suffixes=("_l", "_r"))
    )
    driver = Driver(joined)
    assert "source 'left' has sent nothing" in driver.why_not_fired(20)
    driver.send({"left": [{"k": "a", "at": 1}, {"k": "a", "at": 25}], "right": [{"k": "a", "seen": 5}]})
    said = driver.why_not_fired(20)
    assert "source 'left' is at 1970-01-01T00:00:00.025000Z and needs a row at 1970-01-01T00:00:00.050000Z or later" in said
    assert "source 'right' is at 1970-01-01T00:00:00.001000Z and needs a row at 1970-01-01T00:00:00.024000Z or later" in said
    driver.send({"left": [{"k": "a", "at": 49}], "right": [{"k": "a", "seen": 24}]})
    said = driver.why_not_fired(20)
    assert "'left'" in said and "'right'" not in said
    assert driver.send({"left": [{"k": "a", "at": 50}]}).results.num_rows == 1


def test_outputs_with_lags_of_their_own_need_rows_of_other_times() -> None:
    stream = stream_of("at bigint")
    lags = {"soon": 2, "later": 9}
    driver = Driver(
        stream.watermark("at", lag).tumbling_window(10).agg(count()).to(MemorySink(), name=name) for name, lag in lags.items()
    )
    driver.send([{"at": 1}])
    for name, ms in (("soon", 12), ("later", 19)):
        said = driver.why_not_fired(10, f"{name}: window-aggregate")
        assert f"event time 1970-01-01T00:00:00.0{ms}000Z or later" in said
