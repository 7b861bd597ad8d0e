"""A session in process, killed at random moments: results and late rows equal those of the driver, row by row."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash.job import KINDS
from tests.crash.killing import rows, run, write_input
from tests.crash.ordered import KINDS as ORDERED
from tests.crash.test_crash import by_driver, survives

KILLS = int(os.environ.get("KRISHIV_KILLS", "1"))  # `nox -s crash` sets 20
SHORT = ("matched", *ORDERED)
"""Stages in settled order, and a join of results with deduplication.

tests/kills kills a job with retractions, and several outputs are killed on Spark.
"""
BY_TABLES = ("lookup",)


@pytest.fixture(autouse=True)
def _in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRISHIV_ENGINE", "in_process")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", SHORT if KILLS == 1 else [kind for kind in KINDS if kind not in BY_TABLES])
def test_outputs_survive_kills(kind: str, tmp_path: Path) -> None:
    write_input(tmp_path / "in", seed=KINDS.index(kind))
    length_s = run(kind, tmp_path / "in", tmp_path / "calm")
    out, late, read = by_driver(kind, tmp_path / "in", tmp_path / "driver")
    assert all(out.values()) and late, "the job must have all outputs for the test to mean anything"
    assert {name: rows(tmp_path / "calm" / name) for name in out} == out
    survives(kind, tmp_path, KILLS, length_s, out, late, read)
