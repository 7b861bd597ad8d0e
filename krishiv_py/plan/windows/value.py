"""A window as a value: the bounds of a result or of a pane, in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen(order=True)
class Window:
    """The bounds of one window, as :func:`~krishiv_py.compat.changes` and pane handlers give them.

    Windows are equal if their bounds are, can be keys of a dict, and are sorted by start, then end.

    Attributes
    ----------
    start, end
        In the type of the time column: ``int`` milliseconds or ``datetime``; of count windows row numbers.

    Examples
    --------
    >>> window = Window(0, 60_000)
    >>> window.length, window == Window(0, 60_000)
    (60000, True)
    """

    start: Any
    end: Any

    @property
    def length(self) -> Any:
        """``end - start``: ``int`` milliseconds or ``timedelta``."""
        return self.end - self.start


def window_of(row: object) -> Window | None:
    """Return the window of a result row; None for rows without both bounds."""
    if not isinstance(row, Mapping) or "window_start" not in row or "window_end" not in row:
        return None
    return Window(row["window_start"], row["window_end"])
