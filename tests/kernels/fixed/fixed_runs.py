"""Runs tumbling and hopping queries on the driver and on the plain reference, and brings both logs into one form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.testing import Driver, stream_of
from tests import reference as ref
from tests.kernels.firing.rules import facts_of
from tests.reference.model import collect_set

SCHEMA = "key string, at bigint, value bigint"
Line = tuple[str, str | None, str | None, int, int, tuple[int, ...]]
"""op, pane, key, start, end, values as ``collect_list`` gives them."""
LISTS = (kv.collect_list("value").alias("values"), kv.collect_set("value").alias("distinct"))


@dataclass(frozen=True)
class Query:
    """A query both sides understand; times in ms."""

    size: int = 10
    slide: int | None = None
    offset: int = 0
    lag: int = 0
    lateness: int = 0
    late_rule: Any = "event"
    emit: Any = "updates"
    trigger: kv.Trigger = field(default_factory=kv.Trigger)
    accumulation: Any = "accumulating"
    pane: bool = True

    def stream(self, *aggs: AggCall) -> ResultStream:
        """The query in krishiv_py, with pane columns."""
        keyed = stream_of(SCHEMA).watermark("at", self.lag).key_by("key").allowed_lateness(self.lateness)
        keyed = keyed.late_rule(self.late_rule).emit(self.emit).trigger(self.trigger).accumulation(self.accumulation)
        slide = self.size if self.slide is None else self.slide
        keyed = keyed.with_pane() if self.pane else keyed
        windowed = keyed.hopping_window(self.size, slide, self.offset, allow_gaps=True)
        return windowed.agg(aggs or (*LISTS, kv.count()))

    def reference(self) -> ref.Config:
        """The query for the reference."""
        early, late = self.trigger.early, self.trigger.late
        assert not isinstance(early, kv.Interval) and late != "watermark"
        requested, waiting = facts_of(self.trigger), self.trigger._period_us is not None
        return ref.Config(
            window=ref.Fixed(self.size, self.slide, self.offset),
            watermark=ref.WatermarkSpec(lag=self.lag),
            allowed_lateness=self.lateness,
            late_rule=self.late_rule,
            emit=self.emit,
            trigger=ref.Trigger(
                early if isinstance(early, int) else None, self.trigger.on_time, late, self.accumulation, requested, waiting
            ),
        )


def dicts(rows: Sequence[ref.Row]) -> list[dict[str, Any]]:
    """Rows as a sender takes them."""
    return [{"key": r.key, "at": r.t, "value": r.value} for r in rows]


def lines_of(table: pa.Table) -> list[Line]:
    """Result rows in order, after holding their sets against their lists."""
    actual = table.to_pylist()
    for r in actual:
        assert tuple(r["distinct"]) == collect_set(r["values"])
    return [
        (r.get("op", "+I"), r.get("pane_timing"), r["key"], r["window_start"], r["window_end"], tuple(r["values"]))
        for r in actual
    ]


def driven(query: Query, steps: Sequence[ref.Step], restart_at: int | None = None) -> tuple[list[list[Line]], Driver]:
    """What the driver writes in every step."""
    driver = Driver(query.stream())
    out = []
    for number, step in enumerate(steps):
        if number == restart_at:
            driver = driver.restarted()
        if isinstance(step, ref.Batch):
            actual = driver.send(dicts(step.rows))
        elif isinstance(step, ref.Advance):
            actual = driver.advance_watermark(step.to)
        else:
            actual = driver.close()
        out.append(lines_of(actual.results))
    return out, driver


def expected(query: Query, steps: Sequence[ref.Step]) -> list[list[Line]]:
    """What the reference writes in every step."""
    out: list[list[Line]] = [[] for _ in steps]
    for e in ref.Reference(query.reference()).run(steps).emissions:
        assert e.result.key is None or isinstance(e.result.key, str)
        op = e.op if query.emit == "retractions" else "+I"  # other logs have no column for it
        out[e.step].append((op, e.pane if query.pane else None, e.result.key, e.result.start, e.result.end, e.result.listed))
    return out


def without_repeats(log: list[list[Line]]) -> list[list[Line]]:
    """Without on-time rows equal to the last of their window, which the reference leaves out."""
    last: dict[tuple[str | None, int, int], tuple[int, ...]] = {}
    out = []
    for lines in log:
        kept = []
        for line in lines:
            op, pane, key, start, end, values = line
            if pane == "on_time" and op[0] == "+" and last.get((key, start, end)) == values:
                continue
            if op[0] == "+":
                last[key, start, end] = values
            kept.append(line)
        out.append(kept)
    return out


def sets(log: list[list[Line]]) -> list[Counter[Line]]:
    """The lines of every step, order aside."""
    return [Counter(lines) for lines in log]


def folded(log: list[list[Line]]) -> dict[tuple[str | None, int, int], tuple[int, ...]]:
    """What is at the end of a retraction log; fails where something is withdrawn that does not stand."""
    standing: dict[tuple[str | None, int, int], tuple[int, ...]] = {}
    for op, _, key, start, end, values in (line for lines in log for line in lines):
        where = (key, start, end)
        if op in ("-U", "-D"):
            assert standing.pop(where) == values
        else:
            assert where not in standing
            standing[where] = values
    return standing


keys = st.sampled_from(["a", "b", None])
values = st.one_of(st.integers(0, 99), st.integers(0, 3), st.none())  # some of them equal
rows = st.builds(ref.Row, key=keys, t=st.integers(-30, 60), value=values)
batches = st.lists(rows, max_size=8).map(ref.Batch)
moves = st.integers(-20, 70).map(ref.Advance)
steps = st.lists(st.one_of(batches, batches, moves), max_size=12).map(lambda s: [*s, ref.Close()])
triggers = st.builds(
    kv.Trigger,
    early=st.sampled_from([None, "each", 2, 3]),
    on_time=st.booleans(),
    late=st.sampled_from([None, "batch", "each", 2]),
).filter(lambda t: t.on_time or t.late != "batch")  # the reference then writes at the next batch even if no row came
queries = st.builds(
    Query,
    size=st.integers(1, 20),
    slide=st.one_of(st.none(), st.integers(1, 25)),
    offset=st.integers(0, 9),
    lag=st.integers(0, 15),
    lateness=st.sampled_from([0, 0, 5, 20]),
    late_rule=st.sampled_from(["event", "window"]),
    emit=st.sampled_from(["updates", "retractions", "final"]),
    trigger=triggers,
    accumulation=st.sampled_from(["accumulating", "discarding"]),
)
