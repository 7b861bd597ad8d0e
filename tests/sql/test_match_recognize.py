"""MATCH_RECOGNIZE: clauses, measures, errors, and matches as Python's own regular expressions find them."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from krishiv_py import KrishivError, Session
from krishiv_py.testing import Driver
from tests.examples import scaled

ROWS = [("u", 0, 5), ("u", 1, 20), ("u", 2, 30), ("u", 3, 7), ("v", 3, 1), ("u", 4, 6), ("v", 9, 2)]
QUERY = """
    SELECT * FROM orders MATCH_RECOGNIZE (
        PARTITION BY user ORDER BY ts
        MEASURES {measures}
        {rows}
        PATTERN (A B+){within}
        DEFINE A AS amount < 10, B AS B.amount > PREV(B.amount) AND B.amount > A.amount
    ) AS m
"""


def _given(query: str, rows: list[tuple[str, int, int]] = ROWS) -> list[dict[str, Any]]:
    with Session.in_process() as session:
        stream, _ = session.memory_stream("user string, ts bigint, amount bigint, place struct<city string>")
        session.register("orders", stream, event_time="ts", lag=0)
        plan = session.sql(query)
    assert plan is not None
    driver = Driver(plan)
    sent = [{"user": u, "ts": ts, "amount": n, "place": {"city": "x"}} for u, ts, n in rows]
    return [*driver.send(sent).results.to_pylist(), *driver.close().results.to_pylist()]


def _query(measures: str, rows: str = "ONE ROW PER MATCH", within: str = "") -> str:
    return QUERY.format(measures=measures, rows=rows, within=within)


def test_one_row_for_each_match() -> None:
    measures = "A.amount AS small, LAST(B.amount) AS big, LAST(B.amount, 1) AS before, COUNT(B.*) AS n, MATCH_ROWTIME() AS at"
    rows = _given(_query(f"{measures}, SUM(B.amount) - FIRST(A.amount) AS d, amount AS last, PREV(LAST(B.amount)) AS p"))
    assert rows == [
        {"user": "u", "small": 5, "big": 30, "before": 20, "n": 2, "at": 3, "d": 45, "last": 30, "p": 20},
        {"user": "v", "small": 1, "big": 2, "before": None, "n": 1, "at": 9, "d": 1, "last": 2, "p": 1},
    ]


def test_all_rows_of_each_match() -> None:
    measures = "SUM(amount) AS s, FINAL COUNT(*) AS n, RUNNING COUNT(B.*) AS b, CLASSIFIER() AS c, MATCH_NUMBER() AS no"
    rows = _given(_query(measures, "ALL ROWS PER MATCH"), ROWS[:4])
    place = {"city": "x"}
    assert rows == [
        {"user": "u", "ts": 0, "amount": 5, "place": place, "s": 5, "n": 3, "b": 0, "c": "A", "no": 1},
        {"user": "u", "ts": 1, "amount": 20, "place": place, "s": 25, "n": 3, "b": 1, "c": "B", "no": 1},
        {"user": "u", "ts": 2, "amount": 30, "place": place, "s": 55, "n": 3, "b": 2, "c": "B", "no": 1},
    ]


def test_within_and_skip() -> None:
    assert _given(_query("A.ts AS a, LAST(B.ts) AS b", within=" WITHIN INTERVAL '2' MILLISECOND"))[0]["b"] == 1
    rows = _given(_query("A.ts AS a, LAST(B.ts) AS b", "ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW"))
    assert [(row["user"], row["a"], row["b"]) for row in rows] == [("u", 0, 2), ("v", 3, 9)]


def test_matches_are_rows_for_the_rest_of_a_query() -> None:
    inner = _query("LAST(B.amount) AS big, MATCH_ROWTIME() AS at")
    query = f"SELECT window_start, SUM(big) AS s FROM TABLE(TUMBLE(({inner}), DESCRIPTOR(at), INTERVAL '10' MILLISECOND)) "
    assert _given(f"{query} GROUP BY window_start, window_end") == [{"window_start": 0, "s": 32}]
    assert _given(f"{_query('COUNT(B.*) AS n')} WHERE n > 1") == [{"user": "u", "n": 2}]


def test_rows_of_a_query_are_matched() -> None:
    query = _query("LAST(B.amount) AS big").replace("FROM orders", "FROM (SELECT user, ts, amount * 2 AS amount FROM orders)")
    assert [row["big"] for row in _given(query)] == [4]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (_query("A.amount AS a").replace("PATTERN (A B+)", ""), "has no PATTERN"),
        (_query("A.amount AS a").replace("(A B+)", "(A B++)"), "cannot be read"),
        (_query("A.amount AS a").replace("(A B+)", "(A (B+)"), "."),
        (_query("A.amount AS a").replace("(A B+)", "(A {-B-})"), "not supported"),
        (_query("A.amount AS a").replace("(A B+)", "(PERMUTE(A, B))"), "not supported|cannot be read"),
        (_query("A.amount AS a").replace("(A B+)", "(A C)"), "DEFINE has a name that PATTERN does not have"),
        (_query("A.amount AS a").replace("ORDER BY ts", "ORDER BY amount"), "order of event time"),
        (_query("A.amount AS a").replace("ORDER BY ts", ""), "order of event time"),
        (_query("A.nope AS a"), "no column 'nope'"),
        (_query("C.amount AS a"), "."),
        (_query("NEXT(A.amount) AS a"), "NEXT"),
        (_query("MATCH_NUMBER() AS a"), "of a whole match"),
        (_query("A.amount AS a", "AFTER MATCH SKIP TO C"), "AFTER MATCH says where the search goes on"),
        (_query("A.place.city AS a"), "field of a struct"),
        (_query("A.amount AS a").replace("A AS amount < 10", "A amount < 10"), "DEFINE says what rows of a step are"),
        (_query("A.amount AS a").replace("DEFINE", "SUBSET S = (A, B) DEFINE"), "SUBSET"),
    ],
)
def test_what_cannot_be_is_refused(query: str, text: str) -> None:
    with pytest.raises(KrishivError, match=text):
        _given(query)


def _random_pattern(draw: random.Random, depth: int = 2) -> str:
    """Return a pattern that is one for SQL and for Python's regular expressions, which know neither step by another name."""
    what = draw.choice(["step", "seq", "seq", "rep", "or"]) if depth else "step"
    if what == "step":
        return draw.choice("ABC")
    if what == "or":
        return f"({_random_pattern(draw, depth - 1)} | {_random_pattern(draw, depth - 1)})"
    if what == "rep":
        sign = draw.choice(["*", "+", "?", "{2}", "{1,2}", "{2,}", "{0,2}"])
        return f"({_random_pattern(draw, depth - 1)}){sign}{draw.choice(['', '?'])}"
    return " ".join(_random_pattern(draw, depth - 1) for _ in range(draw.randint(2, 3)))


@pytest.mark.parametrize("seed", range(scaled(60)))
def test_matches_are_those_of_regular_expressions(seed: int) -> None:
    draw = random.Random(seed)
    pattern, text = _random_pattern(draw), "".join(draw.choice("abcx") for _ in range(25))
    query = f"""
        SELECT began, ended FROM orders MATCH_RECOGNIZE (
            PARTITION BY user ORDER BY ts MEASURES FIRST(ts) AS began, LAST(ts) AS ended
            PATTERN ({pattern}) DEFINE {", ".join(f"{s} AS amount = {ord(s.lower())}" for s in "ABC" if s in pattern)})
    """
    rows = [(row["began"], row["ended"] + 1) for row in _given(query, [("u", i, ord(c)) for i, c in enumerate(text)])]
    own = re.compile(pattern.replace(" ", "").lower())
    found, at = list[tuple[int, int]](), 0
    while at < len(text):
        match = own.match(text, at)
        found += [match.span()] if match is not None and match.end() > at else []
        at = match.end() if match is not None and match.end() > at else at + 1
    assert rows == found
