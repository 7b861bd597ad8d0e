"""A session without Spark that collects: everything is sent, then run once."""

from __future__ import annotations

from functools import cached_property

from krishiv_py import Session
from tests.goldens.engines.bounded import BoundedEngine


class ProcessBoundedEngine(BoundedEngine):
    """The bounded engine over ``Session.in_process()``."""

    @cached_property
    def own(self) -> Session:
        """The session, made once."""
        return Session.in_process()

    @property
    def session(self) -> Session:
        """Where the runs are."""
        return self.own


def make() -> ProcessBoundedEngine:
    """The engine."""
    return ProcessBoundedEngine()
