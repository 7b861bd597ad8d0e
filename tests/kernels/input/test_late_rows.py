"""The times in a late row: `watermark` and `lateness` are in the unit of the time column, and agree with it."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from krishiv_py import SlidingWindows, count
from krishiv_py.kernels.prepare import RowPreparer
from krishiv_py.testing import Driver, stream_of

TIMES: Final = [pa.int64(), *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "Asia/Tokyo"))]
WINDOWS: Final[dict[str, Any]] = {
    "refused before the shuffle": lambda s: s.tumbling_window("5 s"),
    "refused by the state": lambda s: s.late_rule("window").session_window("5 s"),
    "refused by the state, capped": lambda s: s.late_rule("window").session_window("5 s", max_duration="20 s"),
    "refused by the state, distinct sets": lambda s: s.late_rule("window").windowed_by(SlidingWindows.of("5 s")),
    "look-back": lambda s: s.late_rule("window").lookback_window("5 s"),
}


def seconds(type_: pa.DataType, *values: int | None) -> pa.Table:
    """Rows of these event times."""
    unit = "ms" if pa.types.is_integer(type_) else type_.unit
    factor = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    return pa.table({"at": pa.array([None if v is None else v * factor for v in values], pa.int64()).cast(type_)})


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("type_", TIMES, ids=str)
def test_the_lateness_is_the_watermark_less_the_event_time(type_: pa.DataType, kind: str) -> None:
    driver = Driver(WINDOWS[kind](stream_of(pa.schema([("at", type_)])).watermark("at", "2 s")).agg(count()))
    driver.send(seconds(type_, 3, 102))
    late = driver.send(seconds(type_, 12, None, -40, 101, 7)).late
    numbers = {name: late[name].cast(pa.int64()) for name in ("at", "watermark", "lateness")}
    per_second = 1_000 if pa.types.is_integer(type_) else 1_000_000
    assert late.schema.field("lateness").type == pa.int64()
    assert late["watermark"].type == late["at"].type
    assert numbers["watermark"].unique().to_pylist() == [100 * per_second]
    assert numbers["lateness"].equals(pc.if_else(pc.equal(late["reason"], "late"), _less(numbers), None))
    assert sorted(n for n in numbers["lateness"].to_pylist() if n is not None) == [s * per_second for s in (88, 93, 140)]


def _less(numbers: dict[str, pa.ChunkedArray]) -> pa.ChunkedArray:
    return pc.subtract(numbers["watermark"], numbers["at"])


def test_milliseconds_are_rounded_down_as_the_watermark_is() -> None:
    """W = 8.5 ms is shown as 8: a row at 8 was half a millisecond late, one at 7 one and a half."""
    spec = stream_of("at bigint").watermark("at", 0).tumbling_window(5).agg(count())._plan(late="rows").spec
    late = RowPreparer(spec)(pa.record_batch({"at": [8, 7, -1, 9]}), 8_500).late.to_pylist()
    assert [(r["at"], r["watermark"], r["lateness"]) for r in late] == [(8, 8, 0), (7, 8, 1), (-1, 8, 9)]


@pytest.mark.parametrize("type_", ["bigint", "timestamp"])
def test_after_the_end_of_input_there_is_no_watermark_to_be_behind(type_: str) -> None:
    driver = Driver(stream_of(f"at {type_}").watermark("at", 0).tumbling_window(5).agg(count()))
    driver.close()
    moment = pa.array([5_000_000, -5_000_000], pa.int64()).cast(pa.int64() if type_ == "bigint" else pa.timestamp("us", "UTC"))
    late = driver.send(pa.table({"at": moment})).late
    assert late["reason"].to_pylist() == ["late", "late"]
    assert late["watermark"].null_count == late["lateness"].null_count == 2
