"""What explain() says is so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import krishiv_py as kv
from krishiv_py import windows
from krishiv_py.connectors import Source
from krishiv_py.display.text import plan_text
from krishiv_py.kernels.registry import chain, operator_for
from krishiv_py.planner.explain import explain
from krishiv_py.planner.physical import Engine
from krishiv_py.testing import stream_of
from tests.plan.snapshots import FOLDER, PLANS


class Longest:
    """A user's aggregate."""

    def create(self) -> int:
        """None yet."""
        return 0

    def add(self, accumulator: int, value: int) -> int:
        """One more."""
        return max(accumulator, value)

    def merge(self, left: int, right: int) -> int:
        """Both."""
        return max(left, right)

    def finish(self, accumulator: int) -> int:
        """As it is."""
        return accumulator


def test_settings_of_aggregates_are_shown() -> None:
    windows = stream_of("n bigint, at bigint").watermark("at", 0).tumbling_window("1 min")
    calls = [kv.percentile("n", 0.95), kv.approx_count_distinct("n", 9), kv.udaf(Longest(), "n", pa.int64())]
    text = windows.agg(calls).explain()
    assert "percentile(n, 0.95) AS percentile_n" in text
    assert "approx_count_distinct(n, precision=9) AS" in text
    assert "Longest(n, user-defined, int64) AS longest_n" in text
    assert "keeps     every value of percentile(n, 0.95) AS percentile_n\n" in text


def test_aggregates_that_keep_values_are_named() -> None:
    windows = stream_of("n bigint, at bigint").watermark("at", 0).tumbling_window("1 min")
    growing = [kv.median("n"), kv.collect_list("n"), kv.mode("n"), kv.collect_set("n"), kv.count_distinct("n")]
    plan = windows.agg(*growing, kv.approx_percentile("n", [0.5, 0.9]), kv.histogram("n", [0, 5]), kv.sum("n"))
    (kept,) = (line for line in plan.explain().splitlines() if line.startswith("keeps"))
    for call in growing:
        whole = "every value" if call.func in ("percentile", "collect_list") else "the distinct values"
        assert f"{whole} of {call}" in kept
    assert kept.count(" of ") == len(growing)
    assert "approx_percentile(n, [0.5, 0.9], relative_error=0.01)" in plan.explain()
    assert "histogram(n, [0, 5])" in plan.explain()
    assert "every value of percentile(n, 0.5)" in plan._repr_html_()
    assert "keeps" not in windows.agg(kv.sum("n")).explain()


def test_a_bounded_source_may_be_run_or_started() -> None:
    plan = stream_of("at bigint").watermark("at", 0).tumbling_window("1 min").agg(kv.count())
    assert "(run() and collect(): one Spark batch job; start(): transformWithState keyed by bucket)" in plan.explain()
    running = plan_text(explain(plan._plan("streaming")))
    assert "batch job" not in running and "bounded" not in running
    assert "columnar" in running and "(transformWithState keyed by bucket)" in running


@pytest.mark.parametrize(
    ("lag", "tolerance", "warned"),
    [("59 s", None, False), ("60 s", None, True), ("5 min", None, True), ("5 min", "6 min", False)],
)
def test_a_lag_beyond_the_future_tolerance_is_warned_of(lag: str, tolerance: str | None, warned: bool) -> None:
    timed = stream_of("at bigint").watermark("at", lag)
    plain = timed.tumbling_window(10).agg(kv.count()).explain()
    assert "future" not in plain  # the clock is the reference, whatever the lag
    timed = timed.future_tolerance(tolerance or "60 s", reference="watermark")
    assert ("rows that come in order count as future" in timed.tumbling_window(10).agg(kv.count()).explain()) is warned


LONG: Final[dict[str, tuple[Callable[[Any], Any], bool]]] = {
    "tumbling": (lambda s: s.key_by("u").tumbling_window("20 min").agg(kv.count()), True),
    "hopping": (lambda s: s.key_by("u").hopping_window("20 min", "1 min").agg(kv.count()), True),
    "cumulating": (lambda s: s.key_by("u").cumulate_window("1 min", "20 min").agg(kv.count()), True),
    "session": (lambda s: s.key_by("u").session_window("20 min").agg(kv.count()), True),
    "distinct": (lambda s: s.key_by("u").windowed_by(kv.SlidingWindows.of("20 min")).agg(kv.count()), True),
    "ranks": (lambda s: s.key_by("u").tumbling_window("20 min").top_rows(2, "at"), True),
    "window join": (lambda s: s.window_join(_right(), on="u", window=windows.tumbling("20 min")), True),
    "running": (lambda s: s.key_by("u").lookback_window("20 min").agg(kv.count()), False),
}


def _right() -> Any:
    return stream_of("u string, v bigint, at bigint").watermark("at", 0)


def _says(plan: Any) -> bool:
    text = plan.explain()
    return "much longer than" in text or "also where its window" in text


@pytest.mark.parametrize(
    ("lag", "lateness", "far"), [("59 s", 0, True), ("50 s", "9 s", True), ("1 min", 0, False), (0, 0, True)]
)
@pytest.mark.parametrize("name", LONG)
def test_windows_much_longer_than_rows_are_waited_for_are_warned_of(
    name: str, lag: str | int, lateness: str | int, far: bool
) -> None:
    made, by_window = LONG[name]
    timed = stream_of("u string, at bigint").watermark("at", lag).allowed_lateness(lateness)
    plan, by_rule = made(timed), made(timed.late_rule("window"))
    assert _says(plan) is far
    assert ('.late_rule("window") takes rows as long as their window is open' in plan.explain()) is (far and by_window)
    assert _says(by_rule) is (far and not by_window), "a row of a look-back window is late by its own time, whatever the rule"


def test_the_warning_of_panes_names_what_they_can_follow() -> None:
    timed = stream_of("u string, at bigint").watermark("at", "5 s")
    text = timed.time_interval_window(kv.TimeIntervalWindowOptions(600.0)).agg(kv.count()).explain()
    assert "much longer than the 5 s" in text and "; a larger lag takes more of them" in text
    assert "allowed_lateness(" not in text and "late_rule(" not in text


def test_results_and_the_clock_are_never_late_so_their_windows_may_be_long() -> None:
    timed = stream_of("u string, at bigint").watermark("at", "10 s")
    stages = timed.key_by("u").tumbling_window("1 min").agg(kv.count()).tumbling_window("1 day").agg(kv.sum("count"))
    by_clock = stream_of("u string").processing_time().tumbling_window("1 day").agg(kv.count())
    assert "waited for" not in stages.explain() + by_clock.explain()


def test_the_plan_says_what_becomes_of_unknown_sources() -> None:
    spec = kv.MultiSourceWatermarkSpec.new().source("a", kv.WatermarkSpec.fixed_lag(0))
    stream = stream_of("s string, at bigint")
    plan = stream.with_watermark(spec, "at", source_column="s").tumbling_window(5).agg(kv.count())
    assert "rows of other sources: to the late output (unknown_source)" in plan.explain()
    assert "rows of other sources: stop the query" in spec.unknown("fail")._describe()
    assert "rows of other sources: register - 5 s" in spec.unknown("register", kv.WatermarkSpec.fixed_lag("5 s"))._describe()


@pytest.mark.parametrize("name", sorted(PLANS))
def test_a_plan_is_shown_as_it_was_reviewed(name: str) -> None:
    assert PLANS[name]().explain() + "\n" == (FOLDER / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", sorted(PLANS))
@pytest.mark.parametrize("engine", ["driver", "in_process"])
def test_a_plan_speaks_of_the_engine_that_runs_it(name: str, engine: Engine) -> None:
    text = plan_text(explain(PLANS[name]()._plan(engine)))
    assert not re.search("Spark|InArrow|shuffle|map-side|WithState", text.partition("== Warnings ==")[0])


def test_a_session_in_process_explains_what_it_runs() -> None:
    with kv.Session.in_process() as session:
        rows, _ = session.memory_stream("at bigint")
        counts = rows.watermark("at", 0).tumbling_window("1 min").agg(kv.count())
        query = counts.start(kv.MemorySink())
        assert query.explain().startswith(counts.explain())
        assert "in process" in counts.explain() and "kept in the checkpoint" in counts._repr_html_() + counts.explain()


def test_a_plan_is_the_same_in_every_process() -> None:
    program = (
        "from krishiv_py.planner.explain import outline_of\n"
        "from tests.plan.snapshots import PLANS\n"
        "for plan in PLANS.values(): print(plan().explain(), outline_of(plan()._plan('streaming')))"
    )
    root = Path(__file__).parents[2]
    texts = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, env=environment, check=True)
        for environment in ({**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(root)} for seed in ("1", "2"))
    ]
    assert texts[0].stdout == texts[1].stdout


def test_every_snapshot_has_its_plan() -> None:
    assert sorted(p.stem for p in FOLDER.glob("*.txt")) == sorted(PLANS)


@pytest.mark.parametrize("name", sorted(PLANS))
def test_the_operators_shown_are_those_that_run(name: str) -> None:
    spec = PLANS[name]()._spec()
    made, inner = [], operator_for(spec)
    while True:
        made.append(type(inner).__name__)
        if not hasattr(inner, "inner"):
            break
        inner = inner.inner
    assert len(made) == len(chain(spec))


class Shards(Source):
    """A source of two partitions."""

    schema = pa.schema([("user", pa.string()), ("at", pa.int64())])

    def plan(self, last: Any) -> None:
        return None

    def read(self, planned: Any, columns: Any) -> Any:
        return iter(())

    def partition_of(self, planned: Any) -> str:
        return str(planned)


def depends(plan: Any) -> list[str]:
    return [line.removeprefix("depends   on ") for line in plan.explain().splitlines() if line.startswith("depends")]


def test_a_plan_says_what_its_results_depend_on() -> None:
    rows = stream_of("user string, at bigint")
    by_batch, by_row = (rows.watermark("at", "5 s", clock=clock).key_by("user") for clock in ("batch", "row"))
    assert depends(by_batch.tumbling_window(10).agg(kv.count())) == ["how rows come in batches"]
    assert depends(by_row.tumbling_window(10).agg(kv.count())) == ["rows in order"]
    assert depends(rows.filter("at > 0")) == []
    ttl = by_row.with_state_ttl(kv.StateTtlConfig("1 h", "processing")).tumbling_window(10).agg(kv.count())
    assert depends(ttl) == ["rows in order, and the clock of the machine"]
    chained = by_row.tumbling_window(10).agg(kv.count()).key_by("user").tumbling_window(20).agg(kv.count())
    assert depends(chained) == ["rows in order"]
    assert depends(rows.processing_time().tumbling_window(10).agg(kv.count())) == ["the clock of the machine"]
    with kv.Session.in_process() as session:
        shards = session.read_source(Shards()).watermark("at", 0, clock="row").tumbling_window(10).agg(kv.count())
        assert depends(shards) == ["rows of each partition in order"]
        assert "depends on" in shards._repr_html_()
