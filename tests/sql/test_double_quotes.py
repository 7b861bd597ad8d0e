"""A text in double quotes that has the name of a column is refused wherever a value is expected."""

from __future__ import annotations

import pytest

from krishiv_py import KrishivError, count
from krishiv_py.errors import ExpressionError
from krishiv_py.plan.expressions.expr import identity_of
from krishiv_py.plan.expressions.parse import parse_expr
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

TUMBLE = "tumble(at, INTERVAL '1' SECOND)"
PLACES = [
    "SELECT {} AS x FROM events",
    "SELECT concat({}, 'x') AS x FROM events",
    "SELECT CASE WHEN amount > 1 THEN {} ELSE 'x' END AS x FROM events",
    "SELECT * FROM events WHERE {} = 'a'",
    "SELECT * FROM events WHERE 'a' = lower({})",
    "SELECT * FROM events WHERE customerId IN ('a', {})",
    "SELECT * FROM events WHERE {} IN ('a', 'b')",
    "SELECT * FROM events WHERE {} IS NULL OR {} LIKE 'a%'",
    "SELECT * FROM events WHERE {} BETWEEN 'a' AND 'b'",
    f"SELECT COUNT(*) AS n FROM events GROUP BY {{}}, {TUMBLE}",
    f"SELECT {{}} AS k, COUNT(*) AS n FROM events GROUP BY 1, {TUMBLE}",
    f"SELECT COUNT({{}}) AS n FROM events GROUP BY {TUMBLE}",
    f"SELECT COUNT(*) FILTER (WHERE {{}} > 'a') AS n FROM events GROUP BY {TUMBLE}",
    f"SELECT customerId, COUNT(*) AS n FROM events GROUP BY customerId, {TUMBLE} HAVING {{}} > 'a'",
    "SELECT * FROM events QUALIFY ROW_NUMBER() OVER (PARTITION BY {} ORDER BY at) = 1",
    "SELECT * FROM events QUALIFY ROW_NUMBER() OVER (PARTITION BY customerId ORDER BY {}) = 1",
    "SELECT * FROM events e JOIN others o ON {} = o.id AND o.ot BETWEEN e.at AND e.at + 9",
    "SELECT * FROM events e JOIN others o ON e.customerId = o.id AND {} = 'a' AND o.ot BETWEEN e.at AND e.at + 9",
    "SELECT * FROM events e WHERE EXISTS (SELECT 1 FROM others o WHERE o.id = {} AND o.ot BETWEEN e.at AND e.at + 9)",
    "SELECT * FROM (SELECT {} AS x FROM events)",
    "WITH q AS (SELECT * FROM events WHERE {} = 'a') SELECT * FROM q",
    "SELECT customerId FROM events UNION ALL SELECT {} AS customerId FROM events",
]


def context() -> SqlContext:
    actual = SqlContext()
    actual.register("events", stream_of("customerId string, amount bigint, at bigint"), event_time="at", lag=0)
    actual.register("others", stream_of("id string, ot bigint"), event_time="ot", lag=0)
    return actual


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["customerId", "CUSTOMERID"])
def test_a_column_in_double_quotes_is_refused_in_every_place(place: str, name: str) -> None:
    with pytest.raises(ExpressionError, match="`customerId` in backquotes for the column"):
        context().sql(place.replace("{}", f'"{name}"'))


@pytest.mark.parametrize("place", PLACES)
def test_the_hint_can_be_followed(place: str) -> None:
    """In backquotes it is the column: the same plan as without quotes, or the same error."""
    given = []
    for written in ("`customerId`", "customerId"):
        try:
            actual = context().sql(place.replace("{}", written))
            assert actual is not None
            given.append(actual.explain())
        except KrishivError as problem:
            given.append(type(problem).__name__)
    assert given[0] == given[1]


@pytest.mark.parametrize(
    "query",
    [
        'SELECT "other text" AS x, amount AS "n" FROM "events"',
        'SELECT e."customerId" FROM events e WHERE e.customerId IN ("a", \'b\')',
        "SELECT 'amount' AS x FROM events",
    ],
)
def test_other_texts_and_names_in_double_quotes_are_read_as_before(query: str) -> None:
    assert context().sql(query) is not None


@pytest.mark.parametrize("key", ["'x'", '"x"', "1 + 1", "lower('x')", "k"])
def test_group_by_a_constant_is_refused(key: str) -> None:
    with pytest.raises(KrishivError, match="GROUP BY"):
        context().sql(f"SELECT 'x' AS k, COUNT(*) AS n FROM events GROUP BY {key}, {TUMBLE}")


@pytest.mark.parametrize("text", ["{} = 'x'", "lower({}) = 'x'", "b IN ({}, 'x')", "{} IN ('x')", "if(b > 'x', {}, b) = 'x'"])
def test_expressions_are_alike(text: str) -> None:
    rows = stream_of("a string, b string, at bigint")
    with pytest.raises(ExpressionError, match="`a` in backquotes"):
        rows.filter(text.format('"A"'))
    windows = rows.watermark("at", 0).tumbling_window("1 s")
    with pytest.raises(ExpressionError, match="`a` in backquotes"):
        windows.agg(count().filter(text.format('"a"')))._plan()
    rows.filter(text.format("`a`"))
    rows.filter(text.format("'a'"))


def test_the_quotes_of_a_text_do_not_make_it_another_expression() -> None:
    assert identity_of(parse_expr('x = "q"')) == identity_of(parse_expr("x = 'q'"))


@pytest.mark.parametrize(
    ("lower", "upper"),
    [("e.at + -3000", "e.at"), ("e.at - 3000", "e.at - -0"), ("-3000 + e.at", "e.at"), ("e.at - (3000)", "e.at + -(-0)")],
)
def test_a_negative_number_bounds_a_join(lower: str, upper: str) -> None:
    query = f"SELECT o.ot FROM events e JOIN others o ON e.customerId = o.id AND o.ot BETWEEN {lower} AND {upper}"
    joined = context().sql(query)
    assert joined is not None
    driver = Driver(joined)
    driver.send({"left": [{"customerId": "a", "amount": 1, "at": 5_000}]})
    batch = driver.send({"right": [{"id": "a", "ot": t} for t in (1_999, 2_000, 5_000, 5_001)]})
    assert [row["ot"] for row in batch.results.to_pylist()] == [2_000, 5_000]


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("SELECT customerId, COUNT(*) FROM events GROUP BY customerId EMIT CHANGES", "EMIT"),
        ("SELECT customerId, COUNT(*) FROM events WINDOW TUMBLING (SIZE 1 MINUTE) GROUP BY customerId", "ksqlDB"),
        ("SELECT * FROM events EXPECT (amount > 0)", "EXPECT"),
    ],
)
def test_words_of_other_systems_are_named(query: str, named: str) -> None:
    with pytest.raises(KrishivError, match=f"{named}.* is not supported in SQL over streams"):
        context().sql(query)
