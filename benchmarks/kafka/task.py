"""Command line that all sides share."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.jobs import JOBS
from benchmarks.peers.common import TO_THE_END, Task, beside

JOBS_HERE = ("J1", "J3")
STEADY = "S1"


@dataclass(frozen=True)
class KafkaTask:
    """What a side is asked to run, and over which topic."""

    task: Task
    address: str
    topic: str
    batch_rows: int


def task_of(argv: Sequence[str] | None, name: str, state: str = "rocksdb") -> KafkaTask:
    """The task of a command line; output and checkpoint folders are emptied."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.kafka.{name}")
    parser.add_argument("--job", choices=(*JOBS_HERE, STEADY), required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch-rows", type=int, required=True)
    parser.add_argument("--trigger", default=TO_THE_END, help="or milliseconds between batches, as in peers/common.py")
    given = parser.parse_args(argv)
    out = given.out.resolve()
    checkpoint = beside(out, "checkpoint")
    for folder in (out, checkpoint):
        shutil.rmtree(folder, ignore_errors=True)
    out.mkdir(parents=True)
    task = Task(JOBS[given.job], out, out, checkpoint, (), state, 2, given.trigger, 0)
    return KafkaTask(task, given.address, given.topic, given.batch_rows)
