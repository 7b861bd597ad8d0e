"""A query on Spark goes on after things that were away for a while, by the rule and the option of queries in process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import MemorySink, ParquetSink, Session, count
from krishiv_py.connectors import OutputBatch, Planned, Source, TableSink
from krishiv_py.errors import CheckpointError, OperatorError
from krishiv_py.failures.transient import verdict_of_text
from tests.in_process.test_away import Flaky

pytestmark = pytest.mark.filterwarnings("ignore:.*(tries|is tried) again")


class Patient:
    """Lets a session wait for so long, as ``retry_for`` of its builder does."""

    def __init__(self, session: Session, limit_s: float) -> None:
        self._runner, self._limit_s = session._runner, limit_s

    def __enter__(self) -> None:
        self._before, self._runner.retry_s = self._runner.retry_s, self._limit_s

    def __exit__(self, *problem: object) -> None:
        self._runner.retry_s = self._before


class Committed(TableSink):
    """Says after a batch that it did not arrive, although it has."""

    def __init__(self) -> None:
        self.batches, self.fails = dict[int, int](), True

    def last_committed(self, batch: OutputBatch) -> int | None:
        """Return the last batch that it holds."""
        return max(self.batches, default=None)

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """Take a batch, and answer once with a broken connection."""
        assert batch.batch_id not in self.batches
        self.batches[batch.batch_id] = sum(table.num_rows for table in tables)
        if self.fails and self.batches[batch.batch_id]:
            self.fails = False
            raise ConnectionResetError("the answer was lost")


class Away(Source):
    """Numbers from 0, ten a batch; planning and reading fail over a file that says so."""

    def __init__(self, folder: Path, last: int) -> None:
        self.folder, self.last, self.schema = str(folder), last, "at bigint"

    def _fail(self, step: str) -> None:
        place = Path(self.folder) / step
        if place.exists():
            left = int(place.read_text())
            place.write_text(str(left - 1)) if left > 1 else place.unlink()
            raise ConnectionRefusedError(f"{step}: nobody listens")

    def plan(self, last: Any) -> Planned | None:
        """Plan ten more."""
        begin = 0 if last is None else last
        if begin >= self.last:
            return None
        if begin:
            self._fail("plan")
        return Planned(begin + 10, [begin])

    def read(self, planned: Any, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Read ten."""
        if planned == 30:
            self._fail("read")
        yield pa.table({"at": pa.array(range(planned, planned + 10), pa.int64())})


def test_a_sink_that_was_away_has_every_row_once(session: Session) -> None:
    sink = Flaky(ConnectionResetError(), TimeoutError("no answer"))
    with Patient(session, 60):
        stream, sender = session.memory_stream("k string, at bigint")
        query = stream.watermark("at", 0).key_by("k").tumbling_window(10).agg(count()).start(sink)
    for moment in (range(0, 50, 2), range(50, 100, 2)):
        sender.send([{"k": k, "at": each} for each in moment for k in "abc"])
        query.process_all_available()
    assert query.progress.trouble == "" and query.progress.rows == 150 and not sink.problems
    query.stop()
    rows = [row for batch in sink.batches.values() for row in batch]
    assert sorted((row["k"], row["window_start"], row["count"]) for row in rows) == [
        (k, start, 5) for k in "abc" for start in range(0, 90, 10)
    ]


def test_a_batch_whose_answer_was_lost_is_not_written_twice(session: Session) -> None:
    sink = Committed()
    with Patient(session, 60):
        stream, sender = session.memory_stream("at bigint")
        query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(sink)
    for moment in range(0, 100, 20):
        sender.send([{"at": moment}, {"at": moment + 10}])
        query.process_all_available()
    query.stop()
    assert sum(sink.batches.values()) == 9 and not sink.fails


@pytest.mark.slow
@pytest.mark.parametrize("step", ["plan", "read"])
def test_a_source_that_was_away_is_planned_and_read_again(session: Session, tmp_path: Path, step: str) -> None:
    (tmp_path / step).write_text("2")
    sink = Flaky()
    with Patient(session, 60):
        stream = session.read_source(Away(tmp_path, 100))
        query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(sink)
    until = time.monotonic() + 120
    while query.status == "running" and query.progress.rows < 100 and time.monotonic() < until:
        time.sleep(0.1)
    query.process_all_available()
    query.stop()
    assert not (tmp_path / step).exists()
    rows = [row for batch in sink.batches.values() for row in batch]
    assert [(row["window_start"], row["count"]) for row in rows] == [(start, 10) for start in range(0, 90, 10)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("problem", "passes", "tried"), [(ValueError("timed out"), False, 1), (TimeoutError("no answer"), True, 2)]
)
def test_the_limit_holds_and_what_stays_wrong_is_not_tried(
    session: Session, problem: Exception, passes: bool, tried: int
) -> None:
    sink = Flaky(*[problem] * 1_000)
    with Patient(session, 1.0):
        stream, sender = session.memory_stream("at bigint")
        query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(sink)
    sender.send([{"at": 1}, {"at": 30}])
    with pytest.raises(OperatorError) as failed:
        query.process_all_available()
    assert failed.value.transient == passes and query.status == "failed"
    assert 1_000 - len(sink.problems) >= tried and (passes or len(sink.problems) == 999)


def test_a_stop_ends_the_waiting(session: Session) -> None:
    with Patient(session, 600):
        stream, sender = session.memory_stream("at bigint")
        query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(Flaky(*[TimeoutError()] * 1_000))
    sender.send([{"at": 1}, {"at": 30}])
    until = time.monotonic() + 60
    while not query.progress.trouble and time.monotonic() < until:
        threading.Event().wait(0.05)
    assert query.progress.trouble and query.progress.stuck["away"]
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < 30 and query.status == "stopped"


class Mount:
    """A folder for a checkpoint that goes away and comes back, with nothing of what was written in its place meanwhile."""

    def __init__(self, home: Path) -> None:
        self.there, self.away = home / "mount", home / "away"
        self.there.mkdir()

    def go(self, back_in_s: float | None = None) -> None:
        """Go away, and come back if a time is given."""
        self.there.rename(self.away)
        if back_in_s is not None:
            threading.Timer(back_in_s, self.come_back).start()

    def come_back(self) -> None:
        """Come back."""
        if self.there.exists():
            self.there.rename(self.there.with_name(f"below {time.monotonic_ns()}"))
        self.away.rename(self.there)


class GoesAway(Flaky):
    """Lets a mount go away for two seconds when it has got its second batch with rows."""

    def __init__(self, mount: Mount) -> None:
        super().__init__()
        self.mount, self.left = mount, 2

    def write_tables(self, batch: OutputBatch, tables: Sequence[pa.Table]) -> None:
        """Take a batch."""
        super().write_tables(batch, tables)
        self.left -= bool(self.batches[batch.batch_id])
        if not self.left:
            self.left = -1
            self.mount.go(back_in_s=2)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("moment", ["between batches", "while a batch computes", "while a batch is published"])
def test_a_checkpoint_that_was_away_is_gone_on_from(session: Session, tmp_path: Path, moment: str) -> None:
    """Spark writes its own log there, and ends the query; what it writes in its place meanwhile counts for nothing."""
    mount, flag = Mount(tmp_path), tmp_path / "flag"
    there, away = str(mount.there), str(mount.away)

    def goes(batch: pa.Table) -> pa.Table:
        if flag.exists():
            flag.unlink()
            Path(there).rename(away)
        return batch

    sink: Any = GoesAway(mount) if moment == "while a batch is published" else MemorySink()  # over Spark Connect it stays here
    with Patient(session, 60):
        stream, sender = session.memory_stream("at bigint", spool=str(tmp_path / "spool"))
        plan = stream.map_batches(goes) if moment == "while a batch computes" else stream
        counts = plan.watermark("at", 0).tumbling_window(10).agg(count())
        query = counts.start(sink, checkpoint=str(mount.there / "check"))
    for begin in range(0, 120, 30):
        if moment == "between batches" and begin == 30:
            mount.go(back_in_s=2)
        if moment == "while a batch computes" and begin == 30:
            flag.touch()
            threading.Timer(3, lambda: away_is_back(mount, flag)).start()
        sender.send([{"at": moment_sent} for moment_sent in range(begin, begin + 30, 5)])
        query.process_all_available()
    assert query.status == "running" and query.progress.rows == 24
    until = time.monotonic() + 30
    while query.progress.trouble and time.monotonic() < until:
        time.sleep(0.1)
    assert query.progress.trouble == ""
    query.stop()
    assert not mount.away.exists() and not flag.exists()
    rows = query.results().to_pylist() if isinstance(sink, MemorySink) else [row for b in sink.batches.values() for row in b]
    assert [(row["window_start"], row["count"]) for row in rows] == [(start, 2) for start in range(0, 110, 10)]


def away_is_back(mount: Mount, flag: Path) -> None:
    """Bring a mount back once a task has let it go."""
    while flag.exists():
        time.sleep(0.05)
    time.sleep(1)
    mount.come_back()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("part", ["out", "check", "spool"])
def test_a_start_is_refused_while_a_mount_is_missing(session: Session, tmp_path: Path, part: str) -> None:
    """As in process, where tests/in_process/test_away.py has more of it: nothing is written in the place of the mount."""
    mount = Mount(tmp_path)
    places = {name: str((mount.there if name == part else tmp_path) / name) for name in ("out", "check", "spool")}

    def run(*moments: int) -> None:
        stream, sender = session.memory_stream("at bigint", spool=places["spool"])
        counts = stream.watermark("at", 0).tumbling_window(10).agg(count())
        with counts.start(ParquetSink(places["out"]), checkpoint=places["check"]) as query:
            sender.send([{"at": moment} for moment in moments])
            query.process_all_available()

    run(1, 2, 12)
    run(25)
    mount.go()
    with pytest.raises(CheckpointError, match=r"(is gone|was made again).*Hint: mount (it|the folder)") as gone:
        run(35)
    assert gone.value.transient
    assert part == "spool" or not [path for path in mount.there.rglob("*") if path.is_file()]
    mount.come_back()
    run(35)
    files = [path for path in Path(places["out"]).glob("*.parquet")]
    written = [(row["window_start"], row["count"]) for path in files for row in pq.read_table(path).to_pylist()]
    assert sorted(written) == [(0, 2), (10, 1), (20, 1)]


@pytest.mark.slow
def test_a_checkpoint_that_stays_away_ends_the_query_after_the_limit(session: Session, tmp_path: Path) -> None:
    mount = Mount(tmp_path)
    with Patient(session, 2):
        stream, sender = session.memory_stream("at bigint", spool=str(tmp_path / "spool"))
        counts = stream.watermark("at", 0).tumbling_window(10).agg(count())
        query = counts.start(Flaky(), checkpoint=str(mount.there / "check"))
    sender.send([{"at": 1}, {"at": 30}])
    query.process_all_available()
    mount.go()
    sender.send([{"at": 40}])
    with pytest.raises(CheckpointError, match=r"its checkpoint is gone.*Hint: mount it") as failed:
        query.process_all_available()
    assert failed.value.transient and query.status == "failed"
    mount.come_back()
    sink = Flaky()
    with counts.start(sink, checkpoint=str(mount.there / "check")) as again:
        again.process_all_available()
    assert [(row["window_start"], row["count"]) for batch in sink.batches.values() for row in batch] == [(30, 1)]


def test_a_stop_ends_the_waiting_for_a_checkpoint(session: Session, tmp_path: Path) -> None:
    mount = Mount(tmp_path)
    with Patient(session, 600):
        stream, sender = session.memory_stream("at bigint", spool=str(tmp_path / "spool"))
        counts = stream.watermark("at", 0).tumbling_window(10).agg(count())
        query = counts.start(Flaky(), checkpoint=str(mount.there / "check"))
    sender.send([{"at": 1}, {"at": 30}])
    query.process_all_available()
    mount.go()
    sender.send([{"at": 40}])
    until = time.monotonic() + 60
    while not query.progress.trouble and time.monotonic() < until:
        time.sleep(0.05)
    assert query.progress.stuck["away"] and [query.status] == ["running"]
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < 30 and [query.status] == ["stopped"]
    mount.come_back()


def test_words_of_another_process() -> None:
    assert verdict_of_text("OSError: Connection refused") == "transient"
    assert verdict_of_text("operator a, read: SourceError: nobody listens (this may pass)") == "transient"
    assert verdict_of_text("ValueError: the request timed out") == verdict_of_text("KeyError: 503 ") == "unknown"
