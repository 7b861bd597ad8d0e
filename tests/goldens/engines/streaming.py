"""A real query as an engine: one micro-batch per step, each run until the query is idle."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa

import krishiv_py as kv
from krishiv_py import Session
from krishiv_py.testing import ManualClock
from tests.goldens.cases import Case
from tests.goldens.engines import Observed
from tests.goldens.engines.pipeline import SCHEMA, late, pipeline, rows_of, written
from tests.goldens.engines.spark_session import session

UNSET = -(2**63)


class HeldClock:
    """Stands still until it is set."""

    def __init__(self, now_ms: int) -> None:
        self._clock = ManualClock()
        self.set(now_ms)

    def set(self, now_ms: int) -> None:
        """Move to a time."""
        self._clock.set(now_ms)

    def __call__(self) -> int:
        """The time, µs."""
        return self._clock.now_us


class StreamingEngine:
    """Results and late rows go to the driver's memory."""

    unsupported = frozenset({"policy_max"})

    @property
    def session(self) -> Session:
        """Where the queries run."""
        return session()

    def clock(self, now_ms: int) -> HeldClock:
        """A clock of this process that is at a time."""
        return HeldClock(now_ms)

    def held(self, query: kv.Query) -> AbstractContextManager[object]:
        """Keep a query from running a batch, so that rows and the time at which they come are seen together."""
        return nullcontext()

    def run(self, case: Case) -> Observed:
        """Every step as one micro-batch of a running query; restarts go through the checkpoint."""
        clock = self.clock(case.watermark.start_now_ms or 0)
        self.session.use_clock(clock)
        stream, sender = self.session.memory_stream(SCHEMA)
        out, refused = kv.MemorySink(), kv.MemorySink()
        plan = pipeline(case, stream).with_late_event_handler(kv.SideOutputLateEventHandler(refused))
        checkpoint = self.session.temporary_folder("golden")
        query = plan.start(out, checkpoint=checkpoint)
        seen = Observed(watermark_after_ms=[], late=[])
        assert seen.watermark_after_ms is not None and isinstance(seen.late, list)
        new_rows, new_late = _fresh(out), _fresh(refused)
        try:
            for number, step in enumerate(case.steps):
                if step.restart_before:
                    query.stop()
                    query = plan.start(out, checkpoint=checkpoint)
                with self.held(query):
                    if step.now_ms is not None:
                        clock.set(step.now_ms)
                    if step.advance_watermark_ms is not None:
                        sender.advance_watermark(step.advance_watermark_ms, source=step.source)
                    else:
                        sender.send(rows_of(case, step.batch))
                query.process_all_available()
                for table in new_rows():
                    seen.written += written(case, table, number)
                for table in new_late():
                    seen.late += late(table, number)
                now = query.progress.watermark_us
                seen.watermark_after_ms.append(None if now == UNSET else now // 1_000)
            seen.null_ts_dropped = query.progress.counters.get("null_time", 0)
        finally:
            query.stop()
        return seen


def _fresh(sink: kv.MemorySink) -> Callable[[], list[pa.Table]]:
    """A function that gives the tables that came since it was last called."""
    known: set[int] = set()

    def tables() -> list[pa.Table]:
        batches = sorted(set(sink.tables) - known)
        known.update(batches)
        return [t for b in batches for t in sink.tables[b]]

    return tables


def make() -> StreamingEngine:
    """The engine."""
    return StreamingEngine()
