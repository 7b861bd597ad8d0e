"""Windows at equal distances, for arithmetic."""

from __future__ import annotations

import attrs


@attrs.frozen
class Grid:
    """Windows ``[offset + k*slide, offset + k*slide + size)`` for every whole k, of times in µs or of numbers."""

    size_us: int
    slide_us: int
    offset_us: int = 0

    @property
    def has_gaps(self) -> bool:
        """Whether there are times in no window."""
        return self.slide_us > self.size_us

    @property
    def tiles(self) -> bool:
        """Whether every time is in exactly one window."""
        return self.slide_us == self.size_us
