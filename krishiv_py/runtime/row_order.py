"""The order of the rows of a bounded run: how many of them the row clock would call late (docs/same-answer.md)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs
import numpy as np

from krishiv_py.kernels.columns.times import EventTimes, stamp
from krishiv_py.plan.nodes import MemorySource, Project
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.plan.schema import TimeKind
from krishiv_py.plan.steps import traced
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.runtime.reading import ScannedRows

_LOG: Final = logging.getLogger("krishiv_py.batches")
_BATCHES: Final = 'the clock of batches; clock="row" gives what came in this order, in any batches (docs/same-answer.md)'


@attrs.define(eq=False)
class RowsInOrder:
    """Counts the rows that the row clock would call late, while they are read one after the other (SEMANTICS §2.8).

    Attributes
    ----------
    column : str
        The column of the source that is the event time.
    kind : TimeKind
        What it holds.
    behind_us : int
        How far behind the newest row before it a row may be, µs.
    newest : dict
        The largest event time of each lane so far, µs.
    late : int
        How many rows were further behind.
    """

    column: str
    kind: TimeKind
    behind_us: int
    newest: dict[str, int] = attrs.field(factory=dict)
    late: int = 0

    @classmethod
    def of(cls, plan: PhysicalPlan, workers: int) -> RowsInOrder | None:
        """Return the count for a plan; None where it would take more than a look at a column that is read in order anyway."""
        read, spec = plan.reads[0], plan.reads[0].takers[0][1].spec
        mark, options = spec.watermark, spec.options
        alone = (
            workers == 1 and len(plan.reads) == 1 and len(read.takers) == 1 and all(isinstance(s, Project) for s in spec.prefix)
        )
        sent = isinstance(read.source, MemorySource) or read.source.lacks_order is not None
        if not alone or sent or not spec.time_column or not isinstance(mark, WatermarkSpec) or mark.by_row or mark._by_clock:
            return None
        column = traced(spec.prefix, spec.time_column)
        if column is None or options.late_rule != "event" or options.future_action != "warn":
            return None
        return cls(column, spec.time_kind, mark.lag_us + options.allowed_lateness_us)

    def watched(self, pieces: Iterable[ScannedRows]) -> Iterator[ScannedRows]:
        """Yield rows as they are read."""
        for scanned in pieces:
            if scanned.batch is not None and scanned.batch.num_rows:
                self._take(scanned.partition, stamp(scanned.batch.column(self.column), self.kind))
            yield scanned

    def _take(self, lane: str, stamped: EventTimes) -> None:
        usable = ~(stamped.null | stamped.out_of_range)
        times = stamped.times if stamped.bounds is not None else stamped.times[usable]
        if not len(times):
            return
        top = np.maximum.accumulate(times)
        np.maximum(top, self.newest.get(lane, int(times[0])), out=top)
        self.late += int(np.count_nonzero(times < top - self.behind_us))
        self.newest[lane] = int(top[-1])

    def tell(self, title: str, counters: Mapping[str, int]) -> None:
        """Say how many rows would be late, where it is not as many as were."""
        if self.late > counters.get("late", 0):
            by_row, rows, late = f"{self.late:,}", f"{counters.get('rows', 0):,}", f"{counters.get('late', 0):,}"
            _LOG.warning("%s: %s of %s rows are late by the row clock, and %s by %s", title, by_row, rows, late, _BATCHES)
