"""Delta and PostgreSQL alone, where a process lives for a second: many more kills than with Spark, of the database too."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from krishiv_py import MemorySink, SideOutputLateEventHandler
from krishiv_py.compat import changes, fold
from krishiv_py.testing import Driver, stream_of
from tests.kills.events import counted, value
from tests.kills.job import BATCH, SCHEMA, Places, plan
from tests.kills.killing import ROOT, kill_database
from tests.kills.publishing_job import TARGETS
from tests.kills.targets import rows_of
from tests.tables.server import Server

KILLS = int(os.environ.get("KRISHIV_KILLS", "1"))
SEED = int(os.environ.get("KRISHIV_SEED", "0"))


def change_log(seeded: random.Random, portions: int) -> list[pa.Table]:
    """Results with withdrawals, batch by batch."""
    driver = Driver(plan(stream_of(SCHEMA), SideOutputLateEventHandler(MemorySink())))
    rows = [row for n in range(portions) for row in (value(seeded, n) for _ in range(100)) if row is not None]
    done = [driver.send(rows[i : i + BATCH]) for i in range(0, len(rows), BATCH)]
    return [step.results for step in [*done, driver.close()]]


def write(logs: list[pa.Table], path: Path) -> None:
    """One record batch for each table."""
    with pa.ipc.new_file(path, logs[0].schema) as file:
        for log in logs:
            file.write_batch(
                log.combine_chunks().to_batches()[0] if log.num_rows else pa.record_batch([[]] * 7, logs[0].schema)
            )


@pytest.mark.slow
@pytest.mark.xdist_group("postgres")
def test_every_batch_is_there_once(server: Server, tmp_path: Path) -> None:
    kills, seeded = 6 if KILLS == 1 else 2 * KILLS, random.Random(f"publishing {SEED}")
    logs = change_log(seeded, portions=12 + 3 * kills)
    write(logs, tmp_path / "batches")
    work, prefix = tmp_path / "work", f"t{time.time_ns()}"
    work.mkdir()
    command = [
        sys.executable,
        "-m",
        "tests.kills.publishing_job",
        str(tmp_path / "batches"),
        str(work),
        server.address(),
        prefix,
    ]
    done: Counter[str] = Counter()
    while True:
        with (tmp_path / "log").open("wb") as log:
            job = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=log)
        try:
            if done.total() < kills:
                wait_for_notes(job, work)
                job.wait(timeout=seeded.uniform(0, 0.4))
            code = job.wait(timeout=120)
        except subprocess.TimeoutExpired:
            if done.total() >= kills:
                raise
            what = "database" if seeded.random() < 0.3 else "process"
            done[what] += 1
            if what == "process":
                job.kill()
            else:
                kill_database(server, seeded)
                server.start()
            code = job.wait(timeout=120)
        text = (tmp_path / "log").read_text()
        if code == 0:
            break
        assert code == -9 or (done["database"] and "OperatorError" in text), text
    print(f"killed: {dict(done)}")
    given = pa.concat_tables(logs)
    expected = {"log": counted(given.to_pylist()), "table": counted(fold(changes(given)))}
    places = Places("all", "", server.address(), "", prefix, str(work))
    for target in TARGETS:
        for name in ("log", "table"):
            actual = counted(rows_of(places, target, name, None, server))
            assert actual == expected[name], f"{target} {name}: {actual - expected[name]}, {expected[name] - actual}"


def wait_for_notes(job: subprocess.Popen[bytes], work: Path) -> None:
    """Until the process begins another batch."""
    notes = work / "notes"
    before = notes.stat().st_mtime_ns if notes.exists() else 0
    while job.poll() is None and not (notes.exists() and notes.stat().st_mtime_ns > before):
        time.sleep(0.002)
