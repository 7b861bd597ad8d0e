"""Overlapping windows that fire at their end hold their rows once, in slices (SEMANTICS §3.2, §3.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import compat
from krishiv_py.kernels.windows.fixed.triggered import TriggeredOperator
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests import reference as ref
from tests.examples import scaled
from tests.kernels.fixed.fixed_runs import Query, dicts, expected, lines_of, queries, sets, steps, without_repeats


class Handler(compat.PaneHandler):
    """A handler of whole panes."""

    def window_trigger(self, pane: compat.Pane) -> None:
        assert pane.data is not None


class Recorder(Handler):
    """One that sees single rows too."""

    def after_tuple_insertion(self, pane: compat.Pane, row: dict[str, Any]) -> None:
        assert pane.data is None


def panes(stream: Any) -> Any:
    return stream.time_interval_window(kv.TimeIntervalWindowOptions(interval_duration=10.0, creation_period=1.0))


SHAPES: dict[str, Callable[[Any], Any]] = {
    "collect_list": lambda s: panes(s).agg(kv.collect_list("n")),
    "percentile": lambda s: panes(s).agg(kv.percentile("n")),
    "handler": lambda s: panes(s).on_events(Handler()),
    "handler of rows": lambda s: panes(s).on_events(Recorder()),
    "updates": lambda s: s.emit("updates").with_pane().hopping_window(10_000, 1_000).agg(kv.collect_set("n")),
    "discarding": lambda s: (
        s.emit("updates").accumulation("discarding").hopping_window(10_000, 1_000).agg(kv.collect_list("n"))
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_tuples_are_kept_once_and_not_once_a_pane(shape: str) -> None:
    driver = Driver(SHAPES[shape](stream_of("k bigint, at bigint, n bigint").watermark("at", 20_000).key_by("k")))
    n = 20_000
    driver.send(pa.table({"k": [1] * n, "at": [100_000 + i for i in range(n)], "n": list(range(n))}))
    assert driver.progress.open_rows == 20
    assert driver.open_windows == 29
    assert 8 * n <= values_held(driver) <= 6 * 8 * n, "values and times, of handlers the whole row; ten panes hold each"
    assert driver.state().num_rows == 29
    results = driver.close().results
    assert results.num_rows == 29
    assert driver.progress.open_rows == driver.progress.state_bytes == driver.open_windows == 0


KEPT: dict[str, Callable[[Any], Any]] = {
    "collect_list": lambda s: discarded_later(s).agg(kv.collect_list("n")),
    "percentile": lambda s: discarded_later(s).agg(kv.percentile("n")),
    "handler": lambda s: discarded_later(s).on_events(Handler()),
    "once": lambda s: discarded_later(s.emit("final")).agg(kv.collect_list("n")),
    "updates": lambda s: (
        s.emit("updates").with_pane().allowed_lateness(20_000).hopping_window(10_000, 1_000).agg(kv.collect_set("n"))
    ),
    "retractions": lambda s: (
        s.emit("retractions").with_pane().allowed_lateness(20_000).hopping_window(10_000, 1_000).agg(kv.collect_list("n"))
    ),
}


def discarded_later(stream: Any) -> Any:
    return stream.time_interval_window(
        kv.TimeIntervalWindowOptions(interval_duration=10.0, creation_period=1.0, discard_age=20.0)
    )


def values_held(driver: Driver) -> int:
    """How many bytes the values of lists in state take."""
    return sum(
        column.combine_chunks().flatten().nbytes if pa.types.is_list(column.type) else 0
        for table in driver._stages[0].buckets[0].store.tables.values()
        for column in table.columns
    )


@pytest.mark.parametrize("shape", KEPT)
def test_windows_that_have_ended_hold_their_rows_once_until_the_last_is_over(shape: str) -> None:
    """Of two keys one gets late rows: its windows hold them, and what was in them, apart."""
    driver = Driver(KEPT[shape](stream_of("k bigint, at bigint, n bigint").watermark("at", 0).key_by("k")))
    n, begin = 20_000, 100_000
    rows = pa.table({"k": [1, 2] * n, "at": [begin + i // 2 for i in range(2 * n)], "n": list(range(2 * n))})
    given = [driver.send(rows), driver.advance_watermark(begin + n + 1)]  # up to here 20 of 29 windows have ended
    assert sum(one.results.num_rows for one in given) == (0 if shape == "once" else 40)
    once = 2 * 8 * n
    assert once <= values_held(driver) <= 6 * once, "values and times, of handlers the whole row; ten windows hold each"
    held = driver.state()
    assert held.num_rows == 58
    late = driver.send([{"k": 2, "at": begin + 4_500, "n": -1}])
    assert values_held(driver) <= 15 * once, "ten windows of one of two keys, and what was there before"
    then = driver.advance_watermark(begin + n + 2)
    changed = driver.state()
    assert late.results.num_rows + then.results.num_rows == {"once": 0, "retractions": 20}.get(shape, 10)
    one = pc.equal(changed["k"], 1)
    assert (
        changed.filter(one)
        .drop_columns(["last_update"])
        .equals(held.filter(pc.equal(held["k"], 1)).drop_columns(["last_update"]))
    )
    driver.close()
    assert driver.progress.open_rows == driver.progress.state_bytes == driver.open_windows == 0


def apart_when_ended(driver: Driver) -> None:
    """Let windows that have ended hold their rows apart, as earlier versions did."""
    for operator in operators(driver):
        operator.lends = False


@settings(max_examples=scaled(40))
@given(queries, steps, st.integers(1, 11))
def test_a_state_in_which_windows_that_have_ended_hold_their_own_goes_on(
    query: Query, given_steps: list[ref.Step], at: int
) -> None:
    driver = Driver(query.stream())
    apart_when_ended(driver)
    seen = []
    for number, step in enumerate(given_steps):
        if number == at:
            driver = driver.restarted()
        if isinstance(step, ref.Batch):
            actual = driver.send(dicts(step.rows))
        else:
            actual = driver.advance_watermark(step.to) if isinstance(step, ref.Advance) else driver.close()
        seen.append(lines_of(actual.results))
    assert sets(without_repeats(seen)) == sets(without_repeats(expected(query, given_steps)))


@pytest.mark.one_in(5)
@pytest.mark.parametrize(
    ("emit", "on_time", "late", "ttl"),
    [
        pytest.param(*firing, ttl, marks=() if ttl == expires else pytest.mark.slow)
        for *firing, expires in (
            ("updates", True, "batch", "event"),
            ("retractions", True, "batch", None),
            ("retractions", True, "watermark", "event"),
            ("updates", False, "watermark", None),
            ("updates", True, None, "event"),
        )
        for ttl in (None, "event")
    ],
)
def test_results_and_state_are_those_of_windows_that_hold_their_own(emit: Any, on_time: bool, late: Any, ttl: Any) -> None:
    """Floats: what is withdrawn is what was given, to the last bit."""
    both, clocks = [], (ManualClock(), ManualClock())
    for clock in clocks:
        keyed = stream_of("k bigint, at bigint, n double").watermark("at", 0).key_by("k").emit(emit).with_pane()
        keyed = keyed.allowed_lateness(100).trigger(kv.Trigger(on_time=on_time, late=late))
        keyed = keyed if ttl is None else keyed.with_state_ttl(kv.StateTtlConfig(60, clock=ttl))
        both.append(Driver(keyed.hopping_window(40, 10).agg(kv.sum("n"), kv.collect_list("at"), kv.last("n")), clock=clock))
    apart_when_ended(both[1])
    for batch in range(20):
        rows = [{"k": (batch // 5 * 2 + i) % 7, "at": 5 * batch - 31 * i % 143, "n": 0.1 * 3**i} for i in range(9)]
        for clock in clocks:
            clock.advance(7)
        if batch % 7 == 3:
            both = [driver.restarted() for driver in both]
            apart_when_ended(both[1])
        one, other = (driver.send(rows) for driver in both)
        assert one.results.to_pylist() == other.results.to_pylist()
        states = [driver.state().drop_columns(["last_update"]) for driver in both]
        assert states[0].to_pylist() == states[1].to_pylist()
        assert both[0].open_windows == both[1].open_windows
        assert both[0].counters == both[1].counters
    assert both[0].close().results.to_pylist() == both[1].close().results.to_pylist()


def operators(driver: Driver) -> list[Any]:
    """The operators of windows that hold rows together."""
    operator: Any = driver._stages[0].stage.operator
    while not isinstance(operator, TriggeredOperator):
        operator = getattr(operator, "inner", None)
        if operator is None:
            return []
    return [operator]


def before(driver: Driver) -> None:
    """Let a driver keep the rows of each window apart, as earlier versions did."""
    for operator in operators(driver):
        operator.shares = False


@given(queries, steps, st.integers(1, 11))
def test_a_state_from_before_rows_were_shared_goes_on(query: Query, given_steps: list[ref.Step], at: int) -> None:
    driver = Driver(query.stream())
    before(driver)
    seen = []
    for number, step in enumerate(given_steps):
        if number == at:
            driver = driver.restarted()
        if isinstance(step, ref.Batch):
            actual = driver.send(dicts(step.rows))
        else:
            actual = driver.advance_watermark(step.to) if isinstance(step, ref.Advance) else driver.close()
        seen.append(lines_of(actual.results))
        open_ = {(row["window_start"], row["window_end"]) for row in driver.state().to_pylist()}
        assert driver.open_windows >= len(open_)
    assert sets(without_repeats(seen)) == sets(without_repeats(expected(query, given_steps)))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("emit", ["updates", "retractions", "final"])
@pytest.mark.parametrize("clock", ["event", "processing"])
def test_state_and_dropped_keys_are_those_of_windows_that_hold_their_own_rows(emit: Any, clock: Any) -> None:
    both, clocks = [], (ManualClock(), ManualClock())
    for own_clock in clocks:
        keyed = stream_of("k bigint, at bigint").watermark("at", 30).key_by("k").emit(emit).with_pane().allowed_lateness(20)
        ttl = keyed.with_state_ttl(kv.StateTtlConfig(25, clock=clock))
        both.append(Driver(ttl.hopping_window(40, 10).agg(kv.count(), kv.sum("at")), clock=own_clock))
    before(both[1])
    for batch in range(40):
        rows = [{"k": batch // 5 * 2 % 7 + i % 3, "at": 8 * batch + 13 * i % 47} for i in range(6)]
        for own_clock in clocks:
            own_clock.advance(7)
        one, other = (driver.send(rows) for driver in both)
        assert one.results.to_pylist() == other.results.to_pylist()
        states = [driver.state().drop_columns(["last_update"]) for driver in both]  # the time of a chunk, whatever it holds
        assert states[0].to_pylist() == states[1].to_pylist()
        assert both[0].open_windows == both[1].open_windows
        assert both[0].counters == both[1].counters
    assert both[0].close().results.to_pylist() == both[1].close().results.to_pylist()
    assert both[0].counters["ttl_dropped"] > 0
