"""Random streams for session and count windows: the driver against the plain reference, line by line."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import numpy as np
from hypothesis import settings

from krishiv_py import collect_list, collect_set, count, first, last, max, min, sum
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.windowed import WindowedStream
from krishiv_py.testing import Driver
from tests import reference as ref

SCHEMA = "k string, t bigint, v bigint, gap bigint"
PLAIN = (count(), sum("v"), min("v"), max("v"), collect_set("v"))
ORDERED = (*PLAIN, collect_list("v"), first("v"), last("v"))
_TRIED = settings.default.max_examples if settings.default else 60
FEWER = settings(max_examples=_TRIED // 6 or 1)
"""Every key of a stream is a stream of its own."""
Line = tuple[int, str, str | None, int, int, tuple[int, ...], str]
"""Step, op, key, bounds, values, pane."""


@attrs.frozen
class Shape:
    """How a random stream looks; times in ms."""

    seed: int
    keys: int = 24
    rows_per_key: int = 7
    spread: int = 60
    disorder: int = 15
    gaps: tuple[int, ...] = ()
    null_times: bool = False

    def steps(self) -> list[ref.Step]:
        """Micro-batches of any size, some without rows, watermarks moved by hand in between, and the end of input.

        Every value is the number of its row in order of arrival, so a result tells which rows it holds.
        """
        rng = np.random.default_rng(self.seed)
        n = self.keys * self.rows_per_key
        times = rng.integers(-self.spread, self.spread, n)
        arrival = np.argsort(times + rng.integers(-self.disorder, self.disorder + 1, n), kind="stable")
        names = [None, *(f"k{i}" for i in range(1, self.keys))]
        rows = []
        for number, index in enumerate(arrival.tolist()):
            gap = int(rng.choice(self.gaps)) if self.gaps else None
            t = None if self.null_times and rng.random() < 0.05 else int(times[index])
            rows.append(ref.Row(names[int(rng.integers(self.keys))], t, number, gap))
        steps: list[ref.Step] = []
        while rows:
            taken = int(rng.choice([0, 1, 5, 13, 40, 80]))
            steps.append(ref.Batch(rows[:taken]))
            rows = rows[taken:]
            if rng.random() < 0.15:
                steps.append(ref.Advance(int(rng.integers(-self.spread, self.spread))))
        return [*steps, ref.Close()]


@attrs.define
class Seen:
    """What came out, in the reference's terms."""

    lines: list[Line] = attrs.field(factory=list)
    late: Counter[tuple[int, int, str]] = attrs.field(factory=Counter)
    unassigned: int = 0


def of_reference(config: ref.Config, steps: list[ref.Step]) -> Seen:
    """The reference's answer."""
    out = ref.Reference(config).run(steps)
    seen = Seen(unassigned=len(out.unassigned))
    for e in out.emissions:
        assert e.result.key is None or isinstance(e.result.key, str)
        values = tuple(v for v in e.result.values if v is not None)
        seen.lines.append((e.step, e.op, e.result.key, e.result.start, e.result.end, values, e.pane))
    seen.late.update((late.step, late.row.value or 0, late.reason) for late in out.late)
    return seen


def of_driver(stream: ResultStream, steps: list[ref.Step], seed: int) -> Seen:
    """The driver's answer, restarted now and then; what aggregates say of one result must fit together."""
    rng = np.random.default_rng(seed)
    driver = Driver(stream)
    seen = Seen()
    times: dict[int, int] = {}
    for number, step in enumerate(steps):
        if rng.random() < 0.2:
            driver = driver.restarted()
        if isinstance(step, ref.Batch):
            times.update((row.value, row.t) for row in step.rows if row.value is not None and row.t is not None)
            out = driver.send([{"k": r.key, "t": r.t, "v": r.value, "gap": r.gap} for r in step.rows])
        elif isinstance(step, ref.Advance):
            out = driver.advance_watermark(step.to)
        else:
            out = driver.close()
        for row in out.results.to_pylist():
            values = check_row(row, times)
            op, bounds = row.get("op", "+I"), (row["window_start"], row["window_end"])
            seen.lines.append((number, op, row["k"], *bounds, values, row["pane_timing"]))
        seen.late.update((number, row["v"], row["reason"]) for row in out.late.to_pylist())
    seen.unassigned = driver.counters["unassigned"]
    assert driver.counters["late"] == sum_of(n for (_, _, reason), n in seen.late.items() if reason == "late")
    assert driver.open_windows == 0
    return seen


def sum_of(numbers: Any) -> int:
    """Python's own sum, whose name the aggregate has taken here."""
    total = 0
    for n in numbers:
        total += n
    return total


def check_row(row: dict[str, Any], times: dict[int, int]) -> tuple[int, ...]:
    """The values of a result, after holding its aggregates against them."""
    values: list[int] = row["collect_set_v"]
    assert row["count"] == len(values)
    assert row["sum_v"] == sum_of(values)
    assert (row["min_v"], row["max_v"]) == (values[0], values[-1])
    if "collect_list_v" in row:
        ordered = sorted(values, key=lambda v: (times[v], v))
        assert row["collect_list_v"] == ordered
        assert (row["first_v"], row["last_v"]) == (ordered[0], ordered[-1])
    return tuple(values)


def assert_same(windowed: WindowedStream, config: ref.Config, shape: Shape, *, ordered: bool) -> None:
    """Driver and reference write the same lines in the same steps, and refuse the same rows."""
    steps = shape.steps()
    want = of_reference(config, steps)
    got = of_driver(windowed.with_pane().agg(ORDERED if ordered else PLAIN), steps, shape.seed)
    assert got.late == want.late
    assert got.unassigned == want.unassigned
    if config.emit != "retractions":
        want.lines = [(step, "+I", *rest) for step, _, *rest in want.lines]  # type: ignore[misc]
    assert Counter(got.lines) == Counter(want.lines)
    assert_foldable(got.lines)


def assert_foldable(lines: list[Line]) -> None:
    """Nothing is withdrawn that does not stand."""
    standing: Counter[tuple[object, ...]] = Counter()
    for _, op, *what_and_pane in lines:
        what = tuple(what_and_pane[:-1])
        standing[what] += 1 if op[0] == "+" else -1
        assert standing[what] >= 0
