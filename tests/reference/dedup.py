"""Deduplication (§8), row by row: a row passes unless a row of its key that passed, and is remembered, is close to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.reference.lateness import Horizon
from tests.reference.model import Advance, Batch, Close, Key, Row, Step, WatermarkSpec
from tests.reference.watermark import Clock


@dataclass
class Deduplicated:
    """What became of every row, with the number of its step."""

    passed: list[tuple[int, Row]] = field(default_factory=list)
    duplicates: list[tuple[int, Row]] = field(default_factory=list)
    late: list[tuple[int, Row]] = field(default_factory=list)
    remembered: dict[Key, list[int]] = field(default_factory=dict)


def deduplicate(steps: Iterable[Step], within: int, watermark: WatermarkSpec, allowed_lateness: int) -> Deduplicated:
    """Run steps; all rows have an event time."""
    clock, horizon, out = Clock(watermark), Horizon(False, allowed_lateness), Deduplicated()
    for number, step in enumerate(steps):
        rows = step.rows if isinstance(step, Batch) else ()
        for row in rows:
            held = out.remembered.setdefault(row.key, [])
            if horizon.too_old(row.time, clock.value):
                out.late.append((number, row))
            elif any(abs(row.time - t0) < within for t0 in held):
                out.duplicates.append((number, row))
            else:
                held.append(row.time)
                out.passed.append((number, row))
        if isinstance(step, Batch):
            clock.observe(rows, step.now)
        elif isinstance(step, Advance):
            clock.advance(step.to, step.source, step.now)
        else:
            clock.close()
        for key, held in list(out.remembered.items()):
            left = [t0 for t0 in held if t0 + within > clock.value - allowed_lateness]
            out.remembered[key] = left
        if isinstance(step, Close):
            break
    return out
