"""A source that has something is asked often for more; a silent one is asked seldom."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import attrs

_SHARE: Final = 10
MOST_S: Final = 1.0


@attrs.define(eq=False)
class PollBackoff:
    """Waits for a tenth of the time since a source last had something, at most a second.

    So a silent source costs nearly nothing, and what comes is read after little more than a tenth of the silence before it.

    Attributes
    ----------
    least_s : float
        The shortest wait, s.
    clock_s : callable
        A clock that never goes back, s.

    Examples
    --------
    >>> clock = iter([0.0, 0.1, 4.0, 60.0]).__next__
    >>> backoff = PollBackoff(0.02, clock)
    >>> backoff.wait_s, backoff.wait_s, backoff.wait_s
    (0.02, 0.4, 1.0)
    """

    least_s: float
    clock_s: Callable[[], float] = time.monotonic
    _last_s: float = attrs.field()

    @_last_s.default
    def _from_now(self) -> float:
        return self.clock_s()

    def found(self) -> None:
        """Note that the source had something."""
        self._last_s = self.clock_s()

    @property
    def wait_s(self) -> float:
        """Return how long to wait before it is asked again, s."""
        return min(max((self.clock_s() - self._last_s) / _SHARE, self.least_s), MOST_S)
