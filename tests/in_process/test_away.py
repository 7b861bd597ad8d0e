"""A query goes on after things that were away for a while, and does not try again what stays wrong."""

from __future__ import annotations

import errno
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import MemorySink, ParquetSink, Session, SideOutputLateEventHandler, SpoolError, count
from krishiv_py.cli.main import main
from krishiv_py.connectors import OutputBatch, TableSink
from krishiv_py.errors import CheckpointError, KrishivError, OperatorError, SourceError
from krishiv_py.failures.retrying import Backoff
from krishiv_py.failures.transient import verdict
from krishiv_py.runtime.checkpoint.notes import CheckpointNotes

pytestmark = pytest.mark.filterwarnings("ignore:.*(tries|is tried) again")

HOLDER = """
import sys
from krishiv_py import MemorySink, ParquetSink, Session, SideOutputLateEventHandler, SpoolError, count
session = Session.in_process()
stream, _ = session.memory_stream("at bigint", spool=sys.argv[2])
stream.watermark("at", 0).tumbling_window(10).agg(count()).start(MemorySink(), checkpoint=sys.argv[1])
print("holds", flush=True)
sys.stdin.readline()
session.stop()
"""
JOBS = """
import os, pathlib
from krishiv_py import ParquetSink, count
HOME = pathlib.Path(__file__).parent

def plan(session):
    rows = session.read_json(HOME / "in", "at bigint", streaming=True)
    return rows.watermark("at", 0).tumbling_window(10).agg(count())

def lines(session):
    return plan(session).to(ParquetSink(HOME / "out"))

def odd(session):
    def fails(batch):
        raise RuntimeError("nobody knows")
    return session.read_json(HOME / "in", "at bigint", streaming=True).map_batches(fails).to(ParquetSink(HOME / "out"))

def unreachable(session):
    raise ConnectionRefusedError("the configuration is away")
"""


class Flaky(TableSink):
    """Fails so many times, after it has taken rows, then holds each batch once."""

    def __init__(self, *problems: BaseException) -> None:
        self.problems, self.batches = list(problems), dict[int, list[dict[str, Any]]]()

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """Take a batch."""
        self.batches[batch.batch_id] = [row for table in tables for row in table.to_pylist()]
        if self.problems and self.batches[batch.batch_id]:
            raise self.problems.pop(0)


def patient(limit: str = "1 min", workers: int = 1) -> Session:
    """A session that waits for so long."""
    return Session.builder().engine("in-process").workers(workers).retry_for(limit).get_or_create()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "problem",
    [
        ConnectionResetError(),
        TimeoutError("no answer"),
        OSError(errno.ESTALE, "stale"),
        OSError(errno.ENOSPC, "full"),
        OSError("AWS Error NETWORK_CONNECTION during PutObject: curlCode: 7"),
    ],
    ids=["reset", "timeout", "stale", "full", "s3"],
)
def test_a_batch_that_is_broken_off_is_run_again_with_the_same_rows(problem: OSError, workers: int) -> None:
    sink = Flaky(problem, problem)
    with patient(workers=workers) as session:
        stream, sender = session.memory_stream("k string, at bigint")
        query = stream.watermark("at", 0).key_by("k").tumbling_window(10).agg(count()).start(sink)
        for moment in range(0, 100, 2):
            sender.send([{"k": k, "at": moment} for k in "abc"])
        query.process_all_available()
        assert query.lookup("a")["count"].to_pylist() == [5]
        assert query.lookup("a", last=1)["window_start"].to_pylist() == [80]
        assert query.progress.rows == 150
    rows = [row for batch in sink.batches.values() for row in batch]
    assert sorted((row["k"], row["window_start"], row["count"]) for row in rows) == [
        (k, start, 5) for k in "abc" for start in range(0, 90, 10)
    ]


@pytest.mark.parametrize(
    "problem", [ValueError("bad"), KeyError("k"), RuntimeError("odd"), PermissionError(errno.EACCES, "no")]
)
def test_what_does_not_pass_is_not_tried_again(problem: BaseException) -> None:
    sink = Flaky(problem, ConnectionResetError())
    with patient() as session:
        stream, sender = session.memory_stream("at bigint")
        query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(sink)
        sender.send([{"at": 1}, {"at": 30}])
        with pytest.raises(OperatorError) as failed:
            query.process_all_available()
    assert not failed.value.transient and len(sink.problems) == 1


def test_the_limit_counts_from_the_first_failure() -> None:
    with patient("1 s") as session:
        stream, sender = session.memory_stream("at bigint")
        query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(Flaky(*[TimeoutError()] * 100))
        sender.send([{"at": 1}, {"at": 30}])
        with pytest.raises(OperatorError) as failed:
            query.process_all_available()
    assert failed.value.transient and query.status == "failed"


def test_pauses_grow_within_the_limit_and_begin_again() -> None:
    backoff, now, pauses = Backoff(300), 0.0, list[float]()
    while (pause := backoff.pause_s(now)) is not None:
        pauses.append(pause)
        now += pause
    assert 298 < sum(pauses) <= 300 and 20 < len(pauses) < 60 and max(pauses) <= 15
    backoff.over()
    assert (backoff.pause_s(now) or 9) <= 0.2
    assert Backoff(0).pause_s(0.0) is None


def test_a_folder_that_is_not_mounted_is_waited_for(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    (tmp_path / "away/in").mkdir(parents=True)
    pq.write_table(pa.table({"at": pa.array([1, 30], pa.int64())}), tmp_path / "away/in/1.parquet")
    (tmp_path / "away").rename(mount)
    sink = MemorySink()
    with patient() as session:
        stream = session.read_parquet(mount / "in", "at bigint", streaming=True)
        query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(sink)
        query.process_all_available()
        mount.rename(tmp_path / "away")
        while not query.progress.trouble:
            threading.Event().wait(0.02)
        pq.write_table(pa.table({"at": pa.array([50], pa.int64())}), tmp_path / "away/in/2.parquet")
        (tmp_path / "away").rename(mount)
        query.process_all_available()
        assert query.results()["window_start"].to_pylist() == [0, 30]
    with patient("0 s") as session, pytest.raises(SourceError) as missing:
        session.read_parquet(tmp_path / "none", "at bigint", streaming=True)
    assert missing.value.transient


@pytest.mark.parametrize("below", ["out", ""], ids=["a folder below the mount", "the mount itself"])
@pytest.mark.parametrize("is_empty", [False, True], ids=["nothing is there", "an empty folder is there"])
def test_a_folder_of_results_that_is_not_mounted_is_waited_for(tmp_path: Path, below: str, is_empty: bool) -> None:
    """Nothing is written at the place of the mount meanwhile: it would be hidden when the mount is back."""
    mount, away = tmp_path / "mount", tmp_path / "away"
    mount.mkdir()
    with patient() as session:
        stream, sender = session.memory_stream("at bigint")
        plan = stream.watermark("at", 0).tumbling_window(10).agg(count())
        query = plan.start(ParquetSink(mount / below), checkpoint=str(tmp_path / "check"))
        for begin in range(0, 90, 30):
            mount.rename(away)
            if is_empty:
                mount.mkdir()
            sender.send([{"at": moment} for moment in range(begin, begin + 30, 5)])
            while not query.progress.trouble:
                threading.Event().wait(0.02)
            if is_empty:
                assert list(mount.rglob("*")) == []
                mount.rmdir()
            away.rename(mount)
            query.process_all_available()
        query.stop()
    written = [pq.read_table(file) for file in sorted((mount / below).glob("*.parquet"))]
    assert sorted(start for table in written for start in table["window_start"].to_pylist()) == list(range(0, 80, 10))
    assert {rows for table in written for rows in table["count"].to_pylist()} == {2}


class Mounted:
    """A job over a spool, a checkpoint and folders of results and late rows, each of which may be on a mount that goes."""

    def __init__(self, home: Path, on_mount: str) -> None:
        self.home, self.mount, self.away = home, home / "mount", home / "away"
        self.mount.mkdir()
        self.places = {name: str(home / name) for name in ("spool", "check", "out", "late")}
        self.places[on_mount] = str(self.mount / on_mount)

    def run(self, *moments: int, limit: str = "1 min", **other: str) -> None:
        """Send rows to a query that goes on from the checkpoint; `other` folders take the place of its own."""
        used = {**self.places, **other}
        with patient(limit) as session:
            stream, sender = session.memory_stream("at bigint", spool=used["spool"])
            late = SideOutputLateEventHandler(ParquetSink(used["late"]))
            plan = stream.watermark("at", 0).with_late_event_handler(late).tumbling_window(10).agg(count())
            query = plan.start(ParquetSink(used["out"]), checkpoint=used["check"])
            sender.send([{"at": moment} for moment in moments])
            query.process_all_available()
            query.stop()

    def results(self, name: str = "out") -> list[tuple[int, int]]:
        """The results in the folder of that name."""
        files = sorted(Path(self.places.get(name, name)).glob("*.parquet"))
        return sorted((r["window_start"], r["count"]) for file in files for r in pq.read_table(file).to_pylist())


PARTS = ("out", "late", "check", "spool")


@pytest.mark.one_in(7)
@pytest.mark.parametrize("is_empty", [False, True], ids=["nothing is there", "an empty folder is there"])
@pytest.mark.parametrize("part", PARTS)
def test_a_restart_waits_for_a_mount_and_writes_nothing_in_its_place(tmp_path: Path, part: str, is_empty: bool) -> None:
    job = Mounted(tmp_path, part)
    job.run(1, 2, 12)
    job.run(25)
    job.mount.rename(job.away)
    if is_empty:
        job.mount.mkdir()

    def back() -> None:
        if job.mount.exists():
            there.extend(file for file in job.mount.rglob("*") if file.is_file() and part != "spool")
            job.mount.rename(tmp_path / "below")
        job.away.rename(job.mount)

    there = list[Path]()
    timer = threading.Timer(1, back)
    timer.start()
    if part == "spool":  # its sender was made before the mount came back: it writes into its own stream alone
        with pytest.raises(SpoolError, match="another one than before"):
            job.run(35)
    else:
        job.run(35)
    timer.join()
    assert there == []
    job.run(45, 3)
    expected = [(0, 2), (10, 1), (20, 1), (30, 1)]
    assert job.results() == (expected if part != "spool" else expected[:3])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("part", PARTS)
def test_a_start_ends_where_a_mount_stays_away_and_the_hint_can_be_followed(tmp_path: Path, part: str) -> None:
    job = Mounted(tmp_path, part)
    job.run(1, 2, 12)
    job.run(25)
    job.mount.rename(job.away)
    with pytest.raises(CheckpointError, match=r"is gone|was made again") as gone:
        job.run(35, limit="1 s")
    assert gone.value.transient and re.search(r"Hint: mount (it|the folder)", str(gone.value))
    if part in ("out", "late"):  # removed on purpose
        command = re.search("`(mkdir -p .*)`", str(gone.value))
        assert command is not None
        subprocess.run(command[1], shell=True, check=True)
        job.run(35, 3)
        assert job.results() == [(20, 1)] if part == "out" else [(0, 2), (10, 1), (20, 1)]
    elif part == "check":
        job.run(35, 50, out=f"{tmp_path}/other", late=f"{tmp_path}/other late")
        assert job.results(f"{tmp_path}/other") == [(0, 2), (10, 1), (20, 1), (30, 1)]
    else:
        job.run(35, spool=f"{tmp_path}/other")
        assert job.results() == [(0, 2), (10, 1), (20, 1)]


def trimmed(job: Mounted) -> int:
    """Return how many sends a sender of the job removes."""
    with Session.in_process() as session:
        return session.memory_stream("at bigint", spool=job.places["spool"])[1].trim()


@pytest.mark.parametrize("is_empty", [False, True], ids=["nothing is there", "an empty folder is there"])
@pytest.mark.parametrize("is_mount", [False, True], ids=["below the mount", "the mount itself"])
def test_sends_stay_while_the_checkpoint_of_their_reader_is_away(tmp_path: Path, is_mount: bool, is_empty: bool) -> None:
    job = Mounted(tmp_path, "check")
    if is_mount:
        job.places["check"] = str(job.mount)
    job.run(1, 2, 12)
    job.run(25)
    job.mount.rename(job.away)
    if is_empty:
        job.mount.mkdir()
    if is_empty or not is_mount:  # a place of a mount does not go with it
        with pytest.raises(CheckpointError, match=r"is gone.*Hint: mount it") as gone:
            trimmed(job)
        assert gone.value.transient
    shutil.rmtree(job.mount, ignore_errors=True)
    job.away.rename(job.mount)
    job.run(35)
    assert job.results() == [(0, 2), (10, 1), (20, 1)]


def test_a_checkpoint_that_was_removed_holds_no_sends_back(tmp_path: Path) -> None:
    job = Mounted(tmp_path, "check")
    for moment in range(40):
        job.run(moment)
    job.run(50, out=f"{tmp_path}/other", late=f"{tmp_path}/other late", check=f"{tmp_path}/second")
    assert trimmed(job) == 0
    shutil.rmtree(tmp_path / "second")
    assert trimmed(job) > 0
    shutil.rmtree(job.places["check"])
    Path(job.places["check"]).mkdir()
    with pytest.raises(CheckpointError) as gone:  # as where a mount is missing; the hint says what to write if it is not
        trimmed(job)
    command = re.search("`(rm .*)`", str(gone.value))
    assert command is not None
    subprocess.run(command[1], shell=True, check=True)
    assert trimmed(job) == 0


def test_a_checkpoint_that_goes_with_its_session_holds_no_sends_back(tmp_path: Path) -> None:
    for _ in range(2):
        with Session.in_process() as session:
            stream, sender = session.memory_stream("at bigint", spool=str(tmp_path / "spool"))
            query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(MemorySink())
            for moment in range(40):
                sender.send([{"at": moment}])
                query.process_all_available()
            assert sender.trim() > 0
            query.stop()


def test_a_checkpoint_of_an_earlier_version_makes_the_folder_that_is_missing(tmp_path: Path) -> None:
    job = Mounted(tmp_path, "out")
    job.run(1, 12)
    notes = CheckpointNotes(job.places["check"])
    assert notes.folders() == [job.places["out"], job.places["late"]]
    note = notes.plan() or {}
    notes.change({name: one for name, one in note.items() if name != "folders"})
    job.mount.rename(job.away)
    job.run(25)
    assert job.results() == [(10, 1)] and notes.folders() == note["folders"]


def test_a_checkpoint_that_was_moved_knows_its_folders_and_one_of_a_savepoint_makes_them(tmp_path: Path) -> None:
    job = Mounted(tmp_path, "out")
    job.run(1, 12)
    with patient() as session:
        session.savepoint(job.places["check"], f"{tmp_path}/saved")
        moved = session.move(job.places["check"], "spark")
    assert CheckpointNotes(moved).folders() == [job.places["out"], job.places["late"]]
    job.mount.rename(job.away)
    with patient("0 s") as session:
        stream, _ = session.memory_stream("at bigint", spool=job.places["spool"])
        late = SideOutputLateEventHandler(ParquetSink(job.places["late"]))
        plan = stream.watermark("at", 0).with_late_event_handler(late).tumbling_window(10).agg(count())
        sink, new = ParquetSink(job.places["out"]), f"{tmp_path}/new"
        plan.start(sink, checkpoint=new, savepoint=f"{tmp_path}/saved").stop()
    assert CheckpointNotes(new).folders() == [job.places["out"], job.places["late"]]


def test_a_checkpoint_whose_holder_is_ending_is_waited_for(tmp_path: Path) -> None:
    check, spool = str(tmp_path / "check"), str(tmp_path / "spool")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, check, spool], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "holds\n"
        with patient("0 s") as session:
            stream, _ = session.memory_stream("at bigint", spool=spool)
            plan = stream.watermark("at", 0).tumbling_window(10).agg(count())
            with pytest.raises(CheckpointError, match="in use") as held:
                plan.start(MemorySink(), checkpoint=check)
            assert held.value.transient
        threading.Timer(1, holder.stdin.close).start()
        with patient() as session:
            stream, _ = session.memory_stream("at bigint", spool=spool)
            query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(MemorySink(), checkpoint=check)
            with pytest.raises(CheckpointError, match="in use") as held:  # of this process: it would wait for itself
                stream.watermark("at", 0).tumbling_window(10).agg(count()).start(MemorySink(), checkpoint=check)
            assert not held.value.transient
            query.stop()


@pytest.fixture
def job(tmp_path: Path) -> Callable[[str], int]:
    """Runs a job over a folder of lines with a checkpoint, and gives its exit code."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.json").write_text('{"at": 1}\n{"at": 30}\n')
    (tmp_path / "away_jobs.py").write_text(JOBS)

    def run(name: str) -> int:
        more = ["--until-idle", "--checkpoint", str(tmp_path / "check"), "--retry-for", "1 s"]
        return main(["run", f"{tmp_path}/away_jobs.py:{name}", *more])

    return run


def test_a_line_that_cannot_be_read_ends_with_2(job: Callable[[str], int], tmp_path: Path) -> None:
    assert job("lines") == 0
    (tmp_path / "in/2.json").write_text("no line of JSON\n")
    assert [job("lines"), job("lines")] == [2, 2]


def test_what_fails_at_the_same_batch_again_ends_with_2(job: Callable[[str], int]) -> None:
    assert [job("odd"), job("odd"), job("odd")] == [1, 2, 2]


def test_what_is_away_while_a_job_is_made_ends_with_1(job: Callable[[str], int]) -> None:
    assert job("unreachable") == 1


def test_verdicts_follow_from_causes() -> None:
    def of(problem: BaseException, cause: BaseException | None = None) -> str:
        try:
            raise problem from cause
        except BaseException as raised:  # whatever the case is
            return verdict(raised)

    class ReadTimeout(Exception):  # noqa: N818  # as clients name it
        """As clients of the web have it."""

    class OperationalError(Exception):
        """As drivers of databases have it."""

        def __init__(self, sqlstate: str | None) -> None:
            self.sqlstate = sqlstate

    assert of(OperatorError("a sink failed"), ReadTimeout()) == "transient"
    assert of(OperatorError("a sink failed"), KeyError("x")) == of(OperatorError("no cause")) == "lasting"
    assert of(OperatorError("a sink failed"), RuntimeError()) == of(RuntimeError()) == "unknown"
    assert [of(OperationalError(code)) for code in (None, "57P01", "40P01", "25006", "53300")] == ["transient"] * 5
    assert of(OperationalError("42P01")) == "unknown"
    assert of(SourceError("away", transient=True), ValueError()) == "transient"
    assert of(OSError("When writing: AWS Error ACCESS_DENIED during PutObject")) == "lasting"
    assert not KrishivError("anything").transient
