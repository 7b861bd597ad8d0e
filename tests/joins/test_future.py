"""Rows too far ahead in joins: of both sides, counted, aside with their side, and never results of a stage (SEMANTICS §4.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import count, windows
from krishiv_py.errors import PlanError
from krishiv_py.testing import Driver, ManualClock, stream_of

NOW = 100
JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "interval": lambda left, right: left.interval_join(right, "key", lower=-50, upper=50, how="full"),
    "as-of": lambda left, right: left.asof_join(right, "key", tolerance=50),
    "nearest": lambda left, right: left.asof_join(right, "key", direction="nearest", tolerance=50),
    "window": lambda left, right: left.window_join(right, "key", window=windows.tumbling(50), how="full"),
}
Built = Callable[[Any], Any]


def left() -> Any:
    return stream_of("key string, at bigint").watermark("at", 0)


def right() -> Any:
    return stream_of("key string, seen bigint").watermark("seen", 0)


def counted(stream: Any) -> Any:
    return stream.key_by("key").tumbling_window(10).agg(count())


def driver_of(stream: Any) -> Driver:
    clock = ManualClock()
    clock.set(NOW)
    return Driver(stream, clock=clock)


@pytest.mark.parametrize("reference", ["clock", "watermark"])
@pytest.mark.parametrize("action", ["drop", "side_output"])
@pytest.mark.parametrize("where", ["left", "right", "behind"])
@pytest.mark.parametrize("join", JOINS)
def test_rows_of_both_sides_are_refused_counted_and_move_no_watermark(
    join: str, where: str, action: Any, reference: Any
) -> None:
    def settings(stream: Any, place: str) -> Any:
        return stream.future_tolerance(60, action, reference) if place == where else stream

    driver = driver_of(settings(JOINS[join](settings(left(), "left"), settings(right(), "right")), "behind"))
    if reference == "watermark":
        driver.advance_watermark(NOW)
    lefts, rights = [100, 161, 160], [100, 161, 162]
    out = driver.send({"left": [{"key": "a", "at": t} for t in lefts], "right": [{"key": "a", "seen": t} for t in rights]})
    assert driver.watermark_us == 100_000
    aside = sorted((row["side"], row["at"] or row["seen"], row["reason"]) for row in out.late.to_pylist())
    refused = [("left", 161, "future"), ("right", 161, "future"), ("right", 162, "future")]
    assert aside == (refused if action == "side_output" else [])
    counts = [driver.counters[name] for name in ("future", "future_dropped", "future_side_output")]
    assert counts == ([3, 3, 0] if action == "drop" else [3, 0, 3])
    given = [*out.results.to_pylist(), *driver.close().results.to_pylist()]
    assert {row["at"] for row in given} - {None} == {100, 160}
    assert {row["seen"] for row in given} - {None} == {100}


@pytest.mark.parametrize("join", ["interval", "as-of", "nearest"])
def test_results_of_a_stage_are_never_too_far_ahead_and_rows_next_to_them_are(join: str) -> None:
    driver = driver_of(JOINS[join](counted(left()), right()).future_tolerance(60, "side_output"))
    driver.send({"left": [{"key": "a", "at": 500}], "right": [{"key": "a", "seen": 100}]})
    out = driver.send({"left": [{"key": "a", "at": 600}], "right": [{"key": "a", "seen": 700}]})
    assert [(r["side"], r["seen"], r["reason"]) for r in out.late_by_stage["stage 2"].to_pylist()] == [("right", 700, "future")]
    given = [*out.results.to_pylist(), *driver.close().results.to_pylist()]
    assert {row["window_end"] for row in given if row["count"]} == {510, 610}, (
        "a window that was open when the input ended, too"
    )
    assert driver.progress.late["future"] == 1


def test_a_tolerance_that_could_refuse_nothing_is_refused() -> None:
    both = counted(left()).interval_join(counted(right()), "key", lower=0, upper=9, suffixes=("", "_right"))
    for stream in (both, counted(left()).key_by("key")):
        for action in ("drop", "side_output"):
            with pytest.raises(PlanError, match=r"results of a stage are never too far ahead .*before the first window"):
                stream.future_tolerance(60, action)
        stream.future_tolerance(60)


def test_a_lookup_join_takes_the_tolerance_of_its_stream() -> None:
    table = pa.table({"key": ["a"], "n": [1]})
    actual = stream_of("key string, at bigint").lookup_join(table, "key").watermark("at", 0).future_tolerance(60, "side_output")
    out = driver_of(actual.tumbling_window(10).agg(count())).send([{"key": "a", "at": 100}, {"key": "a", "at": 161}])
    assert [(row["at"], row["n"], row["reason"]) for row in out.late.to_pylist()] == [(161, 1, "future")]
