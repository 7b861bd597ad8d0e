"""Triggers and accumulation of session windows, against the plain reference and by hand (SEMANTICS §5.1 to §5.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests import reference as ref
from tests.kernels.firing.rules import facts_of
from tests.kernels.fixed.fixed_runs import LISTS, Line, folded, lines_of, sets, values, without_repeats


@dataclass(frozen=True)
class Query:
    """A session query both sides understand; times in ms."""

    gap: int | None = 5
    touch: Any = "separate"
    cap: int | None = None
    lag: int = 0
    lateness: int = 0
    late_rule: Any = "event"
    emit: Any = "updates"
    trigger: kv.Trigger = field(default_factory=kv.Trigger.on_every_element)
    accumulation: Any = "accumulating"

    def stream(self) -> ResultStream:
        """The query in krishiv_py, with pane columns."""
        keyed = stream_of("key string, at bigint, value bigint, gap bigint").watermark("at", self.lag).key_by("key")
        keyed = keyed.allowed_lateness(self.lateness).late_rule(self.late_rule).emit(self.emit).trigger(self.trigger)
        keyed = keyed.accumulation(self.accumulation).with_pane()
        gap = "gap" if self.gap is None else self.gap
        windowed = keyed.session_window(gap, touch=self.touch, max_duration=self.cap)
        return windowed.agg(*LISTS, kv.count("value").alias("count"), kv.sum("value"))

    def reference(self) -> ref.Config:
        """The query for the reference."""
        early, late = self.trigger.early, self.trigger.late
        assert not isinstance(early, kv.Interval) and late != "watermark"
        requested, waiting = facts_of(self.trigger), self.trigger._period_us is not None
        return ref.Config(
            window=ref.Session(self.gap or 0, self.cap, self.touch),
            watermark=ref.WatermarkSpec(lag=self.lag),
            allowed_lateness=self.lateness,
            late_rule=self.late_rule,
            emit=self.emit,
            trigger=ref.Trigger(
                early if isinstance(early, int) else None, self.trigger.on_time, late, self.accumulation, requested, waiting
            ),
        )


@dataclass
class Log:
    """Lines of every step, rows refused in it, and how often the session of every line had fired."""

    lines: list[list[Line]]
    late: Counter[tuple[int, str | None, int | None, int | None]]
    indexes: list[int]


def driven(query: Query, steps: Sequence[ref.Step], restart_at: int | None = None) -> Log:
    """What the driver writes."""
    driver = Driver(query.stream())
    log = Log([], Counter(), [])
    for number, step in enumerate(steps):
        if number == restart_at:
            driver = driver.restarted()
        if isinstance(step, ref.Batch):
            out = driver.send([{"key": r.key, "at": r.t, "value": r.value, "gap": r.gap} for r in step.rows])
        elif isinstance(step, ref.Advance):
            out = driver.advance_watermark(step.to)
        else:
            out = driver.close()
        log.lines.append(lines_of(out.results))
        log.late.update((number, r["key"], r["at"], r["value"]) for r in out.late.to_pylist())
        log.indexes += out.results["pane_index"].to_pylist()
        for row in out.results.to_pylist():
            assert (row["count"], row["sum_value"]) == (len(row["values"]), sum(row["values"]) if row["values"] else None)
    assert driver.open_windows == 0 or not isinstance(steps[-1], ref.Close)
    return log


def as_gapped(query: Query, steps: Sequence[ref.Step]) -> list[ref.Step]:
    """Steps for the reference, which takes the gap of a row wherever it has one."""
    if query.gap is None:
        return list(steps)
    return [ref.Batch([replace(r, gap=None) for r in s.rows]) if isinstance(s, ref.Batch) else s for s in steps]


def expected(query: Query, steps: Sequence[ref.Step]) -> Log:
    """What the reference writes."""
    observed = ref.Reference(query.reference()).run(as_gapped(query, steps))
    log = Log([[] for _ in steps], Counter(), [])
    for e in observed.emissions:
        assert e.result.key is None or isinstance(e.result.key, str)
        op = e.op if query.emit == "retractions" else "+I"  # other logs have no column for it
        log.lines[e.step].append((op, e.pane, e.result.key, e.result.start, e.result.end, e.result.listed))
    log.late.update((late.step, late.row.key, late.row.t, late.row.value) for late in observed.late)  # type: ignore[misc]
    return log


keys = st.sampled_from(["a", "b", None])
rows = st.builds(ref.Row, key=keys, t=st.integers(-20, 40), value=values, gap=st.sampled_from([1, 3, 6, 15]))
batches = st.lists(rows, max_size=8).map(ref.Batch)
moves = st.integers(-20, 60).map(ref.Advance)
given_steps = st.lists(st.one_of(batches, batches, moves), max_size=10).map(lambda s: [*s, ref.Close()])
triggers = st.builds(
    kv.Trigger,
    early=st.sampled_from([None, "each", 2, 3, 4]),
    on_time=st.booleans(),
    late=st.sampled_from([None, "batch", "each", 2]),
).filter(lambda t: t.on_time or t.late != "batch")  # the reference then writes at the next batch even if no row came
queries = st.builds(
    Query,
    gap=st.sampled_from([2, 5, 12, None]),
    touch=st.sampled_from(["separate", "merge"]),
    cap=st.sampled_from([None, None, 4, 9, 20]),
    lag=st.integers(0, 15),
    lateness=st.sampled_from([0, 0, 5, 20]),
    late_rule=st.sampled_from(["event", "window"]),
    emit=st.sampled_from(["updates", "retractions"]),
    trigger=triggers,
    accumulation=st.sampled_from(["accumulating", "discarding"]),
)


def compared(query: Query, lines: list[list[Line]]) -> list[Counter[Line]]:
    """The lines of every step; only where whole results are written again may an on-time repeat be left out."""
    return sets(lines if query.accumulation == "discarding" else without_repeats(lines))


@given(queries, given_steps)
def test_every_step_writes_what_the_reference_writes(query: Query, steps: list[ref.Step]) -> None:
    seen, want = driven(query, steps), expected(query, steps)
    assert compared(query, seen.lines) == compared(query, want.lines)
    assert seen.late == want.late


@given(queries, given_steps, st.integers(0, 9))
def test_a_restart_changes_nothing(query: Query, steps: list[ref.Step], at: int) -> None:
    assert driven(query, steps, restart_at=at) == driven(query, steps)


@given(queries, st.lists(rows, max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_row_by_row_triggers_do_not_depend_on_batches(query: Query, given_rows: list[ref.Row], cuts: list[int]) -> None:
    query = replace(query, lag=1000)
    edges = sorted({0, *cuts, len(given_rows)})
    batched: list[ref.Step] = [ref.Batch(given_rows[a:b]) for a, b in pairwise(edges)]
    single: list[ref.Step] = [ref.Batch([row]) for row in given_rows]
    first, second = (driven(query, [*some, ref.Close()]) for some in (batched, single))
    assert [line for lines in first.lines for line in lines] == [line for lines in second.lines for line in lines]
    assert first.indexes == second.indexes


@given(queries, given_steps)
def test_a_folded_log_of_retractions_is_the_final_result(query: Query, steps: list[ref.Step]) -> None:
    trigger = kv.Trigger(query.trigger.early, True, query.trigger.late if query.lateness == 0 else "each")
    query = replace(query, emit="retractions", accumulation="accumulating", trigger=trigger, cap=None)
    closed = ref.Reference(query.reference()).run(as_gapped(query, steps)).closed
    assert folded(driven(query, steps).lines) == {(r.key, r.start, r.end): r.listed for r in closed}


def log_lines(query: Query, *steps: ref.Step) -> list[list[Line]]:
    """What every step writes about the one key "a"."""
    return driven(query, steps).lines


def came(*times: int) -> ref.Batch:
    """Rows of one key whose values are their times."""
    return ref.Batch([ref.Row("a", t, t) for t in times])


def test_merging_sessions_add_up_what_they_had_counted() -> None:
    """::

    gap 5, on_count(4)   0   4     10
                         |---|----)|----)    two rows and one, none shown
                                 8
                                 |----)      the fourth joins them all
    """
    log = log_lines(Query(lag=100, touch="merge", trigger=kv.Trigger.on_count(4)), came(0, 4, 10), came(8))
    assert log == [[], [("+I", "early", "a", 0, 15, (0, 4, 8, 10))]]


def test_a_merged_away_session_is_withdrawn() -> None:
    log = log_lines(Query(lag=100, emit="retractions"), came(0, 6), came(3))
    assert log == [
        [("+I", "early", "a", 0, 5, (0,)), ("+I", "early", "a", 6, 11, (6,))],
        [("-D", "early", "a", 0, 5, (0,)), ("-D", "early", "a", 6, 11, (6,)), ("+I", "early", "a", 0, 11, (0, 3, 6))],
    ]


def test_discarding_tells_only_what_is_new() -> None:
    query = Query(lag=100, trigger=kv.Trigger.on_count(2), accumulation="discarding")
    assert log_lines(query, came(0, 1, 2), came(3, 4), ref.Close()) == [
        [("+I", "early", "a", 0, 6, (0, 1))],
        [("+I", "early", "a", 0, 8, (2, 3))],
        [("+I", "on_time", "a", 0, 9, (4,))],
    ]


def test_a_session_may_have_no_firing_on_time() -> None:
    query = Query(lateness=20, late_rule="window", trigger=kv.Trigger(on_time=False, late="each"))
    assert log_lines(query, came(0, 10), came(11), came(1)) == [[], [], [("+I", "late", "a", 0, 6, (0, 1))]]


def test_late_rows_may_wait_for_the_watermark_to_grow() -> None:
    query = Query(lateness=20, trigger=kv.Trigger(late="watermark"))
    assert log_lines(query, came(0, 10), came(1), came(2), came(12)) == [
        [("+I", "on_time", "a", 0, 5, (0,))],
        [],
        [],
        [("+I", "late", "a", 0, 7, (0, 1, 2))],
    ]


def test_intervals_fire_sessions_that_changed_also_without_rows() -> None:
    clock = ManualClock()
    query = Query(lag=1000, trigger=kv.Trigger.on_interval("10 s"))
    driver = Driver(query.stream(), clock=clock)
    row = {"key": "a", "at": 1, "value": 1}

    def shown(rows: list[dict[str, Any]] | None = None) -> list[Line]:
        return lines_of((driver.tick() if rows is None else driver.send(rows)).results)

    assert shown([row, {"key": "b", "at": 2, "value": 2}]) == []
    clock.advance("9 s")
    assert shown([{**row, "at": 3, "value": 3}]) == []
    driver = driver.restarted()
    clock.advance("1 s")
    assert shown() == [("+I", "early", "b", 2, 7, (2,)), ("+I", "early", "a", 1, 8, (1, 3))]
    clock.advance("30 s")
    assert shown() == []  # nothing changed
    assert shown([{**row, "at": 40, "value": 40}]) == [("+I", "early", "a", 40, 45, (40,))]  # only what changed
    assert sets([lines_of(driver.close().results)]) == sets(
        [[("+I", "on_time", "b", 2, 7, (2,)), ("+I", "on_time", "a", 1, 8, (1, 3)), ("+I", "on_time", "a", 40, 45, (40,))]]
    )


def test_sessions_of_all_rows_together_need_no_key() -> None:
    stream = stream_of("at bigint").watermark("at", 100).trigger(kv.Trigger.on_count(2)).emit("retractions").with_pane()
    driver = Driver(stream.session_window(5).agg(kv.count()))
    first = driver.send([{"at": t} for t in (0, 1, 2)]).results.to_pylist()
    assert [(r["count"], r["pane_index"]) for r in first] == [(2, 0)]
    last = driver.restarted().close().results.to_pylist()
    assert [(r["op"], r["count"], r["pane_timing"], r["pane_index"]) for r in last] == [
        ("-D", 2, "on_time", 1),
        ("+I", 3, "on_time", 1),
    ]


def test_what_is_withdrawn_is_what_was_written_to_the_last_bit() -> None:
    values = [0.1, 1e16, -1e16, 0.3, 0.7, 1e-9] * 10
    stream = stream_of("at bigint, x double").watermark("at", 1000).trigger(kv.Trigger.on_count(7)).emit("retractions")
    logs = []
    for width in (1, 11, 60):
        driver = Driver(stream.session_window(10).agg(kv.sum("x").alias("s"), kv.stddev("x"), kv.percentile("x")))
        log = []
        for i in range(0, len(values), width):
            log += driver.send([{"at": 1, "x": x} for x in values[i : i + width]]).results.to_pylist()
            driver = driver.restarted()
        logs.append(log)
        standing = None
        for row in log:
            op = row.pop("op")
            assert op == "+I" or (op == "+U" and standing is None) or row == standing
            standing = None if op == "-U" else row
    assert logs[0] == logs[1] == logs[2]


def test_the_plan_does_not_warn_of_triggers_that_work() -> None:
    assert "do not follow" not in Query(trigger=kv.Trigger.on_count(2)).stream().explain()
