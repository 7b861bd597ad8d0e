"""The plugin of pytest, in a run of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

TESTS = """
import pytest
from krishiv_py import count
from krishiv_py.testing import stream_of
from tests.checking import planted


@pytest.mark.krishiv_check(cases=10, laws=["cut", "restart"])
def plan_per_minute():
    return planted.per_minute()


@pytest.mark.krishiv_check(seconds=60)
def test_numbered():
    return planted.rows_numbered()


def test_by_fixture(krishiv_check):
    assert krishiv_check(planted.per_minute, cases=10).cases == EXPECTED
"""
ROOT = Path(__file__).parents[2]
INSTALLED = any(one.name == "krishiv" for one in entry_points(group="pytest11"))


def ran(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    plugin = [] if INSTALLED else ["-p", "krishiv_pytest"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rA",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        *plugin,
        *options,
    ]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}", "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        [*command, "--rootdir", str(folder), str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    return tmp_path


def test_marked_functions_and_the_fixture(folder: Path) -> None:
    (folder / "test_plans.py").write_text(TESTS.replace("EXPECTED", "10"))
    done = ran(folder)
    assert "PASSED test_plans.py::plan_per_minute" in done.stdout, done.stdout + done.stderr
    assert "PASSED test_plans.py::test_by_fixture" in done.stdout
    assert "FAILED test_plans.py::test_numbered" in done.stdout
    assert "the law of cut does not hold" in done.stdout
    assert "10 cases, seed" in done.stdout
    (kept,) = (folder / ".krishiv_check").iterdir()
    replayed = ran(folder, "-k", "numbered", "--krishiv-replay", str(kept))
    assert "case 0 of seed" in replayed.stdout


def test_the_command_line_says_how_many_and_which(folder: Path) -> None:
    (folder / "test_plans.py").write_text(TESTS.replace("EXPECTED", "7"))
    done = ran(folder, "--krishiv-cases", "7", "--krishiv-seed", "42", "-k", "minute or fixture")
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert "7 cases, seed 42" in done.stdout
