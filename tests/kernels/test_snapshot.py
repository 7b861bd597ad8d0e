"""What is open as early results (SEMANTICS §10): as the end of input would give it, and nothing is different afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.errors import PlanError
from krishiv_py.sql import SqlContext
from krishiv_py.testing import Driver, stream_of
from tests.kernels.ranged.per_row import Plan, plans
from tests.kernels.ranged.test_lookback import rows_of

AGGS = [kv.count(), kv.sum("value"), kv.collect_list("id"), kv.min("value")]
KINDS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.tumbling_window(10),
    "tumbling, on_count": lambda s: s.trigger(kv.Trigger.on_count(3)).tumbling_window(10),
    "tumbling, updates": lambda s: s.allowed_lateness(6).tumbling_window(10),
    "tumbling, TTL": lambda s: s.with_state_ttl(kv.StateTtlConfig(50)).tumbling_window(10),
    "hopping, final": lambda s: s.allowed_lateness(6).emit("final").hopping_window(10, 3),
    "session": lambda s: s.session_window(4),
    "session, window rule": lambda s: s.late_rule("window").session_window(4),
    "session, max_duration": lambda s: s.session_window(4, max_duration=9),
    "look-back": lambda s: s.allowed_lateness(6).lookback_window(5, two_sided=True, with_row=False),
    "look-back on arrival": lambda s: s.lookback_window(5, emit="arrival"),
    "distinct": lambda s: s.windowed_by(kv.SlidingWindows.of(5)),
    "count": lambda s: s.count_window(4),
    "panes": lambda s: s.emit("final").time_interval_window(kv.TimeIntervalWindowOptions(10)),
}
SEVEN = st.integers(0, 7)


def output(table: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(map(repr, r.values())) for r in table.to_pylist())


def shown(kind: str, pane: bool = True) -> Any:
    keyed = stream_of("id bigint, key string, at bigint, value bigint").watermark("at", 3).key_by("key")
    return KINDS[kind](keyed.with_pane() if pane else keyed).agg(AGGS)


@given(plan=plans(rows=st.integers(0, 40), batches=st.integers(1, 5)), kind=st.sampled_from(sorted(KINDS)), at=SEVEN)
def test_a_snapshot_is_what_the_end_would_give_and_changes_nothing(plan: Plan, kind: str, at: int) -> None:
    batches = rows_of(plan)
    seen, plain = Driver(shown(kind)), Driver(shown(kind))
    for number, batch in enumerate(batches):
        assert output(seen.send(batch).results) == output(plain.send(batch).results)
        if number == at % len(batches):
            before, last = seen.watermark_us, seen.restarted().close().results
            columns = [n for n in last.column_names if not n.startswith("pane_")]
            out = seen.snapshot()
            assert set(out.results["pane_timing"].to_pylist()) <= {"early"}
            assert set(out.results["pane_index"].to_pylist()) <= {None}
            assert output(out.results.select(columns)) == output(last.select(columns))
            assert (out.watermark_us, out.late.num_rows) == (before, 0)
            seen = seen.restarted() if at % 2 else seen
    assert output(seen.close().results) == output(plain.close().results)
    assert seen.counters == plain.counters


def chains(shape: str) -> Any:
    """Plans of several stages; values of stage 2 follow from whole windows of stage 1."""
    rows = stream_of("id bigint, key string, at bigint, value bigint").watermark("at", 3)
    first: Any = rows.key_by("key").tumbling_window(5).agg(kv.sum("value").alias("v"), kv.count().alias("n"))
    if shape == "deduplicated":
        first = rows.drop_duplicates("id", within=20).key_by("key").tumbling_window(5).agg(kv.sum("value").alias("v"))
    if shape == "sessions":
        first = rows.key_by("key").session_window(4).agg(kv.sum("value").alias("v"))
    if shape == "having":
        first = first.filter("n > 1")
    second = first.key_by().with_pane().tumbling_window(15).agg(kv.count(), kv.sum("v"), kv.collect_list("key"))
    if shape == "three":
        third = first.key_by().tumbling_window(15).agg(kv.sum("v").alias("v"))
        return [third.key_by().with_pane().hopping_window(30, 15).agg(kv.count(), kv.sum("v")).to(kv.MemorySink(), name="a")]
    actual = [second.to(kv.MemorySink(), name="a")]
    if shape == "two outputs":
        actual.append(first.filter("v is not null").to(kv.MemorySink(), name="b"))
        actual.append(rows.key_by("key").with_pane().hopping_window(9, 3).agg(kv.count()).to(kv.MemorySink(), name="c"))
    return actual


SHAPES = ("plain", "deduplicated", "sessions", "having", "three", "two outputs")


@pytest.mark.filterwarnings("ignore:the early results of a snapshot")
@given(plan=plans(rows=st.integers(0, 40), batches=st.integers(1, 5)), shape=st.sampled_from(SHAPES), at=SEVEN)
def test_a_snapshot_of_several_stages_is_what_the_end_would_give(plan: Plan, shape: str, at: int) -> None:
    batches = rows_of(plan)
    seen, plain = Driver(chains(shape)), Driver(chains(shape))
    for number, batch in enumerate(batches):
        assert outputs(seen.send(batch)) == outputs(plain.send(batch))
        if number == at % len(batches):
            before, last = seen.progress, seen.restarted().close()
            out = seen.snapshot()
            for name, table in out.by_output.items():
                columns = [n for n in table.column_names if not n.startswith("pane_")]
                assert output(table.select(columns)) == output(last.by_output[name].select(columns))
                timing = "pane_timing" in table.column_names
                assert not timing or set(table["pane_timing"].to_pylist()) <= {"early"}
            assert (seen.progress.watermark_us, seen.progress.counters) == (before.watermark_us, before.counters)
            assert not any(late.num_rows for late in out.late_by_stage.values())
            seen = seen.restarted() if at % 2 else seen
    assert outputs(seen.close()) == outputs(plain.close())
    assert seen.progress.counters == plain.progress.counters


SECOND: dict[str, Callable[[Any], Any]] = {
    "window rule": lambda first: first.tumbling_window(100).late_rule("window").agg(kv.sum("n")),
    "sessions by the window rule": lambda first: first.session_window(100).late_rule("window").agg(kv.sum("n")),
    "panes": lambda first: first.time_interval_window(kv.TimeIntervalWindowOptions(0.1)).agg(kv.sum("n")),
    "deduplication": lambda first: first.drop_duplicates("key", within=100),
    "window join": lambda first: first.window_join(keys(), window=kv.windows.tumbling(100)).late_rule("window"),
    "semi join": lambda first: first.interval_join(keys(), lower=-100, upper=100, how="semi"),
}


def keys() -> Any:
    return stream_of("key string, seen bigint").watermark("seen", 0).key_by("key")


@pytest.mark.filterwarnings("ignore:the early results of a snapshot")
@pytest.mark.parametrize("second", SECOND)
def test_early_results_enter_what_the_stage_behind_holds(second: str) -> None:
    counts = stream_of("key string, at bigint").watermark("at", 0).key_by("key").tumbling_window(10).agg(kv.count().alias("n"))
    driver = Driver(SECOND[second](counts.select("key", "n").key_by("key")))
    rows = [{"key": "a", "at": moment} for moment in (1, 2, 15, 25)]
    driver.send({"left": rows, "right": [{"key": "a", "seen": 20}]} if "join" in second else rows)
    ended, out = driver.restarted().close().results, driver.snapshot().results
    columns = [n for n in out.column_names if not n.startswith("pane_")]
    assert output(out.select(columns)) == output(ended.select(columns))


def outputs(out: Any) -> dict[str, list[tuple[Any, ...]]]:
    return {name: output(table) for name, table in out.by_output.items()}


def test_steps_behind_a_window_hold_for_its_early_results() -> None:
    counted = stream_of("at bigint").watermark("at", 0).with_pane().tumbling_window(10).agg(kv.count())
    rows = [{"at": 1}, {"at": 2}, {"at": 11}]
    for plan, expected in (
        (counted.filter("count > 1"), []),
        (counted.filter("pane_timing = 'early'").select("count"), [{"count": 1}]),
        (counted.with_column("twice", "count * 2").select("twice"), [{"twice": 2}]),
    ):
        driver = Driver(plan)
        driver.send(rows)
        assert driver.snapshot().results.to_pylist() == expected


def test_stages_that_cannot_be_shown_are_refused() -> None:
    rows = stream_of("id bigint, key string, at bigint").watermark("at", 3)
    once = rows.drop_duplicates("id", within=5).drop_duplicates("key", within=5)
    with pytest.raises(PlanError, match="no stage has any"):
        Driver(once).snapshot()
    per_key = rows.key_by("key").tumbling_window(5).agg(kv.count().alias("n")).key_by()
    with pytest.raises(PlanError, match="change log"):
        Driver(per_key.emit("retractions").tumbling_window(10).agg(kv.count())).snapshot()


def test_results_under_other_names_have_them_in_a_snapshot_too() -> None:
    context = SqlContext()
    context.register("events", stream_of("key string, at bigint"), event_time="at", lag=0)
    plan = context.sql(
        "SELECT count(*) AS n, tumble_end(at, INTERVAL '1 second') AS till, key AS k, count(*) AS again FROM events "
        "GROUP BY key, tumble_start(at, INTERVAL '1 second')"
    )
    assert plan is not None
    driver = Driver(plan)
    driver.send([{"key": "a", "at": 5}, {"key": "a", "at": 6}])
    with pytest.warns(UserWarning, match="pane_timing"):
        out = driver.snapshot()
    assert out.results.to_pylist() == [{"n": 2, "till": 1_000, "k": "a", "again": 2}]
    assert out.results.schema == plan.schema


def test_what_cannot_be_shown_is_refused_and_what_hides_it_warned_of() -> None:
    keyed = stream_of("id bigint, key string, at bigint, value bigint").watermark("at", 3).key_by("key")
    with pytest.raises(PlanError, match=r"(?s)change log.*Hint"):
        Driver(keyed.emit("retractions").tumbling_window(5).agg(kv.count())).snapshot()
    with pytest.raises(PlanError, match="no aggregates to show"):
        Driver(keyed.lookback_window(5).matches()).snapshot()
    with pytest.raises(PlanError, match="nothing is open"):
        kv.Batches.available_now(flush=True, snapshot=True)
    with pytest.raises(PlanError, match="snapshot"):
        kv.Batches.available_now(snapshot=1)  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="pane_timing"):
        Driver(shown("tumbling", pane=False)).snapshot()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Driver(shown("tumbling")).snapshot()
        Driver(shown("tumbling, updates", pane=False)).snapshot()


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
@pytest.mark.parametrize("ttl", [False, True])
def test_a_window_join_alone_shows_what_its_open_windows_would_give(how: Any, ttl: bool) -> None:
    left, right = stream_of("k string, at bigint, a bigint"), stream_of("k string, at bigint, b bigint")
    rows = left.watermark("at", 0).window_join(right.watermark("at", 0), "k", window=kv.windows.tumbling(10), how=how)
    rows = rows.with_state_ttl(kv.StateTtlConfig(1_000)) if ttl else rows
    driver = Driver(rows)
    for moment in (1, 12, 13):
        lefts, rights = ([{"k": k, "at": moment, of: moment} for k in keys] for keys, of in (("xy", "a"), ("xz", "b")))
        driver.send({"left": lefts, "right": rights})
    with pytest.warns(UserWarning, match="a sink of their own"):
        early = driver.snapshot().results
    assert early.num_rows and set(early["window_start"].to_pylist()) == {10}  # the first window is over and was given
    assert output(early) == output(driver.snapshot().results) == output(driver.close().results)
