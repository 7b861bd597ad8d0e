"""T13: a correct plan of each operator passes, under both clocks; ``KRISHIV_EXAMPLES`` says how many streams."""

from __future__ import annotations

import os
from typing import Final

import pytest

from krishiv_py.plan.options.watermarks import RowsClock
from krishiv_py.testing import check
from tests.checking.operators import PLANS, TABLES

_CASES: Final = int(os.environ.get("KRISHIV_EXAMPLES", "16"))
_SEED: Final = int(os.environ.get("KRISHIV_SEED", "20"))


@pytest.mark.parametrize(("name", "clock"), [(name, clock) for name in PLANS for clock in ("batch", "row")])
def test_a_correct_plan_passes(name: str, clock: RowsClock) -> None:
    report = check(PLANS[name](clock), cases=_CASES, seconds=3_600, seed=_SEED, keep=None)
    assert report.cases == _CASES
    assert report.covered["results"]


@pytest.mark.parametrize("name", TABLES)
def test_a_correct_plan_of_tables_passes(name: str) -> None:
    report = check(TABLES[name](), cases=_CASES, seconds=3_600, seed=_SEED, keep=None)
    assert report.cases == _CASES
    assert report.covered["results"]
    assert report.laws["cut"]
