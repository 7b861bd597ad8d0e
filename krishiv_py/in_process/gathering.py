"""The sends of a memory stream that are one batch: as many as have come, while one batch for each would give the same results.

A row is compared with the watermark that the sends before it have reached. So a send joins a batch only if no row lies before
that: then none of them is late, none belongs to a window that would have fired before it, and it makes no difference that both
are in one batch. The first send with another row begins the next batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import pyarrow as pa

from krishiv_py.kernels.columns.times import stamp
from krishiv_py.kernels.firing.asked import asked_by
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.expressions.expr import Col
from krishiv_py.plan.nodes import Filter, Project
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.ranges.limit import Limit

_ROUTES: Final = ("fixed", "session", "lookback", "rows")
"""Windows whose results depend on the watermark and on rows that are not late, and not on where batches end."""


@attrs.frozen
class Alone:
    """Implements :class:`~krishiv_py.runtime.ranges.sent.Together`: each send is a batch."""

    def begin(self, first: pa.Table) -> bool:
        """See Together."""
        return False

    def takes(self, send: pa.Table) -> bool:
        """See Together."""
        return False


@attrs.define(eq=False)
class Gathering:
    """Implements :class:`~krishiv_py.runtime.ranges.sent.Together` for the only stage of a plan.

    Attributes
    ----------
    spec : OperatorSpec
        What reads the sends.
    column : str
        The column of a send that has its event times; empty where rows need none.
    lag_us : int
        The lag of the watermark, µs.
    limit : Limit
        How much a batch takes.
    in_force : callable
        The watermark that is in force for the next batch, µs.
    on_watermark : bool
        Whether a row with the time of the watermark belongs to no window that has fired.
    """

    spec: OperatorSpec
    column: str
    lag_us: int
    limit: Limit
    in_force: Callable[[], int]
    on_watermark: bool
    _watermark_us: int = UNSET
    _ahead_us: int = UNSET
    _rows: int = 0
    _bytes: int = 0

    @classmethod
    def of(cls, plan: PhysicalPlan, limit: Limit, in_force: Callable[[], int]) -> Gathering | None:
        """Return the gathering of the sends of a plan; None where each send has to be a batch."""
        if len(plan.stages) > 1 or len(plan.reads) > 1 or len(plan.reads[0].takers) > 1:
            return None
        spec = plan.reads[0].takers[0][1].spec
        options, mark, operation = spec.options, spec.watermark, spec.operation
        by_batch = asked_by(options.trigger) is not None or options.trigger._period_us is not None or options.ttl is not None
        if operation.route not in _ROUTES or not operation.fires_plainly(options) or by_batch or options.judges_before:
            return None
        if not spec.time_column:
            return cls(spec, "", 0, limit, in_force, on_watermark=True)
        column = _source_column(spec)
        if column is None or not isinstance(mark, WatermarkSpec) or mark._by_clock or mark.idle_advance_us is not None:
            return None
        return cls(spec, column, mark.lag_us, limit, in_force, operation.route in ("fixed", "rows"))

    def begin(self, first: pa.Table) -> bool:
        """See Together."""
        self._rows, self._bytes = first.num_rows, first.get_total_buffer_size()
        if not self.column:
            return True
        self._watermark_us = in_force = self.in_force()
        self._ahead_us = UNSET if in_force == UNSET else in_force + self.spec.options.future_us
        times = self._times(first)
        if times is None:
            return False
        self._reach(times[1])
        return in_force != UNSET and times[1] <= self._ahead_us

    def takes(self, send: pa.Table) -> bool:
        """See Together."""
        rows, nbytes = self._rows + send.num_rows, self._bytes + send.get_total_buffer_size()
        if rows > self.limit.rows or nbytes > self.limit.nbytes:
            self.limit.took(self.limit.rows, self.limit.nbytes)
            return False
        self._rows, self._bytes = rows, nbytes
        self.limit.took(rows, nbytes)
        if not self.column:
            return True
        times = self._times(send)
        if times is None or times[0] < self._watermark_us + (not self.on_watermark) or times[1] > self._ahead_us:
            return False
        self._reach(times[1])
        return True

    def _reach(self, latest_us: int) -> None:
        self._watermark_us = max(self._watermark_us, latest_us - self.lag_us)

    def _times(self, send: pa.Table) -> tuple[int, int] | None:
        """The smallest and the largest event time; None where a row has none."""
        column = send.column(self.column)
        if not send.num_rows or column.null_count:
            return None
        stamped = [stamp(chunk, self.spec.time_kind) for chunk in column.chunks if len(chunk)]
        if any(one.out_of_range.any() for one in stamped):
            return None
        return min(int(one.times.min()) for one in stamped), max(int(one.times.max()) for one in stamped)


def _source_column(spec: OperatorSpec) -> str | None:
    """The column of the source that is the event time; None where steps compute it, or may change the rows."""
    name = spec.time_column
    for step in reversed(spec.prefix):
        if isinstance(step, Project):
            value = dict(step.columns).get(name)
            if not isinstance(value, Col):
                return None
            name = value.name
        elif not isinstance(step, Filter):
            return None
    return name
