"""Interval joins (SEMANTICS §9.1): rows of two streams with equal keys meet when their times are close.

::

                     lower            upper
    left     ──────────┊────────●───────┊──────      l.t + lower <= r.t <= l.t + upper, both inclusive
    right    ──○───────●──────────●─────●───○──      ● meet, ○ do not
"""

from __future__ import annotations

from typing import ClassVar, Final

import attrs

from krishiv_py.plan.durations import show_us
from krishiv_py.plan.joins.base import Join, JoinType
from krishiv_py.plan.operation import LATER, Extent
from krishiv_py.plan.options.query import QueryOptions

JOIN_TYPES: Final[tuple[JoinType, ...]] = ("inner", "left", "right", "full", "semi", "anti")


@attrs.frozen
class IntervalJoin(Join):
    """Rows meet when ``l.t + lower <= r.t <= l.t + upper``; `how` says what is given of rows that met, or did not."""

    kind: ClassVar[str] = "interval join"
    lower_us: int
    upper_us: int
    max_rows_per_key: int | None = attrs.field(default=None, metadata=LATER)

    @property
    def extent(self) -> Extent:
        return Extent(max(self.upper_us, 0) - min(self.lower_us, 0))

    def describe(self) -> str:
        lower, upper = (f"{'-' if us < 0 else '+'} {show_us(abs(us))}" for us in (self.lower_us, self.upper_us))
        limit = f", at most {self.max_rows_per_key} rows a key and side" if self.max_rows_per_key else ""
        return f"{self.how} interval join, left {lower} <= right <= left {upper}{limit}"

    def unwaiting(self) -> str | None:
        return (
            "a join does not wait for an end: a pair is given in the batch in which the later of its rows arrives, a row "
            "without a partner once the watermark says that none can come"
        )

    def hold_back_us(self, options: QueryOptions) -> int:
        """Return how far the watermark of results is behind that of the rows: by what an unmatched row waits for
        (SEMANTICS §9.1).
        """
        after, before = max(self.upper_us, 0), max(-self.lower_us, 0)
        waits = {"inner": 0, "right": before, "full": max(after, before)}.get(self.how, after)
        return options.allowed_lateness_us + waits
