"""SQL over streams: the plan of the builder, and clear refusals. No Spark needed."""

from __future__ import annotations

from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py import (
    CountByKeyLateEventHandler,
    CountingLateEventHandler,
    MultiSourceWatermarkSpec,
    OrderError,
    StateTtlConfig,
    Stream,
    WatermarkSpec,
    approx_count_distinct,
    avg,
    col,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    func,
    last,
    max,
    min,
    percentile,
    stddev,
    sum,
    variance,
)
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.errors import PlanError
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.planner.fingerprint import fingerprint
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

SCHEMA = "user string, country string, amount bigint, at bigint, also timestamp"
STREAM = stream_of(SCHEMA)
MINUTE = "tumble_start(at, INTERVAL '1 minute')"
ROWS = [
    {"user": "a", "country": "NO", "amount": 5, "at": 1_000, "also": None},
    {"user": "a", "country": "no", "amount": -1, "at": 2_000, "also": None},
    {"user": "b", "country": "SE", "amount": 7, "at": 61_000, "also": None},
]


def context(lag: int | None = 5_000) -> SqlContext:
    made = SqlContext()
    made.register("events", STREAM, event_time="at", lag=lag)
    return made


def planned(text: str, of: SqlContext | None = None) -> ResultStream:
    actual = (of or context()).sql(text)
    assert isinstance(actual, ResultStream)
    return actual


def timed(lag: int = 5_000) -> TimedStream:
    return STREAM.watermark("at", lag)


def run(stream: ResultStream | Stream, rows: list[dict[str, Any]] = ROWS) -> list[dict[str, Any]]:
    driver = Driver(stream)
    out: list[dict[str, Any]] = driver.send(rows).results.to_pylist()
    out += driver.close().results.to_pylist()
    return out


def test_bounds_of_windows_are_called_as_they_are_selected() -> None:
    inner = f"SELECT {MINUTE} AS since, tumble_end(at, INTERVAL '1 minute') AS upto, COUNT(*) AS n FROM events GROUP BY 1"
    again = f"SELECT since, MAX(n) AS most FROM ({inner}) GROUP BY since, upto"
    assert run(planned(again)) == [{"since": 0, "most": 2}, {"since": 60_000, "most": 1}]
    struct = planned("SELECT window, COUNT(*) AS n FROM events GROUP BY window(at, '1 minute')")
    assert [list(row) for row in run(struct)] == [["window", "n"], ["window", "n"]]
    called = planned("SELECT window(at, '1 minute'), COUNT(*) AS n FROM events GROUP BY 1")
    assert run(called) == run(struct)


def test_an_odd_number_of_hexadecimal_digits_is_that_of_spark() -> None:
    rows = context().sql("SELECT X'1' AS one, X'10F' AS more FROM events WHERE amount = 5")
    assert isinstance(rows, Stream)
    with pytest.raises(OrderError, match=r"watermark"):
        rows.tumbling_window(5)  # type: ignore[attr-defined]  # they have no event time
    assert run(rows) == [{"one": b"\x01", "more": b"\x01\x0f"}]


def assert_same_plan(left: ResultStream, right: ResultStream) -> None:
    assert left.explain() == right.explain()
    assert fingerprint(left._spec()) == fingerprint(right._spec())
    assert left.schema == right.schema
    assert run(left) == run(right)


# The builder's plan


@pytest.mark.parametrize(
    ("bounds", "built"),
    [
        ("tumble_{}(at, INTERVAL '1 minute')", timed().key_by("user").tumbling_window("1 minute")),
        ("TUMBLE_{}(at, INTERVAL '1' MINUTE)", timed().key_by("user").tumbling_window(60_000)),
        ("tumble_{}(at, INTERVAL 90 SECONDS)", timed().key_by("user").tumbling_window("90 s")),
        ("tumble_{}(at, INTERVAL '1 minute 30 seconds')", timed().key_by("user").tumbling_window("90 s")),
        ("tumble_{}(at, INTERVAL '1.5' SECOND)", timed().key_by("user").tumbling_window("1500 ms")),
        ("tumble_{}(at, INTERVAL '60000' MS)", timed().key_by("user").tumbling_window(60_000)),
        ("tumble_{}(at, '60000 MS')", timed().key_by("user").tumbling_window(60_000)),
        ("tumble_{}(at, '1 hour')", timed().key_by("user").tumbling_window("1 h")),
        ("hop_{}(at, INTERVAL '10' SECOND, INTERVAL '1' MINUTE)", timed().key_by("user").hopping_window("1 min", "10 s")),
        ("session_{}(at, INTERVAL '5 seconds')", timed().key_by("user").session_window("5 s")),
    ],
)
def test_each_window_is_the_builders(bounds: str, built: Any) -> None:
    start, end = bounds.format("start"), bounds.format("end")
    expected = built.agg(count().alias("n"), sum("amount"))
    items = f"user, {start} AS window_start, {end} AS window_end, COUNT(*) AS n, SUM(amount)"
    for groups in (f"user, {start}, {end}", f"user, {start}", f"{end}, user", "window_start, user", "1, 2", "user, window_end"):
        assert_same_plan(planned(f"SELECT {items} FROM events GROUP BY {groups}"), expected)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("COUNT(*)", count()),
        ("COUNT(1)", count()),
        ("COUNT(user)", count("user")),
        ("COUNT(DISTINCT user)", count_distinct("user")),
        ("count_distinct(user)", count_distinct("user")),
        ("SUM(amount)", sum("amount")),
        ("(SUM(amount * 2 + 1))", sum(col("amount") * 2 + 1)),
        ("AVG(amount)", avg("amount")),
        ("mean(amount)", avg("amount")),
        ("MIN(user)", min("user")),
        ("MAX(amount)", max("amount")),
        ("STDDEV(amount)", stddev("amount")),
        ("STDDEV_SAMP(amount)", stddev("amount")),
        ("std(amount)", stddev("amount")),
        ("VARIANCE(amount)", variance("amount")),
        ("VAR_SAMP(amount)", variance("amount")),
        ("FIRST(user)", first("user")),
        ("LAST_VALUE(user)", last("user")),
        ("APPROX_COUNT_DISTINCT(user)", approx_count_distinct("user")),
        ("COLLECT_LIST(amount)", collect_list("amount")),
        ("COLLECT_SET(amount)", collect_set("amount")),
        ("PERCENTILE(amount, 0.9)", percentile("amount", 0.9)),
        ("MEDIAN(amount)", percentile("amount", 0.5)),
        ("APPROX_PERCENTILE(amount, 0.9)", kv.approx_percentile("amount", 0.9)),
        ("PERCENTILE_APPROX(amount, ARRAY(0.1, 0.9))", kv.approx_percentile("amount", [0.1, 0.9])),
        ("MODE(user)", kv.mode("user")),
        ("COUNT_IF(amount > 0)", kv.count_if("amount > 0")),
        ("BOOL_AND(amount > 0)", kv.bool_and("amount > 0")),
        ("EVERY(amount > 0)", kv.bool_and("amount > 0")),
        ("BOOL_OR(amount > 0)", kv.bool_or("amount > 0")),
        ("BIT_AND(CAST(amount AS int))", kv.bit_and(col("amount").cast("int"))),
        ("BIT_OR(CAST(amount AS int))", kv.bit_or(col("amount").cast("int"))),
        ("BIT_XOR(CAST(amount AS int))", kv.bit_xor(col("amount").cast("int"))),
        ("ANY_VALUE(user)", kv.any_value("user")),
        ("MAX_BY(user, amount)", kv.max_by("user", "amount")),
        ("MIN_BY(user, amount * 2)", kv.min_by("user", col("amount") * 2)),
        ("SUM(amount) FILTER (WHERE amount > 0 OR user IS NULL)", sum("amount").filter("amount > 0 OR user IS NULL")),
        ("COUNT(*) FILTER (WHERE amount < 0)", count().filter(col("amount") < 0)),
    ],
)
def test_each_aggregate_is_the_builders(text: str, call: AggCall) -> None:
    head = f"SELECT {MINUTE}, tumble_end(at, INTERVAL '1 minute')"
    built = timed().tumbling_window("1 minute")
    assert_same_plan(planned(f"{head}, {text} FROM events GROUP BY {MINUTE}"), built.agg(call))
    assert_same_plan(planned(f"{head}, {text} AS x FROM events GROUP BY {MINUTE}"), built.agg(call.alias("x")))


def test_where_comes_after_the_watermark_of_its_table() -> None:
    actual = planned(
        f"SELECT lower(country) AS land, {MINUTE}, tumble_end(at, '1 minute'), MAX(amount) FROM events "
        f"WHERE amount BETWEEN 0 AND 100 GROUP BY land, {MINUTE}"
    )
    built = STREAM.watermark("at", 5_000).filter("amount BETWEEN 0 AND 100").with_column("land", func("lower", col("country")))
    assert_same_plan(actual, built.key_by("land").tumbling_window(60_000).agg(max("amount")))


def test_a_timed_stream_keeps_its_watermark_options_and_handler() -> None:
    handler = CountByKeyLateEventHandler()
    stream = timed(3_000).allowed_lateness(1_000).late_rule("window").with_late_event_handler(handler)
    made = SqlContext()
    made.register("Events", stream)
    actual = planned(
        f"SELECT user, {MINUTE}, tumble_end(at, '1 minute'), COUNT(*) FROM EVENTS WHERE amount > 0 GROUP BY user, {MINUTE}",
        made,
    )
    built = STREAM.watermark("at", 3_000).filter("amount > 0").allowed_lateness(1_000).late_rule("window")
    built = built.with_late_event_handler(handler)
    assert_same_plan(actual, built.key_by("user").tumbling_window(60_000).agg(count()))
    assert actual.late_handler is handler


def test_queries_over_a_plain_stream_count_late_rows_each_for_itself() -> None:
    made = context(lag=0)
    one, two = (planned(f"SELECT COUNT(*) FROM events GROUP BY {MINUTE}", made) for _ in range(2))
    driver = Driver(one)
    driver.send(ROWS)
    driver.send(ROWS[:1])
    assert isinstance(one.late_handler, CountingLateEventHandler) and isinstance(two.late_handler, CountingLateEventHandler)
    assert (one.late_handler.total, two.late_handler.total) == (1, 0)


# Output columns


def test_columns_follow_the_select_list() -> None:
    actual = planned(
        f"SELECT COUNT(*) AS n, tumble_end(at, INTERVAL '1 minute') AS upto, user AS who, {MINUTE} AS since "
        f"FROM events e GROUP BY e.user, {MINUTE}"
    )
    assert actual.schema.names == ["n", "upto", "who", "since"]
    assert run(actual) == [
        {"n": 2, "upto": 60_000, "who": "a", "since": 0},
        {"n": 1, "upto": 120_000, "who": "b", "since": 60_000},
    ]
    assert "columns n, window_end AS upto, user AS who, window_start AS since" in actual.explain()


def test_keys_and_bounds_may_be_left_out_or_come_twice() -> None:
    actual = planned(f"SELECT {MINUTE} AS a, {MINUTE} AS b, SUM(amount) AS total FROM events GROUP BY user, {MINUTE}")
    assert run(actual) == [{"a": 0, "b": 0, "total": 4}, {"a": 60_000, "b": 60_000, "total": 7}]


def test_a_computed_key_may_have_the_name_of_the_column_it_hides() -> None:
    actual = planned(f"SELECT lower(country) AS country, MAX(country) AS top FROM events GROUP BY lower(country), {MINUTE}")
    assert run(actual) == [{"country": "no", "top": "no"}, {"country": "se", "top": "SE"}]


def test_names_are_found_whatever_their_case_and_keep_the_streams_spelling() -> None:
    actual = planned("SELECT USER, SUM(Events.Amount) FROM EVENTS GROUP BY uSER, TUMBLE_END(AT, interval '1' minute)")
    assert actual.schema.names == ["user", "sum_amount"]


def test_changes_and_panes_come_after_the_columns() -> None:
    actual = planned(f"SELECT COUNT(*) AS n, user FROM events GROUP BY user, {MINUTE}").allowed_lateness("1 h")
    driver = Driver(actual.emit("retractions").with_pane())
    driver.send([*ROWS, {**ROWS[0], "at": 70_000}])
    again = driver.send(ROWS[:1]).results
    assert again.schema.names == ["n", "user", "op", "pane_timing", "pane_index"]
    assert [tuple(r.values())[:3] for r in again.to_pylist()] == [(2, "a", "-U"), (3, "a", "+U")]


def test_options_and_restarts_go_on_as_ever() -> None:
    actual = planned(f"SELECT COUNT(*) AS n, user FROM events GROUP BY user, {MINUTE}", context(lag=0))
    driver = Driver(actual.with_state_ttl(StateTtlConfig(ttl=10_000)))
    driver.send(ROWS[:2])
    driver = driver.restarted()
    out = driver.send([{**ROWS[2], "at": 30_000}])
    assert (out.results.num_rows, driver.counters["ttl_dropped"]) == (0, 1)
    assert driver.close().results.to_pylist() == [{"n": 1, "user": "b"}]


@pytest.mark.parametrize(
    ("window", "results"),
    [
        (
            "hop_end(at, INTERVAL '30' SECOND, INTERVAL '1' MINUTE)",
            [(30_000, "a", 4), (60_000, "a", 4), (90_000, "b", 7), (120_000, "b", 7)],
        ),
        ("cumulate_end(at, '30 s', '1 min')", [(30_000, "a", 4), (60_000, "a", 4), (90_000, "b", 7), (120_000, "b", 7)]),
        ("session_end(at, '30 s')", [(32_000, "a", 4), (91_000, "b", 7)]),
    ],
)
def test_columns_of_other_windows(window: str, results: list[tuple[Any, ...]]) -> None:
    actual = planned(f"SELECT {window} AS upto, user AS who, SUM(amount) AS total FROM events GROUP BY user, {window}")
    assert [tuple(r.values()) for r in run(actual)] == results


def test_other_aggregates_over_the_windows_of_a_query_have_the_default_columns() -> None:
    actual = planned(f"SELECT COUNT(*) AS n, user AS who FROM events GROUP BY user, {MINUTE}")
    with pytest.raises(PlanError, match="needs a session"):  # planned, but there is nothing to run it on
        actual.collect_with_aggs([sum("amount")])


# SET watermark.lag (SEMANTICS §2.6)

QUERY = f"SELECT COUNT(*) AS n FROM events GROUP BY {MINUTE}"


def lag_of(stream: ResultStream) -> int:
    spec = stream._stage_node.input.spec
    assert isinstance(spec, WatermarkSpec)
    return spec.lag_us


def test_set_holds_for_the_next_query_of_the_context() -> None:
    made = context(lag=None)
    assert made.sql("SET watermark.lag = INTERVAL '5' SECOND") is None
    assert lag_of(planned(QUERY, made)) == 5_000_000
    with pytest.raises(PlanError, match="no watermark is known"):
        made.sql(QUERY)
    with pytest.raises(PlanError, match="no watermark is known"):
        context(lag=None).sql(QUERY)


def test_set_outweighs_what_is_registered_once() -> None:
    made = context(lag=1_000)
    made.sql("set Watermark.LAG = interval '250' millisecond;")
    assert [lag_of(planned(QUERY, made)) for _ in range(2)] == [250_000, 1_000_000]


def test_a_refused_query_does_not_use_the_lag_up() -> None:
    made = context(lag=None)
    made.sql("SET watermark.lag = INTERVAL '5 seconds'")
    with pytest.raises(PlanError):
        made.sql("SELECT nothing FROM events")
    assert lag_of(planned(QUERY, made)) == 5_000_000


def test_set_gives_every_source_its_lag_and_keeps_the_start() -> None:
    one, two = WatermarkSpec.fixed_lag(1), WatermarkSpec.fixed_lag(2)
    spec = MultiSourceWatermarkSpec.new().source("NO", one).source("SE", two)
    made = SqlContext()
    made.register("events", STREAM.with_watermark(spec, "at", source_column="country"))
    made.register("early", STREAM.with_watermark(WatermarkSpec.fixed_lag(1, initial=0), "at"))
    made.sql("SET watermark.lag = INTERVAL '0' SECOND")
    actual = planned(QUERY, made)._stage_node.input
    assert isinstance(actual.spec, MultiSourceWatermarkSpec) and actual.source_column == "country"
    assert [s.lag_us for _, s in actual.spec.sources] == [0, 0]
    made.sql("SET watermark.lag = INTERVAL '3' SECOND")
    assert planned(QUERY.replace("events", "early"), made)._stage_node.input.spec == WatermarkSpec(3_000_000, 0)


@pytest.mark.parametrize(
    "text",
    [
        "SET watermark.lag",
        "SET watermark.lag = 5",
        "SET watermark.lag = INTERVAL '-1' SECOND",
        "SET watermark.lags = '5 s'",
        "SET a = 1, b = 2",
        "SET watermark.lag = amount",
    ],
)
def test_settings_that_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match="Hint:"):
        context().sql(text)


def test_event_time_may_be_left_out_when_it_is_plain() -> None:
    made = SqlContext()
    made.register("events", STREAM, lag="1 s")
    made.register("events", stream_of("at timestamp"), lag="1 s")  # takes the name over
    assert planned(QUERY, made)._stage_node.input.column == "at"
