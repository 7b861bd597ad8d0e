"""A real query of a Spark Connect client as an engine: one micro-batch per step, as with a session of this process."""

from __future__ import annotations

from functools import cache

from krishiv_py import Session
from tests.goldens.engines.streaming import StreamingEngine


@cache
def session() -> Session:
    """The client's session, started on first use, with a server of its own."""
    found = Session.connect("local[2]")
    found.spark.conf.set("spark.sql.shuffle.partitions", "2")
    return found


class ConnectEngine(StreamingEngine):
    """Results and late rows go to the client's memory."""

    @property
    def session(self) -> Session:
        """The session of the client."""
        return session()


def make() -> ConnectEngine:
    """The engine."""
    return ConnectEngine()
