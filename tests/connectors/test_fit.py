"""Columns of frames and of functions keep their meaning, or are refused with their path."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import SchemaError
from krishiv_py.connectors.fit import LOOKUP, RETURNED, SENT, MisfitError, Rule, fit_table, fitted

UTC = pa.timestamp("us", "UTC")
DAY = dt.date(2026, 1, 1)
INSTANT = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
INNER = pa.struct([("q", pa.string())])
STRUCT = pa.struct([("a", pa.int64()), ("n", INNER)])
GOOD = {"a": 1, "n": {"q": "x"}}


@pytest.mark.parametrize(
    ("given", "type_", "expected_values"),
    [
        ([2.0, None], pa.int64(), [2, None]),
        ([1], pa.float64(), [1.0]),
        ([float("inf"), 1.5], pa.float32(), [float("inf"), 1.5]),
        ([Decimal("2.0")], pa.int64(), [2]),
        ([1.5], pa.decimal128(10, 2), [Decimal("1.50")]),
        ([DAY], pa.timestamp("us"), [dt.datetime(2026, 1, 1)]),
    ],
)
def test_numbers_become_numbers_and_dates_times(given: list[Any], type_: pa.DataType, expected_values: list[Any]) -> None:
    assert fitted(pa.array(given), pa.field("x", type_), RETURNED, "lost").to_pylist() == expected_values


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


_LEAVES: list[tuple[pa.DataType, list[pa.DataType], st.SearchStrategy[Any]]] = [
    (pa.int64(), [pa.int64(), pa.int32(), pa.uint16(), pa.dictionary(pa.int8(), pa.int64())], st.integers(0, 9)),
    (pa.string(), [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], st.sampled_from(["", "ä", "xy"])),
    (
        UTC,
        [UTC, pa.timestamp("s", "Asia/Tokyo"), pa.timestamp("ns", "UTC")],
        st.just(dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)),
    ),
    (pa.date32(), [pa.date32(), pa.date64()], st.just(DAY)),
]


@st.composite
def _laid_out(draw: st.DrawFn, depth: int = 3) -> tuple[pa.DataType, pa.DataType, st.SearchStrategy[Any]]:
    """A type of a stream, another layout of it, and values."""
    kind = draw(st.sampled_from(["leaf", "struct", "list", "map"])) if depth else "leaf"
    if kind == "leaf":
        wanted, layouts, values = draw(st.sampled_from(_LEAVES))
        return wanted, draw(st.sampled_from(layouts)), st.none() | values
    if kind == "struct":
        parts = [draw(_laid_out(depth - 1)) for _ in range(draw(st.integers(1, 3)))]
        names = "abc"[: len(parts)]
        given = [(n, layout) for n, (_, layout, _) in zip(names, parts, strict=True)]
        held = {n: values for n, (_, _, values) in zip(names, parts, strict=True)}
        inner = [(n, wanted) for n, (wanted, _, _) in zip(names, parts, strict=True)]
        return pa.struct(inner), pa.struct(draw(st.permutations(given))), st.none() | st.fixed_dictionaries(held)
    wanted, layout, values = draw(_laid_out(depth - 1))
    if kind == "map":
        pairs = st.lists(st.tuples(st.sampled_from("kq"), values), max_size=2)
        return pa.map_(pa.string(), wanted), pa.map_(pa.large_string(), layout), st.none() | pairs
    size = draw(st.sampled_from([None, 2]))
    lists = {None: [pa.list_(layout), pa.large_list(layout)], 2: [pa.list_(layout, 2)]}[size]
    items = st.lists(values, min_size=size or 0, max_size=size or 3)
    return pa.list_(wanted), draw(st.sampled_from(lists)), st.none() | items


@given(st.data())
def test_values_of_any_depth_are_the_same_in_any_layout(data: st.DataObject) -> None:
    wanted, layout, values = data.draw(_laid_out())
    rows = data.draw(st.lists(values, max_size=6))
    try:
        column = pa.array(rows, layout)
    except pa.ArrowNotImplementedError:  # Arrow makes no dictionary from such values
        return
    begin = data.draw(st.integers(0, len(rows)))
    actual = fitted(column.slice(begin), pa.field("x", wanted), SENT, "lost")
    actual.validate(full=True)
    assert actual.type == wanted
    assert actual.to_pylist() == pa.array(rows[begin:], wanted).to_pylist()


def test_what_lies_under_a_null_is_no_value() -> None:
    inner = pa.array([2**63, 1], pa.uint64())
    struct = pa.StructArray.from_arrays([inner], ["a"], mask=pa.array([True, False]))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), inner, mask=pa.array([True, False]))
    assert fitted(struct, pa.field("x", pa.struct([("a", pa.int64())])), SENT, "lost").to_pylist() == [None, {"a": 1}]
    assert fitted(lists, pa.field("x", pa.list_(pa.int64())), SENT, "lost").to_pylist() == [None, [1]]


@pytest.mark.parametrize(
    ("given", "type_"),
    [
        (pa.array([123_456_789_012]), pa.int32()),
        (pa.array([123_456_789_012], pa.timestamp("ns")), pa.timestamp("us")),
        (pa.array([123_456.789_012]), pa.int64()),
        (pa.array([Decimal("123456.789012")]), pa.decimal128(10, 2)),
        (pa.array([123_456_789_012]), pa.decimal128(10, 2)),
        (pa.array([2**63 + 12_345], pa.uint64()), pa.int64()),
        (pa.array([1.23456789012e300]), pa.float32()),
    ],
    ids=lambda one: str(one.type if isinstance(one, pa.Array) else one),
)
def test_errors_hold_no_values(given: pa.Array, type_: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"lose data|out of range") as raised:
        fitted(given, pa.field("x", type_), RETURNED, "lost")
    assert "12345" not in str(raised.value) and raised.value.__cause__ is None


def test_errors_travel_between_processes() -> None:
    with pytest.raises(MisfitError) as raised:
        fit_table(pa.table({"b": [1]}), pa.schema([("a", pa.int64())]), LOOKUP)
    again = pickle.loads(pickle.dumps(raised.value))
    assert str(again) == str(raised.value) == "no column 'a'; it has: b"
    assert again.lacks


def test_tables_are_rounded_nowhere() -> None:
    field, halves = pa.schema([("x", pa.float32())]), [0.5, None, float("nan"), float("inf")]
    fits, rounded = pa.table({"x": halves}), pa.table({"x": [*halves, 0.1]})
    assert str(fit_table(fits, field, LOOKUP)["x"].to_pylist()) == str(halves)
    assert fit_table(rounded, field, RETURNED)["x"].type == pa.float32()
    with pytest.raises(MisfitError, match="lose data"):
        fit_table(rounded, field, LOOKUP)


def test_a_table_without_rows_is_looked_at_too() -> None:
    schema = pa.schema([("a", pa.int64())])
    for other in (pa.schema([("b", pa.int64())]), pa.schema([("a", pa.string())])):
        for table in (other.empty_table(), pa.Table.from_batches([], other)):
            with pytest.raises(MisfitError, match="'a'"):
                fit_table(table, schema, LOOKUP)
    schema_with_more = pa.schema([("a", pa.int32()), ("z", pa.uuid())])
    assert fit_table(pa.Table.from_batches([], schema_with_more), schema, LOOKUP) == schema.empty_table()
