"""Triggers of a user for tests, each also in plain Python, one window at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.plan.options.triggers import CustomTrigger
from tests import reference as ref

MS = 1_000


@attrs.frozen
class Rule(kv.WindowTrigger):
    """A remainder of all that is known of a window: a wrong number shows, whichever it is."""

    factors: tuple[int, ...]
    modulus: int
    below: int
    period: int | None = None

    @property
    def ask_every(self) -> int | None:
        return self.period

    def fires(self, windows: kv.OpenWindows) -> Any:
        lengths = np.array([len(str(key or "")) for key in windows.keys.column(0).to_pylist()])
        watermark = 0 if windows.watermark is None else windows.watermark // MS
        given: tuple[Any, ...] = (
            windows.start // MS,
            windows.end // MS,
            windows.rows,
            windows.new_rows,
            windows.firings,
            windows.newest // MS,
        )
        total: Any = sum(f * column for f, column in zip(self.factors, (*given, lengths, watermark), strict=True))
        return total % self.modulus < self.below

    def plain(self, facts: ref.Facts) -> bool:
        """The same of one window."""
        watermark = 0 if facts.watermark == -float("inf") else int(facts.watermark)
        given = (facts.start, facts.end, facts.rows, facts.new_rows, facts.firings, facts.newest, len(str(facts.key or "")))
        return sum(f * n for f, n in zip(self.factors, (*given, watermark), strict=True)) % self.modulus < self.below


def facts_of(trigger: kv.Trigger) -> Callable[[ref.Facts], bool] | None:
    """What the reference asks."""
    rule = trigger.early.trigger if isinstance(trigger.early, CustomTrigger) else None
    return rule.plain if isinstance(rule, Rule) else None


rules = st.builds(
    Rule,
    factors=st.tuples(*[st.integers(0, 5)] * 8),
    modulus=st.sampled_from([2, 3, 4, 5, 7]),
    below=st.sampled_from([1, 1, 2, 3]),
)
triggers = st.builds(kv.Trigger, early=rules, on_time=st.booleans(), late=st.sampled_from([None, "batch", "each", 2])).filter(
    lambda t: t.on_time or t.late != "batch"
)  # the reference then writes at the next batch even if no row came
