"""A log line for clocks that run ahead: which source has rows further ahead than tolerated (SEMANTICS §4.4)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

import attrs

from krishiv_py.engine.notes import Notes
from krishiv_py.plan.durations import show_us
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.redaction import shown_text

_LOG: Final = logging.getLogger("krishiv_py.future")
_EVERY_S: Final = 600.0


@attrs.define(eq=False)
class AheadLog:
    """Warns of future rows, at most once in ten minutes for each source.

    Attributes
    ----------
    plan : PhysicalPlan
        What the sources and tolerances are.
    title : str
        The name of the query.
    seconds : callable
        A clock that never goes back, s.
    """

    plan: PhysicalPlan
    title: str
    seconds: Callable[[], float] = time.monotonic
    _warned: dict[tuple[int, str], float] = attrs.field(factory=dict)

    def take(self, stage: int, notes: Iterable[Notes]) -> None:
        """Warn of what the tasks of a batch have noted of the rows that a `stage` reads."""
        for noted in notes:
            for source, n in noted.ahead.items():
                now = self.seconds()
                if now - self._warned.get((stage, source), -_EVERY_S) >= _EVERY_S:
                    self._warned[stage, source] = now
                    self._warn(stage, source, n)

    def _warn(self, stage: int, source: str, n: int) -> None:
        options = self.plan.stages[stage].spec.options
        read = [r.source.detail() for r in self.plan.reads if any(number == stage for number, _ in r.takers)]
        reference = "clock" if options.future_reference == "clock" else "watermark"
        fate = {"warn": "they are processed", "drop": "they are dropped", "side_output": "they are in the late output"}
        _LOG.warning(
            "query %s: rows of the source %s are more than %s ahead of the %s: %d in this batch, %s. "
            "Hint: correct the clock of the source, or set another .future_tolerance(...)",
            shown_text(self.title),
            shown_text(source or ", ".join(read)),
            show_us(options.future_us),
            reference,
            n,
            fate[options.future_action],
        )
