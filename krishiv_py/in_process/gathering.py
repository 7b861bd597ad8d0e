"""The sends of a memory stream that are one batch: as many as have come, while one batch for each would give the same results.

A row is compared with the watermark that the sends before it have reached. So a send joins a batch only if no row lies before
that: then none of them is late, none belongs to a window that would have fired before it, and it makes no difference that both
are in one batch. The first send with another row begins the next batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.kernels.columns.times import stamp
from krishiv_py.kernels.firing import custom_trigger_of
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.expressions.expr import Col
from krishiv_py.plan.nodes import Filter, Project
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.ranges.limit import Limit
from krishiv_py.send_segments import Send

_ROUTES: Final = ("fixed", "session", "lookback", "rows")
"""Windows whose results depend on the watermark and on rows that are not late, and not on where batches end."""


@attrs.frozen
class Alone:
    """Implements :class:`~krishiv_py.runtime.ranges.sent.Together`: each send is a batch."""

    def most(self) -> tuple[int, int]:
        """See Together."""
        return 0, 0

    def count(self, sends: Sequence[Send]) -> int:
        """See Together."""
        return 1


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

    @classmethod
    def of(cls, plan: PhysicalPlan, limit: Limit, in_force: Callable[[], int]) -> Gathering | None:
        """Return the gathering of the sends of a plan; None where each send has to be a batch."""
        if len(plan.stages) > 1 or len(plan.reads) > 1 or len(plan.reads[0].takers) > 1:
            return None
        spec = plan.reads[0].takers[0][1].spec
        options, mark, operation = spec.options, spec.watermark, spec.operation
        by_batch = (
            custom_trigger_of(options.trigger) is not None or options.trigger._period_us is not None or options.ttl is not None
        )
        if operation.route not in _ROUTES or not operation.fires_plainly(options) or by_batch or options.late_by_batch_before:
            return None
        if not spec.time_column:
            return cls(spec, "", 0, limit, in_force, on_watermark=True)
        column = _source_column(spec)
        if column is None or not isinstance(mark, WatermarkSpec) or mark._by_clock or mark.idle_advance_us is not None:
            return None
        return cls(spec, column, mark.lag_us, limit, in_force, operation.route in ("fixed", "rows"))

    def most(self) -> tuple[int, int]:
        """See Together."""
        return self.limit.rows, self.limit.nbytes

    def count(self, sends: Sequence[Send]) -> int:
        """See Together."""
        if len(sends) == 1:
            return 1
        each = [s.num_rows for s in sends]
        rows, nbytes = np.cumsum(each), np.cumsum([s.nbytes for s in sends])
        room = int(np.count_nonzero((rows <= self.limit.rows) & (nbytes <= self.limit.nbytes)))
        if room < len(sends):
            self.limit.took(self.limit.rows, self.limit.nbytes)
        else:
            self.limit.took(int(rows[-1]), int(nbytes[-1]))
        sends = sends[: max(room, 1)]
        return len(sends) if not self.column else self._in_time(sends, each[: len(sends)])

    def _in_time(self, sends: Sequence[Send], rows: list[int]) -> int:
        """Return how many sends, of so many rows each, have no row before the watermark that those before have reached."""
        in_force = self.in_force()
        sends = sends[: rows.index(0)] if 0 in rows else sends
        if in_force == UNSET or len(sends) < 2:
            return 1
        stamped = stamp(pa.concat_arrays([c for send in sends for c in _chunks(send, self.column)]), self.spec.time_kind)
        starts = np.cumsum([0, *rows[: len(sends) - 1]])
        first = np.minimum.reduceat(stamped.times, starts)
        last = np.maximum.reduceat(stamped.times, starts)
        reached = np.maximum(np.maximum.accumulate(last) - self.lag_us, in_force)
        fits = ~np.logical_or.reduceat(stamped.null | stamped.out_of_range, starts)
        if self.spec.options.future_reference == "watermark":  # which the sends before have moved; the clock goes by itself
            fits &= last <= in_force + self.spec.options.future_us
        fits[1:] &= first[1:] >= reached[:-1] + (not self.on_watermark)
        return max(int(fits.argmin()), 1) if not fits.all() else len(sends)


def _chunks(send: Send, name: str) -> list[pa.Array]:
    """Return the pieces of a column of a send."""
    assert send.rows is not None
    column = send.rows.column(name)
    return column.chunks if isinstance(column, pa.ChunkedArray) else [column]


def _source_column(spec: OperatorSpec) -> str | None:
    """Return the column of the source that is the event time; None where steps compute it, or may change the rows."""
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
