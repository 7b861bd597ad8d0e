"""The moment of a step: what the clocks show while one bucket is worked on."""

from __future__ import annotations

import attrs

from krishiv_py.plan.durations import END_OF_TIME, UNSET


@attrs.frozen
class Moment:
    """What is in force in one step of an operator.

    Attributes
    ----------
    watermark_us : int
        The watermark, µs since the epoch (SEMANTICS §2.3); ``UNSET`` or ``END_OF_TIME`` where it is infinite.
    now_us : int or None
        Processing time, µs since the epoch; needed by triggers that go by the clock and a processing-time TTL only.
    asks : bool
        Whether a user's trigger may be asked: not while windows fire before the rows of the batch are taken in.
    """

    watermark_us: int
    now_us: int | None = None
    asks: bool = True

    def behind(self, by_us: int) -> Moment:
        """The moment of a stage whose watermark is `by_us` µs behind this one; the infinities stay what they are."""
        if self.watermark_us in (UNSET, END_OF_TIME):
            return self
        return attrs.evolve(self, watermark_us=self.watermark_us - by_us)
