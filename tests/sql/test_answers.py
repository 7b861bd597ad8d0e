"""Queries over random rows: what the plan gives is what DuckDB says of the same rows, however they are cut into batches."""

from __future__ import annotations

from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

SCHEMA: Final = pa.schema([("who", pa.string()), ("amount", pa.int64()), ("ts", pa.int64())])
rows = st.lists(
    st.fixed_dictionaries(
        {"who": st.sampled_from(["a", "b", None]), "amount": st.none() | st.integers(-5, 20), "ts": st.integers(0, 400_000)}
    ),
    max_size=40,
)
cuts = st.integers(1, 15)

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
        for name, given_rows in tables.items():
            db.register(name, pa.Table.from_pylist(given_rows, SCHEMA))
        return sorted(db.execute(text).fetchall(), key=repr)


def planned(text: str) -> Any:
    made = SqlContext()
    stream = stream_of("who string, amount bigint, ts bigint")
    made.register("events", stream.watermark("ts", 400_000))
    return made.sql(text)


def run(plan: Any, given_rows: list[dict[str, Any]], cut: int) -> list[tuple[Any, ...]]:
    driver = Driver(plan)
    found: list[dict[str, Any]] = []
    for at in range(0, len(given_rows), cut):
        found += driver.send(given_rows[at : at + cut]).results.to_pylist()
    found += driver.close().results.to_pylist()
    return sorted((tuple(r.values()) for r in found), key=repr)


PAIRS: Final = [
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
        "SELECT CASE WHEN amount > 9 THEN 'big' ELSE 'small' END AS size, AVG(amount) + 1 AS mean, "
        "COUNT(*) FILTER (WHERE who = 'a') FROM events GROUP BY size, tumble(ts, INTERVAL '1' MINUTE)",
        "SELECT CASE WHEN amount > 9 THEN 'big' ELSE 'small' END AS size, AVG(amount) + 1, COUNT(*) FILTER (WHERE who = 'a') "
        "FROM {tumbled} GROUP BY size, window_start",
    ),
]


@pytest.mark.parametrize(("text", "theirs"), PAIRS)
@given(given_rows=rows, cut=cuts)
def test_the_answer_is_that_of_duckdb(text: str, theirs: str, given_rows: list[dict[str, Any]], cut: int) -> None:
    names = {"tumble": TUMBLE, "hop": HOP, "tumbled": TUMBLED, "hopped": HOPPED}
    found = run(planned(text.format(**names)), given_rows, cut)
    assert found == answer(theirs.format(**names), events=given_rows)
