"""A query whose input never pauses runs no batch without rows, and says the same in the end.

Which rows are late follows from the watermarks in force, which are the same with and without such batches. So only the moment
of a firing may differ: windows that are due fire in the batch that brings rows too late for them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.windowed import WindowedStream
from krishiv_py.testing import Driver, stream_of
from tests import reference as ref
from tests.kernels.session.session_streams import SCHEMA, Shape

WINDOWS: dict[str, Any] = {
    "tumbling": lambda k, n: k.tumbling_window(n),
    "hopping": lambda k, n: k.hopping_window(4 * n, n),
    "gaps": lambda k, n: k.hopping_window(n, n + 3, allow_gaps=True),
    "session": lambda k, n: k.session_window(n),
    "session, order-free": lambda k, n: k.session_window(n),
    "capped session": lambda k, n: k.session_window(n, max_duration=2 * n),
    "count": lambda k, n: k.count_window(n),
    "look-back": lambda k, n: k.lookback_window(n, two_sided=True),
    "distinct": lambda k, n: k.windowed_by(kv.SlidingWindows.of(n)),
}
TRIGGERS = {"default": kv.Trigger(), "rows": kv.Trigger(early=2, late=1)}


def plan(kind: str, size: int, lateness: int, rule: Any, emit: Any, trigger: str) -> ResultStream:
    keyed: KeyedStream = stream_of(SCHEMA).watermark("t", 2).key_by("k").allowed_lateness(lateness).late_rule(rule).emit(emit)
    if trigger != "default":
        keyed = keyed.trigger(TRIGGERS[trigger])
    windowed: WindowedStream = WINDOWS[kind](keyed, size)
    collected = kv.collect_set("v") if kind == "session, order-free" else kv.collect_list("v")
    return windowed.agg(collected.alias("values"))


def outcome(stream: ResultStream, steps: list[ref.Step], *, idle_batches: bool) -> tuple[Counter[Any], Counter[Any]]:
    """What is at the end of the log, and the rows that were refused."""
    driver = Driver(stream, idle_batches=idle_batches)
    standing: Counter[Any] = Counter()
    late: Counter[Any] = Counter()
    for step in steps:
        if isinstance(step, ref.Batch):
            out = driver.send([{"k": r.key, "t": r.t, "v": r.value, "gap": None} for r in step.rows])
        else:
            out = driver.advance_watermark(step.to) if isinstance(step, ref.Advance) else driver.close()
        for r in out.results.to_pylist():
            line = (r["k"], r["window_start"], r["window_end"], tuple(r["values"]))
            standing[line] += -1 if r.get("op", "+I") in ("-U", "-D") else 1
            assert standing[line] >= 0
        late.update((r["v"], r["reason"]) for r in out.late.to_pylist())
    return +standing, late


@pytest.mark.one_in(5)
@pytest.mark.parametrize("kind", WINDOWS)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([2, 5, 11]),
    st.sampled_from([0, 4]),
    st.sampled_from(["event", "window"]),
    st.sampled_from(["final", "retractions"]),
    st.sampled_from(list(TRIGGERS)),
)
def test_the_end_is_the_same(kind: str, seed: int, size: int, lateness: int, rule: Any, emit: Any, trigger: str) -> None:
    stream = plan(kind, size, lateness, rule, emit, "default" if kind in ("look-back", "distinct") else trigger)
    steps = Shape(seed, keys=4, rows_per_key=12).steps()
    assert outcome(stream, steps, idle_batches=False) == outcome(stream, steps, idle_batches=True)


#   rule "window", hopping 20/5   W = 20 after 22 (lag 2)
#   time        0    5    10   15   20   25
#   batch 1          x                x(22)
#   batch 2               x(12)             too late for [-5, 15) and [0, 20), in time for [5, 25)
def test_a_row_is_not_in_a_window_that_was_over_before_it_came() -> None:
    stream = plan("hopping", 5, 0, "window", "final", "default")
    driver = Driver(stream, idle_batches=False)
    driver.send([{"k": "a", "t": 7, "v": 1, "gap": None}, {"k": "a", "t": 22, "v": 2, "gap": None}])
    out = driver.send([{"k": "a", "t": 12, "v": 3, "gap": None}])
    assert [(r["window_start"], r["values"]) for r in out.results.to_pylist()] == [(-10, [1]), (-5, [1]), (0, [1])]
    rest = driver.close().results.to_pylist()
    assert [(r["window_start"], r["values"]) for r in rest] == [(5, [1, 3, 2]), (10, [3, 2]), (15, [2]), (20, [2])]
    assert driver.counters["late"] == 0
