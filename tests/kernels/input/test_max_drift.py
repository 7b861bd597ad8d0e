"""Who of several sources may go on (docs/sources.md): a simulation of planners, and words for what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.errors import DurationError, PlanError
from krishiv_py.plan.durations import UNSET
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes
from krishiv_py.runtime.query import BucketMetrics
from krishiv_py.runtime.ranges.limits import Alignment
from krishiv_py.spark.remote.query import NotedLedger
from krishiv_py.testing import Driver, stream_of

PLANS = st.dictionaries(
    st.sampled_from("abc"),
    st.tuples(st.lists(st.integers(0, 60), max_size=12), st.booleans()),  # newest times of its batches; whether it ends
    min_size=1,
)


class Simulated:
    """A source: it plans one batch ahead of what is read."""

    def __init__(self, times: list[int], ends: bool) -> None:
        self.times, self.ends = list(times), ends
        self.noted: list[int] = []
        self.reached: int | None = None


def reached_by(sources: dict[str, Simulated]) -> dict[str, int]:
    """The times of those that have sent something."""
    return {name: source.reached for name, source in sources.items() if source.reached is not None}


@given(plans=PLANS, drift=st.integers(1, 30), idle=st.none() | st.integers(1, 5))
def test_all_is_read_and_nobody_runs_away(plans: dict[str, tuple[list[int], bool]], drift: int, idle: int | None) -> None:
    now = [0]
    sources = {name: Simulated(*plan) for name, plan in plans.items()}
    alignment = Alignment(drift, idle, lambda: now[0], lambda: reached_by(sources))
    for name in sources:
        alignment.join(name)
    rounds = 0
    while any(s.times or s.noted for s in sources.values()):
        rounds += 1
        assert rounds < 500, "a deadlock"
        now[0] += 1
        for name, source in sources.items():
            if source.noted:
                continue
            slowest = min(
                (s.reached if s.reached is not None else UNSET for s in sources.values() if s.times or s.noted), default=None
            )
            if alignment.holds(name):
                continue
            if source.times:
                if slowest is not None and source.reached is not None:
                    assert source.reached - slowest <= drift, "it was too far ahead of one with input"
                source.noted.append(source.times.pop(0))
                alignment.planned(name)
            elif source.ends:
                alignment.over(name)
            else:
                alignment.nothing(name)
        for source in sources.values():  # a batch takes what was noted
            if source.noted:
                source.reached = max(source.noted.pop(), -1 if source.reached is None else source.reached)
    for _ in sources:  # those that go on find nothing, so that those after them may
        for name in [n for n in sources if not alignment.holds(n)]:
            alignment.over(name) if sources[name].ends else alignment.nothing(name)
        now[0] += 10
    assert not any(alignment.holds(name) for name in sources), "nobody waits for those that are quiet or over"
    assert not alignment.waiting()


def test_it_says_who_waits_for_whom_and_how_often() -> None:
    reached = {"fast": 90_000_000, "slow": 10_000_000}
    alignment = Alignment(60_000_000, None, lambda: 0, lambda: reached)
    heard: list[list[str]] = []
    alignment.changed = lambda: heard.append(alignment.waiting())
    for name in reached:
        alignment.join(name)
    assert [alignment.holds(name) for name in ("fast", "fast", "slow")] == [True, True, False]
    assert alignment.waiting() == ["Source 'fast' is held back: it is more than 1 min (max_drift) ahead of source 'slow'."]
    reached["slow"] = 30_000_000
    assert not alignment.holds("fast") and not alignment.waiting()
    reached["fast"] = 95_000_000
    assert alignment.holds("fast") and alignment.held == {"fast": 2}
    alignment.over("slow")
    assert not alignment.holds("fast")
    assert [len(words) for words in heard] == [1, 0, 1, 0], "at each change, and asking back does not lock it up"


def test_over_connect_the_client_reads_who_waits_between_two_batches(tmp_path: Path) -> None:
    reached = {"fast": 90_000_000, "slow": 10_000_000}
    alignment = Alignment(60_000_000, None, lambda: 0, lambda: reached)
    for name in reached:
        alignment.join(name)
    plan = Driver(stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(kv.count()))._plan
    notes, of_plan = CheckpointNotes(str(tmp_path)), (plan.stages, plan.last, plan.clocks.initial)
    server = BucketMetrics(notes, *of_plan, (alignment,), every_batch=True)
    alignment.changed = server.note_waiting
    client = NotedLedger(notes, *of_plan)
    assert client.progress().held_back == {} and client.waiting() == []
    server.take(4, {}, plan.clocks.initial, reached)
    assert alignment.holds("fast")
    assert client.progress().held_back == {"fast": 1} and client.progress().batch_id == 4
    assert client.waiting() == alignment.waiting() != []
    restarted = BucketMetrics(notes, *of_plan, (alignment,), every_batch=True)
    restarted.restore()
    restarted.note_waiting()
    assert NotedLedger(notes, *of_plan).progress().batch_id == 4, "nothing new, and nothing forgotten"
    alignment.over("slow")
    assert not alignment.holds("fast")
    assert client.progress().source_watermarks_us == reached and client.waiting() == []


def test_wrong_lengths_and_places_are_refused() -> None:
    spec = kv.MultiSourceWatermarkSpec.new(max_drift="10 min").source("a", kv.WatermarkSpec.fixed_lag(0))
    assert "none more than 10 min ahead" in spec._describe()
    for wrong in (0, -1, 1.5, True, "soon"):
        with pytest.raises(DurationError):
            kv.MultiSourceWatermarkSpec.new(max_drift=wrong)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"session\.union"):
        stream_of("source string, at bigint").with_watermark(spec, "at", source_column="source")
