"""The cost of a start on Spark, in calls of this process: it grows with columns plus aggregates."""

from __future__ import annotations

from pathlib import Path

from krishiv_py import Session
from tests.in_process.test_start_cost import calls


def test_a_start_is_linear_in_columns_and_in_aggregates(session: Session, tmp_path: Path) -> None:
    calls(session, tmp_path, 1, 2)  # what is loaded at its first use
    plain = calls(session, tmp_path, 50, 100)
    assert calls(session, tmp_path, 100, 200) < 2.1 * plain
    assert calls(session, tmp_path, 200, 400) < 4.2 * plain
    assert calls(session, tmp_path, 50, 400) < 1.5 * plain, "columns that nobody reads"
