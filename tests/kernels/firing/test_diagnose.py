"""Why a window has not fired, in words a user can act on."""

from __future__ import annotations

from krishiv_py import MultiSourceWatermarkSpec, WatermarkSpec, count
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


def test_a_time_at_which_no_window_ends_is_told() -> None:
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
    lags = lags.source("a", WatermarkSpec.fixed_lag_ms(0)).source("b", WatermarkSpec.fixed_lag_ms(0))
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
        lags = lags.source(name, WatermarkSpec.fixed_lag_ms(1_000))
    stream = stream_of("at bigint, source string").with_watermark(lags, "at", source_column="source")
    driver = Driver(stream.tumbling_window(10_000).agg(count()))
    driver.send([{"at": 50_000, "source": "a"}, {"at": 4_000, "source": "b"}])
    said = driver.why_not_fired(10_000)
    assert "source 'b' is at 1970-01-01T00:00:03Z and needs a row at 1970-01-01T00:00:11Z or later" in said
    assert "source 'c' has not spoken" in said
    assert "'a'" not in said
    assert "silent for longer than 30 s is left out" in said
