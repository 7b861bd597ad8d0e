"""One run of a side, measured, and what its results are worth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import duckdb

from benchmarks.check import Verdict, check, output_files
from benchmarks.envs import python_of
from benchmarks.jobs import Job
from benchmarks.measure import Measurement
from benchmarks.sides import SIDES
from benchmarks.truth import Rules

ROOT = Path(__file__).resolve().parents[2]
MODULES = {
    "krishiv": ("benchmarks.kafka.ours",),
    "in_process": ("benchmarks.kafka.ours", "--engine", "in-process"),
    "native_rocksdb": ("benchmarks.kafka.native",),
    "flink": ("benchmarks.peers.kafka_flink",),
    "quix": ("benchmarks.peers.kafka_quix",),
}


def measured(side: str, job: Job, address: str, topic: str, out: Path, timeout_s: float, *more: str) -> Measurement:
    """One run, measured by a process that is not a parent of the broker."""
    command = [python_of(SIDES[side].env), "-m", *MODULES[side], "--job", job.name, "--address", address]
    command += ["--topic", topic, "--out", str(out), *more]
    outer = [sys.executable, "-m", "benchmarks.measure", "--timeout", str(timeout_s), "--log", str(out.with_name("log.txt"))]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*outer, "--", *command], env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    given: Mapping[str, object] = json.loads(done.stdout)
    return Measurement(**{**given, "command": tuple(command)})  # type: ignore[arg-type]


def judge(side: str, job: Job, data: Path, out: Path, rules: Rules, slack_us: int = 0) -> Verdict:
    """Compare what was written; our bounds are in milliseconds, as the column was."""
    if side in ("krishiv", "in_process") and (source := output_files(out)):
        result, out = out, out.with_name("checked")
        out.mkdir()
        bounds = "window_start * 1000 AS window_start, window_end * 1000 AS window_end"
        with duckdb.connect() as db:
            db.execute(f"COPY (SELECT * REPLACE ({bounds}) FROM {source}) TO '{out}/{result.name}.parquet'")
    return check(job, data, out, rules, slack_us=slack_us)
