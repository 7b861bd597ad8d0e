"""Command line that all peers share; standard library only."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.jobs import JOBS, Job


@dataclass(frozen=True)
class Task:
    """What a peer is asked to run."""

    job: Job
    data: Path
    out: Path
    checkpoint: Path
    files: tuple[Path, ...]
    state: str
    partitions: int
    trigger: str


def parse(argv: Sequence[str] | None, name: str) -> Task:
    """Parse the command line; the output folder is emptied, ``--parts N`` takes the first N parts."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.peers.{name}")
    parser.add_argument("--job", choices=sorted(JOBS), required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", type=int, default=0, help="take only the first parts")
    parser.add_argument(
        "--state", choices=("rocksdb", "hdfs", "heap"), default="rocksdb", help="heap: in-memory state of Flink"
    )
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument(
        "--trigger", default="available-now", help="available-now, or milliseconds between batches (runs until stopped)"
    )
    given = parser.parse_args(argv)
    data = given.data.resolve()
    files = tuple(sorted(data.rglob("part-*.parquet")))
    if given.parts:
        data, files = take(data, given.out.resolve().with_name(given.out.name + "-input"), given.parts)
    out, checkpoint = given.out.resolve(), given.out.resolve().with_name(given.out.name + "-checkpoint")
    for folder in (out, checkpoint):
        shutil.rmtree(folder, ignore_errors=True)
    out.mkdir(parents=True)
    return Task(JOBS[given.job], data, out, checkpoint, files, given.state, given.partitions, given.trigger)


def take(data: Path, target: Path, count: int) -> tuple[Path, tuple[Path, ...]]:
    """Link the first parts of each folder below `data` to `target`."""
    shutil.rmtree(target, ignore_errors=True)
    for folder in sorted({path.parent for path in data.rglob("part-*.parquet")}):
        for path in sorted(folder.glob("part-*.parquet"))[:count]:
            link = target / path.relative_to(data)
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, link)
    return target, tuple(sorted(target.rglob("part-*.parquet")))


def unsupported(name: str, job: Job, why: str) -> SystemExit:
    """What a peer raises for a job it has no way to express."""
    return SystemExit(f"{name} does not run {job.name} ({job.title}): {why}")


def run(argv: Sequence[str] | None, name: str, body: Callable[[Task], None]) -> int:
    """Parse and run."""
    body(parse(argv, name))
    return 0
