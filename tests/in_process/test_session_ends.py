"""The end of sessions and queries: nothing of them stays, nobody starts a query after it, and what is left running is said."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import (
    CheckpointError,
    ConsoleSink,
    CountingLateEventHandler,
    DeltaSink,
    JsonSink,
    MemorySink,
    ParquetSink,
    PlanError,
    ResultStream,
    Session,
    SessionClosedError,
    SideOutputLateEventHandler,
    Stream,
    count,
)
from krishiv_py.connectors import Sink
from krishiv_py.in_process.query import ProcessQuery
from krishiv_py.testing import Driver, stream_of
from tests.outputs.keyed import TableInMemory

DDL = "user bigint, at bigint"
SINKS: dict[str, Callable[[Path], Sink]] = {
    "memory": lambda folder: MemorySink(),
    "parquet": lambda folder: ParquetSink(folder / "out"),
    "json": lambda folder: JsonSink(folder / "out"),
    "console": lambda folder: ConsoleSink(),
    "own": lambda folder: TableInMemory(["user", "window_start"]),
    "delta": lambda folder: DeltaSink(folder / "out", key=["user", "window_start"]),
}
Counted = dict[str, int]
OURS = ("ProcessQuery", "Session", "Sender", "MemorySink", "Engine", "Owner", "Lease", "LookupTable", "_Held")


def per_minute(stream: Stream) -> ResultStream:
    return stream.watermark("at", 0).key_by("user").tumbling_window("1 min").agg(count())


def one_query(folder: Path, sink: str, source: str = "temporary", workers: int = 1, late: bool = False, n: int = 5) -> None:
    """A session with a query, from the first send to its stop."""
    to = SINKS[sink](folder)
    handler = SideOutputLateEventHandler(MemorySink()) if late else CountingLateEventHandler()
    rows = pa.table({"user": np.arange(n), "at": np.zeros(n, "i8")})
    with Session.in_process(workers=workers) as session:
        if source == "files":
            (folder / "in").mkdir(parents=True)
            pq.write_table(rows, folder / "in" / "a.parquet")
            stream, sender = session.read_parquet(folder / "in", streaming=True), None
        else:
            spool = folder / "sent" if source == "spool" else None
            stream, sender = session.memory_stream(DDL, spool=spool, linger="1 ms" if source == "linger" else None)
        checkpoint = folder / "checkpoint" if source in ("spool", "files") else None
        query = per_minute(stream).with_late_event_handler(handler).start(to, checkpoint=checkpoint)
        if sender is not None:
            sender.send(rows)
            sender.send([{"user": 0, "at": 70_000}])
            sender.send([{"user": 0, "at": 1}])
        query.process_all_available()
        query.lookup(0, last=1)
        query.stop()


def one_lookup(folder: Path, load: bool) -> None:
    shops = pa.table({"user": [1], "name": ["ann"]})
    with Session.in_process() as session:
        stream, sender = session.memory_stream(DDL)
        if load:
            named = stream.lookup_join(lambda: shops.slice(0), on="user", reload="1 hour")
        else:
            named = stream.lookup_join(shops, on="user")
        query = per_minute(named).start(MemorySink())
        sender.send([{"user": 1, "at": 1}])
        query.process_all_available()
        query.stop()


def one_driver(folder: Path) -> None:
    late = SideOutputLateEventHandler(MemorySink())
    driver = Driver(per_minute(stream_of(DDL)).with_late_event_handler(late), sink=MemorySink())
    for moment in (0, 70_000, 1):
        driver.send([{"user": 1, "at": moment}])
    driver.close()


def one_collect(folder: Path) -> None:
    with Session.in_process() as session:
        stream, sender = session.memory_stream(DDL)
        sender.send([{"user": 1, "at": 1}])
        sender.close()
        per_minute(stream).collect()


KINDS: dict[str, Callable[[Path], None]] = {
    **{sink: partial(one_query, sink=sink) for sink in SINKS},
    "three workers": lambda folder: one_query(folder, "memory", workers=3),
    "late rows": lambda folder: one_query(folder, "memory", late=True),
    "spool and checkpoint": lambda folder: one_query(folder, "memory", source="spool"),
    "a sender that lingers": lambda folder: one_query(folder, "memory", source="linger"),
    "files": lambda folder: one_query(folder, "parquet", source="files"),
    "a table": partial(one_lookup, load=False),
    "a table that a function loads": partial(one_lookup, load=True),
    "driver": one_driver,
    "collect": one_collect,
}


def what_is_there(temporary: Path) -> Counted:
    """What a process has: descriptors, threads, temporary folders, Arrow's memory and the objects of queries."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ours = [type(o).__name__ for o in gc.get_objects() if str(type(o).__module__).startswith("krishiv_py.")]
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "folders": sum(len(list(folder.iterdir())) for folder in temporary.iterdir()),
        "Arrow's bytes": pa.total_allocated_bytes(),
        **{
            name: ours.count(name)
            for name in ("ProcessQuery", "Session", "Sender", "MemorySink", "Engine", "Owner", "Lease", "_Held", "LookupTable")
        },
    }


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files of its own."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    yield tmp_path / "tmp"


@pytest.mark.one_in(15)
@pytest.mark.parametrize("kind", KINDS)
def test_a_query_that_has_ended_leaves_nothing(kind: str, tmp_path: Path, temporary: Path) -> None:
    for number in range(3):  # what is loaded and opened once for all
        KINDS[kind](tmp_path / f"first-{number}")
    before = what_is_there(temporary)
    for number in range(5):
        KINDS[kind](tmp_path / f"{number}")
    for _ in range(50):  # a thread of a test before this one may still close, or open, a descriptor
        if (after := what_is_there(temporary)) == before:
            break
        time.sleep(0.1)
    assert after == before


@pytest.mark.slow
def test_a_thousand_sessions_leave_nothing(tmp_path: Path, temporary: Path) -> None:
    kinds = [kind for kind in KINDS if kind != "delta"]
    for number, kind in enumerate(kinds):
        KINDS[kind](tmp_path / f"first-{number}")
    before, pages = what_is_there(temporary), int(Path("/proc/self/statm").read_text().split()[1])
    for number in range(1_000):
        KINDS[kinds[number % len(kinds)]](tmp_path / f"{number}")
    assert what_is_there(temporary) == before
    assert int(Path("/proc/self/statm").read_text().split()[1]) - pages < (32 << 20) // os.sysconf("SC_PAGE_SIZE")


def test_a_sink_does_not_keep_a_query_and_a_query_not_its_sink() -> None:
    sink = MemorySink()
    with Session.in_process() as session:
        stream, _ = session.memory_stream(DDL)
        first, second = per_minute(stream).start(sink), None
        with pytest.raises(PlanError, match=r"taken by a running query.*Session\.all_queries\(\) has it"):
            second = per_minute(stream).start(sink)
        assert second is None
        query = weakref.ref(first)
        first.stop()
    del first, stream, session
    gc.collect()
    assert query() is None
    kept = weakref.ref(sink)
    del sink
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("checkpointed", [True, False])
def test_no_query_runs_after_its_session_has_stopped(checkpointed: bool, tmp_path: Path, temporary: Path) -> None:
    left = list[Any]()
    for number in range(25):
        session = Session.in_process()
        stream, _ = session.memory_stream(DDL, spool=tmp_path / f"sent-{number}" if checkpointed else None)
        outcome = list[Any]()

        def start(stream: Stream = stream, outcome: list[Any] = outcome, number: int = number) -> None:
            try:
                outcome.append(
                    per_minute(stream).start(MemorySink(), checkpoint=tmp_path / f"{number}" if checkpointed else None)
                )
            except SessionClosedError as refused:
                outcome.append(refused)

        thread = threading.Thread(target=start)
        thread.start()
        time.sleep(0.001 * number)
        session.stop()
        thread.join()
        left += [one for one in outcome if isinstance(one, ProcessQuery) and one.status == "running"]
        assert len(outcome) == 1
        assert not session.queries
    assert not left
    assert not Session.all_queries()


def test_a_stop_between_the_last_check_and_the_begin_ends_the_query(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = Session.in_process()
    stream, _ = session.memory_stream(DDL, spool=tmp_path / "sent")
    made = ProcessQuery.__init__

    def stopped(self: ProcessQuery, *given: Any) -> None:
        made(self, *given)
        session.stop()

    monkeypatch.setattr(ProcessQuery, "__init__", stopped)
    with pytest.raises(SessionClosedError, match=r"start\(\) on a session that is over"):
        per_minute(stream).start(MemorySink(), checkpoint=tmp_path / "checkpoint")
    monkeypatch.undo()
    with Session.in_process() as again:  # the checkpoint is free
        stream, _ = again.memory_stream(DDL, spool=tmp_path / "sent")
        per_minute(stream).start(MemorySink(), checkpoint=tmp_path / "checkpoint").stop()


class AtFileCall:
    """Calls a function once, in a thread of its own, before one of the calls of a thread to the file system."""

    thread: ClassVar[int] = 0
    calls_left: ClassVar[int] = -1
    then: ClassVar[Callable[[], None]] = staticmethod(lambda: None)
    hooked: ClassVar[bool] = False

    @classmethod
    def wait_for(cls, number: int, then: Callable[[], None]) -> None:
        """Call `then` before call `number` from here on."""
        cls.thread, cls.calls_left, cls.then = threading.get_ident(), number, staticmethod(then)
        if not cls.hooked:  # Python has no call that removes a hook
            sys.addaudithook(cls.look)
            cls.hooked = True

    @classmethod
    def look(cls, event: str, details: object) -> None:
        """See what the process does."""
        if cls.calls_left < 0 or threading.get_ident() != cls.thread:
            return
        if event in ("open", "os.mkdir", "os.rename", "os.listdir", "os.scandir", "os.remove"):
            cls.calls_left -= 1
            if cls.calls_left < 0:
                other = threading.Thread(target=cls.then)
                other.start()
                other.join(0.2)  # a call that waits for a lock of this thread goes on after it


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_stop_before_any_file_of_a_start_is_a_closed_session(checkpointed: bool, tmp_path: Path, temporary: Path) -> None:
    outcomes = list[bool]()
    for number in range(400):
        session = Session.in_process()
        stream, _ = session.memory_stream(DDL, spool=tmp_path / f"sent-{number}" if checkpointed else None)
        per_minute_of_it = per_minute(stream)
        AtFileCall.wait_for(number, session.stop)
        try:
            query = per_minute_of_it.start(MemorySink(), checkpoint=tmp_path / f"{number}" if checkpointed else None)
        except SessionClosedError:
            outcomes.append(False)
            continue
        was_stopped = AtFileCall.calls_left < 0
        AtFileCall.calls_left = -1
        session.stop()
        assert query.status == "stopped"
        outcomes.append(True)
        if not was_stopped:
            break
    assert outcomes.count(False) > 5, outcomes
    assert outcomes[-1], "the start had more than 400 calls"
    assert not Session.all_queries()


@pytest.mark.parametrize("linger", [None, "10 ms"])
def test_a_sender_says_that_its_session_has_stopped(linger: str | None) -> None:
    threads = threading.active_count()
    with Session.in_process() as session:
        stream, sender = session.memory_stream(DDL, linger=linger)
        sender.send([{"user": 1, "at": 1}])
    calls: list[Callable[[], object]] = [lambda: sender.send([{"user": 1, "at": 1}]), lambda: sender.advance_watermark(5)]
    for call in calls:
        with pytest.raises(SessionClosedError, match=r"into a memory stream that is over .got: a session that has stopped"):
            call()
    sender.close()
    assert threading.active_count() == threads
    calls = [lambda: session.memory_stream(DDL), session.temporary_folder, lambda: per_minute(stream).start(MemorySink())]
    for late in calls:
        with pytest.raises(SessionClosedError, match="on a session that is over"):
            late()


@pytest.mark.parametrize("linger", [None, "10 ms"])
def test_a_sender_into_a_folder_of_ones_own_goes_on(linger: str | None, tmp_path: Path) -> None:
    with Session.in_process() as session:
        _, sender = session.memory_stream(DDL, spool=tmp_path / "sent", linger=linger)
        waiting = sender.send_soon([{"user": 1, "at": 1}])
    assert waiting.result(0) == 0
    assert sender.send([{"user": 2, "at": 2}]) == 1
    sender.close()
    with Session.in_process() as again:
        stream, _ = again.memory_stream(DDL, spool=tmp_path / "sent")
        assert per_minute(stream).collect()["count"].to_pylist() == [1, 1]


def test_a_dropped_session_and_a_cell_that_is_run_twice(tmp_path: Path) -> None:
    def cell() -> tuple[Session, Any]:
        session = Session.in_process()
        stream, _ = session.memory_stream(DDL, spool=tmp_path / "sent")
        return session, per_minute(stream).start(MemorySink(), checkpoint=tmp_path / "checkpoint", name="live")

    session, query = cell()
    with pytest.warns(ResourceWarning, match=r"dropped while its queries run on: 'live'.*Session\.all_queries\(\)"):
        del session, query
        gc.collect()
    with pytest.raises(CheckpointError, match=f"of process {os.getpid()} on .*which is this one") as refused:
        cell()
    hint = str(refused.value).partition("Hint: stop that query: ")[2].partition("; or")[0]
    eval(hint)  # as it is written
    assert not Session.all_queries()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        session, query = cell()
        query.stop()
        del session, query
        gc.collect()
