"""A session without Spark with three workers as an engine."""

from __future__ import annotations

from functools import cached_property

from krishiv_py import Session
from tests.goldens.engines.in_process import ProcessEngine


class SharedEngine(ProcessEngine):
    """The engine in process, with keys shared among threads."""

    @cached_property
    def own(self) -> Session:
        """The session, made once."""
        return Session.in_process(workers=3)


def make() -> SharedEngine:
    """The engine."""
    return SharedEngine()
