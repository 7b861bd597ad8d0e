"""Count windows on the JVM-free driver (SEMANTICS §3.7)."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, seed
from hypothesis import strategies as st

from krishiv_py import count, sum
from krishiv_py.errors import PlanError
from krishiv_py.testing import Driver, stream_of
from tests import reference as ref
from tests.kernels.session.session_streams import FEWER, SCHEMA, Shape, assert_same

SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("rule", ["event", "window"])
@seed(20240304)
@FEWER
@given(SEEDS, st.integers(1, 6), st.integers(1, 6), st.sampled_from([0, 10]), st.sampled_from([3, 12]))
def test_count_windows_are_those_of_the_reference(
    rule: Literal["event", "window"], number: int, size: int, slide: int, lag: int, rows_per_key: int
) -> None:
    slide = slide if slide < size else size
    stream = stream_of(SCHEMA).watermark("t", lag).key_by("k").count_window(size, slide).late_rule(rule)
    config = ref.Config(ref.CountWindow(size, slide), ref.WatermarkSpec(lag), 0, rule)
    assert_same(stream, config, Shape(number, rows_per_key=rows_per_key, disorder=40, null_times=True), ordered=True)


def test_a_result_bears_row_numbers_and_comes_when_the_window_is_full() -> None:
    """::

    size 3, slide 2   0 1 2 3 4
                      [---)
                          [---)
                              [---)   filled by the end of input only
    """
    stream = stream_of("k string, t bigint, v int").watermark("t", "1 h").key_by("k").count_window(3, 2).agg(count(), sum("v"))
    driver = Driver(stream)
    first = driver.send([{"k": "a", "t": 0, "v": v} for v in (1, 2)] + [{"k": None, "t": 0, "v": 7}])
    assert first.results.num_rows == 0
    second = driver.send([{"k": "a", "t": -5, "v": v} for v in (4, 8, 16)])
    assert second.results.to_pylist() == [
        {"k": "a", "window_start": 0, "window_end": 3, "count": 3, "sum_v": 7},
        {"k": "a", "window_start": 2, "window_end": 5, "count": 3, "sum_v": 28},
    ]
    assert driver.close().results.to_pylist() == [
        {"k": None, "window_start": 0, "window_end": 3, "count": 1, "sum_v": 7},
        {"k": "a", "window_start": 4, "window_end": 7, "count": 1, "sum_v": 16},
    ]
    assert str(stream.schema.field("window_start").type) == "int64"


@pytest.mark.parametrize(("size", "slide"), [(0, None), (-1, None), (True, None), (2.0, None), (3, 0), (2, 3), ("3", None)])
def test_what_is_no_number_of_rows_is_refused(size: int, slide: int | None) -> None:
    with pytest.raises(PlanError, match="Hint"):
        stream_of(SCHEMA).watermark("t", 0).count_window(size, slide)
