"""Command line that all peers share; standard library only."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.jobs import JOBS, Job

TO_THE_END = "available-now"


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
    files_per_batch: int

    @property
    def to_the_end(self) -> bool:
        """Whether to take what is there and end."""
        return self.trigger == TO_THE_END

    def has_to_stop(self) -> bool:
        """Whether a side that would go on for ever has to end."""
        return file_next_to(self.out, "stop").exists()


def parser_of(name: str) -> argparse.ArgumentParser:
    """Command line of a side."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.peers.{name}")
    parser.add_argument("--job", choices=sorted(JOBS), required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", type=int, default=0, help="take only the first parts (of each source)")
    parser.add_argument(
        "--state", choices=("rocksdb", "hdfs", "heap"), default="rocksdb", help="heap: in-memory state of Flink"
    )
    parser.add_argument("--files-per-batch", type=int, default=1, help="of each source, where a side works in micro-batches")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint and the output of a run before")
    parser.add_argument(
        "--trigger", default=TO_THE_END, help="or milliseconds between batches: runs until the file OUT-stop is there"
    )
    return parser


def task_of(given: argparse.Namespace) -> Task:
    """The task of a parsed command line; output and checkpoint folders are emptied unless it goes on from them."""
    data, out = given.data.resolve(), given.out.resolve()
    files = tuple(sorted(data.rglob("part-*.parquet")))
    if given.parts:
        data, files = take(data, file_next_to(out, "input"), given.parts)
    checkpoint = file_next_to(out, "checkpoint")
    if not given.resume:
        for folder in (out, checkpoint):
            shutil.rmtree(folder, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    how = (given.state, given.partitions, given.trigger, given.files_per_batch)
    return Task(JOBS[given.job], data, out, checkpoint, files, *how)


def file_next_to(out: Path, what: str) -> Path:
    """Sibling of an output folder."""
    return out.with_name(f"{out.name}-{what}")


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
    body(task_of(parser_of(name).parse_args(argv)))
    return 0
