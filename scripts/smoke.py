"""Tries an installed krishiv_py: one window on the driver for tests, without Java."""

from krishiv_py import count
from krishiv_py.testing import Driver, stream_of

stream = stream_of("user string, at bigint").watermark("at", "1 second").key_by("user")
driver = Driver(stream.tumbling_window("10 seconds").agg(count()))
fired = driver.send([{"user": "a", "at": 1_000}, {"user": "a", "at": 2_000}, {"user": "a", "at": 30_000}]).results.to_pylist()
expected = [{"user": "a", "window_start": 0, "window_end": 10_000, "count": 2}]
if fired != expected:
    raise SystemExit(f"wrong answer: {fired}, expected {expected}")
print("krishiv_py works")
