"""Functions of expressions: what they give, what of SQL text reaches them, and what is refused."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


T = dt.timezone.utc
MORE = pa.table(
    {
        "at": pa.array([dt.datetime(2024, 1, 31, 12, 30, 15, 250_000, T), None], pa.timestamp("us", "UTC")),
        "d": [dt.date(2024, 1, 31), None],
        "s": ["a/b", None],
        "n": [1, None],
        "l": pa.array([["x", "y", None], None]),
        "m": pa.array([[("k", 7)], None], pa.map_(pa.string(), pa.int64())),
    }
)
AT, D, S = col("at"), col("d"), col("s")


@pytest.mark.parametrize(
    ("expr", "text", "wanted"),
    [
        (AT + dt.timedelta(minutes=5), "at + INTERVAL 5 MINUTES", dt.datetime(2024, 1, 31, 12, 35, 15, 250_000, T)),
        (AT - dt.timedelta(seconds=1.5), "at - INTERVAL '1.5' SECOND", dt.datetime(2024, 1, 31, 12, 30, 13, 750_000, T)),
        (AT.plus_months(1), "INTERVAL 1 MONTH + at", dt.datetime(2024, 2, 29, 12, 30, 15, 250_000, T)),
        (D.plus_months(-2), "d - INTERVAL '2' MONTH", dt.date(2023, 11, 30)),
        (D.plus_months(14), "d + INTERVAL 1 YEAR 2 MONTHS", dt.date(2025, 3, 31)),
        (D.plus_days(7), "d + INTERVAL 1 WEEK", dt.date(2024, 2, 7)),
        (D.add_months(col("n")), "add_months(d, n)", dt.date(2024, 2, 29)),
        (
            AT - lit(dt.datetime(2024, 1, 30, tzinfo=T)) > dt.timedelta(days=1),
            "at - TIMESTAMP '2024-01-30' > INTERVAL 1 DAY",
            True,
        ),
        (D.last_day(), "last_day(d)", dt.date(2024, 1, 31)),
        (func("second_fraction", AT), "EXTRACT(SECOND FROM at)", Decimal("15.250000")),
        (AT.hour(), "date_part('hour', at)", 12),
        (AT.dayofweek(), "EXTRACT(DOW FROM at)", 4),
        (func("unix_timestamp", AT), "unix_timestamp(at)", 1_706_704_215),
        (AT.unix_millis(), "unix_millis(at)", 1_706_704_215_250),
        (D.unix_micros(), "unix_micros(d)", 1_706_659_200_000_000),
        (func("timestamp_millis", col("n")), "timestamp_millis(n)", dt.datetime(1970, 1, 1, 0, 0, 0, 1000, T)),
        (col("n").from_unixtime("yy-M-d h a"), "from_unixtime(n, 'yy-M-d h a')", "70-1-1 12 AM"),
        (AT.date_format("EEE, d. MMMM yyyy SSS"), "date_format(at, 'EEE, d. MMMM yyyy SSS')", "Wed, 31. January 2024 250"),
        (S.split_part("/", -1), "split_part(s, '/', -1)", "b"),
        (S.lpad(5, "xy"), "lpad(s, 5, 'xy')", "xya/b"),
        (concat(S, "ß").octet_length(), "octet_length(s || 'ß')", 5),
        (S.rpad(2), "rpad(s, 2)", "a/"),
        (S.regexp_count("[ab]"), "regexp_count(s, '[ab]')", 2),
        (col("l").element_at(-2), "element_at(l, -2)", "y"),
        (col("l").element_at(col("n")), "element_at(l, n)", "x"),
        (col("l")[col("n")], "l[n]", "y"),
        (col("l")[col("n") - 1], "l[n - 1]", "x"),
        (col("n").width_bucket(0.5, 1.5, 4), "width_bucket(n, 0.5, 1.5, 4)", 3),
        (col("n").width_bucket(3, lit(0.0), col("n") + 2), "width_bucket(n, 3, 0e0, n + 2)", 3),
        (col("l").size(), "cardinality(l)", 3),
        (col("l").array_contains("y"), "array_contains(l, 'y')", True),
        (col("l").array_contains("z"), "array_contains(l, 'z')", None),
        (col("m")["k"], "m['k']", 7),
        (col("m").element_at("j"), "element_at(m, 'j')", None),
        (func("md5", S), "md5(s)", hashlib.md5(b"a/b").hexdigest()),
        (func("sha2", S, 0), "sha2(s, 0)", hashlib.sha256(b"a/b").hexdigest()),
    ],
)
def test_functions_of_one_known_value_next_to_a_null(expr: Expr, text: str | None, wanted: Any) -> None:
    for each in [expr] if text is None else [expr, parse_expr(text)]:
        assert evaluate(each, MORE).to_pylist() == [wanted, None]
        assert evaluate(each, MORE.slice(1)).to_pylist() == [None]
        assert evaluate(each, MORE.slice(0, 0)).to_pylist() == []


def test_json_is_read_the_same_in_whatever_company() -> None:
    """What is read is held to Spark in tests/spark."""
    texts = [
        '{"a": 1, "b": "x"}',
        '{"a": "x", "b": 2.50}',
        None,
        "",
        "[1]",
        '{"a": 1',
        '{"a": 7, "c": [1]}',
        '{"a": -0, "a": []}',
    ]
    wanted = [{"a": 1, "b": "x"}, {"a": None, "b": "2.5"}, None, None, *[{"a": None, "b": None}] * 2, {"a": 7, "b": None}]
    wanted.append({"a": 0, "b": None})
    rows = pa.table({"t": texts * 9})
    expr = parse_expr("from_json(t, 'a bigint, b string')")
    assert expr.same_as(col("t").from_json("a bigint, b string"))
    assert evaluate(expr, rows).to_pylist() == wanted * 9
    assert [evaluate(expr, rows.slice(i, 1)).to_pylist()[0] for i in range(8)] == wanted
    assert evaluate(expr.field("a"), rows.slice(0, 0)).type == pa.int64()
    for schema in ("a date", "a", "a int, a int", "a array<decimal(5,2)>", ""):
        with pytest.raises(ExpressionError, match="from_json"):
            col("t").from_json(schema)


def test_hashes_do_not_depend_on_the_rows_next_to() -> None:
    """Their bits are held to Spark's in tests/spark."""
    texts = ["", "abc", "日本語", "x" * 31, "y" * 32, "z" * 103, None]
    rows = pa.table({"s": texts, "n": [1, None, -1, 2**62, 0, 7, 8]})
    for name in ("hash", "xxhash64"):
        whole = evaluate(func(name, col("s"), col("n")), rows).to_pylist()
        assert whole == [evaluate(func(name, col("s"), col("n")), rows.slice(i, 1))[0].as_py() for i in range(7)]
        assert evaluate(func(name, lit(None)), rows).to_pylist() == [42] * 7
    assert evaluate(func("hash", col("s")), rows)[1].as_py() == 1_322_437_556
    assert evaluate(func("xxhash64", col("s")), rows)[1].as_py() == 1_423_657_621_850_124_518


@given(lists=st.lists(st.lists(st.text(max_size=9) | st.none(), max_size=4) | st.none(), min_size=1, max_size=8))
def test_nested_values_hash_one_by_one_as_columns_do(lists: list[list[str | None] | None]) -> None:
    """A list, and a struct of a list, hash as their elements would side by side; empty and null ones as nothing."""
    rows = pa.table({"l": pa.array(lists, pa.list_(pa.string())), "n": range(len(lists))})
    for name in ("hash", "xxhash64"):
        actual = evaluate(func(name, col("n"), col("l")), rows).to_pylist()
        inside = func("named_struct", lit("n"), col("n"), lit("l"), col("l"))
        assert evaluate(func(name, inside), rows).to_pylist() == actual
        for i, items in enumerate(lists):
            plain = func(name, lit(i), *(lit(x).cast("string") for x in items or []))
            assert evaluate(plain, rows)[0].as_py() == actual[i]


def test_places_of_a_list_by_a_column_are_checked() -> None:
    rows = pa.table({"l": [["a", "b"], None, ["c"]], "n": [1, 7, 0]})
    assert evaluate(parse_expr("l[n]"), rows).to_pylist() == ["b", None, "c"]
    for wrong in ("l[n + 1]", "l[n - 1]"):
        with pytest.raises(OperatorError, match="has no element"):
            evaluate(parse_expr(wrong), rows)


def test_width_buckets_without_meaning_are_null() -> None:
    rows = pa.table({"x": [0.0, -1.0, 5.0, math.nan, math.inf, None]})
    assert evaluate(col("x").width_bucket(-1, 5, 6), rows).to_pylist() == [2, 1, 7, None, 7, None]
    assert evaluate(col("x").width_bucket(5, -1, 6), rows).to_pylist() == [6, 7, 1, None, 0, None]
    for low, high, n in ((1, 1, 3), (0, math.inf, 3), (math.nan, 1, 3), (0, 1, 0), (0, 1, -2), (0, 1, 2**63 - 1)):
        assert evaluate(col("x").width_bucket(low, high, n), rows).to_pylist() == [None] * 6


@pytest.mark.parametrize(
    "text",
    [
        "date_format(at, 'Q')",
        "date_format(at, 'yyyyy')",
        "lpad(s, 2000000)",
        "split_part(s, '/', 0)",
        "at + INTERVAL n DAYS",
        "at + INTERVAL 1 FORTNIGHT",
        "at + INTERVAL '1.5' DAY",
        "INTERVAL 1 MONTH",
        "at + INTERVAL '1 02:03:60' DAY TO SECOND",
        "EXTRACT(MILLENNIUM FROM at)",
        "sha2(s, n)",
        "hash()",
        "hash(m)",
        "hash(named_struct('a', m))",
        "width_bucket(s, 0, 1, 2)",
        "width_bucket(n, 0, 1, 2.5)",
        "size(s)",
        "array_contains(l, 1)",
        "unix_seconds(s)",
        "timestamp_seconds(1.5)",
        "regexp_count(s, 'a*')",
        "add_months(d, 1.5)",
        "l['x']",
        "m[1]",
    ],
)
def test_calls_without_meaning_are_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match="Hint:"):
        evaluate(parse_expr(text), MORE)


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
    for i in range(2_000):
        case = case.when(func("abs", N) == i, i)
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
        "[^&&a]",
        "[a&&]",
        "[!-&&a]",
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


@pytest.mark.parametrize("text", ["regexp_replace(u, 'a', 'b', 3)", "soundex(u)", "u LIKE n"])
def test_text_beyond_them_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_expr(text)
