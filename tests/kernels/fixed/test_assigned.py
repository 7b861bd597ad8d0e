"""Windows of a user's assigner: the same answers as the windows they imitate, and errors that name the assigner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import hypothesis
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import windows
from krishiv_py.errors import CheckpointError, OperatorError, PlanError
from krishiv_py.plan.described import Assigned, Times
from krishiv_py.planner.fingerprint import differences, fingerprint
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled

Step = Callable[[Any], Any]
MS = 1_000


@attrs.frozen
class Hops(kv.WindowAssigner):
    """Hopping windows, as a user would write them."""

    size: int
    slide: int

    @property
    def longest(self) -> int:
        return self.size

    def assign(self, times: Times) -> Assigned:
        size, slide = self.size * MS, self.slide * MS
        last = times - times % slide
        if size == slide:
            return last, last + size
        pairs = [(np.flatnonzero(last - back * slide + size > times), back) for back in range(-(-size // slide))]
        rows = np.concatenate([held for held, _ in pairs])
        starts = np.concatenate([last[held] - back * slide for held, back in pairs])
        return rows, starts, starts + size


class Cumulated(kv.WindowAssigner):
    """Windows that all begin with their day of 100 ms, and end 20, 40, … 100 ms later."""

    longest = 100

    def assign(self, times: Times) -> Assigned:
        day, step = 100 * MS, 20 * MS
        starts = times - times % day
        spans = [(np.flatnonzero(times < starts + n * step), n) for n in range(1, 6)]
        rows = np.concatenate([held for held, _ in spans])
        return rows, starts[rows], np.concatenate([starts[held] + n * step for held, n in spans])


@attrs.frozen
class Grown(kv.WindowTrigger):
    """Fires when more than half of the rows of a window are new, or the newest is far from its start."""

    ask_every: int | None = None

    def fires(self, windows: kv.OpenWindows) -> Any:
        return (2 * windows.new_rows > windows.rows + windows.firings) | (windows.newest - windows.start > 40 * MS)


OPTIONS: dict[str, Step] = {
    "none": lambda s: s,
    "late rule": lambda s: s.late_rule("window"),
    "lateness": lambda s: s.allowed_lateness(30),
    "lateness, late rule": lambda s: s.allowed_lateness(30).late_rule("window"),
    "final with lateness": lambda s: s.allowed_lateness(30).emit("final"),
    "retractions": lambda s: s.allowed_lateness(30).emit("retractions"),
    "every element": lambda s: s.trigger(kv.Trigger.on_every_element()).allowed_lateness(30).with_pane(),
    "counted": lambda s: s.trigger(kv.Trigger.on_count(2)).allowed_lateness(30).emit("retractions").with_pane(),
    "interval": lambda s: s.trigger(kv.Trigger.on_interval(5)).allowed_lateness(30).with_pane(),
    "discarding": lambda s: s.trigger(kv.Trigger.on_count(2)).accumulation("discarding").allowed_lateness(30),
    "a trigger of the user": lambda s: s.trigger(kv.Trigger.when(Grown())).allowed_lateness(30).emit("retractions"),
    "asked by the clock": lambda s: s.trigger(kv.Trigger.when(Grown(5))).accumulation("discarding").with_pane(),
    "late as the watermark grows": lambda s: s.trigger(kv.Trigger(late="watermark")).allowed_lateness(30).with_pane(),
    "time to live": lambda s: s.with_state_ttl(kv.StateTtlConfig(60)).allowed_lateness(10),
    "time to live with triggers": lambda s: s.with_state_ttl(kv.StateTtlConfig(60)).trigger(kv.Trigger.on_count(3)),
    "time to live, retractions": lambda s: s.with_state_ttl(kv.StateTtlConfig(60)).emit("retractions").allowed_lateness(40),
}
AGGS = [kv.count(), kv.sum("n"), kv.first("n").alias("f"), kv.collect_list("n").alias("all")]
ROWS = st.lists(
    st.lists(
        st.fixed_dictionaries({"user": st.sampled_from("ab"), "at": st.integers(0, 300), "n": st.integers(0, 9)}), max_size=6
    ),
    max_size=6,
)


def shown(table: Any) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def run(plan: Any, batches: list[list[dict[str, Any]]]) -> list[list[Any]]:
    """Results, late rows, state and counters after every batch."""
    driver, seen = Driver(plan), []
    for batch in batches:
        driver.clock.advance(3)
        step = driver.send(batch)
        held = driver.state()
        columns = [n for n in held.column_names if n != "last_update"]
        seen.append([shown(step.results), shown(step.late), shown(held.select(columns))])
    end = driver.close()
    return [*seen, [shown(end.results), dict(driver.counters)]]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("size", "slide"), [(50, 50), (50, 20), (20, 50)])
@hypothesis.given(batches=ROWS)
@hypothesis.settings(max_examples=scaled(5), deadline=None)
def test_an_assigner_of_hopping_windows_answers_as_hopping_windows(
    option: str, size: int, slide: int, batches: list[list[dict[str, Any]]]
) -> None:
    rows = stream_of("user string, at bigint, n bigint").watermark("at", 10).key_by("user")
    theirs = OPTIONS[option](rows).window(Hops(size, slide)).agg(AGGS)
    ours = OPTIONS[option](rows).hopping_window(size, slide, allow_gaps=True).agg(AGGS)
    assert run(theirs, batches) == run(ours, batches)


@hypothesis.given(batches=ROWS)
@hypothesis.settings(max_examples=scaled(30), deadline=None)
def test_windows_of_one_start_and_many_ends_are_distinguished(batches: list[list[dict[str, Any]]]) -> None:
    plan = stream_of("user string, at bigint, n bigint").watermark("at", 1_000).key_by("user").window(Cumulated()).agg(AGGS[:2])
    actual = [row for step in run_rows(plan, batches) for row in step]
    rows = [row for batch in batches for row in batch]
    expected = [
        {"user": user, "window_start": start, "window_end": start + n * 20, "count": len(held), "sum_n": sum(held)}
        for user in "ab"
        for start in (0, 100, 200, 300)
        for n in range(1, 6)
        if (held := [r["n"] for r in rows if r["user"] == user and start <= r["at"] < start + n * 20])
    ]
    assert sorted(map(repr, actual)) == sorted(map(repr, expected))
    ends = [row["window_end"] for row in actual]
    assert ends == sorted(ends)


def run_rows(plan: Any, batches: list[list[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    driver = Driver(plan)
    return [driver.send(batch).results.to_pylist() for batch in batches] + [driver.close().results.to_pylist()]


# What an assigner must keep


class Odd(kv.WindowAssigner):
    """Answers with what it is given."""

    longest = 10

    def __init__(self, answer: Callable[[Times], Any]) -> None:
        self._answer = answer

    def parameters(self) -> dict[str, object]:
        return {}

    def assign(self, times: Times) -> Assigned:
        actual: Assigned = self._answer(times)
        return actual


def arrays(*values: list[int]) -> tuple[Times, ...]:
    return tuple(np.array(v, np.int64) for v in values)


FAULTS: dict[str, tuple[Callable[[Times], Any], str]] = {
    "raises": (lambda t: t[len(t)], "failed"),
    "no tuple": (lambda t: t, "two or three arrays"),
    "one array": (lambda t: (t,), "two or three arrays"),
    "None": (lambda t: None, "two or three arrays"),
    "lists": (lambda t: ([0], [10]), "not an array of whole numbers"),
    "floats": (lambda t: (t * 1.0, t + 1.0), "not an array of whole numbers"),
    "two dimensions": (lambda t: (t.reshape(1, -1), t), "not an array of whole numbers"),
    "too few": (lambda t: (t[:1], t[:1] + 1_000), "one window for each of 2 rows"),
    "other lengths": (lambda t: arrays([0], [0, 1], [5]), "different lengths"),
    "rows that are not there": (lambda t: arrays([2], [0], [1_000]), "rows other than 0 to 1"),
    "rows below 0": (lambda t: arrays([-1], [0], [1_000]), "rows other than 0 to 1"),
    "twice the same": (lambda t: arrays([0, 1, 0], [0, 0, 0], [10_000] * 3), "same window twice"),
    "ends before it starts": (lambda t: (t, t), "ends before it starts"),
    "ends at the row": (lambda t: (t - 1_000, t), "does not contain the row"),
    "starts after the row": (lambda t: (t + 1_000, t + 2_000), "does not contain the row"),
    "too long": (lambda t: (t - t, t - t + 10_001), "longer than its longest, 10 ms"),
    "wraps around": (lambda t: (np.full(2, -(2**62) - 1), np.full(2, 2**62)), "longer than its longest"),
    "finer than the column": (lambda t: (t - t, t - t + 9_999), "finer than the time column"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_breaks_the_contract_stops_with_the_name_of_the_assigner(fault: str) -> None:
    answer, given = FAULTS[fault]
    driver = Driver(stream_of("at bigint").watermark("at", 0).window(Odd(answer)).agg(kv.count()))
    with pytest.raises(OperatorError, match=f"window assigner Odd .*{given}.*Hint: fix `assign`"):
        driver.send([{"at": 3}, {"at": 5}])


def test_rows_in_no_window_are_counted_and_unusable_rows_are_not_evaluated() -> None:
    requested: list[list[int]] = []

    def none(times: Times) -> Any:
        requested.append(times.tolist())
        times[:] = -1  # what an assigner does to its input stays with it
        return arrays([], [], [])

    driver = Driver(stream_of("at bigint").watermark("at", 0).window(Odd(none)).agg(kv.count()))
    assert driver.send([{"at": 3}, {"at": None}, {"at": 5}]).results.num_rows == 0
    assert driver.counters["unassigned"] == 2 and driver.counters["null_time"] == 1
    assert requested == [[3_000, 5_000]]
    assert driver.send([{"at": None}]).results.num_rows == 0 and len(requested) == 1


def test_an_aggregate_that_fails_tells_key_and_window() -> None:
    class Failing(kv.Aggregator[int]):
        def create(self) -> int:
            return 0

        def add(self, accumulator: int, value: Any) -> int:
            raise ValueError("no")

        def merge(self, left: int, right: int) -> int:
            return 0

        def finish(self, accumulator: int) -> int:
            return 0

    rows = stream_of("user string, at bigint").watermark("at", 0).key_by("user")
    for trigger in (kv.Trigger(), kv.Trigger.on_every_element()):
        plan = rows.window(Hops(50, 20)).trigger(trigger).agg(kv.udaf(Failing(), "at", pa.int64()).alias("x"))
        with pytest.raises(OperatorError, match="user='a'") as caught:
            Driver(plan).send([{"user": "a", "at": 5}])
        assert "start=" not in str(caught.value)


# The plan


def test_a_checkpoint_notes_class_and_parameters() -> None:
    rows = stream_of("at bigint").watermark("at", 0)
    one, same, other = (fingerprint(rows.window(Hops(*p)).agg(kv.count())._spec()) for p in ((50, 20), (50, 20), (50, 25)))
    assert one == same
    assert differences(one, other) == ["window parameter slide was 20 and is 25"]
    cumulated = fingerprint(rows.window(Cumulated()).agg(kv.count())._spec())
    assert any("window assigner was Hops and is Cumulated" in text for text in differences(one, cumulated))
    assert issubclass(CheckpointError, Exception)


def test_what_is_no_assigner_is_refused_with_a_hint() -> None:
    rows = stream_of("at bigint").watermark("at", 0)

    class Unlike(Hops):
        @property
        def name(self) -> str:
            raise ValueError("no name")

    class Shapeless(Cumulated):
        def __init__(self) -> None:
            self.rule = object()

    for bad, given in (
        (Hops, "not a window"),
        (5, "not a window"),
        (None, "not a window"),
        ("1 min", "not a window"),
        (Unlike(5, 5), "cannot be described"),
        (Shapeless(), "no text of its own"),
        (Hops(0, 5), "longest"),
    ):
        with pytest.raises(PlanError, match=f"{given}.*Hint:"):
            rows.window(bad)  # type: ignore[arg-type]


def test_window_takes_every_kind_of_window() -> None:
    rows = stream_of("user string, at bigint").watermark("at", 0).key_by("user")
    pairs = [
        (windows.tumbling("1 s", 5), rows.tumbling_window("1 s", 5)),
        (windows.hopping("1 s", "400 ms"), rows.hopping_window("1 s", "400 ms")),
        (windows.session("1 s"), rows.session_window("1 s")),
        (windows.session("at"), rows.session_window("at")),
        (windows.lookback("1 s", with_row=True), rows.lookback_window("1 s", with_row=True)),
        (windows.count_rows(3), rows.count_window(3)),
        (kv.SlidingWindows.of(5), rows.windowed_by(kv.SlidingWindows.of(5))),
        (kv.TimeIntervalWindowOptions(1.0), rows.time_interval_window(kv.TimeIntervalWindowOptions(1.0))),
    ]
    for spec, short in pairs:
        actual = rows.window(spec)  # type: ignore[call-overload]
        assert type(actual) is type(short)
        one, other = (fingerprint(stream.agg(kv.count())._spec()) for stream in (actual, short))
        assert one == other
    with pytest.raises(PlanError, match="nothing"):
        rows.window(windows.session("nothing"))


def test_explain_and_why_not_fired_name_the_windows() -> None:
    rows = stream_of("at bigint").watermark("at", 0)
    tiles, hops = rows.window(Hops(50, 50)).agg(kv.count()), rows.window(Hops(50, 20)).agg(kv.count())
    assert "Hops(size=50, slide=20), windows of at most 50 ms" in hops.explain()
    assert "windows of an assigner" in hops.explain()
    assert "windows of an assigner with triggers" in hops.trigger(kv.Trigger.on_count(2)).explain()
    driver = Driver(tiles)
    driver.send([{"at": 5}])
    assert "no window ends at" in driver.why_not_fired(window_end=60)
    assert "fires when the watermark reaches" in driver.why_not_fired(window_end=50)
    warned = hops.with_state_ttl(kv.StateTtlConfig(20)).explain()
    assert "shorter than the window" in warned
