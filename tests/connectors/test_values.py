"""The border from Python values to columns: exact or refused, at any depth. No Spark needed."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import hypothesis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from krishiv_py.connectors.json_lines import JsonLines
from krishiv_py.connectors.values import UnfitError, column

UTC = pa.timestamp("us", "UTC")
NOON = dt.datetime(2024, 1, 1, 12, 0, 0, 5)
ZONED = NOON.replace(tzinfo=dt.timezone.utc)
TAKEN: list[tuple[pa.DataType, Any, Any]] = [
    (pa.int64(), np.int64(5), 5),
    (pa.int64(), 3.0, 3),
    (pa.float32(), np.float32(0.1), float(np.float32(0.1))),
    (pa.float64(), 1 << 60, float(1 << 60)),
    (pa.bool_(), np.bool_(True), True),
    (pa.string(), np.str_("x"), "x"),
    (UTC, np.datetime64("2024-01-01T12:00:00.000005000", "ns"), ZONED),
    (UTC, pd.Timestamp(ZONED), ZONED),
    (pa.timestamp("us"), NOON, NOON),
    (pa.duration("us"), np.timedelta64(5, "s"), dt.timedelta(seconds=5)),
    (pa.duration("us"), pd.Timedelta("5s"), dt.timedelta(seconds=5)),
    (pa.date32(), np.datetime64("2024-01-01"), dt.date(2024, 1, 1)),
    (pa.date32(), "2024-02-29", dt.date(2024, 2, 29)),
    (UTC, "2024-01-01T12:00:00.000005Z", ZONED),
    (UTC, "2024-01-01 12:00:00.000005000", ZONED),
    (UTC, "2024-01-01T13:30:00.000005+0130", ZONED),
    (pa.timestamp("us"), "2024-01-01T12:00:00.000005", NOON),
    (pa.decimal128(5, 2), Decimal("1.500"), Decimal("1.50")),
    (UTC, pd.NaT, None),
    (pa.int64(), pd.NA, None),
    (pa.duration("us"), np.timedelta64("NaT"), None),
]
REFUSED: list[tuple[pa.DataType, Any]] = [
    *((t, v) for t in (UTC, pa.date32(), pa.duration("us")) for v in (1, 1.5, Decimal(1), np.int64(1), True, "1 Jan 2024")),
    *((UTC, text) for text in ("2024-01-01", "2024-01-01T24:00Z", "2024-02-30T12:00Z", " 2024-01-01T12:00Z")),
    *((UTC, f"2024-01-01T12:00{rest}") for rest in (":60Z", ":00.0000001Z", "z", "+24:00", " Z", "Z\n", "[UTC]", ":00,5Z")),
    (UTC, "٢٠٢٤-01-01T12:00Z"),
    (UTC, "0000-01-01T12:00:00Z"),
    (pa.timestamp("us"), "2024-01-01T12:00:00Z"),
    *((pa.date32(), text) for text in ("2024-02-30", "20240101", "2024-1-1", "2024-01-01T00:00:00", "2024-W01-1")),
    (pa.duration("us"), "2024-01-01T12:00:00Z"),
    (pa.int64(), "2024-01-01T12:00:00Z"),
    (UTC, pd.Timestamp("2024-01-01T00:00:00.123456789Z")),
    (UTC, np.datetime64("2024-01-01T00:00:00.123456789")),
    (pa.timestamp("us"), ZONED),
    (pa.date32(), NOON),
    (pa.int64(), 1.5),
    (pa.int64(), Decimal("1.9")),
    (pa.int64(), 1 << 63),
    (pa.int8(), 128),
    (pa.float32(), 1e300),
    (pa.float64(), (1 << 53) + 1),
    (pa.float64(), True),
    (pa.decimal128(5, 2), Decimal("1.505")),
    (pa.decimal128(5, 2), Decimal("NaN")),
    (pa.string(), b"x"),
    (pa.binary(), "x"),
    (pa.string(), "\ud800"),
]


def _around(type_: pa.DataType, value: Any) -> list[tuple[pa.DataType, Any]]:
    struct = pa.struct([("x", type_)])
    return [
        (type_, value),
        (struct, {"x": value}),
        (pa.list_(type_), [value]),
        (pa.map_(pa.string(), type_), {"k": value}),
        (pa.list_(struct), [{"x": value}]),
    ]


@pytest.mark.parametrize(("type_", "value", "kept"), TAKEN)
def test_a_value_is_taken_exactly(type_: pa.DataType, value: Any, kept: Any) -> None:
    for (outer, given), (_, wanted) in zip(_around(type_, value), _around(type_, kept), strict=True):
        actual = column([None, given], outer)
        actual.validate(full=True)
        assert actual.equals(pa.array([None, wanted], outer))


@pytest.mark.parametrize(("type_", "value"), REFUSED)
def test_a_value_is_refused_at_any_depth(type_: pa.DataType, value: Any) -> None:
    for outer, given in _around(type_, value):
        with pytest.raises(UnfitError) as actual:
            column([None, given], outer)
        assert actual.value.row == 1 and actual.value.type == type_


def test_names_of_structs_are_checked_at_any_depth() -> None:
    for outer, given in _around(pa.struct([("id", pa.int64())]), {"ID": 1}):
        with pytest.raises(UnfitError, match="does not have this field"):
            column([given], outer)
        assert column([given], outer, extra_fields=True).null_count == 0


@hypothesis.given(
    st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)),
    st.sampled_from(["", "Z", "+01", "-0330", "+05:45"]),
    st.sampled_from(
        [("T", "auto"), (" ", "auto"), ("T", "hours"), ("T", "minutes"), (" ", "milliseconds"), ("T", "microseconds")]
    ),
)
def test_a_text_is_the_time_that_it_is_in_json(time: dt.datetime, zone: str, form: tuple[str, str]) -> None:
    """The same texts are times in files, in records and in rows."""
    text = time.isoformat(*form) + zone
    for type_ in (UTC, *([] if zone else [pa.timestamp("us")])):
        lines = JsonLines.exact(pa.schema([("at", type_)]), ("at",))
        rows = lines.one_by_one([json.dumps({"at": text}).encode()])
        assert rows.bad == [] and column([text], type_).equals(rows.batch.column(0))
