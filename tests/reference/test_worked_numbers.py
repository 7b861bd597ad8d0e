"""Numbers worked out by hand, most of them from the texts the semantics rest on."""

from __future__ import annotations

import pytest

from tests.reference import (
    Advance,
    Batch,
    Close,
    Config,
    CountWindow,
    DistinctSet,
    Fixed,
    FutureRule,
    LookBack,
    Observed,
    PaneConfig,
    PaneEvent,
    Reference,
    Row,
    Session,
    Step,
    Trigger,
    WatermarkSpec,
    classify,
    run_panes,
)
from tests.reference.model import END, UNSET


def rows(*times: int, key: str = "k") -> list[Row]:
    """Rows whose value is their time."""
    return [Row(key, t, t) for t in times]


def spans(seen: Observed) -> list[tuple[int, int, tuple[int | None, ...]]]:
    return [(e.result.start, e.result.end, e.result.values) for e in seen.emissions]


@pytest.mark.parametrize(
    ("t", "expected"),
    [(195, "mildly_late"), (140, "mildly_late"), (130, "very_late"), (200, "on_time"), (260, "on_time"), (261, "future")],
)
def test_the_classes_of_a_row(t: int, expected: str) -> None:
    assert classify(t, 200, 60, 60) == expected
    assert classify(t, UNSET, 60, 60) == "on_time"


def test_the_watermark_is_the_minimum_and_waits_for_all() -> None:
    spec = WatermarkSpec(sources={"a": 0, "b": 0, "c": 0})
    batches = [Batch([Row("k", t, source=s)]) for s, t in [("a", 100), ("b", 50), ("c", 200), ("b", 20), ("b", 300)]]
    assert Reference(Config(Fixed(10), spec)).run(batches).watermark_after == [UNSET, UNSET, 50, 50, 100]


def test_all_idle_holds_or_takes_the_maximum() -> None:
    steps: list[Step] = [Batch([Row("k", 10, source="a"), Row("k", 40, source="b")], now=0), Batch([], now=100)]
    lags = {"a": 0, "b": 0}
    hold = WatermarkSpec(sources=lags, idle_timeout=50)
    most = WatermarkSpec(sources=lags, idle_timeout=50, all_idle="max")
    assert Reference(Config(Fixed(10), hold)).run(steps).watermark_after == [10, 10]
    assert Reference(Config(Fixed(10), most)).run(steps).watermark_after == [10, 40]


def test_hopping_with_negative_times_and_a_size_no_multiple_of_the_slide() -> None:
    assert Fixed(12, 5).spans_of(-1) == [(-5, 7), (-10, 2)]
    assert Fixed(12, 5).spans_of(0) == [(0, 12), (-5, 7), (-10, 2)]
    assert Fixed(10, offset=23).spans_of(2) == [(-7, 3)]


def test_a_slide_longer_than_the_size_leaves_rows_without_window() -> None:
    seen = Reference(Config(Fixed(5, 10))).run([Batch(rows(4, 5, 12)), Close()])
    assert spans(seen) == [(0, 5, (4,)), (10, 15, (12,))]
    assert [row.t for _, row in seen.unassigned] == [5]


def test_the_event_rule_refuses_what_the_window_rule_takes() -> None:
    steps: list[Step] = [Batch(rows(5)), Batch(rows(3)), Close()]  # 3 is behind the watermark 5, its window [0, 10) is open
    by_event = Reference(Config(Fixed(10), late_rule="event")).run(steps)
    by_window = Reference(Config(Fixed(10), late_rule="window")).run(steps)
    assert spans(by_event) == [(0, 10, (5,))]
    assert [(late.step, late.row.t) for late in by_event.late] == [(1, 3)]
    assert spans(by_window) == [(0, 10, (3, 5))]


def test_end_of_input_fires_everything() -> None:
    seen = Reference(Config(Fixed(10), WatermarkSpec(lag=1000))).run([Batch(rows(1, 25)), Close()])
    assert [(e.step, e.result.end) for e in seen.emissions] == [(1, 10), (1, 30)]
    assert seen.watermark_after == [25 - 1000, END]
    assert seen.still_open == []


def test_null_time_and_a_bad_clock_go_to_the_late_output() -> None:
    config = Config(Fixed(10), future=FutureRule(60, "drop", "clock"))
    steps: list[Step] = [Batch([*rows(5, 1000), Row("k", None, 7)], now=6), Batch(rows(6), now=7), Close()]
    seen = Reference(config).run(steps)
    assert [(late.reason, late.row.value) for late in seen.late] == [("future", 1000), ("null_time", 7)]
    assert seen.watermark_after[:2] == [5, 6]  # the dropped row did not move it
    assert spans(seen) == [(0, 10, (5, 6))]


def test_sessions_that_only_touch() -> None:
    steps: list[Step] = [Batch(rows(0, 10, 25)), Batch(rows(16)), Close()]
    lag = WatermarkSpec(lag=100)
    merged = Reference(Config(Session(10, touch="merge"), lag)).run(steps)
    apart = Reference(Config(Session(10, touch="separate"), lag)).run(steps)
    assert spans(merged) == [(0, 35, (0, 10, 16, 25))]
    assert spans(apart) == [(0, 10, (0,)), (10, 35, (10, 16, 25))]


def test_a_late_session_row_is_kept_by_the_rest_of_its_batch() -> None:
    """Alone 21 would span [21, 31), closed under 31; together with 25 it is in [21, 35), in either order."""
    for batch in (rows(21, 25), rows(25, 21)):
        seen = Reference(Config(Session(10), late_rule="window")).run([Advance(31), Batch(batch), Close()])
        assert seen.late == []
        assert spans(seen) == [(21, 35, (21, 25))]


def test_a_row_that_would_close_a_capped_session_is_late() -> None:
    """4 would make the open session [8, 17) one from 4, cut at 14; under 14 that is closed."""
    config = Config(Session(5, max_duration=10), late_rule="window")
    seen = Reference(config).run([Batch(rows(8, 12)), Advance(14), Batch(rows(4)), Close()])
    assert [late.row.t for late in seen.late] == [4]
    assert spans(seen) == [(8, 17, (8, 12))]


def test_a_merged_away_session_is_withdrawn() -> None:
    config = Config(Session(5), WatermarkSpec(lag=100), emit="retractions", trigger=Trigger(early=1))
    seen = Reference(config).run([Batch(rows(0)), Batch(rows(8)), Batch(rows(4)), Close()])
    log = [(e.op, e.result.start, e.result.end) for e in seen.emissions]
    assert log == [("+I", 0, 5), ("+I", 8, 13), ("-D", 0, 5), ("-D", 8, 13), ("+I", 0, 13)]


def test_look_back_sees_both_ends_and_rows_of_equal_time() -> None:
    steps: list[Step] = [Batch(rows(0, 10, 10, 21)), Close()]
    one_sided = Reference(Config(LookBack(10), WatermarkSpec(lag=0))).run(steps)
    assert spans(one_sided) == [(-10, 0, (0,)), (0, 10, (0, 10, 10)), (0, 10, (0, 10, 10)), (11, 21, (21,))]
    assert [e.step for e in one_sided.emissions] == [0, 0, 0, 1]  # not when W == t
    two_sided = Reference(Config(LookBack(10, two_sided=True))).run(steps)
    assert spans(two_sided)[0] == (-10, 10, (0, 10, 10))


def test_distinct_sets_of_the_kip() -> None:
    steps: list[Step] = [Batch(rows(10, 10, 14)), Close()]
    lag = WatermarkSpec(lag=100)
    backward = Reference(Config(DistinctSet(10), lag)).run(steps)
    assert spans(backward) == [(0, 10, (10, 10)), (4, 14, (10, 10, 14)), (11, 21, (14,))]
    forward = Reference(Config(DistinctSet(10, direction="forward"), lag)).run(steps)
    assert spans(forward) == [(10, 20, (10, 10, 14)), (14, 24, (14,))]
    clamped = Reference(Config(DistinctSet(5, clamp_zero=True), lag)).run([Batch(rows(0, 2)), Close()])
    assert spans(clamped) == [(0, 5, (0, 2)), (1, 6, (2,))]


def test_count_windows_in_arrival_order() -> None:
    config = Config(CountWindow(3, 2), WatermarkSpec(lag=100))
    seen = Reference(config).run([Batch(rows(9, 1)), Batch([*rows(5, 7), *rows(2, key="j")]), Close()])
    actual = [(e.step, e.result.key, e.result.start, e.result.end, e.result.values) for e in seen.emissions]
    assert actual == [(1, "k", 0, 3, (1, 5, 9)), (2, "j", 0, 3, (2,)), (2, "k", 2, 5, (5, 7))]


def test_a_count_trigger_does_not_depend_on_batches() -> None:
    config = Config(Fixed(100), WatermarkSpec(lag=1000), emit="updates", trigger=Trigger(early=2))
    together = Reference(config).run([Batch(rows(1, 2, 3, 4, 5)), Close()])
    one_by_one = Reference(config).run([*(Batch(rows(t)) for t in (1, 2, 3, 4, 5)), Close()])
    assert spans(together) == spans(one_by_one) == [(0, 100, (1, 2)), (0, 100, (1, 2, 3, 4)), (0, 100, (1, 2, 3, 4, 5))]


def brief(event: PaneEvent) -> tuple[str, int, str | None, int | None]:
    return (event.event, event.start, event.timing, event.index)


def test_panes_of_the_manual() -> None:
    """intervalDuration 10, creationPeriod 5, discardAge 15.

    [0 ..... 10)
         [5 ..... 15)
              [10 ..... 20)
    """
    config = PaneConfig(10, 5, 15)
    assert config.starts_of(7) == [0, 5]
    assert config.starts_of(10) == [5, 10]
    assert [config.state(0, w) for w in (9, 10, 24, 25)] == ["incomplete", "complete", "complete", "closed"]


def test_pane_events_in_order_with_timing_and_index() -> None:
    steps: list[Step] = [Batch(rows(7)), Advance(10), Batch(rows(5)), Advance(11), Advance(12), Advance(14), Close()]
    events = run_panes(PaneConfig(10, discard_age=5), steps).events
    assert [(e.step, *brief(e)) for e in events] == [
        (0, "before_tuple_insertion", 0, None, None),
        (0, "after_tuple_insertion", 0, None, None),
        (1, "window_initial_full", 0, None, None),
        (1, "window_trigger", 0, "on_complete", 0),
        (2, "before_tuple_insertion", 0, None, None),
        (2, "after_tuple_insertion", 0, None, None),
        (3, "window_trigger", 0, "late", 1),  # not at 10 again, and not at 12: nothing new by then
        (6, "window_close", 0, None, None),
    ]
    assert [e.values for e in events if e.event == "window_trigger"] == [(7,), (5, 7)]


def test_only_updated_partitions_trigger_again_and_old_rows_are_refused() -> None:
    steps: list[Step] = [
        Batch([*rows(1, key="a"), *rows(2, key="b")]),
        Advance(12),
        Batch([*rows(7, key="b"), *rows(6, key="a")]),
    ]
    log = run_panes(PaneConfig(10, discard_age=5), [*steps, Advance(13), Advance(15)])
    triggers = [(e.step, e.key, e.values) for e in log.events if e.event == "window_trigger"]
    assert triggers == [(1, "a", (1,)), (1, "b", (2,)), (3, "b", (2, 7))]
    assert [late.row.t for late in log.late] == [6]  # 6 < 12 - 5, 7 is not
    assert [(e.step, e.key) for e in log.events if e.event == "window_close"] == [(4, "a"), (4, "b")]
