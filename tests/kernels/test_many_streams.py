"""Two thousand random streams for every kernel, against the plain reference.

What a key gives hangs on its own rows and on the watermark alone, so a generated case with 50 keys is 50 streams, whose rows
come out of order, in batches of any size, under watermarks they share, and through restarts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Final, Literal

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py.testing import stream_of
from tests import reference as ref
from tests.kernels.fixed import fixed_runs, test_panes
from tests.kernels.ranged import per_row
from tests.kernels.session import session_streams, test_session_triggers
from tests.kernels.session.session_streams import SCHEMA, Shape

KEYS: Final = 50
TRIED = settings.default.max_examples if settings.default else 40
MANY = settings(max_examples=max(600, TRIED) // KEYS)
NUMBERS = st.integers(0, 2**32 - 1)
Rule = Literal["event", "window"]


def steps(number: int, **more: Any) -> list[ref.Step]:
    """About seven rows for each of the keys."""
    return Shape(number, keys=KEYS, **more).steps()


@MANY
@given(NUMBERS, fixed_runs.queries)
def test_fixed_windows(number: int, drawn: fixed_runs.Query) -> None:
    query = replace(drawn, trigger=kv.Trigger(), accumulation="accumulating", pane=False)
    given_steps = steps(number)
    seen, _ = fixed_runs.driven(query, given_steps, restart_at=number % 9)
    assert fixed_runs.sets(seen) == fixed_runs.sets(fixed_runs.expected(query, given_steps))


@MANY
@given(NUMBERS, fixed_runs.queries)
def test_fixed_windows_with_triggers(number: int, query: fixed_runs.Query) -> None:
    given_steps = steps(number)
    sides = fixed_runs.driven(query, given_steps, restart_at=number % 9)[0], fixed_runs.expected(query, given_steps)
    seen, want = (fixed_runs.sets(fixed_runs.without_repeats(side)) for side in sides)
    assert seen == want


@MANY
@given(NUMBERS, test_panes.configs)
def test_time_interval_panes(number: int, config: ref.PaneConfig) -> None:
    given_steps = steps(number)
    want: list[Counter[tuple[Any, ...]]] = [Counter() for _ in given_steps]
    for e in ref.run_panes(config, given_steps).events:
        if e.event == "window_trigger":
            want[e.step][test_panes.triggered(e)] += 1
    seen = test_panes.run(config, given_steps, None)
    assert want == [Counter(map(test_panes.written, rows)) for rows in seen]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("cap", [None, 12])
@MANY
@given(
    NUMBERS,
    st.sampled_from([3, 9, 25]),
    st.sampled_from([0, 15]),
    st.sampled_from([0, 15]),
    st.booleans(),
    st.sampled_from(["event", "window"]),
    st.sampled_from(["final", "updates", "retractions"]),
)
def test_sessions(cap: int | None, number: int, gap: int, lag: int, lateness: int, merge: bool, rule: Rule, emit: Any) -> None:
    touch: Literal["merge", "separate"] = "merge" if merge else "separate"
    stream = stream_of(SCHEMA).watermark("t", lag).key_by("k").session_window(gap, touch=touch, max_duration=cap)
    stream = stream.allowed_lateness(lateness).late_rule(rule).emit(emit)
    config = ref.Config(ref.Session(gap, cap, touch=touch), ref.WatermarkSpec(lag), lateness, rule, emit)
    session_streams.assert_same(stream, config, Shape(number, keys=KEYS), ordered=False)


@MANY
@given(NUMBERS, test_session_triggers.queries)
def test_sessions_with_triggers(number: int, query: test_session_triggers.Query) -> None:
    given_steps = steps(number, gaps=(1, 3, 6, 15))
    seen = test_session_triggers.driven(query, given_steps, restart_at=number % 9)
    want = test_session_triggers.expected(query, given_steps)
    assert test_session_triggers.compared(query, seen.lines) == test_session_triggers.compared(query, want.lines)
    assert seen.late == want.late


@MANY
@given(NUMBERS, st.integers(1, 6), st.integers(1, 6), st.sampled_from([0, 10]), st.sampled_from(["event", "window"]))
def test_count_windows(number: int, size: int, slide: int, lag: int, rule: Rule) -> None:
    slide = min(slide, size)
    stream = stream_of(SCHEMA).watermark("t", lag).key_by("k").count_window(size, slide).late_rule(rule)
    config = ref.Config(ref.CountWindow(size, slide), ref.WatermarkSpec(lag), 0, rule)
    session_streams.assert_same(stream, config, Shape(number, keys=KEYS), ordered=False)


PLANS = per_row.plans(
    lateness=st.integers(0, 8),
    emit=st.sampled_from(["final", "updates", "retractions"]),
    keys=st.just(KEYS),
    rows=st.just(7 * KEYS),
    step=st.sampled_from([0.05, 0.2, 1.0]),
)


@MANY
@given(PLANS, st.booleans())
def test_lookback_windows(plan: per_row.Plan, two_sided: bool) -> None:
    seen = per_row.observed(plan, lambda s: s.lookback_window(plan.size, two_sided=two_sided).agg(per_row.AGGS))
    assert seen == per_row.expected(plan, ref.LookBack(plan.size, two_sided))


@MANY
@given(PLANS)
def test_distinct_set_windows(plan: per_row.Plan) -> None:
    windows = kv.SlidingWindows.of(plan.size)
    seen = per_row.observed(plan, lambda s: s.windowed_by(windows).agg(per_row.AGGS))
    assert seen == per_row.expected(plan, ref.DistinctSet(plan.size))


def test_a_case_has_rows_for_nearly_every_key() -> None:
    """What "2 000 streams" is on."""
    counts = []
    for number in range(20):
        keys = {r.key for s in steps(number) if isinstance(s, ref.Batch) for r in s.rows}
        plan = per_row.Plan(number, 7 * KEYS, KEYS, 5, 0, 0, 0.2, 3, 5, "final", "event")
        more = {r.key for s in plan.steps() if isinstance(s, ref.Batch) for r in s.rows}
        counts += [len(keys), len(more)]
    assert np.mean(counts) > 0.99 * KEYS
    assert attrs.fields(Shape).rows_per_key.default == 7
