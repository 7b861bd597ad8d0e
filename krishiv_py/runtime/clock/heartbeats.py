"""Heartbeats: control files that make a quiet query run a batch when only the clock has moved.

Idle sources, triggers by the clock and wall-clock TTLs must take their turn although no row comes. A thread on the driver
writes a control file when the next of them is due; the query reads the folder next to its source.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Final

from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec
from krishiv_py.plan.running import Control
from krishiv_py.runtime.clock.controls import ControlFolder

_SHORTEST_US: Final = 100_000
_BY_CLOCK_US: Final = 1_000_000
"""How late a window by the clock may fire in a quiet query."""
_UNREAD_US: Final = 10_000_000
"""How long the next beat waits while a long batch has not read the last one."""
_POLL_S: Final = 0.05


def period_us(spec: OperatorSpec) -> int | None:
    """Return how often the clock must be looked at; None when it plays no part."""
    periods = []
    if isinstance(spec.watermark, MultiSourceWatermarkSpec) and spec.watermark.idle_timeout_us is not None:
        periods.append(spec.watermark.idle_timeout_us // 2)
    if spec.watermark.idle_advance_us is not None:
        periods.append(spec.watermark.idle_advance_us // 2)
    if spec.options.trigger._period_us is not None:
        periods.append(spec.options.trigger._period_us)
    if spec.options.ttl is not None and spec.options.ttl.clock == "processing":
        periods.append(spec.options.ttl.ttl_us // 4)
    return max(min(periods), _SHORTEST_US) if periods else None


def by_clock_us(specs: Sequence[OperatorSpec]) -> int | None:
    """Return how often the clock must be looked at while windows that go by it are open; None where it closes none."""
    operations = [spec.operation for spec in specs]
    timed = [o.extent.length_us for o in operations if not o.extent.numbered and not o.nature.gives_rows]
    return max(min(us // 10 if us else _BY_CLOCK_US for us in [*timed, 10 * _BY_CLOCK_US]), _SHORTEST_US) if timed else None


class Heartbeats:
    """The thread. Time is the session's clock, so a test that holds the clock holds the heartbeats.

    `due` says whether anything waits for the clock at all.
    """

    def __init__(
        self, controls: ControlFolder, period: int, now: Callable[[], int], due: Callable[[], bool] = lambda: True
    ) -> None:
        self._controls = controls
        self._period = period
        self._now = now
        self._due = due
        self._last = now()
        self._unread = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, running: Callable[[], bool]) -> None:
        """Begin to beat, for as long as the query is `running`."""
        self._thread = threading.Thread(target=self._run, args=(running,), name="krishiv-heartbeats", daemon=True)
        self._thread.start()

    def batch_done(self) -> None:
        """A micro-batch has looked at the clock, so the next beat can wait; what batches have read is removed."""
        self._last = self._now()
        self._unread = False
        self._controls.batch_done()

    def stopping(self, then: Callable[[], None]) -> Callable[[], None]:
        """Return a function that stops the heartbeats, then does `then`."""

        def stop() -> None:
            self._stopped.set()
            if self._thread is not None:
                self._thread.join(timeout=5)
            then()

        return stop

    def _run(self, running: Callable[[], bool]) -> None:
        while not self._stopped.wait(_POLL_S):
            now = self._now()
            wait = max(self._period, _UNREAD_US) if self._unread else self._period
            if now - self._last >= wait and self._due():
                if not running():
                    return
                self._last = now
                self._beat(now)

    def _beat(self, now: int) -> None:
        self._unread = True
        try:
            self._controls.write(Control(UNSET, None, now))
        except OSError as problem:
            self._unread = False
            warnings.warn(
                f"a heartbeat could not be written: {problem}. Windows that wait for the clock do not fire until one can; "
                "it is tried again. Hint: see to the space and rights of the checkpoint's folder",
                RuntimeWarning,
                stacklevel=2,
            )
