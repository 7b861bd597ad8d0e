"""Tries again what failed over something that is away, with pauses that grow, within one limit."""

from __future__ import annotations

import random
import threading
import time
import warnings
from collections.abc import Callable
from typing import Final, TypeVar

import attrs

from krishiv_py.failures.transient import verdict

T = TypeVar("T")
RETRY_S: Final = 60.0
"""For how long something that is away is tried again, unless the session says another time."""
_FIRST_S: Final = 0.2
_LONGEST_S: Final = 15.0


class Backoff:
    """The pauses between attempts: each about twice as long as the one before, within a limit.

    Parameters
    ----------
    limit_s : float
        For how long to try again after the first failure, in seconds; 0 for not at all.

    Examples
    --------
    >>> backoff = Backoff(60)
    >>> first, second = backoff.pause_s(10.0), backoff.pause_s(10.3)
    >>> 0.1 <= first <= 0.2 <= second <= 0.4
    True
    >>> backoff.pause_s(70.1) is None
    True
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._since: float | None = None
        self._next_s = _FIRST_S

    def pause_s(self, now_s: float, since_s: float | None = None) -> float | None:
        """Return how long to wait after a failure at `now_s`, a clock that never goes back; None when the limit is over.

        The limit counts from the first failure, or from an earlier time, `since_s`.
        """
        if self._since is None:
            self._since = now_s if since_s is None else since_s
        left = self._since + self.limit_s - now_s
        if left <= 0:
            return None
        pause = self._next_s * random.uniform(0.5, 1.0)  # so that many jobs do not come back at once
        self._next_s = min(2 * self._next_s, _LONGEST_S)
        return min(pause, left)

    @property
    def failed(self) -> bool:
        """Return whether the last attempt failed."""
        return self._since is not None

    def over(self) -> None:
        """Note that it went well: the next failure is a first one."""
        self._since, self._next_s = None, _FIRST_S


@attrs.define(eq=False)
class RunningRetries:
    """Tries the steps of a running query again while something is away, each within the limit after its first failure.

    Attributes
    ----------
    limit_s : float
        For how long, in seconds; 0 for not at all.
    title : str
        The name of the query, for the warning.
    stopped : threading.Event
        Set when the query is to end: then nothing is tried again.
    note : callable
        Gets what is away, and an empty text when it is back.
    may_pass : callable
        Says of an error whether a repetition may help.
    """

    _limit_s: float
    _title: str
    _stopped: threading.Event
    _note: Callable[[str], None]
    _may_pass: Callable[[BaseException], bool] = lambda problem: verdict(problem) == "transient"
    gave_up: bool = False
    """True once the limit of a step was over."""

    def call(self, step: Callable[[], T]) -> T:
        """Return what a step gives, which may be repeated."""
        backoff, failed = Backoff(self._limit_s), False
        while True:
            try:
                made = step()
            except Exception as problem:
                passes = not self._stopped.is_set() and self._may_pass(problem)
                pause = backoff.pause_s(time.monotonic()) if passes else None
                if pause is None:
                    self.gave_up |= passes
                    raise
                self._note(str(problem))
                if not failed:
                    text = f"query {self._title!r} tries again for {self._limit_s:g} s: {problem}"
                    warnings.warn(text, RuntimeWarning, stacklevel=2)
                failed = True
            else:
                if failed:
                    self._note("")
                return made
            self._stopped.wait(pause)


def retried(call: Callable[[], T], limit_s: float, what: str) -> T:
    """Return what a call gives; while it fails over something that is away, try it again, and say so once.

    Parameters
    ----------
    call : callable
        Leaves nothing behind where it fails.
    limit_s : float
        No attempt begins later than so many seconds after the first one has begun.
    what : str
        What is tried, for the warning.
    """
    backoff = Backoff(limit_s)
    began, is_first = time.monotonic(), True
    while True:
        try:
            return call()
        except Exception as problem:
            pause = backoff.pause_s(time.monotonic(), began) if verdict(problem) == "transient" else None
            if pause is None:
                raise
            if is_first:
                warnings.warn(f"{what} is tried again for {limit_s:g} s: {problem}", RuntimeWarning, stacklevel=2)
                is_first = False
        time.sleep(pause)
