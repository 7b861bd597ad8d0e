"""A query that Spark ends over a Python process that is too slow, or over what is away, goes on, and says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import cast

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from krishiv_py import Batches, ParquetSink, Session
from krishiv_py.errors import CheckpointError, EnvironmentSetupError, KrishivError
from krishiv_py.spark.query import SparkQueryHandle, patiently
from tests.spark.conftest import per_second, row, sorted_rows

DDL = "user string, at bigint, amount bigint"
PYTHON = """#!/bin/sh
case "$*" in
    *transform_with_state_driver_worker*)
        echo begun >> "{folder}/begun"
        [ $(wc -l < "{folder}/begun") -le 1 ] && exec sleep 60 ;;
esac
exec "{python}" "$@"
"""


class Failed:
    """Stands for a query of Spark's that failed."""

    isActive = False  # noqa: N815

    def __init__(self, words: str, progress: object = None) -> None:
        self.problem = StreamingQueryException(words)
        self.lastProgress = progress

    def exception(self) -> StreamingQueryException:
        """What made it fail."""
        return self.problem

    def awaitTermination(self, timeout: float | None = None) -> None:  # noqa: N802
        """Wait for its end."""
        raise self.problem

    def stop(self) -> None:
        """Stop it."""


SLOW = "Python worker failed to connect back."


@pytest.mark.parametrize(
    ("words", "progress", "starts"),
    [(SLOW, None, 3), (SLOW, object(), 1), ("Python worker exited unexpectedly", None, 1)],
    ids=["always slow", "after a batch", "another reason"],
)
@pytest.mark.filterwarnings("ignore:query 'q'.*started again:RuntimeWarning")
def test_what_fails_again_and_again_is_reported(words: str, progress: object, starts: int) -> None:
    begun: list[Failed] = []

    def start() -> StreamingQuery:
        begun.append(Failed(words, progress))
        return cast("StreamingQuery", begun[-1])

    launched = SparkQueryHandle(start, "q")
    with pytest.raises(StreamingQueryException, match=re.escape(words)):
        launched.await_termination()
    assert len(begun) == starts and launched.exception() is begun[-1].problem and not launched.is_active()


@pytest.mark.filterwarnings("ignore:query 'q'.*started again:RuntimeWarning")
def test_what_was_stopped_is_not_started_again() -> None:
    begun: list[Failed] = []
    failing = threading.Event()

    class Running(Failed):
        def awaitTermination(self, timeout: float | None = None) -> None:  # noqa: N802
            failing.wait(10)
            super().awaitTermination()

    def start() -> StreamingQuery:
        begun.append(Running(SLOW))
        return cast("StreamingQuery", begun[-1])

    launched = SparkQueryHandle(start, "q")
    launched.stop()
    failing.set()
    with pytest.raises(StreamingQueryException):
        launched.await_termination()
    assert len(begun) == 1


class Runs:
    """Stands for a query of Spark's that runs."""

    isActive = True  # noqa: N815
    lastProgress = None  # noqa: N815

    def __init__(self) -> None:
        self.ended = threading.Event()

    def exception(self) -> None:
        """Nothing made it fail."""

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802
        """Wait for its end."""
        return self.ended.wait(timeout)

    def stop(self) -> None:
        """Stop it."""
        self.isActive = False
        self.ended.set()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:query 'q' tries again:RuntimeWarning")
def test_what_is_away_is_waited_for_within_the_limit() -> None:
    begun, notes, prepared = list[object](), list[str](), list[int]()

    def start() -> StreamingQuery:
        begun.append(Failed("away") if len(begun) < 3 else Runs())
        return cast("StreamingQuery", begun[-1])

    def prepare() -> None:
        prepared.append(1)
        if len(prepared) == 2:
            raise CheckpointError("gone", transient=True)

    def passing(problem: BaseException) -> KrishivError | None:
        return CheckpointError(str(problem))

    launched = SparkQueryHandle(start, "q", 60, passing, notes.append, prepare)
    until = time.monotonic() + 30
    while (not notes or notes[-1]) and time.monotonic() < until:
        assert launched.is_active() and launched.exception() is None
        time.sleep(0.01)
    assert (len(begun), len(prepared)) == (4, 4)
    assert notes == ["away", "away", "gone", "away", ""]
    launched.stop()
    assert not launched.is_active() and launched.exception() is None


@pytest.mark.filterwarnings("ignore:query 'q' tries again:RuntimeWarning")
def test_the_limit_for_what_is_away_counts_from_the_first_failure() -> None:
    begun: list[Failed] = []

    def start() -> StreamingQuery:
        begun.append(Failed("away"))
        return cast("StreamingQuery", begun[-1])

    launched = SparkQueryHandle(start, "q", 1, lambda problem: CheckpointError(str(problem)))
    with pytest.raises(StreamingQueryException, match="away"):
        launched.await_termination()
    assert 2 < len(begun) < 12 and launched.exception() is begun[-1].problem and not launched.is_active()


@pytest.mark.filterwarnings("ignore:query 'q' tries again:RuntimeWarning")
def test_a_stop_ends_the_waiting_for_a_start() -> None:
    launched = SparkQueryHandle(
        lambda: cast("StreamingQuery", Failed("away")), "q", 600, lambda problem: CheckpointError(str(problem))
    )
    time.sleep(1)
    assert launched.is_active()
    launched.stop()
    assert not launched.is_active() and launched.exception() is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_ever_where_an_end_cannot_be_looked_at() -> None:
    def passing(problem: BaseException) -> KrishivError | None:
        raise ZeroDivisionError

    launched = SparkQueryHandle(lambda: cast("StreamingQuery", Failed("away")), "q", 600, passing)
    with pytest.raises(StreamingQueryException, match="away"):
        launched.await_termination()
    assert not launched.is_active() and launched.exception() is not None


@pytest.mark.filterwarnings("ignore:query 'q'.*started.*again:RuntimeWarning")
def test_a_server_gets_more_time_for_its_process() -> None:
    late = PySparkException("(java.net.SocketTimeoutException) Timed out while waiting for the Python worker to connect back")
    refused, query = PySparkException("something else"), cast("StreamingQuery", Failed(SLOW))
    given: list[PySparkException | None] = [late, late, None]

    def begin() -> StreamingQuery:
        actual = given.pop(0)
        if actual is not None:
            raise actual
        return query

    assert patiently(begin, "q") is query and not given
    given = [late, refused]
    with pytest.raises(PySparkException, match="something else"):
        patiently(begin, "q")
    given = [late] * 5
    with pytest.raises(EnvironmentSetupError, match=r"no Python process begins in time.*5 attempts.*Hint"):
        patiently(begin, "q")
    assert not given


@pytest.mark.slow
def test_a_query_whose_python_is_slow_to_begin(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.test_slow_python", str(tmp_path)]
    python = tmp_path / "python"
    python.write_text(PYTHON.format(folder=tmp_path, python=sys.executable))
    python.chmod(0o755)
    env = {**os.environ, "PYSPARK_PYTHON": str(python)}
    run = subprocess.run(command, capture_output=True, text=True, timeout=180, env=env)
    assert run.returncode == 0 and run.stdout.split() == ["1"], run.stdout + run.stderr
    assert sorted_rows(pq.read_table(tmp_path / "out")) == [("a", 0, 1_000, 1, 1)]


def main(folder: Path) -> None:
    """A query to its end; says how often it was started again."""
    with Session.embedded() as session, warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        stream, sender = session.memory_stream(DDL, spool=str(folder / "spool"))
        sender.send([row("a", 100), row("a", 5_000)])
        query = per_second(stream).start(
            ParquetSink(str(folder / "out")), checkpoint=str(folder / "checkpoint"), batches=Batches.available_now()
        )
        query.await_termination()
        print(sum("started again" in str(one.message) for one in given))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
