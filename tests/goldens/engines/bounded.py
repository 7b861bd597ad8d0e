"""The bounded route as an engine: everything is sent, then collected in one Spark batch job."""

from __future__ import annotations

from krishiv_py import Session
from krishiv_py.plan.options.late import LateWanted
from krishiv_py.testing import ManualClock
from tests.goldens.cases import Case
from tests.goldens.engines import Observed
from tests.goldens.engines.pipeline import SCHEMA, late, pipeline, rows_of, written
from tests.goldens.engines.spark_session import session


class BoundedEngine:
    """Cannot tell steps apart, and its end of input closes what a case leaves open."""

    unsupported = frozenset({"policy_max"})

    @property
    def session(self) -> Session:
        """Where the jobs run."""
        return session()

    def run(self, case: Case) -> Observed:
        """Send every step, then run once."""
        clock = ManualClock((case.watermark.start_now_ms or 0) * 1_000)
        self.session.use_clock(lambda: clock.now_us)
        stream, sender = self.session.memory_stream(SCHEMA)
        for step in case.steps:
            if step.now_ms is not None:
                clock.set(step.now_ms)
            if step.advance_watermark_ms is not None:
                sender.advance_watermark(step.advance_watermark_ms, source=step.source)
            else:
                sender.send(rows_of(case, step.batch))
        plan = pipeline(case, stream)
        result = plan.with_late_event_handler(WholeRows()).run()
        return Observed(
            written=written(case, result.table, None),
            late=late(result.late, None),
            null_ts_dropped=result.counters["null_time"],
        )


class WholeRows:
    """Asks for whole late rows, which the result of a bounded run then holds."""

    wants: LateWanted = "rows"

    def handle(self, late: object) -> None:
        """They are read from the result."""


def make() -> BoundedEngine:
    """The engine."""
    return BoundedEngine()
