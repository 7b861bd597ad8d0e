"""Session windows on the JVM-free driver (SEMANTICS §3.3, §4.2, §5)."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, seed
from hypothesis import strategies as st

from krishiv_py import count, sum
from krishiv_py.errors import ColumnError, DurationError, PlanError
from krishiv_py.testing import Driver, stream_of
from tests import reference as ref
from tests.kernels.session_streams import SCHEMA, Shape, assert_same

SEEDS = st.integers(0, 2**32 - 1)
Rule = Literal["event", "window"]
Emit = Literal["final", "updates", "retractions"]


@pytest.mark.parametrize("emit", ["final", "updates", "retractions"])
@pytest.mark.parametrize("rule", ["event", "window"])
@seed(20240229)
@given(SEEDS, st.sampled_from([1, 4, 9, 25]), st.sampled_from([0, 3, 20]), st.sampled_from([0, 5, 30]), st.booleans(), st.booleans())
def test_sessions_are_those_of_the_reference(
    rule: Rule, emit: Emit, number: int, gap: int, lag: int, lateness: int, merge: bool, ordered: bool
) -> None:
    touch: Literal["merge", "separate"] = "merge" if merge else "separate"
    stream = stream_of(SCHEMA).watermark("t", lag).key_by("k").session_window(gap, touch=touch)
    stream = stream.allowed_lateness(lateness).late_rule(rule).emit(emit)
    config = ref.Config(ref.Session(gap, touch=touch), ref.WatermarkSpec(lag), lateness, rule, emit)
    assert_same(stream, config, Shape(number, null_times=True), ordered=ordered)


@pytest.mark.parametrize("rule", ["event", "window"])
@seed(20240301)
@given(SEEDS, st.sampled_from([0, 10]), st.sampled_from([0, 15]), st.booleans(), st.sampled_from(["final", "retractions"]))
def test_every_row_may_have_a_gap_of_its_own(rule: Rule, number: int, lag: int, lateness: int, merge: bool, emit: Emit) -> None:
    touch: Literal["merge", "separate"] = "merge" if merge else "separate"
    stream = stream_of(SCHEMA).watermark("t", lag).key_by("k").session_window("gap", touch=touch)
    stream = stream.allowed_lateness(lateness).late_rule(rule).emit(emit)
    config = ref.Config(ref.Session(0, touch=touch), ref.WatermarkSpec(lag), lateness, rule, emit)
    assert_same(stream, config, Shape(number, gaps=(0, -3, 1, 4, 9, 30)), ordered=True)


@pytest.mark.parametrize("emit", ["final", "updates", "retractions"])
@pytest.mark.parametrize("rule", ["event", "window"])
@seed(20240302)
@given(SEEDS, st.sampled_from([3, 8]), st.sampled_from([5, 12, 25]), st.sampled_from([0, 10]), st.sampled_from([0, 5, 20]), st.booleans())
def test_capped_sessions_are_those_of_the_reference(
    rule: Rule, emit: Emit, number: int, gap: int, cap: int, lag: int, lateness: int, merge: bool
) -> None:
    touch: Literal["merge", "separate"] = "merge" if merge else "separate"
    stream = stream_of(SCHEMA).watermark("t", lag).key_by("k").session_window(gap, touch=touch, max_duration=cap)
    stream = stream.allowed_lateness(lateness).late_rule(rule).emit(emit)
    config = ref.Config(ref.Session(gap, cap, touch=touch), ref.WatermarkSpec(lag), lateness, rule, emit)
    assert_same(stream, config, Shape(number, spread=40), ordered=True)


@pytest.mark.parametrize("rule", ["event", "window"])
@seed(20240303)
@given(SEEDS, st.sampled_from([5, 15, 40]), st.sampled_from([0, 15]), st.sampled_from(["final", "retractions"]))
def test_capped_sessions_with_a_gap_per_row(rule: Rule, number: int, cap: int, lateness: int, emit: Emit) -> None:
    stream = stream_of(SCHEMA).watermark("t", 5).key_by("k").session_window("gap", max_duration=cap)
    stream = stream.allowed_lateness(lateness).late_rule(rule).emit(emit)
    config = ref.Config(ref.Session(0, cap), ref.WatermarkSpec(5), lateness, rule, emit)
    assert_same(stream, config, Shape(number, spread=40, gaps=(0, 1, 4, 9, 30)), ordered=True)
