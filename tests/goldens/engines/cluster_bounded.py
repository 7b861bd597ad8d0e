"""The bounded route on a standalone cluster as an engine."""

from __future__ import annotations

from krishiv_py import Session
from tests.goldens.engines.bounded import BoundedEngine
from tests.goldens.engines.cluster import session


class ClusterBoundedEngine(BoundedEngine):
    """One batch job, whose tasks run in two executors."""

    @property
    def session(self) -> Session:
        """The session of the driver."""
        return session()


def make() -> ClusterBoundedEngine:
    """The engine."""
    return ClusterBoundedEngine()
