"""A running query, as the user sees it."""

from __future__ import annotations

from typing import Any, Protocol

import attrs
import pyarrow as pa

from krishiv_py.plan.durations import UNSET, Duration, TimePoint, show_instant


@attrs.frozen
class Progress:
    """Where a query stands.

    Attributes
    ----------
    batch_id : int
        The last finished micro-batch, -1 before the first.
    watermark_us : int
        The watermark that was in force in it, µs; minus 2**63 while unset.
    rows : int
        Input rows so far, over all restarts.
    late : dict
        Refused rows by reason, so far.
    counters : dict
        Everything counted, under SEMANTICS §4.5's names without prefix.
    open_windows, open_rows, state_bytes, firings : int
        What is held in state, and results fired so far.
    source_watermarks_us : dict
        The watermark of every declared source, µs; empty for a single source.
    """

    batch_id: int = -1
    watermark_us: int = UNSET
    rows: int = 0
    late: dict[str, int] = attrs.field(factory=dict)
    counters: dict[str, int] = attrs.field(factory=dict)
    open_windows: int = 0
    open_rows: int = 0
    state_bytes: int = 0
    firings: int = 0
    source_watermarks_us: dict[str, int] = attrs.field(factory=dict)

    @property
    def watermark(self) -> str:
        """The watermark for people."""
        return show_instant(self.watermark_us)

    def __str__(self) -> str:
        late = ", ".join(f"{n} {r}" for r, n in self.late.items() if n) or "none"
        return (f"batch {self.batch_id}: watermark {self.watermark}, {self.rows} rows, late: {late}, "
                f"{self.open_windows} open windows, {self.state_bytes} state bytes, {self.firings} firings")


class Query(Protocol):
    """Handle of a query started with ``start()``."""

    @property
    def name(self) -> str:
        """The name it was started under."""
        ...

    @property
    def id(self) -> str:
        """Spark's query id, kept across restarts from one checkpoint."""
        ...

    @property
    def operator(self) -> str:
        """The name of its operator, as in late rows and ``explain()``."""
        ...

    @property
    def status(self) -> str:
        """``running``, ``stopped`` or ``failed``."""
        ...

    @property
    def progress(self) -> Progress:
        """Watermark, late counts, open windows, state."""
        ...

    def await_termination(self, timeout: Duration | None = None) -> bool:
        """Wait for the end, at most `timeout`; True when it came. Raises what made the query fail."""
        ...

    def process_all_available(self) -> None:
        """Wait until everything sent so far is processed and the query is idle."""
        ...

    def exception(self) -> Exception | None:
        """What made the query fail, naming operator and row."""
        ...

    def stop(self) -> None:
        """Stop; a later start from the same checkpoint goes on."""
        ...

    def results(self) -> pa.Table:
        """All results so far; for a memory sink only."""
        ...

    def late_rows(self) -> pa.Table:
        """All late rows so far; for a memory side output only."""
        ...

    def state(self) -> pa.Table:
        """The windows in state after the last finished micro-batch: keys, bounds, aggregates so far, ``last_update``.

        Works on a running and on a stopped query, as long as its checkpoint is there (SEMANTICS §6.5).

        Raises
        ------
        CheckpointError
            When the checkpoint is gone: a temporary one goes with :meth:`stop`.
        PlanError
            For look-back windows with ``matches()`` or ``pairs(...)``, whose state holds no aggregates.
        """
        ...

    def why_not_fired(self, window_end: TimePoint) -> str:
        """Say what the window that ends at `window_end` (ms since the epoch, or a datetime) is waiting for."""
        ...

    def explain(self) -> Any:
        """The plan of the query as text."""
        ...
