"""Session windows on the JVM-free driver (SEMANTICS §3.3, §4.2, §5)."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import given, seed
from hypothesis import strategies as st

from krishiv_py import col, count, first, sum
from krishiv_py.errors import ColumnError, DurationError, PlanError
from krishiv_py.kernels.prepare import RowPreparer
from krishiv_py.kernels.registry import operator_for
from krishiv_py.plan.aggregates.calls import AggCall
from krishiv_py.testing import Driver, stream_of
from tests import reference as ref
from tests.kernels.session.session_streams import FEWER, SCHEMA, Shape, assert_same

SEEDS = st.integers(0, 2**32 - 1)
LATENESS = st.sampled_from([0, 5, 20])
YES_OR_NO = st.booleans()
Rule = Literal["event", "window"]
Emit = Literal["final", "updates", "retractions"]


@pytest.mark.parametrize("emit", ["final", "updates", "retractions"])
@pytest.mark.parametrize("rule", ["event", "window"])
@seed(20240229)
@FEWER
@given(SEEDS, st.sampled_from([1, 4, 9, 25]), st.sampled_from([0, 3, 20]), st.sampled_from([0, 5, 30]), YES_OR_NO, YES_OR_NO)
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
@FEWER
@given(
    SEEDS, st.sampled_from([0, 10]), st.sampled_from([0, 15]), YES_OR_NO, st.sampled_from(["final", "retractions"]), YES_OR_NO
)
def test_every_row_may_have_a_gap_of_its_own(
    rule: Rule, number: int, lag: int, lateness: int, merge: bool, emit: Emit, ordered: bool
) -> None:
    touch: Literal["merge", "separate"] = "merge" if merge else "separate"
    stream = stream_of(SCHEMA).watermark("t", lag).key_by("k").session_window("gap", touch=touch)
    stream = stream.allowed_lateness(lateness).late_rule(rule).emit(emit)
    config = ref.Config(ref.Session(0, touch=touch), ref.WatermarkSpec(lag), lateness, rule, emit)
    assert_same(stream, config, Shape(number, gaps=(0, -3, 1, 4, 9, 30)), ordered=ordered)


@pytest.mark.parametrize("emit", ["final", "updates", "retractions"])
@pytest.mark.parametrize("rule", ["event", "window"])
@seed(20240302)
@FEWER
@given(SEEDS, st.sampled_from([3, 8]), st.sampled_from([5, 12, 25]), st.sampled_from([0, 10]), LATENESS, YES_OR_NO)
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
@FEWER
@given(SEEDS, st.sampled_from([5, 15, 40]), st.sampled_from([0, 15]), st.sampled_from(["final", "retractions"]))
def test_capped_sessions_with_a_gap_per_row(rule: Rule, number: int, cap: int, lateness: int, emit: Emit) -> None:
    stream = stream_of(SCHEMA).watermark("t", 5).key_by("k").session_window("gap", max_duration=cap)
    stream = stream.allowed_lateness(lateness).late_rule(rule).emit(emit)
    config = ref.Config(ref.Session(0, cap), ref.WatermarkSpec(5), lateness, rule, emit)
    assert_same(stream, config, Shape(number, spread=40, gaps=(0, 1, 4, 9, 30)), ordered=True)


def sent(stream: Any, *batches: list[tuple[int, int]]) -> list[list[tuple[Any, ...]]]:
    """Results of each batch of (time, value) rows of one key, without the key; the last list is the end of input."""
    driver = Driver(stream)
    steps = [driver.send([{"k": "a", "t": t, "v": v} for t, v in batch]) for batch in batches]
    return [[tuple(row.values())[1:] for row in out.results.to_pylist()] for out in (*steps, driver.close())]


def keyed(lag: int = 0) -> Any:
    return stream_of(SCHEMA).watermark("t", lag).key_by("k")


def test_a_row_at_distance_gap_is_apart_or_joins() -> None:
    """::

    gap 10   0         10
             |---------)
                       |---------)
    """
    rows = [(0, 1), (10, 2)]
    assert sent(keyed().session_window(10).agg(sum("v")), rows)[-1] == [(10, 20, 2)]
    assert sent(keyed().session_window(10, touch="merge").agg(sum("v")), rows)[-1] == [(0, 20, 3)]


def test_a_bridging_row_joins_two_sessions() -> None:
    """::

    gap 10   0        8     14
             |---------)    |---------)      first batch
                      |---------)            second batch
    """
    out = sent(keyed(100).session_window(10).agg(count()), [(0, 1), (14, 2)], [(8, 3)])
    assert out == [[], [], [(0, 24, 3)]]


def test_a_merged_session_withdraws_what_was_there() -> None:
    """Both sessions have fired; a mildly late row joins them, in a batch of its own."""
    stream = keyed().session_window(10).allowed_lateness(100).emit("retractions").agg(count())
    out = sent(stream, [(0, 1), (14, 2), (60, 9)], [(8, 3)])
    assert out[0] == [(0, 10, 1, "+I"), (14, 24, 1, "+I")]
    assert out[1] == [(0, 10, 1, "-D"), (14, 24, 1, "-D"), (0, 24, 3, "+I")]
    assert out[2] == [(60, 70, 1, "+I")]


def test_a_changed_session_with_the_same_bounds_is_an_update() -> None:
    stream = keyed().session_window(10).allowed_lateness(100).emit("retractions").agg(sum("v"))
    out = sent(stream, [(0, 1), (8, 2), (60, 9)], [(4, 3)])
    assert out[1] == [(0, 18, 3, "-U"), (0, 18, 6, "+U")]


def test_a_session_that_grew_beyond_the_watermark_stays_until_it_fires_again() -> None:
    stream = keyed().session_window(10).allowed_lateness(100).emit("retractions").agg(count())
    out = sent(stream, [(0, 1), (12, 9)], [(5, 2)], [(40, 9)])
    assert out[0] == [(0, 10, 1, "+I")]
    assert out[1] == []
    assert out[2] == [(0, 10, 1, "-D"), (0, 22, 3, "+I")]


def test_panes_are_numbered_over_the_life_of_a_session() -> None:
    for cap in (None, 1_000):
        stream = keyed().session_window(10, max_duration=cap).allowed_lateness(100).emit("updates").with_pane().agg(count())
        out = sent(stream, [(0, 1), (14, 1), (60, 1)], [(4, 1)], [(5, 1)])
        assert out == [
            [(0, 10, 1, "on_time", 0), (14, 24, 1, "on_time", 0)],
            [(0, 14, 2, "late", 1)],
            [(0, 24, 4, "late", 2)],
            [(60, 70, 1, "on_time", 0)],
        ]


def test_under_the_window_rule_a_row_behind_the_watermark_may_join_an_open_session() -> None:
    """W = 15: the row at 4 is late alone, [4, 14), but not where [8, 18) is open."""
    stream = keyed().session_window(10).late_rule("window").agg(count())
    with_open, alone = Driver(stream), Driver(stream)
    with_open.send([{"k": "a", "t": 8, "v": 1}, {"k": "b", "t": 15, "v": 1}])
    alone.send([{"k": "b", "t": 15, "v": 1}])
    assert with_open.send([{"k": "a", "t": 4, "v": 2}]).late.num_rows == 0
    refused = alone.send([{"k": "a", "t": 4, "v": 2, "gap": 7}]).late.to_pylist()
    assert refused == [{"k": "a", "t": 4, "v": 2, "gap": 7, "reason": "late", "watermark": 15, "lateness": 11}]
    assert alone.counters["late"] == 1


@pytest.mark.parametrize(("aggregate", "shuffled"), [(count(), 6 + 2), (first("v"), 50)])
def test_under_the_window_rule_only_rows_in_doubt_travel_alone(aggregate: AggCall, shuffled: int) -> None:
    """W = 100: of rows at 85 to 134 of two keys, six alone would end by then. By order of arrival none is combined."""
    spec = keyed().session_window(10).late_rule("window").agg(aggregate)._spec()
    rows = [{"k": "ab"[t % 2], "t": t, "v": t} for t in range(85, 135)]
    accepted = RowPreparer(spec)(pa.RecordBatch.from_pylist(rows, schema=spec.source_schema), 100_000).rows
    assert operator_for(spec).combine(accepted).num_rows == shuffled


def test_a_capped_session_is_divided_again_by_an_early_row() -> None:
    """::

    gap 5, at most 10    -3   0   4   8   12
                              |---------|        [0, 10) and [12, 17) first
                          |------)                [-3, 7) and [8, 17) with the row at -3
    """
    stream = keyed(100).session_window(5, max_duration=10).agg(count())
    assert sent(stream, [(0, 1), (4, 1), (8, 1), (12, 1)])[-1] == [(0, 10, 3), (12, 17, 1)]
    assert sent(stream, [(0, 1), (4, 1), (8, 1), (12, 1)], [(-3, 1)])[-1] == [(-3, 7, 3), (8, 17, 2)]


def test_gaps_may_be_a_duration_column() -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("gap", pa.duration("us"))])
    stream = stream_of(schema).watermark("t", 0).session_window(col("gap")).agg(count())
    moment = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
    second = dt.timedelta(seconds=1)
    driver = Driver(stream)
    driver.send([{"t": moment, "gap": 5 * second}, {"t": moment + 2 * second, "gap": second}, {"t": moment, "gap": None}])
    result = driver.close().results.to_pylist()
    assert result == [{"window_start": moment, "window_end": moment + 5 * second, "count": 2}]
    assert driver.counters["unassigned"] == 1


@pytest.mark.parametrize("gap", [0, -1, True, 1.5, "5 parsecs", ""])
def test_what_is_no_gap_is_refused(gap: Any) -> None:
    with pytest.raises(DurationError, match="gap"):
        keyed().session_window(gap)


def test_a_gap_column_must_exist_and_hold_lengths() -> None:
    with pytest.raises(ColumnError, match="did you mean 'gap'"):
        keyed().session_window("gape")
    with pytest.raises(ColumnError, match="cannot be a session gap"):
        keyed().session_window("k")
    with pytest.raises(PlanError, match="touch"):
        keyed().session_window(5, touch="sometimes")


def test_without_a_longest_duration_the_plan_warns() -> None:
    assert "unbounded" in keyed().session_window("5 s").agg(count()).explain()
    assert "unbounded" not in keyed().session_window("5 s", max_duration="1 min").agg(count()).explain()
    assert "! session" not in keyed().count_window(2).agg(count()).explain()


#   gap 25               |-34----|   |4-----|   |22----|
#                                |-10----|
#   horizon                             3                 28, 34      the first waits for 29, the second for 47
def test_rows_that_wait_for_different_ends_are_one_session() -> None:
    driver = Driver(keyed().session_window(25).allowed_lateness(15).emit("final").agg(count()))
    others = [{"k": str(n), "t": -34, "v": 0} for n in range(50)]  # so that bounds of the few are not merged on the way
    for batch in ([*others, {"k": "a", "t": -34, "v": 0}], [{"k": "a", "t": -10, "v": 0}], [{"k": "a", "t": 4, "v": 0}]):
        driver.send(batch)
    driver.advance_watermark(18)
    driver.send([{"k": "a", "t": 22, "v": 0}])
    assert driver.advance_watermark(43).results.num_rows == 0
    assert driver.advance_watermark(49).results.num_rows == 0
    assert [tuple(r.values()) for r in driver.close().results.to_pylist()] == [("a", -34, 47, 4)]
