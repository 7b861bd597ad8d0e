"""Captures of the last batches of a query that keeps them: equal to its run, of every operator, over restarts and changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import krishiv_py as kv
from krishiv_py import CheckpointError, MemorySink, PlanError, Session, SideOutputLateEventHandler, count
from krishiv_py.in_process import checkpoint
from krishiv_py.in_process.checkpoint import StateLog
from krishiv_py.testing import Capture, Driver, stream_of
from tests.in_process.test_evolution import LAG, OPERATORS, SCHEMA, Rows, batches

Make = Callable[[Any, Any], Any]
"""A plan, of the streams of its sides."""
PRICES = "user string, seen bigint, price bigint"


def _windows(kind: str) -> Make:
    def made(left: Any, right: Any) -> Any:
        return OPERATORS[kind](left.watermark("at", LAG).key_by("user")).agg(count(), kv.sum("amount").alias("total"))

    return made


def _chain(left: Any, right: Any) -> Any:
    minutes = left.watermark("at", LAG).key_by("user").tumbling_window(60_000).agg(kv.sum("amount").alias("total"))
    return minutes.key_by("user").tumbling_window(180_000).agg(kv.max("total").alias("most"))


def _firing(left: Any, right: Any) -> Any:
    timed = left.watermark("at", LAG).allowed_lateness(30_000).emit("retractions").trigger(kv.Trigger.on_count(3))
    return timed.key_by("user").hopping_window(90_000, 30_000).agg(count(), kv.collect_list("amount"))


def _joined(how: Any) -> Make:
    def made(left: Any, right: Any) -> Any:
        sides = left.watermark("at", LAG).key_by("user"), right.watermark("seen", LAG).key_by("user")
        if how == "as-of":
            return sides[0].asof_join(sides[1])
        return sides[0].interval_join(sides[1], lower="-20 seconds", upper="20 seconds", how=how)

    return made


PLANS: dict[str, Make] = {
    **{kind: _windows(kind) for kind in OPERATORS if kind not in ("tumbling", "cumulate")},
    "two stages": _chain,
    "firing often": _firing,
    "deduplication": lambda left, right: left.watermark("at", LAG).drop_duplicates("user", within="1 minute"),
    "rows": lambda left, right: left.filter("amount > 3").select("user", "amount"),
    **{f"{how} join": _joined(how) for how in ("as-of", "inner")},
}


class Ran:
    """A query that ran batch by batch, with restarts: what each batch gave."""

    def __init__(self, home: Path, make: Make, *, steps: bool = False, **start: Any) -> None:
        self.home, self.make, self.start, self.steps = home, make, start, steps  # a handler comes before steps of results
        self.session = Session.in_process()
        self.streams = [
            self.session.memory_stream(schema, name=name, spool=str(home / name))
            for name, schema in (("left", SCHEMA), ("right", PRICES))
        ]
        self.given: list[tuple[Rows, Rows]] = []
        self.query: Any = None

    def plan(self, left: Any, right: Any, late: MemorySink | None = None) -> Any:
        made = self.make(left, right)
        return made if late is None or self.steps else made.with_late_event_handler(SideOutputLateEventHandler(late))

    @property
    def checkpoint(self) -> str:
        return str(self.home / "checkpoint")

    def begin(self, **start: Any) -> None:
        self.sink, self.late = MemorySink(), MemorySink()
        plan = self.plan(self.streams[0][0], self.streams[1][0], self.late)
        self.query = plan.start(self.sink, checkpoint=self.checkpoint, **(start or self.start))

    def send(self, rows: Rows, others: Rows) -> None:
        """One batch of each side."""
        for (_, sender), sent in zip(self.streams, (rows, others), strict=True):
            counts, number = self._counts(), self.query.progress.batch_id
            sender.send(sent)
            self.query.process_all_available()
            if self.query.progress.batch_id == number:  # the plan does not read this stream
                continue
            assert self.query.progress.batch_id == number + 1
            results, late = (_rows(sink)[n:] for sink, n in zip((self.sink, self.late), counts, strict=True))
            self.given.append((results, late))

    def _counts(self) -> list[int]:
        return [len(_rows(sink)) for sink in (self.sink, self.late)]

    def again(self) -> None:
        """Stop it, and start it again."""
        self.query.stop()
        self.begin()

    def capture(self, name: str, **given: Any) -> Driver:
        """A driver of a capture of it."""
        plan = self.plan(self.streams[0][0], self.streams[1][0], MemorySink())
        path = self.session.capture(self.checkpoint, plan, str(self.home / name), **given)
        return Driver.from_capture(path, self.plan(stream_of(SCHEMA), stream_of(PRICES), MemorySink()))

    def end(self) -> None:
        self.query.stop()
        self.session.stop()


def _rows(sink: MemorySink) -> Rows:
    table = sink.table()
    return [] if table is None else table.to_pylist()


def replayed(driver: Driver) -> list[tuple[Rows, Rows]]:
    """What each batch of a capture gives: results and late rows."""
    actual = []
    while (output := driver.next_batch()) is not None:
        *_, late = output.late_by_stage.values()
        actual.append((output.results.to_pylist(), late.to_pylist()))
    return actual


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """State files are cleaned soon, and most values are files of their own."""
    monkeypatch.setattr(checkpoint, "_FILES_KEPT", 2)
    monkeypatch.setattr(checkpoint, "_LARGE", 600)


@pytest.mark.one_in(11)
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kind", PLANS)
def test_the_last_batches_equal_the_run(kind: str, tmp_path: Path) -> None:
    """While the query runs and once it has stopped, after restarts with the same and with other numbers of batches to keep."""
    chance = random.Random(kind)
    ran = Ran(tmp_path, PLANS[kind], keep_batches=6)
    ran.begin()
    for number, rows in enumerate(batches(len(kind), 22)):
        others = [{"user": r["user"], "seen": r["at"], "price": r["amount"]} for r in rows[::-2]]
        ran.send(rows, others)
        if chance.random() < 0.3:
            ran.again()
        if number > 17 and (last := chance.choice([1, 3, 6])):
            driver = ran.capture(f"running {number}", last=last)
            assert driver.batches_left == last
            assert replayed(driver) == ran.given[-last:]
    ran.query.stop()
    assert replayed(ran.capture("all that is known")) == ran.given[-6:]
    assert replayed(ran.capture("more than is known", last=50)) == ran.given[-6:]
    assert any(results for results, _ in ran.given[-6:]) or kind == "two stages"
    ran.end()


@pytest.mark.usefixtures("small")
def test_what_is_kept_is_bounded_and_goes(tmp_path: Path) -> None:
    """Files of the state: as many as the number that is kept asks for, also over many restarts, and none more without it."""

    def files() -> int:
        return len(list((tmp_path / "checkpoint/krishiv/state").rglob("*")))

    ran, sizes = Ran(tmp_path, PLANS["hopping"], keep_batches=5), []
    ran.begin()
    for rows in batches(1, 40):
        ran.send(rows, [])
        ran.again()
        sizes.append(files())
    assert max(sizes[20:]) <= 2 * max(sizes[:20])
    assert len(StateLog(f"{ran.checkpoint}/krishiv/state").whole()) == 6
    ran.query.stop()
    ran.begin(keep_batches=None)
    for rows in batches(2, 4):
        ran.send(rows, [])
    few = files()
    assert few < min(sizes[20:])
    with pytest.raises(CheckpointError, match=r"the state before these batches is not kept(.|\n)*keep_batches=50"):
        ran.capture("none")
    ran.query.stop()
    ran.begin(keep_batches=30)  # from here on
    for rows in batches(3, 4):
        ran.send(rows, [])
    assert replayed(ran.capture("since", last=30)) == ran.given[-4:]
    ran.end()


@pytest.mark.usefixtures("small")
def test_an_old_file_that_is_damaged_stops_no_query(tmp_path: Path) -> None:
    """The query needs its last state alone; what can no longer be gone back to is not captured."""
    ran = Ran(tmp_path, PLANS["hopping"], keep_batches=8)
    ran.begin()
    for rows in batches(4, 22):
        ran.send(rows, [])
    ran.query.stop()
    state = sorted((tmp_path / "checkpoint/krishiv/state").glob("*.state"))
    (victim := state[len(state) // 2 - 2]).write_bytes(b"nothing")
    ran.begin()
    for rows in batches(5, 2):
        ran.send(rows, [])
    assert not victim.exists()
    got = replayed(ran.capture("rest"))
    assert 2 <= len(got) < 8
    assert got == ran.given[-len(got) :]
    ran.end()


@pytest.mark.parametrize("given", [0, -1, True, 1.5, "50", 10**9])
def test_a_number_of_batches_that_cannot_be_is_refused(given: Any, tmp_path: Path) -> None:
    ran = Ran(tmp_path, PLANS["rows"], keep_batches=given)
    with pytest.raises(PlanError, match="`keep_batches` is out of range"):
        ran.begin()
    ran.session.stop()


def test_files_are_read_again(tmp_path: Path) -> None:
    """The log of which files a batch read goes back as far as the state."""
    folder = tmp_path / "orders"
    folder.mkdir()
    schema = pa.schema([("user", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
    with Session.in_process() as session:
        stream = session.read_parquet(str(folder), streaming=True, schema=schema)
        sink, given = MemorySink(), []
        query = PLANS["hopping"](stream, None).start(sink, checkpoint=str(tmp_path / "c"), keep_batches=30)
        for number, rows in enumerate(batches(2, 60)):
            pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "new")
            (tmp_path / "new").rename(folder / f"{number}.parquet")
            before = len(_rows(sink))
            query.process_all_available()
            given.append(_rows(sink)[before:])
        path = session.capture(str(tmp_path / "c"), PLANS["hopping"](stream, None), str(tmp_path / "out"), last=30)
        query.stop()
    actual = replayed(Driver.from_capture(path, PLANS["hopping"](stream_of(SCHEMA), None)))
    assert [results for results, _ in actual] == given[-30:]


def test_keys_that_were_closed_in_any_of_the_batches(tmp_path: Path) -> None:
    ran = Ran(tmp_path, PLANS["session"], keep_batches=8)
    ran.begin()
    for number, rows in enumerate(batches(9, 12)):
        if number % 2:
            ran.query.close_key("abcd"[number % 4])
        ran.send(rows, [])
        if number == 8:
            ran.again()
    got = replayed(ran.capture("closed", last=8))
    assert got == ran.given[-8:]
    ran.end()


class Prices:
    """A table that is another one whenever it was set."""

    def __init__(self) -> None:
        self.set(1)

    def set(self, factor: int) -> None:
        self.table = pa.table({"user": list("abcd"), "price": [factor * n for n in range(4)]})

    def prices(self) -> pa.Table:
        """What `lookup_join` calls."""
        return self.table


@pytest.mark.parametrize("kind", ["windows of what is looked up", "looked up in results"])
def test_lookup_tables_are_those_of_each_batch(kind: str, tmp_path: Path) -> None:
    """The table of each batch is in the capture, once for each version, and nothing is loaded when it runs again."""
    table = Prices()

    def make(left: Any, right: Any) -> Any:
        if kind == "looked up in results":
            return _windows("tumbling")(left, right).lookup_join(table.prices, "user", reload="1 us")
        rows = left.lookup_join(table.prices, "user", reload="1 us").watermark("at", LAG)
        return rows.key_by("user").tumbling_window(60_000).agg(count(), kv.sum("price").alias("total"))

    ran = Ran(tmp_path, make, steps=kind == "looked up in results", keep_batches=7)
    ran.begin()
    for number, rows in enumerate(batches(3, 14)):
        if number % 3 == 0:
            table.set(10**number)
        ran.send(rows, [])
        if number == 9:
            ran.again()
    table.set(-5)
    driver = ran.capture("tables", last=7)
    assert [results for results, _ in replayed(driver)] == [results for results, _ in ran.given[-7:]]
    assert len(list((tmp_path / "tables/tables").iterdir())) == 3
    capture = Capture(str(tmp_path / "tables"), make(stream_of(SCHEMA), None))
    ours = make(stream_of(SCHEMA), None)
    assert capture.compare(ours, ours).counts["changed"] == 0
    user = next(row["user"] for results, _ in ran.given[-7:] for row in results)
    when = next(row["window_start"] for results, _ in ran.given[-7:] for row in results if row["user"] == user)
    assert user in str(capture.why(user, when + 1).results.to_pylist())
    damaged = next((tmp_path / "tables/tables").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=damaged.name):
        replayed(Driver.from_capture(str(tmp_path / "tables"), make(stream_of(SCHEMA), None)))
    ran.end()


def test_a_version_of_a_table_that_is_gone_is_named(tmp_path: Path) -> None:
    table = Prices()

    def make(left: Any, right: Any) -> Any:
        return left.lookup_join(table.prices, "user", reload="1 us").select("user", "price")

    ran = Ran(tmp_path, make)
    ran.begin()
    for number, rows in enumerate(batches(3, 6)):
        if number == 3:
            table.set(7)
        ran.send(rows, [])
    with pytest.raises(CheckpointError, match=r"lookup table 'prices' has changed since batch 0(.|\n)*last="):
        ran.capture("gone")
    ran.end()


def test_hidden_columns_are_hidden_in_lookup_tables(tmp_path: Path) -> None:
    table = Prices()

    def make(left: Any, right: Any) -> Any:
        return left.lookup_join(table.prices, "user", reload="1 us").select("user", "price", "amount")

    ran = Ran(tmp_path, make)
    ran.begin()
    for rows in batches(3, 2):
        ran.send([{**row, "user": f"{row['user']}"} for row in rows], [])
    actual = replayed(ran.capture("hidden", hashes=["user"]))
    assert [[(r["price"], r["amount"]) for r in rows] for rows, _ in actual] == [
        [(r["price"], r["amount"]) for r in rows] for rows, _ in ran.given
    ]
    assert not {r["user"] for rows, _ in actual for r in rows} & set("abcd")
    ran.end()
