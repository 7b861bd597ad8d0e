"""Random streams for windows that keep rows (look-back, distinct-set), and the same stream through library and reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import attrs
import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.kernels.results import StepResult, WindowOperator
from krishiv_py.kernels.spec import Moment
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.testing import Driver, stream_of
from tests import reference as ref
from tests.reference.run import Kind

Seen = Counter[tuple[Any, ...]]
AGGS = [
    kv.count(),
    kv.sum("value").alias("total"),
    kv.min("value").alias("low"),
    kv.max("value").alias("high"),
    kv.collect_list("value").alias("values"),
    kv.collect_set("value").alias("distinct"),
]


@dataclass(frozen=True)
class Plan:
    """A stream and the options it runs under; every key is a stream of its own. Times in ms, negative ones included."""

    seed: int
    rows: int
    keys: int
    size: int
    lag: int
    lateness: int
    step: float
    jitter: int
    batches: int
    emit: Literal["final", "updates", "retractions"]
    rule: Literal["event", "window"]
    advances: bool = True
    each: bool = False

    def steps(self) -> list[ref.Step]:
        """Rows in random batches, now and then an advance of the watermark, and the end."""
        rng = np.random.default_rng(self.seed)
        times = np.floor(np.cumsum(rng.exponential(self.step, self.rows)) - self.rows * self.step / 2).astype(int)
        times += rng.integers(-self.jitter, self.jitter + 1, self.rows)
        names = [None, *(f"k{i}" for i in range(self.keys - 1))]
        rows = [
            ref.Row(names[int(k)], int(t), None if v == 0 else int(v - 10))
            for k, t, v in zip(rng.integers(0, self.keys, self.rows), times, rng.integers(0, 20, self.rows), strict=True)
        ]
        cuts = np.sort(rng.integers(0, self.rows + 1, self.batches - 1)).tolist()
        steps: list[ref.Step] = []
        for start, stop in zip([0, *cuts], [*cuts, self.rows], strict=True):
            steps.append(ref.Batch(rows[start:stop]))
            if self.advances and stop and rng.random() < 0.15:
                steps.append(ref.Advance(int(times[:stop].max()) + int(rng.integers(-self.lag - 2, 3))))
        return [*steps, ref.Close()]


def plans(**fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Plan]:
    """Plans; by `fixed` some of their fields can be pinned."""
    fields: dict[str, st.SearchStrategy[Any]] = {
        "seed": st.integers(0, 2**32),
        "rows": st.integers(0, 120),
        "keys": st.integers(1, 20),
        "size": st.integers(0, 12),
        "lag": st.integers(0, 6),
        "lateness": st.just(0),
        "step": st.sampled_from([0.0, 0.2, 1.0, 3.0]),
        "jitter": st.integers(0, 12),
        "batches": st.integers(1, 9),
        "emit": st.just("final"),
        "rule": st.sampled_from(["event", "window"]),
    }
    return st.builds(Plan, **{**fields, **fixed})


def expected(plan: Plan, kind: Kind) -> tuple[list[Seen], list[Seen]]:
    """What the reference writes and refuses, step by step."""
    steps = plan.steps()
    trigger = ref.Trigger(early=1, on_time=False, late=1) if plan.each else ref.Trigger()
    config = ref.Config(kind, ref.WatermarkSpec(plan.lag), plan.lateness, plan.rule, plan.emit, trigger)
    out = ref.Reference(config).run(steps)
    written: list[Seen] = [Counter() for _ in steps]
    for e in out.emissions:
        r = e.result
        op = (e.op,) if plan.emit == "retractions" else ()
        written[e.step][(r.key, r.start, r.end, len(r.values), r.listed, r.distinct, *op)] += 1
    late: list[Seen] = [Counter() for _ in steps]
    for row in out.late:
        late[row.step][(row.row.key, row.row.t, row.row.value)] += 1
    return written, late


class Sleeper:
    """An operator that is called as adapters call it: for rows, or once the watermark has reached its `wakeup_us`."""

    def __init__(self, operator: WindowOperator) -> None:
        self.operator = operator
        self.last: StepResult | None = None

    def combine(self, rows: pa.Table) -> pa.Table:
        return self.operator.combine(rows)

    def step(self, bucket: Bucket, chunks: list[pa.Table], moment: Moment) -> StepResult:
        wake = None if self.last is None else self.last.wakeup_us
        if self.last is not None and not any(c.num_rows for c in chunks) and (wake is None or moment.watermark_us < wake):
            return attrs.evolve(self.last, results=self.last.results.slice(0, 0), late=None, counters={})
        self.last = self.operator.step(bucket, chunks, moment)
        return self.last

    def state(self, bucket: Bucket) -> pa.Table:
        return self.operator.state(bucket)


def observed(plan: Plan, windowed: Callable[[KeyedStream], ResultStream]) -> tuple[list[Seen], list[Seen]]:
    """What the driver writes and refuses, step by step, going through a restart, or a sleep, now and then."""
    keyed = stream_of("key string, at bigint, value bigint").watermark("at", plan.lag).key_by("key")
    if plan.lateness:
        keyed = keyed.allowed_lateness(plan.lateness)
    if plan.each:
        keyed = keyed.trigger(kv.Trigger(early=1, on_time=False, late=1))
    driver = Driver(windowed(keyed.late_rule(plan.rule).emit(plan.emit)))
    rng = np.random.default_rng(plan.seed)
    if plan.seed % 2:
        driver._stage.operator = Sleeper(driver._stage.operator)
    written, late = [], []
    for step in plan.steps():
        if plan.seed % 2 == 0 and rng.random() < 0.2:
            driver = driver.restarted()
        if isinstance(step, ref.Batch):
            out = driver.send([{"key": r.key, "at": r.t, "value": r.value} for r in step.rows])
        elif isinstance(step, ref.Advance):
            out = driver.advance_watermark(step.to)
        else:
            out = driver.close()
        rows = out.results.to_pylist()
        written.append(Counter(_shown(r) for r in rows))
        late.append(Counter((r["key"], r["at"], r["value"]) for r in out.late.to_pylist()))
    assert driver.open_windows == 0
    return written, late


def _shown(row: dict[str, Any]) -> tuple[Any, ...]:
    values = row["values"]
    assert row["total"] == (sum(values) if values else None)
    assert (row["low"], row["high"]) == ((min(values), max(values)) if values else (None, None))
    op = (row["op"],) if "op" in row else ()
    return (row["key"], row["window_start"], row["window_end"], row["count"], tuple(values), tuple(row["distinct"]), *op)
