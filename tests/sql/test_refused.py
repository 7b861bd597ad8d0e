"""What of SQL is refused over streams, and that each refusal names it. No Spark needed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
import sqlglot

from krishiv_py.errors import ColumnError, DurationError, ExpressionError, KrishivError, PlanError
from krishiv_py.sql import SqlContext
from krishiv_py.testing import stream_of
from tests.sql.test_sql import MINUTE, QUERY, STREAM, context, timed

TUMBLE = "TABLE(TUMBLE(TABLE events, DESCRIPTOR(at), INTERVAL '1' MINUTE))"
RANKED = "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY user ORDER BY at) AS r FROM events)"
BEST = "SELECT * FROM (SELECT user, ROW_NUMBER() OVER (PARTITION BY window_start, window_end"


@pytest.mark.parametrize(
    ("tail", "construct"),
    [
        (" ORDER BY n", "ORDER BY"),
        (" SORT BY n", "SORT BY"),
        (" LIMIT 3", "LIMIT"),
        (" LIMIT 3 OFFSET 2", "LIMIT"),
        (" UNION SELECT 1", "UNION DISTINCT"),
        (" EXCEPT SELECT 1", "EXCEPT"),
        (" QUALIFY n > 1", "QUALIFY without OVER"),
        (" WITH CUBE", "GROUP BY CUBE"),
    ],
)
def test_clauses_after_group_by_are_named(tail: str, construct: str) -> None:
    with pytest.raises(PlanError, match=f"^{construct} is not supported in SQL over streams .*Hint:"):
        context().sql(QUERY + tail)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (QUERY.replace("events", "events JOIN users ON a = b"), "no table 'users'"),
        (QUERY.replace("events", "events, users"), "no table 'users'"),
        (QUERY.replace("events", "(SELECT 1)"), "^the query has no FROM"),
        (QUERY.replace("events", "TABLE(f(x))"), "^a function in FROM"),
        (QUERY.replace("events", "db.events"), "^a schema before the table"),
        (QUERY.replace("events", "events AS e(a, b)"), "^renaming columns in FROM"),
        (QUERY.replace("events", "events TABLESAMPLE (10 ROWS)"), "^TABLESAMPLE"),
        (QUERY.replace("events", "events LATERAL VIEW stack(1, x) t AS y"), "^this function in LATERAL"),
        (QUERY.replace("SELECT", "SELECT DISTINCT"), "^SELECT DISTINCT"),
        (f"WITH x AS (SELECT 1) {QUERY}", "^the query has no FROM"),
        (f"SELECT COUNT(*) FROM events GROUP BY ROLLUP (user), {MINUTE}", "^GROUP BY ROLLUP"),
        ("SELECT COUNT(*) FROM events GROUP BY ALL", "^GROUP BY ALL"),
        (f"INSERT INTO x {QUERY}", "^INSERT"),
        (f"EXPLAIN FORMATTED {QUERY}", "^EXPLAIN FORMATTED"),
        ("WITH x AS (SELECT at FROM events), X AS (SELECT user FROM events) SELECT * FROM x", "^WITH of one name twice"),
        (
            "SELECT e.user FROM events e LEFT JOIN events FOR SYSTEM_TIME AS OF e.at AS v ON e.user = v.user AND v.amount > 3",
            "^this condition of a left join .*CASE WHEN",
        ),
        (QUERY.replace("events", "event"), "no table 'event' .*nearest is 'events'"),
        (QUERY.replace("events", "zzz"), "no table 'zzz' .*the tables are: events"),
        ("SELECT user FROM events HAVING COUNT(*) > 1", "no GROUP BY"),
        ("SELECT COUNT(*)", "no FROM"),
        (f"SELECT {MINUTE}, COUNT(*) FROM events GROUP BY user", "names no window, and the query does"),
        (f"SELECT user, COUNT(*) FROM events GROUP BY {MINUTE}", "'user' is neither grouped nor aggregated"),
        (f"SELECT at + 1, COUNT(*) FROM events GROUP BY {MINUTE}", "neither grouped nor aggregated"),
        (f"SELECT * FROM events GROUP BY {MINUTE}", r"SELECT \*"),
        (f"SELECT COUNT(events.*) FROM events GROUP BY {MINUTE}", r"SELECT \*"),
        ("SELECT COUNT(*) FROM events GROUP BY 9", "no such position"),
        (f"SELECT COUNT(*) FROM events GROUP BY SUM(amount), {MINUTE}", "GROUP BY an aggregate"),
        (f"SELECT COUNT(*) AS n, SUM(amount) AS N FROM events GROUP BY {MINUTE}", "two columns of the result"),
        (f"SELECT COUNT(*), user AS op FROM events GROUP BY user, {MINUTE}", "library's own"),
        (f"SELECT payload.x, COUNT(*) FROM events GROUP BY {MINUTE}", "belongs to no table"),
        (f"SELECT COUNT(*) FROM events WHERE other.amount > 1 GROUP BY {MINUTE}", "belongs to no table .*'events'"),
        (f"SELECT COUNT(*) FROM events e WHERE events.amount > 1 GROUP BY {MINUTE}", "belongs to no table .*'e'"),
        (f"SELECT SUM(amount.x) FROM events GROUP BY {MINUTE}", "amount is not a struct"),
        (f"SELECT SUM(events.amount.x) FROM events GROUP BY {MINUTE}", "amount is not a struct"),
        (f"SELECT SUM(db.events.amount) FROM events GROUP BY {MINUTE}", "belongs to no table"),
        (f"SELECT SUM(amount) / amount FROM events GROUP BY {MINUTE}", "'amount' is neither grouped nor aggregated"),
        (f"SELECT SUM(amount) OVER () FROM events GROUP BY {MINUTE}", "^OVER with GROUP BY .*in a query around this one"),
        (f"SELECT CORR(amount, at) FROM events GROUP BY {MINUTE}", "this aggregate is not supported"),
        (f"SELECT APPROX_COUNT_DISTINCT(user, 0.1) FROM events GROUP BY {MINUTE}", "takes one argument"),
        (f"SELECT COUNT(user, amount) FROM events GROUP BY {MINUTE}", "takes one argument"),
        (f"SELECT COUNT(DISTINCT user), COUNT(DISTINCT *) FROM events GROUP BY {MINUTE}", r"SELECT \* cannot be used"),
        ("SELECT * FROM events QUALIFY amount > 1", "^QUALIFY without OVER"),
        (f"SELECT * FROM {TUMBLE} QUALIFY ROW_NUMBER() OVER (PARTITION BY user) = 1", "more than one window"),
        (
            f"SELECT * FROM {TUMBLE} QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY at) > 1",
            "ranks have no bound",
        ),
        (
            f"SELECT * FROM {TUMBLE} QUALIFY RANK() OVER (PARTITION BY window_start, window_end ORDER BY at) = 1",
            r"^RANK\(\) OVER",
        ),
        (
            f"SELECT user, SUM(amount) FROM {TUMBLE} GROUP BY user, window_start, window_end QUALIFY ROW_NUMBER() OVER w = 1 "
            "WINDOW w AS (PARTITION BY window_start, window_end ORDER BY user)",
            "^an item without a name",
        ),
        (
            f"SELECT user FROM {TUMBLE} GROUP BY user, window_start, window_end "
            "QUALIFY ROW_NUMBER() OVER (ORDER BY SUM(amount)) = 1",
            "^an aggregate in QUALIFY",
        ),
        (
            f"SELECT DISTINCT user FROM {TUMBLE} GROUP BY user, window_start, window_end "
            "QUALIFY COUNT(*) OVER (ORDER BY at) = 1",
            "^DISTINCT with QUALIFY",
        ),
        ("SELECT SUM(amount) OVER w FROM events", "^OVER w, which no WINDOW defines"),
        ("SELECT SUM(amount) OVER w FROM events WINDOW w AS (v), v AS (w)", "^OVER w, which no WINDOW defines"),
        ("SELECT SUM(amount) OVER w FROM events WINDOW w AS (ORDER BY at), W AS (ORDER BY at)", "^a WINDOW of one name"),
        ("SELECT SUM(amount) OVER (w ORDER BY at) FROM events WINDOW w AS (PARTITION BY user)", "^OVER that adds"),
        ("SELECT SUM(amount) OVER v FROM events WINDOW w AS (PARTITION BY user), v AS (w ORDER BY at)", "^a WINDOW that adds"),
        (f"SELECT COUNT() FROM events GROUP BY {MINUTE}", "takes one argument"),
        (f"SELECT MAX_BY(user) FROM events GROUP BY {MINUTE}", "an argument of this aggregate is left out"),
        (f"SELECT PERCENTILE() FROM events GROUP BY {MINUTE}", "an argument of this aggregate is left out"),
        (f"SELECT mean(amount, 1) FROM events GROUP BY {MINUTE}", "takes one argument"),
        (f"SELECT SUM(DISTINCT amount) FROM events GROUP BY {MINUTE}", "DISTINCT is for COUNT only"),
        (f"SELECT PERCENTILE(amount, amount) FROM events GROUP BY {MINUTE}", "one constant rank"),
        (f"SELECT lower(user) FILTER (WHERE TRUE) FROM events GROUP BY {MINUTE}", "FILTER belongs to an aggregate"),
        ("SELECT tumble_start(also, '1 s'), COUNT(*) FROM events GROUP BY 1", "not over the event time .*'at'"),
        ("SELECT tumble_start(at), COUNT(*) FROM events GROUP BY 1", "takes 2 arguments"),
        ("SELECT hop_end(at, '1 s'), COUNT(*) FROM events GROUP BY 1", r"takes 3 arguments .*hop_end\(at, slide, size\)"),
        ("SELECT tumbel_start(at, '1 s'), COUNT(*) FROM events GROUP BY 1", "unknown function .*nearest is tumble_start"),
        (f"SELECT tumble_end(at, '2 minutes'), COUNT(*) FROM events GROUP BY {MINUTE}", "more than one window"),
        (f"SELECT COUNT(*) FROM events GROUP BY session_end(at, '1 s'), {MINUTE}", "more than one window"),
        ("SELECT hop_end(at, '2 s', '1 s'), COUNT(*) FROM events GROUP BY 1", "`slide` .*is longer than"),
        (f"SELECT /*+ COALESCE(1) */ COUNT(*) FROM events GROUP BY {MINUTE}", "^a hint is"),
        (f"SELECT COUNT(*) FROM events GROUP BY GROUPING SETS ((user), ()), {MINUTE}", "^GROUP BY GROUPING SETS"),
        ("SELECT user, user FROM events", "two columns of the result"),
        ("SELECT * EXCEPT (user) FROM events", "with changes"),
        ("SELECT x.* FROM events", "not a table of the query"),
        ("SELECT user FROM events WHERE amount > (SELECT 1)", "a query inside of a condition"),
        ("SELECT user FROM events WHERE user IN (SELECT user FROM events)", "a query inside of a condition .*EXISTS"),
        ("SELECT ROW_NUMBER() OVER (PARTITION BY user ORDER BY at) FROM events", "a rank has no name"),
        ("SELECT ROW_NUMBER() OVER (PARTITION BY user ORDER BY at) AS r FROM events", "ranks have no bound"),
        (f"{RANKED} WHERE r > 2", "ranks have no bound"),
        (f"SELECT * FROM TABLE(TUMBLE({RANKED[14:]}, DESCRIPTOR(at), '1 s')) WHERE r = 1", "ranks have no bound"),
        (f"{RANKED} LATERAL VIEW explode(array(1)) v AS x WHERE r = 1", "ranks have no bound"),
        (f"{RANKED} WHERE r <= 2 OR amount > 3", "ranks have no bound"),
        (f"{RANKED} WHERE r < 1", "bounded below 1"),
        (f"{RANKED.replace('ROW_NUMBER', 'RANK')} WHERE r = 1", "RANK"),
        (f"{RANKED.replace('events', TUMBLE)} WHERE r = 1", "more than one window"),
        (f"{RANKED.replace('events', TUMBLE).replace('BY user', 'BY window_start, window_end')} WHERE r = 1 AND r2 > 1", "r2"),
        (f"{BEST} ORDER BY amount) AS r FROM {TUMBLE}) WHERE r = 1", "nulls come first .*NULLS LAST"),
        (f"{BEST} ORDER BY amount DESC, user) AS r FROM {TUMBLE}) WHERE r = 1", "nulls come first .*user NULLS LAST"),
        (f"{BEST}) AS r FROM {TUMBLE}) WHERE r = 1", "ranks without ORDER BY"),
        (f"{RANKED.replace('BY at', 'BY amount')} WHERE r = 1", "nulls come first .*NULLS LAST"),
        (f"{RANKED.replace('BY at', 'BY at, amount')} WHERE r = 1", "nulls come first .*NULLS LAST"),
        ("SELECT SUM(amount) OVER (PARTITION BY user ORDER BY at) FROM events", "OVER without a range"),
        ("SELECT SUM(amount) OVER (ORDER BY at RANGE UNBOUNDED PRECEDING) FROM events", "no length"),
        ("SELECT SUM(amount) OVER (ORDER BY amount RANGE 5 PRECEDING) FROM events", "order than that of the event time"),
        ("SELECT SUM(amount) OVER (ORDER BY at ROWS 5 PRECEDING) FROM events", "OVER without a range"),
        (f"SELECT * FROM {TUMBLE}", "not grouped"),
        (f"SELECT user FROM {TUMBLE} WHERE window_start > 5", "known only after grouping"),
        (f"SELECT COUNT(*) FROM {TUMBLE} GROUP BY window_end", "one bound of the windows"),
        (
            "SELECT COUNT(*) FROM TABLE(TUMBLE(TABLE events, at, '1 s')) GROUP BY window_start, window_end",
            "TUMBLE cannot be read",
        ),
        ("SELECT COUNT(*) FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(amount), '1 s')) GROUP BY 1", "not over the event time"),
        (
            "SELECT COUNT(*) FROM TABLE(SESSION(TABLE events, DESCRIPTOR(at), '1 s')) GROUP BY user, window_start, window_end",
            "PARTITION BY user",
        ),
        ("SELECT e.user FROM events e JOIN events f ON e.user = f.user AND f.at > e.at", "a bound on one side only"),
        ("SELECT e.user FROM events e JOIN events f ON e.at = f.at", "no key"),
        ("SELECT user FROM events e JOIN events f ON e.user = f.user AND amount > 3", "several tables"),
        ("SELECT e.user FROM events e NATURAL JOIN events f", "^NATURAL JOIN"),
        (
            "SELECT e.user FROM events e JOIN events f ON e.user = f.user AND e.at = f.at JOIN events g ON e.user = g.user",
            "no interval of time",
        ),
        ("SELECT user FROM events UNION ALL SELECT user, at FROM events", "other columns"),
        (f"SELECT user FROM events UNION ALL SELECT user FROM {TUMBLE} GROUP BY user, window_start, window_end", "as they are"),
        (f"SELECT user, COUNT(*) FROM (SELECT user FROM {TUMBLE}) GROUP BY user", "without the bounds of its windows"),
        (f"SELECT COUNT(*) FROM {TUMBLE} GROUP BY tumble(at, '2 minutes')", "more than one window"),
        (f"SELECT e.user FROM {TUMBLE} e JOIN events f ON e.user = f.user AND e.at = f.at", "joined by something else"),
        ("SELEC 1", "this is not SQL"),
        ("", "one statement"),
        ("SELECT 1; SELECT 2", "one statement"),
    ],
)
def test_what_is_refused_says_what_and_why(text: str, says: str) -> None:
    with pytest.raises(PlanError, match=says) as caught:
        context().sql(text)
    assert "Hint:" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"SELECT usr, COUNT(*) FROM events GROUP BY {MINUTE}", ColumnError),
        (f"SELECT SUM(amont) FROM events GROUP BY {MINUTE}", ColumnError),
        (f"SELECT COUNT(*) FROM events WHERE amont > 1 GROUP BY {MINUTE}", ColumnError),
        (f"SELECT COUNT(*) FROM events GROUP BY usr, {MINUTE}", ColumnError),
        ("SELECT tumble_start(att, '1 s'), COUNT(*) FROM events GROUP BY 1", ColumnError),
        (f"SELECT SUM(user) FROM events GROUP BY {MINUTE}", ExpressionError),
        (f"SELECT SUM(SUM(amount)) FROM events GROUP BY {MINUTE}", ExpressionError),
        (f"SELECT COUNT(*) FROM events WHERE COUNT(*) > 1 GROUP BY {MINUTE}", ExpressionError),
        (f"SELECT COUNT(*) FROM events WHERE amount GROUP BY {MINUTE}", ExpressionError),
        (f"SELECT PERCENTILE(amount, 1e) FROM events GROUP BY {MINUTE}", ExpressionError),
        (f"SELECT APPROX_PERCENTILE(amount, ARRAY(0.5, .1.0)) FROM events GROUP BY {MINUTE}", ExpressionError),
        (f"SELECT foo(user), COUNT(*) FROM events GROUP BY {MINUTE}", ExpressionError),
        ("SELECT tumble_start(at, INTERVAL '1' M), COUNT(*) FROM events GROUP BY 1", DurationError),
        ("SELECT tumble_start(at, INTERVAL '1M'), COUNT(*) FROM events GROUP BY 1", DurationError),
        ("SELECT tumble_start(at, '1 M'), COUNT(*) FROM events GROUP BY 1", DurationError),
        ("SET watermark.lag = INTERVAL 5 M", DurationError),
        ("SELECT tumble_start(at, INTERVAL '0' MINUTE), COUNT(*) FROM events GROUP BY 1", DurationError),
        ("SELECT tumble_start(at, -INTERVAL '1' MINUTE), COUNT(*) FROM events GROUP BY 1", DurationError),
        ("SELECT tumble_start(at, INTERVAL '1:90' MINUTE TO SECOND), COUNT(*) FROM events GROUP BY 1", DurationError),
        ("SELECT tumble_start(at, 60000), COUNT(*) FROM events GROUP BY 1", DurationError),
        ("SELECT tumble_start(at, amount), COUNT(*) FROM events GROUP BY 1", DurationError),
    ],
)
def test_names_types_and_lengths_have_errors_of_their_own(text: str, kind: type[PlanError]) -> None:
    with pytest.raises(kind, match="Hint:"):
        context().sql(text)


@pytest.mark.parametrize(
    "register",
    [
        lambda c: c.register("", STREAM, event_time="at"),
        lambda c: c.register(3, STREAM, event_time="at"),
        lambda c: c.register("t", "events", event_time="at"),
        lambda c: c.register("t", timed().key_by("user")),
        lambda c: c.register("t", STREAM, event_time="att"),
        lambda c: c.register("t", STREAM, event_time="user"),
        lambda c: c.register("t", stream_of("at bigint")),
        lambda c: c.register("t", STREAM, event_time="at", lag=-1),
        lambda c: c.register("t", timed(), lag=1),
        lambda c: c.register("t", timed(), event_time="also"),
        lambda c: c.sql(3),
        lambda c: c.sql("SELECT `\0bound`('x') FROM t"),
        lambda c: c.register("t", lambda: 1 / 0),
        lambda c: c.register("t", print),
        lambda c: c.register("t", pa.table({"a": [1]}), lag=5),
        lambda c: c.register("", pa.table({"a": [1]})),
    ],
)
def test_what_cannot_be_registered_is_refused_there(register: Any) -> None:
    with pytest.raises(PlanError, match="Hint:"):
        register(SqlContext())


@pytest.mark.parametrize(
    "text",
    [
        "SET x y z",
        "SET a = b c d",
        "SHOW TABLES IN x LIKE y",
        "ALTER TABLE t FROB x",
        "CREATE TABLE t (a b c d",
        "EXPLAIN SELECT 1",
        "CALL f(1)",
        "DESCRIBE x y z w",
        QUERY + " FETCH 3",
        "GRANT a TO b",
    ],
)
def test_the_parser_says_nothing_next_to_the_error(
    text: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: context().sql(text),
        lambda: stream_of("at bigint").filter(text),
        lambda: stream_of(text),
    )
    with caplog.at_level(logging.DEBUG, "sqlglot"):
        for call in calls:
            with pytest.raises(KrishivError):
                call()
        assert caplog.records == []
        assert capfd.readouterr() == ("", "")
        sqlglot.parse("SHOW TABLES IN x LIKE y", dialect="spark")  # whoever uses it himself hears it
        assert [r.name for r in caplog.records] == ["sqlglot"]
