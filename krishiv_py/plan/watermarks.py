"""Watermark specifications (SEMANTICS §2)."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from krishiv_py.errors import PlanError, message
from krishiv_py.plan.durations import UNSET, Duration, TimePoint, show_instant, show_us, time_point_us, to_us


@attrs.frozen
class WatermarkSpec:
    """How the watermark of one source follows its event times: ``W = max(seen) - lag``.

    Attributes
    ----------
    lag_us : int
        How far rows may be out of order, in microseconds.
    initial_us : int
        The watermark before any row; ``UNSET`` (minus infinity) unless given.
    """

    lag_us: int
    initial_us: int = UNSET

    @classmethod
    def fixed_lag_ms(cls, lag_ms: int, *, initial: TimePoint | None = None) -> WatermarkSpec:
        """A fixed lag in milliseconds.

        Parameters
        ----------
        lag_ms : int
            How far rows may be out of order, in milliseconds; 0 is legal.
        initial : int or datetime, optional
            Where the watermark starts (``int`` is milliseconds since the epoch) instead of unset.
        """
        return cls.fixed_lag(lag_ms, initial=initial)

    @classmethod
    def fixed_lag(cls, lag: Duration, *, initial: TimePoint | None = None) -> WatermarkSpec:
        """A fixed lag as any duration of SEMANTICS §1.1.

        Parameters
        ----------
        lag : int or timedelta or str
            How far rows may be out of order; ``int`` is milliseconds; 0 is legal.
        initial : int or datetime, optional
            Where the watermark starts (``int`` is milliseconds since the epoch) instead of unset.
        """
        lag_us = to_us(lag, "lag", allow_zero=True)
        return cls(lag_us, UNSET if initial is None else time_point_us(initial, "initial"))

    def describe(self) -> str:
        """One line for ``explain()``."""
        start = "" if self.initial_us == UNSET else f", from {show_instant(self.initial_us)}"
        return f"max(event time) - {show_us(self.lag_us)}{start}"


@attrs.frozen
class MultiSourceWatermarkSpec:
    """Several sources: the watermark is the minimum over them, each with its own lag (SEMANTICS §2.4).

    A declared source that has not spoken holds the watermark. With an idle timeout a source silent for longer than that
    (processing time) is left out until it speaks again.

    Examples
    --------
    >>> spec = (MultiSourceWatermarkSpec.new(idle_timeout="30 s")
    ...         .source("a", WatermarkSpec.fixed_lag_ms(1_000)).source("b", WatermarkSpec.fixed_lag_ms(5_000)))
    >>> [name for name, _ in spec.sources]
    ['a', 'b']
    """

    sources: tuple[tuple[str, WatermarkSpec], ...] = ()
    idle_timeout_us: int | None = None
    initial_us: int = UNSET

    @classmethod
    def new(cls, *, idle_timeout: Duration | None = None, initial: TimePoint | None = None) -> MultiSourceWatermarkSpec:
        """No source yet; add them with :meth:`source`.

        Parameters
        ----------
        idle_timeout : int or timedelta or str, optional
            Leave a source out that is silent for longer than this (processing time); never by default.
        initial : int or datetime, optional
            Where the watermark starts (``int`` is milliseconds since the epoch) instead of unset.
        """
        idle_us = None if idle_timeout is None else to_us(idle_timeout, "idle_timeout")
        return cls((), idle_us, UNSET if initial is None else time_point_us(initial, "initial"))

    def source(self, name: str, spec: WatermarkSpec) -> MultiSourceWatermarkSpec:
        """Declare a source by the value it has in the source column.

        Parameters
        ----------
        name : str
            Its value in the source column.
        spec : WatermarkSpec
            How its watermark follows its rows.
        """
        if not isinstance(name, str) or any(name == known for known, _ in self.sources):
            raise PlanError(message("a source needs a name of its own", repr(name), "rows could not be told apart",
                                    'write .source("a", WatermarkSpec.fixed_lag_ms(5_000))'))
        if not isinstance(spec, WatermarkSpec):
            raise PlanError(message(f"source {name!r} has no WatermarkSpec", repr(spec), "its watermark cannot follow its rows",
                                    "pass WatermarkSpec.fixed_lag_ms(5_000)"))
        return attrs.evolve(self, sources=(*self.sources, (name, spec)))

    def idle_timeout(self, timeout: Duration) -> MultiSourceWatermarkSpec:
        """Leave a source out that is silent for longer than `timeout` of processing time."""
        return attrs.evolve(self, idle_timeout_us=to_us(timeout, "idle_timeout"))

    def describe(self) -> str:
        """One line for ``explain()``."""
        parts = ", ".join(f"{name} - {show_us(spec.lag_us)}" for name, spec in self.sources)
        idle = f", idle after {show_us(self.idle_timeout_us)}" if self.idle_timeout_us is not None else ""
        return f"min over {parts}{idle}"


AnyWatermarkSpec: TypeAlias = "WatermarkSpec | MultiSourceWatermarkSpec"
