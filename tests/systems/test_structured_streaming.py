"""The preset ``spark`` against a row-by-row model of Structured Streaming (SEMANTICS §4.6).

In Spark the rows of batch n are late by the watermark of batch n - 1, state leaves by that of batch n, and a batch without rows
follows where a query waits and the watermark has moved.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from krishiv_py import count
from krishiv_py.testing import Driver, stream_of
from tests.examples import scaled

LAG, SIZE, GAP = 7, 10, 4
Rows = list[tuple[str, int]]
BATCHES = st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 80)), max_size=6), max_size=8)


class Spark:
    """The watermarks of a query: which rows are late, and what leaves."""

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits
        self.late = self.now = float("-inf")
        self.newest = float("-inf")

    def run(self, batches: list[Rows], take: Any, leave: Any) -> None:
        """Give `take` the rows and the watermark that says which are late, and `leave` the one that state leaves by."""
        for rows in batches:
            take(rows, self.late)
            leave(self.now)
            self.late = self.now
            self.newest = max([self.newest, *(t for _, t in rows)])
            self.now = max(self.now, self.newest - LAG)
            if self.waits and self.now > self.late:
                leave(self.now)
                self.late = self.now


def driver_of(steps: Any, *, waits: bool) -> Driver:
    return Driver(steps(stream_of("k string, at bigint").watermark("at", LAG).preset("spark")), idle_batches=waits)


def given_by(driver: Driver, batches: list[Rows], *, restarts: bool = False) -> tuple[list[Any], int]:
    results: list[Any] = []
    for rows in batches:
        results += driver.send([{"k": k, "at": t} for k, t in rows]).results.to_pylist()
        driver = driver.restarted() if restarts else driver
    return results, driver.counters["late"]


@settings(max_examples=scaled(150), deadline=None)
@given(BATCHES, st.booleans(), st.booleans(), st.sampled_from([SIZE, 5]))
def test_windows(batches: list[Rows], waits: bool, restarts: bool, slide: int) -> None:
    held: dict[tuple[str, int], int] = defaultdict(int)
    out: list[Any] = []
    late = 0

    def take(rows: Rows, mark: float) -> None:
        nonlocal late
        for k, t in rows:
            starts = [s for s in range((t - SIZE) // slide * slide, t + 1, slide) if s <= t < s + SIZE]
            open_ = [s for s in starts if s + SIZE > mark]
            late += not open_
            for s in open_:
                held[k, s] += 1

    def leave(mark: float) -> None:
        for k, s in [w for w in held if w[1] + SIZE <= mark]:
            out.append((k, s, held.pop((k, s))))

    Spark(waits=waits).run(batches, take, leave)
    driver = driver_of(lambda s: s.key_by("k").hopping_window(SIZE, slide).agg(count()), waits=waits)
    results, dropped = given_by(driver, batches, restarts=restarts)
    assert sorted((r["k"], r["window_start"], r["count"]) for r in results) == sorted(out)
    assert dropped == late


@settings(max_examples=scaled(150), deadline=None)
@given(BATCHES, st.booleans(), st.booleans())
def test_sessions_are_late_by_the_session_of_the_row_alone(batches: list[Rows], waits: bool, restarts: bool) -> None:
    held: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    out: list[Any] = []
    late = 0

    def take(rows: Rows, mark: float) -> None:
        nonlocal late
        for k, t in rows:
            if t + GAP <= mark:
                late += 1
                continue
            mine = [s for s in held[k] if s[0] <= t + GAP and t <= s[1]]
            held[k] = [s for s in held[k] if s not in mine]
            begin, end, n = t, t + GAP, 1
            for s in mine:
                begin, end, n = min(begin, s[0]), max(end, s[1]), n + s[2]
            held[k].append((begin, end, n))

    def leave(mark: float) -> None:
        for k in held:
            out.extend((k, *s) for s in held[k] if s[1] <= mark)
            held[k] = [s for s in held[k] if s[1] > mark]

    Spark(waits=waits).run(batches, take, leave)
    driver = driver_of(lambda s: s.key_by("k").session_window(GAP).agg(count()), waits=waits)
    results, dropped = given_by(driver, batches, restarts=restarts)
    assert sorted((r["k"], r["window_start"], r["window_end"], r["count"]) for r in results) == sorted(out)
    assert dropped == late


@settings(max_examples=scaled(150), deadline=None)
@given(BATCHES, st.booleans(), st.booleans())
def test_deduplication_remembers_by_state(batches: list[Rows], waits: bool, restarts: bool) -> None:
    held: dict[str, int] = {}
    out: list[Any] = []
    late, twice = 0, 0

    def take(rows: Rows, mark: float) -> None:
        nonlocal late, twice
        for k, t in rows:
            if t <= mark:
                late += 1
            elif k in held:
                twice += 1
            else:
                held[k] = t + LAG
                out.append((k, t))

    def leave(mark: float) -> None:
        for k in [k for k, until in held.items() if until <= mark]:
            del held[k]

    Spark(waits=waits).run(batches, take, leave)
    driver = driver_of(lambda s: s.drop_duplicates("k", within=LAG), waits=waits)
    results, dropped = given_by(driver, batches, restarts=restarts)
    assert sorted((r["k"], r["at"]) for r in results) == sorted(out)
    assert dropped == late


@settings(max_examples=scaled(100), deadline=None)
@given(BATCHES, BATCHES, st.booleans(), st.sampled_from(["inner", "left"]))
def test_joins(lefts: list[Rows], rights: list[Rows], waits: bool, how: Any) -> None:
    n = max(len(lefts), len(rights))
    lefts, rights = [*lefts, *[[]] * (n - len(lefts))], [*rights, *[[]] * (n - len(rights))]
    left = stream_of("k string, at bigint").watermark("at", LAG).preset("spark")
    right = stream_of("k string, seen bigint").watermark("seen", LAG)
    driver = Driver(left.interval_join(right, "k", lower=-3, upper=5, how=how), idle_batches=waits)
    seen: tuple[Rows, Rows] = ([], [])
    late = 0
    mark = now = float("-inf")
    newest: list[float] = [float("-inf")] * 2
    expected: list[Any] = []
    actual: list[Any] = []
    for batch in zip(lefts, rights, strict=True):
        sent = {"left": [{"k": k, "at": t} for k, t in batch[0]], "right": [{"k": k, "seen": t} for k, t in batch[1]]}
        actual += driver.send(sent).results.to_pylist()
        for side, rows in enumerate(batch):
            late += sum(t <= mark for _, t in rows)
            seen[side].extend([row for row in rows if row[1] > mark])
            newest[side] = max([newest[side], *(t for _, t in rows)])
        mark, now = now, max(now, min(newest) - LAG)
        mark = now if waits else mark
    actual += driver.close().results.to_pylist()
    for k, t in seen[0]:
        partners = [u for other, u in seen[1] if other == k and t - 3 <= u <= t + 5]
        expected += [(k, t, u) for u in (partners or ([-1] if how == "left" else []))]
    assert sorted((r["k"], r["at"], -1 if r["seen"] is None else r["seen"]) for r in actual) == sorted(expected)
    assert driver.counters["late"] == late


def test_the_watermark_of_the_batch_before_decides() -> None:
    driver = driver_of(lambda s: s.key_by("k").tumbling_window(10).agg(count()), waits=False)
    batches = [[("a", 1)], [("a", 30)], [("a", 2)], [("a", 3)]]
    results, late = given_by(driver, batches)
    assert [r["count"] for r in results] == [2], (
        "the third batch is classified by the first's watermark, and its window fires with it"
    )
    assert late == 1
    flink = Driver(
        stream_of("k string, at bigint").watermark("at", LAG).preset("flink").key_by("k").tumbling_window(10).agg(count()),
        idle_batches=False,
    )
    assert given_by(flink, batches)[1] == 2


def test_a_stage_behind_it_takes_all_its_results() -> None:
    def chained(s: Any) -> Any:
        return s.key_by("k").tumbling_window(10).agg(count()).tumbling_window(20).agg(count().alias("n"))

    driver = driver_of(chained, waits=False)
    batches = [[("a", 1)], [("a", 30)], [("a", 2), ("a", 12)], [("a", 60)], [("a", 90)]]
    given_by(driver, batches)
    driver.close()
    assert not any(sum(c for n, c in s.counters.items() if n == "late") for s in driver._stages)


def test_explain_says_which_watermark() -> None:
    stream = stream_of("k string, at bigint").watermark("at", LAG).key_by("k")
    assert "late_watermark=batch_before" in stream.preset("spark").tumbling_window(10).agg(count()).explain()
    assert "late_watermark" not in stream.preset("flink").tumbling_window(10).agg(count()).explain()
