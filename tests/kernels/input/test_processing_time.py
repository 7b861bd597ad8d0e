"""Windows by the clock of the machine (SEMANTICS §10): on the JVM-free driver, against the plain reference."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.errors import ColumnError, OrderError, PlanError
from krishiv_py.planner.fingerprint import fingerprint, uses_ledger
from krishiv_py.runtime.controls import by_clock_us
from krishiv_py.sql.context import SqlContext
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests.reference import by_clock

STEPS = st.lists(
    st.tuples(
        st.integers(-5, 12),  # how far the clock moves
        st.lists(st.sampled_from("ab"), max_size=3),  # rows; without any it is a tick
        st.booleans(),  # whether the query is restarted before
    ),
    max_size=20,
)
KINDS = st.tuples(st.sampled_from(["tumbling", "hopping", "session"]), st.integers(1, 9), st.integers(1, 9))


def keyed() -> Any:
    return stream_of("user string").processing_time().key_by("user")


def windows(kind: str, size: int, slide: int) -> Any:
    if kind == "session":
        return keyed().session_window(size)
    return keyed().hopping_window(size, min(size, slide)) if kind == "hopping" else keyed().tumbling_window(size)


def expected(kind: str, size: int, slide: int, rows: list[by_clock.Arrival]) -> list[by_clock.Counted]:
    if kind == "session":
        return by_clock.sessions(rows, size)
    return by_clock.grid(rows, size, min(size, slide) if kind == "hopping" else size)


def counted_rows(results: Any) -> list[by_clock.Counted]:
    """Results in ms since the epoch."""
    return [(r["user"], _ms(r["window_start"]), _ms(r["window_end"]), r["count"]) for r in results.to_pylist()]


def _ms(at: dt.datetime) -> int:
    return round(at.timestamp() * 1_000)


@given(steps=STEPS, kind=KINDS, idle=st.booleans())
def test_windows_are_those_of_the_reference(
    steps: list[tuple[int, list[str], bool]], kind: tuple[str, int, int], idle: bool
) -> None:
    clock = ManualClock()
    driver = Driver(windows(*kind).agg(kv.count()), clock=clock, idle_batches=idle)
    shown, given_, rows = [0], [], list[by_clock.Arrival]()
    for by, users, restart in steps:
        driver = driver.restarted() if restart else driver
        clock.now_us += by * 1_000
        shown.append(clock.now_us // 1_000)
        now = by_clock.moments(shown)[-1]
        rows += [(now, user) for user in users]
        out = driver.send([{"user": user} for user in users]) if users else driver.tick()
        assert not out.late.num_rows
        given_ += counted_rows(out.results)
        if idle:
            assert sorted(given_) == by_clock.over(expected(*kind, rows), now)
            assert out.watermark_us == now * 1_000
    given_ += counted_rows(driver.close().results)
    assert sorted(given_) == sorted(expected(*kind, rows))
    assert not any(driver.progress.late.values()) and not driver.counters["future"]


def test_stages_and_other_kinds_of_windows_go_by_the_clock_too() -> None:
    clock = ManualClock()
    per_user = keyed().tumbling_window(10).agg(kv.count().alias("n"))
    total = per_user.key_by().tumbling_window(100).agg(kv.sum("n"))
    look = keyed().lookback_window(10).agg(kv.count())
    once = stream_of("user string").processing_time().drop_duplicates("user", within=50)
    drivers = [Driver(plan, clock=clock) for plan in (total, look, once)]
    rows: list[list[Any]] = [[], [], []]
    for now, users in ((1, "ab"), (5, "a"), (30, "a"), (60, "a"), (100, "")):
        clock.set(now)
        for driver, actual in zip(drivers, rows, strict=True):
            out = driver.send([{"user": user} for user in users]) if users else driver.tick()
            actual += out.results.to_pylist()
    assert [list(row.values())[-1] for row in rows[0]] == [5]
    assert sorted((row["user"], row["count"]) for row in rows[1]) == [("a", 1), ("a", 1), ("a", 1), ("a", 2), ("b", 1)]
    assert [row["user"] for row in rows[2]] == ["a", "b", "a"]


def test_the_column_can_be_used_and_branches_share_the_clock() -> None:
    clock = ManualClock(90_000_000)
    timed = stream_of("user string").filter("user <> 'x'").processing_time("arrived")
    hourly = timed.key_by(kv.col("arrived").date_trunc("minute").alias("minute")).tumbling_window(10).agg(kv.max("arrived"))
    counted = timed.tumbling_window(20).agg(kv.count())
    driver = Driver([hourly.to(kv.MemorySink(), name="a"), counted.to(kv.MemorySink(), name="b")], clock=clock)
    driver.send([{"user": "a"}, {"user": "x"}])
    actual = driver.close().by_output
    (row,) = actual["a"].to_pylist()
    assert (_ms(row["minute"]), _ms(row["max_arrived"])) == (60_000, 90_000)
    assert actual["b"]["count"].to_pylist() == [1]


def test_rows_behind_the_end_of_the_input_are_late() -> None:
    driver = Driver(keyed().tumbling_window(10).agg(kv.count()))
    driver.send([{"user": "a"}])
    driver.close()
    assert driver.send([{"user": "a"}]).late["reason"].to_pylist() == ["late"]


def test_it_is_explained_and_waited_for_in_words() -> None:
    plan = keyed().tumbling_window(10_000).agg(kv.count())
    assert "Watermark processing_time: the clock, as it is recorded with every batch" in plan.explain()
    assert "older than the newest" not in plan.explain()
    assert "clock of the machine, and goes on without rows" in Driver(plan).why_not_fired(10_000)
    assert uses_ledger(plan._spec()) and fingerprint(plan._spec())["time"] == "of the clock"


def test_how_often_a_quiet_query_reads_at_the_clock() -> None:
    def beat(window: Any) -> int | None:
        return by_clock_us([window.agg(kv.count())._spec()])

    assert beat(keyed().tumbling_window("1 hour")) == 1_000_000
    assert beat(keyed().tumbling_window("5 s")) == 500_000
    assert beat(keyed().tumbling_window(1)) == 100_000
    assert beat(keyed().count_window(5)) is None


def test_sql_reads_a_stream_that_goes_by_the_clock() -> None:
    made, clock = SqlContext(), ManualClock(5_000_000)
    made.register("events", stream_of("user string").processing_time("proc"))
    text = "SELECT user, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(proc), INTERVAL '10' SECOND)) GROUP BY user"
    plan = made.sql(text + ", window_start, window_end")
    assert plan is not None
    driver = Driver(plan, clock=clock)
    driver.send([{"user": "a"}, {"user": "a"}])
    clock.advance("5 s")
    assert driver.tick().results.to_pylist() == [{"user": "a", "n": 2}]
    rows = made.sql("SELECT user, proc FROM events")  # a window may follow
    assert rows is not None
    with pytest.raises(PlanError, match="no processing time"):
        Driver(rows)
    made.sql("SET watermark.lag = INTERVAL '5' SECOND")
    with pytest.raises(PlanError, match="goes by the clock"):
        made.sql(text + ", window_start, window_end")


def test_what_has_no_meaning_is_refused() -> None:
    stream = stream_of("user string, at bigint, processing_time bigint")
    with pytest.raises(ColumnError, match=r"has a column of this name.*\.processing_time\(\"arrived\"\)"):
        stream.processing_time()
    with pytest.raises(ColumnError, match="has a column of this name"):
        stream.processing_time("AT")
    timed = stream.processing_time("arrived")
    with pytest.raises(PlanError, match=r"processing_time.*Hint: give every side an event time"):
        timed.interval_join(timed, on="user", lower=0, upper=1, suffixes=("", "_r"))
    with pytest.raises(PlanError, match="no processing time"):
        Driver(timed)
    with pytest.raises(OrderError, match="before"):
        timed.map_batches(lambda batch: batch)  # type: ignore[attr-defined]
    for wrong in (3, None, ""):
        with pytest.raises(PlanError):
            stream.processing_time(wrong)  # type: ignore[arg-type]
