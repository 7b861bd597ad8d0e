"""Every example runs as a user would run it, and checks its own answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.mark.parametrize(
    ("script", "arguments", "says"),
    [
        ("quickstart.py", [], "the answer is right"),
        ("files.py", [], "every result once, over a restart"),
        ("conjunctions.py", [], "conjunctions"),
        ("flights.py", ["--days", "8", "--hours-per-file", "24"], "equal to an independent computation"),
    ],
)
def test_script(script: str, arguments: list[str], says: str) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLES / script), *arguments], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert says in done.stdout
    assert done.stderr == ""  # what concerns the user: nothing


def test_notebook() -> None:
    notebook = nbformat.read(EXAMPLES / "late_rows.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    assert "as an independent count says" in str(notebook.cells[-1].outputs)
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    assert "↓ watermark" in shown[0]["text/html"]  # the plan
    assert sum("image/png" in kinds for kinds in shown) == 2  # the timeline, the lateness
