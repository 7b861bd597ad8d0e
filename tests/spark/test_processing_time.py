"""Processing time on Spark: what the clock shows, from the first micro-batch on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from krishiv_py import MemorySink, OpenWindows, Session, StateTtlConfig, Trigger, WindowTrigger, count
from krishiv_py.storage.sends.log import wall_clock_us
from krishiv_py.testing import Driver, ManualClock
from tests.spark.conftest import DDL, row, sorted_rows

SECOND = 1_000_000


class Clock:
    """A clock that is in the year 2023 until it is moved."""

    def __init__(self) -> None:
        self.now_us = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        """The time."""
        return self.now_us


@pytest.fixture
def clock(session: Session) -> Iterator[Clock]:
    """The clock of the session."""
    actual = Clock()
    session.use_clock(actual)
    yield actual
    session.use_clock(wall_clock_us)


def test_keys_live_from_when_their_batch_began(session: Session, clock: Clock) -> None:
    stream, sender = session.memory_stream(DDL)
    windows = stream.watermark("at", 0).key_by("user").with_state_ttl(StateTtlConfig("1 hour", "processing"))
    query = windows.tumbling_window(1_000).agg(count()).start(MemorySink())
    for user, moment in (("a", 10), ("b", 20), ("c", 5_000)):
        sender.send([row(user, moment)])
        query.process_all_available()
        clock.now_us += SECOND
    assert sorted_rows(query.results()) == [("a", 0, 1_000, 1), ("b", 0, 1_000, 1)]
    assert query.progress.counters.get("ttl_dropped", 0) == 0
    clock.now_us += 2 * 3_600 * SECOND
    sender.send([row("d", 5_001)])  # lives from now on, though the batch before was hours ago
    query.process_all_available()
    sender.send([row("d", 90_000)])
    query.process_all_available()
    assert query.progress.counters["ttl_dropped"] == 1
    assert sorted_rows(query.results())[-1] == ("d", 5_000, 6_000, 1)
    query.stop()


def test_a_quiet_query_goes_on_with_the_clock_and_so_does_a_restarted_one(
    session: Session, clock: Clock, tmp_path: Path
) -> None:
    stream, sender = session.memory_stream(DDL)
    plan = stream.watermark("at", 0, idle_advance="30 s").key_by("user").tumbling_window(1_000).agg(count())
    driver_clock, rows = ManualClock(clock.now_us), [row("a", 500), row("a", 1_500)]
    driver = Driver(plan, clock=driver_clock)
    expected, sink = sorted_rows(driver.send(rows).results), MemorySink()
    query = plan.start(sink, checkpoint=str(tmp_path / "checkpoint"))
    sender.send(rows)
    query.process_all_available()
    for seconds in (30.25, 20):
        clock.now_us += int(seconds * SECOND)
        driver_clock.advance(int(seconds * 1_000))
        out = driver.tick()
        expected += sorted_rows(out.results)
        end = time.monotonic() + 60
        while query.progress.watermark_us < out.watermark_us and time.monotonic() < end:  # a heartbeat, and no row
            assert query.exception() is None
            time.sleep(0.02)
        query.process_all_available()
        assert query.progress.watermark_us == out.watermark_us
        assert "when no row has come for 30 s" in query.why_not_fired(100_000)
        query.stop()
        query = plan.start(sink, checkpoint=str(tmp_path / "checkpoint"))
    query.process_all_available()
    assert out.watermark_us == 21_750_000
    assert sorted_rows(query.results()) == expected == [("a", 0, 1_000, 1), ("a", 1_000, 2_000, 1)]
    query.stop()


def test_the_first_interval_is_a_whole_one(session: Session, clock: Clock) -> None:
    stream, sender = session.memory_stream(DDL)
    windows = stream.watermark("at", 0).key_by("user").tumbling_window(1_000).trigger(Trigger.on_interval("10 s"))
    query = windows.agg(count()).start(MemorySink())
    for moment in (10, 20):
        sender.send([row("a", moment)])
        query.process_all_available()
        clock.now_us += SECOND
    assert query.results().num_rows == 0
    clock.now_us += 10 * SECOND
    sender.send([row("a", 30)])
    query.process_all_available()
    sender.send([row("a", 40)])
    query.process_all_available()
    assert query.results().num_rows > 0
    query.stop()


class Always(WindowTrigger):
    """Fires whatever it is asked about, if the clock asks it."""

    ask_every = "10 s"

    def __init__(self) -> None:
        self.begin = 1_700_000_000 * SECOND

    def fires(self, windows: OpenWindows) -> Any:
        assert windows.now is not None
        return windows.rows > (0 if windows.now - self.begin >= 10 * SECOND else 100)


def test_a_heartbeat_checks_the_trigger_of_a_quiet_query(session: Session, clock: Clock) -> None:
    stream, sender = session.memory_stream(DDL)
    windows = stream.watermark("at", 0).key_by("user").tumbling_window(1_000).trigger(Trigger.when(Always()))
    query = windows.agg(count()).start(MemorySink())
    sender.send([row("a", 10), row("b", 20), row("a", 30)])
    query.process_all_available()
    assert query.results().num_rows == 0
    clock.now_us += 11 * SECOND
    end = time.monotonic() + 60
    while query.results().num_rows < 2 and time.monotonic() < end:  # no row comes
        assert query.exception() is None
        time.sleep(0.02)
    assert sorted_rows(query.results()) == [("a", 0, 1_000, 2), ("b", 0, 1_000, 1)]
    query.stop()
