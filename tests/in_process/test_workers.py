"""Several workers give what one gives: every kind of plan, over restarts with other numbers of them."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from krishiv_py import (
    MemorySink,
    OperatorError,
    ParquetSink,
    PlanError,
    Session,
    SlidingWindows,
    TimeIntervalWindowOptions,
    Trigger,
    col,
    collect_list,
    count,
    first,
    last,
    top_k,
    when,
    windows,
)
from krishiv_py.connectors import FileSink
from krishiv_py.in_process import core, outputs, stage
from krishiv_py.in_process.query import ProcessQuery
from krishiv_py.in_process.stage import Workers, parted
from krishiv_py.testing import Driver, stream_of
from tests.crash import killing
from tests.crash.job import KINDS
from tests.crash.killing import rows, write_input
from tests.crash.test_crash import by_driver
from tests.examples import scaled
from tests.in_process.test_move import given, run, through_a_savepoint
from tests.in_process.test_session import per_minute

SCHEMA = "user bigint, at bigint, amount bigint"


@pytest.fixture(autouse=True)
def _threads_for_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "FEW_ROWS", 0)
    monkeypatch.setattr(core, "FEW_ROWS", 0)
    monkeypatch.setattr(outputs, "_SHARED_ROWS", 2)
    monkeypatch.setattr(killing, "ROWS", 60)


@pytest.fixture
def session() -> Iterator[Session]:
    """A session with three workers."""
    with Session.in_process(workers=3) as made:
        yield made


@pytest.mark.one_in(11)
@pytest.mark.parametrize("kind", KINDS)
def test_restarts_with_other_numbers_of_workers(kind: str, tmp_path: Path) -> None:
    write_input(tmp_path / "all", seed=KINDS.index(kind), files=8)
    out, late, read = by_driver(kind, tmp_path / "all", tmp_path / "driver")
    said = ""
    for begin, workers in enumerate((1, 3, 2, 4)):
        given(tmp_path, slice(2 * begin, 2 * begin + 2))
        with Session.in_process(workers=workers) as session:
            said = run(session, kind, tmp_path, str(tmp_path / "a"), last=begin == 3)
    assert {name: rows(tmp_path / name) for name in out} == out
    assert (rows(tmp_path / "late"), said) == (late, read)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "lookup"])
def test_a_savepoint_of_several_workers(session: Session, kind: str, tmp_path: Path) -> None:
    write_input(tmp_path / "all", seed=KINDS.index(kind), files=6)
    out, late, read = by_driver(kind, tmp_path / "all", tmp_path / "driver")
    given(tmp_path, slice(0, 3))
    run(session, kind, tmp_path, str(tmp_path / "a"))
    through_a_savepoint(str(tmp_path / "a"), str(tmp_path / "b"), str(tmp_path / "saved"), 2)
    shutil.rmtree(tmp_path / "a")
    given(tmp_path, slice(3, 6))
    said = run(session, kind, tmp_path, str(tmp_path / "b"), last=True)
    assert {name: rows(tmp_path / name) for name in out} == out
    assert (rows(tmp_path / "late"), said) == (late, read)


def sent(number: int) -> pa.Table:
    """Rows of 40 users in ten seconds each."""
    index = [number * 10_000 + i * 7 for i in range(1_000)]
    return pa.table({"user": [i % 40 for i in range(1_000)], "at": index, "amount": list(range(1_000))})


@attrs.frozen
class _NotInThreads(FileSink):
    """Files of CSV, by a sink that does not say that threads may write."""

    path: str
    suffix: ClassVar[str] = ".csv"

    def write_table(self, table: pa.Table, stream: Any) -> None:
        """Write a file."""
        csv.write_csv(table, stream)


def test_workers_share_the_writing_of_results(session: Session, tmp_path: Path) -> None:
    """In files whose names are in the order of the rows; a sink that does not say that threads may write gets one file."""
    written: dict[str, list[str]] = {}
    sinks: dict[str, FileSink] = {"csv": _NotInThreads(f"{tmp_path}/csv"), "parquet": ParquetSink(f"{tmp_path}/parquet")}
    for name, sink in sinks.items():
        stream, sender = session.memory_stream(SCHEMA)
        query = per_minute(stream).start(sink)
        sender.send(sent(0))
        sender.send([{"user": 1, "at": 200_000, "amount": 0}])
        query.process_all_available()
        query.stop()
        written[name] = sorted(path.name for path in (tmp_path / name).glob("*.*"))
    assert [len(written["csv"]), len(written["parquet"])] == [1, 3]
    in_order = pa.concat_tables([pq.read_table(tmp_path / "parquet" / name) for name in written["parquet"]])
    whole = csv.read_csv(tmp_path / "csv" / written["csv"][0])
    assert in_order.to_pylist() == whole.cast(in_order.schema).to_pylist()
    assert in_order.num_rows == 40


def test_what_a_running_query_shows(session: Session, tmp_path: Path) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    query = per_minute(stream).start(MemorySink(), checkpoint=str(tmp_path / "c"))
    assert isinstance(query, ProcessQuery)
    for number in range(20):
        sender.send(sent(number))
    query.process_all_available()
    buckets = query._engine.core.stages[0].buckets
    assert [bucket.open_windows > 0 for bucket in buckets] == [True] * 3
    assert query.progress.open_windows == len(query.state()["window_start"].unique()) == 1, "all keys share it"
    assert query.state().num_rows == 40
    assert query.pending_keys == 40
    open_ = sorted(query.state().select(["user", "count"]).to_pylist(), key=lambda row: row["user"])
    actual = query.lookup([row["user"] for row in open_]).select(["user", "count"]).to_pylist()
    assert sorted(actual, key=lambda row: row["user"]) == open_
    assert query.lookup(99).num_rows == 0 and query.lookup([]).num_rows == 0
    query.stop()
    assert not [t for t in threading.enumerate() if t.name.startswith("krishiv-worker")]


def test_what_waits_to_become_windows_of_one_key_counts_in_every_bucket(session: Session) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    query = stream.watermark("at", 1_000).key_by("user").lookback_window(30_000).agg(count()).start(MemorySink())
    assert isinstance(query, ProcessQuery)
    sender.send(sent(0))
    query.process_all_available()
    assert [bucket.open_windows > 0 for bucket in query._engine.core.stages[0].buckets] == [True] * 3
    waiting = query.progress.open_windows
    assert waiting == 1_000 - query.progress.firings and f", {waiting} open windows, " in str(query.progress)
    query.stop()


def test_rows_that_wait_in_a_window_join_count_in_every_bucket(session: Session) -> None:
    left, to_left = session.memory_stream(SCHEMA)
    right, to_right = session.memory_stream("user bigint, seen bigint")
    sides = left.watermark("at", 1_000), right.watermark("seen", 1_000)
    query = sides[0].window_join(sides[1], on="user", window=windows.tumbling("1 minute")).start(MemorySink())
    assert isinstance(query, ProcessQuery)
    to_left.send(sent(0))
    to_right.send(pa.table({"user": list(range(40)), "seen": [50_000] * 40}))
    query.process_all_available()
    by_bucket = [bucket.open_windows for bucket in query._engine.core.stages[0].buckets]
    assert all(by_bucket) and query.progress.open_windows == sum(by_bucket)
    query.stop()


def test_collect_and_keys_that_are_closed(session: Session) -> None:
    stream, sender = session.memory_stream(SCHEMA)
    look_back = stream.watermark("at", 1_000).key_by("user").lookback_window(30_000).agg(count())
    query = look_back.start(MemorySink())
    for number in range(4):
        sender.send(sent(number))
    with Session.in_process() as alone:
        again, feed = alone.memory_stream(SCHEMA)
        for number in range(4):
            feed.send(sent(number))
        expected = again.watermark("at", 1_000).key_by("user").lookback_window(30_000).agg(count()).collect().to_pylist()
    collected = look_back.collect().to_pylist()
    assert sorted(collected, key=str) == sorted(expected, key=str)
    query.process_all_available()
    query.close_key(7)
    sender.send(sent(4))
    query.process_all_available()
    assert query.progress.counters["close_key_dropped"] > 0


def test_an_error_in_a_thread_is_that_of_the_query(session: Session) -> None:
    def fails(table: pa.Table) -> pa.Table:
        if 13 in table["user"].to_pylist():
            raise ValueError("thirteen")
        return table

    stream, sender = session.memory_stream(SCHEMA)
    query = per_minute(stream.map_batches(fails, SCHEMA)).start(MemorySink())
    sender.send(sent(0))
    with pytest.raises(OperatorError, match="thirteen"):
        query.process_all_available()


@pytest.mark.parametrize("workers", [0, -1, 2.0, True, "2", None, 5_000])
def test_a_number_of_workers_that_cannot_be(workers: Any) -> None:
    with pytest.raises(PlanError, match=r"`workers` is out of range.*\.workers\(2\)"):
        Session.in_process(workers=workers)


def test_spark_has_no_workers() -> None:
    with pytest.raises(PlanError, match=r"local\[2\]"):
        Session.builder().workers(2).get_or_create()


TIES: dict[str, Callable[[Any], Any]] = {
    "tumbling": lambda s: s.tumbling_window(10),
    "hopping": lambda s: s.hopping_window(12, 5),
    "cumulating": lambda s: s.cumulate_window(5, 15),
    "sessions": lambda s: s.session_window(4),
    "sessions with a gap of each row": lambda s: s.session_window(when(col("n") % 2 == 0, 3).otherwise(9)),
    "sessions with a longest duration": lambda s: s.session_window(4, max_duration=9),
    "sessions that fire early": lambda s: s.session_window(4).trigger(Trigger.on_count(3)),
    "look-back": lambda s: s.lookback_window(6),
    "distinct sets": lambda s: s.windowed_by(SlidingWindows.of(6).grace(3)),
    "panes": lambda s: s.time_interval_window(TimeIntervalWindowOptions(0.010, 0.005, discard_age=0.003)),
    "count": lambda s: s.count_window(5, 2),
}


@pytest.mark.one_in(5)
@pytest.mark.parametrize("by_window", [False, True])
@pytest.mark.parametrize("name", TIES)
@pytest.mark.parametrize("seed", range(scaled(2)))
def test_rows_of_one_time_are_taken_in_the_order_in_which_they_came(seed: int, name: str, by_window: bool) -> None:
    """Also where several workers combine them in parts, and where a session has parts with other ends."""
    aggregates = (first("n").alias("f"), last("n").alias("l"), collect_list("n").alias("all"), top_k(2, col("n") % 3, "n"))
    chance, numbers = random.Random(f"{seed} {name}"), itertools.count()
    rows_of = [
        [{"k": chance.choice("aab"), "at": 3 * turn + chance.randrange(9), "n": next(numbers)} for _ in range(12)]
        for turn in range(6)
    ]

    def built(stream: Any) -> Any:
        made = TIES[name](stream.watermark("at", 2).key_by("k"))
        if by_window and name not in ("look-back", "distinct sets", "panes", "count"):
            made = made.late_rule("window")
        return made.agg(*aggregates)

    driver = Driver(built(stream_of("k string, at bigint, n bigint")))
    expected = [row for send in rows_of for row in driver.send(send).results.to_pylist()] + driver.close().results.to_pylist()
    with Session.in_process(workers=3) as session:
        stream, sender = session.memory_stream("k string, at bigint, n bigint")
        query = built(stream).start(MemorySink())
        for send in rows_of:
            sender.send(send)
            query.process_all_available()
        sender.close()
        query.process_all_available()
        assert sorted(map(repr, query.results().to_pylist())) == sorted(map(repr, expected))
        query.stop()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("emit", ["updates", "retractions"])
@pytest.mark.parametrize("name", [n for n in TIES if n not in ("look-back", "distinct sets", "sessions that fire early")])
@pytest.mark.parametrize("seed", range(scaled(2)))
def test_windows_that_fire_early_go_on_with_other_numbers_of_workers(seed: int, name: str, emit: Any, tmp_path: Path) -> None:
    chance = random.Random(f"{seed} {name}")
    rows_of = [
        [{"k": chance.choice("abcdefghi"), "at": 2 * turn + chance.randrange(9), "n": turn} for _ in range(14)]
        for turn in range(8)
    ]

    def built(stream: Any) -> Any:
        made = TIES[name](stream.watermark("at", 4).key_by("k")).trigger(Trigger.on_count(2)).emit(emit)
        return made.agg(count(), first("n").alias("f"))

    driver = Driver(built(stream_of("k string, at bigint, n bigint")))
    expected = [row for send in rows_of for row in driver.send(send).results.to_pylist()] + driver.close().results.to_pylist()
    sink = MemorySink()
    for begin, workers in enumerate((2, 1, 3, 2)):
        with Session.in_process(workers=workers) as session:
            stream, sender = session.memory_stream("k string, at bigint, n bigint", spool=tmp_path / "spool")
            query = built(stream).start(sink, checkpoint=tmp_path / "c")
            for send in rows_of[2 * begin : 2 * begin + 2]:
                sender.send(send)
                query.process_all_available()
            if begin == 3:
                sender.close()
                query.process_all_available()
            query.stop()
    results = sink.table()
    assert results is not None
    assert sorted(map(repr, results.to_pylist())) == sorted(map(repr, expected))


def test_tasks_are_run_in_their_order() -> None:
    workers = Workers(3)
    assert workers.run([lambda n=n: n for n in range(10)]) == list(range(10))  # type: ignore[misc]
    assert list(workers.ahead(lambda n=n: n for n in range(10))) == list(range(10))  # type: ignore[misc]
    assert [list(some) for some in parted(range(5), 2)] == [[0, 1, 2], [3, 4]]
    assert [list(some) for some in parted(range(0), 2)] == [[]]
    with pytest.raises(ZeroDivisionError):
        workers.run([lambda: 1, lambda: 1 // 0, lambda: 2])
    with pytest.raises(ZeroDivisionError):
        list(workers.ahead([lambda: 1, lambda: 1 // 0, lambda: 2]))
    workers.close()


def test_rows_are_cut_into_parts_in_their_order() -> None:
    stream, sender = Session.in_process(workers=3).memory_stream(SCHEMA)
    query = stream.filter(col("amount") >= 0).watermark("at", 0).key_by("user").tumbling_window(10_000).agg(count())
    sender.send(sent(0).slice(0, 1))
    sender.send(sent(0).slice(1))
    assert sum(query.collect()["count"].to_pylist()) == 1_000
