"""Nothing of a value, and no late row, goes in silence on the way in. No Spark needed."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from krishiv_py import MemorySink, SideOutputLateEventHandler, collect_list, count
from krishiv_py.errors import SchemaError
from krishiv_py.testing import Driver, stream_of


@pytest.mark.parametrize(
    ("type_", "value", "kept"),
    [
        (pa.int64(), 2.7, 2.0),
        (pa.int32(), Decimal("2.7"), Decimal(2)),
        (pa.int64(), np.float64(0.5), np.float64(3)),
        (pa.date32(), dt.datetime(2024, 1, 1, 12), dt.datetime(2024, 1, 1)),
        (pa.float32(), 1e300, float("inf")),
        (pa.list_(pa.int64()), [1, 2.5], [1, 2.0]),
        (pa.struct([("x", pa.int32())]), {"x": 1.5}, {"x": None}),
        (pa.map_(pa.string(), pa.int64()), {"a": 0.1}, {"a": 1.0}),
    ],
)
def test_no_part_of_a_value_is_dropped_in_silence(type_: pa.DataType, value: Any, kept: Any) -> None:
    stream = stream_of(pa.schema([("at", pa.int64()), ("x", type_)]))
    driver = Driver(stream.watermark("at", 0).tumbling_window(10).agg(collect_list("x")))
    with pytest.raises(SchemaError, match=r"row 1, column 'x': not an? .*a part of the value would be lost"):
        driver.send([{"at": 1, "x": kept}, {"at": 1, "x": value}])
    driver.send([{"at": 1, "x": kept}, {"at": 1, "x": None}])
    with pytest.raises(SchemaError, match="column 'at'"):
        driver.send([{"at": 1.5}])


def test_two_drivers_share_a_sink_for_late_rows() -> None:
    sink = MemorySink()
    plan = stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count())
    drivers = [Driver(plan.with_late_event_handler(SideOutputLateEventHandler(sink))) for _ in range(2)]
    for driver in drivers:
        driver.send([{"at": 100}])
    for moment in (1, 2):
        for n, driver in enumerate(drivers):
            driver.send([{"at": moment + 10 * n}])
    table = sink.table()
    assert table is not None and table["at"].to_pylist() == [1, 11, 2, 12]
