"""Heartbeats: control files that make a quiet query run a batch when only the clock has moved.

Idle sources, interval triggers and wall-clock TTLs must take their turn although no row comes. A thread on the driver
writes a control file when the next of them is due; the query reads the folder beside its source.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.triggers import Interval
from krishiv_py.plan.watermarks import MultiSourceWatermarkSpec
from krishiv_py.spark.clocks import LedgerClock, SparkClock
from krishiv_py.spool import Control, Spool

_SHORTEST_US: Final = 100_000
_POLL_S: Final = 0.05


def period_us(spec: OperatorSpec) -> int | None:
    """How often the clock must be looked at; None when it plays no part."""
    periods = []
    if isinstance(spec.watermark, MultiSourceWatermarkSpec) and spec.watermark.idle_timeout_us is not None:
        periods.append(spec.watermark.idle_timeout_us // 2)
    if isinstance(spec.options.trigger.early, Interval):
        periods.append(spec.options.trigger.early.period_us)
    if spec.options.ttl is not None and spec.options.ttl.clock == "processing":
        periods.append(spec.options.ttl.ttl_us // 4)
    return max(min(periods), _SHORTEST_US) if periods else None


def control_spool(checkpoint: str) -> Spool:
    """The folder of control files of a query, read beside its source."""
    folder = Path(checkpoint.removeprefix("file://")) / "krishiv" / "controls"
    folder.mkdir(parents=True, exist_ok=True)
    return Spool(str(folder))


class Pulse:
    """The thread. Time is the session's clock, so a test that holds the clock holds the pulse."""

    def __init__(self, spool: Spool, period: int, now: Callable[[], int]) -> None:
        self.spool = spool
        self._period = period
        self._now = now
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="krishiv-pulse", daemon=True)

    @classmethod
    def for_plan(
        cls, spec: OperatorSpec, clock: SparkClock | LedgerClock, checkpoint: str, now: Callable[[], int]
    ) -> Pulse | None:
        """The pulse of a plan; None when the clock plays no part in it."""
        period = period_us(spec)
        if period is None or isinstance(clock, SparkClock):
            return None
        return cls(control_spool(checkpoint), period, now)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stopping(self, then: Callable[[], None]) -> Callable[[], None]:
        """A function that stops the pulse, then does `then`."""

        def stop() -> None:
            self._stopped.set()
            self._thread.join(timeout=5)
            then()

        return stop

    def _run(self) -> None:
        last = self._now()
        while not self._stopped.wait(_POLL_S):
            now = self._now()
            if now - last >= self._period:
                self.spool.control(Control(UNSET, None, now))
                last = now
