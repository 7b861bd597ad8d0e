"""Triggers of a user on the three engines; a restart goes on, and is refused with another trigger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

import krishiv_py as kv
from krishiv_py.errors import CheckpointError, OperatorError
from krishiv_py.testing import Driver, stream_of

pytestmark = pytest.mark.two_tasks

SCHEMA = "user string, at bigint, n bigint"
BATCHES: list[list[dict[str, Any]]] = [
    [{"user": "abc"[(7 * i + batch) % 3], "at": 40 * batch + 11 * i, "n": i} for i in range(5 + batch)] for batch in range(5)
]


@attrs.frozen
class Grown(kv.WindowTrigger):
    """Fires when a window has `factor` times the rows its last firing has shown, and when its newest row is near its end."""

    factor: int = 2

    def fires(self, windows: kv.OpenWindows) -> Any:
        near = windows.end - windows.newest <= 20_000
        return near | (windows.rows >= self.factor * (windows.rows - windows.new_rows) + windows.firings)


@attrs.frozen
class Failing(Grown):
    """Returns one bool too few."""

    def fires(self, windows: kv.OpenWindows) -> Any:
        return windows.rows[1:] > 0


PLANS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.tumbling_window(100).emit("retractions"),
    "hopping": lambda s: s.hopping_window(100, 40).accumulation("discarding").with_pane(),
    "session": lambda s: s.session_window(30).emit("retractions"),
    "session, longest": lambda s: s.session_window(30, max_duration=90),
    "assigned": lambda s: s.window(kv.calendar_window("hour")),
}


def planned(stream: Any, name: str, trigger: kv.WindowTrigger) -> Any:
    keyed = stream.watermark("at", 60).key_by("user").trigger(kv.Trigger.when(trigger))
    return PLANS[name](keyed).agg(kv.count(), kv.sum("n"), kv.collect_list("n").alias("all"))


def shown(table: Any) -> list[str]:
    return sorted(repr(row) for row in table.to_pylist())


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "session" else pytest.mark.slow) for name in PLANS])
def test_the_three_engines_agree(name: str, session: kv.Session) -> None:
    driver = Driver(planned(stream_of(SCHEMA), name, Grown()))
    steps = [driver.send(batch) for batch in BATCHES] + [driver.close()]
    assert sum(len(step.results) for step in steps[:-1]) > 5
    expected = sorted(line for step in steps for line in shown(step.results))
    stream, sender = session.memory_stream(SCHEMA)
    for batch in BATCHES:
        sender.send(batch)
    sender.close()
    plan = planned(stream, name, Grown())
    assert shown(plan.collect()) == expected
    query = plan.start(kv.MemorySink())
    try:
        query.process_all_available()
        assert shown(query.results()) == expected
    finally:
        query.stop()


@pytest.mark.slow
def test_a_restart_goes_on_and_is_refused_with_another_trigger(session: kv.Session, tmp_path: Path) -> None:
    driver = Driver(planned(stream_of(SCHEMA), "tumbling", Grown(3)))
    expected = [line for batch in BATCHES for line in shown(driver.send(batch).results)] + shown(driver.close().results)
    stream, sender = session.memory_stream(SCHEMA)
    sink = kv.MemorySink()
    for batch in BATCHES[:3]:
        sender.send(batch)
    query = planned(stream, "tumbling", Grown(3)).start(sink, checkpoint=str(tmp_path))
    query.process_all_available()
    query.stop()
    for other in (Grown(2), Failing(3)):
        with pytest.raises(CheckpointError, match=r"trigger was Grown\(factor=3\) and is "):
            planned(stream, "tumbling", other).start(sink, checkpoint=str(tmp_path))
    for batch in BATCHES[3:]:
        sender.send(batch)
    sender.close()
    again = planned(stream, "tumbling", Grown(3)).start(sink, checkpoint=str(tmp_path))
    again.process_all_available()
    again.stop()
    assert shown(sink.table()) == sorted(expected)


def test_a_broken_trigger_is_named_by_both_spark_engines(session: kv.Session) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    sender.send(BATCHES[0])
    sender.close()
    plan = planned(stream, "session", Failing())
    given = "window trigger Failing does not return one bool for each of"
    with pytest.raises(OperatorError, match=given):
        plan.collect()
    query = plan.start(kv.MemorySink())
    with pytest.raises(OperatorError, match=given):
        query.process_all_available()
    query.stop()
