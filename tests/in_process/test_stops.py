"""Stops under bad conditions: sources and sinks that hold on, several threads, forks, folders that vanish."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import CheckpointError, MemorySink, Session, SessionClosedError, SourceError, SpoolError, count
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors import Planned, Source
from krishiv_py.in_process import query as queries

SCHEMA = "user bigint, at bigint"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_LONG_S", 0.2)


def rows(number: int) -> list[dict[str, int]]:
    """A second of events."""
    return [{"user": i % 5, "at": number * 1_000 + i * 20} for i in range(50)]


def per_second(stream: Stream) -> ResultStream:
    """Counts of users."""
    return stream.watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count())


class Holding(Source):
    """Gives some batches, and then holds whoever asks or reads."""

    schema = SCHEMA
    poll_seconds = 0.01

    def __init__(self, plans: int, reads: int) -> None:
        self.plans, self.reads = plans, reads
        self.held, self.let_go = threading.Event(), threading.Event()

    def wait(self) -> None:
        """Hold on."""
        self.held.set()
        self.let_go.wait(60)

    def plan(self, last: Any) -> Planned | None:
        """Return the next second."""
        number = 0 if last is None else last + 1
        if number >= self.plans:
            self.wait()
            self.plans = 1_000
        return Planned(number, [number]) if number < 6 else None

    def read(self, planned: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a second."""
        if planned >= self.reads:
            self.wait()
            self.reads = 1_000
        yield pa.Table.from_pylist(rows(planned)).select(columns).to_batches()[0]


def test_a_source_that_does_not_answer_is_left(tmp_path: Path) -> None:
    source, checkpoint = Holding(2, 1_000), str(tmp_path / "checkpoint")
    with Session.in_process() as session:
        query = per_second(session.read_source(source)).start(MemorySink(), checkpoint=checkpoint)
        assert source.held.wait(30)
        waiting = threading.Thread(target=query.state, daemon=True)
        waiting.start()
        with pytest.warns(RuntimeWarning, match=r"was stopped while wait\(\) \(.*test_stops.py, line \d+\) did not return"):
            query.stop()
        waiting.join(30)
        assert not waiting.is_alive() and query.status == "stopped" and query.await_termination("1 s")
        assert query.progress.rows == 100 and query.state().num_rows == 5
        again = per_second(session.read_source(Holding(1_000, 1_000))).start(MemorySink(), checkpoint=checkpoint)
        source.let_go.set()  # the thread that was left does nothing more
        again.process_all_available()
        assert again.progress.rows == 300
        again.stop()
    for thread in threading.enumerate():
        if thread.name == f"krishiv-{query.name}":
            thread.join(30)
            assert not thread.is_alive()


def test_a_batch_that_takes_long_is_named_and_finished(tmp_path: Path) -> None:
    source = Holding(1_000, 2)
    with Session.in_process() as session:
        query = per_second(session.read_source(source)).start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
        assert source.held.wait(30)
        threading.Timer(0.6, source.let_go.set).start()
        with pytest.warns(RuntimeWarning, match=r"stops when its batch is finished, which is in wait\(\)"):
            query.stop()
        assert query.status == "stopped" and query.progress.rows == 150


def test_several_threads_stop_a_query_during_a_batch(tmp_path: Path) -> None:
    begun = threading.Event()

    def slow(table: pa.Table) -> pa.Table:
        begun.set()
        time.sleep(0.1)
        return table

    with Session.in_process(workers=2) as session:
        stream, sender = session.memory_stream(SCHEMA, spool=str(tmp_path / "spool"))
        plan = per_second(stream.map_batches(slow, SCHEMA))
        query = plan.start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
        for number in range(4):
            sender.send(rows(number))
        assert begun.wait(30)
        stops = [threading.Thread(target=query.stop) for _ in range(5)]
        for thread in stops:
            thread.start()
        query.process_all_available()
        for thread in stops:
            thread.join(30)
        assert query.status == "stopped" and query.exception() is None
        again = plan.start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
        again.process_all_available()
        assert again.progress.rows == 200
        again.stop()


def test_a_fork_during_a_batch_does_not_hang_and_does_no_harm(tmp_path: Path) -> None:
    source = Holding(1_000, 2)
    with Session.in_process() as session:
        query = per_second(session.read_source(source)).start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
        assert source.held.wait(30)
        saved = str(tmp_path / "saved")
        calls: list[Callable[[], object]] = [query.state, lambda: query.pending_keys, lambda: query.savepoint(saved)]
        child = os.fork()
        if not child:  # no assert may leave it
            signal.alarm(20)
            refused = 0
            for number, call in enumerate(calls):
                try:
                    call()
                except SessionClosedError:
                    refused |= 1 << number
            query.process_all_available()
            query.stop()
            session.stop()
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0b111
        source.let_go.set()
        query.process_all_available()
        assert query.status == "running" and query.progress.rows == 300
        query.stop()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("part", "error"), [("checkpoint", CheckpointError), ("spool", SourceError)])
def test_a_folder_that_vanishes_is_an_error_and_no_hang(tmp_path: Path, part: str, error: type[Exception]) -> None:
    with Session.in_process() as session:
        stream, sender = session.memory_stream(SCHEMA, spool=str(tmp_path / "spool"))
        query = per_second(stream).start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
        sender.send(rows(0))
        query.process_all_available()
        shutil.rmtree(tmp_path / part)
        if part == "spool":
            with pytest.raises(SpoolError, match=r"spool.*Hint: "):
                sender.send(rows(1))
        else:
            sender.send(rows(1))
        with pytest.raises(error, match=rf"{tmp_path / part}.*Hint: "):
            query.await_termination("30 s")
        query.stop()
        assert query.status == "failed" and query.state().num_rows == 5


def test_a_clock_that_is_set_back_stops_no_query(tmp_path: Path) -> None:
    now = [1_700_000_000_000_000]
    with Session.in_process() as session:
        session.use_clock(lambda: now[0])
        for run in range(3):
            stream, sender = session.memory_stream(SCHEMA, spool=str(tmp_path / "spool"))
            query = per_second(stream).start(MemorySink(), checkpoint=str(tmp_path / "checkpoint"))
            for number in range(3):
                sender.send(rows(3 * run + number))
                query.process_all_available()
                now[0] -= 3_600_000_000
            assert query.progress.rows == 150 * (run + 1)
            query.stop()


def test_who_waits_for_all_that_is_there_does_not_wait_for_what_is_sent_later() -> None:
    with Session.in_process() as session:
        stream, sender = session.memory_stream("at bigint")
        taken: list[int] = []

        def sends_another(rows: pa.Table) -> pa.Table:
            taken.extend(rows["at"].to_pylist())
            if len(taken) < 200:
                sender.send([{"at": 10 * len(taken)}])
            return rows

        counts = stream.map_batches(sends_another, "at bigint").watermark("at", 0).tumbling_window(10).agg(count())
        sender.send([{"at": 0}, {"at": 10}])
        query = counts.start(MemorySink())
        query.process_all_available()
        assert len(taken) < 200
        assert query.results()["window_start"].to_pylist()[:1] == [0]
        query.stop()
