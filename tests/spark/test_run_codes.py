"""The exit codes of ``krishiv run --engine spark``, by which a service manager starts it again, and its liveness probe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from krishiv_py.testing.broker import free_ports
from tests.tables.server import Server, programs, running

JOBS = """
import os, pathlib, time
from krishiv_py import ParquetSink, PostgresSink, count
from krishiv_py.connectors import TableSink

HOME = pathlib.Path(os.environ["HOME_OF_JOB"])

def rows(session):
    return session.read_json(HOME / "in", "at bigint", streaming=True)

def counts(session):
    return rows(session).watermark("at", 0).tumbling_window(10).agg(count())

def lines(session):
    return counts(session).to(ParquetSink(HOME / "out"))

def odd(session):
    def fails(batch):
        raise RuntimeError("nobody knows")
    return rows(session).map_batches(fails).to(ParquetSink(HOME / "out"))

class Hangs(TableSink):
    def write_tables(self, batch, tables):
        while (HOME / "hang").exists():
            time.sleep(0.1)

def hangs(session):
    return counts(session).to(Hangs())

def database(session):
    return counts(session).to(PostgresSink(os.environ["TO"], "counts"))
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/1.json").write_text('{"at": 1}\n{"at": 30}\n')
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


def command(home: Path, name: str, *more: str) -> list[str]:
    job = [sys.executable, "-m", "krishiv_py", "run", f"{home}/jobs.py:{name}", "--engine", "spark"]
    return [*job, "--checkpoint", f"{home}/check {name}", *more]


def run(home: Path, name: str, **more: str) -> int:
    """Run a job over all that there is, within a short limit for what is away; gives its exit code."""
    line = command(home, name, "--until-idle", "--retry-for", "1 s")
    done = subprocess.run(
        line, env={**os.environ, "HOME_OF_JOB": str(home), **more}, check=False, timeout=300, stderr=subprocess.PIPE, text=True
    )
    print(done.stderr[-2_000:])
    assert "Traceback" not in "\n".join(one for one in done.stderr.splitlines() if one.startswith("krishiv run"))
    return done.returncode


@pytest.mark.slow
def test_a_line_that_cannot_be_read_ends_with_2(home: Path) -> None:
    assert run(home, "lines") == 0
    (home / "in/2.json").write_text("no line of JSON\n")
    assert [run(home, "lines"), run(home, "lines")] == [2, 2]


@pytest.mark.slow
def test_what_fails_at_the_same_batch_again_ends_with_2(home: Path) -> None:
    assert [run(home, "odd"), run(home, "odd"), run(home, "odd")] == [1, 2, 2]


def answered(port: int) -> tuple[int, str]:
    """What the probe says of a job that runs; 0 where nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()
    except OSError:
        return 0, ""


@pytest.mark.slow
def test_a_sink_that_hangs_is_seen_by_the_liveness_probe(home: Path) -> None:
    (port,) = free_ports(1)
    (home / "hang").touch()
    line = command(home, "hangs", "--metrics-port", str(port), "--hung-after", "2 s")
    with subprocess.Popen(line, env={**os.environ, "HOME_OF_JOB": str(home)}) as job:
        try:
            for code in (503, 200):
                until = time.monotonic() + 180
                while answered(port)[0] != code:
                    assert time.monotonic() < until and job.poll() is None, answered(port)
                    time.sleep(0.1)
                if code == 503:
                    assert json.loads(answered(port)[1])["queries"][0]["state"] == "running"
                    (home / "hang").unlink()
            job.terminate()
            assert job.wait(120) == 143
        finally:
            job.kill()


@pytest.fixture
def server() -> Iterator[Server]:
    if programs() is None:
        pytest.skip("PostgreSQL is not installed (no initdb). Hint: bash scripts/install-system")
    with running() as one:
        yield one


@pytest.mark.slow
def test_a_database_that_stays_away_ends_with_1_and_what_it_refuses_with_2(home: Path, server: Server) -> None:
    address = server.address()
    server.stop()
    assert run(home, "database", TO=address) == 1
    server.start()
    assert run(home, "database", TO=server.address(password="wrong")) == 2
    assert run(home, "database", TO=server.address()) == 0
    assert server.rows("SELECT * FROM counts") == [(0, 10, 1)]
