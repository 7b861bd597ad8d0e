"""GROUP BY without a window: totals of all rows so far, over streams, changelogs and other totals (SEMANTICS §16.5)."""

from __future__ import annotations

import re
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from krishiv_py import MemorySink, PlanError, SideOutputLateEventHandler, StateTtlConfig, count
from krishiv_py.plan.nodes import stages_of
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests.kernels.changes.reference import counted, folded

EVENTS = stream_of("user string, amount bigint, at bigint")
ROWS = [
    {"user": user, "amount": amount, "at": at}
    for user, amount, at in [("a", 5, 1), ("b", 1, 2), ("a", 2, 3), (None, 4, 4), ("b", None, 5), ("a", 5, 6)]
]


def _context() -> SqlContext:
    context = SqlContext()
    context.register("events", EVENTS, event_time="at", lag=0)
    return context


def _driver(context: SqlContext, query: str, **options: Any) -> Driver:
    plan = context.sql(query)
    assert plan is not None
    return Driver(plan, **options)


def _given(plan: Any, batches: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    driver = Driver(plan)
    return [row for batch in batches for row in driver.send(batch).results.to_pylist()]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    "query",
    [
        "SELECT user, COUNT(*) AS n, SUM(amount)::BIGINT AS total FROM events GROUP BY user",
        "SELECT COUNT(*) AS n, MAX(amount) AS most FROM events",
        "SELECT user, MIN(amount) + 1 AS m FROM events WHERE amount > 1 GROUP BY user",
        "SELECT user, COUNT(*) AS n FROM events GROUP BY user HAVING COUNT(*) > 1",
        "SELECT n, COUNT(*) AS users FROM (SELECT user, COUNT(*) AS n FROM events GROUP BY user) AS t GROUP BY n",
        "SELECT upper(user) AS u, COUNT(DISTINCT amount) AS kinds FROM events GROUP BY upper(user)",
        "SELECT DISTINCT user FROM events",
        "SELECT DISTINCT * FROM events",
        "SELECT DISTINCT e.* FROM events e WHERE amount > 1",
        "SELECT DISTINCT upper(user) AS u, amount > 2 AS much FROM events",
        "SELECT DISTINCT n FROM (SELECT user, COUNT(*) AS n FROM events GROUP BY user) AS t",
        "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY user ORDER BY at) AS r FROM events) AS t WHERE r <= 2",
        "SELECT user, r FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY user ORDER BY at) AS r FROM events) AS t WHERE r = 1",
        "SELECT user, at FROM events QUALIFY ROW_NUMBER() OVER (PARTITION BY upper(user) ORDER BY at DESC) = 1",
        "SELECT * FROM events QUALIFY ROW_NUMBER() OVER (ORDER BY amount DESC NULLS LAST, at DESC) BETWEEN 2 AND 3",
        "SELECT user, n FROM (SELECT user, COUNT(*) AS n FROM events GROUP BY user) AS t "
        "QUALIFY ROW_NUMBER() OVER (ORDER BY n DESC, user NULLS LAST) <= 2",
        "SELECT user, COUNT(*) AS n, MIN(at) AS first FROM events GROUP BY user "
        "QUALIFY ROW_NUMBER() OVER (ORDER BY n DESC, first NULLS LAST) <= 2",
        "SELECT COUNT(*) AS n FROM (SELECT * FROM events QUALIFY ROW_NUMBER() OVER (PARTITION BY user ORDER BY at) <= 1) AS t",
        "WITH t AS (SELECT user, COUNT(*) AS n FROM events GROUP BY user) SELECT MAX(n) AS most FROM t WHERE user IS NOT NULL",
    ],
)
@pytest.mark.parametrize("cut", [1, 2, 6])
def test_folded_results_are_what_duckdb_gives(query: str, cut: int) -> None:
    ours = query.replace("SUM(amount)::BIGINT", "SUM(amount)")
    batches = [ROWS[begin : begin + cut] for begin in range(0, len(ROWS), cut)]
    database = duckdb.connect()
    database.register("events", pa.Table.from_pylist(ROWS))
    wanted = database.sql(re.sub(r"\bat\b", '"at"', query)).arrow().read_all().to_pylist()
    assert folded(_given(_context().sql(ours), batches)) == counted(wanted)


def test_a_table_that_changes_can_be_registered() -> None:
    context = SqlContext()
    people = stream_of("op string, id bigint, city string").from_changelog("log", key="id")
    context.register("people", people)
    context.register("cities", people.key_by("city").agg(count().alias("n")))
    batches = [
        [{"op": "+I", "id": 1, "city": "Ulm"}, {"op": "+I", "id": 2, "city": "Ulm"}],
        [{"op": "+U", "id": 2, "city": "Rom"}],
    ]
    per_city = _given(context.sql("SELECT city, COUNT(*) AS n FROM people GROUP BY city"), batches)
    assert folded(per_city) == counted([{"city": "Ulm", "n": 1}, {"city": "Rom", "n": 1}])
    rows = _given(context.sql("SELECT id FROM people WHERE city = 'Rom'"), batches)
    assert folded(rows) == counted([{"id": 2}])
    sizes = _given(context.sql("SELECT n, COUNT(*) AS cities FROM cities GROUP BY n"), batches)
    assert folded(sizes) == counted([{"n": 1, "cities": 2}])


def test_distinct_rows_of_a_table_say_nothing_of_rows_that_come_again() -> None:
    plan = _context().sql("SELECT DISTINCT user FROM events")
    assert [row["user"] for row in _given(plan, [[row] for row in ROWS])] == ["a", "b", None]


def test_ranks_of_a_table_follow_its_changes() -> None:
    context = _context()
    context.register("people", stream_of("op string, id bigint, city string").from_changelog("log", key="id"))
    newest = context.sql(
        "SELECT city, id FROM people QUALIFY ROW_NUMBER() OVER (PARTITION BY city ORDER BY id DESC NULLS LAST) = 1"
    )
    batches: list[list[dict[str, Any]]] = [
        [{"op": "+I", "id": n, "city": "Ulm"} for n in (1, 2)],
        [{"op": "-D", "id": 2, "city": "Ulm"}, {"op": "+I", "id": 5, "city": "Rom"}],
    ]
    assert folded(_given(newest, batches)) == counted([{"city": "Ulm", "id": 1}, {"city": "Rom", "id": 5}])


def test_windows_over_what_changes_are_refused() -> None:
    context = _context()
    query = "SELECT user, COUNT(*) AS n FROM (SELECT user, MAX(at) AS at FROM events GROUP BY user) AS t GROUP BY user, {}"
    with pytest.raises(PlanError):
        context.sql(query.format("tumble(at, INTERVAL '1' MINUTE)"))


def test_first_and_last_go_by_event_time() -> None:
    plan = _context().sql("SELECT user, LAST(amount) AS last FROM events GROUP BY user")
    given = _given(plan, [[{"user": "a", "amount": 7, "at": 9}], [{"user": "a", "amount": 1, "at": 2}]])
    assert folded(given) == counted([{"user": "a", "last": 7}])


def _paid() -> SqlContext:
    context = SqlContext()
    context.register("orders", stream_of("id bigint, user string, at bigint"), event_time="at", lag=0)
    context.register("paid", stream_of("id bigint, amount bigint, at bigint"), event_time="at", lag=0)
    return context


PAID = "SELECT o.id AS id, user, amount FROM orders o {} paid p ON o.id = p.id"


def test_streams_are_joined_without_a_bound_of_time() -> None:
    driver = _driver(_paid(), PAID.format("LEFT JOIN"))
    orders = [{"id": n, "user": "a", "at": n} for n in (1, 2)]
    given = driver.send({"left": orders, "right": []}).results.to_pylist()
    for amount, at in ((5, 10**9), (7, 3)):  # nothing is late for it
        given += driver.send({"left": [], "right": [{"id": 1, "amount": amount, "at": at}]}).results.to_pylist()
    rows = [{"id": 1, "user": "a", "amount": 5}, {"id": 1, "user": "a", "amount": 7}, {"id": 2, "user": "a", "amount": None}]
    assert folded(given) == counted(rows)


def test_keys_of_a_join_are_forgotten_after_what_set_says() -> None:
    context, clock = _paid(), ManualClock()
    context.sql("SET state.ttl = INTERVAL '1' SECOND")
    driver = _driver(context, PAID.format("JOIN"), clock=clock)
    driver.send({"left": [{"id": 1, "user": "a", "at": 0}], "right": [{"id": 1, "amount": 5, "at": 0}]})
    clock.advance("5 s")  # a join of tables has no event time
    gone = driver.send({"left": [{"id": 2, "user": "a", "at": 5}], "right": []})
    assert [row["op"] for row in gone.results.to_pylist()] == ["-D"]


def test_rows_of_one_side_are_forgotten_after_what_set_says_of_it() -> None:
    context, clock = _paid(), ManualClock()
    context.sql("SET state.ttl.right = INTERVAL '1' SECOND")
    driver = _driver(context, PAID.format("LEFT JOIN"), clock=clock)
    driver.send({"left": [{"id": 1, "user": "a", "at": 0}], "right": [{"id": 1, "amount": 5, "at": 0}]})
    clock.advance("5 s")
    assert [(row["op"], row["amount"]) for row in driver.tick().results.to_pylist()] == [("-D", 5), ("+I", None)]
    for text in ("SET state.ttl.left = INTERVAL '2' HOUR", "SET state.ttl = INTERVAL '1' DAY"):
        context.sql(text)
    shown = str(context.sql("EXPLAIN " + PAID.format("JOIN")))
    assert "ttl=left 2 h, right 1 d (processing time)" in shown
    planned = context.sql(PAID.format("JOIN"))
    assert planned is not None and planned.explain() == shown
    context.sql("SET state.ttl.left = INTERVAL '1' DAY")
    with pytest.raises(PlanError, match=r"state\.ttl\.left was set, and the query has no join of tables"):
        context.sql("SELECT user, COUNT(*) AS n FROM orders GROUP BY user")


def test_keys_of_a_table_are_forgotten_after_what_set_says() -> None:
    context = _paid()
    for text in (
        "SELECT user, COUNT(*) AS n FROM orders GROUP BY user",
        "SELECT DISTINCT user FROM orders",
        "SELECT user, id FROM orders QUALIFY ROW_NUMBER() OVER (PARTITION BY user ORDER BY id NULLS LAST) <= 2",
    ):
        context.sql("SET state.ttl = INTERVAL '1' SECOND")
        driver = _driver(context, text)
        driver.send([{"id": 1, "user": "a", "at": 0}])
        out = driver.send([{"id": 2, "user": "b", "at": 5_000}]).results.to_pylist()
        assert [(row["op"], row["user"]) for row in out] == [("+I", "b"), ("-D", "a")], text


def test_a_time_to_live_without_a_table_is_refused() -> None:
    context = _paid()
    context.sql("SET state.ttl = INTERVAL '1' SECOND")
    with pytest.raises(PlanError, match="has no table that changes"):
        context.sql("SELECT id FROM orders")


@pytest.mark.parametrize("how", ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"])
def test_tables_are_joined_without_a_bound_of_time(how: str) -> None:
    context = _context()
    people = stream_of("id bigint, user string, city string").from_changelog("upsert", key="id")
    context.register("people", people)
    picked = "e.user AS user, amount" + ("" if "SEMI" in how or "ANTI" in how else ", city")
    query = f"SELECT {picked} FROM events e {how} people p ON e.user = p.user"
    plan: Any = context.sql(query)
    driver = Driver(plan)
    names = list(driver.send({"left": [], "right": []}).results.schema.names)
    changes = [
        {"id": 1, "user": "a", "city": "Ulm"},
        {"id": 2, "user": "x", "city": "Rom"},
        {"id": 1, "user": "a", "city": "Bonn"},
    ]
    given = [
        row
        for n, change in enumerate(changes)
        for row in driver.send({"left": ROWS[2 * n : 2 * n + 2], "right": [change]}).results.to_pylist()
    ]
    database = duckdb.connect()
    database.register("events", pa.Table.from_pylist(ROWS))
    database.register("people", pa.Table.from_pylist(changes[1:]))
    plain = query.replace("LEFT SEMI", "SEMI").replace("LEFT ANTI", "ANTI")
    assert folded(given) == counted(database.sql(plain).arrow().read_all().to_pylist())
    assert names[-1] == "op"


def test_a_join_and_totals_of_it() -> None:
    context = _context()
    people = stream_of("id bigint, user string, city string").from_changelog("upsert", key="id")
    context.register("people", people)
    plan: Any = context.sql("SELECT city, SUM(amount) AS total FROM events e JOIN people p ON e.user = p.user GROUP BY city")
    driver = Driver(plan)
    given = driver.send({"left": ROWS, "right": [{"id": 1, "user": "a", "city": "Ulm"}]}).results.to_pylist()
    given += driver.send({"right": [{"id": 1, "user": "a", "city": "Rom"}]}).results.to_pylist()
    assert folded(given) == counted([{"city": "Rom", "total": 12}])


@pytest.mark.parametrize(
    "query",
    [
        "SELECT user, COUNT(*) AS n, LAST(amount) AS newest FROM events GROUP BY user",
        "SELECT user, amount AS newest FROM events QUALIFY ROW_NUMBER() OVER (PARTITION BY user ORDER BY at DESC) = 1",
    ],
)
def test_a_table_needs_no_lag_and_goes_by_event_time(query: str) -> None:
    context = SqlContext()
    context.register("events", EVENTS, event_time="at")
    rows = [{"user": "a", "amount": 7, "at": 9}, {"user": "a", "amount": 1, "at": 2}]
    assert [row["newest"] for row in _given(context.sql(query), [[row] for row in rows]) if row["op"] != "-U"][-1] == 7


@pytest.mark.parametrize(
    "query",
    [
        "SELECT COUNT(*) AS n FROM events",
        "SELECT * FROM events QUALIFY ROW_NUMBER() OVER (ORDER BY at) <= 1",
        "SELECT e.user, id FROM events e JOIN people p ON e.user = p.user",
    ],
)
def test_a_table_keeps_the_options_of_its_stream(query: str) -> None:
    context = SqlContext()
    ttl = StateTtlConfig("1 h", clock="processing")
    handler = SideOutputLateEventHandler(MemorySink())
    context.register("events", EVENTS.watermark("at", 0).with_state_ttl(ttl).with_late_event_handler(handler))
    context.register("people", stream_of("op string, id bigint, user string").from_changelog("log", key="id"))
    plan: Any = context.sql(query)
    assert ("ttl=" in plan.explain()) == ("JOIN" not in query)
    assert handler in [stage.late for stage in stages_of(plan._stage_node)]
