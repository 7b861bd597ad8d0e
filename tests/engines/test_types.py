"""Types at the border: every Arrow type is brought to one form, or refused by the call that names it. No Spark needed."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import (
    approx_count_distinct,
    avg,
    col,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    lit,
    max,
    min,
    percentile,
    stddev,
    sum,
    udaf,
    variance,
)
from krishiv_py.errors import ColumnError, ExpressionError, KrishivError, SchemaError
from krishiv_py.testing import Driver, stream_of
from krishiv_py.types import normal_type
from tests.engines.arrow_types import ACCEPTED, REFUSED, UTC, column, is_key

TYPES = pytest.mark.parametrize("type_", ACCEPTED, ids=str)
TIMES = pa.array([0, 1_000, 2_000, 61_000])


def stream(type_: pa.DataType, *more: tuple[str, pa.DataType]) -> Any:
    return stream_of(pa.schema([("at", pa.int64()), ("x", type_), *more]))


def batch(type_: pa.DataType) -> pa.RecordBatch:
    return pa.record_batch({"at": TIMES, "x": column(type_)})


def plain(values: list[Any]) -> list[Any]:
    """Values as they compare: NaN as a word."""
    return ["NaN" if isinstance(v, float) and v != v else v for v in values]


@TYPES
def test_a_type_has_one_form_inside(type_: pa.DataType) -> None:
    assert stream(type_).schema.field("x").type == normal_type(type_) == ACCEPTED[type_][0]
    assert normal_type(normal_type(type_)) == normal_type(type_)


@TYPES
def test_values_pass_through_whole(type_: pa.DataType) -> None:
    driver = Driver(stream(type_).watermark("at", 0).tumbling_window(60_000).agg(count()))
    driver.send([{"at": 10**9}])
    late = driver.send(batch(type_)).late
    late.validate(full=True)
    wanted = pa.array(ACCEPTED[type_][1], ACCEPTED[type_][0])
    assert late.column("x").type == ACCEPTED[type_][0]
    assert plain(late.column("x").to_pylist()) == plain(wanted.to_pylist())


@TYPES
def test_rows_as_dicts_are_taken_too(type_: pa.DataType) -> None:
    driver = Driver(stream(type_).watermark("at", "1 hour").tumbling_window(60_000).agg(count("x")))
    driver.send([{"at": t, "x": v} for t, v in zip(TIMES.to_pylist(), ACCEPTED[type_][1], strict=True)])
    got = driver.close().results["count_x"].to_pylist()
    assert got[0] == 2 - 2 * pa.types.is_null(type_)


@TYPES
def test_plain_values_are_keys_and_others_are_refused(type_: pa.DataType) -> None:
    timed = stream(type_).watermark("at", "1 hour")
    if not is_key(type_):
        with pytest.raises(ColumnError, match="cannot be a key"):
            timed.key_by("x")
        return
    driver = Driver(timed.key_by("x").tumbling_window(60_000).agg(count()))
    driver.send(batch(type_))
    results = driver.close().results
    assert results.column("x").type == ACCEPTED[type_][0]
    values = pa.array(ACCEPTED[type_][1], ACCEPTED[type_][0]).to_pylist()
    wanted = [0.0 if v == 0 and isinstance(v, float) else v for v in values]
    assert sorted(map(repr, results["x"].to_pylist())) == sorted(map(repr, wanted))  # the fourth is in a window of its own


AGGREGATES = [
    sum,
    min,
    max,
    avg,
    stddev,
    variance,
    first,
    last,
    count_distinct,
    approx_count_distinct,
    collect_list,
    collect_set,
    percentile,
]


@TYPES
@pytest.mark.parametrize("aggregate", AGGREGATES, ids=lambda a: a.__name__)
def test_an_aggregate_takes_a_type_or_refuses_it_at_the_call(type_: pa.DataType, aggregate: Any) -> None:
    windowed = stream(type_).watermark("at", "1 hour").tumbling_window(60_000)
    try:
        plan = windowed.agg(aggregate("x").alias("r"))
    except ExpressionError as refused:
        assert "Hint:" in str(refused)
        number = pa.types.is_integer(normal_type(type_)) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
        assert not number
        return
    driver = Driver(plan)
    driver.send(batch(type_).slice(0, 2))
    driver.send(batch(type_).slice(2))
    results = driver.close().results
    results.validate(full=True)
    assert results.num_rows == 2
    assert results.schema.field("r").type == plan.schema.field("r").type


@pytest.mark.parametrize("type_", REFUSED, ids=str)
def test_what_not_every_engine_can_have_is_refused_where_it_is_named(type_: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"column 'x'.*Hint"):
        stream(type_)
    with pytest.raises(SchemaError, match=r"column 'x'.*Hint"):
        stream_of("at bigint").map_batches(lambda b: b, pa.schema([("at", pa.int64()), ("x", type_)]))
    with pytest.raises(SchemaError, match="Hint"):
        udaf(Longest(), "at", type_)


class Longest:
    """An aggregate of one's own: the largest value."""

    def create(self) -> Any:
        return 0

    def add(self, accumulator: Any, value: Any) -> Any:
        return value if value > accumulator else accumulator

    def merge(self, left: Any, right: Any) -> Any:
        return self.add(left, right)

    def finish(self, accumulator: Any) -> Any:
        return accumulator


def test_an_aggregate_of_ones_own_gives_the_normal_form() -> None:
    plan = stream_of("at bigint").watermark("at", 0).tumbling_window(60_000).agg(udaf(Longest(), "at", pa.float16()).alias("m"))
    driver = Driver(plan)
    driver.send([{"at": 3}, {"at": 5}])
    assert plan.schema.field("m").type == pa.float32()
    assert driver.close().results["m"].to_pylist() == [5.0]


def test_what_is_computed_has_a_normal_form_too() -> None:
    made = stream_of("at bigint, d date, e date").select(
        "at",
        days=col("d") - col("e"),
        half=col("at").cast(pa.float16()),
        none=lit(None),
        tiny=lit(Decimal("0.001")),
        big=lit(Decimal("5E+3")),
        wide=lit("a").cast(pa.large_string()),
    )
    assert [str(f.type) for f in made.schema] == [
        "int64",
        "duration[us]",
        "float",
        "null",
        "decimal128(3, 3)",
        "decimal128(4, 0)",
        "string",
    ]
    keyed = made.watermark("at", 0).key_by("days", "half", "tiny", "big")
    driver = Driver(keyed.tumbling_window(10).agg(max("wide").alias("w")))
    driver.send([{"at": 1, "d": dt.date(2024, 1, 3), "e": dt.date(2024, 1, 1)}])
    assert driver.close().results.to_pylist() == [
        {
            "days": dt.timedelta(days=2),
            "half": 1.0,
            "tiny": Decimal("0.001"),
            "big": Decimal(5_000),
            "window_start": 0,
            "window_end": 10,
            "w": "a",
        }
    ]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Tokyo"])
def test_event_time_has_any_unit_and_zone(unit: str, zone: str | None) -> None:
    type_ = pa.timestamp(unit, zone)
    plan = stream_of(pa.schema([("at", type_)])).watermark("at", 0).tumbling_window(60_000).agg(count())
    driver = Driver(plan)
    when = dt.datetime(2024, 2, 29, 12, 0, 5, tzinfo=UTC)
    driver.send(pa.record_batch({"at": pa.array([when], type_)}))
    start = driver.close().results["window_start"].to_pylist()[0]
    assert start.replace(tzinfo=UTC) == when.replace(second=0)


def test_nanoseconds_that_would_be_lost_are_refused() -> None:
    driver = Driver(stream_of(pa.schema([("at", pa.timestamp("ns"))])).watermark("at", 0).tumbling_window(1).agg(count()))
    with pytest.raises(SchemaError, match=r"'at' does not fit.*lose data"):
        driver.send(pa.record_batch({"at": pa.array([1_001], pa.timestamp("ns"))}))


def test_a_number_beyond_64_signed_bits_is_refused() -> None:
    driver = Driver(stream(pa.uint64()).watermark("at", 0).tumbling_window(1).agg(count()))
    with pytest.raises(SchemaError, match="'x' does not fit bigint"):
        driver.send(pa.record_batch({"at": [1], "x": pa.array([2**63], pa.uint64())}))


def test_nulls_in_a_column_declared_without_are_refused() -> None:
    schema = pa.schema([pa.field("at", pa.int64(), nullable=False)])
    driver = Driver(stream_of(schema).watermark("at", 0).tumbling_window(1).agg(count()))
    batches: list[Any] = [[{"at": None}], [{}], pa.record_batch({"at": pa.array([None], pa.int64())})]
    for rows in batches:
        with pytest.raises(SchemaError, match="'at' holds nulls"):
            driver.send(rows)


def test_decimals_of_other_digits_are_taken_if_nothing_is_lost() -> None:
    driver = Driver(stream(pa.decimal128(10, 2)).watermark("at", 100).tumbling_window(10).agg(sum("x").alias("s")))
    driver.send(pa.record_batch({"at": [1, 2], "x": [Decimal("1.5"), Decimal("20")]}))
    driver.send(pa.record_batch({"at": [1], "x": [4]}))
    with pytest.raises(SchemaError, match="'x' does not fit"):
        driver.send(pa.record_batch({"at": [1], "x": [Decimal("1.555")]}))
    assert driver.close().results["s"].to_pylist() == [Decimal("25.50")]


def test_fields_of_a_struct_are_not_lost() -> None:
    driver = Driver(stream(pa.struct([("a", pa.int64())])).watermark("at", 0).tumbling_window(10).agg(count()))
    with pytest.raises(SchemaError, match="'x' has other fields than the stream"):
        driver.send(pa.record_batch({"at": [1], "x": pa.array([{"b": 1}])}))


def test_a_batch_with_a_column_twice_is_refused() -> None:
    driver = Driver(stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count()))
    with pytest.raises(SchemaError, match="has a column twice"):
        driver.send(pa.RecordBatch.from_arrays([TIMES, TIMES], names=["at", "at"]))


@pytest.mark.parametrize("type_", REFUSED, ids=str)
def test_a_batch_of_such_a_type_is_refused(type_: pa.DataType) -> None:
    driver = Driver(stream(pa.int64()).watermark("at", 0).tumbling_window(10).agg(count()))
    try:
        values = pa.nulls(1, type_)
    except (pa.ArrowException, KeyError):
        pytest.skip("Arrow makes no nulls of it")
    with pytest.raises(KrishivError, match=r"'x'.*Hint"):
        driver.send(pa.RecordBatch.from_arrays([pa.array([1]), values], names=["at", "x"]))


@pytest.mark.parametrize("aggregate", AGGREGATES, ids=lambda a: a.__name__)
def test_look_back_aggregates_take_decimals_with_nulls(aggregate: Any) -> None:
    type_ = pa.decimal128(4, 2)
    driver = Driver(stream(type_).watermark("at", 100).lookback_window(10).agg(aggregate("x").alias("r")))
    driver.send([{"at": 1, "x": Decimal("1.25")}, {"at": 2, "x": None}, {"at": 3, "x": Decimal("-0.50")}])
    assert driver.close().results.num_rows == 3
