"""Functions of numbers, texts, nulls and JSON; what Spark gives for them is held in tests/spark."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import Expr, ExpressionError, OperatorError, col, func
from krishiv_py.kernels.columns.evaluate import evaluate
from krishiv_py.plan.expressions.parse import parse_expr

UTC = dt.timezone.utc
ROWS = pa.table(
    {
        "a": pa.array([7, -7, None], pa.int64()),
        "i": pa.array([3, -3, None], pa.int32()),
        "x": [2.5, math.nan, None],
        "m": pa.array([Decimal("1.25"), Decimal("-1.25"), None], pa.decimal128(5, 2)),
        "s": ["hello", "ÄßA", None],
        "t": ["l", "A", None],
        "d": pa.array([dt.date(2024, 2, 29), dt.date(1969, 12, 31), None]),
        "ts": pa.array(
            [dt.datetime(2024, 2, 29, 1, 2, 3, 456_789, UTC), dt.datetime(1969, 12, 31, 23, tzinfo=UTC), None],
            pa.timestamp("us", "UTC"),
        ),
        "l": [[1, None, 3], [], None],
        "b": [True, False, None],
        "j": ['{"a": {"b": [1, "x", {"c": 2.50}]}, "a": 5}', '{"a b": null, "a.b": true, "n": [[]]}', None],
        "w": ["31/01/2024 7:08", "1/1/1970 0:00", None],
    }
)
A, N, X, M, S, T = map(col, "aixmst")


@pytest.mark.parametrize(
    ("expr", "text", "wanted"),
    [
        (A.equal_null(None), "a <=> NULL", [False, False, True]),
        (A.equal_null(7), "a IS NOT DISTINCT FROM 7", [True, False, False]),
        (~A.equal_null(N), "a IS DISTINCT FROM i", [True, True, False]),
        (X.equal_null(math.nan), "x <=> double('nan')", [False, True, False]),
        (None, "b IS TRUE", [True, False, False]),
        (None, "b IS NOT TRUE", [False, True, True]),
        (None, "b IS FALSE", [False, True, False]),
        (X.isnan(), "isnan(x)", [False, True, False]),
        (None, "nanvl(x, 0)", [2.5, 0.0, None]),
        (None, "isnull(a) OR isnotnull(a)", [True, True, True]),
        (None, "nvl2(a, 'y', 'n')", ["y", "y", "n"]),
        (M.floor(), "floor(m)", [Decimal(1), Decimal(-2), None]),
        (M.ceil(), "ceiling(m)", [Decimal(2), Decimal(-1), None]),
        (N.floor(), "floor(i)", [3, -3, None]),
        (A.div(2), "a DIV 2", [3, -3, None]),
        (A.pmod(3), "pmod(a, 3)", [1, 2, None]),
        (A.pmod(-3), "pmod(a, -3)", [1, -1, None]),
        (M.pmod(1), "pmod(m, 1)", [Decimal("0.25"), Decimal("0.75"), None]),
        (A.sign(), "sign(a)", [1.0, -1.0, None]),
        (None, "sqrt(a * a)", [7.0, 7.0, None]),
        (A.ln(), "ln(a)", [math.log(7), None, None]),
        (A.log2(), "log2(a)", [math.log2(7), None, None]),
        (None, "log(7, a)", [1.0, None, None]),
        (N.pow(2), "power(i, 2)", [9.0, 9.0, None]),
        (None, "(a & i) | (8 ^ 1)", [11, -7, None]),
        (None, "~a", [-8, 6, None]),
        (S.instr(T), "locate(t, s)", [3, 3, None]),
        (S.instr("z"), "position('z' IN s)", [0, 0, None]),
        (S.replace("l", "LL"), "replace(s, 'l', 'LL')", ["heLLLLo", "ÄßA", None]),
        (S.replace("l"), "replace(s, 'l')", ["heo", "ÄßA", None]),
        (S.translate("elß", "ip"), "translate(s, 'elß', 'ip')", ["hippo", "ÄA", None]),
        (S.reverse(), "reverse(s)", ["olleh", "AßÄ", None]),
        (S.repeat(2), "repeat(s, 2)", ["hellohello", "ÄßAÄßA", None]),
        (None, "left(s, 2) || right(s, 2)", ["helo", "ÄßßA", None]),
        (None, "left(s, -1)", ["", "", None]),
        (None, "btrim(s, 'ho')", ["ell", "ÄßA", None]),
        (None, "s LIKE ANY ('h%', '%A')", [True, True, None]),
        (None, "s NOT LIKE ALL ('h%', '%x%')", [False, True, None]),
        (None, "concat(s, '%') LIKE '%!%' ESCAPE '!'", [True, True, None]),
        (None, "concat(s, '\\\\') LIKE '%\\\\' ESCAPE '!'", [True, True, None]),
        (col("l").get(2), "get(l, 2)", [3, None, None]),
        (None, "get(l, -1)", [None, None, None]),
        (None, "try_element_at(l, -1)", [3, None, None]),
        (func("array", A, 1), "array(a, 1)", [[7, 1], [-7, 1], [None, 1]]),
        (None, "d + 1", [dt.date(2024, 3, 1), dt.date(1970, 1, 1), None]),
        (None, "d - i", [dt.date(2024, 2, 26), dt.date(1970, 1, 3), None]),
        (None, "trunc(d, 'MM')", [dt.date(2024, 2, 1), dt.date(1969, 12, 1), None]),
        (None, "weekday(d)", [3, 2, None]),
        (None, "unix_date(d)", [19_782, -1, None]),
        (None, "date_from_unix_date(i)", [dt.date(1970, 1, 4), dt.date(1969, 12, 29), None]),
        (None, "timestampdiff(HOUR, ts, TIMESTAMP '1970-01-01')", [-474_769, 1, None]),
        (None, "datediff(WEEK, d, DATE '1970-01-08')", [-2825, 1, None]),
        (
            None,
            "date_trunc('MILLISECOND', ts)",
            [dt.datetime(2024, 2, 29, 1, 2, 3, 456_000, UTC), dt.datetime(1969, 12, 31, 23, tzinfo=UTC), None],
        ),
        (
            col("w").to_timestamp("dd/MM/yyyy H:mm").date_format("yyyy-MM-dd HH"),
            None,
            "to_timestamp: 1/1/1970 has no two digits for dd",
        ),
        (
            col("w").to_timestamp("d/M/yyyy H:mm"),
            "to_timestamp(w, 'd/M/yyyy H:mm')",
            [dt.datetime(2024, 1, 31, 7, 8, tzinfo=UTC), dt.datetime(1970, 1, 1, tzinfo=UTC), None],
        ),
        (None, "to_date(left(w, 8), 'd/M/yyyy')", "31/01/20"),
        (None, "try_to_timestamp(w, 'dd/MM/yyyy H:mm')", [dt.datetime(2024, 1, 31, 7, 8, tzinfo=UTC), None, None]),
        (None, "to_date(concat('2024', '0229', left(s, 0)), 'yyyyMMdd')", [dt.date(2024, 2, 29)] * 2 + [None]),
        (
            col("ts").date_format("yyyy-MM-dd'T'HH:mm"),
            """date_format(ts, "yyyy-MM-dd'T'HH:mm")""",
            ["2024-02-29T01:02", "1969-12-31T23:00", None],
        ),
        (None, """date_format(d, "'d' d")""", ["d 29", "d 31", None]),
        (None, """to_date('on 2024-01-31', "'on 'yyyy-MM-dd")""", [dt.date(2024, 1, 31)] * 3),
        (col("j").get_json_object("$.a.b[0]"), "get_json_object(j, '$.a.b[0]')", ["1", None, None]),
        (None, "get_json_object(j, '$.a.b[1]')", ["x", None, None]),
        (None, "get_json_object(j, '$.a.b[2]')", ['{"c":2.5}', None, None]),
        (None, "get_json_object(j, '$.a')", ['{"b":[1,"x",{"c":2.5}]}', None, None]),
        (None, "get_json_object(j, \"$['a.b']\")", [None, "true", None]),
        (None, "get_json_object(j, '$.n[0]')", [None, "[]", None]),
        (None, "bigint(x IS NULL)", [0, 0, 1]),
        (None, "try_divide(a, i - 3)", [None, -7 / -6, None]),
    ],
)
def test_functions(expr: Expr | None, text: str | None, wanted: Any) -> None:
    for each in [*([] if expr is None else [expr]), *([] if text is None else [parse_expr(text)])]:
        if isinstance(wanted, str):
            with pytest.raises(OperatorError, match="is not written as"):
                evaluate(each, ROWS)
            continue
        assert evaluate(each, ROWS).to_pylist() == wanted
        assert [evaluate(each, ROWS.slice(i, 1)).to_pylist()[0] for i in range(3)] == wanted
        assert evaluate(each, ROWS.slice(0, 0)).type == evaluate(each, ROWS).type


@pytest.mark.parametrize(
    "text", ["floor(x)", "a DIV 0", "pmod(a, 0)", "floor(1e300)", "try_element_at(l, 0)", "bigint(9e18) + bigint(9e18)"]
)
def test_what_has_no_value_is_an_error(text: str) -> None:
    with pytest.raises(OperatorError, match="cannot be computed"):
        evaluate(parse_expr(text), ROWS)


@pytest.mark.parametrize(
    "text",
    [
        "a BETWEEN SYMMETRIC 9 AND 1",
        "x DIV 2",
        "x & 1",
        "floor(s)",
        "isnan(s)",
        "floor(m, 1)",
        "instr(a, 'x')",
        "locate('l', s, 2)",
        "replace(s, t, 'x')",
        "repeat(s, i)",
        "repeat(s, 20000)",
        "left(s, i)",
        "s LIKE 'a!b' ESCAPE '!'",
        "get(a, 1)",
        "array(a, s)",
        "d * 2",
        "trunc(d, 'hour')",
        "datediff(MONTH, d, d)",
        "to_date(w, 'dd/MMM/yyyy')",
        "to_date(w, 'yy')",
        "to_date(a, 'yyyy')",
        "get_json_object(j, '$.a[*]')",
        "a & i | 8",
        "get_json_object(j, '$..a')",
        "get_json_object(j, s)",
    ],
)
def test_calls_without_meaning_are_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match="Hint:"):
        evaluate(parse_expr(text), ROWS)


def test_the_least_numbers_have_two_digits_as_java_writes_them() -> None:
    rows = pa.table({"x": [5e-324, 1e-323, 2e23, 0.00009], "y": pa.array([1e-45, 3e-45, 1e10, -0.0], pa.float32())})
    assert evaluate(parse_expr("CAST(x AS string)"), rows).to_pylist() == ["4.9E-324", "9.9E-324", "2.0E23", "9.0E-5"]
    assert evaluate(parse_expr("CAST(y AS string)"), rows).to_pylist() == ["1.4E-45", "2.8E-45", "1.0E10", "-0.0"]
    assert [math.copysign(1, x) for x in evaluate(parse_expr("sign(y)"), rows).to_pylist()] == [1, 1, 1, -1]


def test_decimals_of_any_length_have_the_hashes_of_spark() -> None:
    short = pa.array([Decimal("1.05"), Decimal("-1.05"), None], pa.decimal128(10, 2))
    long = pa.array([Decimal("9" * 38), Decimal("-" + "9" * 38), None], pa.decimal128(38, 0))
    rows = pa.table({"d": short, "e": long})
    assert evaluate(parse_expr("hash(d)"), rows).to_pylist() == [-650115509, 1778209725, 42]
    assert evaluate(parse_expr("hash(e)"), rows.slice(1)).to_pylist() == [1400911110, 42]
    assert len(evaluate(parse_expr("xxhash64(d, e)"), rows.slice(0, 0))) == 0
