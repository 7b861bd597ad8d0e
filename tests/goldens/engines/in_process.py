"""A session without Spark as an engine: one micro-batch per step of a real query, with a checkpoint."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cached_property

from krishiv_py import Query, Session
from krishiv_py.in_process.query import ProcessQuery
from tests.goldens.engines.streaming import StreamingEngine


class ProcessEngine(StreamingEngine):
    """The streaming engine over ``Session.in_process()``."""

    @cached_property
    def own(self) -> Session:
        """The session, made once."""
        return Session.in_process()

    @property
    def session(self) -> Session:
        """Where the queries run."""
        return self.own

    def held(self, query: Query) -> AbstractContextManager[object]:
        """Hold the lock of its batches."""
        assert isinstance(query, ProcessQuery)
        return query._engine.batch


def make() -> ProcessEngine:
    """The engine."""
    return ProcessEngine()
