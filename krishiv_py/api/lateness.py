"""Lags and lateness as plain values: of frames with a watermark, of one row, and a tracker of sources (SEMANTICS §2.4)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from krishiv_py.errors import DurationError, PlanError, shown
from krishiv_py.kernels import watermark as tracking
from krishiv_py.plan.checks import a_text, is_collection
from krishiv_py.plan.durations import UNSET, Duration, TimePoint, show_instant, time_point_us, to_us
from krishiv_py.plan.expressions.expr import Col
from krishiv_py.plan.nodes import FrameSource, MapBatches, Node, Project, chain
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, WatermarkSpec


def frame_lag_us(node: Node, column: str) -> int | None:
    """Return how far the watermark of the DataFrame is behind this column, µs; None where the column has none, or is
    computed.
    """
    name = column
    for step in chain(node):
        if isinstance(step, MapBatches):
            return None
        if isinstance(step, Project):
            expr = dict(step.columns).get(name)
            if not isinstance(expr, Col):
                return None
            name = expr.name
        if isinstance(step, FrameSource):
            return None if step.lags_us is None else step.lags_us.get(name)
    return None


def known_lag_us(node: Node, column: str) -> int:
    """Return the lag of a column that was given without one.

    Raises
    ------
    DurationError
        Where none is known.
    """
    lag_us = frame_lag_us(node, column) if isinstance(column, str) else None
    if lag_us is None:
        hint = 'write .watermark("event_time", "5 s"); only a column of a DataFrame with .withWatermark(...) brings its own'
        raise DurationError("the watermark has no `lag`", got=shown(column), hint=hint)
    return lag_us


class RowClass(Enum):
    """Says how late, or early, a row is (SEMANTICS §4.1)."""

    ON_TIME = "on_time"
    MILDLY_LATE = "mildly_late"
    VERY_LATE = "very_late"
    FUTURE = "future"


def classify(
    row_time: TimePoint, watermark: TimePoint | None, allowed_lateness: Duration = 0, future_tolerance: Duration = "60 s"
) -> RowClass:
    """Return the class of one row, as a query counts it.

    Parameters
    ----------
    row_time : int or datetime
        Its event time; ``int`` is milliseconds since the epoch.
    watermark : int, datetime or None
        The watermark in force; None while it is unset: then every row is on time.
    allowed_lateness : int or timedelta or str
        How far a row may be behind the watermark and still be taken in; ``int`` is milliseconds.
    future_tolerance : int or timedelta or str
        How far it may be ahead of the watermark.

    Raises
    ------
    DurationError
        For negative, float or boolean lengths and unreadable text.
    PlanError
        For a value that is not a point in time.

    Examples
    --------
    >>> classify(195_000, 200_000, "60 s")
    <RowClass.MILDLY_LATE: 'mildly_late'>
    """
    lateness_us = to_us(allowed_lateness, "allowed_lateness", allow_zero=True)
    future_us = to_us(future_tolerance, "future_tolerance", allow_zero=True)
    watermark_us = UNSET if watermark is None else time_point_us(watermark, "watermark")
    return RowClass(tracking.class_of(time_point_us(row_time, "row_time"), watermark_us, lateness_us, future_us))


class SourceTracker:
    """A watermark over sources that register with their first advance, outside of a query.

    In a query, ``MultiSourceWatermarkSpec.new().unknown("register", spec)`` does the same (SEMANTICS §2.4).

    Parameters
    ----------
    *sources : str
        Sources that are waited for from the beginning.

    Attributes
    ----------
    advance_count : int
        How often the overall watermark has moved.

    Examples
    --------
    >>> tracker = SourceTracker()
    >>> [tracker.advance(name, at) for name, at in [("a", 100), ("b", 50), ("b", 40), ("b", 150)]]
    [100000, None, None, None]
    >>> tracker.advance("a", 200), tracker.advance_count
    (150000, 2)
    """

    def __init__(self, *sources: str) -> None:
        zero = WatermarkSpec(0)
        spec = MultiSourceWatermarkSpec(tuple((name, zero) for name in sources)).unknown("register", zero)
        self._tracker = tracking.WatermarkTracker(spec)
        self.advance_count: int = 0

    @property
    def watermark_us(self) -> int:
        """The minimum over the sources, µs since the epoch; the least 64-bit integer while it is unset. It never moves back."""
        return self._tracker.current

    @property
    def watermark(self) -> str:
        """The watermark for people."""
        return show_instant(self.watermark_us)

    @property
    def sources_us(self) -> dict[str, int]:
        """The watermark of every source, µs."""
        return dict(self._tracker.reached)

    def advance(self, source: str, to: TimePoint) -> int | None:
        """Move one source, which registers if it is new.

        Parameters
        ----------
        source : str
            Its name.
        to : int or datetime
            Its watermark; ``int`` is milliseconds. A move backward is ignored.

        Returns
        -------
        int or None
            The overall watermark in µs if it has moved, else None.
        """
        before = self._tracker.current
        self._tracker.advance(time_point_us(to, "to"), a_text(source, "source", "pass its name"), 0)
        if self._tracker.settle(0) == before:
            return None
        self.advance_count += 1
        return self._tracker.current

    def triggerable_windows(self, windows: Iterable[tuple[TimePoint, TimePoint]]) -> list[tuple[TimePoint, TimePoint]]:
        """Return those `windows`, pairs of start and end, that the watermark has reached (``end <= W``), in their order."""
        if not is_collection(windows):
            raise PlanError("not windows", got=shown(windows), hint="pass pairs of start and end")
        return [w for w in windows if time_point_us(_end(w), "window_end") <= self._tracker.current]


def _end(window: object) -> TimePoint:
    if not isinstance(window, tuple) or len(window) != 2:
        raise PlanError("a window is a pair of start and end", got=shown(window), hint="pass (0, 60_000)")
    end: TimePoint = window[1]
    return end
