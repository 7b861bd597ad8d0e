"""One small Spark session of this process for the engines that need one."""

from __future__ import annotations

from functools import cache

from krishiv_py import Session


@cache
def session() -> Session:
    """The session, started on first use."""
    return Session.builder().config("spark.sql.shuffle.partitions", 2).master("local[2]").get_or_create()
