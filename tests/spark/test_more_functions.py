"""More functions of SQL text give what Spark gives for the same text, value or error, row by row (docs/expressions.md)."""

from __future__ import annotations

import math
import random
from typing import Any

import pyarrow as pa

from krishiv_py import Session
from krishiv_py.plan.expressions.parse import parse_expr
from tests.spark.expression_trees import table
from tests.spark.row_by_row import check_rows
from tests.spark.test_expressions import ERROR, Spark, ours, same

ROWS = 60
_NUMBERS = ("i8", "i32", "i64", "f32", "f64", "d5", "d18", "d38")
_PAIRS = (("i32", "j64"), ("i64", "i64"), ("f64", "g64"), ("d5", "d5"), ("d5", "j64"), ("s", "t"), ("da", "ts"), ("bo", "bp"))
_EXACT = (
    *(f"{a} <=> {b}" for a, b in _PAIRS),
    *(f"NOT equal_null({a}, {b})" for a, b in _PAIRS),
    *("bo IS TRUE", "bo IS NOT TRUE", "bo IS FALSE", "(i32 > 1) IS NOT FALSE", "isnan(f32)", "isnan(f64)", "isnan(i32)"),
    *("nanvl(f64, g64)", "isnull(s)", "isnotnull(d38)", "nvl2(s, i32, j64)", "zeroifnull(j64)", "nullifzero(i64)"),
    *(
        f"{f}({x})"
        for f in ("floor", "ceil")
        for x in ("i8", "i64", "d5", "d18", "d38", "nanvl(g64, 2.5D) * 10", "-1.5BD", "2.5D")
    ),
    *(f"sign({x})" for x in ("i8", "i64", "f32", "f64", "d5")),
    *("i64 DIV j64", "i8 DIV i16", "(i64 + 0L) DIV -1L", "pmod(i64, j64)", "pmod(i8, i16)", "pmod(d5, 3BD)", "pmod(f64, g64)"),
    *("pmod(j64, -3L)", "i64 & j64", "i8 | i32", "i64 ^ i8", "~i16", "(i64 & 7L) | (i8 ^ 1)", "sqrt(f64)", "sqrt(i32)"),
    *("instr(s, t)", "instr(s, 'b')", "locate('ß', s)", "position('' IN s)", "replace(s, 'a', 'xy')", "replace(s, '')"),
    *("replace(s, 'b')", "translate(s, 'abß', 'xy')", "translate(s, 'aab', '123')", "translate(s, '', 'q')", "reverse(s)"),
    *(
        "repeat(s, 3)",
        "repeat(s, 0)",
        "repeat(s, -1)",
        "left(s, 2)",
        "left(s, 0)",
        "right(s, 2)",
        "right(s, 9)",
        "right(s, -1)",
    ),
    *("btrim(s)", "btrim(s, 'a')", "concat_ws('-', s, t, num)", "concat_ws(s, 'x', t)", "concat_ws('/', ls, s, ls)"),
    *("concat_ws('-')", "s LIKE ANY ('a%', '%b')", "s NOT LIKE ANY ('a%', '%b')", "s LIKE ALL ('a%', '%b')"),
    *("s NOT LIKE ALL ('a%', '%b')", "s ILIKE ANY ('A%')", "s LIKE 'a!%%' ESCAPE '!'", "s LIKE 'a!!_' ESCAPE '!'"),
    *(
        "get(ls, i32)",
        "get(ls, 0)",
        "get(ls, -1)",
        "try_element_at(ls, 2)",
        "try_element_at(ls, -2)",
        "try_element_at(mp, 'b')",
    ),
    *("array(i32, 7)", "array(s, t, NULL)", "array(i8, d5)", "array(da)", "da + 1", "da - i8", "da - i16", "weekday(da)"),
    *("weekday(ts)", "trunc(da, 'YY')", "trunc(da, 'quarter')", "trunc(ts, 'MON')", "trunc(da, 'week')", "unix_date(da)"),
    *("date_from_unix_date(i16)", "timestampdiff(HOUR, ts, tu)", "timestampdiff(MILLISECOND, ts, tu)", "datediff(DAY, ts, tu)"),
    *("timestampdiff(WEEK, da, ts)", "datediff(MINUTE, tn, tn)", "datepart('month', ts)", "date_trunc('MM', ts)"),
    *("date_trunc('millisecond', ts)", "date_trunc('microsecond', ts)", "date_trunc('dd', ts)", "date_trunc('yyyy', ts)"),
    *("bigint(d5)", "smallint(i32)", "tinyint(i64)", "try_divide(i32, j64)", "try_divide(d5, d5)", "try_divide(f64, g64)"),
)
_NEAR = (
    *("exp(g64)", "exp(i8)", "ln(f64)", "ln(i64)", "ln(d38)", "log(f64)", "log10(f64)", "log2(i64)", "log(g64, f64)"),
    *("log(2, f64)", "log(10, i32)", "log(3, i32)", "pow(f64, g64)", "power(i32, 2)", "pow(j64, -1)", "pow(g64, f64)"),
)
_PATTERNS = (
    "yyyy-MM-dd",
    "yyyy-M-d",
    "yyyy-MM-dd HH:mm:ss",
    "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "yyyyMMdd",
    "d.M.yyyy",
    "HH:mm",
    "yyyy",
)
_TIMES = (
    *(
        "2024-01-31",
        "2024-1-5",
        "2024-02-30",
        "20240229",
        "20240230",
        "31.1.2024",
        "1.12.1999",
        "12:30",
        "24:00",
        "1970",
        "x",
        "",
    ),
    *("2023-12-31 23:59:59", "2023-12-31 23:59:60", "2024-01-01T12:00:00.123456", "2024-01-01T12:00:00.1", " 2024-01-31"),
    *("2024-01-31 ", "2024-13-01", "2024-00-10", "2024-01-00", "0001-01-01", "0000-01-01", "9999-12-31"),
)
_JSON = (
    *('{"a": 1}', '{"a": {"b": [1, "x", {"c": 2.50}]}}', '{"a": null}', '{"a": [null, [1, [2]]]}', '{"a": "te\\"xt\\u00e9"}'),
    *(
        '{"a": {"b": null}, "a": {"b": 7}}',
        '{"a": 1e3, "b c": -0, "b.c": 1E400}',
        '[1, {"a": 2}]',
        '"text"',
        "7",
        "",
        "  ",
        "{",
    ),
    *('{"a": 1} trailing', '{"a": NaN}', '{"a": tru}', '{"a": true, "b": }', '{"a": {}}', '{"a": []}', '{"": 1}'),
    *('{"a": 12345678901234567890123, "n": 0.1}', '{"a": {"b": {"b": {"b": 1}}}}', "null", '{"a": "5", "b": [[], {}]}'),
)
_PATHS = (
    "$",
    "$.a",
    "$.a.b",
    "$.a.b[0]",
    "$.a.b[1]",
    "$.a.b[2].c",
    "$.a[0]",
    "$.a[1][1][0]",
    "$['b c']",
    "$['b.c']",
    "$[0]",
    "$[1].a",
    "$.n",
)


def _near(left: Any, right: Any) -> bool:
    """Within two units in the last place: NumPy and Java compute these functions on their own."""
    if isinstance(left, float) and isinstance(right, float) and math.isfinite(left) and math.isfinite(right):
        return abs(left - right) <= 2 * math.ulp(max(abs(left), abs(right)))
    return same(left, right)


def test_values_and_errors_are_those_of_spark(session: Session) -> None:
    check_rows(session, table(random.Random("further"), ROWS), _EXACT)


def test_logarithms_and_powers_are_near_those_of_spark(session: Session) -> None:
    check_rows(session, table(random.Random("near"), ROWS), _NEAR, _near)


def test_texts_are_read_as_times_by_patterns_as_spark_reads_them(session: Session) -> None:
    rows = pa.table({"w": [*_TIMES, None]})
    calls = ("to_date", "to_timestamp", "try_to_timestamp")
    check_rows(
        session, rows, tuple(f"{call}(w, '{p}')".replace("'T'", "''T''") for call in calls for p in _PATTERNS if "'T'" not in p)
    )
    check_rows(session, rows, tuple(f"{call}(w, \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS\")" for call in calls))


def test_json_is_found_by_paths_as_spark_finds_it(session: Session) -> None:
    rows = pa.table({"j": [*_JSON, None]})
    check_rows(session, rows, tuple(f'get_json_object(j, "{path}")' for path in _PATHS))


def test_the_whole_part_of_nan_is_an_error_and_not_zero(session: Session) -> None:
    """A departure."""
    rows = pa.table({"x": [math.nan]})
    assert ours(parse_expr("floor(x)"), rows) == ours(parse_expr("ceil(x)"), rows) == [ERROR]
    assert Spark(session, rows).values(["floor(x)"])[0][1] == [0]
