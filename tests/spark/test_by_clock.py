"""Windows by the clock of the machine on Spark: a batch is of the moment at which it began, as it is on record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py.storage.sends.log import wall_clock_us
from krishiv_py.testing import Driver, ManualClock
from tests.spark.conftest import DDL, row

SECOND = 1_000_000
BEGIN = 1_700_000_000 * SECOND


class Clock:
    """A clock that is in the year 2023 until it is moved."""

    now_us = BEGIN

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def clock(session: kv.Session) -> Iterator[Clock]:
    """The clock of the session."""
    actual = Clock()
    session.use_clock(actual)
    yield actual
    session.use_clock(wall_clock_us)


def sorted_counts(results: Any) -> list[tuple[str, int, int]]:
    """Key, start after the beginning in seconds, count."""
    names = results.schema.names
    return sorted(
        (r["user"], (round(r["window_start"].timestamp()) * SECOND - BEGIN) // SECOND, r[names[-1]])
        for r in results.to_pylist()
    )


def waits(query: kv.Query, watermark_us: int) -> None:
    """Until a heartbeat has moved the clock of a query, and what that fires is there."""
    end = time.monotonic() + 60
    while query.progress.watermark_us < watermark_us and time.monotonic() < end:
        assert query.exception() is None
        time.sleep(0.02)
    query.process_all_available()


@pytest.mark.slow
def test_windows_fire_by_the_clock_on_all_engines_and_after_a_restart(
    session: kv.Session, clock: Clock, tmp_path: Path
) -> None:
    stream, sender = session.memory_stream(DDL)
    plan = stream.processing_time().key_by("user").tumbling_window("10 s").agg(kv.count())
    driver_clock = ManualClock(BEGIN)
    driver, expected = Driver(plan, clock=driver_clock), []
    sink, checkpoint = kv.MemorySink(), str(tmp_path / "checkpoint")
    query = plan.start(sink, checkpoint=checkpoint)
    for by, rows in ((0, "ab"), (4, "a"), (7, "b"), (60, "a")):
        clock.now_us += by * SECOND
        driver_clock.now_us = clock.now_us
        if rows:
            batch = [row(user, 0) for user in rows]
            expected += sorted_counts(driver.send(batch).results)
            sender.send(batch)
            query.process_all_available()
        if by == 7:
            query.stop()
            query = plan.start(sink, checkpoint=checkpoint)
    clock.now_us += 10 * SECOND
    driver_clock.now_us = clock.now_us
    expected += sorted_counts(driver.tick().results)
    waits(query, clock.now_us)  # no row comes
    assert sorted_counts(query.results()) == sorted(expected) == [("a", 0, 2), ("a", 70, 1), ("b", 0, 1), ("b", 10, 1)]
    assert query.progress.late == driver.progress.late and not any(query.progress.late.values())
    batches = query.progress.batch_id
    clock.now_us += 3_600 * SECOND
    time.sleep(0.5)
    assert query.progress.batch_id == batches, "nothing is open, so nobody looks at the clock"
    query.stop()
    assert sorted_counts(plan.collect()) == sorted(expected), "sends have the time they were sent"


class Waits:
    """Reports each key that waited for a minute of the clock."""

    def on_row(self, row: kv.Row, state: None, ctx: kv.Context) -> None:
        ctx.timer("waited", after="1 minute", clock="processing")

    def on_timer(self, name: str, state: None, ctx: kv.Context) -> Iterator[dict[str, Any]]:
        yield {"waited": True}


@pytest.mark.parametrize("kind", ["absence", "process"])
def test_what_waits_by_the_clock_waits_from_its_batch_on(kind: str, session: kv.Session, clock: Clock, tmp_path: Path) -> None:
    """After hours without a batch a row is as new as any other, and nobody misses its key at once."""
    stream, sender = session.memory_stream(DDL)
    keyed = stream.watermark("at", 0).key_by("user")
    plan = {
        "absence": lambda: keyed.absent("1 minute", clock="processing"),
        "process": lambda: keyed.process(Waits(), returns="waited boolean", order="arrival"),
    }[kind]()
    sink, checkpoint = kv.MemorySink(), str(tmp_path / "checkpoint")
    query = plan.start(sink, checkpoint=checkpoint)
    sender.send([row("a", 0)])
    query.process_all_available()
    query.stop()
    clock.now_us += 7_200 * SECOND
    query = plan.start(sink, checkpoint=checkpoint)
    for user in "bcd":
        clock.now_us += SECOND
        sender.send([row(user, 1_000)])
        query.process_all_available()
    assert [r["user"] for r in query.results().to_pylist()] == ["a"]
    query.stop()
