"""The JVM-free driver as an engine."""

from __future__ import annotations

from krishiv_py.testing import Driver, stream_of
from krishiv_py.testing.sends import ManualClock
from tests.goldens.cases import Case
from tests.goldens.engines import Observed
from tests.goldens.engines.pipeline import SCHEMA, late, pipeline, rows_of, written

UNSET = -(2**63)


class DriverEngine:
    """One driver per case; a restart goes through saved state."""

    unsupported = frozenset({"policy_max"})

    def run(self, case: Case) -> Observed:
        """Every step as one call of the driver."""
        start = case.watermark.start_now_ms or 0
        clock = ManualClock(start * 1_000)
        driver = Driver(pipeline(case, stream_of(SCHEMA)), clock=clock)
        seen = Observed(watermark_after_ms=[], late=[])
        assert seen.watermark_after_ms is not None and isinstance(seen.late, list)
        for number, step in enumerate(case.steps):
            if step.restart_before:
                driver = driver.restarted()
            if step.now_ms is not None:
                clock.set(step.now_ms)
            if step.advance_watermark_ms is not None:
                out = driver.advance_watermark(step.advance_watermark_ms, source=step.source)
            else:
                out = driver.send(rows_of(case, step.batch))
            seen.written += written(case, out.results, number)
            seen.late += late(out.late, number)
            seen.watermark_after_ms.append(None if out.watermark_us == UNSET else out.watermark_us // 1_000)
        seen.null_ts_dropped = driver.counters["null_time"]
        return seen


def make() -> DriverEngine:
    """The engine."""
    return DriverEngine()
