"""A query begins in process, goes on on Spark and comes back, and gives what it gives in one place (docs/in-process.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from krishiv_py import Session
from tests.crash import killing
from tests.crash.job import KINDS
from tests.crash.killing import rows, write_input
from tests.crash.test_crash import by_driver
from tests.in_process.test_move import given, run

SHORT = ("tumbling",)
"""Retractions; several outputs and stages take four times as long."""
MOVED = [pytest.param(k, marks=() if k in SHORT else pytest.mark.slow) for k in KINDS if k != "lookup"]


@pytest.mark.parametrize("kind", MOVED)
def test_results_are_those_of_one_run(session: Session, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(killing, "ROWS", 60)
    write_input(tmp_path / "all", seed=KINDS.index(kind), files=6)
    out, late, read = by_driver(kind, tmp_path / "all", tmp_path / "driver")
    with Session.in_process() as here:
        given(tmp_path, slice(0, 2))
        run(here, kind, tmp_path, str(tmp_path / "a"))
        there = here.move(str(tmp_path / "a"), "spark", buckets=3)
        given(tmp_path, slice(2, 4))
        run(session, kind, tmp_path, there)
        back = session.move(there, "in-process", str(tmp_path / "b"))
        given(tmp_path, slice(4, 6))
        said = run(here, kind, tmp_path, back, last=True)
    assert {name: rows(tmp_path / name) for name in out} == out
    assert (rows(tmp_path / "late"), said) == (late, read)
