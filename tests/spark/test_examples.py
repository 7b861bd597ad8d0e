"""Every example runs as a user would run it, and checks its own answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import nbformat
import pytest
from nbclient import NotebookClient

from tests.engines.test_zones import ZONES, by_driver
from tests.engines.zones import SOME
from tests.spark.conftest import calm

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
ZONE: Final = ZONES[0]

SCRIPTS: Final[dict[str, tuple[list[str], str]]] = {
    "quickstart.py": ([], "quickstart: the answer is right"),
    "files.py": ([], "every result once, over a restart"),
    "sqlite_sink.py": ([], "every row once, over a restart"),
    "serving.py": ([], "every event counted once"),
    "live_totals.py": ([], "each with the same totals"),
    "tutorial.py": ([], "two runs, every result once"),
    "counter_source.py": ([], "equal results, bounded and over a restart"),
    "conjunctions.py": ([], "conjunctions"),
    "attribution.py": ([], "both outputs are those of the driver, over a restart"),
    "flights.py": (["--days", "4", "--hours-per-file", "24"], "equal to an independent computation"),
}
"""Each script with its arguments, and what it says when its answer is right."""
SHORT: Final = ("quickstart.py", "tutorial.py")
"""Those of a run of all tests; `nox -s slow` has the rest."""
REST: Final = tuple(name for name in SCRIPTS if name not in SHORT)


def given(*command: str) -> str:
    """Return what a command writes; on standard error nothing that concerns the user."""
    where = {**calm(), "TZ": ZONE}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=600, cwd=EXAMPLES.parent, env=where
    )
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3_000:]
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    "some", [SHORT, pytest.param(sorted(SCRIPTS.keys() - SHORT), marks=pytest.mark.slow)], ids=["short", "rest"]
)
def test_scripts(some: tuple[str, ...]) -> None:
    """On one session, for a start of Spark takes longer than most of them, and in a zone that is not UTC.

    The last script gives answers about times, which must be those of the driver in UTC.
    """
    assert {*SCRIPTS, "__init__.py"} == {path.name for path in EXAMPLES.glob("*.py")}
    calls = [[str(EXAMPLES / name), *SCRIPTS[name][0], ","] for name in some]
    calls.append(["tests/engines/zones.py", "some"])
    lines = given("-m", "tests.spark.example_scripts", *[word for call in calls for word in call])
    for name in some:
        assert SCRIPTS[name][1] in lines, name
    assert by_driver(SOME) <= set(lines.splitlines())


@pytest.mark.slow
def test_notebook() -> None:
    notebook = nbformat.read(EXAMPLES / "late_rows.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    assert "as an independent count says" in str(notebook.cells[-1].outputs)
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    assert "↓ watermark" in shown[0]["text/html"]  # the plan
    assert sum("image/png" in kinds for kinds in shown) == 2  # the timeline, the lateness
