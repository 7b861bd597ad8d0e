"""As-of joins (SEMANTICS §9.2): each left row with the right row of its key that is nearest in time.

::

    right          ──r1────r2───────────r3──
    left           ─────────────l───────────
    backward       r2: the newest at or before l          given when W - L > l.t
    forward        r3: the oldest at or after l           given when W - L > l.t + tolerance
    nearest        the closer one, of two equally close ones the earlier       likewise
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal, TypeAlias

import attrs

from krishiv_py.plan.durations import show_us
from krishiv_py.plan.joins.base import Join
from krishiv_py.plan.operation import Extent
from krishiv_py.plan.options.query import QueryOptions

Direction: TypeAlias = Literal["backward", "forward", "nearest"]
AsofType: TypeAlias = Literal["left", "inner"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("backward", "forward", "nearest")
ASOF_TYPES: Final[tuple[AsofType, ...]] = ("left", "inner")


@attrs.frozen
class AsofJoin(Join):
    """Every left row meets at most one right row, at most `tolerance_us` away."""

    kind: ClassVar[str] = "as-of join"
    remembers: ClassVar[bool] = True
    direction: Direction
    tolerance_us: int | None

    @property
    def has_time(self) -> bool:
        return False  # a result has the time of its left row

    @property
    def extent(self) -> Extent:
        return Extent(self.tolerance_us or 0)

    @property
    def ahead_us(self) -> int:
        """Return how far ahead of a left row its partner may be."""
        return 0 if self.direction == "backward" else self.tolerance_us or 0

    def describe(self) -> str:
        within = "" if self.tolerance_us is None else f", at most {show_us(self.tolerance_us)} away"
        return f"{self.how} as-of join, {self.direction}{within}"

    def unwaiting(self) -> str | None:
        return "a join does not wait for an end: a left row is given once the watermark says that no nearer partner can come"

    def hold_back_us(self, options: QueryOptions) -> int:
        """Return how far the watermark of results is behind that of the rows (SEMANTICS §9.2)."""
        return options.allowed_lateness_us + self.ahead_us

    def warnings(self) -> tuple[str, ...]:
        if self.tolerance_us is not None:
            return ()
        return ("without a tolerance the newest right row of every key stays in state for ever: set one, or a state TTL",)
