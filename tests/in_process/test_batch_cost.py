"""The fixed cost of a small batch, in calls: figures in seconds differ between machines, these do not."""

from __future__ import annotations

import contextlib
import cProfile
import os
import pstats
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import MemorySink, ParquetSink, Session, count, logs
from krishiv_py import sum as total
from krishiv_py.in_process.engine import Engine
from krishiv_py.in_process.query import ProcessQuery
from krishiv_py.logs import BatchTimes, RecentTimes, Watch, unwatch, watch
from krishiv_py.runtime.ranges.folders import FolderSource
from krishiv_py.storage import files
from krishiv_py.storage.store import Store
from krishiv_py.testing import Driver, stream_of

SCHEMA = "user bigint, at bigint, amount bigint"
ARROW = pa.schema([("user", pa.int64()), ("at", pa.int64()), ("amount", pa.int64())])
BATCHES = 200


def built(stream: Any) -> Any:
    """Counts and sums of a minute."""
    return stream.watermark("at", 5_000).key_by("user").tumbling_window(60_000).agg(count(), total("amount"))


def batch(number: int, rows: int) -> pa.RecordBatch:
    """Rows of a few users, in order."""
    i = [number * 20 + n // 10 for n in range(rows)]
    return pa.record_batch([[n * 7 % 50 for n in range(rows)], i, list(range(rows))], schema=ARROW)


def calls(profile: cProfile.Profile) -> int:
    """How many calls were counted, of functions in Python and in C."""
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


def of_batches(monkeypatch: pytest.MonkeyPatch) -> cProfile.Profile:
    """Return a profile of all that the engine in process does."""
    profile, run = cProfile.Profile(), Engine.run

    def profiled(self: Engine) -> None:
        profile.enable()
        run(self)
        profile.disable()

    monkeypatch.setattr(Engine, "run", profiled)
    return profile


@pytest.mark.parametrize("rows", [1, 100])
def test_a_small_batch_takes_few_calls(rows: int) -> None:
    driver, batches = Driver(built(stream_of(SCHEMA))), [batch(n, rows) for n in range(BATCHES + 20)]
    for one in batches[:20]:
        driver.send(one)
    profile = cProfile.Profile()
    profile.enable()
    for one in batches[20:]:
        driver.send(one)
    profile.disable()
    assert calls(profile) / BATCHES < 600


@pytest.mark.parametrize(("spacing_ns", "kept", "most"), [(0, 60, 36), (10**15, 1, 9)])
def test_to_show_the_times_of_batches_takes_few_calls(
    monkeypatch: pytest.MonkeyPatch, spacing_ns: int, kept: int, most: int
) -> None:
    monkeypatch.setattr(logs, "_RECENT_SPACING_NS", spacing_ns)
    counted = []
    for watched in (False, True):
        driver, recent = Driver(built(stream_of(SCHEMA)), name="shown"), RecentTimes("shown")
        with recent if watched else contextlib.nullcontext():
            driver.send(batch(0, 1))
            profile = cProfile.Profile()
            profile.enable()
            for number in range(1, BATCHES):
                driver.send(batch(number, 1))
            profile.disable()
        counted.append(calls(profile) / BATCHES)
        assert len(recent.last()) == (kept if watched else 0)
    assert counted[1] - counted[0] < most, counted


@pytest.mark.parametrize(("watched", "most"), [(False, 1_400), (True, 1_550)])
def test_a_small_batch_of_a_query_with_a_checkpoint_takes_few_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched: bool, most: int
) -> None:
    profile = of_batches(monkeypatch)
    with Session.in_process() as session:
        stream, sender = session.memory_stream(SCHEMA)
        query = built(stream).start(MemorySink(), checkpoint=str(tmp_path / "c"))
        seen = list[BatchTimes]()
        one_watch = Watch(seen.append)
        if watched:
            watch(query.name, one_watch)
        for number in range(BATCHES):
            sender.send(batch(number, 100))
            query.process_all_available()
        ran = query.progress.batch_id + 1
        query.stop()
        unwatch(query.name, one_watch)
    assert len(seen) == (ran if watched else 0)
    assert calls(profile) / ran < most, calls(profile) / ran


def test_sends_that_are_one_batch_take_few_calls_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, together = of_batches(monkeypatch), 25
    with Session.in_process() as session:
        stream, sender = session.memory_stream(SCHEMA)
        query = built(stream).start(MemorySink(), checkpoint=str(tmp_path / "c"))
        assert isinstance(query, ProcessQuery)
        for number in range(40):
            with query._engine.between_batches():
                for n in range(together):
                    sender.send(batch(number * together + n, 1))
            query.process_all_available()
        ran = query.progress.batch_id + 1
        query.stop()
    assert ran < 45
    assert calls(profile) / ran < 1_500 + 25 * together


def test_a_lookup_takes_few_calls() -> None:
    with Session.in_process() as session:
        stream, sender = session.memory_stream(SCHEMA)
        query = stream.watermark("at", 200_000).key_by("user").tumbling_window(60_000).agg(count()).start(MemorySink())
        for number in range(200):
            sender.send(batch(number * 50, 100))
            query.process_all_available()
        assert query.lookup(7).num_rows == 4
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(BATCHES):
            query.lookup(7)
        profile.disable()
        query.stop()
    assert calls(profile) / BATCHES < 750, calls(profile) / BATCHES


def test_files_of_all_batches_wait_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To remove a folder takes milliseconds on some file systems."""
    removed = list[str]()
    monkeypatch.setattr(Store, "delete_folder", lambda _, path: removed.append(path))
    with Session.in_process() as session:
        stream, sender = session.memory_stream(SCHEMA)
        query = built(stream).start(ParquetSink(str(tmp_path / "out")), checkpoint=str(tmp_path / "c"))
        for number in range(5):
            sender.send(batch(number * 4_000, 2))
            query.process_all_available()
        (staging,) = (tmp_path / "out" / "_krishiv_staging").iterdir()
        assert not list(staging.iterdir()) and not removed
        assert len(list((tmp_path / "out").glob("*.parquet"))) == 4
        query.stop()
    assert removed == [str(staging)]


def lines_of_batches_of_a_file(home: Path, known: int, monkeypatch: pytest.MonkeyPatch, *, settles: bool) -> tuple[int, int]:
    """Return how many lines of Python the engine runs for 10 batches of a new file each, and how often it lists the folder."""
    lines, listed, run, listing = 0, 0, Engine._turn, os.listdir

    def each(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return each

    def listdir(path: Any) -> Any:
        nonlocal listed
        listed += str(os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else path).startswith(str(home / "in"))
        return listing(path)

    def traced(self: Engine, *, in_time: bool) -> float | None:
        sys.settrace(each)
        try:
            return run(self, in_time=in_time)
        finally:
            sys.settrace(None)

    def put(number: int) -> None:
        (home / "new").write_text(f'{{"user": {number % 50}, "at": {number}, "amount": 1}}\n')
        (home / "new").rename(home / "in" / f"{number:08d}.json")

    (home / "in").mkdir(parents=True)
    for number in range(known):
        put(number)
    with Session.in_process() as session:
        query = built(session.read_json(str(home / "in"), SCHEMA)).start(MemorySink(), checkpoint=str(home / "c"))
        query.process_all_available()
        os.utime(home / "in", ns=(7, 7))
        query.process_all_available()
        put(known)  # the time of the folder is seen to change
        query.process_all_available()
        with monkeypatch.context() as patched:
            patched.setattr(files, "_SURE_S", 1e9)
            if not settles:
                patched.setattr(files, "_SETTLED_NS", 1 << 62)  # the folder changes before every listing
            patched.setattr(FolderSource, "poll_seconds", 60.0)
            query.process_all_available()  # from here on the folder is looked at only when it is asked to
            patched.setattr(Engine, "_turn", traced)
            patched.setattr(os, "listdir", listdir)
            before = query.progress.batch_id
            for number in range(known + 1, known + 11):
                put(number)
                query.process_all_available()
            assert query.progress.batch_id == before + 10
            query.stop()
    return lines, listed


def test_a_known_file_costs_no_more_than_to_pass_over_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, listed = lines_of_batches_of_a_file(tmp_path / "few", 10, monkeypatch, settles=False)
    many, again = lines_of_batches_of_a_file(tmp_path / "many", 310, monkeypatch, settles=False)
    assert listed == again == 20, "for a batch one to find its file, and one to find no other"
    assert many - few < 200, "the names are compared in C"


def test_a_folder_of_many_files_is_listed_once_for_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MANY", 5)
    few, _ = lines_of_batches_of_a_file(tmp_path / "few", 10, monkeypatch, settles=True)
    many, listed = lines_of_batches_of_a_file(tmp_path / "many", 310, monkeypatch, settles=True)
    assert listed == 10
    assert many - few < 200, "names that were there before are compared in C"
