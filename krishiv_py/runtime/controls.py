"""Control files of a query, read next to its source: heartbeats and the end of input.

They lie in the checkpoint, on whatever file system that has. A query may run for years, so files that no micro-batch will read
again are removed, and names come from the time, not from a count. A query that began with control files keeps them as a source.

Spark runs a batch without rows when its watermark has moved, and wakes operators by timers that follow it. Where the watermark
is that of a DataFrame on the way in, both follow other times than ours. So when ours has moved a control file is written, the
next batch reads it, and every bucket is asked to go on.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.errors import users_line
from krishiv_py.failures.redaction import shown_text
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.watermark import LANE_IDLE_US
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.nodes import MemorySource, SourceNode
from krishiv_py.plan.options.query import Batches
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec
from krishiv_py.plan.running import Control
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.checkpoint.sparklog import add_source, sources_of
from krishiv_py.storage.checksums import sealed_parquet
from krishiv_py.storage.files import store_at
from krishiv_py.storage.sends.log import control_table


@attrs.define(eq=False)
class ControlFolder:
    """The folder ``<checkpoint>/krishiv/controls``."""

    folder: str
    _named: int = 0
    _present: deque[set[str]] = attrs.field(factory=deque)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    @classmethod
    def of(cls, checkpoint: str, *, wanted: bool, sources: int | None = None) -> ControlFolder | None:
        """Return the folder of a checkpoint; None if it is neither there nor `wanted`.

        `sources` is how many sources the query has next to it: one that was begun with one more has lost the folder, and with
        it nothing but heartbeats, for the end of input is written again.
        """
        folder = f"{checkpoint}/krishiv/controls"
        store, path = store_at(folder)
        if not store.exists(path):
            begun = sources is not None and sources_of(checkpoint) == sources + 1
            if not wanted and not begun:
                return None
            if not begun:
                add_source(checkpoint)
            store.make_folder(path)
        return cls(folder)

    def write(self, control: Control) -> None:
        """Write a control file, whole or not at all."""
        store, root = store_at(self.folder)
        held = pa.BufferOutputStream()
        pq.write_table(control_table(control), held)
        with self._lock:
            self._named = max(self._named + 1, time.time_ns() // 1_000)
            store.write(f"{root}/{self._named:020d}.parquet", b"".join(sealed_parquet(held.getvalue())))

    def batch_done(self) -> None:
        """Remove what no micro-batch will read again. To be called once in every batch, before Spark marks it as done.

        Every file that is there now is read by the next batch at the latest, and that batch is marked as done when the one
        after it comes to this call: until then Spark could repeat it.
        """
        store, root = store_at(self.folder)
        entries = store.entries(root)  # S3 knows no empty folders
        there = {f.path for f in entries if f.base_name.endswith(".parquet")}
        self._present.append(there)
        if len(self._present) > 2:
            for path in self._present.popleft() & there:
                store.delete(path)  # another run of this query removed it


@attrs.frozen(eq=False)
class ControlWriter:
    """Writes them.

    Attributes
    ----------
    controls : ControlFolder
        Where.
    tidies : bool
        Whether it removes what batches have read, as nobody else does.
    now : callable
        Processing time, µs.
    """

    controls: ControlFolder
    tidies: bool
    now: Callable[[], int]

    def batch_done(self, *, moved: bool) -> None:
        """To be called once in every batch, before Spark marks it as done: whether it has `moved` the watermark."""
        if self.tidies:
            self.controls.batch_done()
        if moved:
            self.controls.write(Control(UNSET, None, self.now()))


NOTE: Final = (
    "warning: flush=True declares the end of input: every row that comes later from this checkpoint is late. "
    "Leave flush out to go on later"
)


def warn_if_flushed(watermark_us: int, checkpoint: str, source: SourceNode) -> None:
    """Warn at the start of a query whose checkpoint saw the end of input; what is closed or finite gets no more rows anyway."""
    ends = isinstance(source, MemorySource) or (isinstance(source, RangeSource) and source.bounded)
    if watermark_us == END_OF_TIME and not ends:
        warnings.warn(
            f"the end of input was declared in the checkpoint {shown_text(checkpoint)}, by available_now(flush=True): every "
            "row that comes now is late. Hint: use a new checkpoint, and leave flush out if more input is to come",
            stacklevel=users_line(),
        )


_SHORTEST_US: Final = 100_000
_BY_CLOCK_US: Final = 1_000_000
"""The longest delay of a window by the clock in a quiet query."""
_UNREAD_US: Final = 10_000_000
"""The longest time that the next heartbeat waits for a long batch to read the last one."""
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


@attrs.define(eq=False)
class Heartbeats:
    """The thread. Time is the session's clock, so a test that holds the clock holds the heartbeats.

    Idle sources, triggers by the clock and wall-clock TTLs must take their turn although no row comes. A thread on the driver
    writes a control file when the next of them is due; the query reads the folder next to its source.

    `due` says whether anything waits for the clock at all, and `deadline` whether something waits for a time that has come.
    """

    _controls: ControlFolder
    _period: int | None
    _now: Callable[[], int]
    _due: Callable[[], bool] = lambda: True
    _deadline: Callable[[int], bool] = lambda now: False
    _last: int = attrs.field(default=attrs.Factory(lambda self: self._now(), takes_self=True), init=False)
    _unread: bool = attrs.field(default=False, init=False)
    _stopped: threading.Event = attrs.field(factory=threading.Event, init=False)
    _thread: threading.Thread | None = attrs.field(default=None, init=False)

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
            if self._is_beat_due(now):
                if not running():
                    return
                self._last = now
                self._beat(now)

    def _is_beat_due(self, now: int) -> bool:
        passed, least = now - self._last, _UNREAD_US if self._unread else 0
        if self._period is not None and passed >= max(self._period, least) and self._due():
            return True
        return passed >= max(_SHORTEST_US, least) and self._deadline(now)

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


@attrs.frozen
class ControlFiles:
    """Says which control files a query needs next to its sources.

    Attributes
    ----------
    period_us : int or None
        How often the clock is looked at; None where it plays no part.
    while_open : bool
        Whether that is so only while something is open.
    goes_on : bool
        Whether another run follows when the input there was is done.
    woken : bool
        Whether control files stand for batches without rows.
    deadlines : bool
        Whether something may be due at a processing time of its own.
    """

    period_us: int | None
    while_open: bool
    goes_on: bool
    woken: bool
    deadlines: bool

    @classmethod
    def of(cls, plan: PhysicalPlan, batches: Batches) -> ControlFiles:
        """Return those of a plan."""
        lanes_us = LANE_IDLE_US // 2 if plan.clocks.has_lanes else None
        interval_us = min(filter(None, (*(period_us(s.spec) for s in plan.stages), lanes_us)), default=None)
        by_clock = by_clock_us([s.spec for s in plan.stages]) if plan.by_clock else None
        period = min(filter(None, (interval_us, by_clock)), default=None)
        goes_on = batches._goes_on and not plan.stateless  # nothing is open
        woken = plan.watermarked and not plan.stateless
        deadlines = any(stage.spec.operation.has_clock_deadlines for stage in plan.stages)
        return cls(period, interval_us is None, goes_on or (woken and batches.kind == "available_now"), woken, deadlines)

    @property
    def wanted(self) -> bool:
        """Return whether there are any."""
        return self.period_us is not None or self.goes_on or self.woken or self.deadlines

    def heartbeats(
        self, controls: ControlFolder | None, now: Callable[[], int], any_open: Callable[[], bool], due: Callable[[int], bool]
    ) -> Heartbeats | None:
        """Return what writes them when the clock must be looked at, or something is `due` by it."""
        if controls is None or (self.period_us is None and not self.deadlines):
            return None
        return Heartbeats(controls, self.period_us, now, any_open if self.while_open else lambda: True, due)

    def writer(self, controls: ControlFolder | None, now: Callable[[], int]) -> ControlWriter | None:
        """Return what writes them when the watermark has moved."""
        return ControlWriter(controls, self.period_us is None, now) if controls is not None and self.woken else None
