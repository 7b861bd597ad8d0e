"""The law of the row clock over lanes of a source: any cut, order of lanes, workers, restarts and savepoints, in process.

Which rows are late is computed by a loop over each lane (SEMANTICS §2.8). What is left goes through a driver in one batch,
under the clock of batches: so the results are those of the rows that were taken, whatever the lanes did.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow as pa
import pytest

import krishiv_py as kv
from krishiv_py import (
    Batches,
    Context,
    Events,
    MemorySink,
    RoundContext,
    Session,
    SideOutputLateEventHandler,
    SlidingWindows,
    StateColumns,
    Stream,
    TimeIntervalWindowOptions,
    Trigger,
    connect,
    count,
    windows,
)
from krishiv_py.plan.options.watermarks import RowsClock
from krishiv_py.testing import Driver, stream_of, union_of
from krishiv_py.testing.checking.plans import CheckedPlan
from krishiv_py.testing.checking.runs import folded
from tests.engines.lanes import Lanes, LanesInCuts, Row

LEFT: Final = pa.schema([("user", pa.string()), ("at", pa.int64()), ("v", pa.int64())])
RIGHT: Final = pa.schema([("user", pa.string()), ("rat", pa.int64()), ("w", pa.int64())])
LAG: Final = 20_000
SEEDS: Final = max(1, int(os.environ.get("KRISHIV_EXAMPLES", "40")) // 40)
Build = Callable[[RowsClock, Stream, Stream], Any]


@attrs.define
class Seen:
    rows: int = 0
    total: int = 0


class Visits:
    """Adds up the rows of a key until none has come for a while; every tenth value ends a visit."""

    def on_row(self, row: Any, state: Seen, ctx: Context) -> list[dict[str, Any]]:
        state.rows += 1
        state.total += row.v
        ctx.timer("idle", after=30_000)
        if row.v % 10 == 0:
            ctx.cancel("idle")
            return self.on_timer("end", state, ctx)
        return []

    def on_timer(self, name: str, state: Seen, ctx: Context) -> list[dict[str, Any]]:
        result = {"why": name, "rows": state.rows, "total": state.total}
        ctx.forget()
        return [result]


class VisitsInRounds:
    """The same without the tenth, many keys at a time."""

    def on_events(self, events: Events, state: StateColumns, ctx: RoundContext) -> None:
        state.rows[events.is_row] += 1
        ctx.timer("idle", after=30_000, where=events.is_row)
        ctx.emit(rows=state.rows, where=~events.is_row)
        ctx.forget(where=~events.is_row)


class Sides:
    """Numbers the rows of two streams as one sequence."""

    def on_one(self, row: Any, state: Seen, ctx: Context) -> list[dict[str, Any]]:
        state.rows += 1
        return [{"n": state.rows, "x": row.v}]

    def on_two(self, row: Any, state: Seen, ctx: Context) -> list[dict[str, Any]]:
        state.rows += 1
        return [{"n": state.rows, "x": -row.w}]


def timed(clock: RowsClock, rows: Stream) -> Any:
    return rows.watermark("at", LAG, clock=clock)


def keyed(clock: RowsClock, rows: Stream) -> Any:
    return timed(clock, rows).emit("final").key_by("user")


def by_window(clock: RowsClock, rows: Stream) -> Any:
    return timed(clock, rows).late_rule("window").allowed_lateness(15_000)


def other(clock: RowsClock, rows: Stream) -> Any:
    return rows.watermark("rat", LAG, clock=clock)


def some(windowed: Any) -> Any:
    return windowed.agg(count(), kv.sum("v"), kv.min("v"), kv.collect_list("v"), kv.first("v"))


def chain(clock: RowsClock, one: Stream, two: Stream) -> Any:
    per_minute = keyed(clock, one).tumbling_window(60_000).agg(kv.sum("v").alias("v"))
    return per_minute.key_by("user").tumbling_window(300_000).agg(kv.sum("v").alias("v"), count())


def of_process(clock: RowsClock, one: Stream, two: Stream) -> Any:
    visits = timed(clock, one).key_by("user").process(Visits(), returns="why string, rows bigint, total bigint", state=Seen)
    return visits.key_by("user").tumbling_window(60_000).agg(count(), kv.sum("total"))


def both(clock: RowsClock, one: Stream, two: Stream) -> Any:
    sides = connect(one=timed(clock, one).key_by("user"), two=other(clock, two).key_by("user"))
    return sides.process(Sides(), returns="n bigint, x bigint", state=Seen)


PATTERN: Final = kv.step("low", "v % 3 = 0").followed_by(kv.step("high", "v % 3 = 1").one_or_more())

ANY_KEYS: Final[dict[str, Build]] = {
    "tumbling": lambda c, a, b: some(keyed(c, a).tumbling_window(60_000)),
    "tumbling, rule window": lambda c, a, b: some(keyed(c, a).late_rule("window").tumbling_window(60_000)),
    "tumbling, retractions": lambda c, a, b: some(
        timed(c, a).allowed_lateness(15_000).emit("retractions").key_by("user").tumbling_window(60_000)
    ),
    "tumbling, updates": lambda c, a, b: some(timed(c, a).allowed_lateness(15_000).key_by("user").tumbling_window(60_000)),
    "first rows of a window": lambda c, a, b: keyed(c, a).tumbling_window(60_000).agg(kv.top_k(2, "v", "at")),
    "no key": lambda c, a, b: some(timed(c, a).emit("final").tumbling_window(60_000)),
    "hopping": lambda c, a, b: some(keyed(c, a).hopping_window(90_000, 30_000)),
    "cumulate": lambda c, a, b: some(keyed(c, a).cumulate_window(30_000, 90_000)),
    "session": lambda c, a, b: some(keyed(c, a).session_window(25_000)),
    "capped session": lambda c, a, b: some(keyed(c, a).session_window(25_000, max_duration=90_000)),
    "look-back": lambda c, a, b: some(keyed(c, a).lookback_window(60_000)),
    "look-back, two sided": lambda c, a, b: keyed(c, a).lookback_window(60_000, two_sided=True).agg(count(), kv.sum("v")),
    "distinct sets": lambda c, a, b: some(timed(c, a).key_by("user").windowed_by(SlidingWindows.of("30 s").grace("5 s"))),
    "panes": lambda c, a, b: some(keyed(c, a).time_interval_window(TimeIntervalWindowOptions("60 s", creation_period="20 s"))),
    "chain": chain,
    "process": lambda c, a, b: (
        timed(c, a).key_by("user").process(Visits(), returns="why string, rows bigint, total bigint", state=Seen)
    ),
    "process in rounds": lambda c, a, b: (
        timed(c, a).key_by("user").process(VisitsInRounds(), returns="rows bigint", state=Seen)
    ),
    "windows of a process": of_process,
    "connected": both,
    "absence": lambda c, a, b: timed(c, a).key_by("user").absent(after=30_000, repeat=20_000, recovered=True),
    "pattern": lambda c, a, b: timed(c, a).key_by("user").match(PATTERN, within=60_000, measures=[count("high").alias("n")]),
    "rows with those before": lambda c, a, b: timed(c, a).key_by("user").with_previous(before=kv.prev("v")),
    "interval join": lambda c, a, b: timed(c, a).interval_join(other(c, b), "user", how="full", lower=-20_000, upper=10_000),
    "window join": lambda c, a, b: timed(c, a).window_join(other(c, b), "user", how="full", window=windows.tumbling(60_000)),
    "as-of join": lambda c, a, b: timed(c, a).asof_join(other(c, b), "user", tolerance=60_000),
    "nearest join": lambda c, a, b: timed(c, a).asof_join(other(c, b), "user", tolerance=30_000, direction="nearest"),
}
"""Results are functions of the lanes, whichever keys a lane has."""

KEYS_IN_LANES: Final[dict[str, Build]] = {
    "deduplication": lambda c, a, b: timed(c, a).drop_duplicates("user", within="1 minute"),
    "count": lambda c, a, b: some(timed(c, a).key_by("user").count_window(3, 2)),
    "look-back on arrival": lambda c, a, b: some(
        timed(c, a).key_by("user").lookback_window(60_000, emit="arrival", with_row=True)
    ),
    "process on arrival": lambda c, a, b: (
        timed(c, a)
        .key_by("user")
        .process(Visits(), returns="why string, rows bigint, total bigint", state=Seen, order="arrival")
    ),
    "process in rounds on arrival": lambda c, a, b: (
        timed(c, a).key_by("user").process(VisitsInRounds(), returns="rows bigint", state=Seen, order="arrival")
    ),
    "session, rule window": lambda c, a, b: some(keyed(c, a).late_rule("window").session_window(25_000)),
    "session, rule window, sums": lambda c, a, b: (
        keyed(c, a).late_rule("window").session_window(25_000).agg(count(), kv.sum("v"))
    ),
    "session, rule window, retractions": lambda c, a, b: (
        timed(c, a)
        .late_rule("window")
        .allowed_lateness(15_000)
        .emit("retractions")
        .key_by("user")
        .session_window(25_000)
        .agg(count(), kv.sum("v"))
    ),
    "session of columns, rule window": lambda c, a, b: some(
        keyed(c, a.with_column("gap", "v % 7 * 5000 + 1000")).late_rule("window").session_window("gap")
    ),
    "session, touching": lambda c, a, b: some(keyed(c, a).session_window(24_000, touch="merge")),
    "capped session, rule window": lambda c, a, b: some(
        keyed(c, a).late_rule("window").session_window(25_000, max_duration=60_000)
    ),
    "capped session, rule window, lateness": lambda c, a, b: some(
        by_window(c, a).emit("final").key_by("user").session_window(25_000, max_duration=60_000)
    ),
    "capped session, rule window, retractions": lambda c, a, b: some(
        by_window(c, a).emit("retractions").key_by("user").session_window(25_000, max_duration=60_000)
    ),
    "capped session of columns, rule window": lambda c, a, b: some(
        keyed(c, a.with_column("gap", "v % 7 * 5000 + 1000")).late_rule("window").session_window("gap", max_duration=60_000)
    ),
    "capped session, touching": lambda c, a, b: some(keyed(c, a).session_window(24_000, touch="merge", max_duration=60_000)),
    "session, rule window, each row": lambda c, a, b: some(
        by_window(c, a).emit("retractions").trigger(Trigger.on_every_element()).key_by("user").session_window(25_000)
    ),
    "session, rule window, second rows": lambda c, a, b: some(
        by_window(c, a).emit("retractions").trigger(Trigger.on_count(2)).key_by("user").session_window(25_000)
    ),
    "session, touching, each row": lambda c, a, b: some(
        timed(c, a).emit("retractions").trigger(Trigger.on_every_element()).key_by("user").session_window(24_000, touch="merge")
    ),
    "capped session, rule window, each row": lambda c, a, b: some(
        by_window(c, a)
        .emit("retractions")
        .trigger(Trigger.on_every_element())
        .key_by("user")
        .session_window(25_000, max_duration=60_000)
    ),
    "capped session, rule window, second rows": lambda c, a, b: some(
        by_window(c, a)
        .emit("retractions")
        .trigger(Trigger.on_count(2))
        .key_by("user")
        .session_window(25_000, max_duration=60_000)
    ),
    "distinct sets, rule window": lambda c, a, b: some(
        timed(c, a).late_rule("window").key_by("user").windowed_by(SlidingWindows.of("30 s").grace("5 s"))
    ),
    "distinct sets, rule window, retractions": lambda c, a, b: some(
        timed(c, a).late_rule("window").emit("retractions").key_by("user").windowed_by(SlidingWindows.of("30 s").grace("5 s"))
    ),
    "distinct sets, forward, rule window": lambda c, a, b: some(
        timed(c, a).late_rule("window").key_by("user").windowed_by(SlidingWindows.of("30 s", direction="forward"))
    ),
    "kip450": lambda c, a, b: some(
        timed(c, a).preset("kip450").key_by("user").windowed_by(SlidingWindows.of("30 s").grace("5 s"))
    ),
    "totals": lambda c, a, b: some(timed(c, a).key_by("user")),
}
"""Results are functions of the lanes where the rows of a key are of one lane."""

BY_ARRIVAL: Final = (
    "process on arrival",
    "process in rounds on arrival",
    "session, rule window",
    "session, rule window, sums",
    "session, rule window, retractions",
    "session of columns, rule window",
    "session, touching",
    *(kind for kind in KEYS_IN_LANES if kind.startswith(("capped session", "distinct sets", "kip450"))),
    *(kind for kind in KEYS_IN_LANES if kind.endswith(("each row", "second rows")) and kind.startswith("session")),
)
"""Operations whose results depend on what comes between two rows, too."""
NOT_JUDGED: Final = ("totals",)
"""Operations for which no row is late."""
PLANS: Final = {**ANY_KEYS, **KEYS_IN_LANES}


def drawn(chance: random.Random, column: str, value: str, *, own_keys: bool) -> list[list[Row]]:
    """Return up to four lanes, of which some are far behind others; no two rows have the same time."""
    number = chance.randint(1, 4)
    lanes = []
    for lane in range(number):
        now, pace = chance.choice((600_000, 600_000, 900_000)), chance.choice((2_000, 6_000, 12_000))
        rows = list[Row]()
        for place in range(chance.randint(1, 50)):
            now += chance.randrange(0, pace) // 8 * 8
            at: int | None = (now - chance.choice([0, 0, 0, 4_000, LAG, LAG + 8, 60_000])) // 400 * 400
            at = at + place * 4 + lane if at is not None and chance.random() > 0.03 else None
            user = chance.choice(["a", "b", None])
            user = f"{user} {lane}" if own_keys else user
            rows.append({"user": user, column: at, value: 4 * place + lane})
        lanes.append(rows)
    return lanes


def taken(lanes: Lanes, column: str, behind: int, length: int) -> tuple[list[Row], list[Row]]:
    """Return the rows that are not late, lane by lane, and those that are so far `behind` the newest, or have no time.

    What counts is the last moment of the window of this `length` in which a row lies; of 1, it is the row's own.
    """
    kept, late = list[Row](), list[Row]()
    for rows in lanes:
        newest: int | None = None
        for row in rows:
            at = row[column]
            if at is None or (newest is not None and at // length * length + length - 1 < newest - behind):
                late.append(row)
            else:
                kept.append(row)
            newest = at if newest is None else newest if at is None else max(newest, at)
    return kept, late


def rows_in(sink: MemorySink) -> list[Row]:
    table = sink.table()
    return [] if table is None else table.to_pylist()


def texts(rows: list[Row]) -> list[str]:
    return sorted(map(repr, rows))


def said(late: list[Row]) -> list[str]:
    """Return which rows are late, by their numbers; those of a join have the columns of both sides."""
    return texts([{name: row[name] for name in ("v", "w") if row.get(name) is not None} for row in late])


def folds(plan: Any, rows: list[Row]) -> list[str]:
    """Return what is left of a log; a bounded run gives a table as it is in the end."""
    stage = CheckedPlan.of(plan).stage
    is_table = stage.spec.operation.kind == "running aggregate" and bool(rows) and "op" not in rows[0]
    return texts(rows if is_table else folded(stage, rows))


@attrs.frozen
class Trial:
    """One plan, and the lanes of both its streams."""

    build: Build
    left: Lanes
    right: Lanes

    def alone(self, clock: RowsClock) -> Any:
        """Return the plan over streams of a driver."""
        return self.build(clock, stream_of(LEFT), stream_of(RIGHT))

    def of_taken_rows(self) -> tuple[list[str], list[str]]:
        """Return what a driver gives in one batch for the rows that are not late, and the late rows."""
        plan = self.alone("batch")
        behind = LAG + CheckedPlan.of(plan).stage.spec.options.allowed_lateness_us // 1_000
        length = 60_000 if CheckedPlan.of(plan).stage.spec.options.late_rule == "window" else 1
        (ours, late), (theirs, also) = taken(self.left, "at", behind, length), taken(self.right, "rat", behind, length)
        driver = Driver(plan)
        two = len(CheckedPlan.of(plan).streams) > 1
        named = dict(zip((s.name for s in CheckedPlan.of(plan).streams), (ours, theirs), strict=False))
        steps = [driver.send(named if two else ours), driver.close()]
        rows = [row for step in steps for row in step.results.to_pylist()]
        return folds(plan, rows), said([*late, *(also if two else [])])

    def of_lanes_alone(self) -> tuple[list[str], list[str]]:
        """Return what drivers give, one for each lane, in a batch for each row."""
        rows, late = list[Row](), list[Row]()
        for lane in self.left:
            driver = Driver(self.alone("batch"))
            for step in [*(driver.send([row]) for row in lane), driver.close()]:
                rows += step.results.to_pylist()
                late += step.late.to_pylist()
        return folds(self.alone("batch"), rows), said(late)

    def in_process(
        self, folder: Path, chance: random.Random, most: int, *, workers: int, through: str
    ) -> tuple[list[str], list[str]]:
        """Return the results and the late rows of a query, which stops and goes on where `through` says so."""
        folder.mkdir()
        sink, late = MemorySink(), MemorySink()
        seed, begin, checkpoint = chance.randrange(10**6), None, folder / "checkpoint"
        shares = [1.0] if through == "nothing" else [*sorted(chance.random() for _ in range(2)), 1.0]
        for number, there in enumerate(shares):
            with Session.in_process(workers=workers) as session:
                sources = [
                    LanesInCuts(lanes, schema, seed, most, there) for lanes, schema in ((self.left, LEFT), (self.right, RIGHT))
                ]
                handler = SideOutputLateEventHandler(late)
                streams = [session.read_source(source) for source in sources]
                if self.build is not both:
                    streams = [stream.with_late_event_handler(handler) for stream in streams]
                plan = self.build("row", *streams)
                outputs = [(plan.with_late_event_handler(handler) if self.build is both else plan).to(sink)]
                batches = Batches.available_now() if there == 1.0 else Batches.as_fast_as_possible()
                query = session.start(outputs, checkpoint=checkpoint, batches=batches, savepoint=begin)
                if there == 1.0:
                    assert query.await_termination("2 minutes")
                    break
                query.process_all_available()
                query.stop()
                begin = None
                if through == "savepoints" and query.progress.batch_id >= 0:
                    begin = session.savepoint(checkpoint, folder / f"savepoint {number}")
                    checkpoint = folder / f"checkpoint {number}"
        return folds(self.alone("row"), rows_in(sink)), said(rows_in(late))

    def bounded(self, chance: random.Random, most: int) -> list[str]:
        """Return what a bounded run over the lanes gives."""
        with Session.in_process() as session:
            seed = chance.randrange(10**6)
            sources = [LanesInCuts(lanes, schema, seed, most) for lanes, schema in ((self.left, LEFT), (self.right, RIGHT))]
            plan = self.build("row", *(session.read_source(source) for source in sources))
            return folds(self.alone("row"), plan.run().table.to_pylist())


@pytest.mark.one_in(23)
@pytest.mark.filterwarnings("ignore:the MemorySink of query")
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("kind", PLANS)
def test_results_are_functions_of_the_lanes(kind: str, seed: int, tmp_path: Path) -> None:
    chance = random.Random(f"lanes {kind} {seed}")
    own = kind not in ANY_KEYS
    left = drawn(chance, "at", "v", own_keys=own)
    right = drawn(chance, "rat", "w", own_keys=own)
    trial, ways = Trial(PLANS[kind], left, right), [(3, 1, "nothing"), (50, 3, "restarts"), (11, 2, "savepoints")]
    results = [
        trial.in_process(tmp_path / str(number), chance, most, workers=workers, through=through)
        for number, (most, workers, through) in enumerate(ways)
    ]
    if kind in BY_ARRIVAL:
        assert results[0] == trial.of_lanes_alone()
    elif kind not in NOT_JUDGED:
        assert results[0] == trial.of_taken_rows()
    assert results[1] == results[0], ways[1]
    assert results[2] == results[0], ways[2]
    assert trial.bounded(chance, 20) == results[0][0]


def seconds(*times: int) -> list[Row]:
    return [{"user": "a", "at": 1_000 * time, "v": time} for time in times]


def windows_of(steps: list[Any]) -> list[tuple[int, int, int]]:
    rows = [row for step in steps for row in step.results.to_pylist()]
    return sorted((row["window_start"] // 1_000, row["window_end"] // 1_000, row["count"]) for row in rows)


def test_a_session_stays_that_begins_where_another_one_leaves() -> None:
    driver = Driver(keyed("row", stream_of(LEFT)).late_rule("window").session_window("25 s").agg(count()))
    steps = [driver.send(seconds(0, 25, 60, 30)), driver.close()]
    assert windows_of(steps) == [(0, 25, 1), (25, 55, 2), (60, 85, 1)]


@pytest.mark.parametrize("most", [None, "10 minutes"])
@pytest.mark.parametrize("trigger", [Trigger(), Trigger.on_every_element()])
def test_a_row_is_in_one_session_where_lanes_share_a_key(trigger: Trigger, most: str | None) -> None:
    """The first lane is ahead: at its late row (50) the session of 100 leaves, at that of the second (45) the one of 60."""
    one, two = stream_of(LEFT), stream_of(LEFT)
    timed_rows = union_of({"one": one, "two": two}).watermark("at", LAG, clock="row").late_rule("window").trigger(trigger)
    plan = timed_rows.emit("retractions").key_by("user").session_window("25 s", max_duration=most).agg(count())
    driver = Driver(plan)
    steps = [driver.send({"one": seconds(100, 200, 50), "two": seconds(60, 90, 130, 45)}), driver.close()]
    rows = folded(CheckedPlan.of(plan).stage, [row for step in steps for row in step.results.to_pylist()])
    windowed = sorted((row["window_start"] // 1_000, row["window_end"] // 1_000, row["count"]) for row in rows)
    assert windowed == [(60, 85, 1), (90, 115, 1), (100, 125, 1), (130, 155, 1), (200, 225, 1)]
    assert [row["v"] for step in steps for row in step.late.to_pylist()] == [50, 45]
