"""What is new in a changed plan is rebuilt from archives, and the rest keeps the state of its savepoint."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import krishiv_py as kv
from krishiv_py import Batches, CheckpointError, MemorySink, ParquetSink, PlanError, Session, SideOutputLateEventHandler, count
from krishiv_py.cli.main import main
from krishiv_py.testing import Driver, stream_of
from tests.in_process.test_history import ARROW, ONE, OTHERS, ROWS, SCHEMA, SEAM, archive, keyed, read, timed

Rows = list[dict[str, Any]]
WINDOWS: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: keyed(s).tumbling_window(60_000),
    "lateness": lambda s: keyed(s).tumbling_window(60_000).allowed_lateness(100_000),
    "changes": lambda s: keyed(s).tumbling_window(60_000).allowed_lateness(100_000).emit("retractions"),
    "hopping": lambda s: keyed(s).hopping_window(60_000, 20_000),
    "session": lambda s: keyed(s).session_window(9_000),
    "capped": lambda s: keyed(s).session_window(9_000, max_duration=30_000),
    "counted": lambda s: keyed(s).count_window(7),
    "look back": lambda s: keyed(s).lookback_window(30_000),
}


@pytest.fixture
def session() -> Iterator[Session]:
    """A session of its own."""
    with Session.in_process() as made:
        yield made


def saved(session: Session, old: Any, sender: Any, folder: Path, batches: list[Rows] = ROWS[:SEAM]) -> str:
    """A savepoint of the outputs of an old plan after some batches."""
    query = session.start(old, checkpoint=str(folder / "old"))
    for rows in batches:
        sender.send(rows)
        query.process_all_available()
    path: str = query.savepoint(str(folder / "savepoint"))
    query.stop()
    return path


def goes_on(session: Session, new: Any, sender: Any, folder: Path, **named: Any) -> Any:
    """Run a new plan from a savepoint with a history, over the rest of the rows."""
    for rows in ROWS[SEAM:]:
        sender.send(rows)
    query = session.start(new, checkpoint=str(folder / "new"), batches=Batches.available_now(), **named)
    query.await_termination()
    return query


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", WINDOWS)
def test_an_added_aggregate_is_as_if_it_had_been_there(session: Session, tmp_path: Path, kind: str) -> None:
    windows = WINDOWS[kind]
    aggs = kv.max("amount").alias("top"), count(), kv.avg("amount").alias("mean")
    live, sender = session.memory_stream(SCHEMA, name="orders")
    path = saved(session, [windows(live).agg(count()).to(MemorySink())], sender, tmp_path)
    driver = Driver(windows(stream_of(SCHEMA)).agg(*aggs, completeness=True))
    steps = [driver.send(rows) for rows in ROWS]
    sink = MemorySink()
    new = [windows(live).agg(*aggs, completeness=True).to(sink)]
    past = {"orders": archive(session, tmp_path, ROWS[:SEAM])}
    query = goes_on(session, new, sender, tmp_path, savepoint=path, bootstrap=past)
    assert read(sink) == [row for step in steps[SEAM:] for row in step.results.to_pylist()]
    assert query.progress.rows == driver.progress.rows
    assert all(row["complete"] for row in read(sink))
    assert not (tmp_path / "new-history").exists()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("kind", "publish"), [*((kind, True) for kind in ONE), ("tumbling", False)])
def test_an_added_output_begins_with_the_past(session: Session, tmp_path: Path, kind: str, publish: bool) -> None:
    """The kept output gives each result and late row once, the added one what a long run gives."""

    def kept(stream: Any, late: Any = None) -> Any:
        made = keyed(stream).tumbling_window(45_000).agg(count().alias("n")).named("kept")
        return made.with_late_event_handler(SideOutputLateEventHandler(late)) if late is not None else made

    live, sender = session.memory_stream(SCHEMA, name="orders")
    old_sink, old_late, late, first, second = (MemorySink() for _ in range(5))
    path = saved(session, [kept(live, old_late).to(old_sink, name="kept")], sender, tmp_path)
    drivers = Driver(kept(stream_of(SCHEMA))), Driver(ONE[kind](stream_of(SCHEMA)))
    steps = [[driver.send(rows) for rows in ROWS] for driver in drivers]
    new = [kept(live, late).to(first, name="kept"), ONE[kind](live).to(second, name="added")]
    past = {"orders": archive(session, tmp_path, ROWS[:SEAM])}
    goes_on(session, new, sender, tmp_path, savepoint=path, bootstrap=past, publish=publish)
    assert read(old_sink) + read(first) == [row for step in steps[0] for row in step.results.to_pylist()]
    assert len(read(old_late)) + len(read(late)) == drivers[0].progress.late["late"]
    from_ = 0 if publish else SEAM
    assert read(second) == [row for step in steps[1][from_:] for row in step.results.to_pylist()]


TWO: dict[str, Callable[[Any, Any], Any]] = {
    "interval": lambda a, b: timed(a).interval_join(timed(b), on="user", lower="-10 seconds", upper="10 seconds"),
    "as of": lambda a, b: timed(a).asof_join(timed(b), on="user", tolerance="1 minute"),
}


@pytest.mark.parametrize("kind", TWO)
def test_a_stage_after_a_join_is_added(session: Session, tmp_path: Path, kind: str) -> None:
    """The join keeps its state, the stage after it is computed from both archives; one archive alone is refused."""

    def added(a: Any, b: Any) -> Any:
        joined = TWO[kind](a, b).named("joined")
        return joined.key_by("user").tumbling_window("1 minute").agg(count()).named("counted")

    left, to_left = session.memory_stream(SCHEMA, name="orders")
    right, to_right = session.memory_stream(SCHEMA, name="payments")
    for a, b in zip(ROWS[:SEAM], OTHERS[:SEAM], strict=True):
        to_left.send(a)
        to_right.send(b)
    old = TWO[kind](left, right).named("joined").to(MemorySink())
    session.start([old], checkpoint=str(tmp_path / "old"), batches=Batches.available_now()).await_termination()
    path = session.savepoint(str(tmp_path / "old"), str(tmp_path / "savepoint"))
    driver = Driver(added(stream_of(SCHEMA), stream_of(SCHEMA)))
    want = [driver.send({"left": a, "right": b}) for a, b in zip(ROWS, OTHERS, strict=True)]
    for a, b in zip(ROWS[SEAM:], OTHERS[SEAM:], strict=True):
        to_left.send(a)
        to_right.send(b)
    past = {"orders": archive(session, tmp_path, ROWS[:SEAM]), "payments": archive(session, tmp_path, OTHERS[:SEAM], "other")}
    sink = MemorySink()
    given: Any = {"checkpoint": str(tmp_path / "new"), "savepoint": path, "batches": Batches.available_now()}
    with pytest.raises(PlanError, match="no archive of 'right'"):
        session.start([added(left, right).to(sink)], **given, bootstrap={"orders": past["orders"]})
    session.start([added(left, right).to(sink)], **given, bootstrap=past, publish=False).await_termination()
    assert read(sink) == [row for output in want[SEAM:] for row in output.results.to_pylist()]


def test_a_window_of_another_size_is_rebuilt_on_request(session: Session, tmp_path: Path) -> None:
    def windows(stream: Any, size: int) -> Any:
        return keyed(stream).tumbling_window(size).agg(count()).named("windows")

    live, sender = session.memory_stream(SCHEMA, name="orders")
    path = saved(session, [windows(live, 60_000).to(MemorySink())], sender, tmp_path)
    driver = Driver(windows(stream_of(SCHEMA), 100_000))
    steps = [driver.send(rows) for rows in ROWS]
    past = {"orders": archive(session, tmp_path, ROWS[:SEAM])}
    sink = MemorySink()
    new = [windows(live, 100_000).to(sink)]
    with pytest.raises(CheckpointError, match="cannot take") as problem:
        goes_on(session, new, sender, tmp_path, savepoint=path, bootstrap=past)
    assert "on_change={'windows': 'reset'}" in str(problem.value)
    query = session.start(
        new,
        checkpoint=str(tmp_path / "new"),
        batches=Batches.available_now(),
        savepoint=path,
        bootstrap=past,
        on_change={"windows": "reset"},
    )
    query.await_termination()
    assert read(sink) == [row for step in steps[SEAM:] for row in step.results.to_pylist()]


def damaged_archives() -> dict[str, tuple[list[Rows], str]]:
    """Archives that are not what a savepoint took, and what is said of them."""
    lacking = [ROWS[0], [row for row in ROWS[1] if row["amount"] != 59], ROWS[2]]
    swapped = [ROWS[0], ROWS[1], [{**row, "user": "u9"} if row["amount"] == 58 else row for row in ROWS[2]]]
    return {
        "short": (ROWS[: SEAM - 1], "ends before the savepoint"),
        "long": (ROWS[: SEAM + 1], "ends after the savepoint"),
        "none": ([], "ends before the savepoint"),
        "lacks an open row": ([*ROWS[: SEAM - 1], ROWS[SEAM - 1][:50] + ROWS[SEAM - 1][51:]], "does not give the state"),
        "another key": (swapped, "does not give the state"),
        "lacks a closed row": (lacking, ""),
    }


@pytest.mark.parametrize("kind", list(damaged_archives()))
def test_an_archive_that_cannot_be_it_is_refused(session: Session, tmp_path: Path, kind: str) -> None:
    """What is open has to agree; an archive that lacks only what is over gives the same."""
    batches, match = damaged_archives()[kind]
    live, sender = session.memory_stream(SCHEMA, name="orders")

    def windows(stream: Any) -> Any:
        return keyed(stream).tumbling_window(60_000)

    path = saved(session, [windows(live).agg(count()).to(MemorySink())], sender, tmp_path)
    sink = MemorySink()
    new = [windows(live).agg(count(), kv.sum("amount").alias("total")).to(sink)]
    given: Any = {"checkpoint": str(tmp_path / "new"), "savepoint": path, "batches": Batches.available_now()}
    if match:
        with pytest.raises(CheckpointError, match=match):
            session.start(new, **given, bootstrap={"orders": archive(session, tmp_path, batches)})
        assert not (tmp_path / "new-history").exists()
        assert not (tmp_path / "new" / "krishiv" / "plan.json").exists()
        batches = ROWS[:SEAM]
    right = {"orders": archive(session, tmp_path, batches, "right")}
    goes_on(session, new, sender, tmp_path, savepoint=path, bootstrap=right)
    driver = Driver(windows(stream_of(SCHEMA)).agg(count(), kv.sum("amount").alias("total")))
    want = [row for step in [driver.send(rows) for rows in ROWS][SEAM:] for row in step.results.to_pylist()]
    assert sorted(map(str, read(sink))) == sorted(map(str, want))


def test_files_that_came_after_the_savepoint_are_not_of_the_past(session: Session, tmp_path: Path) -> None:
    """The folder is archive and live source in one: it is read up to where the savepoint is, then from there."""
    archive(session, tmp_path, ROWS[:SEAM])
    live = session.read_parquet(str(tmp_path / "archive"), streaming=True, max_files_per_batch=1)
    query = keyed(live).tumbling_window(60_000).agg(count()).start(MemorySink(), checkpoint=str(tmp_path / "old"))
    query.process_all_available()
    path = query.savepoint(str(tmp_path / "savepoint"))
    query.stop()
    past = archive(session, tmp_path, ROWS)
    sink = ParquetSink(str(tmp_path / "out"))
    new = keyed(live).tumbling_window(60_000).agg(count(), kv.sum("amount").alias("total"))
    session.start(
        [new.to(sink)],
        checkpoint=str(tmp_path / "new"),
        savepoint=path,
        bootstrap={"archive": past},
        batches=Batches.available_now(),
    ).await_termination()
    driver = Driver(keyed(stream_of(SCHEMA)).tumbling_window(60_000).agg(count(), kv.sum("amount").alias("total")))
    want = [row for step in [driver.send(rows) for rows in ROWS][SEAM:] for row in step.results.to_pylist()]
    got = pq.read_table(tmp_path / "out").sort_by([("window_end", "ascending"), ("user", "ascending")]).to_pylist()
    assert got == sorted(want, key=lambda row: (row["window_end"], row["user"]))


def test_the_number_of_workers_does_not_matter(tmp_path: Path) -> None:
    """The savepoint is of a driver, and the stage that gets an aggregate comes after another one."""

    def chain(stream: Any, *aggs: Any) -> Any:
        one = keyed(stream).tumbling_window(20_000).agg(count().alias("n")).named("one")
        return one.key_by("user").tumbling_window(60_000).agg(kv.max("n").alias("most"), *aggs).named("two")

    added, old = kv.sum("n").alias("total"), Driver(chain(stream_of(SCHEMA)))
    for rows in ROWS[:SEAM]:
        old.send(rows)
    path, sink = old.savepoint(str(tmp_path / "savepoint")), MemorySink()
    with Session.in_process(workers=2) as session:
        live, sender = session.memory_stream(SCHEMA, name="orders")
        past = {"orders": archive(session, tmp_path, ROWS[:SEAM])}
        goes_on(session, [chain(live, added).to(sink)], sender, tmp_path, savepoint=path, bootstrap=past)
    driver = Driver(chain(stream_of(SCHEMA), added))
    want = [row for step in [driver.send(rows) for rows in ROWS][SEAM:] for row in step.results.to_pylist()]
    assert sorted(map(str, read(sink))) == sorted(map(str, want))


def test_the_same_call_goes_on_and_nothing_new_needs_no_archive(session: Session, tmp_path: Path) -> None:
    live, sender = session.memory_stream(SCHEMA, name="orders")
    path = saved(session, [ONE["tumbling"](live).to(MemorySink())], sender, tmp_path)
    driver, sink = Driver(ONE["tumbling"](stream_of(SCHEMA))), MemorySink()
    empty = {"orders": archive(session, tmp_path, [])}
    given: Any = {"savepoint": path, "bootstrap": empty}
    goes_on(session, [ONE["tumbling"](live).to(sink)], sender, tmp_path, **given)
    goes_on(session, [ONE["tumbling"](live).to(sink)], sender, tmp_path, **given)
    steps = [driver.send(rows) for rows in [*ROWS, *ROWS[SEAM:]]]
    assert read(sink) == [row for step in steps[SEAM:] for row in step.results.to_pylist()]
    with pytest.raises(PlanError, match="until with a savepoint"):
        session.start(
            [ONE["tumbling"](live).to(sink)], checkpoint=str(tmp_path / "x"), savepoint=path, bootstrap=empty, until=5
        )


def test_random_plans_and_seams_give_what_a_long_run_gives(session: Session, tmp_path: Path) -> None:
    """Random rows, any seam, a stage and an aggregate added at once, and twice in a row."""
    aggs = [count(), kv.sum("amount").alias("total"), kv.collect_list("amount").alias("all"), kv.avg("x").alias("mean")]
    schema, arrow = f"{SCHEMA}, x double", pa.schema([*ARROW, ("x", pa.float64())])
    for seed in range(3):
        chance, folder = random.Random(seed), tmp_path / str(seed)
        folder.mkdir()
        start = itertools.accumulate(chance.randrange(20, 90) for _ in range(9))
        batches = [
            [
                {
                    "user": chance.choice(["a", "b", None, "d"]),
                    "at": (base + chance.randrange(-60, 60)) * 1_000,
                    "amount": chance.choice([None, 1, 2, -(1 << 40)]),
                    "x": chance.choice([None, 0.1, 1e17, float("nan"), -0.0]),
                }
                for _ in range(chance.randrange(1, 40))
            ]
            for base in start
        ]
        first, second = sorted(chance.sample(range(1, 9), 2))
        window = chance.choice(list(WINDOWS.values()))

        def outputs(stream: Any, n: int, sinks: list[MemorySink], window: Any = window) -> Any:
            made = [window(stream).agg(*aggs[: n + 1]).named("main").to(sinks[0], name="main")]
            more: list[Callable[[Any], Any]] = [
                lambda s: keyed(s).tumbling_window(30_000).agg(count()),
                lambda s: timed(s).drop_duplicates("user", within=20_000),
            ]
            for k, make in enumerate(more[:n], 1):
                made.append(make(stream).to(sinks[k], name=f"more{k}"))
            return made

        live, sender = session.memory_stream(schema, name="orders")
        sinks = [[MemorySink() for _ in range(3)] for _ in range(3)]
        path, done = None, 0
        for n, upto in enumerate((first, second, 9)):
            past = folder / f"past{n}"
            past.mkdir()
            for k, rows in enumerate(batches[:done]):
                pq.write_table(pa.Table.from_pylist(rows, arrow), past / f"{k:03}.parquet")
            named: Any = {}
            if path is not None:
                named = {
                    "savepoint": path,
                    "bootstrap": {"orders": session.read_parquet(str(past), max_files_per_batch=1)},
                    "publish": False,
                }
            query = session.start(outputs(live, n, sinks[n]), checkpoint=str(folder / f"c{n}"), **named)
            for rows in batches[done:upto]:
                sender.send(rows)
                query.process_all_available()
            path, done = query.savepoint(str(folder / f"s{n}")), upto
            query.stop()
        plans = [o.stream for o in outputs(stream_of(schema), 2, sinks[0])]
        for k, plan in enumerate(plans):
            driver = Driver(plan)
            steps = [driver.send(rows) for rows in batches]
            assert str(read(sinks[2][k])) == str([row for step in steps[second:] for row in step.results.to_pylist()]), (
                seed,
                k,
            )


def test_diff_and_explain_say_rebuilt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Session.in_process() as session:
        live, sender = session.memory_stream(SCHEMA, name="orders")
        path = saved(session, [keyed(live).tumbling_window(60_000).agg(count()).to(MemorySink())], sender, tmp_path)
        keys = live.watermark("at", 5_000).key_by("user")
        more = keys.tumbling_window(60_000).agg(count(), total=kv.sum("amount"))
        for given in (["orders"], {"orders": live}):
            said = more.explain(against=path, bootstrap=given)
            assert "rebuilt (total added: from the archive)" in said
        assert "null in windows" in more.explain(against=path)
        wrong: list[tuple[Any, str]] = [(["payments"], "does not read"), ("orders", "list of sources"), ([1], "not a text")]
        for names, problem in wrong:
            with pytest.raises(PlanError, match=problem):
                more.explain(against=path, bootstrap=names)
        with pytest.raises(PlanError, match="needs `against`"):
            more.explain(bootstrap=["orders"])
    (tmp_path / "jobs.py").write_text(
        "import krishiv_py as kv\n"
        "def job(session):\n"
        f"    live, _ = session.memory_stream({SCHEMA!r}, name='orders')\n"
        "    keyed = live.watermark('at', 5_000).key_by('user')\n"
        "    one = keyed.tumbling_window(60_000).agg(kv.count(), kv.sum('amount').alias('total'))\n"
        "    two = keyed.session_window(9_000).agg(kv.count())\n"
        "    return [one.to(kv.MemorySink(), name='one'), two.to(kv.MemorySink(), name='two')]\n"
    )
    assert main(["diff", path, f"{tmp_path / 'jobs.py'}:job", "--bootstrap", "orders"]) == 0
    shown = capsys.readouterr().out
    assert "rebuilt (total added: from the archive)" in shown
    assert "rebuilt (its state is computed from the archive)" in shown
    assert main(["diff", path, f"{tmp_path / 'jobs.py'}:job", "--bootstrap", "payments"]) == 1
    assert "does not read" in capsys.readouterr().err
