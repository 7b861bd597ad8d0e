"""A plan is changed twice in a row, and together with the number of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from krishiv_py import MemorySink, Session, avg, count, max, sum
from krishiv_py.testing import Driver
from tests.in_process.test_evolution import OPERATORS, SCHEMA, batches, keyed, plainly, run


@pytest.mark.parametrize("kind", OPERATORS)
def test_an_aggregate_is_added_twice_in_a_row(kind: str, tmp_path: Path) -> None:
    """Each aggregate is null in windows with rows from before its own savepoint, and in no others."""
    windows, sent = OPERATORS[kind](keyed()), batches(8)
    plans: list[Any] = [
        windows.agg(count()),
        windows.agg(sum("amount").alias("total"), count()),
        windows.agg(count(), sum("amount").alias("total"), max("amount").alias("top")),
    ]
    driver, given = Driver(plans[0]), 0
    for number, plan in enumerate(plans[1:], 1):
        given += len(run(driver, sent[2 * number - 2 : 2 * number])[0])
        driver = Driver(plan, savepoint=driver.savepoint(str(tmp_path / str(number)))).restarted()
    actual, _ = run(driver, sent[4:], end=True)
    expected = run(Driver(plans[2]), sent, end=True)[0][given:]
    once = Driver(plans[0])
    run(once, sent[:2])
    one = Driver(plans[2], savepoint=once.savepoint(str(tmp_path / "total")))
    totals = plainly(run(one, sent[2:], end=True)[0][-len(actual) :], "user", "window_start", "window_end", "total")
    assert plainly(actual, "user", "window_start", "window_end", "total") == totals
    assert plainly(actual, "user", "window_start", "window_end", "count") == plainly(
        expected, "user", "window_start", "window_end", "count"
    )
    tops = {row["top"] is None for row in actual}
    assert tops == {True, False}
    assert all(row["top"] is None for row in actual if row["total"] is None)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", OPERATORS)
@pytest.mark.parametrize(("was", "now"), [(1, 3), (3, 1)])
def test_a_plan_and_the_number_of_workers_change_in_one_step(kind: str, was: int, now: int, tmp_path: Path) -> None:
    """With other workers a changed plan gives what the driver gives for the same savepoint."""
    windows, sent = OPERATORS[kind](keyed()), batches(5)
    old, new = windows.agg(count(), sum("amount").alias("gone")), windows.agg(avg("amount").alias("mean"), count())
    reference = Driver(old)
    run(reference, sent[:3])
    path = reference.savepoint(str(tmp_path / "driver"))
    expected, _ = run(Driver(new, savepoint=path), sent[3:])
    with Session.in_process(workers=was) as session:
        stream, sender = session.memory_stream(SCHEMA)
        before = OPERATORS[kind](stream.watermark("at", 20_000).key_by("user")).agg(count(), sum("amount").alias("gone"))
        query = before.start(MemorySink(), checkpoint=str(tmp_path / "a"))
        for rows in sent[:3]:
            sender.send(rows)
            query.process_all_available()
        query.stop()
        path = session.savepoint(str(tmp_path / "a"), str(tmp_path / "s"))
    with Session.in_process(workers=now) as session:
        stream, sender = session.memory_stream(SCHEMA)
        after = OPERATORS[kind](stream.watermark("at", 20_000).key_by("user")).agg(avg("amount").alias("mean"), count())
        query = after.start(MemorySink(), checkpoint=str(tmp_path / "b"), savepoint=path)
        for rows in sent[3:]:
            sender.send(rows)
            query.process_all_available()
        actual = query.results().to_pylist()
        query.stop()
    names = ("user", "window_start", "window_end", "count", "mean")
    assert actual
    assert plainly(actual, *names) == plainly(expected, *names)
