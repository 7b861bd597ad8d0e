"""Where the report goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.record import RESULTS


def test_a_folder_of_ones_own_gets_all_of_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, own = tmp_path / "repository", tmp_path / "own"
    repository.mkdir()
    monkeypatch.setattr(report, "DOCS", repository)
    monkeypatch.setattr(report, "RESULTS", repository)
    report.main(["--results", str(RESULTS), "--docs", str(own)])
    assert sorted(str(p.relative_to(own)) for p in own.rglob("*.*")) == [
        *("img/in_process.png", "img/ratios.png", "performance.md", "tables.md")
    ]
    assert list(repository.iterdir()) == []


def test_without_a_folder_the_repository_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    report.main(["--results", str(tmp_path / "none")])
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.md")) == ["docs/performance.md", "tables.md"]
