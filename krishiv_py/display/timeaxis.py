"""Time axes: seconds, minutes or hours for small numbers, calendar time for the rest."""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import numpy.typing as npt

from krishiv_py.arrays.types import Ints

_UNITS: Final = (("ms", 1_000), ("s", 1_000_000), ("min", 60_000_000), ("h", 3_600_000_000), ("d", 86_400_000_000))
_NEAR_EPOCH_US: Final = 10 * 86_400_000_000


def unit_for(length_us: int) -> tuple[str, int]:
    """The largest unit of which `length_us` holds at least three, and its microseconds; at least a millisecond.

    Examples
    --------
    >>> unit_for(90_000_000), unit_for(200_000_000)
    (('s', 1000000), ('min', 60000000))
    """
    return next((u for u in reversed(_UNITS) if length_us >= 3 * u[1]), _UNITS[0])


@attrs.frozen
class TimeAxis:
    """Says how event times are drawn.

    Attributes
    ----------
    label : str
        The axis' label, with its unit.
    unit_us : int or None
        Microseconds a unit of the axis is long; None for calendar time.
    """

    label: str
    unit_us: int | None

    @classmethod
    def over(cls, times_us: Ints) -> TimeAxis:
        """An axis that shows all `times_us`.

        Times within ten days of the epoch are the small numbers of an example or a test, so no date is shown for them.
        """
        if len(times_us) and np.abs(times_us).max() > _NEAR_EPOCH_US:
            return cls("event time (UTC)", None)
        unit, us = unit_for(int(times_us.max() - times_us.min()) if len(times_us) else 0)
        return cls(f"event time ({unit})", us)

    def at(self, times_us: Ints | int) -> npt.NDArray[np.float64]:
        """Positions of times on the axis: the unit, or matplotlib's days since the epoch."""
        return np.asarray(times_us, np.float64) / (self.unit_us or 86_400_000_000)
