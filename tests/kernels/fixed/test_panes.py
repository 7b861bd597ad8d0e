"""Time-interval panes against the plain reference (SEMANTICS §3.6)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import compat
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.errors import DurationError, PlanError
from krishiv_py.testing import Driver, stream_of
from tests import reference as ref
from tests.kernels.fixed.fixed_runs import LISTS, dicts, steps
from tests.reference.model import collect_set, sorted_values

Event = tuple[str, int, Any, tuple[Any, ...] | None, str | None, int | None]


@attrs.define(eq=False)
class Recorder(compat.PaneHandler):
    """Writes every event down."""

    events: list[Event] = attrs.field(factory=list)

    def _say(self, event: str, pane: compat.Pane) -> None:
        values = None if pane.data is None else sorted_values(pane.data["value"].to_pylist())
        self.events.append((event, pane.interval_start, pane.key["key"], values, pane.timing, pane.index))

    def before_tuple_insertion(self, pane: compat.Pane, row: dict[str, Any]) -> None:
        assert pane.interval_start <= row["at"] < pane.interval_end
        self._say("before_tuple_insertion", pane)

    def after_tuple_insertion(self, pane: compat.Pane, row: dict[str, Any]) -> None:
        self._say("after_tuple_insertion", pane)

    def window_initial_full(self, pane: compat.Pane) -> None:
        assert pane.state == "complete"
        self._say("window_initial_full", pane)

    def window_trigger(self, pane: compat.Pane) -> None:
        self._say("window_trigger", pane)

    def window_close(self, pane: compat.Pane) -> None:
        assert pane.state == "closed"
        self._say("window_close", pane)


def ms(value: int) -> str:
    return f"{value} ms"


configs = st.builds(
    ref.PaneConfig,
    duration=st.integers(1, 20),
    period=st.one_of(st.none(), st.integers(1, 25)),
    discard_age=st.sampled_from([0, 5, 20]),
    offset=st.integers(-9, 9),
)


def stream(config: ref.PaneConfig, handler: compat.PaneHandler | None) -> ResultStream:
    period = None if config.period is None else ms(config.period)
    options = kv.TimeIntervalWindowOptions(ms(config.duration), period, config.discard_age, config.offset)
    keyed = stream_of("key string, at bigint, value bigint").watermark("at", 0).key_by("key").time_interval_window(options)
    return keyed.agg(*LISTS) if handler is None else keyed.on_events(handler)


def run(config: ref.PaneConfig, given_steps: list[ref.Step], handler: compat.PaneHandler | None) -> list[list[dict[str, Any]]]:
    driver = Driver(stream(config, handler))
    out = []
    for step in given_steps:
        if isinstance(step, ref.Batch):
            actual = driver.send(dicts(step.rows))
        else:
            actual = driver.advance_watermark(step.to) if isinstance(step, ref.Advance) else driver.close()
        out.append(actual.results.to_pylist())
    assert driver.counters["late"] == sum(late.reason == "late" for late in ref.run_panes(config, given_steps).late)
    return out


def written(row: dict[str, Any]) -> tuple[Any, ...]:
    """A result in comparable form."""
    lists = tuple(row["values"]), tuple(row["distinct"])
    return (row["window_start"], row["key"], *lists, row["pane_timing"], row["pane_index"])


def triggered(event: ref.PaneEvent) -> tuple[Any, ...]:
    """The result that goes with a trigger, in the same form."""
    return (event.start, event.key, event.listed, collect_set(event.listed), event.timing, event.index)


@given(configs, steps)
def test_every_event_of_the_reference_in_its_order(config: ref.PaneConfig, given_steps: list[ref.Step]) -> None:
    recorder = Recorder()
    run(config, given_steps, recorder)
    expected: list[Event] = []
    for e in ref.run_panes(config, given_steps).events:
        stated = e.event.endswith("insertion")
        expected.append((e.event, e.start, e.key, None if stated else e.values, e.timing, e.index))
    assert Counter(recorder.events) == Counter(expected)
    for key, start in {(e[2], e[1]) for e in expected}:
        assert [e for e in recorder.events if (e[2], e[1]) == (key, start)] == [
            e for e in expected if (e[2], e[1]) == (key, start)
        ]
    assert [(e[0], e[1]) for e in recorder.events] == [(e[0], e[1]) for e in expected]


@given(configs, steps)
def test_aggregates_come_at_every_trigger(config: ref.PaneConfig, given_steps: list[ref.Step]) -> None:
    seen = run(config, given_steps, None)
    for number, rows in enumerate(seen):
        want = [e for e in ref.run_panes(config, given_steps).events if e.step == number and e.event == "window_trigger"]
        assert Counter(map(written, rows)) == Counter(map(triggered, want))


def test_options_take_seconds_or_durations() -> None:
    assert kv.TimeIntervalWindowOptions(10.0)._window() == kv.TimeIntervalWindowOptions("10 s")._window()
    assert kv.TimeIntervalWindowOptions(10.0, interval_offset=-2.5)._window().offset_us == 7_500_000
    for wrong in (0.0, -1.0, float("nan"), float("inf"), 1e-9, True):
        with pytest.raises(DurationError):
            kv.TimeIntervalWindowOptions(wrong)
    timed = stream_of("at bigint").watermark("at", 0)
    with pytest.raises(PlanError, match="TimeIntervalWindowOptions"):
        timed.time_interval_window(10.0)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="PaneHandler"):
        timed.time_interval_window(kv.TimeIntervalWindowOptions(10.0)).on_events(print)  # type: ignore[arg-type]


def test_handlers_get_whole_tuples_and_results_carry_them() -> None:
    class Keep(compat.PaneHandler):
        def window_trigger(self, pane: compat.Pane) -> None:
            seen.append((pane.key, pane.interval_start, pane.interval_end, pane.timing, pane.index, pane.data))

    seen: list[Any] = []
    timed = stream_of("at bigint, text string").watermark("at", 0).time_interval_window(kv.TimeIntervalWindowOptions(0.01))
    driver = Driver(timed.on_events(Keep()))
    driver.send([{"at": 7, "text": None}, {"at": 3, "text": "x"}])
    (row,) = driver.close().results.to_pylist()
    assert seen == [({}, 0, 10, "on_complete", 0, pa.table({"at": [3, 7], "text": ["x", None]}))]
    assert row["tuples"] == [{"at": 3, "text": "x"}, {"at": 7, "text": None}]


def test_panes_that_fire_again_keep_their_place_among_those_that_are_complete() -> None:
    options = kv.TimeIntervalWindowOptions("10 ms", discard_age="20 ms")
    counted = stream_of("at bigint").watermark("at", 0).time_interval_window(options).agg(kv.count())
    driver = Driver(counted)
    driver.send([{"at": 5}, {"at": 15}])
    results = driver.send([{"at": 6}, {"at": 20}]).results
    assert [tuple(r.values()) for r in results.to_pylist()] == [(0, 10, 2, "late", 1), (10, 20, 1, "on_complete", 0)]
