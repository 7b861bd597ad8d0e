"""Functions of lists and maps in the plans of every engine: driver, bounded and streaming agree."""

from __future__ import annotations

from typing import Any

import krishiv_py as kv
from krishiv_py import col
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

SCHEMA = "id string, tags array<string>, scores map<string, bigint>, at bigint"
ROWS: list[dict[str, Any]] = [
    {"id": "a", "tags": ["x", None, "y"], "scores": [("u", 1), ("v", 5)], "at": 1},
    {"id": "b", "tags": [], "scores": [], "at": 2},
    {"id": "c", "tags": None, "scores": None, "at": 3},
    {"id": "d", "tags": ["y", "y"], "scores": [("w", None)], "at": 14},
]


def windows(stream: Any) -> Any:
    """Steps, a key and aggregates that use them."""
    best = "aggregate(map_values(scores), 0, (best, score) -> greatest(best, coalesce(score, 0)))"
    steps = stream.with_column("tags", col("tags").array_compact().transform(lambda t: t.concat("!"))).with_column("best", best)
    keyed = steps.watermark("at", 0).key_by(col("tags").array_join("|").alias("joined")).tumbling_window(10)
    return keyed.agg(kv.sum("best"), kv.count().filter("exists(tags, t -> t = 'y!')").alias("ys"))


def plain(table: Any) -> list[tuple[Any, ...]]:
    """Rows in an order of their own."""
    return sorted(((r["window_start"], r["joined"], r["sum_best"], r["ys"]) for r in table.to_pylist()), key=repr)


WANTED = sorted([(0, "x!|y!", 5, 1), (0, "", 0, 0), (0, None, None, 0), (10, "y!|y!", 0, 1)], key=repr)


def test_driver_bounded_and_streaming_agree(session: kv.Session) -> None:
    driver = Driver(windows(stream_of(SCHEMA)))
    first = driver.send(ROWS).results.to_pylist() + driver.close().results.to_pylist()
    assert sorted(((r["window_start"], r["joined"], r["sum_best"], r["ys"]) for r in first), key=repr) == WANTED
    stream, sender = session.memory_stream(SCHEMA)
    plan = windows(stream)
    sender.send(ROWS)
    sender.close()
    assert plain(plan.collect()) == WANTED
    query = plan.start(kv.MemorySink())
    try:
        query.process_all_available()
        assert plain(query.results()) == WANTED
    finally:
        query.stop()


QUERY = """
    SELECT array_join(transform(array_compact(r.tags), t -> concat(t, r.id)), '|') AS joined,
           COUNT(*) AS n, SUM(aggregate(map_values(scores), 0, (a, s) -> a + coalesce(s, 0))) AS total
    FROM rows AS r
    WHERE forall(tags, (t) -> t IS NULL OR t <> 'z') AND NOT exists(map_keys(scores), k -> k = 'w')
    GROUP BY 1, tumble(at, INTERVAL '10' SECOND)
"""


def test_queries_take_functions_of_elements(session: kv.Session) -> None:
    wanted = [("", 1, 0), ("xa|ya", 1, 6)]
    context = SqlContext()
    context.register("rows", stream_of(SCHEMA).watermark("at", 0))
    planned = context.sql(QUERY)
    assert planned is not None
    driver = Driver(planned)
    actual = driver.send(ROWS).results.to_pylist() + driver.close().results.to_pylist()
    assert sorted((r["joined"], r["n"], r["total"]) for r in actual) == wanted
    stream, sender = session.memory_stream(SCHEMA)
    session.register("rows", stream.watermark("at", 0))
    sender.send(ROWS)
    sender.close()
    requested = session.sql(QUERY)
    assert requested is not None
    results = requested.collect().to_pylist()
    assert sorted((r["joined"], r["n"], r["total"]) for r in results) == wanted
