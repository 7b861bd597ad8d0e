"""Bad input is refused at the call that was wrong, in four parts; odd but legal input works. No Spark needed."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import WatermarkSpec, col, collect_list, count, count_distinct, max, min, percentile, sum
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.errors import ColumnError, DurationError, ExpressionError, OrderError, PlanError, SchemaError, cut
from krishiv_py.plan.durations import MAX_TIME_MS, MAX_TIME_US
from krishiv_py.testing import Driver, stream_of

SCHEMA = "user string, amount bigint, at bigint, when timestamp"
UTC = dt.timezone.utc


def keyed(schema: str = SCHEMA) -> KeyedStream:
    return stream_of(schema).watermark("at", 5_000).key_by("user")


def per_minute(schema: str = "user string, at bigint") -> ResultStream:
    return keyed(schema).tumbling_window("1 minute").agg(count())


def assert_four_parts(text: str) -> None:
    """What, got, consequence, hint."""
    assert "Hint:" in text, text
    assert ":" in text.partition("Hint:")[0], text


# Columns


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.watermark("att", 0),
        lambda s: s.watermark("at", 0).key_by("usr"),
        lambda s: s.key_by("usr"),
        lambda s: s.select("amont"),
        lambda s: s.select(double=col("amont") * 2),
        lambda s: s.select(double="amont * 2"),
        lambda s: s.filter("amont > 3"),
        lambda s: s.filter(col("amont") > 3),
        lambda s: s.with_column("x", col("amont")),
        lambda s: s.rename(amont="x"),
        lambda s: s.drop("amont"),
        lambda s: s.watermark("at", 0).tumbling_window(1).agg(sum("amont")),
        lambda s: s.watermark("at", 0).tumbling_window(1).agg(count().filter(col("amont") > 0)),
        lambda s: s.watermark("at", 0).tumbling_window(1).agg(sum(col("amont") + col("at"))),
    ],
)
def test_an_unknown_column_is_refused_with_a_suggestion(call: Callable[[Any], Any]) -> None:
    with pytest.raises(ColumnError, match=r"did you mean '(at|user|amount)'") as caught:
        call(stream_of(SCHEMA))
    assert isinstance(caught.value, KeyError)
    assert_four_parts(str(caught.value))


def test_without_a_near_name_the_columns_are_listed() -> None:
    with pytest.raises(ColumnError, match="the columns are: user, amount, at, when"):
        stream_of(SCHEMA).watermark("xyzzy", 0)


@pytest.mark.parametrize("type_", ["string", "int", "double", "date", "boolean", "decimal(18,3)", "array<bigint>", "binary"])
def test_a_time_column_of_the_wrong_type_is_refused(type_: str) -> None:
    with pytest.raises(ColumnError, match="cannot be event time") as caught:
        stream_of(f"id int, at {type_}").watermark("at", 0)
    assert_four_parts(str(caught.value))


@pytest.mark.parametrize("type_", ["timestamp", "timestamp_ntz", "bigint"])
def test_the_three_time_types_are_taken(type_: str) -> None:
    stream = stream_of(f"at {type_}")
    bounds = stream.watermark("at", 0).tumbling_window(1).agg(count()).schema
    assert bounds.field("window_start").type == bounds.field("window_end").type == stream.schema.field("at").type


def test_a_watermark_spec_without_a_column_needs_a_single_timestamp() -> None:
    assert stream_of(SCHEMA).with_watermark(WatermarkSpec.fixed_lag(1))._draft.input.column == "when"
    with pytest.raises(PlanError, match="which column is the event time"):
        stream_of("a timestamp, b timestamp").with_watermark(WatermarkSpec.fixed_lag(1))
    with pytest.raises(PlanError, match="which column is the event time"):
        stream_of("a bigint").with_watermark(WatermarkSpec.fixed_lag(1))


def test_a_nested_key_is_refused() -> None:
    stream = stream_of("at bigint, tags array<string>").watermark("at", 0)
    with pytest.raises(ColumnError, match="cannot be a key"):
        stream.key_by("tags")


def test_a_key_named_twice_or_no_key_is_refused() -> None:
    with pytest.raises(PlanError, match="named twice"):
        stream_of(SCHEMA).watermark("at", 0).key_by("user", "user")
    with pytest.raises(PlanError, match="named twice"):
        stream_of(SCHEMA).watermark("at", 0).key_by("user", col("user"))
    with pytest.raises(PlanError, match="key"):
        stream_of(SCHEMA).watermark("at", 0).key_by(5)  # type: ignore[arg-type]


# Durations

BAD_LENGTHS = [
    0,
    -1,
    1.5,
    math.nan,
    math.inf,
    True,
    None,
    "",
    "soon",
    "5 parsecs",
    "-5 s",
    "0 s",
    dt.timedelta(0),
    dt.timedelta(seconds=-1),
    "0.0000001 s",
    [5],
    10**30,
    "1 s 5",
    "5",
]


@pytest.mark.parametrize("size", BAD_LENGTHS, ids=repr)
@pytest.mark.parametrize("call", ["tumbling", "hopping size", "hopping slide", "sliding size"])
def test_sizes_that_are_none_are_refused(call: str, size: Any) -> None:
    with pytest.raises(DurationError) as caught:
        if call == "tumbling":
            keyed().tumbling_window(size)
        elif call == "hopping size":
            keyed().hopping_window(size, 1_000)
        elif call == "hopping slide":
            keyed().hopping_window(60_000, size)
        else:
            keyed().hopping_window(size, 1_000)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)
    assert "`slide`" in str(caught.value) if call == "hopping slide" else "`size`" in str(caught.value)
    assert_four_parts(str(caught.value))


@pytest.mark.parametrize("lag", [-1, 1.5, math.nan, True, None, "soon"], ids=repr)
def test_lags_and_lateness_that_are_none_are_refused(lag: Any) -> None:
    with pytest.raises(DurationError, match="`lag`"):
        stream_of(SCHEMA).watermark("at", lag)
    with pytest.raises(DurationError, match="`lag`"):
        WatermarkSpec.fixed_lag(lag)
    with pytest.raises(DurationError, match="`lateness`"):
        keyed().allowed_lateness(lag)


@pytest.mark.parametrize("offset", [1.5, True, None, "soon"], ids=repr)
def test_offsets_that_are_none_are_refused(offset: Any) -> None:
    with pytest.raises(DurationError, match="`offset`"):
        keyed().tumbling_window(60_000, offset)


def test_a_slide_longer_than_the_size_is_refused_unless_gaps_are_wanted() -> None:
    with pytest.raises(PlanError, match=re.escape("`slide` (15 min) is longer than `size` (10 min)")) as caught:
        keyed().hopping_window("10 minutes", "15 minutes")
    assert_four_parts(str(caught.value))
    gaps = keyed().hopping_window("10 minutes", "15 minutes", allow_gaps=True).agg(count())
    assert "gaps of 5 min" in gaps.explain()


# Aggregates and names


@pytest.mark.parametrize("aggs", [(), ([],), (("",),), ("count",), (None,), (count,), ([count(), "x"],)])
def test_empty_or_foreign_aggregates_are_refused(aggs: tuple[Any, ...]) -> None:
    with pytest.raises(PlanError) as caught:
        keyed().tumbling_window(1).agg(*aggs)
    assert_four_parts(str(caught.value))


@pytest.mark.parametrize(
    ("aggs", "said"),
    [
        ([count(), count()], "two aggregates have one output name"),
        ([sum("amount").alias("x"), count().alias("x")], "two aggregates have one output name"),
        ([count().alias("user")], "named like a key column"),
        ([count().alias("window_start")], "named like a window column"),
        ([count().alias("window_end")], "named like a window column"),
    ],
)
def test_output_names_that_clash_are_refused(aggs: list[Any], said: str) -> None:
    with pytest.raises(PlanError, match=said) as caught:
        keyed().tumbling_window(1).agg(aggs)
    assert_four_parts(str(caught.value))


def test_names_that_differ_only_in_case_clash_as_in_spark() -> None:
    with pytest.raises(PlanError, match="one output name"):
        keyed().tumbling_window(1).agg(count().alias("n"), sum("amount").alias("N"))
    with pytest.raises(PlanError, match="named like a key column"):
        keyed().tumbling_window(1).agg(count().alias("USER"))


def test_an_aggregate_of_the_wrong_type_is_refused() -> None:
    for wrong in (sum("user"), percentile("user"), sum("when")):
        with pytest.raises(ExpressionError, match="takes numbers"):
            keyed().tumbling_window(1).agg(wrong)
    nested = stream_of("at bigint, tags array<string>").watermark("at", 0).tumbling_window(1)
    for unordered in (min("tags"), max("tags"), count_distinct("tags")):
        with pytest.raises(ExpressionError, match="can be compared"):
            nested.agg(unordered)
    assert nested.agg(collect_list("tags")).schema.field("collect_list_tags").type == pa.list_(pa.list_(pa.string()))


def test_an_aggregate_filter_that_is_no_condition_is_refused() -> None:
    with pytest.raises(ExpressionError):
        keyed().tumbling_window(1).agg(count().filter("amount + 1"))
    with pytest.raises(ExpressionError):
        count().filter(3)  # type: ignore[call-overload]


def test_a_stream_filter_that_is_no_condition_is_refused() -> None:
    with pytest.raises(ExpressionError, match="true or false"):
        stream_of(SCHEMA).filter("amount + 1")


# Order of calls


@pytest.mark.parametrize(
    ("call", "first"),
    [
        (lambda s: s.tumbling_window(1), ".watermark("),
        (lambda s: s.collect_with_aggs([count()]), ".watermark("),
        (lambda s: s.key_by("user").start(None), ".watermark("),
        (lambda s: s.key_by("user").hopping_window(2, 1), ".watermark("),
        (lambda s: s.key_by("user").collect(), ".watermark("),
        (lambda s: s.watermark("at", 0).key_by("user").collect(), "window"),
        (lambda s: s.watermark("at", 0).tumbling_window(1).collect(), ".agg("),
        (lambda s: s.watermark("at", 0).tumbling_window(1).start(None), ".agg("),
    ],
)
def test_a_step_called_too_early_says_what_comes_first(call: Callable[[Any], Any], first: str) -> None:
    with pytest.raises(OrderError, match="too early") as caught:
        call(stream_of(SCHEMA))
    assert first in str(caught.value).partition("Hint: call ")[2]
    assert isinstance(caught.value, TypeError)
    assert_four_parts(str(caught.value))


def test_a_stream_is_keyed_once() -> None:
    with pytest.raises(OrderError, match="keyed already"):
        keyed().key_by("amount")  # type: ignore[attr-defined]


def test_keys_and_watermark_come_in_either_order() -> None:
    one = stream_of(SCHEMA).watermark("at", 5).key_by("user").tumbling_window(9).agg(count())
    other = stream_of(SCHEMA).key_by("user").watermark("at", 5).tumbling_window(9).agg(count())
    assert one.explain() == other.explain()


def test_a_builder_can_be_branched() -> None:
    base = keyed("user string, at bigint")
    short, long = base.tumbling_window(1_000).agg(count()), base.tumbling_window(2_000).agg(count())
    rows = [{"user": "a", "at": 500}, {"user": "a", "at": 1_500}]
    for stream, wanted in ((short, [1, 1]), (long, [2])):
        driver = Driver(stream)
        driver.send(rows)
        assert driver.close().results["count"].to_pylist() == wanted


def test_without_a_session_nothing_can_be_run_on_spark() -> None:
    with pytest.raises(PlanError, match="needs a session"):
        per_minute().collect()
    with pytest.raises(PlanError, match="needs a session"):
        per_minute().start(lambda frame, batch: None)


@pytest.mark.parametrize("step", ["late_rule", "null_keys", "emit"])
def test_switches_without_that_position_are_refused(step: str) -> None:
    with pytest.raises(PlanError, match="has no such setting") as caught:
        getattr(keyed(), step)("sideways")
    assert_four_parts(str(caught.value))


# Schemas


NO_SCHEMAS = ["", "  ", pa.schema([]), 5, None, "at", "at wobble", "at bigint, b", "at: bigint", "at bigint, unique (at)"]


@pytest.mark.parametrize("schema", NO_SCHEMAS, ids=repr)
def test_schemas_that_are_none_are_refused(schema: Any) -> None:
    with pytest.raises(SchemaError) as caught:
        stream_of(schema)
    assert_four_parts(str(caught.value))


def test_two_columns_of_one_name_are_refused_as_spark_ignores_case() -> None:
    with pytest.raises(SchemaError, match="share a name"):
        stream_of("at bigint, AT bigint")
    with pytest.raises(SchemaError, match="share a name"):
        stream_of(SCHEMA).rename(amount="USER")


@pytest.mark.slow
def test_ten_thousand_columns() -> None:
    wide = pa.schema([pa.field("at", pa.int64()), *(pa.field(f"c{i}", pa.int64()) for i in range(10_000))])
    stream = stream_of(wide).with_column("twice", col("c9999") * 2).filter("c5000 = 1").watermark("at", 0).key_by("c7")
    driver = Driver(stream.tumbling_window(10).agg(count(), sum("twice")))
    driver.send([{"at": 1, "c7": 7, "c5000": 1, "c9999": 21}, {"at": 2, "c7": 7, "c5000": 0, "c9999": 5}])
    assert driver.close().results.to_pylist() == [{"c7": 7, "window_start": 0, "window_end": 10, "count": 1, "sum_twice": 42}]
    with pytest.raises(ColumnError, match="there is no column 'c10000'") as caught:
        stream.tumbling_window(10).agg(sum("c10000"))
    assert len(str(caught.value)) < 1_000


def test_a_deeply_nested_schema() -> None:
    type_: pa.DataType = pa.int64()
    for level in range(40):
        type_ = pa.struct([pa.field(f"l{level}", type_)]) if level % 2 else pa.list_(type_)
    value: Any = 7
    for level in range(40):
        value = {f"l{level}": value} if level % 2 else [value]
    stream = stream_of(pa.schema([("at", pa.int64()), ("deep", type_)])).watermark("at", 0)
    driver = Driver(stream.tumbling_window(10).agg(collect_list("deep")))
    driver.send([{"at": 1, "deep": value}, {"at": 2, "deep": None}])
    assert driver.send([{"at": 10, "deep": value}]).results["collect_list_deep"].to_pylist() == [[value]]
    assert driver.send([{"at": 3, "deep": value}]).late["deep"].to_pylist() == [value]


def test_names_that_are_not_ascii_or_no_identifiers() -> None:
    schema = pa.schema([("Zeit µs", pa.int64()), ("naïve`key`", pa.string()), ("数量", pa.int64()), ("a.b", pa.int64())])
    stream = stream_of(schema).filter(col("a.b") > 0).watermark("Zeit µs", 0).key_by("naïve`key`", "数量")
    driver = Driver(stream.tumbling_window(10).agg(count().alias("größe 🎈"), sum("数量"), max("a.b")))
    driver.send([{"Zeit µs": 1, "naïve`key`": "ключ", "数量": 3, "a.b": 1}])
    assert driver.close().results.to_pylist() == [
        {"naïve`key`": "ключ", "数量": 3, "window_start": 0, "window_end": 10, "größe 🎈": 1, "sum_数量": 3, "max_a.b": 1}
    ]


# Batches


NO_ROWS = pa.schema([("user", pa.string()), ("at", pa.int64())]).empty_table()


@pytest.mark.parametrize("empty", [[], NO_ROWS], ids=["list", "table"])
def test_empty_batches_are_legal(empty: Any) -> None:
    driver = Driver(per_minute())
    for _ in range(3):
        out = driver.send(empty)
        assert (out.results.num_rows, out.late.num_rows, driver.watermark) == (0, 0, "unset")
    driver.send([{"user": "a", "at": 1}])
    driver.send(empty)
    assert driver.close().results["count"].to_pylist() == [1]
    assert driver.close().results.num_rows == 0


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"user": "a", "at": 1}, {"user": "a", "at": "soon"}], r"row 1, column 'at': not a bigint \(got: 'soon'\)"),
        ([{"user": 5, "at": 1}], "row 0, column 'user'"),
        ([{"user": "a", "att": 1}], "row 0 has a column that is not in the stream"),
        ([5], "row 0 is not a mapping"),
        (pa.table({"user": ["a"]}), "missing: at"),
        (pa.table({"user": ["a"], "at": [1], "x": [1]}), "unknown: x"),
        (pa.table({"user": ["a"], "at": [1.5]}), "column 'at' has the wrong type"),
        (pa.table({"user": ["a"], "at": pa.array([2**63], pa.uint64())}), "column 'at' does not fit bigint"),
        ("rows", "not a batch"),
        (5, "not a batch"),
        (None, "not a batch"),
    ],
)
def test_batches_that_do_not_fit_name_column_type_and_row(rows: Any, said: str) -> None:
    driver = Driver(per_minute())
    with pytest.raises(SchemaError, match=said) as caught:
        driver.send(rows)
    assert_four_parts(str(caught.value))
    driver.send([{"user": "a", "at": 1}])  # a refused batch left no trace
    assert driver.close().results["count"].to_pylist() == [1]


def test_null_times_and_null_keys() -> None:
    driver = Driver(per_minute())
    out = driver.send([{"user": "a", "at": None}, {"user": None, "at": 1}, {"user": None, "at": 2}, {"user": "a", "at": 3}])
    assert out.late.select(["user", "reason", "watermark", "lateness"]).to_pylist() == [
        {"user": "a", "reason": "null_time", "watermark": None, "lateness": None}
    ]
    assert driver.counters["null_time"] == 1
    rows = driver.close().results.select(["user", "count"]).to_pylist()
    assert sorted(rows, key=str) == [{"user": "a", "count": 1}, {"user": None, "count": 2}]


def test_null_keys_to_the_side_output() -> None:
    stream = stream_of("user string, shop int, at bigint").watermark("at", 0).key_by("user", "shop").null_keys("side_output")
    driver = Driver(stream.tumbling_window("1 minute").agg(count()))
    keys = [(None, 1), ("a", None), ("a", 1)]
    out = driver.send([{"user": user, "shop": shop, "at": 1} for user, shop in keys])
    assert out.late["reason"].to_pylist() == ["null_key", "null_key"]
    assert driver.counters["null_key"] == 2
    assert driver.close().results["count"].to_pylist() == [1]


def test_a_batch_of_nothing_but_null_times_moves_no_watermark() -> None:
    driver = Driver(per_minute())
    assert driver.send([{"user": "a", "at": None}] * 3).late.num_rows == 3
    assert driver.watermark == "unset"


# The edges of time


def test_times_before_1970() -> None:
    driver = Driver(stream_of("when timestamp").watermark("when", 0).tumbling_window("1 hour").agg(count()))
    moon = dt.datetime(1969, 7, 20, 20, 17, 40, tzinfo=UTC)
    eight, nine = moon.replace(minute=0, second=0), moon.replace(hour=21, minute=0, second=0)
    driver.send([{"when": moon}, {"when": nine - dt.timedelta(seconds=1)}])
    assert driver.watermark == "1969-07-20T20:59:59Z"
    assert driver.send([{"when": nine}]).results.to_pylist() == [{"window_start": eight, "window_end": nine, "count": 2}]


@pytest.mark.parametrize(("type_", "edge", "unit"), [("bigint", MAX_TIME_MS, 1), ("timestamp", MAX_TIME_US, 1_000_000)])
def test_times_at_the_edge_of_the_range_and_of_int64(type_: str, edge: int, unit: int) -> None:
    arrow = pa.int64() if type_ == "bigint" else pa.timestamp("us", "UTC")
    inside = [edge, -edge, 0]
    outside = [edge + 1, -edge - 1, 2**63 - 1, -(2**63)]
    driver = Driver(stream_of(f"at {type_}").watermark("at", 0).tumbling_window("1 minute").late_rule("window").agg(count()))
    out = driver.send(pa.table({"at": pa.array(inside + outside, pa.int64()).cast(arrow)}))
    assert out.late["reason"].to_pylist() == ["time_out_of_range"] * 4
    assert out.late["at"].cast(pa.int64()).to_pylist() == outside
    assert driver.watermark_us == edge * (1_000 if type_ == "bigint" else 1)
    counted = out.results["count"].to_pylist() + driver.close().results["count"].to_pylist()
    assert counted == [1, 1, 1]


def test_one_row_far_ahead_closes_no_window_of_its_own_batch() -> None:
    driver = Driver(per_minute(), idle_batches=False)
    out = driver.send([{"user": "a", "at": MAX_TIME_MS}, {"user": "a", "at": 0}])
    assert (out.results.num_rows, out.late.num_rows) == (0, 0)


def test_a_window_as_long_as_the_range() -> None:
    driver = Driver(stream_of("at bigint").watermark("at", 0).tumbling_window("1000 weeks").agg(count()))
    driver.send([{"at": -1}, {"at": 1}])
    assert driver.close().results["count"].to_pylist()[-1] == 1


LONG_PATH = "/data/" + "/".join(["a folder"] * 40) + "/the file.parquet"
PLAIN_PATH = LONG_PATH.replace(" ", "-")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (repr(LONG_PATH), repr(LONG_PATH)),
        (f"No such file: {LONG_PATH!r}, or no right to read it", f"No such file: {LONG_PATH!r}…"),
        (f"No such file: {PLAIN_PATH}, or no right to read it", f"No such file: {PLAIN_PATH}…"),
        (f"cannot read s3:/{PLAIN_PATH}", f"cannot read s3:/{PLAIN_PATH}"),
        (f"{'x' * 60} {PLAIN_PATH}", f"{'x' * 50}…"),
        ("x" * 500, "x" * 50 + "…"),
        (f"'{'words and words, ' * 30}'", f"'{'words and words, ' * 30}"[:50] + "…"),
        ("/" + "x" * 9_000, "/" + "x" * 49 + "…"),
    ],
)
def test_a_path_is_shown_to_its_end(text: str, expected: str) -> None:
    assert cut(text, 50) == expected
