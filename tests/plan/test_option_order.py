"""Options before the window, after it, or after the aggregates: the same plan, or the same refusal."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import hypothesis
import pytest
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.errors import DurationError, PlanError
from krishiv_py.planner.check import warnings
from krishiv_py.planner.fingerprint import fingerprint
from krishiv_py.testing import stream_of
from tests.examples import scaled

Step = Callable[[Any], Any]
OPTIONS: Final[dict[str, Step]] = {
    "no lateness": lambda s: s.allowed_lateness(0),
    "lateness": lambda s: s.allowed_lateness("7 s"),
    "lateness as discard age": lambda s: s.allowed_lateness("15 s"),
    "event rule": lambda s: s.late_rule("event"),
    "window rule": lambda s: s.late_rule("window"),
    "null keys": lambda s: s.null_keys("side_output"),
    "final": lambda s: s.emit("final"),
    "updates": lambda s: s.emit("updates"),
    "retractions": lambda s: s.emit("retractions"),
    "each": lambda s: s.trigger(kv.Trigger.on_every_element()),
    "interval": lambda s: s.trigger(kv.Trigger.on_interval("1 s")),
    "never on time": lambda s: s.trigger(kv.Trigger(early=2, on_time=False)),
    "never late": lambda s: s.trigger(kv.Trigger(late=None)),
    "discarding": lambda s: s.accumulation("discarding"),
    "pane": lambda s: s.with_pane(),
    "future": lambda s: s.future_tolerance("5 s", "drop"),
    "TTL": lambda s: s.with_state_ttl(kv.StateTtlConfig(3_600_000)),
    "handler": lambda s: s.with_late_event_handler(kv.CountByKeyLateEventHandler()),
    "listed": lambda s: s.max_listed(1_000),
    "krishiv": lambda s: s.preset("krishiv"),
    "ripple": lambda s: s.preset("ripple"),
    "spl": lambda s: s.preset("spl"),
    "kip450": lambda s: s.preset("kip450"),
    "flink": lambda s: s.preset("flink"),
}
SETTING: Final = {
    "no lateness": "L",
    "lateness": "L",
    "lateness as discard age": "L",
    "event rule": "rule",
    "window rule": "rule",
    "final": "emit",
    "updates": "emit",
    "retractions": "emit",
    "each": "trigger",
    "interval": "trigger",
    "never on time": "trigger",
    "never late": "trigger",
    **dict.fromkeys(("krishiv", "ripple", "spl", "kip450", "flink"), "preset"),
}
PANES: Final = kv.TimeIntervalWindowOptions(10.0, creation_period=5.0, discard_age=15.0)
WINDOWS: Final[dict[str, Step]] = {
    "tumbling": lambda s: s.tumbling_window("10 s"),
    "hopping": lambda s: s.hopping_window("10 s", "5 s"),
    "sliding": lambda s: s.hopping_window("10 s", "5 s"),
    "look-back": lambda s: s.lookback_window("10 s"),
    "session": lambda s: s.session_window("10 s"),
    "capped session": lambda s: s.session_window("10 s", max_duration="1 min"),
    "count": lambda s: s.count_window(3),
    "distinct": lambda s: s.windowed_by(kv.SlidingWindows.of("10 s").grace("10 s")),
    "panes": lambda s: s.time_interval_window(PANES),
}

SHORT: Final = ("tumbling", "look-back", "session", "count", "distinct", "panes")
"""The windows with which a run of all tests takes options in pairs; `nox -s slow` has the others."""


def outcome(*steps: Step) -> str:
    """The plan as text, or the refusal."""
    stream: Any = stream_of("user string, at bigint").watermark("at", 0).key_by("user")
    try:
        for step in steps:
            stream = step(stream)
    except PlanError as error:
        return f"{type(error).__name__}: {error}"
    spec = stream._spec()
    handler = type(stream.late_handler).__name__
    return f"{spec.options}\n{spec.operation}\n{spec.watermark}\n{warnings(spec)}\n{fingerprint(spec)}\n{handler}"


def aggregated(stream: Any) -> Any:
    return stream.agg(kv.count())


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_means_the_same_before_and_after_the_window(window: str, option: str) -> None:
    chosen, set_ = WINDOWS[window], OPTIONS[option]
    before = outcome(set_, chosen, aggregated)
    assert outcome(chosen, set_, aggregated) == before
    assert outcome(chosen, aggregated, set_) == before


@pytest.mark.one_in(6)
@pytest.mark.parametrize("window", [pytest.param(name, marks=() if name in SHORT else pytest.mark.slow) for name in WINDOWS])
def test_two_options_mean_the_same_on_both_sides_of_the_window(window: str) -> None:
    chosen = WINDOWS[window]
    for one, other in itertools.combinations(OPTIONS, 2):
        if SETTING.get(one, one) == SETTING.get(other, other):
            continue  # the later one wins, and a window may refuse what is taken back later
        first, second = OPTIONS[one], OPTIONS[other]
        before = outcome(first, second, chosen, aggregated)
        apart = [outcome(second, first, chosen, aggregated), outcome(first, chosen, second, aggregated)]
        apart.append(outcome(chosen, second, first, aggregated))
        refusals = [text.startswith("PlanError") for text in (before, *apart)]
        assert refusals in ([True] * 4, [False] * 4), (one, other)
        if not any(refusals):  # which of two faults is reported depends on the order
            assert apart == [before] * 3, (one, other)


SETTINGS: Final = sorted({SETTING.get(option, option) for option in OPTIONS})


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=scaled(150), deadline=None)
def test_any_order_of_steps_gives_one_plan(data: st.DataObject) -> None:
    settings = data.draw(st.lists(st.sampled_from(SETTINGS), max_size=5, unique=True))
    given = [data.draw(st.sampled_from([o for o in OPTIONS if SETTING.get(o, o) == s])) for s in settings]
    chosen = WINDOWS[data.draw(st.sampled_from(list(WINDOWS)))]
    known: set[str] = set()
    for order in (given, given[::-1], data.draw(st.permutations(given))):
        steps = [OPTIONS[o] for o in order]
        moment = data.draw(st.integers(0, len(steps)))
        known.add(outcome(*steps[:moment], chosen, *steps[moment:], aggregated))
    assert len(known) == 1 or all(text.startswith("PlanError") for text in known), known
    if len(known) > 1:  # each tells one of several faults, none of them a fault that is not there
        few = [[OPTIONS[o] for o in some] for n in (1, 2) for some in itertools.permutations(given, n)]
        assert known <= {outcome(chosen, *some, aggregated) for some in few}


@hypothesis.given(st.data())
@hypothesis.settings(max_examples=scaled(100), deadline=None)
def test_options_after_the_aggregates_give_the_same_plan_if_every_plan_on_the_way_can_run(data: st.DataObject) -> None:
    settings = data.draw(st.lists(st.sampled_from(SETTINGS), max_size=4, unique=True))
    steps = [OPTIONS[data.draw(st.sampled_from([o for o in OPTIONS if SETTING.get(o, o) == s]))] for s in settings]
    chosen = WINDOWS[data.draw(st.sampled_from(list(WINDOWS)))]
    before = outcome(chosen, *steps, aggregated)
    for i in range(len(steps)):
        if outcome(chosen, aggregated, *steps[:i]).startswith("PlanError"):
            return
    assert outcome(chosen, aggregated, *steps) == before


def test_a_preset_fills_only_what_is_unset() -> None:
    timed = stream_of("at bigint").watermark("at", 0)
    for stream in (timed.preset("ripple").allowed_lateness(5), timed.allowed_lateness(5).preset("ripple")):
        assert stream._options.allowed_lateness_us == 5_000 and stream._options.emit_mode == "retractions"
    later = timed.session_window("10 s").preset("flink").agg(kv.count())
    assert later._spec().operation == timed.session_window("10 s", touch="merge").agg(kv.count())._spec().operation
    own = timed.preset("flink").session_window("10 s", touch="separate").agg(kv.count())
    assert "touch='separate'" in str(own._spec().operation)
    assert timed.preset("ripple").preset("flink")._options == timed.preset("flink")._options


def test_a_preset_starts_a_watermark_that_has_no_start_of_its_own() -> None:
    rows = stream_of("at bigint, source string")
    started = rows.with_watermark(kv.WatermarkSpec.fixed_lag(0, initial=7), column="at")
    several = kv.MultiSourceWatermarkSpec.new().source("a", kv.WatermarkSpec.fixed_lag(0))
    many = rows.with_watermark(several, column="at", source_column="source")
    starts = [
        stream.tumbling_window("1 s").agg(kv.count()).preset("ripple")._spec().watermark.initial_us
        for stream in (rows.watermark("at", 0), started, many)
    ]
    assert starts == [0, 7_000, 0]


def test_panes_refuse_what_contradicts_them() -> None:
    keyed = stream_of("at bigint").watermark("at", 0)
    with pytest.raises(PlanError, match=r"panes take late rows for their discard age .*7 s.*15 s.*Hint: .*discard_age"):
        keyed.allowed_lateness("7 s").time_interval_window(PANES)
    with pytest.raises(PlanError, match=r"late by its own time .*late_rule\('window'\).*Hint:"):
        keyed.late_rule("window").time_interval_window(PANES)
    with pytest.raises(PlanError, match=r"panes take late rows for their discard age .*allowed_lateness\(0"):
        keyed.allowed_lateness(0).time_interval_window(PANES)
    with pytest.raises(PlanError, match=r"panes take late rows for their discard age .*60 s|1 min"):
        keyed.preset("ripple").time_interval_window(PANES).agg(kv.count())
    with pytest.raises(PlanError, match="Hint: set early firings only"):
        keyed.time_interval_window(PANES).trigger(kv.Trigger(late=None))


def test_the_length_of_panes_can_be_distinguished_from_the_plan() -> None:
    timed = stream_of("at bigint").watermark("at", 0)
    seconds, milliseconds = (timed.time_interval_window(kv.TimeIntervalWindowOptions(d)).agg(kv.count()) for d in (10.0, 10))
    assert "time intervals of 10 s" in seconds.explain() and "an int is milliseconds" not in seconds.explain()
    assert "! panes of 10 ms: an int is milliseconds; seconds are a float" in milliseconds.explain()
    with pytest.raises(DurationError, match=r"floats are seconds and ints are milliseconds .*discard_age=5"):
        kv.TimeIntervalWindowOptions(10.0, discard_age=5)
    assert kv.TimeIntervalWindowOptions(10.0, discard_age=0, interval_offset=0)._window().size_us == 10_000_000
