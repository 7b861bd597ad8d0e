"""The largest size of a batch, which follows the time that batches take."""

from __future__ import annotations

from typing import Final

import attrs

_SMALLEST: Final = 1 << 10
_LEAST_SHRUNK: Final = 0.25


@attrs.define
class Limit:
    """The largest size of a batch. A send or a file that alone has more is a batch of its own.

    Attributes
    ----------
    most_rows, most_bytes : int
        The bounds; bytes are those in memory, of files those on disk.
    target_s : float or None
        How long a batch should take; None: it takes what is there, up to the bounds.
    """

    most_rows: int
    most_bytes: int
    target_s: float | None = None
    _share: float = 1.0
    _full: bool = False

    def __attrs_post_init__(self) -> None:
        if self.target_s is not None:
            self._share = _SMALLEST / self.most_rows

    @property
    def rows(self) -> int:
        """Return how many rows the next batch takes."""
        return max(int(self.most_rows * self._share), 1)

    @property
    def nbytes(self) -> int:
        """Return how many bytes the next batch takes."""
        return max(int(self.most_bytes * self._share), 1)

    def took(self, rows: int, nbytes: int) -> None:
        """Note what was planned for the next batch."""
        self._full = 2 * rows >= self.rows or 2 * nbytes >= self.nbytes

    def ran(self, seconds: float) -> None:
        """Follow the time that a batch took: after a long one the next is smaller, after a short and full one twice as large.

        Examples
        --------
        >>> limit = Limit(1 << 20, 1 << 30, target_s=0.2)
        >>> limit.took(limit.rows, 0); limit.ran(0.01); limit.rows
        2048
        >>> limit.ran(0.4); limit.rows
        1024
        """
        if self.target_s is None:
            return
        if seconds > self.target_s:
            self._share *= max(self.target_s / seconds, _LEAST_SHRUNK)
        elif self._full and seconds < self.target_s / 2:
            self._share = min(2 * self._share, 1.0)
        self._full = False
