"""T13: a correct plan of each operator passes, under both clocks; ``KRISHIV_EXAMPLES`` says how many streams."""

from __future__ import annotations

import os
import random
from typing import Any, Final

import pytest

from krishiv_py.plan.options.watermarks import RowsClock
from krishiv_py.testing import check
from tests.checking.operators import PLANS, TABLES

_CASES: Final = int(os.environ.get("KRISHIV_EXAMPLES", "16"))
_SEED: Final = int(os.environ.get("KRISHIV_SEED", "20"))


@pytest.mark.one_in(43)
@pytest.mark.parametrize(("name", "clock"), [(name, clock) for name in PLANS for clock in ("batch", "row")])
def test_a_correct_plan_passes(name: str, clock: RowsClock) -> None:
    report = check(PLANS[name](clock), cases=_CASES, seconds=3_600, seed=_SEED, keep=None)
    assert report.cases == _CASES
    assert report.covered["results"]


@pytest.mark.parametrize("clock", ["batch", "row"])
def test_a_touching_session_is_checked_away_from_its_edge(clock: RowsClock) -> None:
    """A row at the end of a session joins it or not, by what has left: by batches under one clock, by rows under the other."""

    def edge(chance: random.Random) -> list[dict[str, Any]]:
        times = [0, 45_000, 25_000, *(chance.randrange(60_000) for _ in range(chance.randrange(3)))]
        return [{"user": "a", "at": at, "v": 1} for at in times]

    plan = PLANS["session, touching"](clock)
    report = check(plan, cases=_CASES, seconds=3_600, seed=_SEED, keep=None, rows=edge)
    assert (report.laws["cut"] > _CASES // 2) == (clock == "row")


@pytest.mark.one_in(7)
@pytest.mark.parametrize("name", TABLES)
def test_a_correct_plan_of_tables_passes(name: str) -> None:
    report = check(TABLES[name](), cases=_CASES, seconds=3_600, seed=_SEED, keep=None)
    assert report.cases == _CASES
    assert report.covered["results"]
    assert report.laws["cut"]
