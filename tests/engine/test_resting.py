"""A batch in which nothing fires is not run: this changes no result, no late row and no number of the progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from krishiv_py import SlidingWindows, count, windows
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.in_process.stage import StageBucket
from krishiv_py.testing import Driver, ManualClock, stream_of

Plan = Callable[[Any, Any], ResultStream]


def _counts(stream: Any) -> Any:
    """Counts by key in 10 s, as results for another stage."""
    return stream.key_by("k").tumbling_window("10 s").agg(count())


PLANS: dict[str, Plan] = {
    "hopping": lambda a, b: a.key_by("k").hopping_window("1 min", "10 s").agg(count()),
    "session": lambda a, b: a.key_by("k").session_window("5 s").agg(count()),
    "counted": lambda a, b: a.key_by("k").count_window(2).agg(count()),
    "sliding": lambda a, b: a.key_by("k").windowed_by(SlidingWindows.of("10 s")).agg(count()),
    "lookback": lambda a, b: a.key_by("k").lookback_window("10 s").agg(count()),
    "duplicates": lambda a, b: a.drop_duplicates("k", within="10 s"),
    "chain": lambda a, b: _counts(a).key_by("k").session_window("20 s").agg(count().alias("n")),
    "interval": lambda a, b: a.interval_join(b, on="k", lower="-10 s", upper="10 s", how="full"),
    "asof": lambda a, b: a.asof_join(b, on="k", tolerance="10 s"),
    "asof-of-results": lambda a, b: _counts(a).asof_join(b, on="k", tolerance="10 s"),
    "window-join": lambda a, b: _counts(a).window_join(b, on="k", window=windows.tumbling("10 s"), how="left"),
}


def _run(plan: Plan, sent: list[list[int]]) -> list[object]:
    """What a driver shows after each step: `sent` are event times in seconds, on both sides."""
    left = stream_of("k string, at bigint").watermark("at", 0)
    stream = plan(left, stream_of("k string, bt bigint").watermark("bt", 0))
    driver, seen = Driver(stream, clock=ManualClock()), list[object]()

    def look(step: Any) -> None:
        progress = attrs.evolve(driver.progress, batch_seconds=0.0, batch_ended_us=None, stages={})
        seen.append((step.results.to_pylist(), step.late.to_pylist(), str(progress), driver.counters, driver.open_windows))

    for times in sent:
        rows = [{"k": "a", "at": moment * 1_000} for moment in times]
        joins = len(driver._plan.reads) > 1 or len(driver._plan.stage.inputs) > 1
        look(driver.send({"left": rows, "right": [{"k": "a", "bt": r["at"]} for r in rows]} if joins else rows))
        look(driver.tick())
    for to in (50_000, 51_000, 300_000):
        look(driver.advance_watermark(to))
    look(driver.close())
    return seen


@pytest.mark.parametrize("kind", PLANS)
def test_a_batch_that_is_not_run_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [[1, 2], [], [3, 15], [16], [4, 31], []]
    rested = _run(PLANS[kind], sent)
    monkeypatch.setattr(StageBucket, "resting", lambda self, moment: None)
    assert rested == _run(PLANS[kind], sent)
