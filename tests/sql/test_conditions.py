"""Aggregates over conditions under all their names."""

from __future__ import annotations

from typing import Any

import pytest

from krishiv_py import ExpressionError
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of

ROWS = [{"k": "ab"[n % 2], "n": n, "at": n} for n in range(4)]
WINDOW = "tumble(at, INTERVAL '1' SECOND)"


def planned(text: str) -> Any:
    session = SqlContext()
    session.register("t", stream_of("k string, n bigint, at bigint"), event_time="at", lag=0)
    return session.sql(text)


def answer(text: str) -> list[dict[str, Any]]:
    driver = Driver(planned(text))
    return [*driver.send(ROWS).results.to_pylist(), *driver.close().results.to_pylist()]


@pytest.mark.parametrize("name", ["ANY", "SOME", "BOOL_OR", "any"])
def test_any_row(name: str) -> None:
    assert answer(f"SELECT {name}(n > 2) AS x FROM t GROUP BY {WINDOW}") == [{"x": True}]
    assert answer(f"SELECT k, {name}(n > 2) AND COUNT(*) > 1 AS x FROM t GROUP BY k, {WINDOW} HAVING {name}(n > 1)") == [
        {"k": "a", "x": False},
        {"k": "b", "x": True},
    ]


@pytest.mark.parametrize("name", ["EVERY", "BOOL_AND", "every"])
def test_every_row(name: str) -> None:
    assert answer(f"SELECT {name}(n >= 0) AS x, {name}(n > 0) AS y FROM t GROUP BY {WINDOW}") == [{"x": True, "y": False}]


def test_any_of_patterns_is_no_aggregate() -> None:
    counted = f"SELECT COUNT(*) AS c FROM t WHERE k LIKE ANY ('a', 'c%') GROUP BY {WINDOW}"
    assert answer(counted) == [{"c": 2}]
    assert answer("SELECT k LIKE ANY ('b') AS b FROM t WHERE n < 2") == [{"b": False}, {"b": True}]
    with pytest.raises(ExpressionError, match="not supported"):
        planned("SELECT n FROM t WHERE n = ANY (n)")
