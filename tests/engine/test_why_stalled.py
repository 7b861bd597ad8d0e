"""Whatever waits for a watermark that a silent source holds, every explanation names the source, and what to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py.testing import Driver, ManualClock, stream_of, union_of
from krishiv_py.windows import tumbling

COLUMNS = "k bigint, at bigint"
OF_JOIN = 'idle_timeout="30 s" of the join'
OF_SOURCES = 'MultiSourceWatermarkSpec.new(idle_timeout="30 s")'


WINDOWS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda rows: rows.tumbling_window(10).agg(kv.count()),
    "hopping": lambda rows: rows.hopping_window(10, 4).agg(kv.count()),
    "cumulating": lambda rows: rows.cumulate_window(5, 10).agg(kv.count()),
    "calendar": lambda rows: rows.window(kv.calendar_window("day", "Europe/Berlin")).agg(kv.count()),
    "session": lambda rows: rows.session_window(5).agg(kv.count()),
    "capped session": lambda rows: rows.session_window(5, max_duration=20).agg(kv.count()),
    "look-back": lambda rows: rows.lookback_window(6).agg(kv.count()),
    "look-back over rows": lambda rows: rows.lookback_window(6).agg(kv.collect_list("at")),
    "distinct sets": lambda rows: rows.window(kv.SlidingWindows.of(10)).agg(kv.count()),
    "panes": lambda rows: rows.window(kv.TimeIntervalWindowOptions(0.01)).agg(kv.count()),
    "triggered": lambda rows: rows.tumbling_window(10).trigger(kv.Trigger.on_count(5)).agg(kv.count()),
}
JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "window": lambda one, two: one.window_join(two, on="k", window=tumbling(10)),
    "interval": lambda one, two: one.interval_join(two, on="k", lower=0, upper=5),
    "outer interval": lambda one, two: one.interval_join(two, on="k", lower=0, upper=5, how="full"),
    "as of": lambda one, two: one.asof_join(two, on="k", direction="backward", tolerance=5),
    "as of, nearest": lambda one, two: one.asof_join(two, on="k", direction="nearest", tolerance=5),
}
PASSING: list[Callable[[Any], Any]] = [
    lambda rows: rows.drop_duplicates("k", within=10),
    lambda rows: rows.count_window(3).agg(kv.count()),
]


def by_source(idle: str | None = None) -> kv.MultiSourceWatermarkSpec:
    spec = kv.MultiSourceWatermarkSpec.new(idle_timeout=idle)
    for name in ("north", "south"):
        spec = spec.source(name, kv.WatermarkSpec.fixed_lag(2))
    return spec


def united(streams: dict[str, kv.Stream], idle: str | None = None) -> Any:
    return union_of(streams).with_watermark(by_source(idle), "at", source_column="source").key_by("k")


def explained(driver: Driver) -> dict[str, str]:
    return {
        "why_not_fired": driver.why_not_fired(),
        "why": driver.why(),
        "why of a time": driver.why(time=3),
        "why of a key": driver.why(1, 3),
        "progress": str(driver.progress),
    }


def check(texts: dict[str, str], silent: str, way: str) -> None:
    for name, text in texts.items():
        assert silent in text, (name, text)
        assert name == "progress" or way in text, (name, text)
        assert "no window waits" not in text, (name, text)


@pytest.mark.parametrize("kind", WINDOWS)
def test_of_windows(kind: str) -> None:
    driver = Driver(WINDOWS[kind](united({name: stream_of(COLUMNS) for name in ("north", "south")})))
    driver.send({"north": [{"k": 1, "at": n} for n in range(4)]})
    check(explained(driver), "south", OF_SOURCES)


@pytest.mark.parametrize("kind", JOINS)
def test_of_joins(kind: str) -> None:
    for silent, loud in (("right", "left"), ("left", "right")):
        joined = JOINS[kind](*(stream_of(COLUMNS).watermark("at", 2) for _ in range(2)))
        assert f"one that falls silent holds the watermark, and with it all results; set {OF_JOIN}" in joined.explain()
        driver = Driver(joined)
        driver.send({loud: [{"k": 1, "at": n} for n in range(4)]})
        check(explained(driver), silent, OF_JOIN)
        assert "4 rows are in state" in driver.why_not_fired()


@pytest.mark.parametrize("kind", JOINS)
def test_of_a_join_that_another_stage_follows_and_of_results_on_a_side(kind: str) -> None:
    one, two = (stream_of(COLUMNS).watermark("at", 2) for _ in range(2))
    counted = one.key_by("k").tumbling_window(2).agg(kv.count())
    joined = JOINS[kind](counted, two)
    assert OF_JOIN in joined.explain()
    for stream in (joined, JOINS[kind](one, two).key_by("k").tumbling_window(10).agg(kv.count())):
        driver = Driver(stream)
        driver.send({"left": [{"k": 1, "at": n} for n in range(9)]})
        text = driver.why_not_fired()
        assert "'right' has sent nothing" in text and OF_JOIN in text and text.startswith("stage "), text


@pytest.mark.parametrize("kind", JOINS)
def test_what_the_text_says_to_write_gives_the_results(kind: str) -> None:
    one, two = (stream_of(COLUMNS).watermark("at", 2) for _ in range(2))
    window = kind == "window"
    joined = one.window_join(two, on="k", window=tumbling(10), how="left", idle_timeout="30 s") if window else None
    if joined is None and kind.startswith("as of"):
        joined = one.asof_join(two, on="k", direction="backward", tolerance=5, idle_timeout="30 s")
    if joined is None:
        joined = one.interval_join(two, on="k", lower=0, upper=5, how="left", idle_timeout="30 s")
    driver = Driver(joined, clock=(clock := ManualClock()))
    driver.send({"left": [{"k": 1, "at": n} for n in range(40)]})
    clock.advance("31 s")
    assert driver.tick().results.num_rows > 0


def test_rows_that_wait_for_nothing_say_so() -> None:
    for kind in PASSING:
        driver = Driver(kind(united({name: stream_of(COLUMNS) for name in ("north", "south")})))
        driver.send({"north": [{"k": 1, "at": n} for n in range(2)]})
        assert "not wait for the watermark" in driver.why_not_fired()


@pytest.mark.parametrize("kind", JOINS)
def test_of_a_query_its_page_and_its_checkpoint(kind: str, tmp_path: Path) -> None:
    with kv.Session.in_process() as session:
        made = {name: session.memory_stream(COLUMNS, name=name) for name in ("left", "right")}
        joined = JOINS[kind](*(stream.watermark("at", 2) for stream, _ in made.values()))
        query = joined.start(kv.MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
        made["left"][1].send([{"k": 1, "at": n} for n in range(4)])
        query.process_all_available()
        texts = {"query": query.why_not_fired(), "of a time": query.why(time=3), "progress": str(query.progress)}
        assert "4 rows are in state" in texts["query"]
        query.stop()
        texts["checkpoint"] = session.why(str(tmp_path / "checkpoint"), joined, None, 3, None)
        check(texts, "right", OF_JOIN)
