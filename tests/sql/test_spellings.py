"""The same query in the words of Spark SQL and of Flink SQL: literals, intervals, names for the event time. No Spark needed."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import pytest

from krishiv_py.errors import ExpressionError, KrishivError, PlanError
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

MINUTE: Final = 60_000
ROWS: Final[list[dict[str, Any]]] = [
    {"who": "a", "x": 5, "at": 1_000},
    {"who": "it's", "x": None, "at": 31_000},
    {"who": "a", "x": 7, "at": 62_000},
    {"who": "b", "x": 1, "at": 185_000},
]
TWO: Final = "INTERVAL '2' MINUTE"
TWICE: Final = "(SELECT at AS t, *, at AS u FROM events)"


def run(text: str, within: str | None = None) -> list[tuple[Any, ...]]:
    """All results, in order of firing."""
    context = SqlContext()
    context.register("events", stream_of("who string, x bigint, at bigint"), event_time="at", lag=1_000_000)
    if within is not None:
        context.sql(f"SET deduplication.within = INTERVAL '{within}'")
    plan = context.sql(text)
    assert plan is not None
    driver = Driver(plan)
    tables = [driver.send(ROWS).results, driver.close().results]
    return [tuple(r.values()) for table in tables for r in table.to_pylist()]


PER_MINUTE: Final = [(0, 2), (MINUTE, 1), (3 * MINUTE, 1)]


@pytest.mark.parametrize("time", ["t", "at", "u"])
def test_the_event_time_may_be_selected_twice(time: str) -> None:
    """Every name of it is the event time, for each kind of window."""
    counted = f"SELECT tumble_start({time}, '1 min') AS s, COUNT(*) AS n FROM {TWICE} GROUP BY tumble({time}, '1 min')"
    assert run(counted) == PER_MINUTE
    assert run(f"SELECT s, n FROM ({counted})") == PER_MINUTE
    spark = f"SELECT window.start AS s, COUNT(*) AS n FROM {TWICE} GROUP BY window({time}, '1 minute')"
    assert run(spark) == PER_MINUTE
    flink = f"SELECT window_start, COUNT(*) AS n FROM TABLE(TUMBLE({TWICE}, DESCRIPTOR({time}), '1 min'))"
    assert run(f"{flink} GROUP BY window_start, window_end") == PER_MINUTE
    mixed = f"SELECT tumble_start(t, '1 min') AS s, COUNT(*) AS n FROM {TWICE} GROUP BY tumble({time}, '1 min')"
    assert run(mixed) == PER_MINUTE
    back = f"SELECT SUM(x) OVER (ORDER BY {time} RANGE BETWEEN '1 min' PRECEDING AND CURRENT ROW) AS s FROM {TWICE}"
    assert run(back.replace("'1 min'", "INTERVAL '1' MINUTE")) == [(5,), (5,), (7,), (1,)]
    first = f"SELECT x FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY who ORDER BY {time}) AS r FROM {TWICE}) WHERE r = 1"
    assert run(first, within="10 min") == [(5,), (None,), (1,)]


@pytest.mark.parametrize("time", ["t", "u"])
def test_a_join_is_bounded_by_any_name_of_the_event_time(time: str) -> None:
    on = f"a.who = b.who AND b.at BETWEEN a.{time} AND a.at + INTERVAL '1' SECOND"
    text = f"SELECT a.x FROM {TWICE} AS a JOIN events AS b ON {on}"
    context = SqlContext()
    context.register("events", stream_of("who string, x bigint, at bigint"), event_time="at", lag=0)
    plan = context.sql(text)
    assert plan is not None
    assert [r["x"] for r in Driver(plan).send({"left": ROWS, "right": ROWS}).results.to_pylist()] == [5, None, 7, 1]


def test_another_column_of_that_name_is_no_event_time() -> None:
    with pytest.raises(PlanError, match=r"not over the event time .*'at'"):
        run("SELECT COUNT(*) FROM (SELECT x AS t, at FROM (SELECT at AS t, at, x FROM events)) GROUP BY tumble(t, '1 min')")


def test_the_event_time_of_results_may_be_selected_twice() -> None:
    inner = (
        "SELECT window_time AS a, window_time AS b, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(at), '1 min')) "
        "GROUP BY window_start, window_end, window_time"
    )
    for time in ("a", "b"):
        assert run(f"SELECT MAX(n) AS m, MAX(a) AS t FROM ({inner}) GROUP BY tumble({time}, '2 min')") == [
            (2, 2 * MINUTE - 1),
            (1, 4 * MINUTE - 1),
        ]


def test_a_union_keeps_each_column_that_is_the_event_time_in_all_queries() -> None:
    context = SqlContext()
    for name in ("one", "two"):
        context.register(name, stream_of("x bigint, at bigint"), event_time="at", lag=0)
    plan = context.sql(
        "SELECT tumble_start(t, '1 min') AS s, SUM(v) AS v FROM "
        "(SELECT at AS v, at AS t FROM one UNION ALL SELECT x, at FROM two) GROUP BY tumble(t, '1 min')"
    )
    assert plan is not None
    driver = Driver(plan)
    driver.send({"one": [{"x": 5, "at": 1_000}], "two": [{"x": 7, "at": 2_000}]})
    assert driver.close().results.to_pylist() == [{"s": 0, "v": 1_007}]


def test_constants_are_next_to_groups() -> None:
    """They have one value in every window, so they need no group."""
    text = "SELECT 1, 'minute' AS kind, COUNT(*) AS n, 1 + 1 AS two FROM events GROUP BY window(at, '1 minute') HAVING TRUE"
    assert run(text) == [(1, "minute", 2, 2), (1, "minute", 1, 2), (1, "minute", 1, 2)]
    assert run("SELECT NULL AS nothing FROM events GROUP BY window(at, '1 hour')") == [(None,)]
    with pytest.raises(PlanError, match="neither grouped nor aggregated"):
        run("SELECT x + 1, COUNT(*) FROM events GROUP BY window(at, '1 hour')")


def test_a_range_may_end_with_the_row_without_saying_so() -> None:
    text = "SELECT SUM(x) OVER (PARTITION BY who ORDER BY at RANGE {}) FROM events"
    short, long = (text.format(r) for r in (f"{TWO} PRECEDING", f"BETWEEN {TWO} PRECEDING AND CURRENT ROW"))
    assert run(short) == run(long) == [(5,), (None,), (12,), (1,)]


def test_nulls_are_skipped_on_request_too() -> None:
    texts = ["LAST(x) IGNORE NULLS", "LAST(x, true)", "LAST_VALUE(x IGNORE NULLS)", "LAST(x) FILTER (WHERE x < 6) IGNORE NULLS"]
    given = [run(f"SELECT {text} AS v FROM events WHERE at < 60000 GROUP BY window(at, '1 hour')") for text in texts]
    assert given == [[(5,)]] * 4
    assert run("SELECT LAST(x) IGNORE NULLS + 1 AS v FROM events GROUP BY window(at, '1 hour')") == [(2,)]
    with pytest.raises(PlanError, match=r"aggregates skip nulls .*MAX_BY\(x, ts\)"):
        run("SELECT LAST(x) RESPECT NULLS FROM events GROUP BY window(at, '1 hour')")
    assert run("SELECT MAX_BY(x, at) AS v FROM events WHERE at < 60000 GROUP BY window(at, '1 hour')") == [(None,)]
    with pytest.raises(PlanError, match="IGNORE NULLS belongs to an aggregate"):
        run("SELECT lower(who) IGNORE NULLS FROM events GROUP BY window(at, '1 hour')")


def test_percentiles_in_the_words_of_the_standard() -> None:
    text = "SELECT PERCENTILE_CONT({}) WITHIN GROUP (ORDER BY x{}) AS p FROM events GROUP BY window(at, '1 hour')"
    assert run(text.format(0.25, "")) == run(text.format(0.75, " DESC")) == [(3.0,)]
    with pytest.raises(PlanError, match="one constant rank"):
        run(text.format("x", ""))
    with pytest.raises(PlanError, match="not supported"):
        run(text.replace("CONT", "DISC").format(0.25, ""))


@pytest.mark.parametrize(
    ("length", "us"),
    [
        ("INTERVAL '1:30' MINUTE TO SECOND", 90_000_000),
        ("INTERVAL '0 00:01' DAY TO MINUTE", 60_000_000),
        ("INTERVAL '0 1' DAY TO HOUR", 3_600_000_000),
        ("INTERVAL '00:01:00.5' HOUR TO SECOND", 60_500_000),
        ("INTERVAL '1 minute 30 seconds'", 90_000_000),
        ("INTERVAL 1 MINUTE 30 SECONDS", 90_000_000),
        ("'interval 1 minute'", 60_000_000),
        ("'Interval 90 s'", 90_000_000),
    ],
)
def test_lengths_of_windows_in_all_spellings(length: str, us: int) -> None:
    actual = run(
        f"SELECT tumble_start(at, {length}) AS s, tumble_end(at, {length}) AS e FROM events GROUP BY tumble(at, {length})"
    )
    assert actual[0] == (0, us // 1_000)


@pytest.mark.parametrize(
    "length",
    [
        "INTERVAL '1:60' MINUTE TO SECOND",
        "INTERVAL '1-2' YEAR TO MONTH",
        "INTERVAL '1 2 3' DAY TO HOUR",
        "INTERVAL '' DAY TO HOUR",
    ],
)
def test_lengths_that_are_none(length: str) -> None:
    with pytest.raises(KrishivError, match=r"(?s)not a legal duration.*Hint:"):
        run(f"SELECT COUNT(*) FROM events GROUP BY tumble(at, {length})")


def test_two_quotes_are_one() -> None:
    assert run("""SELECT x FROM events WHERE who = 'it''s' OR who LIKE '''%'""") == [(None,)]
    assert run("""SELECT 'a''' AS a, '''' AS b, "c""d" AS c, 'e' 'f' AS d FROM events WHERE x = 5""") == [
        ("a'", "'", 'c"d', "ef")
    ]


@pytest.mark.parametrize("text", ["1.5.2BD", "1.5D.2BD", "x.5", "1 .5", "`x`.5L"])
def test_a_number_behind_a_point_is_none(text: str) -> None:
    """The parser would keep the last part of it."""
    with pytest.raises(PlanError, match=r"this is not SQL .* is not a number"):
        run(f"SELECT {text} FROM events")
    assert run("SELECT x+.5 AS v, .25 AS w FROM events WHERE x = 5 -- x.5 of 1.5.2") == [(5.5, 0.25)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SELECT FROM events", "selects nothing"),
        ("SELECT x, (SELECT MAX(x) FROM events) FROM events", "a query inside of the SELECT list .*JOIN"),
        ("SELECT SUM(x) OVER (ORDER BY at) FROM events GROUP BY window(at, '1 h')", r"OVER with GROUP BY .*SUM\(x\) OVER"),
    ],
)
def test_what_is_refused_is_named(text: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        run(text)


def test_a_cast_of_times_keeps_all_digits_or_is_refused() -> None:
    with pytest.raises(ExpressionError, match=r"does not cut times .*\(3\).*date_trunc\('millisecond', x\)"):
        run("SELECT CAST(timestamp_millis(at) AS TIMESTAMP(3)) FROM events")
    moment = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.timezone.utc)
    assert run("SELECT CAST(timestamp_millis(at) AS TIMESTAMP(6)) AS t FROM events WHERE x = 5") == [(moment,)]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("PERCENTILE(x, 0.5, 2)", "percentile takes at most 2 arguments"),
        ("LAST(x, false)", r"last skips nulls.*MAX_BY\(x, ts\)"),
        ("FIRST_VALUE(x, who)", "first_value skips nulls"),
        ("COLLECT_LIST(x, who)", "collect_list takes at most 1 argument,"),
    ],
)
def test_arguments_of_aggregates_are_not_forgotten(call: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        run(f"SELECT {call} FROM events GROUP BY window(at, '1 h')")


def test_a_query_may_have_many_columns_where_only_its_rows_count() -> None:
    context = SqlContext()
    context.register("events", stream_of("who string, x bigint, at bigint"), event_time="at", lag=0)
    plan = context.sql("SELECT x FROM events e WHERE EXISTS (SELECT 1, 2, 3 FROM events f WHERE f.who = e.who AND f.at = e.at)")
    assert plan is not None and plan.schema.names == ["x"]


@pytest.mark.parametrize("end", ["; -- done", ";\n/* done */", " -- done\n;;", "; -- it's"])
def test_a_comment_may_stand_behind_the_last_statement(end: str) -> None:
    assert run(f"SELECT x FROM events WHERE x = 5{end}") == [(5,)]


@pytest.mark.parametrize("text", ["SET 'watermark.lag' = '5 s'", "SET `watermark.lag` = '5 s'", "SET watermark.lag = '5 s';"])
def test_settings_in_the_words_of_flink(text: str) -> None:
    context = SqlContext()
    context.register("events", stream_of("x bigint, at bigint"), event_time="at", lag=1_000)
    assert context.sql(text) is None
    plan = context.sql("SELECT COUNT(*) AS n FROM events GROUP BY window(at, '1 min')")
    assert plan is not None and "max(event time) - 5 s" in plan.explain()


@pytest.mark.parametrize(
    "arguments",
    [
        "DATA => TABLE events, TIMECOL => DESCRIPTOR(at), SIZE => INTERVAL '1' MINUTE",
        "SIZE => INTERVAL '1' MINUTE, TIMECOL => DESCRIPTOR(at), DATA => TABLE events",
        "TIMECOL => DESCRIPTOR(at), DATA => (SELECT * FROM events WHERE x IN (5, 7, 1) OR x IS NULL), SIZE => '1 min'",
        "TABLE events, DESCRIPTOR(at), SIZE => INTERVAL '1' MINUTE",
    ],
)
def test_arguments_by_name_stand_in_any_order(arguments: str) -> None:
    text = f"SELECT window_start, COUNT(*) AS n FROM TABLE(TUMBLE({arguments})) GROUP BY window_start, window_end"
    assert run(text) == PER_MINUTE


def test_the_table_of_sessions_may_be_named_last() -> None:
    for last in ("DATA => TABLE events PARTITION BY who", "DATA => (SELECT * FROM events) PARTITION BY who"):
        text = f"TABLE(SESSION(GAP => INTERVAL '2' MINUTE, TIMECOL => DESCRIPTOR(at), {last}))"
        actual = run(f"SELECT who, COUNT(*) AS n FROM {text} GROUP BY who, window_start, window_end")
        assert actual == [("it's", 1), ("a", 2), ("b", 1)]


@pytest.mark.parametrize("twice", ["SIZE => '1 min', SIZE => '5 min'", "'1 min', SIZE => '5 min'"])
def test_an_argument_comes_once(twice: str) -> None:
    with pytest.raises(PlanError, match="arguments of TUMBLE cannot be read"):
        run(f"SELECT COUNT(*) FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(at), {twice})) GROUP BY window_start, window_end")


@pytest.mark.parametrize(
    "groups", ["(who, window(at, '1 hour'))", "(who), (window(at, '1 hour')), ()", "((who), ()), window(at, '1 hour')"]
)
def test_brackets_around_groups_mean_nothing(groups: str) -> None:
    assert run(f"SELECT who, COUNT(*) AS n FROM events GROUP BY {groups}") == [("a", 2), ("it's", 1), ("b", 1)]


@pytest.mark.parametrize(
    ("call", "window"),
    [
        ("TUMBLE_ROWTIME(at, '1 min')", "TUMBLE(at, '1 min')"),
        ("window_time(window)", "window(at, '1 minute')"),
        ("window_time(window(at, '1 minute'))", "window(at, '1 minute')"),
    ],
)
def test_the_event_time_of_results_in_the_words_of_flink_and_spark(call: str, window: str) -> None:
    inner = f"SELECT {call} AS t, COUNT(*) AS n FROM events GROUP BY {window}"
    assert run(inner) == [(end - 1, n) for end, n in ((MINUTE, 2), (2 * MINUTE, 1), (4 * MINUTE, 1))]
    assert run(f"SELECT MAX(n) AS m FROM ({inner}) GROUP BY tumble(t, '2 min')") == [(2,), (1,)]


def test_a_rowtime_is_that_of_the_window_of_the_query() -> None:
    hops = "SELECT HOP_ROWTIME(at, '1 min', '2 min') AS t FROM events GROUP BY HOP(at, '1 min', '2 min')"
    assert [t for (t,) in run(hops)] == [59_999, 119_999, 179_999, 239_999, 299_999]
    sessions = "SELECT SESSION_ROWTIME(at, '40 s') AS t FROM events GROUP BY SESSION(at, '40 s')"
    assert [t for (t,) in run(sessions)] == [101_999, 224_999]
    with pytest.raises(PlanError, match="more than one window"):
        run("SELECT TUMBLE_ROWTIME(at, '2 min') AS t FROM events GROUP BY TUMBLE(at, '1 min')")
