"""The windowing lesson of the SDA course: its worked numbers, and its correlator as a whole pipeline."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import krishiv_py as kv
from krishiv_py.api.stages.aggregated import AggregatedStream
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.testing import Driver, stream_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "conjunctions.py"


def timed(schema: str = "at bigint") -> KeyedStream:
    return stream_of(schema).watermark("at", 0)


def outcome(stream: AggregatedStream, rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """All results over these rows, in order of firing."""
    driver = Driver(stream)
    outs = [driver.send(rows), driver.close()]
    return [tuple(row.values()) for out in outs for row in out.results.to_pylist()]


def test_tumbling_windows_of_five_seconds() -> None:
    rows = [{"at": at} for at in (0, 4_999, 5_000, 9_999, 10_000)]
    found = outcome(timed().tumbling_window("5 s").agg(kv.count()), rows)
    assert found == [(0, 5_000, 2), (5_000, 10_000, 2), (10_000, 15_000, 1)]


def test_every_event_is_in_six_hopping_windows_of_30_by_5() -> None:
    """Every event lands in size / step windows, 30 / 5 = 6; [0, 30), [5, 35), [10, 40) overlap by 25 seconds."""
    found = outcome(timed().hopping_window("30 s", "5 s").agg(kv.count()), [{"at": 27_000}])
    assert found == [(start, start + 30_000, 1) for start in (0, 5_000, 10_000, 15_000, 20_000, 25_000)]


def test_every_event_is_in_thirty_windows_with_a_step_of_one_second() -> None:
    assert len(outcome(timed().hopping_window("30 s", "1 s").agg(kv.count()), [{"at": 100_500}])) == 30


def test_an_event_at_t_anchors_t_minus_30_to_t_and_the_next_one_follows() -> None:
    found = outcome(timed().lookback_window("30 s").agg(kv.count()), [{"at": 100_000}, {"at": 101_000}])
    assert found == [(70_000, 100_000, 1), (71_000, 101_000, 2)]


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
    found = sorted(outcome(passes, rows))
    assert found == [
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
        {"object": 2, "at": 69_000, "reason": "late", "watermark": 100_000, "lateness": 31_000_000}
    ]


def test_the_correlator_as_a_whole_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "2000 observations" in capsys.readouterr().out
