"""Patterns on all engines: restarts, workers, moves between engines, bounded runs, cost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import Session, col, collect_list, count, first, prev, step
from krishiv_py.testing import Driver, stream_of
from tests.engines.restarts import Case
from tests.examples import scaled
from tests.kernels.patterns.reference import Spec, random_spec
from tests.kernels.patterns.test_patterns import DDL, _rows_of, _steps


def _plan(stream: Any, spec: Spec) -> Any:
    measures = [collect_list("at").alias("ats"), collect_list("v").alias("vs")]
    keyed = stream.watermark("at", 4).key_by("k")
    return keyed.match(spec.pattern(), measures=measures, within=spec.within, skip=spec.skip)


def _sorted(table: pa.Table) -> list[tuple[Any, ...]]:
    names = ("matched_at", "k", "ats", "vs", "match_start", "match_end")
    return sorted((tuple(row[name] for name in names) for row in table.to_pylist()), key=repr)


def _wanted(spec: Spec, batches: list[list[dict[str, Any]]]) -> list[tuple[Any, ...]]:
    rows = [row for step in _steps(spec, batches, 4, 0) for row in step if row[2] == "match"]
    return sorted(((decided, key, *rest) for decided, key, _, *rest in rows), key=repr)


def _case(batches: list[list[dict[str, Any]]], spec: Spec) -> Case:
    return Case(DDL, lambda stream: _plan(stream, spec), batches)


def _drawn(seed: int) -> tuple[Spec, list[list[dict[str, Any]]]]:
    draw = random.Random(f"engines {seed}")
    return random_spec(draw, asked=seed % 3 == 2), _rows_of(draw, 4)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("seed", range(scaled(15)))
def test_in_process(seed: int, workers: int, tmp_path: Path) -> None:
    spec, batches = _drawn(seed)
    with Session.in_process(workers=workers) as session:
        wanted = _wanted(spec, batches)
        assert _sorted(_case(batches, spec).restarted(session, tmp_path)) == wanted
        assert _sorted(_case(batches, spec).bounded(session)) == wanted


@pytest.mark.one_in(2)
@pytest.mark.spark
@pytest.mark.parametrize("seed", range(max(2, scaled(4))))
def test_on_spark(seed: int, session: Session, tmp_path: Path) -> None:
    spec, batches = _drawn(seed)
    wanted = _wanted(spec, batches[:6])
    assert _sorted(_case(batches[:6], spec).restarted(session, tmp_path)) == wanted
    assert _sorted(_case(batches[:6], spec).bounded(session)) == wanted


@pytest.mark.slow
@pytest.mark.spark
def test_a_checkpoint_moves_between_engines(session: Session, tmp_path: Path) -> None:
    spec, batches = next((spec, rows) for spec, rows in map(_drawn, range(5, 99)) if len(_wanted(spec, rows)) > 3)
    assert _sorted(_case(batches, spec).moved(session, tmp_path)) == _wanted(spec, batches)


def _rare() -> Any:
    stream = stream_of(DDL).watermark("at", 0).key_by("k")
    pattern = step("A", col("c") == "a").followed_by(step("B", col("c") == "b"))
    return stream.match(pattern, within="10 days", measures=first("A.v").alias("v"))


@pytest.mark.parametrize("spec", [_rare, lambda: stream_of(DDL).watermark("at", 0).key_by("k").match(step("U", prev("v") < 0))])
def test_a_changed_measure_goes_on_and_a_changed_pattern_begins_again(spec: Any, tmp_path: Path) -> None:
    driver = Driver(spec())
    driver.send([{"k": "k", "at": 5, "c": "a", "v": 1}, {"k": "k", "at": 6, "c": "x", "v": 1}])
    saved = driver.savepoint(str(tmp_path / "saved"))
    again = Driver(spec(), savepoint=saved)
    assert again.state().to_pylist() == driver.state().to_pylist()


def test_a_measure_may_change_over_a_savepoint(tmp_path: Path) -> None:
    pattern = step("A", col("c") == "a").followed_by(step("B", col("c") == "b"))
    stream = stream_of(DDL).watermark("at", 0).key_by("k")
    driver = Driver(stream.match(pattern, measures=first("A.v").alias("v")))
    driver.send([{"k": "k", "at": 5, "c": "a", "v": 7}, {"k": "k", "at": 6, "c": "x", "v": 1}])
    saved = driver.savepoint(str(tmp_path / "saved"))
    other = Driver(stream.match(pattern, measures=[count().alias("n"), first("A.v").alias("w")]), savepoint=saved)
    other.send([{"k": "k", "at": 7, "c": "b", "v": 1}])
    assert [(row["n"], row["w"]) for row in other.close().results.to_pylist()] == [(2, 7)]


def _with_previous(stream: Any) -> Any:
    return stream.watermark("at", 4).key_by("k").with_previous(before=prev("v"), two=prev("v", 2))


def _values(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[name] for name in ("at", "k", "v", "before", "two")) for row in table.to_pylist()), key=repr)


def _rows_before(session: Session, folder: Path, seed: int) -> None:
    """See that a query that is stopped and started once, and a bounded run, give what a driver gives."""
    _, batches = _drawn(seed)
    driver = Driver(_with_previous(stream_of(DDL)))
    wanted = _values(pa.concat_tables([*(driver.send(batch).results for batch in batches[:6]), driver.close().results]))
    case = Case(DDL, _with_previous, batches[:6])
    assert _values(case.restarted(session, folder)) == wanted
    assert _values(case.bounded(session)) == wanted


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("seed", range(scaled(4)))
def test_rows_before_in_process(seed: int, workers: int, tmp_path: Path) -> None:
    with Session.in_process(workers=workers) as session:
        _rows_before(session, tmp_path, seed)


@pytest.mark.spark
def test_rows_before_on_spark(session: Session, tmp_path: Path) -> None:
    _rows_before(session, tmp_path, 1)


def _waiting(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many rows each table of rows that wait has that is read from now on; 0 of other tables."""
    read, store = list[int](), type(driver._store)
    plain = store.get

    def get(self: Any, name: str) -> pa.Table:
        table: pa.Table = plain(self, name)
        read.append(table.num_rows if name.startswith("match_log") else 0)
        return table

    monkeypatch.setattr(store, "get", get)
    return read


def _batch(keys: Any, at: int, kind: str) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.string()), "at": [at] * len(keys), "c": [kind] * len(keys), "v": [1] * len(keys)})


@pytest.mark.parametrize("keys", [1_000, 30_000])
def test_a_batch_costs_what_it_brings(keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of 50 rows reads a number of tables that does not follow the keys whose starts are undecided."""
    driver = Driver(_rare())
    driver.send(_batch([str(n) for n in range(keys)], 0, "a"))
    read = _waiting(driver, monkeypatch)
    for number in range(4):
        driver.send(_batch([str(n * 7) for n in range(50)], 1 + number, "x" if number % 2 else "b"))
    assert len(read) < 80
    assert driver.state().num_rows == keys


@pytest.mark.parametrize("rows", [1_000, 30_000])
def test_rows_that_decide_nothing_are_added_to_those_of_a_key_unread(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(_rare())
    driver.send(_batch(["k"], 0, "a"))
    driver.send(_batch(["k"] * rows, 1, "x"))
    for number in range(5):  # tails of the log become one
        driver.send(_batch(["k"] * 5, 2 + number, "x"))
    read = _waiting(driver, monkeypatch)
    for number in range(20):
        driver.send(_batch(["k"] * 5, 7 + number, "x"))
    assert sum(read) < 200
    driver.send(_batch(["k"], 27, "b"))
    assert [(row["match_start"], row["match_end"]) for row in driver.close().results.to_pylist()] == [(0, 27)]
    assert sum(read) > rows
