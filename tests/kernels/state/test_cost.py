"""What a batch costs does not depend on what is open: counts of store calls and of rows touched, not times."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import attrs
import pyarrow as pa
import pytest

from krishiv_py import (
    SlidingWindows,
    StateTtlConfig,
    TimeIntervalWindowOptions,
    Trigger,
    approx_count_distinct,
    col,
    collect_set,
    count,
    count_distinct,
    max,
    min,
    percentile,
    stddev,
    sum,
)
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.arrays import ranges
from krishiv_py.kernels.aggregates import base, selections
from krishiv_py.kernels.columns.layout import Layout
from krishiv_py.kernels.state.store import MemoryStore, SortedMap
from krishiv_py.kernels.windows.session.capped_log import Limits
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests.kernels.firing.rules import Rule

DAY = 86_400_000
KINDS: dict[str, Callable[[KeyedStream], Any]] = {
    "tumbling": lambda s: s.tumbling_window(DAY),
    "hopping": lambda s: s.hopping_window(DAY, DAY // 4),
    "session": lambda s: s.session_window(DAY),
    "session max_duration": lambda s: s.session_window(DAY, max_duration=3 * DAY),
    "session asked": lambda s: s.trigger(Trigger.when(Rule((1,) * 8, 2, 0))).session_window(DAY),
    "look-back": lambda s: s.lookback_window(1_000),
    "distinct": lambda s: s.windowed_by(SlidingWindows.of(1_000).grace(0)),
    "panes": lambda s: s.time_interval_window(TimeIntervalWindowOptions(interval_duration=DAY)),
    "count": lambda s: s.count_window(1_000),
    "TTL": lambda s: s.with_state_ttl(StateTtlConfig(DAY)).tumbling_window(DAY),
}
BATCHES, ROWS = 24, 10


@attrs.define
class CountingStore:
    """Counts what the state store of a cluster would be asked for."""

    inner: MemoryStore = attrs.field(factory=MemoryStore)
    calls: int = 0
    rows_read: int = 0
    rows_written: int = 0

    def get(self, name: str) -> pa.Table:
        table = self.inner.get(name)
        self.calls += 1
        self.rows_read += table.num_rows
        return table

    def put(self, name: str, table: pa.Table) -> None:
        self.calls += 1
        self.rows_written += table.num_rows
        self.inner.put(name, table)

    def delete(self, name: str) -> None:
        self.calls += 1
        self.inner.delete(name)


def cost(kind: str, open_keys: int) -> CountingStore:
    """What `BATCHES` small batches ask of the store when `open_keys` keys are open before."""
    windowed = KINDS[kind](stream_of("user bigint, at bigint, n bigint").watermark("at", 2 * DAY).key_by("user"))
    driver = Driver(windowed.agg(count(), sum("n")))
    users = list(range(open_keys))
    driver.send(pa.table({"user": users, "at": [10 * DAY + u % 997 for u in users], "n": users}))
    store = CountingStore(driver._store)
    driver._store = store  # type: ignore[assignment]
    for batch in range(BATCHES):
        moment = 10 * DAY + 1_000 + batch
        rows = [{"user": (batch * 7 + i) % 50, "at": moment, "n": 1} for i in range(ROWS)]
        assert driver.send(rows).results.num_rows == 0, "nothing is due: only what the batches bring may cost"
    return store


@pytest.mark.parametrize("clock", ["event", "processing"])
@pytest.mark.parametrize("open_keys", [500, 50_000])
def test_a_check_of_a_time_to_live_reads_the_keys_that_may_be_due(clock: Any, open_keys: int) -> None:
    """A check in each batch. All keys were touched at the begin, those of the batches in each of them."""
    now = ManualClock()
    keyed = (
        stream_of("user bigint, at bigint").watermark("at", 0).key_by("user").with_state_ttl(StateTtlConfig(1_600, clock=clock))
    )
    driver = Driver(keyed.tumbling_window(DAY).agg(count()), clock=now)
    driver.send(pa.table({"user": range(open_keys), "at": [10 * DAY] * open_keys}))
    store = driver._store = CountingStore(driver._store)  # type: ignore[assignment]
    for batch in range(1, 14):
        now.advance(100)
        driver.send([{"user": i, "at": 10 * DAY + 100 * batch} for i in range(ROWS)])
    assert store.rows_read <= 20 * 13 * ROWS
    assert driver.counters["ttl_dropped"] == 0
    for batch in range(14, 20):
        now.advance(100)
        driver.send([{"user": i, "at": 10 * DAY + 100 * batch} for i in range(ROWS)])
    assert driver.counters["ttl_dropped"] == open_keys - ROWS


OVERLAP: dict[str, Callable[[KeyedStream], Any]] = {
    "tumbling": lambda s: s.tumbling_window(1_000),
    "hopping": lambda s: s.hopping_window(5_000, 1_000),
    "updates": lambda s: s.emit("updates").allowed_lateness(3_000).hopping_window(5_000, 1_000),
    "discarding": lambda s: s.emit("updates").accumulation("discarding").hopping_window(5_000, 1_000),
    "every element": lambda s: s.trigger(Trigger.on_every_element()).hopping_window(5_000, 1_000),
    "interval": lambda s: s.trigger(Trigger.on_interval(DAY)).hopping_window(5_000, 1_000),
    "asked": lambda s: s.trigger(Trigger.when(Rule((0,) * 8, 2, 0))).hopping_window(5_000, 1_000),
    "panes": lambda s: s.time_interval_window(TimeIntervalWindowOptions(interval_duration=5.0, creation_period=1.0)),
    "TTL": lambda s: s.with_state_ttl(StateTtlConfig(DAY)).hopping_window(5_000, 1_000),
}


@pytest.mark.one_in(13)
@pytest.mark.parametrize("kind", OVERLAP)
@pytest.mark.parametrize("open_slices", [100, 100_000])
def test_a_row_of_an_open_window_visits_no_other(kind: str, open_slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = stream_of("user bigint, at bigint").watermark("at", 1_000 * DAY).key_by("user")
    driver = Driver(OVERLAP[kind](keyed).agg(count()), idle_batches=False)
    if kind in ("every element", "interval", "asked") and open_slices > 100:  # these hold each window apart: a slower begin
        open_slices = 20_000
    driver.send(pa.table({"user": [1] * open_slices, "at": [10 * DAY + 1_000 * i for i in range(open_slices)]}))
    visited = []
    between = SortedMap.between

    def counting(self: Any, low: Any, high: Any, most: int | None = None) -> Any:
        actual = between(self, low, high, most)
        visited.append(len(actual))
        return actual

    def refused(self: Any) -> Any:
        raise AssertionError("all open windows were gone through")

    monkeypatch.setattr(SortedMap, "between", counting)
    monkeypatch.setattr(SortedMap, "__iter__", refused)
    monkeypatch.setattr(SortedMap, "values", refused)
    driver.send([{"user": 1, "at": 10 * DAY + 1_000 * (open_slices // 2)}])
    assert len(visited) <= 12 and all(n <= 4 for n in visited)
    visited.clear()
    driver.send([{"user": 1, "at": 10 * DAY - 2_000}])  # windows and slices that are new
    assert len(visited) <= 12 and all(n <= 8 for n in visited)
    visited.clear()
    driver.advance_watermark(10 * DAY + 1_500)  # so few are due
    driver.send([])
    assert len(visited) <= 40 and all(n <= 12 for n in visited)


LOGS_BY_KEY = ("session asked", "session max_duration", "count")
"""These look keys up in pieces of 32 768 rows, by bisection: pieces are opened, their rows not gone through."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_costs_what_it_brings(kind: str) -> None:
    few, many = cost(kind, 500), cost(kind, 50_000)
    brought = BATCHES * ROWS
    slices = 4 if kind == "hopping" else 1
    assert few.calls <= 12 * BATCHES * slices
    assert few.rows_written <= 6 * brought
    assert many.rows_written == few.rows_written
    if kind in LOGS_BY_KEY:
        assert many.calls <= few.calls + 2 * BATCHES, "one more piece for each of the logs a batch looks into"
        return
    assert many.calls == few.calls
    assert many.rows_read == few.rows_read <= 6 * brought


@pytest.mark.parametrize("where", ["ahead", "behind"])
@pytest.mark.parametrize("emit", ["final", "updates", "retractions"])
def test_a_row_of_a_session_with_a_longest_duration_reads_no_others_of_its_key(
    where: str, emit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key with 20 000 open rows, all ahead of the watermark or all behind it: a row in order walks itself and one head."""
    open_rows = 20_000
    lag = 10 * open_rows if where == "ahead" else 10
    keyed = stream_of("user bigint, at bigint, n bigint").watermark("at", lag).key_by("user").emit(emit)
    driver = Driver(keyed.session_window(1_000, max_duration=DAY).agg(count(), sum("n")), idle_batches=False)
    times = [10 * DAY + i for i in range(open_rows)]
    driver.send(pa.table({"user": [1] * open_rows, "at": times, "n": [1] * open_rows}))
    driver.send([])
    walked: list[int] = []
    walk = Limits.sessions

    def walking(self: Limits, groups: Any, *args: Any) -> Any:
        walked.append(len(groups))
        return walk(self, groups, *args)

    monkeypatch.setattr(Limits, "sessions", walking)
    for batch in range(BATCHES):
        driver.send([{"user": 1, "at": times[-1] + 1 + batch, "n": 1}])
    assert len(walked) <= BATCHES and builtins.max(walked) <= 2
    results = driver.close().results.to_pylist()
    assert [row["count"] for row in results] == [open_rows + BATCHES]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("emit", ["updates", "retractions"])
@pytest.mark.parametrize("accumulation", ["accumulating", "discarding"])
@pytest.mark.parametrize("trigger", [Trigger.on_every_element(), Trigger.on_count(3)])
def test_a_row_of_a_session_costs_the_same_however_long_it_is(emit: Any, accumulation: Any, trigger: Trigger) -> None:
    """One session, fired row by row: every 16th row comes from the past and bridges."""
    keyed = stream_of("user bigint, at bigint, n bigint").watermark("at", 10 * DAY).key_by("user").trigger(trigger)
    driver = Driver(keyed.emit(emit).accumulation(accumulation).session_window(2).agg(count(), sum("n")))
    costs = []
    for batch in range(30):
        store = CountingStore(driver._store.inner if batch else driver._store)  # type: ignore[attr-defined]
        driver._store = store  # type: ignore[assignment]
        times = [batch * 64 + i for i in range(64)]
        late = times[8::16]
        for t in late:
            times.remove(t)
        driver.send([{"user": 1, "at": t, "n": 1} for t in times + late])
        costs.append((store.calls, store.rows_read + store.rows_written))
    assert sorted(costs[10:])[-1] <= sorted(costs[:10])[-1]


def test_aggregates_of_a_session_are_cumulated_and_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    touched = 0
    create, merge = Layout.create, Layout.merge

    def creating(self: Layout, rows: pa.Table, ids: Any, n: int) -> list[pa.Array]:
        nonlocal touched
        touched += rows.num_rows
        return create(self, rows, ids, n)

    def merging(self: Layout, partials: pa.Table, ids: Any, n: int) -> list[pa.Array]:
        nonlocal touched
        touched += partials.num_rows
        return merge(self, partials, ids, n)

    monkeypatch.setattr(Layout, "create", creating)
    monkeypatch.setattr(Layout, "merge", merging)
    keyed = stream_of("at bigint, n bigint").watermark("at", DAY).trigger(Trigger.on_every_element())
    driver = Driver(keyed.session_window(10).agg(count(), sum("n")))
    rows = 2_000
    results = driver.send(pa.table({"at": list(range(rows)), "n": [1] * rows})).results
    assert results["count"].to_pylist() == list(range(1, rows + 1))
    assert touched <= 4 * rows


FIRED_ROW_BY_ROW: dict[str, Callable[[KeyedStream], Any]] = {
    **{kind: KINDS[kind] for kind in ("tumbling", "session", "session max_duration")},
    "count": lambda s: s.count_window(5_000),
}


@pytest.mark.parametrize("emit", ["updates", "retractions"])
@pytest.mark.parametrize("agg", [count_distinct("n"), percentile("n")], ids=str)
@pytest.mark.parametrize("kind", FIRED_ROW_BY_ROW)
def test_results_of_every_row_do_not_go_through_all_before_it(
    kind: str, agg: AggCall, emit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 rows of one window, of 600 values: 180 000 values met."""
    touched = 0
    made = base.lists

    def listing(values: pa.Array, *args: Any) -> pa.Array:
        nonlocal touched
        touched += len(values)
        return made(values, *args)

    monkeypatch.setattr(selections, "lists", listing)
    keyed = stream_of("at bigint, n bigint").watermark("at", DAY).trigger(Trigger.on_every_element()).emit(emit)
    driver = Driver(FIRED_ROW_BY_ROW[kind](keyed).agg(agg))
    rows = 600
    results = driver.send(pa.table({"at": list(range(rows)), "n": list(range(rows))})).results
    assert results.num_rows == (rows if emit == "updates" else 2 * rows - 1)
    assert touched <= 4 * rows


@pytest.mark.parametrize("late", [0, 7])
def test_rows_of_a_session_with_a_longest_duration_come_together(late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 000 rows in order of time; `late` more come before the first, so each of them moves all sessions."""
    walks = 0
    walk = Limits.sessions

    def walking(self: Limits, *args: Any) -> Any:
        nonlocal walks
        walks += 1
        return walk(self, *args)

    monkeypatch.setattr(Limits, "sessions", walking)
    keyed = stream_of("at bigint").watermark("at", DAY).trigger(Trigger.on_every_element())
    driver = Driver(keyed.session_window(10, max_duration=50).agg(count()))
    times = list(range(100, 2_100))
    for i in range(late):
        times.insert(250 * (i + 1), 99 - i)
    results = driver.send(pa.table({"at": times})).results
    assert results.num_rows == 2_000 + late
    assert walks <= 3 + 2 * late


@pytest.mark.parametrize(
    "agg",
    [
        count_distinct("n"),
        approx_count_distinct("n"),
        collect_set("n"),
        percentile("n"),
        stddev("n"),
        min("n"),
        sum(col("n").cast(pa.decimal128(25, 2))),
        max(col("n").cast("string")),
    ],
    ids=str,
)
@pytest.mark.parametrize("window", ["look-back", "distinct"])
def test_overlapping_windows_of_many_rows_are_not_gone_through_one_by_one(
    window: str, agg: AggCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 rows in one window of each, of 4 values: 180 000 rows met."""
    touched = 0
    expand = ranges.expand

    def expanding(low: Any, high: Any) -> Any:
        nonlocal touched
        actual = expand(low, high)
        touched += len(actual[0])
        return actual

    monkeypatch.setattr(base, "expand", expanding)
    monkeypatch.setattr(selections, "expand", expanding)
    keyed = stream_of("at bigint, n bigint").watermark("at", DAY)
    windowed = keyed.lookback_window(DAY) if window == "look-back" else keyed.windowed_by(SlidingWindows.of(DAY))
    driver = Driver(windowed.agg(agg))
    rows = 600
    driver.send(pa.table({"at": list(range(rows)), "n": [i % 4 for i in range(rows)]}))
    assert driver.close().results.num_rows == (rows if window == "look-back" else 2 * rows - 1)
    assert touched <= 64 * 70 + 4 * 2 * rows, "rows of short windows, and what collect_set gives"
