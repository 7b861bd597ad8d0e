"""Queries over random rows: what the plan gives is what DuckDB says of the same rows, however they are cut into batches."""

from __future__ import annotations

from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from krishiv_py.errors import PlanError
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

SCHEMA: Final = pa.schema([("who", pa.string()), ("amount", pa.int64()), ("ts", pa.int64()), ("nr", pa.int64())])
DDL: Final = "who string, amount bigint, ts bigint, nr bigint"
SHOPS: Final = pa.table(
    {"who": ["a", "a", None], "since": [0, 200_000, 0], "until": [200_000, None, None], "shop": ["x", "y", "z"]}
)
row = st.fixed_dictionaries(
    {"who": st.sampled_from(["a", "b", None]), "amount": st.none() | st.integers(-5, 20), "ts": st.integers(0, 400_000)}
)
rows = st.lists(row, max_size=40).map(lambda found: [{**r, "nr": n} for n, r in enumerate(found)])
cuts = st.integers(1, 15)
few = settings(max_examples=max(1, settings().max_examples // 3))  # there are many queries, and a database for each example

START: Final = "ts - ts % 60000"
TUMBLE: Final = "TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' MINUTE))"
HOP: Final = "TABLE(HOP(TABLE events, DESCRIPTOR(ts), INTERVAL '30' SECOND, INTERVAL '1' MINUTE))"
HOPPED: Final = (
    "(SELECT *, ts - ts % 30000 - 30000 * k AS window_start, ts - ts % 30000 - 30000 * k + 60000 AS window_end "
    "FROM events, (VALUES (0), (1)) AS ks(k))"
)
TUMBLED: Final = f"(SELECT *, {START} AS window_start, {START} + 60000 AS window_end FROM events)"


def answer(text: str, **tables: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What DuckDB says, in the order of repr."""
    with duckdb.connect() as db:
        db.register("shops", SHOPS)
        for name, given_rows in tables.items():
            db.register(name, pa.Table.from_pylist(given_rows, SCHEMA))
        return sorted(db.execute(text).fetchall(), key=repr)


def planned(text: str) -> Any:
    made = SqlContext()
    for name in ("events", "others"):
        made.register(name, stream_of(DDL).watermark("ts", 400_000))
    made.register("shops", SHOPS)
    return made.sql(text)


def run(plan: Any, cut: int, *sides: list[dict[str, Any]], names: tuple[str, str] = ("left", "right")) -> list[tuple[Any, ...]]:
    driver = Driver(plan)
    actual: list[dict[str, Any]] = []
    for i in range(0, max(map(len, sides)), cut):
        parts = [side[i : i + cut] for side in sides]
        actual += driver.send(parts[0] if len(parts) == 1 else dict(zip(names, parts, strict=True))).results.to_pylist()
    actual += driver.close().results.to_pylist()
    return sorted((tuple(r.values()) for r in actual), key=repr)


PAIRS: Final = [
    (  # Nexmark's q5: the hottest of every window, by the counts and their maximum
        "SELECT c.who AS who, c.n AS n, c.window_start AS since FROM "
        "(SELECT who, COUNT(*) AS n, window_start, window_end FROM {hop} GROUP BY who, window_start, window_end) AS c "
        "JOIN (SELECT MAX(n) AS most, window_start, window_end FROM "
        "(SELECT who, COUNT(*) AS n, window_start, window_end FROM {hop} GROUP BY who, window_start, window_end) "
        "GROUP BY window_start, window_end) AS m "
        "ON c.window_start = m.window_start AND c.window_end = m.window_end AND c.n >= m.most",
        "WITH c AS (SELECT who, COUNT(*) AS n, window_start FROM {hopped} GROUP BY ALL) "
        "SELECT who, n, window_start FROM c JOIN (SELECT MAX(n) AS most, window_start FROM c GROUP BY ALL) m "
        "USING (window_start) WHERE n >= most",
    ),
    (  # q7: rows next to the largest of their minute
        "SELECT e.who AS who, e.nr AS nr, e.amount AS amount FROM events e JOIN "
        "(SELECT MAX(amount) AS most, window_time AS t FROM {tumble} GROUP BY window_start, window_end, window_time) AS m "
        "ON e.amount = m.most AND m.t BETWEEN e.ts AND e.ts + INTERVAL '59.999' SECOND "
        "WHERE e.ts - e.ts % 60000 = m.t - m.t % 60000",
        "SELECT who, nr, amount FROM {tumbled} AS e WHERE amount = "
        "(SELECT MAX(amount) FROM {tumbled} AS m WHERE m.window_start = e.window_start)",
    ),
    (
        "SELECT c.who AS who, c.n AS n, d.total AS total FROM "
        "(SELECT who, COUNT(*) AS n, window_end FROM {tumble} GROUP BY who, window_start, window_end) AS c LEFT JOIN "
        "(SELECT who, SUM(amount) AS total, window_end FROM {tumble} WHERE amount > 3 GROUP BY who, window_start, window_end) "
        "AS d ON c.who = d.who AND c.window_end = d.window_end",
        "SELECT c.who, n, total FROM (SELECT who, COUNT(*) AS n, window_end FROM {tumbled} GROUP BY ALL) AS c LEFT JOIN "
        "(SELECT who, SUM(amount) AS total, window_end FROM {tumbled} WHERE amount > 3 GROUP BY ALL) AS d "
        "ON c.who = d.who AND c.window_end = d.window_end",
    ),
    (
        "SELECT who, window_start, COUNT(*) AS n, SUM(amount) / COUNT(*) AS mean FROM {tumble} "
        "GROUP BY who, window_start, window_end HAVING COUNT(*) > 1",
        "SELECT who, window_start, COUNT(*), SUM(amount) / COUNT(*) FROM {tumbled} GROUP BY ALL HAVING COUNT(*) > 1",
    ),
    (
        "SELECT who, window_end AS upto, MAX(amount) - MIN(amount) AS spread FROM {hop} WHERE amount > 0 "
        "GROUP BY window_start, window_end, who",
        "SELECT who, window_end, MAX(amount) - MIN(amount) FROM {hopped} WHERE amount > 0 GROUP BY window_end, who",
    ),
    (
        "SELECT window_start, window_end, MAX(n) AS peak, SUM(n) AS total FROM (SELECT who, window_start, window_end, "
        "COUNT(*) AS n FROM {hop} GROUP BY who, window_start, window_end) WHERE n > 1 GROUP BY window_start, window_end",
        "SELECT window_start, window_end, MAX(n), SUM(n) FROM (SELECT who, window_start, window_end, "
        "COUNT(*) AS n FROM {hopped} GROUP BY ALL) WHERE n > 1 GROUP BY ALL",
    ),
    (
        "WITH per_minute AS (SELECT who, window_time AS t, SUM(amount) AS total FROM {tumble} "
        "GROUP BY who, window_start, window_end, window_time) "
        "SELECT tumble_start(t, INTERVAL '5' MINUTE) AS since, who, MAX(total) AS top FROM per_minute WHERE total IS NOT NULL "
        "GROUP BY who, TUMBLE(t, INTERVAL '5' MINUTE) HAVING MAX(total) > 3",
        "SELECT window_start - window_start % 300000 AS since, who, MAX(total) AS top FROM (SELECT who, window_start, "
        "SUM(amount) AS total FROM {tumbled} GROUP BY ALL) WHERE total IS NOT NULL GROUP BY ALL HAVING MAX(total) > 3",
    ),
    (
        "SELECT DISTINCT window_start, window_end, who FROM {tumble} WHERE amount IS NOT NULL",
        "SELECT DISTINCT window_start, window_end, who FROM {tumbled} WHERE amount IS NOT NULL",
    ),
    (
        "SELECT COUNT(DISTINCT who) AS users, window.start AS since FROM events "
        "GROUP BY window(ts, '1 minute', '1 minute', '10 seconds')",
        "SELECT COUNT(DISTINCT who), ts - (ts + 50000) % 60000 AS since FROM events GROUP BY since",
    ),
    (
        "SELECT upper(who) AS name, amount * 2 AS twice, CASE WHEN amount > 9 THEN 'big' WHEN amount > 4 THEN 'middle' END "
        "AS size FROM (SELECT * FROM events WHERE who LIKE 'a%' OR amount IS NULL)",
        "SELECT upper(who), amount * 2, CASE WHEN amount > 9 THEN 'big' WHEN amount > 4 THEN 'middle' END FROM events "
        "WHERE who LIKE 'a%' OR amount IS NULL",
    ),
    (
        "SELECT who, amount, nr, place FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end "
        "ORDER BY amount DESC, who NULLS LAST, amount, nr + 1 DESC) AS place FROM {hop}) WHERE place <= 3",
        "SELECT who, amount, nr, place FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start "
        "ORDER BY amount DESC NULLS LAST, who NULLS LAST, nr DESC) AS place FROM {hopped}) WHERE place <= 3",
    ),
    (
        "SELECT who, n, top, place FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end "
        "ORDER BY n, top DESC, who DESC) AS place FROM (SELECT who, COUNT(*) AS n, MAX(amount) AS top, window_start, "
        "window_end FROM {tumble} GROUP BY who, window_start, window_end)) WHERE place <= 2",
        "SELECT who, n, top, place FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start "
        "ORDER BY n, top DESC NULLS LAST, who DESC NULLS LAST) AS place FROM (SELECT who, COUNT(*) AS n, MAX(amount) AS top, "
        "window_start FROM {tumbled} GROUP BY ALL)) WHERE place <= 2",
    ),
    (
        "SELECT CASE WHEN amount > 9 THEN 'big' ELSE 'small' END AS size, AVG(amount) + 1 AS mean, "
        "COUNT(*) FILTER (WHERE who = 'a') FROM events GROUP BY size, tumble(ts, INTERVAL '1' MINUTE)",
        "SELECT CASE WHEN amount > 9 THEN 'big' ELSE 'small' END AS size, AVG(amount) + 1, COUNT(*) FILTER (WHERE who = 'a') "
        "FROM {tumbled} GROUP BY size, window_start",
    ),
    (  # the first of each window by a value, and of equal ones the first in time, then in arrival
        "SELECT window_start, who, amount, nr, place FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, "
        "window_end, who "
        "ORDER BY amount DESC) AS place FROM {tumble} WHERE ts > 1000) WHERE place <= 2 AND amount > 0",
        "SELECT window_start, who, amount, nr, place FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, who "
        "ORDER BY amount DESC NULLS LAST, ts, nr) AS place FROM {tumbled} WHERE ts > 1000) WHERE place <= 2 AND amount > 0",
    ),
    (
        "SELECT * FROM (SELECT window_start, window_end, who AS name, n, ROW_NUMBER() OVER (PARTITION BY window_end, "
        "window_start "
        "ORDER BY n) AS rn FROM (SELECT who, window_start, window_end, COUNT(*) AS n FROM {hop} GROUP BY "
        "window_start, window_end, "
        "who)) WHERE rn < 3",
        "SELECT * FROM (SELECT window_start, window_end, who AS name, n, ROW_NUMBER() OVER (PARTITION BY window_end "
        "ORDER BY n, who NULLS FIRST) AS rn FROM (SELECT who, window_start, window_end, COUNT(*) AS n FROM {hopped} "
        "GROUP BY ALL)) "
        "WHERE rn < 3",
    ),
    (  # ranks, then a stage over them
        "WITH best AS (SELECT window_start AS s, window_end AS e, amount * 2 AS twice, ROW_NUMBER() OVER (PARTITION "
        "BY window_start, "
        "window_end ORDER BY amount + 1 DESC) AS r FROM {tumble}) SELECT s, SUM(twice) AS total, MAX(r) AS n FROM "
        "best WHERE r <= 3 "
        "GROUP BY s, e",
        "SELECT window_start, SUM(amount * 2), MAX(r) FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start "
        "ORDER BY amount + 1 DESC NULLS LAST, ts, nr) AS r FROM {tumbled}) WHERE r <= 3 GROUP BY ALL",
    ),
    (  # an offset longer than the step
        "SELECT window_start AS s, window_end AS e, COUNT(*) AS n FROM TABLE(CUMULATE(TABLE events, DESCRIPTOR(ts), "
        "INTERVAL '20' SECOND, INTERVAL '60' SECOND, INTERVAL '25' SECOND)) GROUP BY window_start, window_end",
        "SELECT s, s + 20000 * k AS e, COUNT(*) FROM (SELECT ts, ts - (ts + 35000) % 60000 AS s FROM events), "
        "(VALUES (1), (2), (3)) AS ks(k) WHERE e > ts GROUP BY ALL",
    ),
    (  # aggregates that differ by the case of a text
        "SELECT who, COUNT(CASE WHEN who = 'b' THEN 1 END) AS small, COUNT(CASE WHEN who = 'B' THEN 1 END) AS large, "
        "window_start FROM {tumble} GROUP BY who, window_start, window_end QUALIFY ROW_NUMBER() OVER "
        "(PARTITION BY window_start, window_end ORDER BY count(CASE WHEN WHO = 'b' THEN 1 END) DESC, who DESC) = 1",
        "SELECT who, COUNT(CASE WHEN who = 'b' THEN 1 END) AS small, 0, window_start FROM {tumbled} "
        "GROUP BY who, window_start "
        "QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start ORDER BY small DESC, who DESC NULLS LAST) = 1",
    ),
    (  # sessions of keys, over a query and over an expression
        "SELECT k, COUNT(*) AS n, window_start AS s FROM TABLE(SESSION((SELECT upper(who) AS k, ts FROM events) "
        "PARTITION BY k, DESCRIPTOR(ts), INTERVAL '20' SECOND)) GROUP BY k, window_start, window_end",
        "SELECT who, COUNT(*), MIN(ts) FROM (SELECT who, ts, SUM(opens) OVER (PARTITION BY who ORDER BY ts RANGE UNBOUNDED "
        "PRECEDING) AS nth FROM (SELECT upper(who) AS who, ts, COALESCE(ts - LAG(ts) OVER (PARTITION BY who ORDER BY ts) "
        ">= 20000, TRUE)::INT AS opens FROM events)) GROUP BY who, nth",
    ),
    (
        "SELECT COUNT(*) AS n, upper(who) AS k, amount FROM TABLE(SESSION(TABLE events PARTITION BY upper(who), amount, "
        "DESCRIPTOR(ts), INTERVAL '1' HOUR)) GROUP BY amount, upper(who), window_start, window_end",
        "SELECT COUNT(*), upper(who) AS k, amount FROM events GROUP BY ALL",
    ),
    (
        "SELECT * FROM (SELECT nr, who, ts FROM events) AS e JOIN shops USING (who) WHERE who = 'a'",
        "SELECT who, nr, ts, since, until, shop FROM events JOIN shops USING (who) WHERE who = 'a'",
    ),
    (  # the best of each window, in one query
        "SELECT who, window_start, window_end, SUM(amount) AS total, ROW_NUMBER() OVER w AS place FROM {hop} "
        "GROUP BY who, window_start, window_end QUALIFY place <= 2 AND total > -3 "
        "WINDOW w AS (PARTITION BY window_start, window_end ORDER BY SUM(amount) DESC, who DESC)",
        "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start ORDER BY total DESC NULLS LAST, who DESC NULLS "
        "LAST) AS place FROM (SELECT who, window_start, window_end, SUM(amount) AS total FROM {hopped} GROUP BY ALL)) "
        "WHERE place <= 2 AND total > -3",
    ),
    (
        "SELECT * FROM {tumble} QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY amount DESC) < 3",
        "SELECT who, amount, ts, nr, window_start, window_end FROM {tumbled} "
        "QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start ORDER BY amount DESC NULLS LAST, ts, nr) < 3",
    ),
    (
        "SELECT who, nr, COUNT(*) OVER v AS n FROM events QUALIFY SUM(amount) OVER w > 5 AND n < 9 AND nr > 0 "
        "WINDOW w AS (PARTITION BY who ORDER BY ts RANGE BETWEEN INTERVAL '30' SECOND PRECEDING AND CURRENT ROW), v AS (w)",
        "SELECT who, nr, n FROM (SELECT *, COUNT(*) OVER w AS n, SUM(amount) OVER w AS total FROM events "
        "WINDOW w AS (PARTITION BY who ORDER BY ts RANGE BETWEEN 30000 PRECEDING AND CURRENT ROW)) "
        "WHERE total > 5 AND n < 9 AND nr > 0",
    ),
    (
        "SELECT COUNT(DISTINCT who, amount) AS pairs, COUNT(DISTINCT who, amount, amount % 2) AS more, "
        "ROUND(VAR_POP(amount), 6) AS v, ROUND(STDDEV_POP(amount), 6) AS s FROM events "
        "GROUP BY tumble(ts, INTERVAL '1' MINUTE)",
        "SELECT COUNT(DISTINCT CASE WHEN who IS NOT NULL AND amount IS NOT NULL THEN (who, amount) END) AS pairs, pairs, "
        "ROUND(VAR_POP(amount), 6), ROUND(STDDEV_POP(amount), 6) FROM {tumbled} GROUP BY window_start",
    ),
    (
        "SELECT who, nr, SUM(amount) OVER (PARTITION BY who ORDER BY ts RANGE BETWEEN INTERVAL '30' SECOND PRECEDING "
        "AND CURRENT ROW) "
        "AS total, COUNT(*) OVER (PARTITION BY who ORDER BY ts RANGE BETWEEN 1000 PRECEDING AND CURRENT ROW) * 2 AS "
        "twice FROM events "
        "WHERE amount > -3",
        "SELECT who, nr, SUM(amount) OVER (PARTITION BY who ORDER BY ts RANGE BETWEEN 30000 PRECEDING AND CURRENT ROW), "
        "COUNT(*) OVER (PARTITION BY who ORDER BY ts RANGE BETWEEN 1000 PRECEDING AND CURRENT ROW) * 2 FROM events "
        "WHERE amount > -3",
    ),
    (
        "SELECT nr, shop, s.who AS found FROM events e LEFT JOIN shops s ON e.who = s.who AND e.ts >= s.since AND "
        "e.ts < s.until",
        "SELECT nr, shop, s.who AS found FROM events e LEFT JOIN shops s ON e.who = s.who AND e.ts >= s.since "
        "AND (s.until IS NULL OR e.ts < s.until)",
    ),
    (
        "SELECT nr, shop FROM events e JOIN shops s "
        "ON upper(s.who) = upper(e.who) AND CAST(length(s.shop) AS bigint) = e.amount - 4",
        "SELECT nr, shop FROM events e JOIN shops s "
        "ON upper(s.who) = upper(e.who) AND CAST(length(s.shop) AS bigint) = e.amount - 4",
    ),
    (
        "SELECT nr, shop FROM events e JOIN shops s ON e.who = s.who AND s.shop <> 'x' AND e.nr + s.since > 3",
        "SELECT nr, shop FROM events e JOIN shops s ON e.who = s.who AND s.shop <> 'x' AND e.nr + s.since > 3",
    ),
    (  # a null among numbers is not an open end
        "SELECT nr, shop FROM (SELECT who, ts, nr, ts + 0 AS x FROM events) e JOIN shops s "
        "ON e.who = s.who AND e.x >= s.since AND e.x < s.until",
        "SELECT nr, shop FROM (SELECT who, ts, nr, ts + 0 AS x FROM events) e JOIN shops s "
        "ON e.who = s.who AND e.x >= s.since AND e.x < s.until",
    ),
    (
        "SELECT shop, tumble_end(ts, INTERVAL '1' MINUTE) AS upto, COUNT(*) AS n FROM events JOIN shops ON "
        "lower(events.who) = shops.who "
        "AND amount > 3 GROUP BY shop, tumble(ts, INTERVAL '1' MINUTE)",
        "SELECT shop, window_end, COUNT(*) FROM {tumbled} AS t JOIN shops ON t.who = shops.who AND amount > 3 GROUP BY ALL",
    ),
]

CLOSE: Final = "e.who = o.who AND o.ts BETWEEN e.ts - {5} AND e.ts + {30}"
JOINS: Final[list[tuple[str, str]]] = (
    [
        ("SELECT e.nr AS a, o.nr AS b, e.who AS c, o.who AS d FROM events e {how} JOIN others o ON " + CLOSE, how)
        for how in ("", "LEFT", "RIGHT", "FULL")
    ]
    + [
        (
            "SELECT e.nr AS a, o.nr AS b, e.who AS c, o.who AS d FROM events e {how} JOIN others o ON "
            "o.ts < e.ts + {30} AND e.ts < o.ts AND lower(e.who) = o.who AND e.amount > 5 AND o.amount < 15",
            how,
        )
        for how in ("", "LEFT", "FULL")
    ]
    + [
        (
            "SELECT e.nr AS a, o.nr AS b FROM events e, others o WHERE "
            + CLOSE
            + " AND e.amount + o.amount > 9 AND e.amount > 0",
            "",
        ),
        (
            "SELECT nr, who FROM events e WHERE EXISTS (SELECT 1 FROM others o WHERE "
            + CLOSE
            + " AND o.amount > 3) AND nr > 1",
            "",
        ),
        ("SELECT nr, who FROM events e WHERE amount > 2 AND NOT EXISTS (SELECT 1 FROM others o WHERE " + CLOSE + ")", ""),
        (
            "SELECT who, COUNT(*) AS n FROM (SELECT e.who, {time} AS t FROM events e JOIN others o ON " + CLOSE + ") "
            "GROUP BY who, {window}",
            "",
        ),
    ]
)


@pytest.mark.parametrize(("text", "how"), JOINS)
@few
@given(left=rows, right=rows, cut=cuts)
def test_joins_are_those_of_duckdb(
    text: str, how: str, left: list[dict[str, Any]], right: list[dict[str, Any]], cut: int
) -> None:
    def spelled(lengths: tuple[str, str], time: str, window: str) -> str:
        actual = text.replace("{5}", lengths[0]).replace("{30}", lengths[1])
        return actual.replace("{how}", how).replace("{time}", time).replace("{window}", window)

    ours = spelled(("INTERVAL '5' SECOND", "30000"), "join_time", "tumble(t, INTERVAL '1' MINUTE)")
    theirs = spelled(("5000", "30000"), "greatest(e.ts, o.ts)", "t // 60000")
    assert run(planned(ours), cut, left, right) == answer(theirs, events=left, others=right)


@few
@given(left=rows, right=rows, cut=cuts)
def test_a_window_join_and_versions_are_those_of_duckdb(
    left: list[dict[str, Any]], right: list[dict[str, Any]], cut: int
) -> None:
    other = TUMBLE.replace("events", "others")
    windowed = (
        f"SELECT L.nr AS a, R.nr AS b, L.window_start AS s FROM {TUMBLE} L LEFT JOIN {other} R "
        "ON L.who = R.who AND L.window_start = R.window_start AND R.window_end = L.window_end"
    )
    theirs = (
        "SELECT e.nr, o.nr, e.ts - e.ts % 60000 FROM events e LEFT JOIN others o "
        "ON e.who = o.who AND e.ts // 60000 = o.ts // 60000"
    )
    assert run(planned(windowed), cut, left, right) == answer(theirs, events=left, others=right)
    versions = (
        "SELECT e.nr AS a, v.nr AS b, v.who AS c FROM events e LEFT JOIN others FOR SYSTEM_TIME AS OF e.ts AS v "
        "ON e.who = v.who AND v.ts >= e.ts - INTERVAL '1' MINUTE"
    )
    theirs = (
        "SELECT a, b, c FROM (SELECT e.nr AS a, o.nr AS b, o.who AS c, ROW_NUMBER() OVER (PARTITION BY e.nr ORDER BY "
        "o.ts DESC, "
        "o.nr DESC) AS place FROM events e LEFT JOIN others o ON e.who = o.who AND o.ts BETWEEN e.ts - 60000 AND "
        "e.ts) WHERE place = 1"
    )
    assert run(planned(versions), cut, left, right) == answer(theirs, events=left, others=right)
    requested = versions.replace("LEFT JOIN", "JOIN") + " AND v.amount > 3"  # of the version, not of which there are
    theirs = theirs.replace("SELECT e.nr", "SELECT o.amount, e.nr") + " AND amount > 3"
    assert run(planned(requested), cut, left, right) == answer(theirs, events=left, others=right)


@few
@given(left=rows, right=rows, cut=cuts)
def test_union_all_is_that_of_duckdb(left: list[dict[str, Any]], right: list[dict[str, Any]], cut: int) -> None:
    union = "(SELECT who, ts, amount AS v FROM events WHERE amount > 0 UNION ALL SELECT 'x', ts, nr FROM others)"
    ours = f"SELECT who, COUNT(*) AS n, SUM(v) AS total FROM {union} GROUP BY who, tumble(ts, INTERVAL '1' MINUTE)"
    theirs = f"SELECT who, COUNT(*), SUM(v) FROM {union} GROUP BY who, ts // 60000"
    assert run(planned(ours), cut, left, right, names=("events", "others")) == answer(theirs, events=left, others=right)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("text", "theirs"), PAIRS)
@few
@given(given_rows=rows, cut=cuts)
def test_the_answer_is_that_of_duckdb(text: str, theirs: str, given_rows: list[dict[str, Any]], cut: int) -> None:
    names = {"tumble": TUMBLE, "hop": HOP, "tumbled": TUMBLED, "hopped": HOPPED}
    actual = run(planned(text.format(**names)), cut, given_rows)
    assert actual == answer(theirs.format(**names), events=given_rows)


@few
@given(given_rows=rows, cut=cuts)
def test_bounds_of_windows_in_aggregates_are_those_of_each_row(given_rows: list[dict[str, Any]], cut: int) -> None:
    tumble = TUMBLE.replace("INTERVAL '1' MINUTE", "INTERVAL '1' MINUTE, INTERVAL '7' SECOND")
    tumbled = TUMBLED.replace("ts - ts % 60000", "ts - (ts + 53000) % 60000")
    text = (
        "SELECT window_start, MAX(ts - window_start) AS a, MIN(window_end - ts) AS b, SUM(amount) FILTER (WHERE ts < "
        "window_start + 20000) AS c FROM {} GROUP BY who, window_start, window_end HAVING MAX(ts - window_start) > 9000"
    )
    assert run(planned(text.format(tumble)), cut, given_rows) == answer(text.format(tumbled), events=given_rows)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SELECT SUM(ts - window_start) FROM {hop} GROUP BY window_start, window_end", "bounds of hop"),
        ("SELECT SUM(ts) FILTER (WHERE window_end > ts) FROM {hop} GROUP BY window_start, window_end", "window_end"),
        ("SELECT COUNT(*) FROM {tumble} GROUP BY window_start, window_end, window_start + amount", "GROUP BY computes"),
        ("SELECT COUNT(*) FROM events GROUP BY tumble(ts, '1 s'), tumble_start(ts, '1 s') + 1", "GROUP BY computes"),
        (
            "SELECT nr FROM {tumble} QUALIFY "
            "ROW_NUMBER() OVER (PARTITION BY window_start, window_end, window_start + 1 ORDER BY nr DESC) = 1",
            "PARTITION BY computes",
        ),
    ],
)
def test_a_bound_that_rows_do_not_know_is_refused_by_its_name(text: str, says: str) -> None:
    with pytest.raises(PlanError, match=says) as caught:
        planned(text.format(tumble=TUMBLE, hop=HOP))
    assert "\0" not in str(caught.value)
