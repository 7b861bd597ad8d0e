"""A query that begins with a history, ended with kill -9 at steps to its files: no row comes twice, none is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import MemorySink, Session
from krishiv_py.testing import Driver, stream_of
from tests.crash.history_job import KINDS, SCHEMA, counts, sessions, totals
from tests.crash.killing import counted, rows

KILLS = int(os.environ.get("KRISHIV_KILLS", "1"))  # `nox -s crash` sets 20
MOST = 2 if KILLS == 1 else 4
"""So often a query is killed."""
SEAM = 5
Rows = list[dict[str, Any]]


def written(folder: Path, batches: list[Rows]) -> None:
    """Files of rows, in their order."""
    folder.mkdir(parents=True)
    for number, some in enumerate(batches):
        pq.write_table(pa.Table.from_pylist(some), folder / f"{number}.parquet")
        os.utime(folder / f"{number}.parquet", (number + 1, number + 1))


def prepared(kind: str, work: Path, batches: list[Rows]) -> None:
    """What the job needs: archive, live source and savepoint."""
    written(work / "archive", batches[:SEAM])
    written(work / "live", batches[SEAM:])
    if kind == "rebuilt":
        with Session.in_process() as session:
            live, sender = session.memory_stream(SCHEMA)
            query = counts(live).start(MemorySink(), checkpoint=str(work / "old"))
            for some in batches[:SEAM]:
                sender.send(some)
                query.process_all_available()
            manifest = Path(query.savepoint(str(work / "savepoint")))
            query.stop()
        assert manifest.exists()


def job(kind: str, work: Path, last: int) -> int:
    """Run the job up to a step; gives its exit code."""
    command = [sys.executable, "-m", "tests.crash.history_job", kind, str(work), str(last)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr[-3_000:]
    return ended.returncode


def by_driver(plan: Any, batches: list[Rows], begin: int) -> tuple[Counter[Any], Counter[Any]]:
    """Results and late rows of one long run, from a batch on."""
    driver = Driver(plan)
    outputs = [driver.send(some) for some in batches][begin:]
    results = [row for output in outputs for row in output.results.to_pylist()]
    return counted(results), counted([row for output in outputs for row in output.late.to_pylist()])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_history_that_is_killed_goes_on(kind: str, tmp_path: Path) -> None:
    seeded = random.Random(f"{kind} {KILLS}")
    batches = [
        [
            {"user": seeded.randrange(20), "at": n * 1_000 + seeded.randrange(-1_500, 1_000), "amount": seeded.randrange(100)}
            for _ in range(200)
        ]
        for n in range(2 * SEAM)
    ]
    begin = SEAM if kind == "rebuilt" else 0
    wanted = {"totals": by_driver(totals(stream_of(SCHEMA)), batches, begin)[0]}
    late = by_driver(totals(stream_of(SCHEMA)), batches, begin)[1]
    if kind == "rebuilt":
        wanted["sessions"] = by_driver(sessions(stream_of(SCHEMA)), batches, 0)[0]
    prepared(kind, tmp_path / "made", batches)
    shutil.copytree(tmp_path / "made", tmp_path / "calm")
    assert job(kind, tmp_path / "calm", 0) == 0
    steps = int((tmp_path / "calm/steps").read_text())
    assert steps > 20
    for attempt in range(KILLS):
        work, killed = tmp_path / str(attempt), 0
        shutil.copytree(tmp_path / "made", work)
        while job(kind, work, seeded.randrange(1, steps) if killed < MOST else 0):
            killed += 1
        assert {name: rows(work / name) for name in wanted} == wanted
        assert rows(work / "late") == late
        assert not (work / "checkpoint-history").exists()
