"""Why a key has no result at a time: reads the key and the time of a call, and asks the state. The same for every engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from krishiv_py.engine.closing import keys_of
from krishiv_py.engine.stage import StageOperator
from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.durations import TimePoint, time_point_us
from krishiv_py.planner.cut import StagePlan
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.why import Held, Standing, why


def why_text(
    plan: PhysicalPlan,
    stage: StagePlan,
    now: Standing,
    key: Any,
    time: TimePoint | None,
    state: Callable[[], pa.Table],
    results: pa.Table | None,
) -> str:
    """Say what became of a key at a time.

    Raises
    ------
    PlanError
        For a value that cannot be a key of the stage, and for several keys.
    DurationError
        For a value that is not a time.
    """
    time_us = None if time is None else time_point_us(time, "time")
    if isinstance(key, list):
        raise PlanError("why() takes one key", got=shown(key), hint="pass a tuple for a key of several columns")
    keys = None if key is None else keys_of(StageOperator(stage.spec), key)
    try:
        held = Held.of(stage, state(), keys)
    except PlanError:  # the state of these windows is rows
        held = None
    return why(stage, plan.clocks, now, None if key is None else repr(key), time_us, held, Held.of(stage, results, keys))
