"""SQL: where results go, which columns go along, and settings that have no effect. No Spark needed."""

from __future__ import annotations

from typing import Any

import pytest

from krishiv_py import MemorySink, OrderError, PlanError, ResultStream
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of


def test_pane_columns_go_along_where_the_stream_wants_them() -> None:
    made = SqlContext()
    made.register("events", stream_of("who string, at bigint").watermark("at", 0).with_pane())
    inner = "SELECT who, COUNT(*) AS n, window_start, window_end FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(at), "
    inner += "INTERVAL '10' SECOND)) GROUP BY who, window_start, window_end"
    panes = ["pane_timing", "pane_index"]
    for text, names in [
        (f"{inner} HAVING COUNT(*) > 0", ["who", "n", "window_start", "window_end", *panes]),
        (f"SELECT n + 1 AS m FROM ({inner}) WHERE n > 0", ["m", *panes]),
        (f"SELECT * FROM ({inner}) WHERE n > 0", ["who", "n", "window_start", "window_end", *panes]),
        (f"SELECT pane_index, n FROM ({inner})", ["pane_index", "n", "pane_timing"]),
    ]:
        query = made.sql(text)
        assert query is not None
        driver = Driver(query)
        assert driver._plan.outputs[0].schema.names == names
        driver.send([{"who": "a", "at": 1}])
        assert driver.close().results.select(panes).to_pylist() == [{"pane_timing": "final", "pane_index": 0}]
    with pytest.raises(PlanError, match="one name"):
        made.sql(f"SELECT n AS pane_index FROM ({inner})")
    made.register("plain", stream_of("who string, at bigint").watermark("at", 0))
    late = made.sql(f"{inner.replace('events', 'plain')} HAVING COUNT(*) > 0")
    assert isinstance(late, ResultStream)
    with pytest.raises(OrderError, match=r"with_pane\(\) after"):
        late.with_pane()


def test_a_setting_without_effect_is_reported() -> None:
    made = SqlContext()
    made.register("events", stream_of("who string, at bigint"), event_time="at")
    made.sql("SET watermark.lag = INTERVAL '5' SECOND")
    with pytest.raises(PlanError, match=r"watermark\.lag was set, and the query has no watermark"):
        made.sql("SELECT who FROM events")
    assert made.sql("SELECT who FROM events") is not None  # the setting is dropped
    with pytest.raises(PlanError, match="no watermark is known"):
        made.sql("SELECT COUNT(*) FROM events GROUP BY tumble(at, '1 minute')")


def sinking() -> SqlContext:
    made = SqlContext()
    made.register("events", stream_of("who string, n bigint, at bigint"), event_time="at")
    for name in ("Large", "per minute"):
        made.register_sink(name, MemorySink())
    return made


def test_inserts_are_the_outputs_of_one_query() -> None:
    made = sinking()
    outputs = made.sql_outputs("""
        INSERT INTO large SELECT who, n FROM events WHERE n > 5;
        SET watermark.lag = INTERVAL '1' SECOND;
        INSERT INTO `PER minute` WITH big AS (SELECT * FROM events WHERE n > 1)
            SELECT who, SUM(n) AS n FROM big GROUP BY who, tumble(at, '1 minute');
    """)
    assert [output.name for output in outputs] == ["Large", "per minute"]
    driver = Driver(outputs)
    driver.send([{"who": "a", "n": n, "at": n} for n in (1, 2, 7)])
    driver.close()
    actual = [output.sink.table() for output in outputs if isinstance(output.sink, MemorySink)]
    assert [table is not None and table.to_pylist() for table in actual] == [[{"who": "a", "n": 7}], [{"who": "a", "n": 9}]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("INSERT INTO larg SELECT who FROM events", "no sink 'larg'.*nearest is 'large'"),
        ("INSERT INTO large SELECT who FROM events; INSERT INTO LARGE SELECT n FROM events", "two queries go to one sink"),
        ("INSERT OVERWRITE large SELECT who FROM events", "INSERT OVERWRITE"),
        ("INSERT INTO large (a) SELECT who FROM events", "naming columns"),
        ("INSERT INTO large VALUES (1)", "something else than a query"),
        ("INSERT INTO large TABLE events", "something else than a query"),
        ("INSERT INTO db.large SELECT who FROM events", "a schema before the table"),
        ("INSERT INTO large PARTITION (who = 'a') SELECT who FROM events", "PARTITION"),
        ("INSERT INTO large BY NAME SELECT who FROM events", "BY.NAME"),
        (
            "WITH e AS (SELECT * FROM events) INSERT INTO large SELECT who FROM e",
            "^WITH before INSERT INTO .*INSERT INTO name WITH",
        ),
        ("SELECT who FROM events", "a query without a sink"),
        ("SET watermark.lag = INTERVAL '1' SECOND", "no INSERT INTO"),
        ("", "no INSERT INTO"),
        ("INSERT INTO large SELECT who FROM nothing", "no table 'nothing'"),
        ("DELETE FROM large", "DELETE"),
    ],
)
def test_inserts_that_are_refused(text: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        sinking().sql_outputs(text)


def test_a_refused_text_leaves_the_settings_as_they_were() -> None:
    made = sinking()
    made.sql("SET watermark.lag = INTERVAL '1' SECOND")
    counted = "SELECT COUNT(*) FROM events GROUP BY tumble(at, '1 minute')"
    with pytest.raises(PlanError, match="no sink"):
        made.sql_outputs(f"INSERT INTO large {counted}; INSERT INTO other {counted}")
    with pytest.raises(PlanError, match=r"^INSERT INTO .*sql_outputs"):
        made.sql(f"INSERT INTO large {counted}")
    assert made.sql(counted) is not None


@pytest.mark.parametrize(("name", "sink"), [("x", 5), ("", MemorySink()), (5, MemorySink()), ("x", MemorySink)])
def test_what_is_no_sink_is_not_registered(name: Any, sink: Any) -> None:
    with pytest.raises(PlanError):
        SqlContext().register_sink(name, sink)


@pytest.mark.parametrize(
    ("setting", "refused"),
    [
        ("SET watermark.lag = INTERVAL '5' SECOND", "SELECT who FROM events"),
        (
            "SET deduplication.within = INTERVAL '5' SECOND",
            "SELECT COUNT(*) AS n FROM events GROUP BY tumble(at, INTERVAL '1' SECOND)",
        ),
    ],
)
def test_a_setting_that_was_dropped_is_taken_by_no_later_query(setting: str, refused: str) -> None:
    made = SqlContext()
    made.register("events", stream_of("who string, at bigint").watermark("at", 0))
    made.register_sink("big", MemorySink())
    windowed = "SELECT COUNT(*) AS n FROM events GROUP BY tumble(at, INTERVAL '1' SECOND)"
    plain = made.sql(windowed)
    for call, text in ((made.sql, refused), (made.sql_outputs, f"INSERT INTO big {refused}")):
        made.sql(setting)
        with pytest.raises(PlanError, match="is dropped"):
            call(text)
        assert call(text)
        after = made.sql(windowed)
        assert after is not None and plain is not None and after.explain() == plain.explain()
    made.sql("SET watermark.lag = INTERVAL '7' SECOND")  # one before the text stays where one in the text is dropped
    within = f"INSERT INTO big {windowed}; SET watermark.lag = INTERVAL '5' SECOND; INSERT INTO other SELECT who FROM events"
    made.register_sink("other", MemorySink())
    with pytest.raises(PlanError, match="is dropped"):
        made.sql_outputs(within)
    kept = made.sql(windowed)
    assert kept is not None and "7 s" in kept.explain()
