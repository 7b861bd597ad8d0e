"""The lateness of a running query: as a profile, and compared with the profile that its lag was chosen by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import numpy as np

from krishiv_py.display.lag import LatenessProfile, late_over, profile_of_counts
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.durations import show_us
from krishiv_py.plan.options.watermarks import most_lag_us
from krishiv_py.plan.running import Progress, behind_of, failed_of
from krishiv_py.plan.schema import RESERVED

if TYPE_CHECKING:
    from krishiv_py.planner.physical import PhysicalPlan

_WITHOUT: Final = ("null_time", "time_out_of_range", "malformed", "unknown_source", "future_dropped", "future_side_output")
"""Counters of rows that the watermark does not follow."""
_FEW: Final = 100
_MANY: Final = 50_000


def counted_profile(counters: dict[str, int], time: str, lag_us: int) -> LatenessProfile:
    """Return the lateness of what a stage has counted.

    Parameters
    ----------
    counters : dict
        What it has counted.
    time : str
        The name of its event time.
    lag_us : int
        The lag of its watermark, µs.
    """
    counted = {0: 0, lag_us: 0, **behind_of(counters)}
    without = sum(counters.get(name, 0) for name in _WITHOUT)
    counted[0] = counters.get("rows", 0) - without - sum(failed_of(counters).values()) - sum(counted.values())
    distances = np.array(sorted(counted), np.int64)
    rows = np.array([counted[int(us)] for us in distances], np.int64)
    return profile_of_counts(distances, rows, time, "the micro-batches", without)


@attrs.define(eq=False)
class DriftWatch:
    """Compares the rows of a query with a profile, in stretches of up to 50 000 rows, whenever its progress is asked for.

    Attributes
    ----------
    expected : LatenessProfile
        The profile.
    begun : LatenessProfile
        What was counted when the stretch in hand began.
    doubt : str or None
        What is wrong; None while nothing is.
    """

    expected: LatenessProfile
    begun: LatenessProfile
    doubt: str | None = None

    def take(self, now: LatenessProfile) -> str | None:
        """Look at what has been counted until `now`; gives what is wrong, in words."""
        rows = now.rows - self.begun.rows
        if rows < _FEW:
            return self.doubt
        self.doubt = self._compared(now, rows)
        if rows >= _MANY:
            self.begun = now
        return self.doubt

    def _compared(self, now: LatenessProfile, rows: int) -> str | None:
        """Return the largest lag that loses more rows than expected, beyond chance, in words."""
        for lag_us in reversed(now.behind_us[:-1].tolist()):
            late = late_over(now, lag_us) - late_over(self.begun, lag_us)
            share = late_over(self.expected, lag_us) / max(self.expected.rows, 1)
            usual = rows * share
            if late > usual + 4 * usual**0.5 + max(5, rows / 1_000):
                lag = show_us(lag_us) if lag_us else "0 s"
                return (
                    f"{100 * late / rows:.3g} % of the last {rows} rows came more than {lag} after a newer row, "
                    f"and {100 * share:.3g} % in the lateness profile. Hint: set a longer lag, as query.lateness() shows, "
                    "or make the profile again of newer rows"
                )
        return None


@attrs.define(eq=False)
class Lateness:
    """The lateness of the stages of a running query, and the profiles that they are compared with.

    Attributes
    ----------
    plan : PhysicalPlan
        The plan.
    """

    plan: PhysicalPlan
    _watches: dict[int, DriftWatch] = attrs.field(factory=dict)

    def counted(self, progress: Progress, stage: str | None) -> LatenessProfile:
        """Return the lateness that `progress` has counted, of the first stage that judges rows or of one by its name."""
        return self._counted(progress, self.plan.timed_stage(stage))

    def expect(self, profile: object, progress: Progress, stage: str | None) -> None:
        """Compare the rows that come from now on with a profile."""
        number = self.plan.timed_stage(stage)
        self._watches[number] = DriftWatch(checked_profile(profile, self.plan), self._counted(progress, number))

    def seen(self, progress: Progress) -> Progress:
        """Return the progress, with a doubt for each stage whose rows have left their profile."""
        moved = (watch.take(self._counted(progress, number)) for number, watch in self._watches.items())
        return attrs.evolve(progress, doubts=(*progress.doubts, *filter(None, moved))) if self._watches else progress

    def _counted(self, progress: Progress, number: int) -> LatenessProfile:
        spec = self.plan.stages[number].spec
        own = progress.stages.get(spec.name, progress)
        time = "event time" if spec.time_column.startswith(RESERVED) else spec.time_column
        return counted_profile(own.counters, time, most_lag_us(spec.watermark))


def checked_profile(profile: object, plan: PhysicalPlan) -> LatenessProfile:
    """Return a profile that rows of a plan can be compared with.

    Raises
    ------
    PlanError
        For anything else, and for a plan that judges no rows.
    """
    if not isinstance(profile, LatenessProfile):
        raise PlanError("not a LatenessProfile", got=shown(profile), hint="pass lateness_profile(rows, time)")
    plan.timed_stage(None)
    return profile
