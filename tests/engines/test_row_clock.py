"""The row clock: late rows and results are functions of the lanes, whatever the batches (SEMANTICS §2.8).

Random rows, of which some are later than the lag, go to one plan in other cuts, over restarts and savepoints. Of one lane the
answer is that of the clock of batches with a batch for each row; of several lanes a plain loop says which rows are late.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py import MultiSourceWatermarkSpec, SlidingWindows, TimeIntervalWindowOptions, WatermarkSpec, count, windows
from krishiv_py.plan.options.watermarks import RowsClock
from krishiv_py.testing import Driver, ManualClock, stream_of, union_of
from tests.checking.operators import Idle, IdleAndLate, IdleByColumns, Seen

SCHEMA = "user string, at bigint, v bigint"
RIGHT = "user string, rat bigint, w bigint"
LAG = 20_000
SEEDS = max(1, int(os.environ.get("KRISHIV_EXAMPLES", "40")) // 40)
Rows = list[dict[str, Any]]
Sends = dict[str, Rows]
Build = Callable[[RowsClock], Any]


def left(clock: RowsClock, rows: Any = None) -> Any:
    return (stream_of(SCHEMA) if rows is None else rows).watermark("at", LAG, clock=clock)


def united() -> Any:
    return union_of({"left": stream_of(SCHEMA), "right": stream_of(SCHEMA)})


def right(clock: RowsClock) -> Any:
    return stream_of(RIGHT).watermark("rat", LAG, clock=clock)


def keyed(clock: RowsClock) -> Any:
    return left(clock).emit("final").key_by("user")


def some(windowed: Any) -> Any:
    return windowed.agg(count().alias("n"), kv.sum("v").alias("total"), kv.collect_list("v").alias("all"))


def chain(clock: RowsClock) -> Any:
    per_minute = keyed(clock).tumbling_window(60_000).agg(kv.sum("v").alias("v"))
    per_five = per_minute.allowed_lateness(30_000).emit("final").key_by("user").tumbling_window(300_000)
    return per_five.agg(kv.sum("v").alias("v"), count().alias("n"))


def by_source(clock: RowsClock) -> Any:
    spec = MultiSourceWatermarkSpec.new(clock=clock)
    for name, lag in (("left", LAG), ("right", 2 * LAG)):
        spec = spec.source(name, WatermarkSpec.fixed_lag(lag))
    both = united().with_watermark(spec, "at", source_column="source")
    return some(both.emit("final").key_by("user").tumbling_window(60_000))


def joined_results(clock: RowsClock) -> Any:
    ours = keyed(clock).tumbling_window(60_000).agg(kv.sum("v").alias("v"))
    theirs = right(clock).emit("final").key_by("user").tumbling_window(60_000).agg(kv.sum("w").alias("w"))
    return ours.window_join(theirs, "user", window=windows.tumbling(300_000))


ONE_LANE: dict[str, Build] = {
    "tumbling": lambda c: some(keyed(c).tumbling_window(60_000)),
    "tumbling, rule window": lambda c: some(keyed(c).late_rule("window").tumbling_window(60_000)),
    "tumbling, lateness": lambda c: some(left(c).allowed_lateness(15_000).emit("final").key_by("user").tumbling_window(60_000)),
    "hopping, rule window": lambda c: some(keyed(c).late_rule("window").hopping_window(90_000, 30_000)),
    "hopping, rule window, lateness": lambda c: some(
        left(c).late_rule("window").allowed_lateness(15_000).emit("final").key_by("user").hopping_window(90_000, 40_000)
    ),
    "cumulate, rule window": lambda c: some(keyed(c).late_rule("window").cumulate_window(30_000, 90_000)),
    "session of columns": lambda c: some(
        left(c).with_column("gap", "v % 7 * 5000 + 1000").emit("final").key_by("user").session_window("gap")
    ),
    "kip450": lambda c: some(left(c).preset("kip450").key_by("user").windowed_by(SlidingWindows.of("30 s").grace("5 s"))),
    "ripple": lambda c: some(left(c).preset("ripple").emit("final").key_by("user").tumbling_window(60_000)),
    "look-back, rule window": lambda c: some(keyed(c).late_rule("window").lookback_window(60_000)),
    "count, rule window": lambda c: some(left(c).late_rule("window").key_by("user").count_window(4, 2)),
    "session, rule window": lambda c: some(keyed(c).late_rule("window").session_window(25_000)),
    "session of columns, rule window": lambda c: some(
        left(c).with_column("gap", "v % 7 * 5000 + 1000").late_rule("window").emit("final").key_by("user").session_window("gap")
    ),
    "capped session, rule window": lambda c: some(keyed(c).late_rule("window").session_window(25_000, max_duration=90_000)),
    "hopping": lambda c: some(keyed(c).hopping_window(90_000, 30_000)),
    "hopping with gaps": lambda c: some(keyed(c).hopping_window(20_000, 50_000, allow_gaps=True)),
    "cumulate": lambda c: some(keyed(c).cumulate_window(30_000, 90_000)),
    "session": lambda c: some(keyed(c).session_window(25_000)),
    "capped session": lambda c: some(keyed(c).session_window(25_000, max_duration=90_000)),
    "session, touching": lambda c: some(keyed(c).session_window(24_000, touch="merge")),
    "session, touching, rule window": lambda c: some(keyed(c).late_rule("window").session_window(24_000, touch="merge")),
    "capped session, touching": lambda c: some(keyed(c).session_window(24_000, max_duration=90_000, touch="merge")),
    "look-back": lambda c: some(keyed(c).lookback_window(60_000)),
    "look-back on arrival": lambda c: some(left(c).key_by("user").lookback_window(60_000, emit="arrival", with_row=True)),
    "count": lambda c: some(left(c).key_by("user").count_window(3, 2)),
    "distinct sets": lambda c: some(left(c).key_by("user").windowed_by(SlidingWindows.of("30 s").grace("5 s"))),
    "panes": lambda c: some(keyed(c).time_interval_window(TimeIntervalWindowOptions("60 s", creation_period="20 s"))),
    "process on arrival": lambda c: left(c).key_by("user").process(Idle(), returns="rows bigint", state=Seen, order="arrival"),
    "process by rounds on arrival": lambda c: (
        left(c).key_by("user").process(IdleByColumns(), returns="rows bigint", state=Seen, order="arrival")
    ),
    "deduplication": lambda c: left(c).drop_duplicates("user", within="1 minute"),
    "chain": chain,
    "filter after": lambda c: some(left(c).filter("v % 3 != 0").emit("final").key_by("user").tumbling_window(60_000)),
    "two filters after": lambda c: some(
        left(c).filter("v % 3 != 0").with_column("v", "v + 1").filter("v % 5 != 0").key_by("user").tumbling_window(60_000)
    ),
    "no key": lambda c: some(left(c).emit("final").tumbling_window(60_000)),
}
TWO_LANES: dict[str, Build] = {
    "union": lambda c: some(left(c, united()).emit("final").key_by("user").tumbling_window(60_000)),
    "union by source": by_source,
    "interval join": lambda c: left(c).interval_join(right(c), "user", how="full", lower=-20_000, upper=10_000),
    "window join": lambda c: left(c).window_join(right(c), "user", how="full", window=windows.tumbling(60_000)),
    "as-of join": lambda c: left(c).asof_join(right(c), "user", tolerance=60_000),
    "nearest join": lambda c: left(c).asof_join(right(c), "user", tolerance=30_000, direction="nearest"),
    "join of results": joined_results,
}


MAY_TAKE_ALL = {kind for kind in ONE_LANE if "rule window" in kind} | {"count", "ripple", "kip450"}
"""Kinds whose windows may take every row of some streams."""


def rows_of(chance: random.Random, kind: str, n: int) -> list[tuple[str, dict[str, Any]]]:
    """Rows of one stream or of two, in the order in which they arrive; a third of them out of order, some beyond the lag."""
    now, arrived = {"left": 600_000, "right": 600_000}, list[tuple[str, dict[str, Any]]]()
    two = kind in TWO_LANES
    for number in range(n):
        name = chance.choice(["left", "right"]) if two else "left"
        now[name] += chance.randrange(0, 9_000)
        moment: int | None = now[name] - chance.choice([0, 0, 0, 5_000, 20_000, 20_001, 60_000])
        moment = None if chance.random() < 0.02 else moment
        ours = name == "left" or kind.startswith("union")
        value = {"at": moment, "v": number} if ours else {"rat": moment, "w": number}
        arrived.append((name, {"user": chance.choice(["a", "b", None]), **value}))
    return arrived


def cut(chance: random.Random, arrived: list[tuple[str, dict[str, Any]]], most: int) -> Iterator[Sends]:
    """Batches of up to so many rows."""
    left_over = list(arrived)
    while left_over:
        n = chance.randint(1, most)
        batch: Sends = {}
        for name, row in left_over[:n]:
            batch.setdefault(name, []).append(row)
        left_over = left_over[n:]
        yield batch


def sent_to(driver: Driver, batch: Sends, *, two: bool) -> Any:
    return driver.send(batch if two else batch["left"])


def said(outs: list[Any]) -> tuple[list[str], list[str]]:
    results = [repr(row) for out in outs for row in out.results.to_pylist()]
    late = [repr(row) for out in outs for table in out.late_by_stage.values() for row in table.to_pylist()]
    return sorted(results), sorted(late)


def ran(build: Build, clock: RowsClock, kind: str, batches: Iterator[Sends], chance: random.Random, folder: Path | None) -> Any:
    driver, outs = Driver(build(clock)), []
    for batch in batches:
        outs.append(sent_to(driver, batch, two=kind in TWO_LANES))
        if folder is not None and chance.random() < 0.06:
            driver = driver.restarted()
        if folder is not None and chance.random() < 0.06:
            driver = Driver(build(clock), savepoint=driver.savepoint(str(folder / uuid.uuid4().hex)))
    outs.append(driver.close())
    return said(outs)


@pytest.mark.one_in(31)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", ONE_LANE)
def test_one_lane_in_any_cut_is_a_batch_for_each_row(kind: str, seed: int, tmp_path: Path) -> None:
    chance, build = random.Random(f"{kind} {seed}"), ONE_LANE[kind]
    arrived = rows_of(chance, kind, 120)
    expected = ran(build, "batch", kind, cut(chance, arrived, 1), chance, None)
    assert expected[1] or kind in MAY_TAKE_ALL, "no row was late"
    for most in (1, 7, 200):
        assert ran(build, "row", kind, cut(chance, arrived, most), chance, tmp_path) == expected, most


def late_by_loop(kind: str, arrived: list[tuple[str, dict[str, Any]]]) -> Mapping[str, set[int]]:
    """The rows that are late or without a time, by their numbers."""
    newest, late = dict[str, int](), {"left": set[int](), "right": set[int]()}
    for name, row in arrived:
        moment, number = (row["at"], row["v"]) if "at" in row else (row["rat"], row["w"])
        lag = 2 * LAG if kind == "union by source" and name == "right" else LAG
        if moment is None or (name in newest and moment < newest[name] - lag):
            late[name].add(number)
        if moment is not None:
            newest[name] = max(moment, newest.get(name, moment))
    return late


@pytest.mark.one_in(7)
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", TWO_LANES)
def test_several_lanes_in_any_cut_are_the_same(kind: str, seed: int, tmp_path: Path) -> None:
    chance, build = random.Random(f"{kind} {seed}"), TWO_LANES[kind]
    arrived = rows_of(chance, kind, 120)
    late = late_by_loop(kind, arrived)
    assert late["left"]
    assert late["right"]
    expected = ran(build, "row", kind, cut(chance, arrived, 1), chance, None)
    assert len(expected[1]) == len(late["left"]) + len(late["right"])
    kept = [(name, row) for name, row in arrived if row.get("v", row.get("w")) not in late[name]]
    whole = ran(build, "batch", kind, cut(chance, kept, 10_000), chance, None)
    assert whole == (expected[0], [])
    for most in (1, 7, 200):
        assert ran(build, "row", kind, cut(chance, arrived, most), chance, tmp_path) == expected, most


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(3 * SEEDS))
@pytest.mark.parametrize("order", ["time", "arrival"])
def test_late_rows_of_a_process_function_are_those_of_a_loop(order: Any, seed: int) -> None:
    chance = random.Random(f"late {order} {seed}")
    arrived = rows_of(chance, "process", 120)
    late = late_by_loop("process", arrived)["left"] - {row["v"] for _, row in arrived if row["at"] is None}
    assert late
    for most in (1, 7, 200):
        handled = left("row").key_by("user").process(IdleAndLate(), returns="rows bigint", state=Seen, late="pass", order=order)
        driver = Driver(handled)
        outs = [driver.send(batch["left"]) for batch in cut(chance, arrived, most)]
        given = [n for out in [*outs, driver.close()] for n in out.results["rows"].to_pylist()]
        assert (given.count(-1), driver.counters["late_passed"]) == (len(late), len(late)), most


@pytest.mark.parametrize("most", [1, 2, 10])
@pytest.mark.parametrize("known", [True, False], ids=["was idle", "is new"])
def test_a_lane_that_comes_is_classified_by_the_watermark_of_then(most: int, known: bool) -> None:
    spec = MultiSourceWatermarkSpec.new(clock="row").idle_timeout("30 s").source("left", WatermarkSpec.fixed_lag("5 s"))
    spec = (
        spec.source("right", WatermarkSpec.fixed_lag("5 s"))
        if known
        else spec.unknown("register", WatermarkSpec.fixed_lag("5 s"))
    )
    timed = united().with_watermark(spec, "at", source_column="source")
    clock = ManualClock()
    driver = Driver(timed.emit("final").tumbling_window("10 s").agg(kv.collect_list("v")), clock=clock)

    def send(name: str, *seconds: int) -> list[int]:
        late = list[int]()
        for begin in range(0, len(seconds), most):
            rows = [{"user": "a", "at": at * 1_000, "v": at} for at in seconds[begin : begin + most]]
            late += driver.send({name: rows}).late["v"].to_pylist()
        return late

    assert send("left", 10, 4) == [4]
    assert not known or send("right", 8, 9) == []
    clock.advance("31 s")
    assert send("left", 60, 100) == []  # 95 s from now on, as the other lane is idle or not there
    assert send("right", 94, 95, 97, 110, 104, 105) == [94, 104]
    assert send("left", 96, 94) == [94]  # the watermark has waited for both
