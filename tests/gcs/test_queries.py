"""Queries with input, checkpoint and outputs in a bucket of Google's have the results they have on this machine's disk."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from krishiv_py import ParquetSink, SideOutputLateEventHandler
from krishiv_py.testing import Driver, stream_of
from tests.crash.job import SCHEMA, plan
from tests.crash.killing import rows
from tests.gcs.store import Google
from tests.objectstore.whole import KILLS, Whole, command, done, empty, files, killed, there, upload

__all__ = ["done"]


def test_a_query_in_two_runs_and_the_driver(used: Google, tmp_path: Path) -> None:
    """The second run goes on from the checkpoint in the bucket; each of the files is a micro-batch."""
    every = files(tmp_path / "in", 7, 2)
    late = SideOutputLateEventHandler(ParquetSink(str(tmp_path / "late")))
    driver = Driver(plan(lambda: stream_of(SCHEMA), "tumbling", late), sink=ParquetSink(str(tmp_path / "out")))
    for path in every:
        driver.send(pq.read_table(path))
    driver.close()
    (tmp_path / "more").mkdir()
    every[1].rename(tmp_path / "more" / every[1].name)
    upload(used, every[:1])
    job = subprocess.run(command(used, "halves", "h", str(tmp_path / "more")), capture_output=True, text=True, timeout=200)
    assert job.returncode == 0, job.stderr[-6_000:]
    print(job.stderr)
    assert "EnvironmentSetupError: Spark has no file system for gs:// (got: fs.gs.block.size is 64m)" in job.stdout
    for output in ("out", "late"):
        plain = rows(tmp_path / output)
        assert sum(plain.values()) > 20
        assert there(used, f"h/{output}") == plain
    assert not [key for key in used.files("h/") if "_staging" in key or key.endswith("lease.json")]
    empty(used)


@pytest.mark.slow
class TestWhole(Whole):
    """One session runs a query of each kind, the second time from its checkpoint."""


@pytest.mark.skipif(KILLS == 1, reason="nox -s crash")
def test_a_killed_query_goes_on(used: Google, tmp_path: Path) -> None:
    """The process tree dies at a random moment; what it left is replaced, and readers see each row once."""
    killed(used, tmp_path)
