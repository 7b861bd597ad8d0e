"""Look-back results on arrival: over what has arrived up to the row, once (§11.4)."""

from __future__ import annotations

from collections.abc import Iterable

from tests.reference.lookback import LookBack
from tests.reference.model import Batch, Close, Config, Emission, Key, Late, Observed, Seen, Step
from tests.reference.watermark import Clock


def run_arrivals(config: Config, window: LookBack, steps: Iterable[Step]) -> Observed:
    """Row by row; nothing is ever forgotten, and nothing is open when a step is done."""
    clock, out = Clock(config.watermark), Observed()
    arrived: dict[Key, list[Seen]] = {}
    for number, step in enumerate(steps):
        if isinstance(step, Batch):
            timed = [row for row in step.rows if row.t is not None]
            out.late += [Late(number, row, "null_time") for row in step.rows if row.t is None]
            for row in timed:
                if row.time < clock.value - config.allowed_lateness:
                    out.late.append(Late(number, row, "late"))
                    continue
                mine = arrived.setdefault(row.key, [])
                mine.append(Seen(len(mine), row, clock.value))
                result = window.window(mine[-1], mine).result()
                out.emissions.append(Emission(number, "+I", "final", result))
                out.closed.append(result)
            clock.observe(timed, step.now)
        elif isinstance(step, Close):
            clock.close()
        else:
            clock.advance(step.to, step.source, step.now)
        out.watermark_after.append(clock.value)
        if isinstance(step, Close):
            break
    return out
