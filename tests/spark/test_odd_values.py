"""Odd values of every type, and what Spark makes of them: extremes, NaN, -0.0, bytes that are not text, parts that are null."""

from __future__ import annotations

import datetime as dt
import functools
import math
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from krishiv_py import Session
from krishiv_py.kernels.columns.evaluate import evaluate, expr_type
from krishiv_py.plan.expressions.parse import parse_expr
from krishiv_py.testing import Driver, stream_of
from tests.spark.row_by_row import check_rows
from tests.spark.test_collection_functions import equal

NAN: Final = math.nan
US: Final = (0, 1, -1, 1_709_251_199_999_999, None, -62_135_596_800_000_000, 253_402_300_799_999_999, 951_782_400_000_000)


@functools.cache
def table() -> pa.Table:
    """Eight rows, as a stream takes them in: the fifth is null almost everywhere."""
    rows = pa.table(plain_values() | nested_values())
    return Driver(stream_of(rows.schema).select(*rows.schema.names)).send(rows).results


def nested_values() -> dict[str, Any]:
    number, big = pa.int64(), 2**63 - 1
    struct = pa.struct([("a", number), ("b", pa.struct([("c", pa.string()), ("d", pa.list_(pa.float64()))]))])
    inner = [{"c": "x", "d": [0.0, -0.0]}, {"c": None, "d": [NAN, None]}, {"c": "x", "d": []}, {"c": "", "d": None}]
    return {
        "st": pa.array(
            [{"a": 1, "b": inner[0]}, {"a": None, "b": None}, None, *({"a": a, "b": inner[b]} for a, b in ODD)], struct
        ),
        "su": pa.array(
            [{"a": 1, "b": inner[0]}, {"a": None, "b": None}, None, None, *({"a": a, "b": inner[b]} for a, b in EVEN)], struct
        ),
        "m": pa.array(
            [[("a", [1, None])], [], None, [("b", None)], [("a", []), ("b", [2])], [("", [0])], [("z", [9])], [("a", [1])]],
            pa.map_(pa.string(), pa.list_(number)),
        ),
        "xs": pa.array([[1, 2, 2, None], [], None, [3], [None], [None, None], [2, 1], [0, -1, big]], pa.list_(number)),
        "ys": pa.array([[2, None], [], [1], None, [None], [None], [1, 2], [big]], pa.large_list(number)),
        "fs": [[0.0, -0.0], [NAN, 1.0], None, [], [None, NAN], [math.inf], [-0.0], [0.0]],
        "bs": [[b"a", None], [b"\xff", b""], None, [], [b"a", b"a"], [None], [b"ab", b"b"], [b"\x00"]],
        "ds": pa.array(
            [
                [Decimal("1.10"), None],
                [Decimal("-9.99")],
                None,
                [],
                [Decimal("0.00")] * 2,
                [Decimal("9.99"), Decimal("1.10")],
                [Decimal("0.01")],
                [None],
            ],
            pa.list_(pa.decimal128(3, 2)),
        ),
        "xss": [[[1], [1], None], [[]], None, [], [None, None], [[2, None], [2, None], [2]], [[3], [], [1, 2]], [[1, 2], [1]]],
        "ms": pa.array(
            [None if v is None else [p if p is None else dict(zip("pq", p, strict=True)) for p in v] for v in PAIRS],
            pa.list_(pa.struct([("p", pa.int32()), ("q", pa.string())])),
        ),
        "ml": pa.array(
            [[[("a", 1)]], [], None, [[]], [None], [[("b", 2)]], [[("a", None)]], [[]]], pa.list_(pa.map_(pa.string(), number))
        ),
    }


def plain_values() -> dict[str, Any]:
    day, number = dt.date, pa.int64()
    big, wide = 2**63 - 1, "9" * 38
    days = [day(1970, 1, 1), day(1, 1, 1), day(9999, 12, 31), day(2024, 2, 29), None, day(1969, 12, 31), day(1900, 2, 28)]
    late = [day(2000, 2, 29), day(1969, 7, 20), day(2038, 1, 19), day(1999, 12, 31), None, day(1970, 1, 2), day(2023, 3, 31)]
    cents = [Decimal(x) for x in ("0.00", "99999999.99", "-99999999.99", "1.05")]
    return {
        "i8": pa.array([0, 127, -128, 1, None, 5, -1, 2], pa.int8()),
        "i16": pa.array([0, 32767, -32768, 2, None, 3, 7, 1], pa.int16()),
        "i": pa.array([0, 2**31 - 1, -(2**31), 3, None, 1, -3, 2], pa.int32()),
        "n": pa.array([0, big, -(2**63), 4, None, -1, 10, 3], number),
        "f": pa.array([0.0, -0.0, NAN, math.inf, None, -math.inf, 1.5, 1e-320]),
        "r": pa.array([-0.0, 0.1, NAN, 3.4e38, None, 1e-45, -1.5, 0.0], pa.float32()),
        "d": pa.array([*cents, None, Decimal("-0.01"), Decimal("2.50"), Decimal("1.00")], pa.decimal128(10, 2)),
        "e": pa.array(
            [Decimal(0), Decimal(wide), Decimal(f"-{wide}"), Decimal(1), None, *map(Decimal, (3, 2, 7))], pa.decimal128(38, 0)
        ),
        "s": ["", "ß", "İi", "a,b,,c", None, " 12 ", "日本語", "e\u0301\U0001f600"],
        "t": pa.array(["a", "SS", "i", "", None, "12", "日", "\U0001f600"], pa.large_string()),
        "k": pa.array(["x", "y", "x", None, "z", "x", "", "y"]).dictionary_encode(),
        "b": pa.array([b"", b"\x00\xff", b"abc", None, b"\xc3\x9f", b"\xff", b"a", b"12"]),
        "bo": [True, False, None, True, False, None, True, False],
        "da": [*days, day(1582, 10, 15)],
        "db": pa.array([*late, day(1950, 5, 5)], pa.date64()),
        "ts": pa.array(US, pa.timestamp("us", "Asia/Tokyo")),
        "tn": pa.array([None if u is None else u // 1_000 for u in US], pa.timestamp("ms")),
        "tz": pa.array([None if u is None else u // 1_000_000 for u in US], pa.timestamp("s", "America/New_York")),
        "du": pa.array([0, 1, -1, 86_400, None, -86_401, 3_600, 59], pa.duration("s")),
    }


ODD: Final = ((1, 1), (2, 2), (1, 0), (-1, 3), (1, 1))
EVEN: Final = ((1, 1), (1, 0), (-1, 2), (1, 1))
PAIRS: Final[tuple[list[Any] | None, ...]] = (
    *([(1, "x"), (1, "x")], [None, (None, None)], None, [], [(None, None)], [(2, "a"), (1, "b")]),
    *([(1, None), (1, "a")], [None]),
)
TEXTS: Final = Path(__file__).with_name("odd_values.txt").read_text(encoding="utf-8").splitlines()


def test_values_and_errors_are_those_of_spark(session: Session) -> None:
    check_rows(session, table(), TEXTS, equal)


@pytest.mark.parametrize("text", TEXTS)
def test_no_rows_have_no_values(text: str) -> None:
    rows, expr = table(), parse_expr(text)
    none = evaluate(expr, rows.slice(0, 0))
    assert len(none) == 0
    assert none.type == expr_type(expr, rows.schema)
