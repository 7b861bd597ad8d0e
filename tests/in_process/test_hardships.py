"""What goes wrong around a query in process: lost files, other streams, clocks, callbacks, crashes at each point of a batch."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import (
    Batches,
    CheckpointError,
    LateEventHandler,
    LateRows,
    MemorySink,
    MultiSourceWatermarkSpec,
    OperatorError,
    ParquetSink,
    PlanError,
    Session,
    SideOutputLateEventHandler,
    SourceError,
    Trigger,
    WatermarkSpec,
    collect_list,
    count,
)
from krishiv_py.connectors import OutputBatch, TableSink
from krishiv_py.in_process.checkpoint import BatchLog, StateLog
from krishiv_py.in_process.outputs import Outputs
from krishiv_py.in_process.query import ProcessQuery
from krishiv_py.runtime.closings import Closings
from krishiv_py.storage.local import DISK
from tests.in_process.test_session import SCHEMA, by_driver, in_order, per_minute, rows

NOW = Batches.available_now()


@pytest.fixture
def session() -> Iterator[Session]:
    """A session of its own."""
    with Session.in_process() as made:
        yield made


def test_another_memory_stream_is_read_from_its_first_send(tmp_path: Path) -> None:
    """The spool of a stream is temporary unless it is named: the next run has another one."""
    seen = []
    for sends in (3, 3, 5):
        with Session.in_process() as session:
            stream, sender = session.memory_stream(SCHEMA)
            for n in range(sends):
                sender.send(rows(5, 5 * n))
            query = per_minute(stream).start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
            query.process_all_available()
            seen.append(query.progress.rows)
    assert seen == [15, 30, 55]


@pytest.mark.parametrize("removed", ["state", "newest two", "newest", "offsets"])
def test_lost_files_are_an_error_and_outputs_stay(session: Session, tmp_path: Path, removed: str) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    checkpoint, out = tmp_path / "checkpoint", tmp_path / "out"
    query = per_minute(stream).start(ParquetSink(str(out)), checkpoint=str(checkpoint))
    for n in range(4):
        sender.send(rows(70, 70 * n))
        query.process_all_available()
    query.stop()
    files = sorted((checkpoint / "krishiv" / "state").glob("*.state"))
    if removed == "state":
        shutil.rmtree(checkpoint / "krishiv" / "state")
    elif removed == "offsets":
        shutil.rmtree(checkpoint / "offsets")
    else:
        for path in files[-2:] if removed == "newest two" else files[-1:]:
            path.unlink()
    before = in_order(pq.read_table(out))
    with pytest.raises(CheckpointError, match="missing"):
        per_minute(stream).start(ParquetSink(str(out)), checkpoint=str(checkpoint))
    assert in_order(pq.read_table(out)) == before


@pytest.mark.parametrize("uri", ["", "file://"])
def test_checkpoints_of_spark_are_refused_by_path_and_uri(session: Session, tmp_path: Path, uri: str) -> None:
    (tmp_path / "of-spark" / "state" / "0").mkdir(parents=True)
    (tmp_path / "of-spark" / "metadata").write_text("{}")
    (tmp_path / "empty" / "state").mkdir(parents=True)
    stream, _ = session.memory_stream(SCHEMA)
    with pytest.raises(CheckpointError, match=r"Session\.embedded"):
        per_minute(stream).start(MemorySink(), checkpoint=f"{uri}{tmp_path}/of-spark")
    assert not (tmp_path / "of-spark" / "krishiv" / "state").exists()
    per_minute(stream).start(MemorySink(), checkpoint=f"{uri}{tmp_path}/empty").stop()  # a start that was refused leaves that


class BrokenOffError(Exception):
    """Where a process would have died."""


POINTS = {
    "planned": (BatchLog, "plan"),
    "published": (Outputs, "publish"),
    "closed": (Closings, "published"),
    "committed": (StateLog, "commit"),
    "cleared": (StateLog, "_retire"),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", POINTS)
def test_a_batch_that_is_broken_off_anywhere_is_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, when: str
) -> None:
    """Keys that are closed in it are closed once, too."""
    of_class, name = POINTS[point]
    calm: Any = getattr(of_class, name)
    breaks = {"left": 1}

    def broken(self: Any, *given: Any, **more: Any) -> Any:
        if when == "after":
            calm(self, *given, **more)
        if breaks["left"] and breaks.get("armed"):
            breaks["left"] = 0
            raise BrokenOffError
        return None if when == "after" else calm(self, *given, **more)

    monkeypatch.setattr(of_class, name, broken)
    spool, checkpoint, out = str(tmp_path / "spool"), str(tmp_path / "checkpoint"), str(tmp_path / "out")
    with Session.in_process() as session:
        stream, sender = session.memory_stream(SCHEMA, spool=spool)
        plan = stream.watermark("at", 0).key_by("user").session_window(10_000).agg(count(), collect_list("amount").alias("all"))
        query = plan.start(ParquetSink(out), checkpoint=checkpoint)
        sender.send([{"user": user, "at": 1_000, "amount": 1} for user in "ab"])
        query.process_all_available()
        with query._engine.batch:  # type: ignore[attr-defined]  # the call and the rows are seen by one batch
            breaks["armed"] = 1
            query.close_key("a")
            sender.send([{"user": user, "at": 2_000, "amount": 2} for user in "ab"])
        with pytest.raises(OperatorError):
            query.process_all_available()
        again = plan.start(ParquetSink(out), checkpoint=checkpoint)
        sender.send([{"user": "a", "at": 3_000, "amount": 3}, {"user": "c", "at": 900_000, "amount": 4}])
        again.process_all_available()
        again.stop()
        assert again.progress.rows == 6
    actual = {row["user"]: row["all"] for row in pq.read_table(out).to_pylist()}
    assert actual == {"a": [2, 3], "b": [1, 2]}


def sent_and_read(home: Path, sends: int, *, first: int = 0, batches: Batches | None = None) -> dict[str, Any]:
    """What a query gives that reads some sends of a kept stream, each in a batch, from where the last one ended."""
    with Session.in_process() as session:
        stream, sender = session.memory_stream(SCHEMA, spool=str(home / "spool"))
        for n in range(first, first + sends if batches else first):
            sender.send(rows(70, 70 * n))
        query = per_minute(stream).start(ParquetSink(str(home / "out")), checkpoint=str(home / "checkpoint"), batches=batches)
        for n in range(first, first if batches else first + sends):
            sender.send(rows(70, 70 * n))
            query.process_all_available()
        files = {str(p.relative_to(home)) for p in (home / "checkpoint").rglob("*") if p.is_file()}
        query.await_termination() if batches else query.stop()
        return {"rows": query.progress.rows, "files": files}


def test_a_batch_writes_its_plan_and_its_state_alone(tmp_path: Path) -> None:
    files = sent_and_read(tmp_path, 3)["files"]
    of_batches = {name for name in files if name.rsplit("/", 1)[1].split(".")[0].isdigit()}
    number = [f"checkpoint/offsets/{n}" for n in range(3)] + [f"checkpoint/krishiv/state/{n:012d}.state" for n in range(3)]
    assert of_batches == set(number)
    assert [path.name for path in (tmp_path / "checkpoint/commits").iterdir()] == ["2"]


def test_plans_and_files_of_ranges_follow_one_another(tmp_path: Path) -> None:
    """What is there is planned before the first batch and noted as files; what comes, with the plan of its batch."""
    seen, first = list[int](), 0
    for batches in (None, NOW, None, NOW, NOW, None, None):
        seen.append(sent_and_read(tmp_path, 2, first=first, batches=batches)["rows"])
        first += 2
    assert seen == [140 * n for n in range(1, 8)]
    assert in_order(pq.read_table(tmp_path / "out")) == by_driver(*(rows(70, 70 * n) for n in range(14)))


def test_a_source_that_is_quiet_for_long_goes_on_where_it_was(tmp_path: Path) -> None:
    """Plans are kept for twenty batches; the newest one says of every source how far it was read."""
    for run in range(3):
        with Session.in_process() as session:
            sides = {side: session.memory_stream(SCHEMA, spool=str(tmp_path / side)) for side in ("left", "right")}
            left, right = (sides[side][0].watermark("at", 0).key_by("user") for side in sides)
            joined = left.interval_join(right, lower=-1, upper=1)
            query = joined.start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
            sides["right"][1].send([{"user": "a", "at": 1_000 + 100 * run, "amount": 1}])
            for n in range(30):
                sides["left"][1].send([{"user": "a", "at": 1_000 + 100 * run + n, "amount": n}])
                query.process_all_available()
            assert query.progress.rows == 31 * (run + 1)
            query.stop()
            assert sides["left"][1].trim() > 0


def test_ranges_that_were_changed_in_a_plan_are_an_error(tmp_path: Path) -> None:
    sent_and_read(tmp_path, 2)
    plan = tmp_path / "checkpoint/offsets/1"
    noted = plan.read_text()
    plan.write_text(noted.replace('\\"send\\":1', '\\"send\\":0').replace('\\"send\\": 1', '\\"send\\": 0'))
    assert plan.read_text() != noted
    with pytest.raises(CheckpointError, match="offsets/1"):
        sent_and_read(tmp_path, 1)


def test_a_query_whose_end_could_not_be_noted_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: BatchLog, number: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(BatchLog, "commit", full)
        sent_and_read(tmp_path, 3)
    assert sent_and_read(tmp_path, 1, first=3)["rows"] == 280
    assert in_order(pq.read_table(tmp_path / "out")) == by_driver(*(rows(70, 70 * n) for n in range(4)))


def test_the_end_of_a_source_is_known_to_every_clock(session: Session) -> None:
    """Two stages over one stream that are joined have a clock each."""
    stream, sender = session.memory_stream("ad string, at bigint")
    one = stream.watermark("at", 0).key_by("ad").tumbling_window(1_000).agg(count().alias("n"))
    other = stream.watermark("at", 0).key_by("ad").tumbling_window(1_000).agg(count().alias("m"))
    joined = one.interval_join(other, on="ad", lower=0, upper=0)
    query = joined.start(MemorySink())
    sender.send([{"ad": "x", "at": 1_000}])
    sender.close()
    query.process_all_available()
    assert query.results().num_rows == 1 == joined.collect().num_rows
    query.stop()


class SlowSink(TableSink):
    """Takes longer for a batch than the clock lets pass between two."""

    def last_committed(self, batch: OutputBatch) -> int | None:
        """None: it keeps nothing."""
        return None

    def write_tables(self, batch: OutputBatch, tables: Any) -> None:
        """Wait."""
        time.sleep(0.15)


@pytest.mark.parametrize("now", [True, False])
def test_batches_that_take_longer_than_the_beat_end(session: Session, now: bool) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    plan = stream.watermark("at", 0).tumbling_window(10_000).trigger(Trigger.on_interval("100 ms")).agg(count())
    sender.send(rows(5))
    query = plan.start(SlowSink(), batches=NOW if now else None)
    done = threading.Thread(target=query.await_termination if now else query.process_all_available, daemon=True)
    done.start()
    done.join(30)
    assert not done.is_alive()
    query.stop()


def test_an_interval_takes_all_that_was_sent(session: Session) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    query = per_minute(stream).start(MemorySink(), batches=Batches.every("1 hour"))
    sender.send(rows(1))
    query.process_all_available()
    with query._engine.batch:  # type: ignore[attr-defined]
        for n in range(8):
            sender.send(rows(5, 5 * n))
        query._engine._more = True  # type: ignore[attr-defined]  # as at the end of an interval
        query._engine.woken.set()  # type: ignore[attr-defined]
    for _ in range(200):
        if query.progress.rows == 41:
            break
        time.sleep(0.05)
    assert query.progress.rows == 41
    query.stop()


def test_all_is_processed_of_sources_that_are_held_back(session: Session) -> None:
    fast, to_fast = session.memory_stream(SCHEMA, name="fast")
    slow, to_slow = session.memory_stream(SCHEMA, name="slow")
    one = WatermarkSpec.fixed_lag(0)
    spec = MultiSourceWatermarkSpec.new(max_drift="10 s").source("fast", one).source("slow", one)
    both = session.union({"fast": fast, "slow": slow}).with_watermark(spec, "at", source_column="source")
    query = both.tumbling_window(10_000).agg(count()).start(MemorySink())
    for n in range(6):
        to_fast.send([{"user": "f", "at": 60_000 * n, "amount": 1}])
    for n in range(6):
        to_slow.send([{"user": "s", "at": 60_000 * n, "amount": 1}])
    query.process_all_available()
    assert query.progress.rows == 12
    query.stop()


class AskingHandler(LateEventHandler):
    """Asks the query that calls it."""

    wants = "rows"

    def __init__(self) -> None:
        self.query: Any = None
        self.seen: list[Any] = []

    def handle(self, late: LateRows) -> None:
        """Look at the state, and wait for what cannot come."""
        self.seen.append(self.query.pending_keys)
        for call in (self.query.process_all_available, self.query.await_termination):
            try:
                call()
            except OperatorError as problem:
                self.seen.append(str(problem))


def test_a_handler_may_ask_its_query_and_cannot_wait_for_it(session: Session) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    handler = AskingHandler()
    query = per_minute(stream).with_late_event_handler(handler).start(MemorySink())
    handler.query = query
    sender.send(rows(2, 600))
    sender.send(rows(1))
    query.process_all_available()
    assert handler.seen[0] == 2
    assert all("cannot wait for itself" in text for text in handler.seen[1:]) and len(handler.seen) == 3
    query.stop()


def test_a_cleanup_that_fails_ends_the_query(session: Session) -> None:
    stream, _ = session.memory_stream(SCHEMA)
    query = per_minute(stream).start(MemorySink())
    assert isinstance(query, ProcessQuery)
    calm = query._cleanup

    def fails() -> None:
        calm()
        raise OSError("the store does not answer")

    query._cleanup = fails
    with pytest.warns(RuntimeWarning, match="the store does not answer"):
        query.stop()
        time.sleep(0.1)
    assert query.status == "stopped"


def test_late_rows_of_a_run_do_not_go_among_results(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    sender.send(rows(100))
    sender.send(rows(1))
    query = per_minute(stream).start(ParquetSink(str(tmp_path / "out")), checkpoint=str(tmp_path / "checkpoint"))
    query.process_all_available()
    query.stop()
    aside = SideOutputLateEventHandler(ParquetSink(str(tmp_path / "out")))
    with pytest.raises(PlanError, match="holds the results of another query"):
        per_minute(stream).with_late_event_handler(aside).run()


@pytest.mark.parametrize(
    ("kind", "method"), [(BatchLog, "_write"), (StateLog, "_write"), (type(DISK), "create")], ids=["batches", "state", "ranges"]
)
def test_a_full_disk_names_the_checkpoint(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, method: str
) -> None:
    pq.write_table(pa.Table.from_pylist(rows(100)), tmp_path / "1.parquet")

    def full(*args: Any, **named: Any) -> None:
        raise OSError("No space left on device")

    def started() -> int:
        stream = session.read_parquet(str(tmp_path / "*.parquet"), SCHEMA, streaming=True)
        query = per_minute(stream).start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
        query.process_all_available()
        return query.progress.rows

    with monkeypatch.context() as patched, pytest.raises(CheckpointError, match=r"checkpoint.*cannot be written.*room.*again"):
        patched.setattr(kind, method, full)
        started()
    assert started() == 100


@pytest.mark.parametrize(
    ("mends", "cures"),
    [
        ("aside", True),
        ("new checkpoint", True),
        ("fixed", False),
        ("removed", False),
        ("fixed, blank lines", True),
        ("removed, blank lines", True),
    ],
    ids=lambda x: str(x),
)
@pytest.mark.parametrize("ending", ["csv", "json"])
def test_the_hint_of_a_malformed_line_can_be_followed(
    session: Session, tmp_path: Path, mends: str, cures: bool, ending: str
) -> None:
    """A batch that was planned keeps its files, so a file that is fixed needs another name, or a new checkpoint."""
    read = session.read_csv if ending == "csv" else session.read_json
    a, b = (
        ("a,1000,1", "b,90000,2")
        if ending == "csv"
        else (f'{{"user":"{u}","at":{at}}}' for u, at in (("a", 1_000), ("b", 90_000)))
    )
    file = tmp_path / "in" / f"1.{ending}"
    file.parent.mkdir()
    file.write_text(f"{a}\noops\n{b}\n")
    planned = file.stat()

    def started(checkpoint: str, **options: Any) -> int:
        stream = read(str(file.parent), SCHEMA, streaming=True, **options)
        with per_minute(stream).start(MemorySink(), checkpoint=str(tmp_path / checkpoint)) as query:
            query.process_all_available()
            return query.progress.rows

    hint = 'on_malformed="side_output".*, or fix or remove it, and begin with a new checkpoint'
    with pytest.raises(SourceError, match=hint):
        started("checkpoint")
    if mends == "aside":
        assert started("checkpoint", on_malformed="side_output") >= 2
        return
    if "removed" in mends:
        file.unlink()
    else:
        file.write_text(f"{a}\n{b}\n")
    if "blank lines" in mends:  # docs/sources.md: what was planned is without rows, and the mended file is another one
        with pytest.raises(SourceError, match=rf"{planned.st_size} bytes, modified at {planned.st_mtime_ns // 10**9}\."):
            started("checkpoint")
        file.unlink(missing_ok=True)
        file.with_name(f"1-mended.{ending}").write_text(f"{a}\n{b}\n")
        file.write_bytes(b"\n" * planned.st_size)
        os.utime(file, ns=(planned.st_mtime_ns, planned.st_mtime_ns))
        assert [started("checkpoint"), started("checkpoint")] == [2, 2]
    elif cures:
        assert started("another") == 2
    else:
        with pytest.raises(SourceError, match=r"went before it was read|was changed after a batch had planned it"):
            started("checkpoint")


def test_sends_that_a_query_has_not_read_are_not_trimmed(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(SCHEMA, spool=str(tmp_path / "spool"))
    query = per_minute(stream).start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
    for n in range(3):
        sender.send(rows(70, 70 * n))
    query.process_all_available()
    query.stop()
    sender.send(rows(70, 210))
    sender.trim()
    again = per_minute(stream).start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
    again.process_all_available()
    assert again.progress.rows == 280
    again.stop()


def test_a_folder_is_read_file_by_file(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an entry with many files one is in memory at a time."""
    (tmp_path / "in").mkdir()
    for n in range(6):
        pq.write_table(pa.Table.from_pylist(rows(70, 70 * n)), tmp_path / "in" / f"{n}.parquet")
    query = per_minute(session.read_parquet(str(tmp_path / "in"), streaming=True)).start(MemorySink(), batches=NOW)
    assert query.await_termination("60 s")
    assert in_order(query.results()) == by_driver(rows(420))


def test_a_repeated_batch_sees_the_version_of_its_table(tmp_path: Path) -> None:
    """The table changes between the attempt that fails and the one that repeats it; the next batch sees the new version."""
    prices, sink = [1], FailingSink()

    def table() -> pa.Table:
        return pa.table({"item": ["a"], "price": [prices[0]]})

    def started(session: Session) -> tuple[Any, Any]:
        stream, sender = session.memory_stream("item string, at bigint", spool=str(tmp_path / "spool"))
        plan = stream.lookup_join(table, "item", reload="1 us")
        sender.send([{"item": "a", "at": prices[0]}])
        return plan.start(sink, checkpoint=str(tmp_path / "checkpoint")), sender

    with Session.in_process() as session, pytest.raises(OperatorError, match="refused"):
        started(session)[0].process_all_available()
    prices[0], sink.fails = 2, False
    with Session.in_process() as session:
        query, _ = started(session)
        query.process_all_available()
        assert query.progress.tables["table"].version == 2
    assert [(row["at"], row["price"]) for row in sink.rows] == [(1, 1), (2, 2)]


class FailingSink(TableSink):
    """Keeps rows, or refuses them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.fails = True

    def last_committed(self, batch: OutputBatch) -> int | None:
        """None: a batch that fails is not there."""
        return None

    def write_tables(self, batch: OutputBatch, tables: Any) -> None:
        """Take rows."""
        if self.fails:
            raise RuntimeError("refused")
        self.rows += [row for table in tables for row in table.to_pylist()]


def test_queries_over_one_table_have_versions_of_their_own(session: Session) -> None:
    """Two queries and a bounded run share a plan with a table that is loaded again: none sees the version of another."""
    loads: list[int] = []

    def table() -> pa.Table:
        loads.append(len(loads))
        return pa.table({"item": ["a"], "n": [loads[-1]]})

    now = [0]
    session.use_clock(lambda: now[0])
    stream, sender = session.memory_stream("item string, at bigint")
    plan = stream.lookup_join(table, "item", reload="10 us")
    queries = [plan.start(MemorySink(), name=name) for name in ("one", "two")]
    for i in range(6):
        now[0] = 4 * i
        sender.send([{"item": "a", "at": i}])
        for query in queries:
            query.process_all_available()
    seen = [[row["n"] for row in query.results().to_pylist()] for query in queries]
    assert [len(set(one)) for one in seen] == [2, 2]
    assert not set(seen[0]) & set(seen[1])
    assert [query.progress.tables["table"].version for query in queries] == [2, 2]
    assert len(loads) == 1 + 2 * 2
