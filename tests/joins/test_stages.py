"""Joins whose sides are results of stages, against rows one by one (SEMANTICS §7, §9.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import attrs
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import count
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.testing import Driver, StepOutput, stream_of
from tests.reference import joined_stages as ref
from tests.reference.joins import How

Kind = Literal["plain", "once", "counted"]
LEFT, RIGHT = "lid string, key string, at bigint", "rid string, other string, seen bigint"


@attrs.frozen
class SidePlan:
    """A side: what its stage is, its lag, the lateness of its stage, and what the join takes off its watermark."""

    kind: Kind
    lag: int
    lateness: int
    more_lag: int

    def reference(self) -> ref.Side:
        if self.kind == "plain":
            return ref.Plain(self.lag)
        return ref.Once(self.lag, 6, self.lateness) if self.kind == "once" else ref.Counted(self.lag, 5, self.lateness)

    def stream(self, ddl: str, key: str, time: str) -> Any:
        timed = stream_of(ddl).watermark(time, self.lag)
        if self.kind == "plain":
            return timed
        if self.kind == "once":
            passed = timed.drop_duplicates(key, within=6).allowed_lateness(self.lateness)
            return passed.watermark(time, self.more_lag)
        windows = timed.key_by(key).allowed_lateness(self.lateness).tumbling_window(5).agg(count().alias(f"{time}_n"))
        named = windows.select(key, f"{time}_n", **{f"{time}_end": "window_end"})
        return named.watermark("window_time", self.more_lag)


@attrs.frozen
class Plan:
    """A join and its input."""

    sides: tuple[SidePlan, SidePlan]
    how: How
    lower: int
    upper: int
    lateness: int
    batches: list[list[tuple[str, ref.Row]]]
    restarts: set[int]
    idle_batches: bool

    def joined(self) -> ResultStream:
        left = self.sides[0].stream(LEFT, "key", "at")
        right = self.sides[1].stream(RIGHT, "other", "seen")
        joined: ResultStream = left.interval_join(
            right, {"key": "other"}, lower=self.lower, upper=self.upper, how=self.how
        ).allowed_lateness(self.lateness)
        return joined

    def reference(self) -> ref.Join:
        lags = tuple(0 if side.kind == "plain" else side.more_lag for side in self.sides)
        one, other = (side.reference() for side in self.sides)
        return ref.Join(one, other, self.lower, self.upper, self.how, self.lateness, self.idle_batches, (lags[0], lags[1]))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    rows = st.tuples(st.sampled_from(["left", "right"]), st.sampled_from(["a", "b", None]), st.integers(-5, 25))
    actual = draw(st.lists(st.lists(rows, max_size=6), max_size=8))
    if draw(st.booleans()):
        flat = sorted((r for batch in actual for r in batch), key=lambda r: r[2])
        actual = [flat[i : i + 3] for i in range(0, len(flat), 3)]
    number = iter(range(1_000))
    lower, upper = sorted(draw(st.tuples(st.integers(-6, 6), st.integers(-6, 6))))
    side = st.builds(SidePlan, st.sampled_from(get_args(Kind)), *[st.integers(0, 4)] * 3)
    return Plan(
        draw(st.tuples(side, side)),
        draw(st.sampled_from(get_args(How))),
        lower,
        upper,
        draw(st.integers(0, 3)),
        [[(name, ref.Row(f"{next(number)}", key, t)) for name, key, t in batch] for batch in actual],
        draw(st.sets(st.integers(0, 8), max_size=3)),
        draw(st.booleans()),
    )


def shown(out: StepOutput, plan: Plan) -> list[str]:
    """Results as the reference tells them."""
    actual = []
    for row in out.results.to_pylist():
        ids, times = [], []
        for side, (id_, time) in zip(plan.sides, (("lid", "at"), ("rid", "seen")), strict=True):
            if side.kind == "counted":
                end = row.get(f"{time}_end")
                ids.append(None if end is None else f"{row['key']}@{end}")
                times.append(None if end is None else end - 1)
            else:
                ids.append(row.get(id_))
                times.append(row.get(time))
        stated = row["join_time"] if "join_time" in row else times[0]
        actual.append(repr((ids[0], ids[1], stated)))
    return sorted(actual)


def late(out: StepOutput) -> list[str]:
    return sorted(row.get("lid") or row["rid"] for part in out.late_by_stage.values() for row in part.to_pylist())


def rows_of(batch: Sequence[tuple[str, ref.Row]], side: str) -> list[ref.Row]:
    return [row for name, row in batch if name == side]


def sent(plan: Plan, batch: Sequence[tuple[str, ref.Row]]) -> Any:
    """The rows as a driver takes them."""
    left = [{"lid": r.id, "key": r.key, "at": r.t} for r in rows_of(batch, "left")]
    right = [{"rid": r.id, "other": r.key, "seen": r.t} for r in rows_of(batch, "right")]
    return {"left": left, "right": right}


@given(plans())
def test_results_are_those_of_rows_one_by_one(plan: Plan) -> None:
    driver, reference = Driver(plan.joined(), idle_batches=plan.idle_batches), plan.reference()
    for number, batch in enumerate([*plan.batches, None]):
        if number in plan.restarts:
            driver = driver.restarted()
        out = driver.close() if batch is None else driver.send(sent(plan, batch))
        wanted = reference.send(rows_of(batch or (), "left"), rows_of(batch or (), "right"), ended=batch is None)
        assert shown(out, plan) == sorted(map(repr, wanted.results))
        assert late(out) == sorted(wanted.late)
    assert driver.progress.open_rows == 0


def test_keyed_results_show_the_event_time_that_a_step_named() -> None:
    counts = stream_of("k string, at bigint").watermark("at", 0).key_by("k").tumbling_window(10).agg(count())
    other = stream_of("k string, seen bigint").watermark("seen", 0)
    named = counts.select("k", "count", "window_time")
    for results, shown in ((named, True), (named.key_by("k"), True), (counts, False), (counts.key_by("k"), False)):
        joined = results.interval_join(other, "k", lower=0, upper=5)
        assert ("window_time" in joined.schema.names) == shown
