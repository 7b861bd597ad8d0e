"""The library uses only what the oldest Python it claims to run on has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def oldest() -> str:
    """Return the oldest Python that the library claims to run on."""
    claimed = re.search(r'requires-python = ">=(3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert claimed is not None
    return claimed[1]


def test_names_and_syntax_are_in_the_oldest_python() -> None:
    program = "import gc, vermin; gc.disable(); vermin.main()"  # collections, and comments with orders, are half of its time
    options = [f"-t={oldest()}-", "--no-tips", "--violations", "--no-parse-comments", "--processes=1"]
    done = subprocess.run(
        [sys.executable, "-c", program, *options, "krishiv_py"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_types_hold_on_the_oldest_python() -> None:
    """NumPy's own types are vaguer there, so what only that brings is not counted."""
    command = [sys.executable, "-m", "mypy", "--python-version", oldest(), "--disable-error-code", "no-any-return"]
    cache = ["--cache-dir", str(ROOT / ".mypy_cache" / "oldest")]
    done = subprocess.run([*command, *cache, "krishiv_py"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
