"""Columns of frames and of functions keep their meaning, or are refused with their path."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import attrs
import pyarrow as pa
import pytest

from krishiv_py import SchemaError
from krishiv_py.connectors.fit import RETURNED, SENT, Rule, fitted

UTC = pa.timestamp("us", "UTC")
DAY = dt.date(2026, 1, 1)
INNER = pa.struct([("q", pa.string())])
STRUCT = pa.struct([("a", pa.int64()), ("n", INNER)])
GOOD = {"a": 1, "n": {"q": "x"}}


@pytest.mark.parametrize(
    ("given", "type_", "found"),
    [
        ([2.0, None], pa.int64(), [2, None]),
        ([1], pa.float64(), [1.0]),
        ([float("inf"), 1.5], pa.float32(), [float("inf"), 1.5]),
        ([Decimal("2.0")], pa.int64(), [2]),
        ([1.5], pa.decimal128(10, 2), [Decimal("1.50")]),
        ([DAY], pa.timestamp("us"), [dt.datetime(2026, 1, 1)]),
    ],
)
def test_numbers_become_numbers_and_dates_times(given: list[Any], type_: pa.DataType, found: list[Any]) -> None:
    assert fitted(pa.array(given), pa.field("x", type_), RETURNED, "lost").to_pylist() == found


@pytest.mark.parametrize(
    ("given", "type_"),
    [
        ([1], UTC),
        ([1], pa.date32()),
        ([1], pa.duration("us")),
        ([1], pa.string()),
        ([1], pa.bool_()),
        ([True], pa.int64()),
        (["1"], pa.int64()),
        (["2026-01-01"], UTC),
        ([dt.datetime(2026, 1, 1, 5)], pa.date32()),
        ([dt.timedelta(1)], pa.int64()),
        ([1.5], pa.int64()),
        ([1e300], pa.float32()),
        ([2**53 + 1], pa.float64()),
        ([1.555], pa.decimal128(10, 2)),
    ],
    ids=str,
)
def test_nothing_becomes_another_kind_or_another_number(given: list[Any], type_: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="'x'"):
        fitted(pa.array(given), pa.field("x", type_), RETURNED, "lost")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": 1}, "missing: x.n; unknown: none"),
        (GOOD | {"z": 1}, "missing: none; unknown: x.z"),
        ({"A": 1, "n": {"q": "x"}}, "missing: x.a; unknown: x.A"),
        ({"a": 1, "n": {"q": "x", "Q": "y"}}, "missing: none; unknown: x.n.Q"),
        ({"a": 1, "n": {"p": "x"}}, "missing: x.n.q; unknown: x.n.p"),
    ],
    ids=str,
)
@pytest.mark.parametrize("rule", [SENT, RETURNED], ids=["sent", "returned"])
@pytest.mark.parametrize("nesting", ["struct", "list", "map"])
def test_fields_are_named_as_columns_are(value: dict[str, Any], path: str, rule: Rule, nesting: str) -> None:
    def nested(one: pa.DataType) -> pa.DataType:
        return {"struct": one, "list": pa.list_(one), "map": pa.map_(pa.string(), one)}[nesting]

    held = {"struct": value, "list": [value], "map": [("k", value)]}[nesting]
    column = pa.array([held], nested(pa.array([value]).type))
    field = pa.field("x", nested(STRUCT))
    with pytest.raises(SchemaError, match=path):
        fitted(column, field, rule, "lost")
    if not path.endswith("none"):
        return
    assert fitted(column, field, attrs.evolve(rule, missing="null"), "lost").type == field.type  # a file may lack fields


def test_fields_may_come_in_another_order() -> None:
    column = pa.array([{"n": {"q": "x"}, "a": 1}])
    assert fitted(column, pa.field("x", STRUCT), SENT, "lost").to_pylist() == [GOOD]
