"""Functions of expressions: what they give, what of SQL text reaches them, and what is refused."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import Case, Expr, ExpressionError, OperatorError, coalesce, col, concat, func, greatest, least, lit, when
from krishiv_py.kernels.columns.evaluate import evaluate
from krishiv_py.plan.expressions.parse import parse_expr

UTC = dt.timezone.utc
ROWS = pa.table(
    {
        "u": ["a/b/c", None, "x", " y\n"],
        "n": [1, None, 12, 5],
        "ts": pa.array(
            [dt.datetime(2024, 2, 29, 12, 30), None, dt.datetime(1969, 12, 31, 23), dt.datetime(2023, 1, 1)],
            pa.timestamp("us", "UTC"),
        ),
        "l": pa.array([["a"], None, ["b", "c"], ["d"]]),
    }
)
U, N, TS = col("u"), col("n"), col("ts")


@pytest.mark.parametrize(
    ("expr", "text", "wanted"),
    [
        (
            when(N > 9, "big").when(N > 4, "mid").otherwise("s"),
            "CASE WHEN n > 9 THEN 'big' WHEN n > 4 THEN 'mid' ELSE 's' END",
            "s s big mid",
        ),
        (when(N == 1, 10 / (N - 12)), "CASE n WHEN 1 THEN 10 / (n - 12) END", [10 / -11, None, None, None]),
        (U.split("/")[0], "split(u, '/')[0]", ["a", None, "x", " y\n"]),
        (U.like("_/%"), "u LIKE '_/%'", [True, None, False, False]),
        (~U.like("_/%"), "u NOT LIKE '_/%'", [False, None, True, True]),
        (U.ilike("X"), "u ILIKE 'X'", [False, None, True, False]),
        (U.rlike("y$"), "u RLIKE 'y$'", [False, None, False, True]),
        (U.rlike(".\\z"), "u RLIKE '.\\\\z'", [True, None, True, False]),
        (U.regexp_extract("(\\w)/(\\w)", 2), "regexp_extract(u, '(\\\\w)/(\\\\w)', 2)", ["b", None, "", ""]),
        (U.regexp_replace("/(.)", "$1-"), "regexp_replace(u, '/(.)', '$1-')", ["ab-c-", None, "x", " y\n"]),
        (U.substring(-2, 1), "substring(u, -2, 1)", ["/", None, "", "y"]),
        (U.substring(2), "substr(u, 2)", ["/b/c", None, "", "y\n"]),
        (concat(U, "!"), "u || '!'", ["a/b/c!", None, "x!", " y\n!"]),
        (U.trim("ac"), "TRIM(BOTH 'ac' FROM u)", ["/b/", None, "x", " y\n"]),
        (U.ltrim(), "ltrim(u)", ["a/b/c", None, "x", "y\n"]),
        (U.ends_with("c"), "endswith(u, 'c')", [True, None, False, False]),
        (coalesce(N, 0), "coalesce(n, 0)", [1, 0, 12, 5]),
        (greatest(N, 5), "greatest(n, 5)", [5, 5, 12, 5]),
        (least(N, 5), "least(n, 5)", [1, 5, 5, 5]),
        (TS.year(), "year(ts)", [2024, None, 1969, 2023]),
        (TS.dayofweek(), "dayofweek(ts)", [5, None, 4, 1]),
        (TS.weekofyear(), "weekofyear(ts)", [9, None, 1, 52]),
        (TS.hour(), "hour(ts)", [12, None, 23, 0]),
        (TS.date_add(1), "date_add(ts, 1)", [dt.date(2024, 3, 1), None, dt.date(1970, 1, 1), dt.date(2023, 1, 2)]),
        (TS.date_sub(N), "date_sub(ts, n)", [dt.date(2024, 2, 28), None, dt.date(1969, 12, 19), dt.date(2022, 12, 27)]),
        (TS.datediff(lit(dt.date(2024, 2, 28))), "datediff(ts, DATE '2024-02-28')", [1, None, -19782, -423]),
        (
            TS.date_trunc("week"),
            "date_trunc('WEEK', ts)",
            [
                dt.datetime(2024, 2, 26, tzinfo=UTC),
                None,
                dt.datetime(1969, 12, 29, tzinfo=UTC),
                dt.datetime(2022, 12, 26, tzinfo=UTC),
            ],
        ),
    ],
)
def test_methods_and_text_give_the_same(expr: Expr, text: str, wanted: Any) -> None:
    wanted = wanted.split() if isinstance(wanted, str) else wanted
    assert evaluate(expr, ROWS).to_pylist() == wanted
    assert evaluate(parse_expr(text), ROWS).to_pylist() == wanted
    assert pickle.loads(pickle.dumps(expr)).same_as(expr)


def test_a_value_of_case_is_computed_only_where_it_is_taken() -> None:
    assert evaluate(when(N == 12, 0.0).otherwise(1 / (N - 12)), ROWS).to_pylist() == [1 / -11, None, 0.0, 1 / -7]


def test_a_list_that_is_too_short_is_an_error_where_it_is_needed() -> None:
    with pytest.raises(OperatorError, match="no element 1"):
        evaluate(col("l")[1], ROWS)
    assert evaluate(when(N == 12, col("l")[1]), ROWS).to_pylist() == [None, None, "c", None]
    sliced = ROWS.slice(1, 2)
    assert evaluate(col("l")[0], sliced).to_pylist() == [None, "b"]


def test_javas_end_before_two_line_ends_is_refused() -> None:
    with pytest.raises(OperatorError, match=r"write .z"):
        evaluate(U.rlike("x$"), pa.table({"u": ["x\r\n"]}))


def test_a_long_case_does_not_recurse() -> None:
    case: Case = when(N < 0, -1)
    for at in range(2_000):
        case = case.when(func("abs", N) == at, at)
    assert evaluate(case, ROWS).to_pylist() == [1, None, 12, 5]


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)",
        "(?i)a",
        "(a)\\1",
        "\\bx",
        "a*+",
        "(a*)*",
        "a$b",
        "($)",
        "\\p{L}",
        "[a&&b]",
        "[[:alpha:]]",
        "*a",
        "a{2000}",
        "(",
        ")",
        "[a",
        "\\",
        "a{x}",
    ],
)
def test_patterns_re2_reads_in_another_way_are_refused(pattern: str) -> None:
    with pytest.raises(ExpressionError, match="regular expression"):
        U.rlike(pattern)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: U.like("a\\b"),
        lambda: U.split(""),
        lambda: U.split("(a)"),
        lambda: U.regexp_replace("a*", "b"),
        lambda: U.regexp_replace("a", "$1"),
        lambda: U.regexp_extract("a", 1),
        lambda: U.regexp_extract("a$", 0),
        lambda: U.regexp_extract("(?:(a)b)+", 1),
        lambda: func("like", U, col("n")),
        lambda: func("date_trunc", "century", TS),
        lambda: col("l")[-1],
        lambda: U.substring(2**40),
        lambda: when(1, 2),  # type: ignore[arg-type]
        lambda: when(N > 1, 2).otherwise(3).otherwise(4),
    ],
)
def test_calls_that_no_row_could_answer_are_refused(wrong: Callable[[], Expr]) -> None:
    with pytest.raises(ExpressionError):
        wrong()


@pytest.mark.parametrize("text", ["regexp_replace(u, 'a', 'b', 3)", "weekday(u)", "u LIKE n"])
def test_text_beyond_them_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_expr(text)
