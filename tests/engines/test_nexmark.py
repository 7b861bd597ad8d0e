"""Some Nexmark queries on Spark: a window join, a join with stages behind it, the dearest bid, the most bids."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.nexmark import engines
from benchmarks.nexmark.generator import Spec, make
from benchmarks.nexmark.queries import QUERIES
from benchmarks.nexmark.truth import check
from krishiv_py import Session

pytestmark = pytest.mark.two_tasks


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(Spec(6_000, rate=60, parts=2), tmp_path_factory.mktemp("nexmark"))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("name", "engine"), [("q8", "streaming"), ("q4", "bounded"), ("q9", "bounded"), ("q5", "bounded")])
def test_query_on_spark_is_what_duckdb_says(
    session: Session, events: Path, tmp_path: Path, name: str, engine: engines.Engine
) -> None:
    engines.run(QUERIES[name], events, tmp_path / "out", engine, opened=session)
    verdict = check(name, events, tmp_path / "out")
    assert verdict.ok, verdict
