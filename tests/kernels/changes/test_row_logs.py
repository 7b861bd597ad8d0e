"""Logs of rows without a key, and totals that give every change (SEMANTICS §16.2, §16.3)."""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from krishiv_py import MemorySink, PlanError, SideOutputLateEventHandler, collect_list, count, max, sum
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled
from tests.kernels.changes.reference import Row, Rows, counted, folded, text_of

DDL = "op string, k string, v double"


def _changes(draw: random.Random, n: int) -> Rows:
    values = (0.0, -0.0, 1.5, math.nan, None)
    return [
        {"op": draw.choice(("+I", "+U", "-U", "-D", "-D")), "k": draw.choice(("x", None)), "v": draw.choice(values)}
        for _ in range(n)
    ]


@pytest.mark.parametrize("seed", range(scaled(30)))
def test_each_row_is_there_as_often_as_it_was_added_and_not_taken_back(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    late = SideOutputLateEventHandler(MemorySink())
    plan = stream_of(DDL).with_late_event_handler(late).from_changelog("log")
    driver, there, given, unmatched = Driver(plan), Counter[str](), list[Row](), 0
    for number in range(6):
        batch = _changes(draw, draw.randrange(9))
        out = driver.send(batch)
        given += out.results.to_pylist()
        missing = 0
        for change in batch:
            row = text_of({"k": change["k"], "v": change["v"]})
            there[row] += 1 if change["op"][0] == "+" else -1
            if there[row] < 0:
                there[row], missing = 0, missing + 1
        unmatched += missing
        assert folded(given) == +there
        assert [row["reason"] for row in out.late.to_pylist()] == ["unmatched"] * missing
        assert counted([{n: v for n, v in row.items() if n != "last_update"} for row in driver.state().to_pylist()]) == +there
        if draw.random() < 0.3:
            counters = driver.counters.get("refused_changes", 0)
            assert counters == unmatched
            driver = Driver(plan, savepoint=driver.savepoint(str(tmp_path / str(number))))


@pytest.mark.parametrize("aggregate", [sum("v"), max("v"), collect_list("v")])
def test_a_total_over_a_log_of_rows(aggregate: Any) -> None:
    driver = Driver(stream_of("op string, k string, v bigint").from_changelog("log").key_by("k").agg(n=count(), a=aggregate))
    driver.send([{"op": "+I", "k": "x", "v": v} for v in (1, 1, 2)])
    out = driver.send([{"op": "-D", "k": "x", "v": 1}, {"op": "-D", "k": "x", "v": 7}]).results.to_pylist()
    assert [row["n"] for row in out] == [3, 2]


def test_a_log_of_rows_needs_no_more_than_that() -> None:
    stream = stream_of("op string, id bigint, tags array<string>")
    with pytest.raises(PlanError, match="no order of changes"):
        stream.from_changelog("log", sequence="id")
    with pytest.raises(PlanError, match="by their values"):
        stream.from_changelog("log")
    with pytest.raises(PlanError, match="needs the columns of the key"):
        stream.from_changelog("upsert")


@pytest.mark.parametrize("aggregate", [sum("v"), max("v")])
@pytest.mark.parametrize("changing", [False, True])
@pytest.mark.parametrize("seed", range(scaled(6)))
def test_every_change_of_a_total_is_that_of_one_row_after_the_other(seed: int, changing: bool, aggregate: Any) -> None:
    draw, ddl = random.Random(seed), "op string, pk bigint, k string, v bigint"

    def plan(changes: Any) -> Any:
        stream = stream_of(ddl)
        rows = stream.from_changelog("log", "pk", changes="each") if changing else stream
        return rows.key_by("k").agg(n=count(), a=aggregate, changes=changes)

    each, alone = Driver(plan("each")), Driver(plan("net"))
    given = list[Row]()
    for _ in range(4):
        rows = [
            {"op": draw.choice(("+I", "-D")), "pk": draw.randrange(3), "k": draw.choice("xy"), "v": draw.randrange(3)}
            for _ in range(draw.randrange(6))
        ]
        got = each.send(rows).results.to_pylist()
        wanted = [row for one in rows for row in alone.send([one]).results.to_pylist()]
        if changing:  # an update of a row is two changes for a total: the net of each row is the same
            assert folded(given + got) == folded(given + wanted)
        else:
            assert _by_key(got) == _by_key(wanted)
        given += got


def _by_key(rows: Rows) -> dict[str, Rows]:
    return {key: [row for row in rows if row["k"] == key] for key in "xy"}


def test_every_change_of_a_total_without_keys() -> None:
    driver = Driver(stream_of("v bigint").agg(n=count(), s=sum("v"), changes="each"))
    given = [(row["op"], row["n"], row["s"]) for row in driver.send([{"v": 1}, {"v": 2}]).results.to_pylist()]
    assert given == [("+I", 1, 1), ("-U", 1, 1), ("+U", 2, 3)]
