"""Queries with input, checkpoint and outputs in a bucket have the results of the same queries on this machine's disk."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.version import __version__ as spark_version

from tests.gcs.store import Google
from tests.objectstore.store import HADOOP, Store
from tests.objectstore.whole import KILLS, Halves, Whole, done, killed

_JARS = Path(sys.modules["pyspark"].__file__ or "").parent / "jars"
__all__ = ["done"]

pytestmark = pytest.mark.skipif(
    not (_JARS / f"hadoop-client-api-{HADOOP}.jar").exists(),
    reason=f"Spark {spark_version} has another Hadoop than {HADOOP}, whose jars for S3 are pinned",
)


@pytest.mark.slow
class TestHalves(Halves):
    """One query in two runs."""

    def look(self, said: str, used: Store | Google) -> None:
        """Check that no secret is reported or kept."""
        texts = [said.encode(), *(used.read(key) for key in used.keys("") if not key.endswith("/"))]
        assert isinstance(used, Store) and len(texts) > 20
        assert not any(secret.encode() in text for text in texts for secret in (used.key, used.secret))


@pytest.mark.slow
class TestWhole(Whole):
    """One session runs a query of each kind, the second time from its checkpoint."""

    def test_no_secret_is_reported_or_kept(self, done: tuple[dict[str, Any], Path], used: Store) -> None:
        given, folder = done
        texts = [given["said"].encode(), json.dumps(given).encode()]
        texts += [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        texts += [used.read(key) for key in used.keys("")]
        assert len(texts) > 100
        assert not any(secret.encode() in text for text in texts for secret in (used.key, used.secret))


@pytest.mark.skipif(KILLS == 1, reason="nox -s crash")
def test_a_killed_query_goes_on(used: Store, tmp_path: Path) -> None:
    """The process tree dies at a random moment; what it left is replaced, and readers see each row once."""
    killed(used, tmp_path)
