"""Rows are classified by the row clock in two ways: the short one looks at rows that are behind another, and gives the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import count, sum
from krishiv_py.kernels.lanes import RowClock
from krishiv_py.kernels.prepare import PreparedRows, RowPreparer
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.options.watermarks import WatermarkSpec
from krishiv_py.testing import stream_of

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64()), ("v", pa.int64())])
PLANS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda timed: timed.key_by("user").tumbling_window(60),
    "lateness": lambda timed: timed.allowed_lateness(7).key_by("user").hopping_window(60, 20),
    "rule window": lambda timed: timed.late_rule("window").key_by("user").tumbling_window(60),
    "session": lambda timed: timed.key_by("user").session_window(30),
    "null keys aside": lambda timed: timed.null_keys("side_output").key_by("user").tumbling_window(60),
    "future dropped": lambda timed: timed.future_tolerance(8, "drop").key_by("user").tumbling_window(60),
    "look-back": lambda timed: timed.key_by("user").lookback_window(60),
}


def preparer(name: str) -> RowPreparer:
    rows = stream_of(SCHEMA).watermark("at", 10, clock="row")
    results = PLANS[name](rows).agg(count(), sum("v"))
    return RowPreparer(results._plan("driver", late="shown").stages[0].spec)


def batch(dice: random.Random, newest: int) -> pa.RecordBatch:
    """Times about the newest one so far, some of them null, or rows in order."""
    n = dice.choice([0, 1, 2, 9, 40])
    times: list[int | None] = [newest + dice.randrange(-30, 12) for _ in range(n)]
    if dice.random() < 0.3:
        times.sort(key=lambda at: at or 0)
    if dice.random() < 0.1:
        times = [None if dice.random() < 0.2 else at for at in times]
    users = [dice.choice(["a", "b", None]) for _ in range(n)]
    return pa.record_batch(
        [pa.array(users, pa.string()), pa.array(times, pa.int64()), pa.array(range(n), pa.int64())], schema=SCHEMA
    )


def shown(prepared: PreparedRows, clock: RowClock) -> tuple[Any, ...]:
    counters = {name: n for name, n in prepared.counters.items() if n}
    marks = prepared.latest_late_us, prepared.newest_us, prepared.maxima, dict(clock.newest)
    return prepared.rows.to_pylist(), prepared.late.to_pylist(), counters, marks, prepared.turns, prepared.ahead


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", PLANS)
def test_the_short_way_gives_what_the_long_way_gives(name: str) -> None:
    short, long = preparer(name), preparer(name)
    long._late_by_row = lambda *_: None  # type: ignore[method-assign]
    taken = 0
    for seed in range(60):
        dice = random.Random(f"{name} {seed}")
        floor = dice.choice([UNSET, 0, 960_000])
        clocks = [RowClock(WatermarkSpec.fixed_lag(10, clock="row"), {}, {}, floor) for _ in "sl"]
        newest, late = 1_000, 0
        for _ in range(dice.randrange(1, 8)):
            rows, lane = batch(dice, newest), dice.choice(["", "0", "1"])
            if dice.random() < 0.1:
                for clock in clocks:
                    clock.advance((newest + 5) * 1_000, None)
            mine, theirs = (
                one(rows, UNSET, None, lane=(clock, lane)) for one, clock in zip((short, long), clocks, strict=True)
            )
            assert shown(mine, clocks[0]) == shown(theirs, clocks[1]), (name, seed)
            newest = max([newest, *(at for at in rows["at"].to_pylist() if at is not None)])
            late += mine.counters["late"]
        taken += late > 0
    assert taken > 5
