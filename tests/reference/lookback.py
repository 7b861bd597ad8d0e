"""Look-back: for every row one result over the rows of its key around it (§3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.reference.lateness import Horizon
from tests.reference.model import Seen, Watermark, Window


@dataclass(frozen=True)
class LookBack:
    """``[t - size, t]``, or ``[t - size, t + size]`` when two-sided; both ends inclusive.

    ``with_row``: a result carries its row. ``exclude_self``: it does without it. ``on_arrival``: it comes at once (§11.4).
    """

    size: int
    two_sided: bool = False
    with_row: bool = False
    exclude_self: bool = False
    on_arrival: bool = False
    inclusive = True
    merging = False

    def belongs_nowhere(self, row: Seen) -> bool:
        """Every row has a window of its own."""
        return False

    def late(self, held: Sequence[Seen], batch: Sequence[Seen], horizon: Horizon, watermark: Watermark) -> set[int]:
        """§4.2: ``t < W - L`` under either rule."""
        return {s.number for s in batch if horizon.too_old(s.t, watermark)}

    def windows(self, held: Sequence[Seen], horizon: Horizon) -> list[Window]:
        """One window per row; rows of equal time see each other."""
        return [self.window(s, held) for s in held]

    def window(self, s: Seen, held: Sequence[Seen]) -> Window:
        """The window of one row."""
        start, end = s.t - self.size, s.t + (self.size if self.two_sided else 0)
        rows = tuple(other for other in held if start <= other.t <= end)
        return Window(s.row.key, start, end, rows, s.number, self.with_row, self.exclude_self)
