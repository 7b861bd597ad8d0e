"""What of a plan may change over a checkpoint, option by option (SEMANTICS §6.4; the table is in docs/state.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pyarrow as pa
import pytest

import krishiv_py as kv
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.options.query import QueryOptions
from krishiv_py.planner.fingerprint import differences, fingerprint
from krishiv_py.testing import stream_of

Change = Callable[[Any], Any]
DDL = "user string, at bigint, other bigint, n bigint, source string"


def planned(
    change: Change = lambda keyed: keyed, window: Change = lambda k: k.tumbling_window(10), at: str = "at", **how: Any
) -> OperatorSpec:
    """A plan with something changed before its window."""
    timed = stream_of(DDL).with_watermark(kv.WatermarkSpec.fixed_lag(how.get("lag", 5), initial=how.get("initial")), at)
    keyed = timed.key_by("user").emit(how.get("emit", "updates"))
    plan: ResultStream = window(change(keyed)).agg(kv.count(), kv.sum("n"))
    return plan._plan(late="count").spec


def changed(one: OperatorSpec, other: OperatorSpec) -> list[str]:
    return differences(fingerprint(one), fingerprint(other))


def tumbling(keyed: Any) -> Any:
    return keyed.tumbling_window(10)


def sessions(keyed: Any) -> Any:
    return keyed.session_window(10)


def distinct(keyed: Any) -> Any:
    return keyed.windowed_by(kv.SlidingWindows.of(10))


@pytest.mark.parametrize("window", [tumbling, sessions, lambda k: k.lookback_window(10), lambda k: k.count_window(3)])
def test_lateness_neither_grows_nor_shrinks(window: Change) -> None:
    """Grown, windows that are over are made again; shrunk, windows that emit finals leave without their result (tried)."""

    def lasting(ms: int) -> OperatorSpec:
        return planned(lambda k: k.allowed_lateness(ms), window)

    five, two, none = lasting(5), lasting(2), lasting(0)
    assert changed(five, five) == []
    assert changed(two, five) == ["allowed lateness in µs was 2000 and is 5000"]
    assert changed(five, none) == ["allowed lateness in µs was 5000 and is 0"]


REFUSED: list[tuple[str, Change, Change, Change]] = [
    ("late rule was event and is window", sessions, lambda k: k, lambda k: k.late_rule("window")),
    ("late rule was window and is event", distinct, lambda k: k.late_rule("window"), lambda k: k),
    ("time to live was (none) and is by event time", tumbling, lambda k: k, lambda k: k.with_state_ttl(kv.StateTtlConfig(9))),
    ("time to live was by event time and is (none)", sessions, lambda k: k.with_state_ttl(kv.StateTtlConfig(9)), lambda k: k),
    ("firings", tumbling, lambda k: k, lambda k: k.trigger(kv.Trigger.on_count(2))),
    (
        "firings",
        tumbling,
        lambda k: k.trigger(kv.Trigger.on_count(2)),
        lambda k: k.trigger(kv.Trigger.on_count(2)).accumulation("discarding"),
    ),
    ("clock", sessions, lambda k: k.trigger(kv.Trigger.on_count(2)), lambda k: k.trigger(kv.Trigger.on_interval(100))),
]
FOLLOWED: list[tuple[Change, Change, Change]] = [
    (tumbling, lambda k: k, lambda k: k.late_rule("window")),
    (tumbling, lambda k: k.late_rule("window"), lambda k: k.preset("spark")),
    (sessions, lambda k: k.null_keys("side_output"), lambda k: k.null_keys("group")),
    (tumbling, lambda k: k, lambda k: k.future_tolerance(100, action="drop")),
    (sessions, lambda k: k.with_state_ttl(kv.StateTtlConfig(9)), lambda k: k.with_state_ttl(kv.StateTtlConfig(900))),
    (sessions, lambda k: k, lambda k: k.max_listed(5)),
    (sessions, lambda k: k.trigger(kv.Trigger.on_count(2)), lambda k: k.trigger(kv.Trigger.on_count(3))),
]


@pytest.mark.parametrize(("message", "window", "before", "after"), REFUSED)
def test_what_state_cannot_follow_is_refused_by_name(message: str, window: Change, before: Change, after: Change) -> None:
    actual = changed(planned(before, window), planned(after, window))
    assert any(line.startswith(message) for line in actual), actual


@pytest.mark.parametrize(("window", "before", "after"), FOLLOWED)
def test_what_state_follows_is_let_through(window: Change, before: Change, after: Change) -> None:
    assert changed(planned(before, window), planned(after, window)) == []


def test_another_time_column_is_refused_and_another_lag_is_not() -> None:
    assert changed(planned(), planned(at="other")) == ["time column was at and is other"]
    assert changed(planned(lag=5), planned(lag=50)) == []
    assert changed(planned(), planned(emit="retractions")) == ["emit was updates and is retractions"]
    assert changed(planned(initial=0), planned()) == ["watermark's start in µs was 0 and is (none)"]


class Total:
    """A user aggregate."""

    def create(self) -> int:
        return 0

    def add(self, state: int, value: int) -> int:
        return state + value

    def merge(self, left: int, right: int) -> int:
        return left + right

    def finish(self, state: int) -> int:
        return state


class Product(Total):
    """Another, whose accumulators mean something else."""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (kv.approx_count_distinct("n", precision=10), kv.approx_count_distinct("n", precision=12)),
        (kv.udaf(Total(), "n", pa.int64()).alias("x"), kv.udaf(Product(), "n", pa.int64()).alias("x")),
    ],
)
def test_aggregates_whose_partials_mean_something_else_are_refused(before: Any, after: Any) -> None:
    one, other = (
        stream_of(DDL).watermark("at", 0).tumbling_window(10).agg(call)._plan(late="count").spec for call in (before, after)
    )
    assert [line.partition(" was ")[0] for line in changed(one, other)] == ["aggregate 1"]


def test_another_source_column_is_refused() -> None:
    lags = kv.MultiSourceWatermarkSpec.new().source("a", kv.WatermarkSpec.fixed_lag(0))
    one, other = (
        stream_of(DDL).with_watermark(lags, "at", source_column=c).tumbling_window(10).agg(kv.count())._plan(late="count").spec
        for c in ("source", "user")
    )
    assert changed(one, other) == ["source column was source and is user"]


def test_every_option_has_a_rule() -> None:
    """A new option fails here until docs/state.md and the lists above say whether state follows it."""
    ruled = {
        "allowed_lateness_us",
        "late_rule",
        "late_watermark",
        "null_keys",
        "future_us",
        "ttl",
        "emit",
        "trigger",
        "accumulation",
        "pane",
        "future_action",
        "future_reference",
        "unknown_sources",
        "max_listed",
        "named",
        "left_us",  # no option of a user's: a checkpoint that began from a savepoint notes it
    }
    assert {f.name for f in attrs.fields(QueryOptions)} <= ruled
