"""Windows of an assigner, and of the calendar, on the three engines; and a restart with other windows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import krishiv_py as kv
from krishiv_py.errors import CheckpointError, OperatorError
from krishiv_py.plan.described import Assigned, Times
from krishiv_py.testing import Driver, stream_of

pytestmark = pytest.mark.two_tasks

HOUR = 3_600_000_000
BEGIN = dt.datetime(2024, 3, 29, tzinfo=dt.timezone.utc)
SCHEMA = "shop string, at timestamp, n bigint"
BATCHES: list[list[dict[str, Any]]] = [
    [
        {"shop": "ab"[i % 2], "at": BEGIN + dt.timedelta(hours=7 * i + 31 * batch, microseconds=i), "n": 10 * batch + i}
        for i in range(6)
    ]
    for batch in range(4)
] + [[{"shop": "a", "at": BEGIN + dt.timedelta(hours=h), "n": h} for h in (1, 70, 200)]]


@attrs.frozen
class Shifts(kv.WindowAssigner):
    """A day shift, and a whole day that overlaps it; nobody works at night's end."""

    hours: int = 16

    @property
    def longest(self) -> str:
        return "24 hours"

    def assign(self, times: Times) -> Assigned:
        midnight = times - times % (24 * HOUR)
        works = np.flatnonzero(times - midnight < self.hours * HOUR)
        shown = np.flatnonzero(times - midnight < 23 * HOUR)
        rows = np.concatenate([works, shown])
        ends = np.concatenate([midnight[works] + self.hours * HOUR, midnight[shown] + 24 * HOUR])
        return rows, midnight[rows], ends


@attrs.frozen
class Failing(Shifts):
    """A window that does not contain its row."""

    def assign(self, times: Times) -> Assigned:
        return times + 1, times + 2


PLANS: dict[str, Callable[[Any], Any]] = {
    "days": lambda s: s.window(kv.calendar_window("day", "Europe/Berlin")).emit("retractions").allowed_lateness("2 days"),
    "weeks": lambda s: s.window(kv.calendar_window("week", "America/New_York", week_start="sunday")).late_rule("window"),
    "shifts": lambda s: s.window(Shifts()).allowed_lateness("1 day"),
    "shifts one by one": lambda s: s.window(Shifts()).trigger(kv.Trigger.on_every_element()).with_pane(),
    "shifts with a time to live": lambda s: s.window(Shifts()).with_state_ttl(kv.StateTtlConfig("30 hours")),
}


def planned(stream: Any, name: str) -> Any:
    keyed = stream.watermark("at", "5 hours").key_by("shop")
    return PLANS[name](keyed).agg(kv.count(), kv.sum("n"), kv.collect_list("n").alias("all"))


def shown(table: Any) -> list[str]:
    return sorted(repr(row) for row in table.to_pylist())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if "shifts " in name else pytest.mark.slow) for name in PLANS])
def test_the_three_engines_agree(name: str, session: kv.Session) -> None:
    driver = Driver(planned(stream_of(SCHEMA), name))
    steps = [driver.send(batch) for batch in BATCHES] + [driver.close()]
    expected = sorted(line for step in steps for line in shown(step.results))
    assert expected
    stream, sender = session.memory_stream(SCHEMA)
    for batch in BATCHES:
        sender.send(batch)
    sender.close()
    plan = planned(stream, name)
    assert shown(plan.collect()) == expected
    query = plan.start(kv.MemorySink())
    try:
        query.process_all_available()
        assert shown(query.results()) == expected
    finally:
        query.stop()


def test_a_checkpoint_is_not_taken_over_by_other_windows(session: kv.Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    sender.send(BATCHES[0])
    keyed = stream.watermark("at", "5 hours").key_by("shop")
    query = keyed.window(Shifts()).agg(kv.count()).start(kv.MemorySink(), checkpoint=str(tmp_path))
    query.process_all_available()
    query.stop()
    for other in (Shifts(15), Failing(), kv.calendar_window("day")):
        with pytest.raises(CheckpointError, match=r"window (parameter hours|assigner) was"):
            keyed.window(other).agg(kv.count()).start(kv.MemorySink(), checkpoint=str(tmp_path))
    again = keyed.window(Shifts()).agg(kv.count()).start(kv.MemorySink(), checkpoint=str(tmp_path))
    again.stop()


def test_a_broken_assigner_is_named_by_both_spark_engines(session: kv.Session) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    sender.send(BATCHES[0])
    sender.close()
    plan = stream.watermark("at", 0).window(Failing()).agg(kv.count())
    given = "window assigner Failing gives a window that does not contain the row"
    with pytest.raises(OperatorError, match=given):
        plan.collect()
    query = plan.start(kv.MemorySink())
    with pytest.raises(OperatorError, match=given):
        query.process_all_available()
    query.stop()
