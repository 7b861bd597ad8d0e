"""Lists in FROM: a row for each element, as a step of rows or of results; fields of structs as keys of lookups."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import PlanError
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

SCHEMA = (
    "k string, xs array<bigint>, m map<string,bigint>, ss array<struct<a:bigint,b:string>>, xss array<array<bigint>>, "
    "p struct<k:string,n:bigint>, at bigint"
)
ROWS: list[dict[str, Any]] = [
    {
        **{"k": "a", "xs": [1, 2, None], "m": [("u", 1), ("v", None)], "ss": [{"a": 1, "b": "x"}, None], "xss": [[1], [2, 3]]},
        **{"p": {"k": "x", "n": 1}, "at": 1},
    },
    {"k": "b", "xs": [], "m": [], "ss": [], "xss": [], "p": {"k": None, "n": 2}, "at": 2},
    {"k": "c", "xs": None, "m": None, "ss": None, "xss": None, "p": None, "at": 3},
]
SHOPS = pa.table({"p": [{"k": "a", "n": 1}, {"k": "x", "n": 2}, {"k": None, "n": 3}], "city": ["Ulm", "Rom", "Bonn"]})
TUMBLE = "tumble(at, INTERVAL '10' MILLISECOND)"


def planned(text: str) -> Any:
    context = SqlContext()
    context.register("t", stream_of(SCHEMA).watermark("at", 0))
    context.register("shops", SHOPS)
    return context.sql(text)


def answer(text: str) -> list[tuple[Any, ...]]:
    driver = Driver(planned(text))
    actual = driver.send(ROWS).results.to_pylist() + driver.close().results.to_pylist()
    return sorted((tuple(row.values()) for row in actual), key=repr)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("SELECT k, x FROM t LATERAL VIEW explode(xs) e AS x", [("a", 1), ("a", 2), ("a", None)]),
        ("SELECT k, e.col FROM t LATERAL VIEW explode(t.xs) e WHERE col > 1", [("a", 2)]),
        (
            "SELECT k, i, x FROM t LATERAL VIEW OUTER posexplode(xs) e AS i, x",
            [("a", 0, 1), ("a", 1, 2), ("a", 2, None), ("b", None, None), ("c", None, None)],
        ),
        ("SELECT pos, col FROM t LATERAL VIEW posexplode_outer(xs) WHERE k <> 'a'", [(None, None), (None, None)]),
        ("SELECT k, key, value FROM t LATERAL VIEW explode(m) e", [("a", "u", 1), ("a", "v", None)]),
        ("SELECT u, v FROM t LATERAL VIEW OUTER explode(m) e AS u, v", [("u", 1), ("v", None), (None, None), (None, None)]),
        ("SELECT k, a, b FROM t LATERAL VIEW inline(ss) e", [("a", 1, "x"), ("a", None, None)]),
        ("SELECT k, s.a FROM t LATERAL VIEW explode(ss) e AS s", [("a", 1), ("a", None)]),
        ("SELECT x FROM t LATERAL VIEW explode(xss) e AS ys LATERAL VIEW explode(ys) f AS x", [(1,), (2,), (3,)]),
        ("SELECT k, x FROM t LATERAL VIEW explode(sequence(1, at)) e AS x WHERE x = at", [("a", 1), ("b", 2), ("c", 3)]),
        ("SELECT e.xs FROM t CROSS JOIN UNNEST(xs) AS e(xs)", [(1,), (2,), (None,)]),
        ("SELECT x, o FROM t CROSS JOIN UNNEST(xs) WITH ORDINALITY AS e(x, o)", [(1, 1), (2, 2), (None, 3)]),
        ("SELECT k, x FROM t LEFT JOIN UNNEST(xs) AS e(x) ON TRUE WHERE x IS NULL", [("a", None), ("b", None), ("c", None)]),
        ("SELECT p1, q FROM t, UNNEST(ss) AS e(p1, q)", [(1, "x"), (None, None)]),
        ("SELECT k, x FROM t, LATERAL explode(xs) AS e(x)", [("a", 1), ("a", 2), ("a", None)]),
        (
            f"SELECT x, COUNT(*) AS n, MAX(at) AS last FROM t LATERAL VIEW explode(array(at, 1)) e AS x GROUP BY x, {TUMBLE}",
            [(1, 4, 3), (2, 1, 2), (3, 1, 3)],
        ),
        (
            f"SELECT x FROM (SELECT collect_list(at) AS l FROM t GROUP BY {TUMBLE}) LATERAL VIEW explode(l) e AS x WHERE x > 1",
            [(2,), (3,)],
        ),
        (f"SELECT city, COUNT(*) AS n FROM t JOIN shops ON t.k = shops.p.k GROUP BY city, {TUMBLE}", [("Ulm", 1)]),
        ("SELECT s.p.n, city FROM t LEFT JOIN shops s ON t.p.k = s.p.k", [(2, "Rom"), (None, None), (None, None)]),
        ("SELECT city FROM t JOIN shops s ON t.k = lower(s.p.k) AND t.p.n = s.p.n", [("Ulm",)]),
        (
            "SELECT k, SUM(at) AS n FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(at), INTERVAL '10' MILLISECOND)) "
            "GROUP BY k, window_start, window_end "
            "QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY SUM(at) DESC) = 1",
            [("c", 3)],
        ),
    ],
)
def test_answers(text: str, wanted: list[tuple[Any, ...]]) -> None:
    assert answer(text) == sorted(wanted, key=repr)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SELECT x FROM t LATERAL VIEW explode(k) e AS x", "^explode takes a list or a map .*k is string"),
        ("SELECT x FROM t LATERAL VIEW inline(xs) e AS x", "^inline takes a list of structs"),
        ("SELECT x FROM t LATERAL VIEW explode(xs) e AS x, y", "^explode gives 1 columns.* 2 are named"),
        ("SELECT x FROM t LATERAL VIEW posexplode(xs) e AS x", "AS pos, col"),
        ("SELECT xs FROM t LATERAL VIEW explode(xs) e AS xs", "several tables have a column of this name"),
        ("SELECT x FROM t LATERAL VIEW stack(2, 1, 2) e AS x", "^this function in LATERAL"),
        ("SELECT x FROM t JOIN UNNEST(xs) AS e(x) ON x > 1", "such a join with the items of a list"),
        ("SELECT x FROM t RIGHT JOIN UNNEST(xs) AS e(x) ON TRUE", "such a join with the items of a list"),
        ("SELECT x FROM t, LATERAL (SELECT explode(xs) AS x)", "^this function in LATERAL"),
        ("SELECT x FROM UNNEST(array(1)) AS e(x)", "^this in FROM"),
        ("SELECT city FROM t JOIN shops s ON t.k = s.p.zz", "has no field 'zz'"),
    ],
)
def test_what_is_refused(text: str, says: str) -> None:
    with pytest.raises(Exception, match=says):
        planned(text)


@pytest.mark.parametrize("call", ["explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer"])
def test_an_expression_gives_no_rows(call: str) -> None:
    for text in (f"SELECT {call}(ss) FROM t", f"SELECT k FROM t WHERE size({call}(ss)) > 1"):
        with pytest.raises(Exception, match=r"one value for each row.*\.unnest\(.*LATERAL VIEW explode"):
            planned(text)


def test_a_column_that_is_there_is_not_taken_over() -> None:
    with pytest.raises(PlanError, match=r"write e\.k"):
        planned("SELECT k FROM t LATERAL VIEW explode(xs) e AS k")


def test_a_star_behind_a_struct_is_its_fields() -> None:
    context = SqlContext()
    stream = stream_of("id bigint, place struct<city: string, zip: int>, at bigint")
    context.register("events", stream, event_time="at", lag=0)
    rows = [{"id": 1, "place": {"city": "Ulm", "zip": 5}, "at": 1}, {"id": 2, "place": None, "at": 2}]
    for text in ("place.*, id", "events.PLACE.*, events.id"):
        plan = context.sql(f"SELECT {text} FROM events")
        assert plan is not None
        actual = Driver(plan).send(rows).results.to_pylist()
        assert actual == [{"city": "Ulm", "zip": 5, "id": 1}, {"city": None, "zip": None, "id": 2}]
    for text in ("id.*", "other.place.*"):
        with pytest.raises(PlanError, match=r"not a table of the query \(got: .*\*\)"):
            context.sql(f"SELECT {text} FROM events")
