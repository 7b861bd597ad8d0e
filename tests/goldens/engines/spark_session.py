"""One small Spark session for the engines that need one."""

from __future__ import annotations

from functools import cache

from krishiv_py import Session


@cache
def session() -> Session:
    """The session, started on first use."""
    return Session.builder().master("local[2]").config("spark.sql.shuffle.partitions", 2).get_or_create()
