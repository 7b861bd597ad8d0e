"""The operators that are killed in process: those of the jobs that Spark runs, and every other kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import numpy as np

from krishiv_py import (
    LateEventHandler,
    SlidingWindows,
    StateTtlConfig,
    TimeIntervalWindowOptions,
    Trigger,
    WindowAssigner,
    col,
    collect_list,
    count,
    max,
    sum,
)
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.plan.described import Assigned, Times
from tests.crash.job import KINDS, plan


@attrs.frozen
class Shifts(WindowAssigner):
    """Windows of a user: two of different length in each five seconds."""

    @property
    def longest(self) -> str:
        """The longer one."""
        return "5 s"

    def assign(self, times: Times) -> Assigned:
        """Both of them, or the longer one alone."""
        begin = times - times % 5_000_000
        early = np.flatnonzero(times - begin < 3_000_000)
        rows = np.concatenate([np.arange(len(times)), early])
        starts = begin[rows]
        return rows, starts, np.concatenate([begin + 5_000_000, begin[early] + 3_000_000])


MORE: Final[dict[str, Callable[[KeyedStream], ResultStream]]] = {
    "hopping": lambda keyed: keyed.hopping_window(3_000, 1_000).agg(
        count(), sum("amount"), collect_list("amount").alias("all")
    ),
    "cumulating": lambda keyed: keyed.cumulate_window(1_000, 4_000).agg(count(), sum("amount")),
    "distinct": lambda keyed: keyed.windowed_by(SlidingWindows.of(1_000).grace(500)).agg(count(), sum("amount")),
    "panes": lambda keyed: keyed.time_interval_window(TimeIntervalWindowOptions(2.0, creation_period=1.0, discard_age=1.0)).agg(
        count(), sum("amount")
    ),
    "counted": lambda keyed: keyed.count_window(5, 2).agg(count(), sum("amount"), collect_list("amount").alias("all")),
    "counted early": lambda keyed: keyed.trigger(Trigger.on_count(2)).count_window(5).agg(count(), sum("amount")),
    "capped": lambda keyed: keyed.session_window(1_500, max_duration=4_000).agg(count(), sum("amount")),
    "capped early": lambda keyed: (
        keyed.allowed_lateness(500)
        .trigger(Trigger.on_count(3))
        .session_window(1_500, max_duration=4_000)
        .agg(count(), max("at"))
    ),
    "early": lambda keyed: keyed.allowed_lateness(500).trigger(Trigger.on_every_element()).tumbling_window(2_000).agg(count()),
    "growing": lambda keyed: (
        keyed.allowed_lateness(500)
        .trigger(Trigger.on_count(2))
        .emit("retractions")
        .session_window(1_500)
        .agg(count(), sum("amount"))
    ),
    "assigned": lambda keyed: keyed.window(Shifts()).agg(count(), sum("amount")),
    "expiring": lambda keyed: keyed.with_state_ttl(StateTtlConfig("3 s")).tumbling_window(5_000).agg(count(), sum("amount")),
    "pairs": lambda keyed: keyed.lookback_window(1_000).pairs(col("left_amount") < col("right_amount")),
    "ranked": lambda keyed: keyed.tumbling_window(2_000).top_rows(3, "amount", "at"),
}
"""Every kernel that the other jobs do not have, on rows with a lag of two seconds."""
OPERATORS: Final = (*(kind for kind in KINDS if kind != "lookup"), *MORE)
"""Without the table that changes while the job runs; tests/crash has it."""


def results_of(operator: str, read: Callable[[], Stream], late: LateEventHandler) -> ResultStream:
    """The results of one."""
    if operator in MORE:
        return MORE[operator](read().watermark("at", 2_000).key_by("user").with_late_event_handler(late))
    return plan(read, operator, late)
