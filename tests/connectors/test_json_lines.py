"""Files of `JsonSink`: what is in a line is the value, whatever its type, for other readers too."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import math
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from krishiv_py import JsonSink, SideOutputLateEventHandler, count
from krishiv_py.errors import OperatorError
from krishiv_py.plan.schema import as_schema
from krishiv_py.testing import Driver, stream_of
from tests.engines.arrow_types import ACCEPTED, column


def lines(table: pa.Table) -> list[str]:
    written = io.BytesIO()
    JsonSink("out").write_table(table, written)
    text = written.getvalue().decode()
    assert not text or text.endswith("\n")
    return text.split("\n")[:-1]


@pytest.mark.parametrize(
    ("values", "type_", "expected_values"),
    [
        ([0, 1, -1], pa.timestamp("us", "Asia/Tokyo"), ["1970-01-01T00:00:00.000000Z", "1970-01-01T00:00:00.000001Z"]),
        ([1], pa.timestamp("us"), ["1970-01-01T00:00:00.000001"]),
        ([2**63 - 1, -(2**63)], pa.int64(), [2**63 - 1, -(2**63)]),
        ([float("nan"), math.inf, -math.inf], pa.float64(), ["NaN", "Infinity", "-Infinity"]),
        ([b"\x00\xff", b""], pa.binary(), ["AP8=", ""]),
        ([dt.date(1, 1, 1), dt.date(9999, 12, 31)], pa.date32(), ["0001-01-01", "9999-12-31"]),
        ([-1], pa.duration("us"), ["INTERVAL '-0 00:00:00.000001' DAY TO SECOND"]),
        ([dt.timedelta(days=40, hours=3, seconds=2)], pa.duration("us"), ["INTERVAL '40 03:00:02' DAY TO SECOND"]),
        ([[(1, "a"), (2, None)]], pa.map_(pa.int64(), pa.string()), [{"1": "a", "2": None}]),
        ([{"a.b": [None, '\u2028\x00"']}], pa.struct([("a.b", pa.list_(pa.string()))]), [{"a.b": [None, '\u2028\x00"']}]),
    ],
    ids=str,
)
def test_values(values: list[Any], type_: pa.DataType, expected_values: list[Any]) -> None:
    name = 'the "name", with\na line'
    actual = [json.loads(line)[name] for line in lines(pa.table({name: pa.array([*values, None], type_)}))]
    assert actual[: len(expected_values)] == expected_values and actual[-1] is None and len(actual) == len(values) + 1


def test_numbers_keep_their_digits_and_doubles_are_seen_to_be_doubles() -> None:
    exact = decimal.Decimal("-12345678901234567890123456789012345.678")
    table = pa.table({"d": pa.array([5.0, -0.0, 1e300, 0.1]), "e": pa.array([exact, None, None, None])})
    actual = [json.loads(line, parse_float=str, parse_int=str) for line in lines(table)]
    assert [r["d"] for r in actual] == ["5.0", "-0.0", "1e+300", "0.1"]
    assert decimal.Decimal(actual[0]["e"]) == exact


def test_every_type_has_a_text(tmp_path: Path) -> None:
    """As the library gives them to sinks; other readers find as many rows."""
    columns = {f"c{i}": column(type_) for i, type_ in enumerate(ACCEPTED)}
    given = pa.table(columns)
    known = as_schema(given.schema)
    stream = stream_of(given.schema.append(pa.field("at", pa.int64()))).watermark("at", 0).tumbling_window(10)
    late = JsonSink("late")
    driver = Driver(stream.agg(count()))
    driver.send([{"at": 100}])
    rows = driver.send(given.append_column("at", pa.array([1] * given.num_rows))).late
    assert set(known.names) <= set(rows.column_names) and rows.num_rows == given.num_rows
    written = io.BytesIO()
    late.write_table(rows, written)
    (tmp_path / "late.json").write_bytes(written.getvalue())
    with duckdb.connect() as db:
        assert db.execute(f"SELECT count(*) FROM read_json('{tmp_path}/late.json')").fetchall() == [(given.num_rows,)]
    for line, row in zip(written.getvalue().decode().split("\n"), rows.to_pylist(), strict=False):
        assert {name for name, value in json.loads(line).items() if value is not None} == {
            name for name, value in row.items() if value is not None
        }


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (pa.array([253_402_300_800_000_000], pa.timestamp("us")), "before year 1 or after 9999"),
        (pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())), "the key 'a' twice"),
    ],
    ids=["year", "key"],
)
def test_what_has_no_text_stops_the_query(array: pa.Array, what: str) -> None:
    with pytest.raises(OperatorError, match=what):
        lines(pa.table({"x": array}))


def test_the_driver_writes_results_and_late_rows(tmp_path: Path) -> None:
    stream = stream_of("at timestamp, x double").watermark("at", 0).tumbling_window("10 us").agg(count())
    plan = stream.with_late_event_handler(SideOutputLateEventHandler(JsonSink(tmp_path / "late")))
    driver = Driver(plan, sink=JsonSink(tmp_path / "out"))
    for moment in (1, 35, 3):
        driver.send([{"at": dt.datetime(1970, 1, 1, microsecond=moment, tzinfo=dt.timezone.utc), "x": moment}])
    driver.close()
    with duckdb.connect() as db:
        late = db.execute(f"SELECT late.at, late.x, late.reason FROM read_json('{tmp_path}/late/*.json') AS late").fetchall()
        starts = db.execute(f"SELECT epoch_us(window_start) FROM read_json('{tmp_path}/out/*.json') ORDER BY 1").fetchall()
    assert late == [(dt.datetime(1970, 1, 1, microsecond=3, tzinfo=dt.timezone.utc), 3.0, "late")]
    assert starts == [(0,), (30,)]


def test_a_large_file_is_written_in_parts() -> None:
    table = pa.table({"n": pa.array(range(200_001))})
    assert [json.loads(line)["n"] for line in lines(table)] == list(range(200_001))
    assert lines(table.slice(0, 0)) == []
