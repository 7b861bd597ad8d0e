"""Aggregates come and go over savepoints, and `completeness` with them: what is null, and what says so (SEMANTICS §12.2)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py import count
from krishiv_py.testing import Driver, stream_of
from tests.in_process.test_evolution_random import try_all

SCHEMA = "user string, at bigint, v bigint"
OF: dict[str, Callable[[list[int]], int]] = {"total": sum, "top": max, "low": min}
CALLS = {"total": kv.sum("v"), "top": kv.max("v"), "low": kv.min("v")}
WINDOWS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.tumbling_window(60_000),
    "hopping": lambda s: s.hopping_window(60_000, 20_000),
    "session": lambda s: s.session_window(15_000),
    "capped session": lambda s: s.session_window(15_000, max_duration=60_000),
}


def plan(kind: str, names: list[str], *, says: bool) -> Any:
    """The windows with some aggregates, which say whether they are complete or do not."""
    keyed = stream_of(SCHEMA).watermark("at", 0).key_by("user")
    calls = {name: CALLS[name] for name in names}
    return WINDOWS[kind](keyed).agg(count().alias("n"), completeness=says, **calls).named("windows")


def trial(seed: int, folder: Path) -> str:
    """Rows in order of time; between two batches aggregates are added and removed, and `complete` is shown or not."""
    chance = random.Random(f"complete {seed}")
    kind, names, says = chance.choice(list(WINDOWS)), ["total"], chance.random() < 0.5
    driver, since, went, now = Driver(plan(kind, names, says=says)), dict.fromkeys(names, 0), kind, 0
    rows: list[dict[str, Any]] = []
    for number in range(9):
        for index in range(chance.choice([0, 1, 1, 2])):
            drawn = [name for name in OF if chance.random() < 0.5]
            chance.shuffle(drawn)
            names, says = drawn, chance.random() < 0.6
            since = {name: since.get(name, len(rows)) for name in names}
            path = driver.savepoint(str(folder / f"{number} {index}"))
            driver, went = Driver(plan(kind, names, says=says), savepoint=path), f"{went}; before {number}: {names} {says}"
        batch: list[dict[str, Any]] = []
        for _ in range(0 if number == 8 else chance.choice([1, 4])):
            now += chance.choice([1_000, 5_000, 14_000, 40_000])
            batch.append({"user": chance.choice("ab"), "at": now, "v": len(rows) + len(batch)})
        rows += batch
        out = driver.close() if number == 8 else driver.send(batch)
        for result in out.results.to_pylist():
            inside = [
                n
                for n, row in enumerate(rows)
                if row["user"] == result["user"] and result["window_start"] <= row["at"] < result["window_end"]
            ]
            whole = {name: not inside or inside[0] >= since[name] for name in names}
            values = [rows[n]["v"] for n in inside]
            expected = {name: OF[name](values) if whole[name] else None for name in names}
            expected |= {"n": len(inside)} | ({"complete": all(whole.values())} if says else {})
            assert {name: result[name] for name in expected} == expected, (seed, went, number, result)
            assert ("complete" in result) == says
    return went


@pytest.mark.one_in(7)
@pytest.mark.parametrize("seed", range(25))
def test_a_result_says_of_each_aggregate_whether_it_is_whole(seed: int, tmp_path: Path) -> None:
    trial(seed, tmp_path)


@pytest.mark.parametrize("filtered", [False, True])
def test_a_reset_stage_begins_with_what_it_saw_itself(filtered: bool, tmp_path: Path) -> None:
    """Rows of a source that a filter leaves out move the watermark, and were never in the stage."""

    def windows(size: int) -> Any:
        timed = stream_of(SCHEMA).watermark("at", 120_000)
        kept = timed.filter("v > 0") if filtered else timed
        return kept.key_by("user").tumbling_window(size).agg(count().alias("n"), completeness=True).named("windows")

    driver = Driver(windows(60_000))
    driver.send([{"user": "a", "at": 10_000, "v": 1}, {"user": "a", "at": 130_000, "v": 0}])
    path = driver.savepoint(str(tmp_path / "s"))
    changed = Driver(windows(30_000), savepoint=path, on_change={"windows": "reset"})
    changed.send([{"user": "a", "at": moment, "v": 1} for moment in (15_000, 95_000, 125_000)])
    rows = changed.close().results.to_pylist()
    seen = {row["window_start"]: (row["n"], row["complete"]) for row in rows}
    missed = (1, True) if filtered else (None, False)
    assert seen == {0: (None, False), 90_000: missed, 120_000: missed}


if __name__ == "__main__":
    try_all(trial)
