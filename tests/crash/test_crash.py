"""Results and late rows after kills equal those of a run that was left alone, row by row (SEMANTICS §6.3)."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.crash.job import KINDS
from tests.crash.killing import rows, run, run_with_kills, write_input

KILLS = int(os.environ.get("KRISHIV_KILLS", "1"))  # `nox -s crash` sets 20


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_survive_kills(kind: str, tmp_path: Path) -> None:
    write_input(tmp_path / "in", seed=KINDS.index(kind))
    length_s = run(kind, tmp_path / "in", tmp_path / "calm")
    calm_out, calm_late = rows(tmp_path / "calm" / "out"), rows(tmp_path / "calm" / "late")
    assert calm_out and calm_late, "the job must have both outputs for the test to mean anything"
    seeded = random.Random(f"{kind} {KILLS}")
    killed = attempt = 0
    while killed < KILLS:
        work = tmp_path / f"killed-{attempt}"
        killed += run_with_kills(kind, tmp_path / "in", work, min(KILLS - killed, 5), seeded, length_s)
        assert rows(work / "out") == calm_out
        assert rows(work / "late") == calm_late
        assert (work / "rows").read_text() == (tmp_path / "calm" / "rows").read_text()
        attempt += 1
        assert attempt < 3 * KILLS + 3, "the job ends before it can be killed"
