"""Overlapping windows that fire at their end hold their rows once, in slices (SEMANTICS §3.2, §3.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.kernels.windows.fixed.triggered import TriggeredOperator
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests import reference as ref
from tests.kernels.fixed.fixed_runs import Query, dicts, expected, lines_of, queries, sets, steps, without_repeats


class Handler(kv.PaneHandler):
    """A handler of whole panes."""

    def window_trigger(self, pane: kv.Pane) -> None:
        assert pane.data is not None


class Told(Handler):
    """One that sees single rows too."""

    def after_tuple_insertion(self, pane: kv.Pane, row: dict[str, Any]) -> None:
        assert pane.data is None


def panes(stream: Any) -> Any:
    return stream.time_interval_window(kv.TimeIntervalWindowOptions(interval_duration=10.0, creation_period=1.0))


SHAPES: dict[str, Callable[[Any], Any]] = {
    "collect_list": lambda s: panes(s).agg(kv.collect_list("n")),
    "percentile": lambda s: panes(s).agg(kv.percentile("n")),
    "handler": lambda s: panes(s).on_events(Handler()),
    "handler of rows": lambda s: panes(s).on_events(Told()),
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
    values = sum(
        column.combine_chunks().flatten().nbytes if pa.types.is_list(column.type) else 0
        for table in driver._stages[0].store.tables.values()
        for column in table.columns
    )
    assert driver.progress.open_rows == 20
    assert driver.open_windows == 29
    assert 8 * n <= values <= 6 * 8 * n, "values and times, of handlers the whole row; ten panes hold each"
    assert driver.state().num_rows == 29
    results = driver.close().results
    assert results.num_rows == 29
    assert driver.progress.open_rows == driver.progress.state_bytes == driver.open_windows == 0


def before(driver: Driver) -> None:
    """Let a driver keep the rows of each window apart, as earlier versions did."""
    operator: Any = driver._stages[0].stage.operator
    while not isinstance(operator, TriggeredOperator):
        operator = getattr(operator, "inner", None)
        if operator is None:
            return
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
            found = driver.send(dicts(step.rows))
        else:
            found = driver.advance_watermark(step.to) if isinstance(step, ref.Advance) else driver.close()
        seen.append(lines_of(found.results))
        open_ = {(row["window_start"], row["window_end"]) for row in driver.state().to_pylist()}
        assert driver.open_windows >= len(open_)
    assert sets(without_repeats(seen)) == sets(without_repeats(expected(query, given_steps)))


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
