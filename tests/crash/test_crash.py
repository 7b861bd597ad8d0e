"""Results and late rows after kills equal those of the driver over the same batches, row by row (SEMANTICS §6.3)."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from krishiv_py import MemorySink, SideOutputLateEventHandler
from krishiv_py.api.stages.stream import Stream
from krishiv_py.testing import Driver, stream_of
from tests.crash.job import JOINS, KINDS, SCHEMA, outputs, plan
from tests.crash.killing import counted, rows, run, run_with_kills, write_input

KILLS = int(os.environ.get("KRISHIV_KILLS", "1"))  # `nox -s crash` sets 20
SHORT = ("outputs", "arrival", "matched")
"""Outputs are a chain, too, with sessions in it; arrivals keep rows as look-back does; "matched" joins results."""
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


Rows = Counter[tuple[str, ...]]


def by_driver(kind: str, source: Path, work: Path) -> tuple[dict[str, Rows], Rows, str]:
    """Results by folder, late rows and how many rows there were.

    Each file is a batch, and only the end of the input is waited for.
    """
    late = SideOutputLateEventHandler(MemorySink())

    def read() -> Stream:
        return stream_of(SCHEMA)

    driver = Driver(outputs(read, late, str(work)) if kind == "outputs" else plan(read, kind, late), idle_batches=False)
    batches = [pq.read_table(path) for path in sorted(source.iterdir())]
    done = [driver.send({"left": batch, "right": batch} if kind in JOINS else batch) for batch in batches]
    done += [driver.tick(), driver.close()]
    found: dict[str, list[dict[str, Any]]] = {}
    for step in done:
        for name, table in step.by_output.items():
            found.setdefault("out" if name == "results" else name, []).extend(table.to_pylist())
    refused = counted([row for step in done for row in step.late.to_pylist()])
    given = {name: counted(rows) for name, rows in found.items()}
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


@pytest.mark.parametrize("kind", SHORT if KILLS == 1 else KINDS)
def test_outputs_survive_kills(kind: str, tmp_path: Path, length_s: float) -> None:
    write_input(tmp_path / "in", seed=KINDS.index(kind))
    out, late, read = by_driver(kind, tmp_path / "in", tmp_path / "driver")
    assert all(out.values()) and late, "the job must have all outputs for the test to mean anything"
    seeded = random.Random(f"{kind} {KILLS}")
    killed = attempt = 0
    while killed < KILLS:
        work = tmp_path / f"killed-{attempt}"
        killed += run_with_kills(kind, tmp_path / "in", work, min(KILLS - killed, 5), seeded, length_s)
        assert {name: rows(work / name) for name in out} == out
        assert rows(work / "late") == late
        assert (work / "rows").read_text() == read
        attempt += 1
        assert attempt < 3 * KILLS + 3, "the job ends before it can be killed"
