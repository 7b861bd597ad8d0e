"""Runs the job, kills its whole process tree now and then, and starts it again until it is done."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FILES, ROWS = 12, 4_000


def write_input(folder: Path, seed: int, files: int = FILES) -> None:
    """Files in order of arrival: rows out of order, a few very late, some without a time."""
    seeded = random.Random(seed)
    folder.mkdir(parents=True)
    for number in range(files):
        rows = []
        for _ in range(ROWS):
            i = number * 4_000 + seeded.randrange(4_000) - (seeded.randrange(20_000) if seeded.random() < 0.02 else 0)
            rows.append(
                {"user": seeded.randrange(300), "at": None if seeded.random() < 0.001 else i, "amount": seeded.randrange(100)}
            )
        path = folder / f"{number:04d}.parquet"
        pq.write_table(
            pa.Table.from_pylist(rows, pa.schema([("user", pa.int64()), ("at", pa.int64()), ("amount", pa.int64())])), path
        )
        os.utime(path, (1_600_000_000 + number,) * 2)


def _start(kind: str, source: Path, work: Path) -> subprocess.Popen[bytes]:
    work.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.crash.job", kind, str(source), str(work)]
    log = (work / "log").open("ab")
    return subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log)


def kill_tree(job: subprocess.Popen[bytes]) -> None:
    """The whole tree at once: driver, JVM and Python workers share the process group or are found below it."""
    pids = [job.pid, *_descendants(job.pid)]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    job.wait()


def _descendants(pid: int) -> list[int]:
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = [tuple(map(int, line.split())) for line in table.splitlines()]
    actual, frontier = [], {pid}
    while frontier:
        frontier = {child for child, parent in parents if parent in frontier}
        actual += list(frontier)
    return actual


def run(kind: str, source: Path, work: Path) -> float:
    """Undisturbed; returns the seconds it took."""
    began = time.monotonic()
    assert _start(kind, source, work).wait(timeout=600) == 0, (work / "log").read_text()[-3_000:]
    return time.monotonic() - began


def run_with_kills(kind: str, source: Path, work: Path, kills: int, seeded: random.Random, length_s: float) -> int:
    """Kill at random moments of the job's life until it is done, at the most `kills` times; returns how often."""
    return killed_until_done(
        lambda: _start(kind, source, work),
        lambda: (work / "done").exists(),
        kills,
        seeded,
        length_s,
        lambda: (work / "log").read_text()[-3_000:],
    )


def killed_until_done(
    start: Callable[[], subprocess.Popen[bytes]],
    done: Callable[[], bool],
    kills: int,
    seeded: random.Random,
    length_s: float,
    said: Callable[[], str] = lambda: "",
) -> int:
    """The same of any job that takes so long where nothing disturbs it; `said` is reported if it fails."""
    killed = 0
    while not done():
        job = start()
        if killed < kills:
            try:
                job.wait(timeout=seeded.uniform(0.3, 0.95) * length_s)
            except subprocess.TimeoutExpired:
                kill_tree(job)
                killed += 1
                continue
        assert job.wait(timeout=600) == 0, said()
    return killed


def rows(folder: Path) -> Counter[tuple[str, ...]]:
    """Every row of an output, and how often."""
    return counted(pq.read_table(folder).to_pylist())


def counted(actual: list[dict[str, Any]]) -> Counter[tuple[str, ...]]:
    """Every row, lists in it too, and how often."""
    return Counter(tuple(map(repr, row.values())) for row in actual)
