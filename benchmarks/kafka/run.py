"""Windows over a Kafka topic of JSON events: krishiv_py and hand-written Spark, in turns.

    python -m benchmarks kafka run --events 2000000 --keys 5000 500000 --jobs J1 J3 --rounds 5
    python -m benchmarks kafka report

A turn is a short run, over a topic with the first twentieth of the events, and the whole one, each a process of its own; the
difference tells start-up apart. Each is measured by a process beside the broker, so what the broker takes does not count. A
result is checked against DuckDB's before its time counts. Turns go to ``benchmarks/results/kafka.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
from attrs import evolve, frozen

from benchmarks import record
from benchmarks.check import Verdict, check, output_files
from benchmarks.data import KEYS, KeySet, Spec, make
from benchmarks.jobs import JOBS, Job
from benchmarks.kafka import native, report, topics
from benchmarks.kafka.task import JOBS_HERE
from benchmarks.measure import Measurement, workplace
from benchmarks.record import Record
from benchmarks.sides import SIDES
from krishiv_py.testing.broker import running

ROOT = Path(__file__).resolve().parents[2]
SETS: dict[int, KeySet] = {KEYS[name]: name for name in ("K", "B")}
MODULES = {"krishiv": "ours", "native_rocksdb": "native"}


@frozen
class Input:
    """Generated events, and the topics they are in."""

    spec: Spec
    folder: Path
    address: str
    whole: str
    short: str
    short_events: int
    batch_rows: int

    @property
    def name(self) -> str:
        """How it is called in results."""
        return f"{self.spec.events:,}, {KEYS[self.spec.keys]:,}"

    @property
    def parts_a_batch(self) -> int:
        """How many parts of the input are a micro-batch."""
        return self.batch_rows // self.short_events


def prepared(address: str, events: int, keys: int, batch_rows: int | None, seed: int) -> Input:
    """Events in two topics."""
    spec = Spec(events, SETS[keys], seed=seed)
    folder = make(spec)
    (whole, sent), (short, few) = topics.fill(address, folder), topics.fill(address, folder, 1)
    rows = batch_rows or events // 4
    if sent != events or rows % few:
        raise SystemExit(f"{sent} of {events} events; a batch of {rows} is no multiple of a part, {few}")
    return Input(spec, folder, address, whole, short, few, rows)


def measured(side: str, job: Job, given: Input, topic: str, out: Path, timeout_s: float) -> Measurement:
    """One run, measured by a process that is no parent of the broker."""
    command = [sys.executable, "-m", f"benchmarks.kafka.{MODULES[side]}", "--job", job.name, "--address", given.address]
    command += ["--topic", topic, "--out", str(out), "--batch-rows", str(given.batch_rows)]
    outer = [sys.executable, "-m", "benchmarks.measure", "--timeout", str(timeout_s), "--log", str(out.with_name("log.txt"))]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*outer, "--", *command], env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    told: Mapping[str, object] = json.loads(done.stdout)
    return Measurement(**{**told, "command": tuple(command)})  # type: ignore[arg-type]


def judge(side: str, job: Job, given: Input, out: Path) -> Verdict:
    """Compare what was written; our bounds are in milliseconds, as the column was."""
    if side == "krishiv" and (source := output_files(out)):
        found, out = out, out.with_name("checked")
        out.mkdir()
        bounds = "window_start * 1000 AS window_start, window_end * 1000 AS window_end"
        with duckdb.connect() as db:
            db.execute(f"COPY (SELECT * REPLACE ({bounds}) FROM {source}) TO '{out}/{found.name}.parquet'")
    return check(job, given.folder, out, evolve(SIDES[side].rules, files=given.parts_a_batch))


def turn(side: str, job: Job, given: Input, number: int, timeout_s: float) -> Record:
    """One turn of a side: the short run, the whole one, the check."""
    work = workplace(f"kafka-{job.name}-{side}")
    started, machine = record.now(), record.machine()
    short = measured(side, job, given, given.short, work / "short", timeout_s)
    long = measured(side, job, given, given.whole, work / "long", timeout_s)
    verdict = judge(side, job, given, work / "long") if long.ok else None
    kept = Record(
        mode="kafka",
        job=job.name,
        data=given.name,
        side=side,
        files_per_batch=given.parts_a_batch,
        round=number,
        seed=given.spec.seed,
        unit="event",
        long_units=given.spec.events,
        long=record.leg(long),
        short_units=given.short_events,
        short=record.leg(short),
        verdict=record.verdict_of(verdict) if verdict else None,
        started=started,
        commit=record.commit(),
        machine=machine,
        versions=record.versions(SIDES[side]),
    )
    if kept.ok:
        shutil.rmtree(work, ignore_errors=True)
    return kept


def line(kept: Record) -> str:
    """One turn for the eye."""
    text = f"{kept.job}, {kept.data} keys, {kept.side} #{kept.round}: {kept.long['cpu_s']:.1f} CPU s"
    if not kept.ok:
        return f"{text}: FAILED, exit {kept.long['exit_code']}, {kept.verdict}"
    checked = kept.verdict["compared"] if kept.verdict else 0
    least = f"{kept.short['cpu_s']:.1f} the short run, " if kept.short else ""
    return f"{text}, {least}{kept.seconds:.1f} s; {report.rate(kept):,.0f} events per CPU s; {checked:,} results are right"


def run(given: argparse.Namespace) -> bool:
    """All rounds; whether all went well."""
    native.JARS.fetch()
    well = True
    with running() as broker:
        for keys in given.keys:
            source = prepared(broker.address, given.events, keys, given.batch_rows, given.seed)
            for job in (JOBS[name] for name in given.jobs):
                for number in range(given.rounds):
                    shift = number % len(given.sides)
                    for side in given.sides[shift:] + given.sides[:shift]:
                        kept = turn(side, job, source, number, given.timeout)
                        report.write(kept, given.results)
                        print(line(kept), flush=True)
                        well = well and kept.ok
    return well


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks kafka", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("run", "report"))
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--keys", nargs="+", type=int, choices=sorted(SETS), default=sorted(SETS))
    parser.add_argument("--jobs", nargs="+", choices=JOBS_HERE, default=list(JOBS_HERE))
    parser.add_argument("--sides", nargs="+", choices=sorted(MODULES), default=list(MODULES))
    parser.add_argument("--batch-rows", type=int, help="records of a micro-batch; a quarter of the events")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--timeout", type=float, default=1_800.0)
    parser.add_argument("--results", type=Path, default=report.RESULTS)
    given = parser.parse_args(argv)
    if given.what == "report":
        print(report.table(report.read(given.results)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the broker ends
    return 0 if run(given) else 1


if __name__ == "__main__":
    sys.exit(main())
