"""Why a window has not fired, in words a user can act on."""

from __future__ import annotations

from krishiv_py import MultiSourceWatermarkSpec, WatermarkSpec, count
from krishiv_py.testing import Driver, stream_of


def test_one_source() -> None:
    driver = Driver(stream_of("at bigint").watermark("at", 5_000).tumbling_window(10_000).agg(count()))
    assert "it is unset" in driver.why_not_fired(10_000)
    driver.send([{"at": 12_000}])
    said = driver.why_not_fired(20_000)
    assert "reaches 1970-01-01T00:00:20Z; it is 1970-01-01T00:00:07Z" in said
    assert "event time 1970-01-01T00:00:25Z or later" in said
    driver.close()
    assert "is over" in driver.why_not_fired(20_000)


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
