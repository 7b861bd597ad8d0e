"""Define what a window kind is to its drivers: combine before the shuffle, step per bucket and micro-batch."""

from __future__ import annotations

from typing import Protocol

import attrs
import pyarrow as pa

from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.state.store import Bucket


@attrs.frozen(eq=False)
class StepResult:
    """Holds what one bucket brought forth in one micro-batch.

    Attributes
    ----------
    results : pyarrow.Table
        Rows in the result schema, windows in ascending end order.
    wakeup_us : int or None
        The watermark at which this bucket has something to do even without rows.
    open_windows, open_rows, firings : int
        Windows still open, rows (or partials) held for them, and results fired in this step.
    late : pyarrow.Table or None
        Rows refused by the state itself (rule "window" of merging windows), in the late layout.
    counters : dict
        What else was counted in this step, such as ``ttl_dropped``.
    wakeup_now_us : int or None
        The processing time at which this bucket has something to do even without rows (intervals, TTL).
    """

    results: pa.Table
    wakeup_us: int | None
    open_windows: int
    open_rows: int
    firings: int
    counters: dict[str, int] = attrs.field(factory=dict)
    late: pa.Table | None = None
    wakeup_now_us: int | None = None


class WindowOperator(Protocol):
    """A window kind. One instance serves all buckets; what it knows of a bucket is in the state it is given."""

    def combine(self, rows: pa.Table) -> pa.Table:
        """Reduce accepted working rows to what is shuffled and stored. Stateless."""
        ...

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        """Fold combined chunks in, fire what is due under the watermark, forget what is over (SEMANTICS §2.3).

        Parameters
        ----------
        bucket : Bucket
            The state of the bucket, changed in place.
        chunks : list of pyarrow.Table
            What :meth:`combine` made of the rows of this batch, in order of arrival.
        moment : Moment
            What is in force.
        """
        ...

    def state(self, bucket: Bucket) -> pa.Table:
        """The windows that are in state, with their aggregates so far; changes nothing (SEMANTICS §6.5).

        Parameters
        ----------
        bucket : Bucket
            The state of the bucket, as the last step left it.

        Returns
        -------
        pyarrow.Table
            In the layout of :class:`~krishiv_py.kernels.results.state_table.StateTables`.

        Raises
        ------
        PlanError
            Where the state of a window kind holds no aggregates.
        """
        ...
