"""Columns of rows before a row: against a plain reference, for every cut, over restarts; the same in SQL."""

from __future__ import annotations

import random
from typing import Any

import pytest

from krishiv_py import KrishivError, Session, coalesce, col, count, prev, sum
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled
from tests.kernels.patterns.test_patterns import DDL, KEYS, _rows_of


def _plan(lag: int = 0, **columns: Any) -> Any:
    return stream_of(DDL).watermark("at", lag).key_by("k").with_previous(**columns)


@pytest.mark.parametrize("seed", range(scaled(40)))
def test_rows_are_those_of_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    lag, batches = draw.choice([0, 4]), _rows_of(draw, 4)
    lag = max(lag, 4)
    driver = Driver(_plan(lag, one=prev("v"), three=prev("v", 3), rise=col("v") - prev(col("v") * 2, 2)))
    given = []
    for batch in batches:
        given += driver.send(batch).results.to_pylist()
        if draw.random() < 0.3:
            driver = driver.restarted()
    given += driver.close().results.to_pylist()
    wanted = []
    for key in KEYS:
        rows = sorted((row for batch in batches for row in batch if row["k"] == key), key=lambda row: row["at"])
        for n, row in enumerate(rows):
            one, two, three = (rows[n - back]["v"] if n >= back else None for back in (1, 2, 3))
            wanted.append({**row, "one": one, "three": three, "rise": None if two is None else row["v"] - two * 2})
    assert sorted(map(repr, given)) == sorted(map(repr, wanted))
    for key in KEYS:
        assert [row for row in given if row["k"] == key] == [row for row in wanted if row["k"] == key]


def test_a_row_is_given_when_it_is_settled_and_is_late_nowhere() -> None:
    driver = Driver(_plan(before=prev("v")).key_by("k").tumbling_window(10).agg(count(), sum("before")))
    rows = [{"k": "a", "at": at, "c": "", "v": at} for at in (1, 2, 3, 12, 13, 25)]
    given = [row for row in rows for row in driver.send([row]).results.to_pylist()] + driver.close().results.to_pylist()
    assert [(row["window_start"], row["count"], row["sum_before"]) for row in given] == [(0, 3, 3), (10, 2, 15), (20, 1, 13)]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda s: s.with_previous(), "adds no column"),
        (lambda s: s.with_previous(v=prev("v")), "has a column of this name"),
        (lambda s: s.with_previous(w=prev("nope")), "there is no column 'nope'"),
        (lambda s: s.with_previous(w="v"), "a new column is an expression"),
        (lambda s: s.with_previous(w=sum("v")), "w is an aggregate of many rows"),
        (lambda s: s.with_previous(w=prev("v"), order_by="nope"), "there is no column 'nope'"),
        (lambda s: s.with_previous(w=prev("v")).emit("updates"), "knows neither triggers nor emit modes"),
    ],
)
def test_what_cannot_be_is_refused_at_the_call(wrong: Any, text: str) -> None:
    with pytest.raises(KrishivError, match=text):
        wrong(stream_of(DDL).watermark("at", 0).key_by("k"))


SENT = [("a", 5), ("b", 1), ("a", 7), ("b", 0), ("a", 4)]


def _sql(query: str) -> list[dict[str, Any]]:
    with Session.in_process() as session:
        stream, sender = session.memory_stream("k string, at bigint, v bigint")
        session.register("t", stream, event_time="at", lag=0)
        plan = session.sql(query)
        assert plan is not None
        sender.send(
            [{"k": k, "at": at, "v": v} for at, (k, v) in enumerate([("a", 5), ("b", 1), ("a", 7), ("b", 0), ("a", 4)])]
        )
        rows: list[dict[str, Any]] = plan.collect().to_pylist()
    return rows


def test_lag_in_sql() -> None:
    over = "OVER (PARTITION BY k ORDER BY at)"
    rows = _sql(f"SELECT k, v, v - LAG(v) {over} AS d, COALESCE(LAG(v, 2) {over}, -1) AS two FROM t WHERE v > 0")
    assert [tuple(row.values()) for row in rows] == [("a", 5, None, -1), ("b", 1, None, -1), ("a", 7, 2, -1), ("a", 4, -3, 5)]
    inner = f"(SELECT k, at, v - LAG(v) {over} AS d FROM t)"
    query = f"SELECT window_start, SUM(d) AS s FROM TABLE(TUMBLE({inner}, DESCRIPTOR(at), INTERVAL '4' MILLISECOND))"
    assert _sql(f"{query} GROUP BY window_start, window_end") == [{"window_start": 0, "s": 1}, {"window_start": 4, "s": -3}]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("LEAD(v) OVER (PARTITION BY k ORDER BY at)", "LEAD is not supported"),
        ("LAG(v, 1, 0) OVER (PARTITION BY k ORDER BY at)", "a third argument of LAG"),
        ("LAG(v) OVER (PARTITION BY k ORDER BY v)", "another order than that of the event time"),
        ("LAG(v, at) OVER (PARTITION BY k ORDER BY at)", "LAG goes back a number of rows"),
        ("LAG(v) OVER (PARTITION BY k ORDER BY at), LAG(v) OVER (PARTITION BY v ORDER BY at)", "several partitions"),
        (
            "LAG(v) OVER (PARTITION BY k ORDER BY at), SUM(v) OVER (PARTITION BY k ORDER BY at RANGE INTERVAL '1 s' PRECEDING)",
            "LAG with other functions",
        ),
    ],
)
def test_what_lag_cannot_be_is_refused(item: str, text: str) -> None:
    with pytest.raises(KrishivError, match=text):
        _sql(f"SELECT {item} FROM t")


def test_nulls_stay_apart_from_rows_that_are_not_there() -> None:
    driver = Driver(_plan(before=coalesce(prev("v"), col("at"))))
    driver.send([{"k": "a", "at": 1, "c": "", "v": None}, {"k": "a", "at": 2, "c": "", "v": 3}])
    assert [row["before"] for row in driver.close().results.to_pylist()] == [2]
