"""stop() while a micro-batch runs: quiet, and the batch is run again by whoever goes on from the checkpoint."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from krishiv_py import Batches, ForeachBatchSink, ParquetSink, Session
from krishiv_py.spark.setup.jvm import stop_spark
from tests.spark.conftest import per_second, row, sorted_rows

DDL = "user string, at bigint, amount bigint"


@pytest.mark.slow
def test_a_stop_breaks_the_batch_off_without_a_word(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.spark.test_stop", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert run.returncode == 0 and run.stdout.split() == ["stopped", "1"], run.stderr
    assert "Exception" not in run.stderr and "Error" not in run.stderr
    assert sorted_rows(pq.read_table(tmp_path / "out")) == [("a", 0, 1_000, 1, 1)]


def test_the_end_of_a_session_waits_for_no_server_of_accumulators() -> None:
    ended = threading.Event()
    server = SimpleNamespace(shutdown=lambda: ended.wait(60))
    context = SimpleNamespace(_jsc=object(), _accumulatorServer=server, setLogLevel=lambda level: None)
    begun = time.monotonic()
    spark: Any = SimpleNamespace(_sc=context, stop=lambda: server.shutdown())
    stop_spark(spark)
    assert time.monotonic() - begun < 30
    ended.set()


def main(folder: Path) -> None:
    """Stop a query in the middle of its first batch with a result, then let another finish it."""
    begun, batches = threading.Event(), 0

    def slow(frame: object, batch: int) -> None:
        nonlocal batches
        batches += 1
        begun.set()
        session.spark.sql("SELECT java_method('java.lang.Thread', 'sleep', 60000L)").collect()

    with Session.embedded() as session:
        stream, sender = session.memory_stream(DDL, spool=str(folder / "spool"))
        sender.send([row("a", 100), row("a", 5_000)])
        query = per_second(stream).start(ForeachBatchSink(slow), checkpoint=str(folder / "checkpoint"))
        assert begun.wait(60)
        query.stop()
        print(query.status, batches)
        again = per_second(stream).start(
            ParquetSink(str(folder / "out")), checkpoint=str(folder / "checkpoint"), batches=Batches.available_now()
        )
        again.await_termination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
