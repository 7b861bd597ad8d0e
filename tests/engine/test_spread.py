"""State that goes to another number of buckets between steps gives the results that it gives in one bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
import pytest

from krishiv_py.kernels.state.spread import BucketContent, spread
from tests.engine.spreading import spread_stages
from tests.goldens.cases import OWN_CASES, QUIET_CASES, WORKED_CASES, Case, load
from tests.goldens.compare import differences
from tests.goldens.engines import engine_named, unsupported_by
from tests.joins import test_pipelines as pipelines

NUMBERS = (1, 3, 2)
DRIVER = engine_named("driver")
WORKED = [*load(WORKED_CASES), *load(QUIET_CASES)]
CASES = [c for c in [*load(OWN_CASES)[::4], *WORKED] if not unsupported_by(DRIVER) & set(c.tags)]


@pytest.fixture(autouse=True)
def _spreading(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    spread_stages(monkeypatch, NUMBERS)
    monkeypatch.setattr(pipelines, "check_snapshot", lambda driver: None)  # it would see one bucket
    yield


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_golden_cases_hold(case: Case) -> None:
    assert differences(case, DRIVER.run(case)) == []


def test_pipelines_give_what_rows_one_by_one_give() -> None:
    for seed in range(int(os.environ.get("KRISHIV_EXAMPLES", "40"))):  # `nox -s properties` sets more
        pipelines.check(seed)


def test_a_part_of_the_state_that_is_not_known_is_an_error() -> None:
    with pytest.raises(KeyError, match="novel"):
        list(spread([BucketContent({"novel": 1}, {})], 1, 2))


def test_without_keys_all_rows_are_in_the_first_bucket() -> None:
    table = pa.table({"h": pa.array([1, 2], pa.int64())})
    one = BucketContent({"log:c": [[[0, 2], [1]]]}, {"c/0/0": table})
    first, second = spread([one], 0, 2)
    assert [t.num_rows for t in first.tables.values()] == [2]
    assert second.tables == {}
