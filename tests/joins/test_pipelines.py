"""Random pipelines of up to four stages in a row, joins among them, against rows one by one (SEMANTICS §7 to §9).

Each draws filters, deduplication, windows of every kind that a stage may follow, look-back windows and joins of all kinds, with
lags, lateness and late rules of their own; batches in any order of time, with and without batches without rows; and restarts.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from typing import Any, get_args

import attrs
from hypothesis import given
from hypothesis import strategies as st

import krishiv_py as kv
from krishiv_py import SlidingWindows, windows
from krishiv_py.testing import Driver, StepOutput, stream_of
from tests.reference import pipeline_joins as joins
from tests.reference import pipelines as ref
from tests.reference.joins import How

DDL, KEYS, NUMBERS = "k string, n bigint, at bigint", ("a", "b", "c", None), (None, 0, 1, 2, 3, 4)
AGGREGATES: dict[ref.Aggregate, Callable[[], kv.AggCall]] = {
    "count": kv.count,
    "sum": lambda: kv.sum("n"),
    "max": lambda: kv.max("n"),
    "first": lambda: kv.first("n"),
    "last": lambda: kv.last("n"),
    "count_distinct": lambda: kv.count_distinct("n"),
    "mode": lambda: kv.mode("n"),
}


def hopping(size: int, slide: int, offset: int = 0) -> ref.Windows:
    """The windows of a time."""

    def of(t: int) -> list[tuple[int, int]]:
        starts = range(t - size + 1, t + 1)
        return [(s, s + size) for s in starts if (s - offset) % slide == 0]

    return of


def cumulating(step: int, size: int) -> ref.Windows:
    """The windows of a time."""
    return lambda t: [(t - t % size, end) for end in range(t - t % size + step, t - t % size + size + 1, step) if t < end]


@attrs.frozen
class Made:
    """The same stage twice: by the reference, and as a stream; `names` are those of its sources by side."""

    reference: ref.Source | ref.ReferenceStage
    stream: Any
    names: dict[str, str]

    @property
    def time(self) -> str:
        """The event-time column."""
        rows: Any = self.stream
        return str(rows._draft.input.column)


class Drawing:
    """Draws a pipeline."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sources: list[ref.Source] = []
        self.stages: list[ref.ReferenceStage] = []
        self.made = self.draw(self.random.randint(1, 4))

    def draw(self, depth: int) -> Made:
        """A pipeline of at most so many stages in a row."""
        if depth == 0:
            return self._source()
        kind = self.random.random()
        if kind < 0.3 and len(self.sources) < 3:
            return self._join(self.draw(self.random.randint(0, depth - 1)), self.draw(self.random.randint(0, depth - 1)))
        before = self.draw(depth - 1)
        return self._once(before) if kind < 0.5 else self._windowed(before)

    def _source(self) -> Made:
        source = ref.Source(f"s{len(self.sources)}", self.random.choice([0, 0, 2, 5]))
        self.sources.append(source)
        return Made(source, stream_of(DDL).watermark("at", source.lag), {"": source.name})

    def _behind(self, *before: Made) -> tuple[list[Any], dict[str, Any]]:
        """The streams, those of stages with another lag and a filter where drawn; and what the reference has of it."""
        streams, lags, filtered = [], [], []
        for one in before:
            of_stage = isinstance(one.reference, ref.ReferenceStage)
            lags.append(self.random.choice([0, 0, 0, 3]) if of_stage else 0)
            filtered.append(of_stage and self.random.random() < 0.25)
            stream = one.stream.filter("n is null or n % 3 <> 0") if filtered[-1] else one.stream
            streams.append(stream.watermark(one.time, lags[-1]) if lags[-1] else stream)
        late = self.random.choice([0, 0, 0, 2, 6])
        return streams, {"inputs": [m.reference for m in before], "lags": lags, "filtered": filtered, "lateness": late}

    def _once(self, before: Made) -> Made:
        (stream,), common = self._behind(before)
        within, by_number = self.random.choice([1, 3, 8, 20]), self.random.random() < 0.5
        once = ref.Once(**common, by_number=by_number, within=within)
        passed = stream.drop_duplicates(*(("k", "n") if by_number else ("k",)), within=within)
        self.stages.append(once)
        return Made(once, passed.allowed_lateness(once.lateness), before.names)

    def _windowed(self, before: Made) -> Made:
        pick = self.random
        (stream,), common = self._behind(before)
        by_key = pick.random() < 0.8
        kind = pick.choice(["tumbling", "hopping", "cumulate", "session", "look-back", "distinct"])
        name = pick.choice([n for n in AGGREGATES if by_key or n not in ("first", "last")])
        common |= {"aggregate": name, "by_key": by_key}
        windowed, stage = self._window(stream.key_by("k") if by_key else stream, kind, common)
        if kind != "distinct":
            windowed = windowed.allowed_lateness(stage.lateness)
        if isinstance(stage, ref.Fixed) and stage.by_window:
            windowed = windowed.late_rule("window")
        results = windowed.emit("final").agg(AGGREGATES[name]().alias("n"))
        self.stages.append(stage)
        return Made(stage, results.select(k="k" if by_key else "'all'", n="n"), before.names)

    def _window(self, keyed: Any, kind: str, common: dict[str, Any]) -> tuple[Any, ref.Windowed]:
        pick = self.random
        size, slide, offset = pick.choice([4, 6, 10, 15]), pick.choice([2, 3, 4]), pick.choice([0, 0, 1])
        by_window = pick.random() < 0.3
        if kind == "tumbling":
            stage = ref.Fixed(**common, windows=hopping(size, size, offset), by_window=by_window)
            return keyed.tumbling_window(size, offset=offset), stage
        if kind == "hopping":
            stage = ref.Fixed(**common, windows=hopping(size, slide, offset), by_window=by_window)
            return keyed.hopping_window(size, slide, offset=offset), stage
        if kind == "cumulate":
            stage = ref.Fixed(**common, windows=cumulating(size, 3 * size), by_window=by_window)
            return keyed.cumulate_window(size, 3 * size), stage
        if kind == "session":
            longest = pick.choice([None, size, size + 8])
            actual = keyed.session_window(size, max_duration=longest)
            return actual, ref.Sessions(**common, gap=size, longest=longest or math.inf)
        if kind == "distinct":
            return keyed.windowed_by(SlidingWindows.of(size).grace(common["lateness"])), ref.Distinct(**common, size=size)
        two, without = pick.random() < 0.3, pick.random() < 0.4
        on_arrival = common["by_key"] and pick.random() < 0.5
        emit = "arrival" if on_arrival else "watermark"
        stream = keyed.lookback_window(size, two_sided=two, exclude_self=without, emit=emit)
        look_back = ref.LookBack(**common, size=size, two_sided=two, without_itself=without, on_arrival=on_arrival)
        return stream, look_back

    def _join(self, left: Made, right: Made) -> Made:
        pick = self.random
        (one, other), common = self._behind(left, right)
        kind = pick.choice(["interval", "as-of", "windows"])
        how = pick.choice(["left", "inner"] if kind == "as-of" else get_args(How))
        joined, stage = self._joined(one, other, kind, common | {"how": how})
        self.stages.append(stage)
        n = "n" if how in ("semi", "anti") else "coalesce(n, 0) + 2 * coalesce(n_right, 100)"
        actual = joined.allowed_lateness(stage.lateness).select("k", n=n)
        names = {
            f"{side}.{moment}".rstrip("."): s for side, m in (("left", left), ("right", right)) for moment, s in m.names.items()
        }
        return Made(stage, actual, names)

    def _joined(self, one: Any, other: Any, kind: str, common: dict[str, Any]) -> tuple[Any, joins.Join]:
        pick, how, suffixes = self.random, common["how"], ("", "_right")
        if kind == "interval":
            lower, upper = sorted(pick.choices(range(-8, 9), k=2))
            joined = one.interval_join(other, "k", lower=lower, upper=upper, how=how, suffixes=suffixes)
            return joined, joins.Interval(**common, lower=lower, upper=upper)
        if kind == "as-of":
            direction = pick.choice(get_args(joins.Direction))
            tolerance = pick.choice([0, 3, 7, None] if direction == "backward" else [0, 3, 7])
            joined = one.asof_join(other, "k", direction=direction, tolerance=tolerance, how=how, suffixes=suffixes)
            near = math.inf if tolerance is None else tolerance
            return joined, joins.Asof(**common, direction=direction, tolerance=near)
        size, slide, by_window = pick.choice([4, 10]), pick.choice([2, 4]), pick.random() < 0.3
        window = windows.hopping(size, slide)
        joined = one.window_join(other, "k", window=window, how=how, suffixes=suffixes)
        if by_window:
            joined = joined.late_rule("window")
        stage = joins.InWindows(**common, windows=hopping(size, slide), by_window=by_window)
        return joined, stage


class Input:
    """Draws batches: rows out of order around a time that goes on."""

    def __init__(self, drawn: Drawing) -> None:
        self.random, self.sources = drawn.random, drawn.sources
        self.at = {source.name: self.random.randint(-20, 20) for source in self.sources}
        self.drift, self.spread = self.random.choice([0, 3, 8, 20]), self.random.choice([2, 6, 15, 30])

    def batch(self) -> dict[str, list[ref.Row]]:
        """The rows of one, by source; a source may bring none."""
        return {s.name: [self._row(s.name) for _ in range(self._many(s.name))] for s in self.sources}

    def _many(self, name: str) -> int:
        self.at[name] += self.random.randint(0, self.drift)
        return 0 if self.random.random() < 0.2 else self.random.randint(0, 7)

    def _row(self, name: str) -> ref.Row:
        t = self.at[name] + self.random.randint(-self.spread, self.spread)
        return ref.Row(self.random.choice(KEYS), self.random.choice(NUMBERS), t)


def results_of(out: StepOutput) -> list[ref.Row]:
    return [ref.Row(row["k"], row["n"], row["t"]) for row in out.results.to_pylist()]


def ordered(rows: list[ref.Row]) -> list[ref.Row]:
    return sorted(rows, key=lambda r: (r.t, ref.in_order(r.key), r.n is not None, r.n or 0))


def late_rows(out: StepOutput) -> int:
    return sum(table.num_rows for table in out.late_by_stage.values()) if out.late_by_stage else out.late.num_rows


def sent(made: Made, batch: dict[str, list[ref.Row]]) -> Any:
    """Rows as a driver takes them."""
    rows = {side: [{"k": r.key, "n": r.n, "at": r.t} for r in batch[name]] for side, name in made.names.items()}
    return rows.get("", rows)


def check_snapshot(driver: Driver) -> None:
    """Early results are what the end of the input would give, through all stages (§10)."""
    stages = driver._plan.stages
    if len(stages) == 1 or all(stage.spec.operation.nature.gives_rows for stage in stages):
        return
    ended = driver.restarted().close()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the early results of a snapshot")
        out = driver.snapshot()
    assert ordered(results_of(out)) == ordered(results_of(ended))
    assert late_rows(out) == 0


def check(seed: int) -> None:
    """The pipeline of this seed."""
    drawn = Drawing(seed)
    made, rows, pick = drawn.made, Input(drawn), drawn.random
    assert isinstance(made.reference, ref.ReferenceStage)
    idle_batches = pick.random() < 0.7
    driver = Driver(made.stream.with_column("t", made.time), idle_batches=idle_batches)
    batches: list[dict[str, list[ref.Row]] | None] = [rows.batch() for _ in range(pick.randint(1, 9))]
    for batch in [*batches, None]:
        if pick.random() < 0.2:
            driver = driver.restarted()
        if idle_batches and pick.random() < 0.1:
            check_snapshot(driver)
        late = sum(stage.late for stage in drawn.stages)
        out = driver.close() if batch is None else driver.send(sent(made, batch))
        wanted = made.reference.run(batch or {})
        before = [source.reached for source in drawn.sources]
        for source in drawn.sources:
            source.saw(batch or {})
            source.reached = math.inf if batch is None else source.reached
        if (idle_batches or batch is None) and before != [source.reached for source in drawn.sources]:
            wanted += made.reference.run({})
        assert ordered(results_of(out)) == ordered(wanted)
        assert late_rows(out) == sum(stage.late for stage in drawn.stages) - late
    assert driver.open_windows == driver.progress.open_rows == 0, "nothing is left behind"
    unmatched = sum(stage.unmatched for stage in drawn.stages if isinstance(stage, joins.Join))
    stated = driver.progress.stages
    counted = [p.counters.get("unmatched", 0) for p in stated.values()] if stated else [driver.counters.get("unmatched", 0)]
    assert sum(counted) == unmatched


@given(st.integers(0, 10**9))
def test_a_pipeline_gives_what_rows_one_by_one_give(seed: int) -> None:
    check(seed)
