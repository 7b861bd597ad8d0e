"""Where a running query stands, as a frozen value."""

from __future__ import annotations

import attrs

from krishiv_py.plan.durations import UNSET, show_instant


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
        return (
            f"batch {self.batch_id}: watermark {self.watermark}, {self.rows} rows, late: {late}, "
            f"{self.open_windows} open windows, {self.state_bytes} state bytes, {self.firings} firings"
        )
