"""A PostgreSQL that goes away and comes back: while a query starts, while it runs, and for longer than it is waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import PostgresSink, Session, count
from krishiv_py.errors import OperatorError
from tests.spark.test_away import Patient
from tests.tables.server import Server, programs, running

pytestmark = pytest.mark.filterwarnings("ignore:.*(tries|is tried) again")

JOB = """
import os
from krishiv_py import PostgresSink, count

def orders(session):
    rows = session.read_parquet(os.environ["IN"], "user string, at bigint", streaming=True)
    return rows.watermark("at", 0).key_by("user").tumbling_window(10).agg(count()).to(PostgresSink(os.environ["TO"], "counts"))
"""


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server that a test may stop."""
    if programs() is None:
        pytest.skip("PostgreSQL is not installed (no initdb). Hint: bash scripts/install-system")
    with running() as server:
        yield server


@pytest.fixture
def away(own_server: Server) -> Iterator[Server]:
    """The same, which runs again afterwards."""
    yield own_server
    if own_server.process is None:
        own_server.start()


def patient(limit: str) -> Session:
    """A session that waits for so long."""
    return Session.builder().engine("in-process").retry_for(limit).get_or_create()


def test_a_server_that_starts_later_is_waited_for(away: Server, tmp_path: Path) -> None:
    away.stop()
    back = threading.Timer(1.5, away.start)
    with patient("1 min") as session:
        stream, sender = session.memory_stream("user string, at bigint")
        back.start()
        sink = PostgresSink(away.address(), "later")
        query = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count()).start(sink)
        sender.send([{"user": "a", "at": 1}, {"user": "a", "at": 20}])
        query.process_all_available()
    back.join()
    assert away.rows("SELECT * FROM later") == [("a", 0, 10, 1)]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_a_server_that_restarts_has_every_row_once(away: Server, tmp_path: Path, how: signal.Signals) -> None:
    table, checkpoint = f"restarts_{how.name.lower()}", str(tmp_path / "check")
    with patient("1 min") as session:
        stream, sender = session.memory_stream("user string, at bigint", spool=str(tmp_path / "spool"))
        plan = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
        query = plan.start(PostgresSink(away.address(), table), checkpoint=checkpoint)
        for moment in range(0, 300, 5):
            sender.send([{"user": "a", "at": moment}])
            if moment == 150:
                away.stop(how)
                back = threading.Timer(1.0, away.start)
                back.start()
        query.process_all_available()
        assert query.status == "running"
        assert query.lookup("a").num_rows == 1
        assert query.lookup("a", last=100)["window_start"].to_pylist() == list(range(0, 290, 10))
    back.join()
    assert away.rows(f"SELECT * FROM {table} ORDER BY window_start") == [
        ("a", start, start + 10, 2) for start in range(0, 290, 10)
    ]


def test_a_server_that_stays_away_is_an_error_that_says_so(away: Server) -> None:
    away.stop()
    with patient("1 s") as session:
        stream, _ = session.memory_stream("user string, at bigint")
        plan = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
        began = time.monotonic()
        with pytest.raises(OperatorError, match="cannot be reached") as problem:
            plan.start(PostgresSink(away.address(), "none"))
        assert problem.value.transient
        assert time.monotonic() - began >= 0.5


def test_what_a_server_refuses_is_not_tried_again(away: Server) -> None:
    with patient("1 h") as session:
        stream, _ = session.memory_stream("user string, at bigint")
        plan = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
        for address in (away.address(password="wrong"), away.address(database="no_such"), away.address(user="nobody_here")):
            with pytest.raises(OperatorError, match="cannot be reached") as problem:
                plan.start(PostgresSink(address, "none"))
            assert not problem.value.transient


def test_stop_does_not_wait_for_a_server(away: Server) -> None:
    with patient("1 h") as session:
        stream, sender = session.memory_stream("user string, at bigint")
        plan = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
        query = plan.start(PostgresSink(away.address(), "stopped"))
        away.stop()
        sender.send([{"user": "a", "at": 1}, {"user": "a", "at": 20}])
        while not query.progress.trouble:
            time.sleep(0.05)
        query.stop()
        assert query.status == "stopped"


def test_a_job_ends_with_the_code_that_says_what_a_repetition_does(away: Server, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"user": ["a", "a"], "at": pa.array([1, 20], pa.int64())}), tmp_path / "in/1.parquet")
    (tmp_path / "jobs.py").write_text(JOB)

    def run(address: str) -> int:
        command = [
            sys.executable,
            "-m",
            "krishiv_py",
            "run",
            f"{tmp_path}/jobs.py:orders",
            "--until-idle",
            "--retry-for",
            "1 s",
        ]
        done = subprocess.run(
            [*command, "--checkpoint", str(tmp_path / "check")],
            env={**os.environ, "IN": str(tmp_path / "in"), "TO": address},
            check=False,
            timeout=60,
        )
        return done.returncode

    away.stop()
    assert run(away.address()) == 1
    away.start()
    assert run(away.address(password="wrong")) == 2
    assert run(away.address()) == 0
    assert away.rows("SELECT * FROM counts") == [("a", 0, 10, 1)]


@pytest.mark.slow
def test_on_spark_a_server_that_restarts_has_every_row_once(away: Server, session: Session) -> None:
    stream, sender = session.memory_stream("user string, at bigint")
    plan = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
    with Patient(session, 60):
        query = plan.start(PostgresSink(away.address(), "spark"))
    for begin, how in ((0, signal.SIGINT), (50, signal.SIGQUIT), (100, None)):
        sender.send([{"user": "a", "at": moment} for moment in range(begin, begin + 50, 5)])
        query.process_all_available()
        if how is not None:
            away.stop(how)
            threading.Timer(2.0, away.start).start()
    assert query.status == "running" and not query.progress.trouble
    query.stop()
    assert away.rows("SELECT * FROM spark ORDER BY window_start") == [
        ("a", start, start + 10, 2) for start in range(0, 140, 10)
    ]
