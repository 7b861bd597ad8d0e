"""Times of other units than microseconds: whatever way they come, they mean the same moment (SEMANTICS §1.1)."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import CountByKeyLateEventHandler, Stream, col, count, lit, max
from krishiv_py.errors import KrishivError
from krishiv_py.kernels.columns.times import stamp
from krishiv_py.plan.durations import MAX_TIME_US
from krishiv_py.testing import Driver, stream_of

UTC = dt.timezone.utc
THEN = dt.datetime(2023, 5, 6, 7, 8, 9, tzinfo=UTC)
SECONDS = int(THEN.timestamp())
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
UNITS = sorted(PER_SECOND)


def windows(stream: Stream, rows: Any, **more: Any) -> list[dict[str, Any]]:
    """Closed windows of a second, on the column ``at``."""
    driver = Driver(stream.watermark("at", 0).tumbling_window(1_000).agg(count(), **more))
    driver.send(rows)
    return [{**row} for row in driver.close().results.to_pylist()]


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Oslo", "+05:30"])
@pytest.mark.parametrize("unit", UNITS)
def test_a_cast_to_any_unit_counts_that_unit(unit: str, zone: str | None) -> None:
    stream = stream_of("epoch bigint").with_column("at", col("epoch").cast(pa.timestamp(unit, zone)))
    actual = windows(stream, [{"epoch": SECONDS * PER_SECOND[unit]}])
    start = THEN if zone else THEN.replace(tzinfo=None)
    assert actual == [{"window_start": start, "window_end": start + dt.timedelta(seconds=1), "count": 1}]
    assert stream.schema.field("at").type == pa.timestamp("us", "UTC" if zone else None)


@pytest.mark.parametrize("unit", UNITS)
def test_times_before_1970_and_out_of_range(unit: str) -> None:
    stream = stream_of("epoch bigint").with_column("at", col("epoch").cast(pa.timestamp(unit, "UTC")))
    assert windows(stream, [{"epoch": -1}])[0]["window_start"] == dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)
    driver = Driver(stream.watermark("at", 0).tumbling_window(1_000).agg(count()))
    beyond = 2 * MAX_TIME_US * PER_SECOND[unit] // 10**6
    if beyond < 2**63:
        late = driver.send([{"epoch": beyond}, {"epoch": None}]).late
        assert late["reason"].to_pylist() == ["time_out_of_range", "null_time"]


def test_a_name_of_spark_counts_seconds() -> None:
    stream = stream_of("epoch bigint").with_column("at", "CAST(epoch AS TIMESTAMP)")
    assert windows(stream, [{"epoch": SECONDS}])[0]["window_start"] == THEN
    same = stream_of("epoch bigint").with_column("at", col("epoch").cast("timestamp"))
    assert windows(same, [{"epoch": SECONDS}])[0]["window_start"] == THEN


@pytest.mark.parametrize("zone", [None, "Europe/Oslo"])
@pytest.mark.parametrize("unit", UNITS)
def test_schemas_batches_and_functions_may_have_any_unit(unit: str, zone: str | None) -> None:
    type_ = pa.timestamp(unit, zone)
    table = pa.table({"at": pa.array([SECONDS * PER_SECOND[unit]], pa.int64()).cast(type_)})
    start = THEN if zone else THEN.replace(tzinfo=None)
    assert windows(stream_of(pa.schema([("at", type_)])), table)[0]["window_start"] == start

    def again(_batch: pa.RecordBatch) -> pa.Table:
        return table

    for schema in (None, pa.schema([("at", type_)])):
        mapped = stream_of(pa.schema([("at", type_)])).map_batches(again, schema)
        assert windows(mapped, table)[0]["window_start"] == start


def test_keys_aggregates_and_look_back_rows() -> None:
    moment = col("epoch").cast(pa.timestamp("ms", "UTC"))
    stream = stream_of("epoch bigint").with_column("at", moment).with_column("k", moment)
    driver = Driver(stream.watermark("at", 0).key_by("k").lookback_window(1_000).agg(count(), max(moment).alias("m")))
    driver.send([{"epoch": SECONDS * 1_000}])
    row = driver.close().results.to_pylist()[0]
    assert (row["k"], row["window_end"], row["m"]) == (THEN, THEN, THEN)
    timed = stream.watermark("at", 0).with_late_event_handler(CountByKeyLateEventHandler())
    late = Driver(timed.tumbling_window(1_000).agg(count()))
    late.send([{"epoch": SECONDS * 1_000}])
    assert late.send([{"epoch": 0}]).late.to_pylist()[0]["at"] == dt.datetime(1970, 1, 1, tzinfo=UTC)


def test_a_constant_of_another_zone_is_the_same_moment() -> None:
    oslo = THEN.astimezone(dt.timezone(dt.timedelta(hours=2)))
    stream = stream_of("x bigint").with_column("at", lit(oslo))
    assert stream.schema.field("at").type == pa.timestamp("us", "UTC")
    assert windows(stream, [{"x": 1}])[0]["window_start"] == THEN


def test_what_a_function_returns_between_microseconds_is_refused_by_name() -> None:
    def odd(_batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"at": pa.array([1], pa.timestamp("ns", "UTC"))})

    with pytest.raises(KrishivError, match=r"map_batches\(odd\).*Hint:"):
        windows(stream_of("at timestamp").map_batches(odd), [{"at": None}])


@pytest.mark.parametrize("unit", UNITS)
def test_a_stamp_reads_the_unit_of_its_column(unit: str) -> None:
    column = pa.array([SECONDS * PER_SECOND[unit], -1, None], pa.int64()).cast(pa.timestamp(unit, "UTC"))
    actual = stamp(column, "timestamp")
    assert actual.times.tolist() == [SECONDS * 10**6, -(10**6 // PER_SECOND[unit]) if unit != "ns" else -1, 0]
    assert actual.null.tolist() == [False, False, True]
    assert not np.any(actual.out_of_range)


@given(st.lists(st.none() | st.integers(-(2**62), 2**62) | st.integers(-5, 5), max_size=8), st.sampled_from(UNITS))
def test_bounds_are_known_where_every_time_can_be_used(values: list[int | None], unit: str) -> None:
    stamped = stamp(pa.array(values, pa.timestamp(unit)), "timestamp_ntz")
    unusable = stamped.null | stamped.out_of_range
    usable = len(values) > 0 and not unusable.any()
    assert stamped.bounds == ((int(stamped.times.min()), int(stamped.times.max())) if usable else None)
