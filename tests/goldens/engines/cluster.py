"""A real query on a standalone cluster as an engine, one micro-batch per step: the driver here, tasks in two executors."""

from __future__ import annotations

import atexit
import os
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Final

from krishiv_py import Session
from tests.cluster.standalone import cluster
from tests.goldens.engines.streaming import StreamingEngine

MASTER: Final = "KRISHIV_GOLDENS_MASTER"
"""The environment variable with a cluster that runs already (`tests/cluster`); without it the engine starts one of its own."""


@cache
def session() -> Session:
    """The session, started on first use."""
    master = os.environ.get(MASTER) or _own()
    small = Session.builder().config("spark.executor.memory", "512m").config("spark.cores.max", 2)
    small = small.config("spark.sql.shuffle.partitions", 2).config("spark.krishiv.sharedFolders", True)
    actual = small.master(master).profile("distributed-durable").get_or_create()
    assert actual.spark.sparkContext.master == master, "another engine has started Spark in this process"
    return actual


def _own() -> str:
    """A master and two workers, for as long as this process lives."""
    kept = ExitStack()
    atexit.register(kept.close)
    home = kept.enter_context(tempfile.TemporaryDirectory(prefix="krishiv-cluster-", ignore_cleanup_errors=True))
    return kept.enter_context(cluster(Path(home))).url


class ClusterEngine(StreamingEngine):
    """Results and late rows go to the driver's memory."""

    @property
    def session(self) -> Session:
        """The session of the driver."""
        return session()


def make() -> ClusterEngine:
    """The engine."""
    return ClusterEngine()
