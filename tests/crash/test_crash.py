"""Results and late rows after kills equal those of the driver over the same batches, row by row (SEMANTICS §6.3)."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import MemorySink, SideOutputLateEventHandler
from krishiv_py.api.stages.stream import Stream
from krishiv_py.runtime.tables import read_note
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests.crash.job import JOINS, KINDS, SCHEMA, outputs, plan
from tests.crash.killing import counted, rows, run, run_with_kills, write_input
from tests.crash.tables import reloaded, versions

KILLS = int(os.environ.get("KRISHIV_KILLS", "1"))  # `nox -s crash` sets 20
SHORT = ("outputs",)
"""A chain, too, with sessions in it."""
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


Rows = Counter[tuple[str, ...]]


def by_driver(kind: str, source: Path, work: Path) -> tuple[dict[str, Rows], Rows, str]:
    """Results by folder, late rows and how many rows there were.

    Each file is a batch, and only the end of the input is waited for.
    """
    late = SideOutputLateEventHandler(MemorySink())

    driver = Driver(outputs(read, late, str(work)) if kind == "outputs" else plan(read, kind, late), idle_batches=False)
    return driven(driver, source, joins=kind in JOINS)


def read() -> Stream:
    """The input, for the driver."""
    return stream_of(SCHEMA)


def driven(
    driver: Driver, source: Path, *, joins: bool = False, before: Callable[[int], object] = lambda number: None
) -> tuple[dict[str, Rows], Rows, str]:
    """The same, of a driver; with what is done before each batch."""
    done = []
    for number, path in enumerate(sorted(source.iterdir())):
        before(number)
        batch = pq.read_table(path)
        done.append(driver.send({"left": batch, "right": batch} if joins else batch))
    done += [driver.tick(), driver.close()]
    actual: dict[str, list[dict[str, Any]]] = {}
    for step in done:
        for name, table in step.by_output.items():
            actual.setdefault("out" if name == "results" else name, []).extend(table.to_pylist())
    refused = counted([row for step in done for row in step.late.to_pylist()])
    given = {name: counted(rows) for name, rows in actual.items()}
    return given, refused, f"{driver.progress.rows} {driver.progress.late['late']}"


@pytest.fixture(scope="module")
def length_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long the job takes when it is left alone; what it gives is the driver's answer. The short form takes a guess."""
    if KILLS == 1:
        return 25.0
    home = tmp_path_factory.mktemp("calm")
    write_input(home / "in", seed=0)
    took = run("tumbling", home / "in", home)
    out, late, read = by_driver("tumbling", home / "in", home / "driver")
    assert (rows(home / "out"), rows(home / "late"), (home / "rows").read_text()) == (out["out"], late, read)
    return took


def survives(kind: str, home: Path, kills: int, length_s: float, out: dict[str, Rows], late: Rows, read: str) -> None:
    """Kill the job so often over its runs, and see that each run gives this once it is done."""
    seeded = random.Random(f"{kind} {kills}")
    killed = attempt = 0
    while killed < kills:
        work = home / f"killed-{attempt}"
        killed += run_with_kills(kind, home / "in", work, min(kills - killed, 5), seeded, length_s)
        assert {name: rows(work / name) for name in out} == out
        assert rows(work / "late") == late
        assert (work / "rows").read_text() == read
        attempt += 1
        assert attempt < 3 * kills + 3, "the job ends before it can be killed"


@pytest.mark.parametrize("kind", SHORT if KILLS == 1 else KINDS)
def test_outputs_survive_kills(kind: str, tmp_path: Path, length_s: float) -> None:
    write_input(tmp_path / "in", seed=KINDS.index(kind))
    out, late, read = by_driver(kind, tmp_path / "in", tmp_path / "driver")
    assert all(out.values()) and late, "the job must have all outputs for the test to mean anything"
    survives(kind, tmp_path, KILLS, length_s, out, late, read)


@pytest.mark.skipif(KILLS == 1, reason="nox -s crash")
def test_each_batch_of_a_reloaded_table_has_one_version(tmp_path: Path, length_s: float) -> None:
    """Also a batch that is repeated; and the windows are those of a run that saw these versions."""
    write_input(tmp_path / "in", seed=len(KINDS))
    seeded = random.Random(f"reloaded {KILLS}")
    killed = attempt = repeated = 0
    while killed < KILLS:
        work = tmp_path / f"killed-{attempt}"
        killed += run_with_kills("reloaded", tmp_path / "in", work, min(KILLS - killed, 5), seeded, length_s)
        seen = attempts(work / "seen")
        assert all(one == first for first, *others in seen.values() for one in others)
        repeated += sum(len(others) for _, *others in seen.values())
        met = [ascending({version for *_, version in first}) for _, (first, *_) in sorted(seen.items())]
        assert all(len(one) == 1 for one in met) and met == sorted(met), met
        assert_fired_under_one_version(work / "out")
        assert_each_batch_was_loaded_for_once(work / "checkpoint")
        out, late, read_rows = by_driver_with([one for (one,) in met], tmp_path / "in", tmp_path / f"driver-{attempt}")
        assert rows_without(work / "out", "fired") == out["out"] and out["out"]
        assert sum((first for first, *_ in seen.values()), Rows()) == out["seen"]
        assert rows(work / "late") == late and late
        assert (work / "rows").read_text() == read_rows
        attempt += 1
        assert attempt < 3 * KILLS + 3, "the job ends before it can be killed"
    assert repeated or KILLS < 5, "no batch was repeated once its rows were seen"


def attempts(folder: Path) -> dict[int, list[Rows]]:
    """What was seen of each batch, at every attempt."""
    actual: dict[int, list[Rows]] = {}
    for path in sorted(folder.glob("[0-9]*.parquet")):
        actual.setdefault(int(path.name.partition("-")[0]), []).append(rows(path))
    return actual


def ascending(versions_met: set[str]) -> list[int]:
    """Versions; rows without a time meet none."""
    return sorted(int(version) for version in versions_met - {"None"})


def assert_fired_under_one_version(folder: Path) -> None:
    """Files are named after their batch; a later one has a later version."""
    actual: dict[int, set[int]] = {}
    for path in folder.glob("part-*.parquet"):
        fired = pq.read_table(path)["fired"].to_pylist()
        actual.setdefault(int(path.name.split("-")[2]), set()).update(fired)
    in_order = [sorted(one) for _, one in sorted(actual.items())]
    assert all(len(one) == 1 for one in in_order) and in_order == sorted(in_order), in_order
    assert len({one[0] for one in in_order}) == len(in_order) > 2


def assert_each_batch_was_loaded_for_once(checkpoint: Path) -> None:
    """So versions are counted as batches are, from 1 on; progress has them from this note."""
    note = read_note(str(checkpoint))
    done = [int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
    assert note is not None and note["batch"] == max(done)
    assert [entry["version"] for entry in note["tables"]] == [note["batch"] + 1] * 2


def by_driver_with(met: list[int], source: Path, work: Path) -> tuple[dict[str, Rows], Rows, str]:
    """What a run gives that meets these versions, batch by batch."""
    clock, now = ManualClock(), [0]

    def before(number: int) -> None:
        clock.advance("1 s")
        now[0] = met[number]

    def load() -> pa.Table:
        return versions(now[0])

    late = SideOutputLateEventHandler(MemorySink())
    driver = Driver(reloaded(read, late, str(work), load, load), idle_batches=False, clock=clock)
    actual, refused, given = driven(driver, source, before=before)
    without = Rows()
    for row, n in actual["out"].items():
        without[row[:-1]] += n
    actual["out"] = without
    return actual, refused, given


def rows_without(folder: Path, name: str) -> Rows:
    """Every row of an output but for a column."""
    return counted(pq.read_table(folder).drop_columns([name]).to_pylist())
