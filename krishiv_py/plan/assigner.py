"""Define what a user subclasses to bring windows (SEMANTICS §3.9): it says which windows rows belong to, whole columns
at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from krishiv_py.plan.described import Described
from krishiv_py.plan.durations import Duration

Times: TypeAlias = npt.NDArray[np.int64]
"""Instants in microseconds since the epoch (UTC)."""
Assigned: TypeAlias = tuple[Times, Times] | tuple[Times, Times, Times]
"""Starts and ends, one window a row; or row numbers, starts and ends, for rows in none or in several."""


class WindowAssigner(Described, ABC):
    """Says which windows rows belong to. Make a subclass and pass an instance to ``stream.window(...)``.

    An assigner is pickled to the workers. The same times must always get the same windows, on every machine and after every
    restart. Windows follow from event time alone; they may overlap, leave gaps, and be of different lengths.

    A checkpoint notes the name of the class and :meth:`parameters`. A query with others does not go on from it. A change of
    the code of :meth:`assign` cannot be seen: change a parameter with it, for instance a version.

    Examples
    --------
    >>> import numpy as np
    >>> from krishiv_py import WindowAssigner, count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> class Shifts(WindowAssigner):
    ...     '''Day shifts of 16 hours and night shifts of 8 hours, UTC.'''
    ...     longest = "16 hours"
    ...
    ...     def assign(self, times):
    ...         hour = 3_600_000_000
    ...         midnight = times - times % (24 * hour)
    ...         is_day = times % (24 * hour) < 16 * hour
    ...         starts = np.where(is_day, midnight, midnight + 16 * hour)
    ...         return starts, np.where(is_day, midnight + 16 * hour, midnight + 24 * hour)
    >>> shifts = stream_of("at bigint").watermark("at", 0).window(Shifts()).agg(count())
    >>> driver = Driver(shifts)
    >>> _ = driver.send([{"at": 0}, {"at": 60_000_000}])
    >>> driver.close().results.to_pylist()
    [{'window_start': 57600000, 'window_end': 86400000, 'count': 1}]
    """

    if TYPE_CHECKING:
        longest: Any  # a Duration, as an attribute or a property: pyright lets nobody write an attribute over a property
    else:

        @property
        @abstractmethod
        def longest(self) -> Duration:
            """The longest a window can be. A window that is longer stops the query."""

    @abstractmethod
    def assign(self, times: Times) -> Assigned:
        """Return the windows of rows with these event times.

        Parameters
        ----------
        times : ndarray of int64
            Microseconds since the epoch, in order of arrival; never empty.

        Returns
        -------
        tuple of ndarray of int64
            ``(starts, ends)`` if every row is in exactly one window, in the order of `times`. Otherwise ``(rows, starts,
            ends)``, one entry for every row and window: the row's number in `times`, and the bounds. A row that is not named
            is in no window and is counted as ``unassigned``. A window is ``[start, end)`` and contains the row's event time.
        """
