"""Joins in SQL: bounds of windows on a side without a row, and conditions wherever they may be written."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.errors import PlanError
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of
from tests.sql.test_answers import HOP, HOPPED, TUMBLE, TUMBLED, answer, cuts, few, planned, rows, run

SAME: Final = "l.who = r.who AND l.window_start = r.window_start AND l.window_end = r.window_end"
KINDS: Final = {"tumble": (TUMBLE, TUMBLED), "hop": (HOP, HOPPED)}
COUNTED: Final = (
    "(SELECT who, window_start, window_end, COUNT(*) AS nr, MAX(ts) AS ts FROM {} GROUP BY who, window_start, window_end)"
)
OVER_JOINS: Final = [  # what a query asks of the results of a join of windows
    "SELECT l.nr AS a, r.nr AS b, l.window_start AS c, r.window_start AS d, r.window_end AS e FROM {}",
    "SELECT l.nr AS a, r.nr AS b FROM {} WHERE r.window_start IS NULL OR l.window_end IS NULL",
    "SELECT COALESCE(l.window_start, r.window_start) AS w, COUNT(*) AS n, COUNT(l.window_start) AS a, COUNT(r.window_end) AS b "
    "FROM {} GROUP BY COALESCE(l.window_start, r.window_start), COALESCE(l.window_end, r.window_end)",
    "SELECT w, COUNT(x) AS n FROM (SELECT COALESCE(r.window_start, l.window_start) AS w, COALESCE(l.window_end, r.window_end) "
    "AS u, r.window_end AS x FROM {}) GROUP BY w, u",
]


@pytest.mark.parametrize("text", OVER_JOINS)
@few
@given(
    how=st.sampled_from(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]),
    kind=st.sampled_from(sorted(KINDS)),
    left=rows,
    right=rows,
    cut=cuts,
)
def test_bounds_of_a_side_without_a_row_are_null(
    text: str, how: str, kind: str, left: list[dict[str, Any]], right: list[dict[str, Any]], cut: int
) -> None:
    ours, theirs = (text.format(f"{own} l {how} {own.replace('events', 'others')} r ON {SAME}") for own in KINDS[kind])
    assert run(planned(ours), cut, left, right) == answer(theirs, events=left, others=right)


@few
@given(how=st.sampled_from(["LEFT JOIN", "RIGHT JOIN"]), left=rows, right=rows, cut=cuts)
def test_a_side_may_be_grouped_before_it_is_joined_with_rows(
    how: str, left: list[dict[str, Any]], right: list[dict[str, Any]], cut: int
) -> None:
    ours, theirs = (
        OVER_JOINS[0].format(f"{COUNTED.format(own)} l {how} {own.replace('events', 'others')} r ON {SAME}")
        for own in (TUMBLE, TUMBLED)
    )
    assert run(planned(ours), cut, left, right) == answer(theirs, events=left, others=right)


CLOSE: Final = "o.ts BETWEEN e.ts - INTERVAL '5' SECOND AND e.ts + 30000"
THEIRS: Final = (
    "SELECT e.nr AS a, o.nr AS b FROM events e, others o WHERE e.who = o.who AND o.ts BETWEEN e.ts - 5000 AND e.ts + 30000"
)
PLACES: Final = [
    f"JOIN others o ON e.who = o.who AND {CLOSE}",
    f"JOIN others o ON e.who = o.who WHERE {CLOSE}",
    f"JOIN others o ON {CLOSE} WHERE o.who = e.who",
    "JOIN others o ON e.who = o.who AND o.ts <= e.ts + 30000 WHERE o.ts >= e.ts - 5000",
    f"JOIN others o USING (who) WHERE {CLOSE}",
    f"CROSS JOIN others o WHERE e.who = o.who AND {CLOSE}",
    f", others o WHERE {CLOSE} AND e.who = o.who",
    f"JOIN others o WHERE e.who = o.who AND {CLOSE}",
    f"INNER JOIN others o ON TRUE WHERE e.who = o.who AND {CLOSE}",
]


@few
@given(place=st.sampled_from(PLACES), left=rows, right=rows, cut=cuts)
def test_a_condition_means_the_same_in_on_and_where(
    place: str, left: list[dict[str, Any]], right: list[dict[str, Any]], cut: int
) -> None:
    ours = f"SELECT e.nr AS a, o.nr AS b FROM events e {place} AND e.nr + o.nr > 1 AND e.amount > 0"
    theirs = f"{THEIRS} AND e.nr + o.nr > 1 AND e.amount > 0"
    assert run(planned(ours), cut, left, right) == answer(theirs, events=left, others=right)


def _context() -> SqlContext:
    made = SqlContext()
    for name in "abc":
        made.register(name, stream_of(f"k string, {name}v bigint, v bigint, ts bigint").watermark("ts", 0))
    return made


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "SELECT a.k FROM a LEFT JOIN b ON a.k = b.k WHERE b.ts BETWEEN a.ts AND a.ts + 9",
            "bound of time of a left join is in WHERE",
        ),
        ("SELECT a.k FROM a JOIN b ON a.k = b.k AND a.ts = b.ts WHERE bv + v > 3", "several tables have a column of this name"),
        (
            "SELECT a.k FROM a JOIN b ON a.k = b.k JOIN c ON c.k = a.k AND c.ts = join_time WHERE b.ts = a.ts AND av + bv > v",
            "several tables have a column of this name",
        ),
        ("SELECT a.k FROM a JOIN b ON a.k = b.k JOIN c ON c.k = a.k WHERE b.ts = a.ts AND c.ts = b.ts", "join_time"),
    ],
)
def test_a_condition_in_where_that_is_refused_says_why(text: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        _context().sql(text)


def test_a_condition_in_where_is_of_the_version_that_was_valid() -> None:
    text = "SELECT av, bv FROM a JOIN b FOR SYSTEM_TIME AS OF a.ts ON a.k = b.k WHERE av = bv"
    query = _context().sql(text)
    assert query is not None
    driver = Driver(query)
    sent = {"left": [{"k": "x", "av": 1, "ts": 9}], "right": [{"k": "x", "bv": 1, "ts": 1}, {"k": "x", "bv": 2, "ts": 5}]}
    assert [driver.send(sent).results.num_rows, driver.close().results.num_rows] == [0, 0]
