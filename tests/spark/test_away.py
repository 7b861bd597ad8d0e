"""A query on Spark goes on after things that were away for a while, by the rule and the option of queries in process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import Session, count
from krishiv_py.connectors import OutputBatch, Planned, Source, TableSink
from krishiv_py.errors import OperatorError
from krishiv_py.transient import verdict_of_text
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


def test_words_of_another_process() -> None:
    assert verdict_of_text("OSError: Connection refused") == "transient"
    assert verdict_of_text("operator a, read: SourceError: nobody listens (this may pass)") == "transient"
    assert verdict_of_text("ValueError: the request timed out") == verdict_of_text("KeyError: 503 ") == "unknown"
