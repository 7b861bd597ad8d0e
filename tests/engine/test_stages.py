"""Chains of stages on the driver: a plain reference, any batches, restarts, and what is refused (SEMANTICS §7)."""

from __future__ import annotations

import builtins
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from krishiv_py import (
    ColumnError,
    MemorySink,
    OrderError,
    PlanError,
    ResultStream,
    SchemaError,
    SideOutputLateEventHandler,
    SlidingWindows,
    TimeIntervalWindowOptions,
    Trigger,
    col,
    collect_list,
    count,
    max,
    sum,
)
from krishiv_py.compat import PaneHandler
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled

DDL = "user string, at bigint, amount bigint"
FIRST, SECOND, THIRD, LAG = 1_000, 3_000, 12_000, 2_000
Rows = list[dict[str, Any]]


def chain() -> ResultStream:
    """Counts a second, their sums and lists in three seconds, all users in twelve."""
    first = stream_of(DDL).watermark("at", LAG).key_by("user").tumbling_window(FIRST).agg(count(), sum("amount"))
    second = first.key_by("user").tumbling_window(SECOND).agg(sum("count").alias("n"), collect_list("sum_amount").alias("sums"))
    return second.filter("n > 1").tumbling_window(THIRD).agg(sum("n").alias("n"), collect_list("user").alias("users"))


def plainly(rows: Rows) -> Rows:
    """The same, by hand, for rows of which none is late."""
    first: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row in rows:
        first[row["at"] // FIRST, row["user"]].append(row["amount"])
    second: dict[tuple[int, str], list[list[int]]] = defaultdict(list)
    for (moment, user), amounts in sorted(first.items()):
        second[(moment * FIRST + FIRST - 1) // SECOND, user].append(amounts)
    third: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for (moment, user), windows in sorted(second.items()):
        n = len([a for window in windows for a in window])
        if n > 1:
            third[(moment * SECOND + SECOND - 1) // THIRD].append((user, n))
    return [
        {
            "window_start": moment * THIRD,
            "window_end": moment * THIRD + THIRD,
            "n": builtins.sum(n for _, n in users),
            "users": [user for user, _ in users],
        }
        for moment, users in sorted(third.items())
    ]


def rows_of(times: list[int]) -> Rows:
    """Rows at these times, at most as far out of order as the lag allows."""
    newest, rows = 0, []
    for n, step in enumerate(times):
        newest = newest + step if step > 0 else newest
        rows.append({"user": "abc"[n % 3], "at": newest - (step % LAG if step < 0 else 0) + LAG, "amount": n})
    return rows


@settings(max_examples=scaled(60), deadline=None)
@given(st.lists(st.integers(-1_900, 900), max_size=60), st.lists(st.integers(1, 12), min_size=1), st.integers(0, 8))
@example([500] * 40, [1], 3)
def test_a_chain_is_what_it_is_by_hand_however_rows_are_cut(times: list[int], cuts: list[int], restart: int) -> None:
    rows = rows_of(times)
    driver, got, moment, number = Driver(chain()), [], 0, 0
    while moment < len(rows):
        size = cuts[number % len(cuts)]
        out = driver.send(rows[moment : moment + size])
        assert out.late.num_rows == 0
        got += out.results.to_pylist()
        moment, number = moment + size, number + 1
        if number == restart:
            driver = driver.restarted()
    assert got + driver.close().results.to_pylist() == plainly(rows)
    assert driver.progress.stages["stage 2"].late["late"] == driver.progress.stages["stage 3"].late["late"] == 0


def test_a_chain_fires_in_the_batch_of_its_first_stage() -> None:
    driver = Driver(chain(), idle_batches=False)
    driver.send([{"user": "a", "at": t, "amount": 1} for t in (0, 500, 11_999)])
    assert driver.send([{"user": "a", "at": 14_001, "amount": 1}]).results.num_rows == 0
    fired = driver.send([{"user": "a", "at": 14_002, "amount": 1}]).results.to_pylist()
    assert fired == [{"window_start": 0, "window_end": 12_000, "n": 2, "users": ["a"]}]


def test_late_rows_and_counters_name_their_stage() -> None:
    kept = MemorySink()
    first = stream_of(DDL).watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count())
    second = first.with_late_event_handler(SideOutputLateEventHandler(kept)).tumbling_window(5_000).agg(sum("count"))
    driver = Driver(second)
    driver.send([{"user": "a", "at": 9_000, "amount": 1}])
    out = driver.send([{"user": "b", "at": 10, "amount": 2}])
    aside = kept.table()
    assert aside is not None and aside["user"].to_pylist() == ["b"] == out.late_by_stage["stage 1"]["user"].to_pylist()
    assert out.late_by_stage["stage 2"].num_rows == 0 and set(out.late_by_stage["stage 2"].column_names) >= {"reason"}
    assert driver.counters["late"] == driver.progress.late["late"] == 1
    assert list(driver.progress.stages) == ["stage 1", "stage 2"]
    assert repr(out) == "<StepOutput 0 results; 1 late row (stage 1: 1, stage 2: 0); watermark 1970-01-01T00:00:09Z>"


@pytest.mark.parametrize(
    ("lateness", "lag", "fires_at"), [(0, 0, 5_000), (2_000, 0, 7_000), (0, 3_000, 8_000), (2_000, 3_000, 10_000)]
)
def test_lateness_and_lag_hold_the_next_watermark_back(lateness: int, lag: int, fires_at: int) -> None:
    first = stream_of(DDL).watermark("at", 0).key_by("user").tumbling_window(1_000).allowed_lateness(lateness).agg(count())
    driver = Driver(first.watermark("window_time", lag).key_by("user").tumbling_window(5_000).agg(sum("count")))
    driver.send([{"user": "a", "at": 0, "amount": 1}])
    assert driver.advance_watermark(fires_at - 1).results.num_rows == 0
    assert driver.advance_watermark(fires_at).results.num_rows == 1


def test_every_window_with_a_time_can_be_followed() -> None:
    keyed = stream_of(DDL).watermark("at", 0).key_by("user")
    rows = [{"user": "a", "at": t, "amount": 1} for t in (0, 400, 2_500, 2_600, 30_000)]
    for stage, times in (
        (keyed.tumbling_window(1_000).agg(count()), [999, 2_999, 30_999]),
        (keyed.hopping_window(2_000, 1_000).agg(count()), [999, 1_999, 2_999, 3_999, 30_999, 31_999]),
        (keyed.session_window(1_000).agg(count()), [1_399, 3_599, 30_999]),
        (keyed.lookback_window(1_000).agg(count()), [0, 400, 2_500, 2_600, 30_000]),
        (keyed.windowed_by(SlidingWindows.of(1_000)).agg(count()), None),
        (keyed.lookback_window(1_000).pairs(), [400, 2_600]),
    ):
        driver = Driver(stage.lookback_window(0).agg(count()))
        ends = [r["window_end"] for out in (driver.send(rows), driver.close()) for r in out.results.to_pylist()]
        assert ends == sorted(ends) and (times is None or ends == times)


@pytest.mark.parametrize("first", ["tumbling", "lookback", "deduplicated"])
def test_whole_rows_of_a_later_stage_have_its_columns_only(first: str) -> None:
    """What the library adds for the order of results is in no match, no pair and no tuple, and cannot be named."""
    keyed = stream_of(DDL).watermark("at", 0).key_by("user")
    stages: dict[str, Any] = {
        "tumbling": keyed.tumbling_window(1_000).agg(count()),
        "lookback": keyed.lookback_window(1_000).agg(count()),
        "deduplicated": keyed.drop_duplicates("at", within=1_000),
    }
    names = (
        ["user", "at", "amount"] if first == "deduplicated" else ["user", "window_start", "window_end", "count", "window_time"]
    )
    before = stages[first].key_by("user")
    rows = [{"user": "a", "at": t, "amount": 1} for t in (0, 1_400, 2_500)]

    def stated(stage: Any) -> list[dict[str, Any]]:
        driver = Driver(stage)
        return [r for out in (driver.send(rows), driver.restarted().close()) for r in out.results.to_pylist()]

    matches = stated(before.lookback_window(10_000).matches())
    assert [[list(m) for m in (r["row"], *r["matches"])] for r in matches] == [[names], [names] * 2, [names] * 3]
    pairs = stated(before.lookback_window(10_000).pairs())
    assert [list(r) for r in pairs] == [[f"{side}_{n}" for side in ("left", "right") for n in names]] * 3
    panes = stated(before.time_interval_window(TimeIntervalWindowOptions("10 s")).on_events(PaneHandler()))
    assert [[list(t) for t in r["tuples"]] for r in panes] == [[names] * 3]
    with pytest.raises(ColumnError, match="order_0"):
        before.lookback_window(10_000).pairs("left___krishiv_order_0 = 1")


@pytest.mark.parametrize("handler", [None, PaneHandler()])
@pytest.mark.parametrize("accumulation", ["accumulating", "discarding"])
def test_a_pane_goes_on_once_however_often_it_fires(handler: PaneHandler | None, accumulation: Any) -> None:
    """Panes of 10 that fire again for 10 more: 3 rows in [0, 10), of which two come late, and 2 in [10, 20)."""
    panes = stream_of(DDL).watermark("at", 0).time_interval_window(TimeIntervalWindowOptions("10 ms", discard_age="10 ms"))
    stated = panes.accumulation(accumulation).emit("final")
    n = count().alias("n")
    stage = stated.agg(n) if handler is None else stated.on_events(handler, aggs=[n])
    rows = [[1, 11], [5], [18], [9], [50]]
    for plan, wanted in (
        (stage.select("window_end", "n", "pane_timing"), [(10, 3, "final"), (20, 2, "final"), (60, 1, "final")]),
        (stage.tumbling_window(20).agg(sum("n"), count()).select("window_end", "sum_n", "count"), [(20, 5, 2), (60, 1, 1)]),
    ):
        driver, actual = Driver(plan), []
        for batch in rows:
            actual += driver.send([{"user": "a", "at": t, "amount": 1} for t in batch]).results.to_pylist()
            driver = driver.restarted()
        actual += driver.close().results.to_pylist()
        assert [tuple(row.values()) for row in actual] == wanted


def test_steps_over_results_are_the_end_of_a_plan_too() -> None:
    first = stream_of(DDL).watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count(), sum("amount"))
    having: ResultStream = first.filter("count > 1").with_column("mean", "sum_amount / count").drop("sum_amount")
    assert having.schema.names == ["user", "window_start", "window_end", "count", "mean"]
    driver = Driver(having.rename(user="who").select("who", "mean"))
    driver.send([{"user": "ab"[n % 2], "at": n, "amount": n} for n in range(3)])
    assert driver.close().results.to_pylist() == [{"who": "a", "mean": 1.0}]


def test_steps_over_results_that_change_keep_their_op() -> None:
    log = stream_of(DDL).watermark("at", 0).key_by("user").tumbling_window(1_000).trigger(Trigger.on_every_element())
    driver = Driver(log.emit("retractions").agg(count()).select("user", "count").filter("count > 1"))
    out = driver.send([{"user": "a", "at": n, "amount": n} for n in range(3)]).results.to_pylist()
    assert [(r["op"], r["count"]) for r in out] == [("+U", 2), ("-U", 2), ("+U", 3)]


def test_rows_keep_their_own_time_whether_it_is_shown_or_not() -> None:
    rows = stream_of(DDL).watermark("at", 0).drop_duplicates("user", within=1_000)
    sent = [{"user": "ab"[n % 2], "at": n * 400, "amount": n} for n in range(12)]
    for shown, wanted in (
        (rows.select("user"), [{"user": "a"}, {"user": "b"}] * 3),
        (rows.select("user", "at").filter("at > 3000"), [{"user": "a", "at": 3_200}, {"user": "b", "at": 3_600}]),
        (rows.drop("at", "user"), [{"amount": n} for n in (0, 1, 4, 5, 8, 9)]),
        (rows.with_column("later", "at + 1").select("later"), [{"later": n * 400 + 1} for n in (0, 1, 4, 5, 8, 9)]),
    ):
        actual = Driver(shown).send(sent).results.to_pylist()
        assert sorted(map(str, actual)) == sorted(map(str, wanted)) and shown.schema.names == list(wanted[0])
    counts = rows.select("user").tumbling_window(2_000).agg(count())
    driver = Driver(counts)
    assert [r["count"] for d in (driver.send(sent), driver.close()) for r in d.results.to_pylist()] == [3, 3]
    again = rows.key_by("user").lookback_window(5_000, with_row=True).agg(count())
    assert again.schema.names == ["user", "window_start", "window_end", "count", "at", "amount"]
    results = stream_of(DDL).watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count())
    assert results.drop_duplicates("user", within=5).schema.names == results.schema.names, "nobody has named window_time"


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The counts of a batch, doubled."""
    counts = pa.array([2 * n for n in batch["count"].to_pylist()], pa.int64())
    return batch.set_column(batch.schema.get_field_index("count"), "count", counts)


def test_a_mapping_function_between_stages_sees_what_is_shown() -> None:
    first = stream_of(DDL).watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count())
    for stage in (first.map_batches(doubled), first.drop("window_start").map_batches(doubled)):
        driver = Driver(stage.key_by("user").tumbling_window(5_000).agg(sum("count").alias("n")))
        driver.send([{"user": "a", "at": n * 1_000, "amount": n} for n in range(5)])
        assert driver.close().results["n"].to_pylist() == [10]
    driver = Driver(first.map_batches(lambda batch: batch.slice(1)).tumbling_window(5_000).agg(count()))
    driver.send([{"user": "a", "at": 0, "amount": 1}])
    with pytest.raises(SchemaError, match="one row for each row"):
        driver.close()


def test_what_cannot_be_followed_says_so() -> None:
    keyed = stream_of(DDL).watermark("at", 0).key_by("user")
    counted = keyed.count_window(2).agg(count())
    next_steps = (
        lambda: counted.key_by("user").tumbling_window(5),  # a total without a window may follow
        lambda: counted.tumbling_window(5),
        lambda: counted.watermark("window_time", 0),
    )
    for call in next_steps:
        with pytest.raises(PlanError, match="without event time"):
            call()
    with pytest.raises(PlanError, match="results that change"):
        keyed.tumbling_window(5).agg(count()).emit("updates").key_by("user")
    with pytest.raises(PlanError, match="results that change"):  # other windows follow (§16.6)
        keyed.tumbling_window(5).agg(count()).emit("retractions").key_by("user").count_window(5).agg(count())
    results = keyed.tumbling_window(5).agg(count())
    with pytest.raises(PlanError, match="have the event time of their stage"):
        results.watermark("count", 5)
    with pytest.raises(OrderError, match="no window follows"):
        results.filter("count > 1").allowed_lateness(5).explain()
    with pytest.raises(OrderError, match=r"window_time is not known .*number of rows"):
        counted.filter(col("window_time") > 5).explain()
    with pytest.raises(PlanError, match="library's own"):
        results.with_column("window_time", "1")
    assert "window_time" in results.filter("window_time > 5").tumbling_window(10).agg(max("count")).explain()
    assert Driver(counted.filter("count > 1")).send([{"user": "a", "at": 1, "amount": 1}] * 2).results.num_rows == 1


def test_a_mapping_of_results_that_gives_other_columns_is_reported_the_ones_it_declared() -> None:
    """Columns that go along unseen do not concern its author."""
    counts = stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count())
    other = counts.map_batches(lambda batch: batch, "n bigint")
    for stream in (other, other.tumbling_window(20).agg(count())):
        driver = Driver(stream)
        with pytest.raises(SchemaError, match=r"map_batches\(.*does not return what it declares") as caught:
            driver.send([{"at": 1}, {"at": 50}])
        assert "'n'" in str(caught.value) and "krishiv_order" not in str(caught.value)
