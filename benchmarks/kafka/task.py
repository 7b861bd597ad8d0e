"""Command line that all sides share."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.jobs import JOBS
from benchmarks.peers.common import TO_THE_END, Task, file_next_to

JOBS_HERE = ("J1", "J3")
STEADY = "S1"


@dataclass(frozen=True)
class KafkaTask:
    """What a side is asked to run, and over which topic."""

    task: Task
    address: str
    topic: str
    batch_rows: int
    to: str | None = None
    """The topic of the results; files without one."""
    engine: str = "spark"


def note_parts(progress: Sequence[Mapping[str, Any]], task: Task) -> None:
    """Note the parts of Spark's micro-batches with rows, medians in ms, where the measuring process looks for them."""
    parts = [dict(each["durationMs"]) for each in progress if each["numInputRows"]][5:]
    names = sorted({name for each in parts for name in each})
    given = {name: median(each.get(name, 0) for each in parts) for name in names}
    file_next_to(task.out, "parts.json").write_text(json.dumps({"batches": len(parts), **given}))


def task_of(argv: Sequence[str] | None, name: str, state: str = "rocksdb") -> KafkaTask:
    """The task of a command line; output and checkpoint folders are emptied."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.kafka.{name}")
    parser.add_argument("--job", choices=(*JOBS_HERE, STEADY), required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch-rows", type=int, required=True)
    parser.add_argument("--trigger", default=TO_THE_END, help="or milliseconds between batches, as in peers/common.py")
    parser.add_argument("--to", help="a topic for the results, instead of files")
    parser.add_argument("--engine", choices=("spark", "in-process"), default="spark", help="of krishiv_py")
    given = parser.parse_args(argv)
    out = given.out.resolve()
    checkpoint = file_next_to(out, "checkpoint")
    for folder in (out, checkpoint):
        shutil.rmtree(folder, ignore_errors=True)
    out.mkdir(parents=True)
    task = Task(JOBS[given.job], out, out, checkpoint, (), state, 2, given.trigger, 0)
    return KafkaTask(task, given.address, given.topic, given.batch_rows, given.to, given.engine)
