"""Columns of rows before a row: against a plain reference, for every cut, over restarts; the same in SQL."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import KrishivError, Session, coalesce, col, count, next, prev, step, sum
from krishiv_py.testing import Driver, stream_of
from tests.engines.restarts import Case
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


@pytest.mark.parametrize("seed", range(scaled(40)))
def test_rows_after_are_those_of_the_reference(seed: int) -> None:
    draw = random.Random(seed)
    batches, order = _rows_of(draw, 4), draw.choice(["", "v"])
    columns = {"after": next(col("v") + 1), "far": next("v", 3), "turn": coalesce(next("v"), 0) - prev("v", 2)}
    some = {name: columns[name] for name in draw.sample(list(columns), draw.randint(1, 3))}
    ahead = 3 if "far" in some else 1
    driver = Driver(_plan(4, **some, order_by=order or ()))
    given = []
    for batch in batches:
        given += driver.send(batch).results.to_pylist()
        if draw.random() < 0.3:
            driver = driver.restarted()
    given += driver.close().results.to_pylist()
    newest, wanted = max([row["at"] for batch in batches for row in batch], default=0), []
    for key in KEYS:
        rows = [row for batch in batches for row in batch if row["k"] == key]
        rows.sort(key=lambda row: (row["at"], *((row["v"] is None, row["v"]) if order else ())))

        def at(place: int, rows: list[dict[str, Any]] = rows) -> int | None:
            return rows[place]["v"] if 0 <= place < len(rows) else None

        for n, row in enumerate(rows):
            after, back = at(n + 1), at(n - 2)
            values = {
                "after": None if after is None else after + 1,
                "far": at(n + 3),
                "turn": None if back is None else (0 if after is None else after) - back,
            }
            known = rows[n + ahead]["at"] if n + ahead < len(rows) else newest
            wanted.append({**row, **{name: values[name] for name in some}, "known_at": known})
    assert sorted(map(repr, given)) == sorted(map(repr, wanted))
    assert [row["known_at"] for row in given] == sorted(row["known_at"] for row in given)
    for key in KEYS:
        assert [row for row in given if row["k"] == key] == [row for row in wanted if row["k"] == key]


def test_a_row_waits_for_the_next_one_and_is_late_nowhere() -> None:
    plan = _plan(gap=next("at") - col("at")).key_by("k").tumbling_window(10).agg(count(), sum("gap"))
    driver = Driver(plan)
    rows = [{"k": "a", "at": at, "c": "", "v": at} for at in (1, 2, 3, 12, 13, 25)]
    given = [row for row in rows for row in driver.send([row]).results.to_pylist()] + driver.close().results.to_pylist()
    assert [(row["window_start"], row["count"], row["sum_gap"]) for row in given] == [(0, 2, 2), (10, 2, 10), (20, 2, 12)]
    assert driver.counters["late"] == 0


def test_who_asks_why_hears_of_rows_that_wait_for_the_next_one() -> None:
    driver = Driver(_plan(then=next("v"), last=next("v", 2)))
    driver.send([{"k": "a", "at": 1, "c": "", "v": 1}, {"k": "a", "at": 50, "c": "", "v": 1}])
    assert "the last 2 rows of each key wait for the rows after" in str(driver.why_not_fired())


def _after(session: Session, folder: Any) -> None:
    draw = random.Random(7)
    batches = [[{"k": draw.choice("abc"), "at": 10 * n + m, "c": "", "v": m} for m in range(9)] for n in range(6)]
    case = Case(DDL, lambda s: s.watermark("at", 3).key_by("k").with_previous(after=next("v"), two=next("v", 2)), batches)
    driver = Driver(case.plan(stream_of(DDL)))
    wanted = [row for batch in batches for row in driver.send(batch).results.to_pylist()] + driver.close().results.to_pylist()
    for table in (case.restarted(session, folder), case.bounded(session)):
        assert sorted(map(repr, table.to_pylist())) == sorted(map(repr, wanted))


@pytest.mark.parametrize("workers", [1, 3])
def test_rows_after_in_process(workers: int, tmp_path: Any) -> None:
    with Session.in_process(workers=workers) as session:
        _after(session, tmp_path)


@pytest.mark.slow  # rows before are, in tests/engines
@pytest.mark.spark
def test_rows_after_on_spark(session: Session, tmp_path: Any) -> None:
    _after(session, tmp_path)


@pytest.mark.parametrize("seed", range(scaled(10)))
def test_lead_and_lag_are_those_of_duckdb(seed: int) -> None:
    duckdb = pytest.importorskip("duckdb")
    draw = random.Random(seed)
    sent = [
        {"k": draw.choice(["a", "b", None]), "ts": at, "v": draw.choice([None, 1, 2, 3])} for at in range(draw.randint(0, 40))
    ]
    over = "OVER (PARTITION BY k ORDER BY ts)"
    items = [
        f"LEAD(v) {over} AS a",
        f"v - LEAD(v, 3) {over} AS b",
        f"COALESCE(LAG(v, 2) {over}, -1) AS c",
        f"LEAD(v + ts) {over} AS d",
    ]
    query = f"SELECT k, ts, {', '.join(draw.sample(items, draw.randint(1, 4)))} FROM t"
    with Session.in_process() as session:
        stream, sender = session.memory_stream("k string, ts bigint, v bigint")
        session.register("t", stream, event_time="ts", lag=0)
        for place in range(0, len(sent), 7):
            sender.send(sent[place : place + 7])
        plan = session.sql(query)
        assert plan is not None
        given = plan.collect()
    t = pa.Table.from_pylist(sent, pa.schema([("k", pa.string()), ("ts", pa.int64()), ("v", pa.int64())]))  # noqa: F841
    wanted = duckdb.sql(query).fetchall()
    assert sorted((tuple(row.values()) for row in given.to_pylist()), key=repr) == sorted(wanted, key=repr)


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
        (lambda s: s.with_previous(w=next(prev("v"))), "next takes columns of one row"),
        (lambda s: s.with_previous(known_at=next("v")), "called like the event time of rows that wait"),
        (lambda s: s.match(step("a", col("v") < next("v"))), "a pattern looks at rows up to its last one"),
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


def test_windows_after_lead_go_by_the_time_at_which_it_is_known() -> None:
    inner = "(SELECT k, at, known_at, LEAD(v) OVER (PARTITION BY k ORDER BY at) - v AS d FROM t)"
    query = f"SELECT window_start, SUM(d) AS s FROM TABLE(TUMBLE({inner}, DESCRIPTOR(%s), INTERVAL '4' MILLISECOND))"
    grouped = f"{query} GROUP BY window_start, window_end"
    assert _sql(grouped % "known_at") == [{"window_start": 0, "s": 1}, {"window_start": 4, "s": -3}]
    with pytest.raises(KrishivError, match="the declared event time is 'known_at'"):
        _sql(grouped % "at")


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ("LEAD(v, 1, 0) OVER (PARTITION BY k ORDER BY at)", "a third argument of LEAD"),
        ("LAG(v, 1, 0) OVER (PARTITION BY k ORDER BY at)", "a third argument of LAG"),
        ("LAG(v) OVER (PARTITION BY k ORDER BY v)", "another order than that of the event time"),
        ("LAG(v, at) OVER (PARTITION BY k ORDER BY at)", "LAG goes by a number of rows"),
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
