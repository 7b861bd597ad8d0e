"""Joins worked out by hand (SEMANTICS §9.1, §9.2), on the driver and on the plain reference.

A row is ``[id, key, time]``; a result is ``[step, left id, right id, time]``, ``"end"`` after the end of input.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from krishiv_py.testing import Driver, stream_of
from tests.joins.test_interval import LEFT, RIGHT, results_of, sent
from tests.reference.joins import AsofJoin, Clock, IntervalJoin, Row

FILE = Path(__file__).parent.parent / "goldens" / "joins.jsonl"
CASES = [json.loads(line) for line in FILE.read_text().splitlines()]


def batches(case: dict[str, Any]) -> list[list[Row]]:
    return [[Row(side, *row) for side in ("left", "right") for row in step.get(side, [])] for step in case["steps"]]


def ordered(rows: list[list[Any]]) -> list[str]:
    return sorted(map(repr, rows))


@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_on_the_driver(case: dict[str, Any]) -> None:
    left, right = stream_of(LEFT).watermark("at", case["lag"][0]), stream_of(RIGHT).watermark("seen", case["lag"][1])
    if case["join"] == "interval":
        plan = left.interval_join(right, "key", lower=case["lower"], upper=case["upper"], how=case["how"])
    else:
        given = {name: case[name] for name in ("direction", "tolerance", "how")}
        plan = left.asof_join(right, "key", **given)
    driver = Driver(plan)
    outs = [(i, driver.send(sent(rows))) for i, rows in enumerate(batches(case))] + [("end", driver.close())]
    actual = [[i, r.left, r.right, r.t] for i, out in outs for r in results_of(out)]
    assert ordered(actual) == ordered(case["results"])
    late = [r["lid"] if r["side"] == "left" else r["rid"] for _, out in outs for r in out.late.to_pylist()]
    assert sorted(late) == case["late"]
    assert driver.counters["unmatched"] == case["unmatched"]


@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_on_the_reference(case: dict[str, Any]) -> None:
    clock = Clock({"left": case["lag"][0], "right": case["lag"][1]}, {"left": -math.inf, "right": -math.inf})
    run: IntervalJoin | AsofJoin
    if case["join"] == "interval":
        run = IntervalJoin(case["lower"], case["upper"], case["how"], 0, clock)
    else:
        run = AsofJoin(case["direction"], case["tolerance"], case["how"], 0, clock)
    outs: list[tuple[Any, Any]] = [(index, run.send(rows)) for index, rows in enumerate(batches(case))]
    outs.append(("end", run.close()))
    assert ordered([[index, r.left, r.right, r.t] for index, out in outs for r in out.results]) == ordered(case["results"])
    assert sorted(i for _, out in outs for i in out.late) == case["late"]
    assert sum(out.unmatched for _, out in outs) == case["unmatched"]
