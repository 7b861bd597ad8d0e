"""Aggregates over the rows of a match so far: each row adds to those before it, and the results are those of all rows."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from krishiv_py import avg, col, count, first, last, max, min, stddev, step, sum
from krishiv_py.kernels.patterns import values
from krishiv_py.kernels.patterns.search import Question
from krishiv_py.plan.matching import MatchExpr, MatchValue
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled

CALLS = [sum("v"), avg("v"), min("v"), max("v"), count("v"), count(), stddev("v"), sum("f"), avg("f"), max("f"), sum("d")]


def _rows(draw: random.Random) -> pa.Table:
    n = draw.randint(1, 60)
    floats = [draw.choice([None, 0.1, 1e16, -1e16, float("nan"), float("inf")]) for _ in range(n)]
    whole = pa.array([draw.choice([None, 1, -2, 7]) for _ in range(n)], pa.int64())
    return pa.table({"v": whole, "f": pa.array(floats, pa.float64()), "d": whole.cast(pa.decimal128(30, 2))})


@pytest.mark.parametrize("seed", range(scaled(60)))
def test_running_values_are_those_of_all_rows(seed: int) -> None:
    draw = random.Random(seed)
    table = _rows(draw)
    n = table.num_rows
    columns = values.Columns(table, np.arange(n), {})
    asked = []
    for _ in range(draw.randint(1, 5)):
        begin = draw.randint(0, n - 1)
        taken = sorted(draw.sample(range(begin), draw.randint(0, begin)))
        rows = range(begin, draw.randint(begin + 1, n))
        asked.append(Question(0, rows, [draw.choice([0, 1]) for _ in taken], taken, draw.random() < 0.5))
    for call in CALLS:
        for of in (None, 0):
            for mine in (False, True):
                given = columns._running(call, asked, of, mine=mine)
                wanted = columns.value(call, values._views(asked, of, mine=mine))
                assert repr(given.to_pylist()) == repr(wanted.to_pylist())


def test_a_long_match_costs_its_rows_and_not_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[int]()
    create = values.Columns._partials

    def counted(self: Any, call: Any, kernel: Any, views: Any) -> Any:
        looked.append(len(views.rows))
        return create(self, call, kernel, views)

    monkeypatch.setattr(values.Columns, "_partials", counted)
    pattern = step("A", col("v") >= 0)
    pattern = pattern.then(step("B", (col("v") >= avg("B.v") - 1) & (sum("B.v") >= 0)).one_or_more())
    pattern = pattern.then(step("C", col("v") < 0))
    driver = Driver(stream_of("k string, at bigint, v bigint").watermark("at", 0).key_by("k").match(pattern))
    sent = [{"k": "a", "at": n, "v": 5} for n in range(4_000)]
    driver.send([*sent, {"k": "a", "at": 4_000, "v": -1}])
    assert driver.close().results.num_rows == 1
    assert np.sum(looked) < 200_000


@pytest.mark.parametrize("seed", range(scaled(20)))
def test_running_measures_are_those_of_all_rows_before(seed: int) -> None:
    draw = random.Random(seed)
    table = _rows(draw)
    n = table.num_rows
    rows = [sorted(draw.sample(range(n), draw.randint(1, n))) for _ in range(draw.randint(1, 4))]
    matches = values.MatchRows.of(rows, [[draw.choice([0, 1]) for _ in each] for each in rows])
    columns = values.Columns(table, np.arange(n), {"A": 0, "B": 1})
    for call in [*CALLS, first("v"), last("f")]:
        for of in (None, "A"):
            value = MatchValue("x", call, of, running=True)
            given = columns.running_measures(MatchExpr(col("x"), (value,)), matches)
            assert repr(given.to_pylist()) == repr(columns._of_step(value, matches.prefixes()).to_pylist())
