"""Unions without a session."""

from __future__ import annotations

import pytest

from krishiv_py import MultiSourceWatermarkSpec, OrderError, SchemaError, WatermarkSpec, count
from krishiv_py.testing import Driver, stream_of, union_of

ROWS = stream_of("at bigint")


def test_a_union_waits_for_the_slowest_of_its_streams() -> None:
    spec = MultiSourceWatermarkSpec.new().source("a", WatermarkSpec.fixed_lag(0)).source("b", WatermarkSpec.fixed_lag(5))
    both = union_of({"a": ROWS, "b": ROWS}, source_column="from").with_watermark(spec, "at", source_column="from")
    driver = Driver(both.key_by("from").tumbling_window(10).agg(count()))
    assert driver.send({"a": [{"at": 1}, {"at": 30}]}).results.num_rows == 0
    assert driver.send({"b": [{"at": 2}, {"at": 15}]}).results.to_pylist() == [
        {"from": "a", "window_start": 0, "window_end": 10, "count": 1},
        {"from": "b", "window_start": 0, "window_end": 10, "count": 1},
    ]


def test_what_cannot_be_united_is_refused() -> None:
    with pytest.raises(SchemaError, match="'b' has other columns"):
        union_of({"a": ROWS, "b": stream_of("at timestamp")})
    with pytest.raises(OrderError, match=r"session\.union.*union_of"):
        getattr(ROWS, "union")(ROWS)  # noqa: B009
