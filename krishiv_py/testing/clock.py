"""A processing-time clock that waits until it is moved."""

from __future__ import annotations

import attrs

from krishiv_py.plan.checks import microseconds
from krishiv_py.plan.durations import MAX_TIME_US, Duration, TimePoint, time_point_us, to_us


@attrs.define
class ManualClock:
    """Processing time for tests: intervals, TTL by wall clock, rows ahead of the clock (SEMANTICS §4.4, §5.3, §6.1).

    Attributes
    ----------
    now_us : int
        µs since the epoch; 0 at first.

    Examples
    --------
    >>> clock = ManualClock()
    >>> clock.advance("5 s")
    5000000
    """

    now_us: int = attrs.field(default=0)
    _advanced_us: int = attrs.field(default=0, init=False, eq=False, repr=False)
    _set: bool = attrs.field(default=False, init=False, eq=False, repr=False)

    @now_us.validator
    def _in_range(self, _attribute: object, value: object) -> None:
        microseconds(value, "now_us", -MAX_TIME_US, MAX_TIME_US)

    def advance(self, by: Duration) -> int:
        """Move on by a duration (``int`` is milliseconds); returns the new time in µs."""
        by_us = to_us(by, "by")
        self.now_us += by_us
        self._advanced_us += by_us
        return self.now_us

    def set(self, to: TimePoint) -> int:
        """Move to a point in time (ms since the epoch, or a datetime); a wall clock may go back, and so may this one.

        Examples
        --------
        >>> from krishiv_py.testing import ManualClock
        >>> clock = ManualClock()
        >>> clock.set("2024-06-01T00:00:00Z"), clock.is_set
        (1717200000000000, True)
        """
        self.now_us = time_point_us(to, "to")
        self._set = True
        return self.now_us

    @property
    def is_set(self) -> bool:
        """Return whether it shows a point in time: one that was only moved on by :meth:`advance` does not.

        Examples
        --------
        >>> from krishiv_py.testing import ManualClock
        >>> clock = ManualClock()
        >>> _ = clock.advance("5 s")
        >>> clock.is_set
        False
        """
        return self._set or self.now_us != self._advanced_us
