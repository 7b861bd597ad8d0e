"""Queries with several steps: the plan is the one the builder makes, step by step. No Spark needed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pytest

from krishiv_py import SideOutputLateEventHandler, avg, col, count, max, sum, windows
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.connectors.sinks.known import MemorySink
from krishiv_py.errors import PlanError
from krishiv_py.planner.fingerprint import fingerprint
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

A: Final = stream_of("id string, ts bigint, x bigint, s struct<y:string>")
B: Final = stream_of("id string, bt timestamp, y bigint")
SHOPS: Final = pa.table({"id": ["a"], "city": ["Ulm"]})
TUMBLE: Final = "TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '1' MINUTE))"
HOP: Final = "TABLE(HOP(TABLE a, DESCRIPTOR(ts), INTERVAL '20' SECOND, INTERVAL '1' MINUTE, INTERVAL '5' SECOND))"


def context() -> SqlContext:
    made = SqlContext()
    made.register("a", A, event_time="ts", lag="5 s")
    made.register("b", B.watermark("bt", "7 s"))
    made.register("shops", SHOPS)
    return made


def a() -> Any:
    return A.watermark("ts", "5 s")


def b() -> Any:
    return B.rename(id="id_").watermark("bt", "7 s")


PAIRS: Final[list[tuple[str, Callable[[], Any]]]] = [
    ("SELECT * FROM a", lambda: A),
    (
        "SELECT id, x + 1 AS more, s.y FROM a WHERE s.y LIKE 'p%'",
        lambda: A.filter("s.y LIKE 'p%'").select("id", (col("x") + 1).alias("more"), col("s").field("y").alias("y")),
    ),
    (
        f"SELECT id, window_start, COUNT(*) AS n FROM {HOP} GROUP BY id, window_start, window_end HAVING SUM(x) > 3",
        lambda: (
            a()
            .key_by("id")
            .hopping_window("1 min", "20 s", "5 s")
            .agg(count().alias("n"), sum("x"))
            .filter("sum_x > 3")
            .select("id", "window_start", "n")
        ),
    ),
    (
        f"SELECT id, SUM(x) / COUNT(*) + 1 AS mean FROM {TUMBLE} GROUP BY id, window_start, window_end",
        lambda: (
            a()
            .key_by("id")
            .tumbling_window("1 min")
            .agg(sum("x"), count())
            .select("id", (col("sum_x") / col("count") + 1).alias("mean"))
        ),
    ),
    (
        "SELECT id, tumble_end(window_time, INTERVAL '1' HOUR) AS upto, MAX(n) AS peak FROM "
        f"(SELECT id, window_time, COUNT(*) AS n FROM {TUMBLE} GROUP BY id, window_start, window_end, window_time) WHERE n > 1 "
        "GROUP BY id, tumble(window_time, INTERVAL '1' HOUR)",
        lambda: (
            a()
            .key_by("id")
            .tumbling_window("1 min")
            .agg(count().alias("n"))
            .select("id", "window_time", "n")
            .filter("n > 1")
            .key_by("id")
            .tumbling_window("1 h")
            .agg(max("n").alias("peak"))
            .select("id", col("window_end").alias("upto"), "peak")
        ),
    ),
    (
        f"SELECT window_start, window_end, AVG(n) AS mean FROM (SELECT id, window_start, window_end, COUNT(*) AS n FROM {HOP} "
        "GROUP BY id, window_start, window_end) GROUP BY window_start, window_end HAVING AVG(n) > 1",
        lambda: (
            a()
            .key_by("id")
            .hopping_window("1 min", "20 s", "5 s")
            .agg(count().alias("n"))
            .with_column("window_started", "window_start")
            .key_by("window_started")
            .tumbling_window("20 s", "5 s")
            .agg(avg("n").alias("mean"))
            .filter("mean > 1")
            .select(col("window_started").alias("window_start"), "window_end", "mean")
        ),
    ),
    (
        f"SELECT * FROM (SELECT id, x, ROW_NUMBER() OVER (PARTITION BY window_start, window_end, id ORDER BY x DESC) "
        f"AS r FROM {TUMBLE})"
        " WHERE r <= 3",
        lambda: a().key_by("id").tumbling_window("1 min").top_rows(3, "x", rank="r").select("id", "x", "r"),
    ),
    (
        "SELECT id, COUNT(*) OVER (PARTITION BY id ORDER BY ts RANGE BETWEEN INTERVAL '1' MINUTE PRECEDING AND CURRENT ROW "
        "EXCLUDE CURRENT ROW) AS n FROM a",
        lambda: (
            a()
            .key_by("id")
            .lookback_window("1 min", with_row=True, exclude_self=True)
            .agg(count())
            .select("id", col("count").alias("n"))
        ),
    ),
    (
        "SELECT a.id, x, y FROM a JOIN b ON a.id = b.id AND b.bt BETWEEN a.ts - INTERVAL '5' MINUTE AND a.ts + "
        "INTERVAL '1' HOUR",
        lambda: a().interval_join(b(), {"id": "id_"}, lower="-5 min", upper="1 h").select("id", "x", "y"),
    ),
    (
        "SELECT id, x FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.id = a.id AND a.ts <= bt AND bt < a.ts + "
        "INTERVAL '1' HOUR)",
        lambda: a().interval_join(b(), {"id": "id_"}, lower=0, upper="3599999999 us", how="anti").select("id", "x"),
    ),
    (
        "SELECT a.id, x, y, v.bt FROM a JOIN b FOR SYSTEM_TIME AS OF a.ts AS v ON a.id = v.id",
        lambda: a().asof_join(b(), {"id": "id_"}, how="inner").select("id", "x", "y", "bt"),
    ),
    (
        "SELECT l.id, x, y, r.window_end FROM TABLE(TUMBLE(TABLE a, DESCRIPTOR(ts), INTERVAL '1' MINUTE)) l JOIN "
        "TABLE(TUMBLE(TABLE b, DESCRIPTOR(bt), INTERVAL '1' MINUTE)) r ON l.id = r.id AND l.window_start = r.window_start "
        "AND l.window_end = r.window_end",
        lambda: a().window_join(b(), {"id": "id_"}, window=windows.tumbling("1 min")).select("id", "x", "y", "window_end"),
    ),
    (
        "SELECT city, COUNT(*) AS n FROM a LEFT JOIN shops ON a.id = shops.id GROUP BY city, session_window(ts, '1 minute')",
        lambda: (
            A.lookup_join(SHOPS, "id", columns={"id": "id_", "city": "city"})
            .watermark("ts", "5 s")
            .key_by("city")
            .session_window("1 min")
            .agg(count().alias("n"))
            .select("city", "n")
        ),
    ),
]


def run(stream: Any) -> list[dict[str, Any]]:
    driver, rows = (
        Driver(stream),
        [{"id": i, "ts": t, "x": n} for n, (i, t) in enumerate([("a", 0), ("a", 9_000), ("b", 61_000)])],
    )
    joins = "left" in stream.explain() and "right" in stream.explain()
    other = [
        {"id": i, "bt": dt.datetime.fromtimestamp(t, dt.timezone.utc), "y": n} for n, (i, t) in enumerate([("a", 5), ("c", 70)])
    ]
    actual: list[dict[str, Any]] = driver.send({"left": rows, "right": other} if joins else rows).results.to_pylist()
    actual += driver.close().results.to_pylist()
    return actual


@pytest.mark.parametrize(("text", "built"), PAIRS)
def test_a_query_is_the_plan_of_the_builder(text: str, built: Callable[[], Any]) -> None:
    actual, stream = context().sql(text), built()
    expected = stream._as_plan() if isinstance(stream, ResultStream) else stream
    assert actual is not None
    assert fingerprint(actual._spec()) == fingerprint(expected._spec())
    assert actual.schema == expected.schema
    assert run(actual) == run(expected)


def test_deduplication_is_that_of_the_builder() -> None:
    for text in (
        "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY ts) AS rn FROM a) WHERE rn = 1",
        "SELECT DISTINCT id FROM a",
    ):
        made = context()
        assert made.sql("SET deduplication.within = INTERVAL '10' MINUTE") is None
        actual = made.sql(text)
        assert actual is not None
        assert fingerprint(actual._spec()) == fingerprint(a().drop_duplicates("id", within="10 min")._spec())
        assert [r["id"] for r in run(actual)] == ["a", "b"]
        of_all_time = made.sql(text)  # the setting holds for one query
        assert of_all_time is not None
        assert "op" in of_all_time.schema.names


def test_a_result_may_have_the_name_of_a_key_or_a_bound() -> None:
    text = f"SELECT id AS x, SUM(x) AS id, COUNT(*) AS window_start FROM {TUMBLE} GROUP BY id, window_start, window_end"
    for having in ("", " HAVING COUNT(*) > 0"):
        actual = context().sql(text + having)
        assert actual is not None
        assert run(actual)[0] == {"x": "a", "id": 1, "window_start": 2}


def test_using_takes_the_bounds_of_time_from_where() -> None:
    actual = context().sql(
        "SELECT id, x, y FROM a JOIN b USING (id) WHERE bt BETWEEN a.ts AND a.ts + INTERVAL '1' HOUR AND x < 1"
    )
    assert actual is not None
    assert run(actual) == [{"id": "a", "x": 0, "y": 0}]


def test_a_setting_without_effect_is_refused_once() -> None:
    made = context()
    made.sql("SET deduplication.within = INTERVAL '10' MINUTE")
    with pytest.raises(PlanError, match=r"drops no duplicates .*is dropped"):
        made.sql("SELECT id FROM a")
    assert made.sql("SELECT id FROM a") is not None


def test_each_stream_of_a_union_has_its_lag() -> None:
    text = (
        "SELECT id, COUNT(*) AS n FROM (SELECT id, bt FROM b UNION ALL SELECT lower(id), bt FROM b WHERE y > 1) GROUP BY id, {}"
    )
    actual = context().sql(text.format("tumble(bt, INTERVAL '1' MINUTE)"))
    assert isinstance(actual, ResultStream)
    assert [spec.lag_us for _, spec in actual._stage_node.input.spec.sources] == [7_000_000, 7_000_000]  # type: ignore[union-attr]


def test_options_of_a_registered_stream_go_along_and_so_do_later_ones() -> None:
    handler = SideOutputLateEventHandler(MemorySink())
    stream = a().allowed_lateness("1 min").with_late_event_handler(handler)
    made = SqlContext()
    made.register("a", stream.emit("retractions"))
    having = f"SELECT id, COUNT(*) AS n FROM {TUMBLE} GROUP BY id, window_start, window_end HAVING COUNT(*) > 0"
    actual = made.sql(having)
    assert actual is not None and actual.late_handler is handler and actual.schema.names == ["id", "n", "op"]
    made.register("a", stream)
    plain = made.sql(having)
    assert isinstance(plain, ResultStream)
    assert plain.emit("retractions").schema.names == ["id", "n", "op"]
    rows = made.sql("SELECT id FROM a")
    assert rows is not None and rows.late_handler is handler


@pytest.mark.parametrize("begin", ["EXPLAIN ", "explain plan for\n", "-- why\n/* and how */ Explain "])
def test_explain_gives_the_text_of_the_plan(begin: str) -> None:
    session, query = context(), "SELECT id, SUM(x) AS total FROM a GROUP BY id"
    text = session.sql(begin + query)
    planned = session.sql(query)
    assert planned is not None and text == planned.explain()
    assert [line for line in str(text).splitlines() if line.startswith(("takes", "gives"))] == [
        "takes     rows that are added",
        "gives     results by id: +I for a new result, -U and +U for one that changes, -D for one that is gone",
    ]


def test_explain_shows_each_stage_and_uses_no_setting_up() -> None:
    session, query = context(), "SELECT id, COUNT(*) AS n FROM b GROUP BY id, tumble(bt, INTERVAL '1' MINUTE)"
    session.sql("SET watermark.lag = INTERVAL '9' SECOND")
    shown = [session.sql(f"EXPLAIN {query}") for _ in range(2)]
    planned = session.sql(query)
    assert planned is not None and shown == [planned.explain()] * 2 and "- 9 s" in str(shown[0])
    later = session.sql(query)
    assert later is not None and "- 7 s" in later.explain()


@pytest.mark.parametrize(
    "text", ["EXPLAIN", "EXPLAIN SET watermark.lag = INTERVAL '5' SECOND", "EXPLAIN SELECT id FROM a; SELECT 1"]
)
def test_explain_is_of_one_query(text: str) -> None:
    with pytest.raises(PlanError):
        context().sql(text)


def test_a_name_that_begins_like_explain_is_a_name() -> None:
    made = SqlContext()
    made.register("explained", stream_of("explain bigint").watermark("explain", 0))
    assert not isinstance(made.sql("SELECT explain FROM explained"), str)
