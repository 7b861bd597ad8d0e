"""Rows that go by the clock of the machine instead of a time of their own (SEMANTICS §10)."""

from __future__ import annotations

from typing import Any

import attrs

from krishiv_py.plan.expressions.expr import Expr
from krishiv_py.plan.nodes import Prefix, Project
from krishiv_py.plan.options.watermarks import WatermarkSpec


@attrs.frozen
class ProcessingTime(WatermarkSpec):
    """The watermark is the clock: it goes on without rows, and rows are never behind it."""

    lag_us: int = 0

    @property
    def _by_clock(self) -> bool:
        """Always."""
        return True

    def _describe(self) -> str:
        """One line for ``explain()``."""
        return "the clock, as it is recorded with every batch"


@attrs.frozen(eq=False, repr=False)
class BatchTime(Expr):
    """Says when a micro-batch was begun, by the clock that is recorded with it.

    Attributes
    ----------
    at_us : int or None
        µs since the epoch; None in a plan, as it is known in a batch only.
    """

    at_us: int | None = None

    def _parts(self) -> tuple[Any, ...]:
        return ("processing_time()",)


def stamped(prefix: tuple[Prefix, ...], at_us: int) -> tuple[Prefix, ...]:
    """Stateless steps in a batch of this time, µs."""
    return tuple(_at(step, at_us) if isinstance(step, Project) and uses_clock(step) else step for step in prefix)


def uses_clock(step: Project) -> bool:
    """Return whether a step asks for the clock."""
    return any(isinstance(expr, BatchTime) for _, expr in step.columns)


def _at(step: Project, at_us: int) -> Project:
    return attrs.evolve(step, columns=tuple((n, BatchTime(at_us) if isinstance(e, BatchTime) else e) for n, e in step.columns))
