"""One small Spark session for the engines that need one."""

from __future__ import annotations

import os
from functools import cache
from typing import Final

from krishiv_py import Session

MASTER: Final = "KRISHIV_GOLDENS_MASTER"
"""The environment variable with the cluster the cases run on (`nox -s cluster`); without it they run in this process."""


@cache
def session() -> Session:
    """The session, started on first use."""
    builder = Session.builder().config("spark.sql.shuffle.partitions", 2)
    master = os.environ.get(MASTER)
    if master is None:
        return builder.master("local[2]").get_or_create()
    small = builder.config("spark.executor.memory", "512m").config("spark.cores.max", 2)
    return small.config("spark.krishiv.sharedFolders", True).master(master).profile("distributed-durable").get_or_create()
