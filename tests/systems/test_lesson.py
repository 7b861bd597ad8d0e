"""The windowing lesson of the SDA course: its worked numbers, and its correlator as a whole pipeline."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import krishiv_py as kv
from krishiv_py import compat
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.timed import TimedStream
from krishiv_py.errors import PlanError
from krishiv_py.testing import Driver, stream_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "conjunctions.py"


def timed(schema: str = "at bigint") -> TimedStream:
    return stream_of(schema).watermark("at", 0)


def outcome(stream: ResultStream, rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """All results over these rows, in order of firing."""
    driver = Driver(stream)
    outs = [driver.send(rows), driver.close()]
    return [tuple(row.values()) for out in outs for row in out.results.to_pylist()]


def test_tumbling_windows_of_five_seconds() -> None:
    rows = [{"at": moment} for moment in (0, 4_999, 5_000, 9_999, 10_000)]
    actual = outcome(timed().tumbling_window("5 s").agg(kv.count()), rows)
    assert actual == [(0, 5_000, 2), (5_000, 10_000, 2), (10_000, 15_000, 1)]


def test_every_event_is_in_six_hopping_windows_of_30_by_5() -> None:
    """Every event lands in size / step windows, 30 / 5 = 6; [0, 30), [5, 35), [10, 40) overlap by 25 seconds."""
    actual = outcome(timed().hopping_window("30 s", "5 s").agg(kv.count()), [{"at": 27_000}])
    assert actual == [(start, start + 30_000, 1) for start in (0, 5_000, 10_000, 15_000, 20_000, 25_000)]


def test_every_event_is_in_thirty_windows_with_a_step_of_one_second() -> None:
    assert len(outcome(timed().hopping_window("30 s", "1 s").agg(kv.count()), [{"at": 100_500}])) == 30


def test_an_event_at_t_anchors_t_minus_30_to_t_and_the_next_one_follows() -> None:
    actual = outcome(timed().lookback_window("30 s").agg(kv.count()), [{"at": 100_000}, {"at": 101_000}])
    assert actual == [(70_000, 100_000, 1), (71_000, 101_000, 2)]


def test_a_hundred_events_a_second_for_thirty_seconds_are_3000_entries() -> None:
    """An observation meets the 3000 before it, and that is what the operator holds for the key, however long it runs."""
    driver = Driver(timed("key string, at bigint").key_by("key").lookback_window("30 s").matches())
    met, held = [], []
    for second in range(45):
        out = driver.send([{"key": "radar", "at": second * 1_000 + i * 10} for i in range(100)])
        met += pc.list_value_length(out.results["matches"]).to_pylist()
        held.append(sum(table.num_rows for table in driver._store.tables.values()))
    assert met[:3] == [0, 1, 2] and met[3_000:] == [3_000] * (len(met) - 3_000)
    assert max(met) == 3_000
    assert max(held) < 2.2 * 3_000  # chunks are dropped when most of them is over, not row by row


def test_a_session_ends_after_the_gap_or_at_its_longest() -> None:
    """The double bound: a beacon that never pauses is cut after max_duration; one that pauses is cut there."""
    keyed = timed("satellite string, at bigint").key_by("satellite")
    passes = keyed.session_window("10 s", max_duration="60 s").agg(kv.count())
    rows = [{"satellite": "talks on", "at": s * 1_000} for s in range(150)]
    rows += [{"satellite": "pauses", "at": s * 1_000} for s in (0, 9, 18, 40, 45)]
    actual = sorted(outcome(passes, rows))
    assert actual == [
        ("pauses", 0, 28_000, 3),
        ("pauses", 40_000, 55_000, 2),
        ("talks on", 0, 60_000, 60),
        ("talks on", 60_000, 120_000, 60),
        ("talks on", 120_000, 159_000, 30),
    ]


def test_a_pair_across_a_bucket_boundary_is_seen_by_the_sliding_window_only() -> None:
    """Closest approach at 29.9 s and 30.1 s: two buckets, one look-back window."""
    rows = [{"object": 1, "at": 29_900}, {"object": 2, "at": 30_100}]
    stream = timed("object bigint, at bigint")
    assert [n for *_, n in outcome(stream.tumbling_window("30 s").agg(kv.count()), rows)] == [1, 1]
    pairs = outcome(stream.lookback_window("30 s").pairs("left_object <> right_object"), rows)
    assert pairs == [(1, 29_900, 2, 30_100)]


def test_an_event_older_than_the_cutoff_is_late_and_no_longer_lost_silently() -> None:
    driver = Driver(timed("object bigint, at bigint").lookback_window("30 s").agg(kv.count()))
    driver.send([{"object": 1, "at": 100_000}])
    assert driver.send([{"object": 2, "at": 69_000}]).late.to_pylist() == [
        {"object": 2, "at": 69_000, "reason": "late", "watermark": 100_000, "lateness": 31_000}
    ]


def test_the_correlator_as_a_whole_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "2000 observations" in capsys.readouterr().out


def test_step_returns_what_is_in_the_window_at_once() -> None:
    """``SlidingWindow::step``: the event, and those before it within 30 seconds, without waiting for a watermark."""
    stream = stream_of("object string, at bigint").watermark("at", "5 s").key_by("object")
    driver = Driver(stream.lookback_window("30 s", emit="arrival").matches())
    met = [driver.send([{"object": "sat", "at": s * 1_000}]).results["matches"].to_pylist()[0] for s in (100, 120, 118, 131)]
    assert [[m["at"] // 1_000 for m in row] for row in met] == [[], [100], [100], [118, 120]]


def held() -> KeyedStream:
    return stream_of("object string, at bigint").watermark("at", 0).key_by("object")


def event(name: str | None, second: int) -> dict[str, Any]:
    return {"object": name, "at": second * 1_000}


def test_pending_windows_and_keys_are_counted_and_a_key_can_be_closed() -> None:
    driver = Driver(held().lookback_window("30 s", emit="arrival").agg(kv.count()))
    driver.send([event("sat", 100), event("decayed", 101), event(None, 102)])
    assert (driver.pending_keys, driver.pending_window_count) == (3, 0)
    driver.close_key("decayed")
    assert driver.pending_keys == 2
    counts = driver.send([event("decayed", 103), event("sat", 104)]).results.to_pylist()
    assert [(r["object"], r["count"]) for r in counts] == [("decayed", 1), ("sat", 2)]
    passes = Driver(held().session_window("10 s", max_duration="60 s").agg(kv.count()))
    passes.send([event("sat", 100), event("decayed", 101)])
    assert passes.pending_window_count == passes.progress.pending_window_count == 2
    assert passes.close_key("decayed") == 1
    assert passes.close_key("unknown") == 0
    assert [r["object"] for r in passes.close().results.to_pylist()] == ["sat"]


def test_a_key_that_cannot_be_closed_is_reported() -> None:
    driver = Driver(held().tumbling_window("30 s").agg(kv.count()))
    with pytest.raises(PlanError, match="kept by their end"):
        driver.close_key("sat")
    driver = Driver(held().session_window("30 s").agg(kv.count()))
    with pytest.raises(PlanError, match=r"of 2 columns"):
        driver.close_key(("sat", 1))
    with pytest.raises(PlanError, match=r"Hint: pass the value of object \(string\) alone"):
        driver.close_key(5)


def test_try_add_gives_the_refused_event_back() -> None:
    driver = Driver(held().session_window("10 s", max_duration="60 s").agg(kv.count()))
    assert compat.try_add(driver, event("sat", 100)) is None
    assert compat.try_add(driver, event("sat", 99)) == event("sat", 99)
    assert compat.try_add(driver, event("sat", 140)) is None, "the pass is over: the event begins another one"
    assert driver.progress.firings == 1


def test_what_is_dropped_and_counted_is_refused_too() -> None:
    """An event lands in a window, in the late output, or is counted: only the first is taken in."""
    once = Driver(held().drop_duplicates("object", within="10 s"))
    assert [compat.try_add(once, event("sat", s)) for s in (100, 101)] == [None, event("sat", 101)]
    ahead = Driver(held().future_tolerance("1 s", action="drop", reference="watermark").tumbling_window("5 s").count())
    assert [compat.try_add(ahead, event("sat", s)) for s in (100, 102, 101)] == [None, event("sat", 102), None]
    gaps = Driver(held().hopping_window("5 s", "10 s", allow_gaps=True).count())
    assert [compat.try_add(gaps, event("sat", s)) for s in (101, 107)] == [None, event("sat", 107)]


def test_a_restarted_driver_says_what_is_pending() -> None:
    driver = Driver(held().tumbling_window("5 s").count())
    driver.send([event("sat", 1), event("sat", 6)])
    again = driver.restarted()
    assert again.pending_window_count == again.progress.pending_window_count == driver.pending_window_count == 1
    assert again.progress.open_rows == driver.progress.open_rows == 1


def test_how_long_a_session_has_been_open_is_in_its_state() -> None:
    """``open_duration``: the last event less the first one."""
    driver = Driver(
        held().session_window("10 s", max_duration="60 s").agg(kv.min("at").alias("first"), kv.max("at").alias("last"))
    )
    driver.send([event("sat", s) for s in (100, 104, 109)])
    assert [r["last"] - r["first"] for r in driver.state().to_pylist()] == [9_000]


def test_close_windows_up_to_a_watermark() -> None:
    driver = Driver(held().tumbling_window("5 s").agg(kv.count()))
    driver.send([event("sat", 1), event("sat", 3), event("sat", 4)])
    assert driver.pending_window_count == 1
    assert driver.close_windows_up_to(4_999).results.num_rows == 0
    assert driver.close_windows_up_to(5_000).results["count"].to_pylist() == [3]
    assert driver.pending_window_count == 0


def test_pairs_come_once_however_often_they_are_looked_at() -> None:
    """What the correlator of the module before had to deduplicate: each pair of events has one result, at its later event."""
    stream = stream_of("object bigint, at bigint").watermark("at", "5 s")
    driver = Driver(stream.lookback_window("30 s", emit="arrival").pairs("left_object <> right_object"))
    rows = [{"object": n % 3, "at": 100_000 + n * 700 - n % 2 * 2_000} for n in range(20)]
    given = [tuple(p.values()) for n in range(20) for p in driver.send([rows[n]]).results.to_pylist()]
    assert len(given) == len(set(given)) == sum(a["object"] != b["object"] for i, a in enumerate(rows) for b in rows[:i])
