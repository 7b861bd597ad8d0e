"""A real query of a Spark Connect client as an engine: one micro-batch per step, as with a session of this process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from krishiv_py import Session
from tests.goldens.engines.streaming import HeldClock, StreamingEngine


@cache
def session() -> Session:
    """The client's session, started on first use, with a server of its own."""
    actual = Session.connect("local[2]")
    actual.spark.conf.set("spark.sql.shuffle.partitions", "2")
    return actual


class SharedClock(HeldClock):
    """A clock of client and server: its time is in a file."""

    def __init__(self, path: str, now_ms: int) -> None:
        self.path = path
        super().__init__(now_ms)

    def set(self, now_ms: int) -> None:
        """Move to a time."""
        written = Path(f"{self.path}.tmp")
        written.write_text(str(now_ms * 1_000))
        written.rename(self.path)

    def __call__(self) -> int:
        """The time, µs."""
        return int(Path(self.path).read_text())


class ConnectEngine(StreamingEngine):
    """Results and late rows go to the client's memory."""

    def clock(self, now_ms: int) -> SharedClock:
        """A clock that the server's process reads too."""
        return SharedClock(f"{self.session.temporary_folder('clock')}/now", now_ms)

    @property
    def session(self) -> Session:
        """The session of the client."""
        return session()


def make() -> ConnectEngine:
    """The engine."""
    return ConnectEngine()
