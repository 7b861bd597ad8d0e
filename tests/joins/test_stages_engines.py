"""Joins of results on the three engines, as outputs of one query over two streams and a restart."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py import windows
from krishiv_py.testing import Driver, stream_of

pytestmark = pytest.mark.two_tasks

SHOWN, CLICKED = "id string, ad string, at bigint", "click string, ad string, clicked timestamp"


def _instant(us: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc) + dt.timedelta(microseconds=us)


SENDS: list[tuple[str, list[dict[str, Any]]]] = [
    ("left", [{"id": f"{i % 7}", "ad": "xyz"[i % 3], "at": 700 * i} for i in range(20)] + [{"id": None, "ad": None, "at": 5}]),
    ("right", [{"click": f"c{i}", "ad": "xyw"[i % 3], "clicked": _instant(900_000 * i)} for i in range(14)]),
    ("left", [{"id": "8", "ad": "x", "at": 15_000}, {"id": "9", "ad": "x", "at": 100}, {"id": None, "ad": "y", "at": 21_000}]),
    ("right", [{"click": "d", "ad": "x", "clicked": _instant(17_000_000)}, {"click": "e", "ad": "y", "clicked": _instant(0)}]),
    ("left", [{"id": "10", "ad": "z", "at": 40_000}]),
    ("right", [{"click": "f", "ad": "z", "clicked": _instant(41_000_000)}]),
]


def outputs(left: Any, right: Any) -> list[kv.Output]:
    """Both sides deduplicated; counts next to the largest of them; counts next to rows; and rows of one stream alone."""
    shown, clicked = left.watermark("at", "1 s"), right.watermark("clicked", "2 s")
    once = shown.drop_duplicates("id", within="5 s")
    clicks = clicked.drop_duplicates("click", within="5 s")
    matched = once.interval_join(clicks, "ad", lower="-1 s", upper="4 s", how="full", suffixes=("", "_clicked"))
    counts = shown.key_by("ad").tumbling_window("4 s").agg(kv.count().alias("n"))
    most = counts.tumbling_window("4 s").agg(kv.max("n").alias("most")).with_column("all", "1")
    both = (
        counts.with_column("all", "1")
        .window_join(most, "all", window=windows.tumbling("4 s"), suffixes=("_one", "_most"))
        .filter("n = most")
    )
    latest = clicked.asof_join(counts, "ad", tolerance="6 s").drop("window_start")
    return [
        matched.to(kv.MemorySink(), name="matched"),
        both.to(kv.MemorySink(), name="hot"),
        latest.to(kv.MemorySink(), name="latest"),
        shown.tumbling_window("8 s").agg(kv.count()).to(kv.MemorySink(), name="all"),
        matched.tumbling_window("10 s").agg(kv.count(), kv.count("click").alias("clicks")).to(kv.MemorySink(), name="rates"),
    ]


def next_to_results(left: Any, right: Any) -> list[kv.Output]:
    """Rows in windows with results, late by the window; windows behind look-back windows that reach beyond their rows."""
    shown, clicked = left.watermark("at", "1 s"), right.watermark("clicked", "2 s")
    once = shown.drop_duplicates("id", within="5 s")
    met = once.window_join(clicked, "ad", window=windows.hopping("4 s", "2 s"), how="full").late_rule("window")
    return [
        met.to(kv.MemorySink(), name="met"),
        *(
            shown.key_by("ad")
            .lookback_window("1 s", two_sided=True, emit=emit)
            .agg(kv.count().alias("near"))
            .key_by("ad")
            .tumbling_window("4 s")
            .agg(kv.sum("near"), kv.count())
            .to(kv.MemorySink(), name=f"near on {emit}")
            for emit in ("watermark", "arrival")
        ),
    ]


def lines(table: Any) -> list[str]:
    return sorted(repr(row) for row in table.to_pylist())


def test_reads_and_stages_in_common_are_made_once() -> None:
    driver = Driver(outputs(stream_of(SHOWN), stream_of(CLICKED)))
    assert [read.name for read in driver._plan.reads] == ["left", "right"]
    assert len(driver.source_watermarks_us) == 3, "the rows next to counts are classified by the clock of their join"
    kinds = [stage.spec.operation.kind for stage in driver._plan.stages]
    assert sorted(kinds) == sorted(["deduplication"] * 2 + ["interval join", "window join", "as-of join"] + ["tumbling"] * 4), (
        kinds
    )


@pytest.mark.slow
@pytest.mark.parametrize("made", [outputs, next_to_results])
def test_the_three_engines_agree(made: Callable[[Any, Any], list[kv.Output]], session: kv.Session, tmp_path: Path) -> None:
    driver = Driver(made(stream_of(SHOWN), stream_of(CLICKED)))
    expected: dict[str, list[str]] = {str(output.name): [] for output in driver._plan.named}
    marks = []
    for sent in [*SENDS, None]:
        step = driver.close() if sent is None else driver.send({sent[0]: sent[1]})
        for name, table in step.by_output.items():
            expected[name] = sorted([*expected[name], *lines(table)])
        assert driver.watermark == driver.progress.watermark
        marks.append(driver.watermark)
    assert all(len(actual) > 2 for actual in expected.values())
    late = sum(driver.progress.counters.values())
    streams = {side: session.memory_stream(ddl) for side, ddl in (("left", SHOWN), ("right", CLICKED))}
    given = made(*(streams[side][0] for side in ("left", "right")))
    query = session.start(given, checkpoint=str(tmp_path / "checkpoint"))
    try:
        for number, (side, rows) in enumerate(SENDS):
            streams[side][1].send(rows)
            query.process_all_available()
            assert (query.watermark, query.progress.watermark) == (marks[number], marks[number])
            if number == 2:
                query.stop()
                query = session.start(given, checkpoint=str(tmp_path / "checkpoint"))
        for _, sender in streams.values():
            sender.close()
        query.process_all_available()
        assert {name: lines(query.results(name)) for name in expected} == expected
        assert sum(query.progress.counters.values()) == late
    finally:
        query.stop()
    for output in given[:3]:
        assert lines(output.stream.collect()) == expected[str(output.name)], output.name


def test_a_quiet_side_lets_the_other_one_go_on() -> None:
    clock = kv.testing.ManualClock()
    left = stream_of(SHOWN).watermark("at", 0).drop_duplicates("id", within="1 s")
    right = stream_of("click string, ad string, clicked bigint").watermark("clicked", 0)
    joined = left.interval_join(right, "ad", lower=0, upper="1 s", how="left", idle_timeout="5 s")
    driver = Driver(joined, clock=clock)
    driver.send({"right": [{"click": "c", "ad": "y", "clicked": 0}]})
    driver.send({"left": [{"id": "1", "ad": "x", "at": 1_000}, {"id": "2", "ad": "x", "at": 9_000}]})
    assert driver.watermark_us == 0
    clock.advance("4 s")
    driver.send({"left": [{"id": "3", "ad": "x", "at": 9_000}]})
    clock.advance("2 s")
    assert driver.tick().results["id"].to_pylist() == ["1"]
    assert "right" in driver.why_not_fired(0, "stage 2") or driver.watermark_us == 9_000_000
    restarted = driver.restarted()
    late = restarted.send({"right": [{"click": "d", "ad": "x", "clicked": 2_000}]}).late_by_stage["stage 2"]
    assert late["click"].to_pylist() == ["d"]


@pytest.mark.parametrize("kind", ["count", "changes"])
def test_results_that_no_stage_may_follow_are_refused(kind: str) -> None:
    shown = stream_of(SHOWN).watermark("at", 0)
    other = stream_of("ad string, clicked bigint").watermark("clicked", 0)
    results: Any = shown.key_by("ad").count_window(2).agg(kv.count())
    if kind == "changes":
        results = shown.key_by("ad").tumbling_window(5).agg(kv.count()).emit("updates")
    for left, right in ((results, other), (other, results)):
        with pytest.raises(kv.PlanError, match="cannot go into another stage"):
            left.interval_join(right, "ad", lower=0, upper=5)
