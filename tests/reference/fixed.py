"""Windows whose place does not depend on the data: tumbling, hopping (§3.1, §3.2) and intervals around given points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.reference.lateness import Horizon
from tests.reference.model import Seen, Watermark, Window


def _fill(spans: dict[tuple[int, int], list[Seen]]) -> list[Window]:
    return [Window(rows[0].row.key, start, end, tuple(rows)) for (start, end), rows in spans.items()]


class _Placed:
    """What the kinds with given places share."""

    inclusive = False
    merging = False

    def spans_of(self, t: int) -> list[tuple[int, int]]:
        """The windows a row at ``t`` belongs to."""
        raise NotImplementedError

    def belongs_nowhere(self, row: Seen) -> bool:
        """Whether the row falls into a gap between windows."""
        return not self.spans_of(row.t)

    def late(self, held: Sequence[Seen], batch: Sequence[Seen], horizon: Horizon, watermark: Watermark) -> set[int]:
        """§4.2: late only if every window of the row is closed."""
        return {s.number for s in batch if all(horizon.closed(end, watermark) for _, end in self.spans_of(s.t))}

    def windows(self, held: Sequence[Seen], horizon: Horizon) -> list[Window]:
        """Every row counts in each of its windows that was not closed when the row came."""
        spans: dict[tuple[int, int], list[Seen]] = {}
        for s in held:
            for start, end in self.spans_of(s.t):
                if not horizon.closed(end, s.under):
                    spans.setdefault((start, end), []).append(s)
        return _fill(spans)


@dataclass(frozen=True)
class Fixed(_Placed):
    """Tumbling without ``slide``, else hopping: every ``s = offset + k*slide`` with ``s <= t < s + size``."""

    size: int
    slide: int | None = None
    offset: int = 0

    def spans_of(self, t: int) -> list[tuple[int, int]]:
        slide = self.size if self.slide is None else self.slide
        start = t - (t - self.offset) % slide  # floor modulo: right for negative times too (§1.2)
        spans = []
        while t < start + self.size:
            spans.append((start, start + self.size))
            start -= slide
        return spans


@dataclass(frozen=True)
class Intervals(_Placed):
    """Per probe ``p`` the rows in ``[p + lower, p + upper]``; not in the semantics, only in one golden case."""

    lower: int
    upper: int
    probes: tuple[int, ...]
    inclusive = True

    def spans_of(self, t: int) -> list[tuple[int, int]]:
        return [(p + self.lower, p + self.upper) for p in self.probes if p + self.lower <= t <= p + self.upper]
