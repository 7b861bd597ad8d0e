"""Triggers of a user: when they are asked, what they see, and what fires, against the reference and by hand (§5.7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.errors import OperatorError, PlanError
from krishiv_py.plan.options.triggers import CustomTrigger
from krishiv_py.planner.fingerprint import differences, fingerprint
from krishiv_py.testing import Driver, ManualClock, stream_of
from tests import reference as ref
from tests.kernels.firing.rules import Rule, triggers
from tests.kernels.fixed import fixed_runs as fixed
from tests.kernels.fixed.test_assigned import Hops
from tests.kernels.session import test_session_triggers as sessions


@given(fixed.queries, triggers, fixed.steps)
def test_fixed_windows_write_what_the_reference_writes(query: fixed.Query, trigger: kv.Trigger, steps: list[ref.Step]) -> None:
    query = replace(query, trigger=trigger)
    seen, _ = fixed.driven(query, steps)
    assert fixed.sets(fixed.without_repeats(seen)) == fixed.sets(fixed.without_repeats(fixed.expected(query, steps)))


@given(sessions.queries, triggers, sessions.given_steps)
def test_sessions_write_what_the_reference_writes(query: sessions.Query, trigger: kv.Trigger, steps: list[ref.Step]) -> None:
    query = replace(query, trigger=trigger)
    seen, want = sessions.driven(query, steps), sessions.expected(query, steps)
    assert sessions.compared(query, seen.lines) == sessions.compared(query, want.lines)
    assert seen.late == want.late


@given(fixed.queries, triggers, fixed.steps, st.integers(0, 11))
def test_a_restart_changes_nothing_of_fixed_windows(
    query: fixed.Query, trigger: kv.Trigger, steps: list[ref.Step], at: int
) -> None:
    query = replace(query, trigger=trigger)
    assert fixed.driven(query, steps, restart_at=at)[0] == fixed.driven(query, steps)[0]


@given(sessions.queries, triggers, sessions.given_steps, st.integers(0, 9))
def test_a_restart_changes_nothing_of_sessions(
    query: sessions.Query, trigger: kv.Trigger, steps: list[ref.Step], at: int
) -> None:
    query = replace(query, trigger=trigger)
    assert sessions.driven(query, steps, restart_at=at) == sessions.driven(query, steps)


@given(fixed.queries, triggers, fixed.steps)
def test_fixed_windows_with_new_rows_are_evaluated_when_the_clock_says_so(
    query: fixed.Query, trigger: kv.Trigger, steps: list[ref.Step]
) -> None:
    query = replace(query, trigger=by_the_clock(trigger))
    seen = at_each_step(query.stream(), steps)
    assert fixed.sets(fixed.without_repeats(seen)) == fixed.sets(fixed.without_repeats(fixed.expected(query, steps)))


@given(sessions.queries, triggers, sessions.given_steps)
def test_sessions_with_new_rows_are_evaluated_when_the_clock_says_so(
    query: sessions.Query, trigger: kv.Trigger, steps: list[ref.Step]
) -> None:
    query = replace(query, trigger=by_the_clock(trigger))
    seen, want = at_each_step(query.stream(), steps), sessions.expected(query, steps)
    assert sessions.compared(query, seen) == sessions.compared(query, want.lines)


def by_the_clock(trigger: kv.Trigger) -> kv.Trigger:
    """The same trigger, asked every second too."""
    assert isinstance(trigger.early, CustomTrigger) and isinstance(trigger.early.trigger, Rule)
    return kv.Trigger(attrs.evolve(trigger.early.trigger, period=1_000), trigger.on_time, trigger.late)


def at_each_step(stream: kv.ResultStream, steps: list[ref.Step]) -> list[list[fixed.Line]]:
    """What the driver writes if every step comes two seconds after the one before it."""
    driver = Driver(stream)
    log = []
    for step in steps:
        driver.clock.advance("2 s")
        if isinstance(step, ref.Batch):
            gaps = {"gap"} & set(driver._spec.source_schema.names)
            rows = [{"key": r.key, "at": r.t, "value": r.value, **dict.fromkeys(gaps, r.gap)} for r in step.rows]
            log.append(fixed.lines_of(driver.send(rows).results))
        elif isinstance(step, ref.Advance):
            log.append(fixed.lines_of(driver.advance_watermark(step.to).results))
        else:
            log.append(fixed.lines_of(driver.close().results))
    return log


@attrs.frozen
class Noting(kv.WindowTrigger):
    """Notes what it sees, and fires at every third asking."""

    rows_seen: list[dict[str, Any]] = attrs.field(factory=list, repr=False)
    ask_every: Any = None

    def parameters(self) -> dict[str, object]:
        return {}

    def fires(self, windows: kv.OpenWindows) -> Any:
        columns = ("start", "end", "rows", "new_rows", "firings", "newest")
        numbers = zip(*(getattr(windows, name).tolist() for name in columns), strict=True)
        keys = windows.keys.to_pylist() or [{}] * len(windows)
        common = {"watermark": windows.watermark, "now": windows.now}
        self.rows_seen.extend(
            {**key, **dict(zip(columns, row, strict=True)), **common} for key, row in zip(keys, numbers, strict=True)
        )
        return np.full(len(windows), len(self.rows_seen) % 3 == 0)


KINDS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.tumbling_window(10_000),
    "hopping with one window a row": lambda s: s.hopping_window(10_000, 10_000),
    "assigned": lambda s: s.window(Hops(10_000, 10_000)),
    "session": lambda s: s.session_window(10_000),
    "session, longest": lambda s: s.session_window(10_000, max_duration=30_000),
    "panes": lambda s: s.time_interval_window(kv.TimeIntervalWindowOptions(interval_duration=10.0)),
}


@pytest.mark.one_in(7)
@pytest.mark.parametrize("accumulation", ["accumulating", "discarding"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_reported_outlives_many_batches_and_restarts(kind: str, accumulation: Any) -> None:
    """Times go back, so that the newest is of the first batch: state is merged and rewritten many times after it."""
    trigger = Noting()
    keyed = stream_of("user string, at bigint").watermark("at", 100_000).key_by("user").trigger(kv.Trigger.when(trigger))
    driver = Driver(KINDS[kind](keyed.accumulation(accumulation)).agg(kv.count()))
    counts = []
    for batch in range(90):
        counts += driver.send([{"user": "a", "at": 9_500 - batch}] * 2).results["count"].to_pylist()
        driver = driver.restarted() if batch % 31 == 30 else driver
    assert [t["rows"] for t in trigger.rows_seen] == list(range(2, 182, 2))
    assert [t["new_rows"] for t in trigger.rows_seen] == [2, 4, 6] * 30
    assert [t["firings"] for t in trigger.rows_seen] == [n // 3 for n in range(90)]
    assert {t["newest"] for t in trigger.rows_seen} == {9_500_000}
    assert {t["user"] for t in trigger.rows_seen} == {"a"}
    assert counts == ([6] * 30 if accumulation == "discarding" else list(range(6, 186, 6)))
    session = kind.startswith("session")
    bounds = [(9_500_000 - 1_000 * n if session else 0, 19_500_000 if session else 10_000_000) for n in range(90)]
    assert [(t["start"], t["end"]) for t in trigger.rows_seen] == bounds
    assert trigger.rows_seen[0]["watermark"] is None
    assert {t["watermark"] for t in trigger.rows_seen[1:]} == {-90_500_000}
    assert {t["now"] for t in trigger.rows_seen} == {None}


@pytest.mark.parametrize("kind", KINDS)
def test_the_clock_checks_about_windows_with_new_rows_also_without_rows(kind: str) -> None:
    trigger, clock = Noting(ask_every="10 s"), ManualClock()
    keyed = stream_of("user string, at bigint").watermark("at", 100_000).key_by("user").trigger(kv.Trigger.when(trigger))
    driver = Driver(KINDS[kind](keyed).agg(kv.count()), clock=clock)

    def requested() -> list[tuple[str, int, int]]:
        actual = [(t["user"], t["rows"], t["now"] // 1_000_000) for t in trigger.rows_seen]
        trigger.rows_seen.clear()
        return sorted(actual)

    driver.send([{"user": "a", "at": 1}])
    assert requested() == [("a", 1, 0)]
    driver.tick()
    assert requested() == []
    clock.advance("10 s")
    driver.tick()
    assert requested() == [("a", 1, 10)]
    clock.advance("9 s")
    driver.send([{"user": "b", "at": 1}])
    assert requested() == [("b", 1, 19)]
    clock.advance("1 s")
    driver = driver.restarted()
    driver.send([{"user": "b", "at": 1}])
    assert requested() == [("a", 1, 20), ("b", 2, 20)]  # each once
    clock.advance("10 s")
    driver.send([{"user": "c", "at": 1}])
    stated = requested()
    assert stated == [("a", 1, 30), ("b", 2, 30), ("c", 1, 30)]  # three askings: all fire
    clock.advance("10 s")
    driver.tick()
    assert requested() == []


@pytest.mark.parametrize("kind", ["tumbling", "session", "session, longest"])
def test_each_window_is_evaluated_once_a_batch_under_the_window_rule(kind: str) -> None:
    trigger = Noting(ask_every="1 s")
    keyed = stream_of("user string, at bigint").watermark("at", 0).key_by("user").late_rule("window")
    driver = Driver(KINDS[kind](keyed.trigger(kv.Trigger.when(trigger))).agg(kv.count()))
    for batch in range(4):
        driver.clock.advance("2 s")
        driver.send([{"user": "a", "at": batch}])
    assert [t["rows"] for t in trigger.rows_seen] == [1, 2, 3, 4]


def test_without_keys_there_are_no_key_columns() -> None:
    trigger = Noting()
    driver = Driver(
        stream_of("at bigint").watermark("at", 0).trigger(kv.Trigger.when(trigger)).tumbling_window(10).agg(kv.count())
    )
    driver.send([{"at": 1}])
    assert [t["rows"] for t in trigger.rows_seen] == [1]


@attrs.frozen
class Answering(kv.WindowTrigger):
    """Gives what it was made with, or raises it."""

    given: Any

    def parameters(self) -> dict[str, object]:
        return {"given": self.given if isinstance(self.given, list) else type(self.given)}

    def fires(self, windows: kv.OpenWindows) -> Any:
        if callable(self.given):
            return self.given(windows)
        return self.given


def changing(windows: kv.OpenWindows) -> Any:
    windows.rows[0] = 0
    return windows.rows > 0


ANSWERS: dict[str, tuple[Any, str]] = {
    "nothing": (None, r"does not return one bool for each of 2 windows \(got: None\)"),
    "one bool": (True, "one bool for each of 2 windows"),
    "too many": ([True, True, False], r"bool of shape \(3,\)"),
    "numbers": ([1, 0], r"int64 of shape \(2,\)"),
    "texts": (["yes", "no"], r"of shape \(2,\)"),
    "nulls": (pa.array([True, None]), r"object of shape \(2,\)"),
    "a table": ([[True], [False]], r"bool of shape \(2, 1\)"),
    "an error": (lambda w: 1 // 0, "failed.*ZeroDivisionError"),
    "a change": (changing, "failed.*read-only"),
    "an exit": (lambda w: exec("raise SystemExit(3)"), "failed.*SystemExit"),
}


@pytest.mark.parametrize("fault", ANSWERS)
@pytest.mark.parametrize("kind", ["tumbling", "session", "session, longest", "assigned"])
def test_what_breaks_the_contract_stops_with_the_name_of_the_trigger(kind: str, fault: str) -> None:
    given, settings = ANSWERS[fault]
    keyed = stream_of("user string, at bigint").watermark("at", 0).key_by("user").trigger(kv.Trigger.when(Answering(given)))
    driver = Driver(KINDS[kind](keyed).agg(kv.count()))
    with pytest.raises(OperatorError, match=f"(?s)window trigger Answering.*{settings}") as failed:
        driver.send([{"user": "a", "at": 1}, {"user": "b", "at": 1}])
    assert "Hint: " in str(failed.value)


@pytest.mark.parametrize("answer", [[True, False], pa.array([True, False]), pa.chunked_array([[True], [False]]), (True, False)])
def test_answers_may_come_as_any_array_of_bools(answer: Any) -> None:
    keyed = stream_of("user string, at bigint").watermark("at", 0).key_by("user").trigger(kv.Trigger.when(Answering(answer)))
    driver = Driver(keyed.tumbling_window(10).agg(kv.count()))
    assert driver.send([{"user": "a", "at": 1}, {"user": "b", "at": 1}]).results["user"].to_pylist() == ["a"]


class Nameless(Noting):
    """Has a parameter whose text changes with every start."""

    def parameters(self) -> dict[str, object]:
        return {"of": object()}


@pytest.mark.parametrize("wrong", [None, 3, Noting, lambda w: w.rows > 1, "each"])
def test_what_is_no_trigger_is_refused_with_a_hint(wrong: Any) -> None:
    with pytest.raises(PlanError, match=r"not a WindowTrigger.*Hint: pass an instance of a subclass"):
        kv.Trigger.when(wrong)


def test_what_a_checkpoint_cannot_note_is_refused_at_the_call() -> None:
    with pytest.raises(PlanError, match="parameter 'of' of window trigger Nameless has no text of its own"):
        kv.Trigger.when(Nameless())
    for wrong in ("often", -1, 0, 1.5, True):
        with pytest.raises(PlanError):
            kv.Trigger.when(Noting(ask_every=wrong))


def test_windows_that_cannot_follow_refuse_at_the_call() -> None:
    keyed = stream_of("user string, at bigint").watermark("at", 0).key_by("user").trigger(kv.Trigger.when(Noting()))
    refused: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: keyed.count_window(3), "count windows do not fire when a trigger of your own says so"),
        (lambda: keyed.lookback_window(3), "look-back windows know no trigger but on_watermark"),
        (
            lambda: keyed.emit("updates").windowed_by(kv.SlidingWindows.of(3)),
            "distinct-set sliding windows fire with the watermark or",
        ),
    )
    for windowed, stated in refused:
        with pytest.raises(PlanError, match=stated):
            windowed().agg(kv.count()).explain()


def test_explain_and_checkpoints_name_it_with_its_parameters() -> None:
    keyed = stream_of("user string, at bigint").watermark("at", 0).key_by("user")

    def noted(trigger: kv.Trigger) -> dict[str, str]:
        return fingerprint(Driver(keyed.trigger(trigger).tumbling_window(10).agg(kv.count()))._spec)

    first = noted(kv.Trigger.when(Answering([True])))
    assert differences(first, noted(kv.Trigger.when(Answering([True])))) == []
    (changed,) = differences(first, noted(kv.Trigger.when(Answering([False]))))
    assert changed == "trigger was Answering(given=[True]) and is Answering(given=[False])"
    assert any("trigger was" in text for text in differences(first, noted(kv.Trigger.on_count(2))))
    assert any("clock" in text for text in differences(noted(kv.Trigger.when(Noting())), noted(kv.Trigger.when(Noting([], 5)))))
    plan = keyed.trigger(kv.Trigger.when(Answering([True]))).tumbling_window(10).agg(kv.count()).explain()
    assert "trigger: early when Answering(given=[True]) says so, on time, late once per batch" in plan


@pytest.mark.parametrize("emit", ["updates", "final"])
def test_panes_are_evaluated_and_noted_whatever_is_emitted(emit: Any) -> None:
    keyed = stream_of("user string, at bigint").watermark("at", 0).key_by("user").emit(emit)
    plain = keyed.time_interval_window(kv.TimeIntervalWindowOptions(interval_duration=10.0)).agg(kv.count())
    requested = []

    def answer(windows: kv.OpenWindows) -> list[bool]:
        requested.append(windows.rows.tolist())
        return [True]

    driver = Driver(plain.trigger(kv.Trigger.when(Answering(answer))))
    once = emit == "final"  # one result of a pane, when nothing can change it any more (SEMANTICS 5.4)
    assert driver.send([{"user": "a", "at": 1}]).results["count"].to_pylist() == ([] if once else [1])
    assert requested == [[1]]
    assert driver.close().results["count"].to_pylist() == [1]
    noted = fingerprint(Driver(plain.trigger(kv.Trigger.when(Answering([True]))))._spec)
    changed = differences(fingerprint(Driver(plain)._spec), noted)
    assert changed == ["trigger was (none) and is Answering(given=[True])"]


def test_final_results_ask_nobody() -> None:
    keyed = stream_of("user string, at bigint").watermark("at", 0).key_by("user").trigger(kv.Trigger.when(Answering(None)))
    driver = Driver(keyed.emit("final").tumbling_window(10).agg(kv.count()))
    driver.send([{"user": "a", "at": 1}])
    assert driver.close().results["count"].to_pylist() == [1]


def test_a_trigger_without_its_wrapper_is_reported_what_to_write() -> None:
    keyed = stream_of("user string, at bigint").watermark("at", 0).key_by("user")
    with pytest.raises(PlanError, match=r"not a Trigger.*Hint: wrap it: Trigger\.when"):
        keyed.trigger(Noting())  # type: ignore[arg-type]


def test_a_trigger_shows_no_parameters_where_none_are_wanted() -> None:
    assert "True" not in repr(kv.Trigger.when(Answering([True])).early)
