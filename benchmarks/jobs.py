"""The jobs J1 .. J8, P1 .. P3 and F1, as plain values: every side (krishiv_py, peers, check) reads its parameters here.

Standard library only: the scripts of the peers import it in environments of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["tumbling", "hopping", "session", "lookback", "distinct", "dedup", "join", "stages"]
LAG_MS = 5_000
BATCH_ROWS = 1_000_000
"""Least rows of a micro-batch in the backlog mode; a quarter of the input where that is more: with less, of the sizes tried,
no side that has batches was over 4 % faster."""
PAIRED, SPLIT = 10_000, 500
"""How a pair of amounts is one number; and the greatest amount of the rows on the left side of P2, the others are right."""
HEAP = "3g"
"""Heap of a JVM, the same on every side."""


@dataclass(frozen=True)
class Job:
    """One job; durations in milliseconds. Each computes ``count(*)`` and ``sum(amount)`` by ``user_id``.

    Of ``dedup`` and ``join`` a result is a row: its bounds are the times of the row, or of both rows, its count is 1, and
    its sum the amount; of both rows ``left * PAIRED + right``.
    """

    name: str
    title: str
    kind: Kind
    size_ms: int
    slide_ms: int = 0
    lag_ms: int = LAG_MS
    allowed_lateness_ms: int = 0
    retractions: bool = False
    max_duration_ms: int | None = None
    late_output: bool = False
    grace_ms: int = 0
    sources: int = 1
    idle_timeout_ms: int | None = None
    flights: bool = False
    """Whether it runs over the real flights, not the generated sets."""
    outer_ms: int = 0
    """Size of the windows of the second stage, over those of the first."""

    @property
    def pipeline(self) -> bool:
        """Whether it is more than a window: it runs over sets without late rows, in which a tenth of the rows repeat one."""
        return self.kind in ("dedup", "join", "stages")

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns every side writes, in this order (J5 adds ``op`` where it writes a log)."""
        if self.kind == "lookback":
            return ("user_id", "event_time", "count", "sum_amount")
        return ("user_id", "window_start", "window_end", "count", "sum_amount")


JOBS: dict[str, Job] = {
    job.name: job
    for job in (
        Job("J1", "tumbling 60 s", "tumbling", 60_000),
        Job("J2", "hopping 60 s / 15 s", "hopping", 60_000, slide_ms=15_000),
        Job("J3", "session 30 s", "session", 30_000),
        Job("J4", "look-back 30 s, per event", "lookback", 30_000),
        Job(
            "J5", "tumbling 60 s, 60 s lateness, retractions", "tumbling", 60_000, allowed_lateness_ms=60_000, retractions=True
        ),
        Job("J6", "session 30 s, at most 5 min, late rows out", "session", 30_000, max_duration_ms=300_000, late_output=True),
        # Stream time (lag 0) and a grace of 5 s is the KIP's way to say "lag 5 s".
        Job("J7", "distinct-set sliding 30 s", "distinct", 30_000, lag_ms=0, grace_ms=5_000),
        Job("P1", "deduplication of whole rows, within 5 s", "dedup", LAG_MS),
        Job("P2", "interval join with itself, 100 ms before and after", "join", 100),
        Job("P3", "tumbling 60 s, then tumbling 300 s of it", "stages", 60_000, outer_ms=300_000),
        Job("F1", "tumbling 24 h, lag 2 h, real flights by aircraft", "tumbling", 86_400_000, lag_ms=7_200_000, flights=True),
        # Not of the list: the steady mode wants a firing in every second batch, the open-state mode none at all.
        Job("S1", "tumbling 2 s", "tumbling", 2_000),
        Job("O1", "tumbling 1 h", "tumbling", 3_600_000),
        Job("J8", "tumbling 60 s, four sources, idle time-out", "tumbling", 60_000, sources=4, idle_timeout_ms=2_000),
    )
}
