"""What a timeline draws is what happened: watermarks and refused rows against the driver."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import datetime, timezone

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import count
from krishiv_py.display.arrivals import arrivals
from krishiv_py.display.axes import Band, TimeAxis, bands, in_lanes
from krishiv_py.errors import ColumnError, PlanError
from krishiv_py.plan.durations import UNSET
from tests.display.pipelines import LAG_MS, batch, run, users

ROWS = st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(-9_000, 30_000))
BATCHES = st.lists(st.lists(ROWS, max_size=8).map(lambda rows: batch(*rows)), min_size=1, max_size=6)


@given(BATCHES, st.sampled_from(["event", "window"]))
def test_watermarks_and_reasons_are_those_of_the_driver(batches: list[pa.Table], rule: str) -> None:
    windows = users().watermark("at", LAG_MS).key_by("user").null_keys("side_output").tumbling_window(5_000)
    happened = run(windows.late_rule(rule).agg(count()), batches)  # type: ignore[arg-type]
    actual = arrivals(batches, "at", LAG_MS, None, happened.late, "user")
    assert list(actual.watermarks_us) == happened.watermarks_us
    assert arrivals(batches, "at", None, happened.watermarks_us, happened.late, "user").reasons == actual.reasons
    rows = pa.concat_tables(batches).to_pylist()
    for number, late in enumerate(happened.late_by_batch):
        here = range(actual.edges[number], actual.edges[number + 1])
        refused = Counter((rows[n]["user"], rows[n]["at"], actual.reasons[n]) for n in here if actual.reasons[n] is not None)
        assert refused == Counter((r["user"], r["at"], r["reason"]) for r in late)


def test_equal_rows_are_distinguished_by_the_watermark_they_met() -> None:
    #   watermark:   unset      8 s
    #   batch 0: [1 s, 10 s]    batch 1: [1 s]      the second row at 1 s is late, the first is not
    batches = [batch(("a", 1_000), ("a", 10_000)), batch(("a", 1_000))]
    late = run(users().watermark("at", LAG_MS).tumbling_window(5_000).agg(count()), batches).late
    assert arrivals(batches, "at", LAG_MS, None, late, None).reasons == (None, None, "late")


def test_late_rows_of_another_run_are_refused() -> None:
    batches = [batch(("a", 1_000), ("a", 10_000)), batch(("a", 1_000))]
    late = run(users().watermark("at", LAG_MS).tumbling_window(5_000).agg(count()), batches).late
    with pytest.raises(PlanError, match="came in no batch"):
        arrivals(batches, "at", LAG_MS + 1, None, late, None)
    with pytest.raises(PlanError, match="came in no batch"):
        arrivals(batches[:1], "at", LAG_MS, None, late, None)
    with pytest.raises(PlanError, match="SideOutputLateEventHandler"):
        arrivals(batches, "at", LAG_MS, None, late.select(["reason", "watermark", "lateness"]), None)


def test_timestamps_are_read_like_milliseconds() -> None:
    moment = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)
    for zone in ("UTC", None):
        sent = [pa.table({"at": pa.array([moment.replace(tzinfo=None)], pa.timestamp("ns", zone))})] * 2
        actual = arrivals(sent, "at", "1 s", None, None, None)
        assert actual.watermarks_us == (UNSET, int(moment.timestamp() - 1) * 1_000_000)


@pytest.mark.parametrize(
    ("lag", "given_us", "says"),
    [(None, None, "either `lag`"), (1, [0], "either `lag`"), (None, [0, 0], "one watermark per batch"), (1.5, None, "legal")],
)
def test_the_watermark_is_said_once_and_for_every_batch(lag: int | None, given_us: list[int] | None, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        arrivals([batch(("a", 1))], "at", lag, given_us, None, None)


def test_columns_that_are_not_there() -> None:
    with pytest.raises(PlanError, match="no batch"):
        arrivals([], "at", 1, None, None, None)
    with pytest.raises(ColumnError, match="'when'"):
        arrivals([batch(("a", 1))], "when", 1, None, None, None)
    with pytest.raises(ColumnError, match="did you mean 'user'"):
        arrivals([batch(("a", 1))], "at", 1, None, None, "usr")


def results(*rows: tuple[str, int, int, int, str]) -> pa.Table:
    names = ("user", "window_start", "window_end", "count", "op")
    return pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)})


def test_the_last_firing_of_a_window_counts_and_withdrawn_windows_go() -> None:
    table = results(
        ("a", 0, 5, 1, "+I"),
        ("b", 0, 6, 7, "+I"),
        ("a", 5, 9, 3, "+I"),
        ("a", 0, 5, 1, "-U"),
        ("a", 0, 5, 2, "+U"),
        ("a", 5, 9, 3, "-D"),
    )
    assert bands(table, "user", "count") == [Band(0, 5_000, "a", "2"), Band(0, 6_000, "b", "7")]


def test_a_label_must_belong_to_one_result() -> None:
    table = results(("a", 0, 5, 1, "+I"), ("b", 0, 5, 7, "+I"))
    with pytest.raises(PlanError, match="one key per panel"):
        bands(table, None, "count")
    assert bands(table, None, None) == [Band(0, 5_000, None, "")]
    assert bands(table.drop_columns("user"), None, "count") == [Band(0, 5_000, None, "7")]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), max_size=20))
def test_bands_of_a_lane_do_not_overlap_and_no_lane_is_too_many(spans: list[tuple[int, int]]) -> None:
    placed = in_lanes(sorted((Band(s, s + n, None, "") for s, n in spans), key=lambda b: (b.start_us, b.end_us)))
    for lane in {b.lane for b in placed}:
        here = [b for b in placed if b.lane == lane]
        assert all(left.end_us <= right.start_us for left, right in itertools.pairwise(here))
    deepest = max((sum(b.start_us <= t < b.end_us for b in placed) for t in range(81)), default=0)
    assert len({b.lane for b in placed}) == deepest


def test_small_numbers_are_lengths_and_others_dates() -> None:
    assert TimeAxis.over(np.array([0, 90_000_000])) == TimeAxis("event time (s)", 1_000_000)
    assert TimeAxis.over(np.array([0, 360_000_000])) == TimeAxis("event time (min)", 60_000_000)
    assert TimeAxis.over(np.array([], np.int64)).label == "event time (ms)"
    calendar = TimeAxis.over(np.array([1_700_000_000_000_000]))
    assert calendar.label == "event time (UTC)"
    assert calendar.at(86_400_000_000 * 3) == 3.0
