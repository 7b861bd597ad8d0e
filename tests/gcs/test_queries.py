"""Queries with input, checkpoint and outputs in a bucket of Google's have the results they have on this machine's disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gcs.store import Google
from tests.objectstore.store import Store
from tests.objectstore.whole import KILLS, Halves, Whole, done, killed

__all__ = ["done"]


@pytest.mark.slow
class TestHalves(Halves):
    """One query in two runs; the tests of S3 have the same in every run."""

    def look(self, said: str, used: Store | Google) -> None:
        """Check that Spark without a file system for the scheme is reported."""
        assert "EnvironmentSetupError: Spark has no file system for gs:// (got: fs.gs.block.size is 64m)" in said


@pytest.mark.slow
class TestWhole(Whole):
    """One session runs a query of each kind, the second time from its checkpoint."""


@pytest.mark.skipif(KILLS == 1, reason="nox -s crash")
def test_a_killed_query_goes_on(used: Google, tmp_path: Path) -> None:
    """The process tree dies at a random moment; what it left is replaced, and readers see each row once."""
    killed(used, tmp_path)
