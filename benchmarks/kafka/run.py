"""Windows over a Kafka topic of JSON events: krishiv_py and hand-written Spark, in turns.

    python -m benchmarks kafka run --events 2000000 --keys 5000 500000 --jobs J1 J3 --rounds 5
    python -m benchmarks kafka latency --rate 5000 --keys 5000
    python -m benchmarks kafka latency --rate 5000 --keys 5000 --trigger 0
    python -m benchmarks kafka report

A turn is a short run, over a topic with the first twentieth of the events, and the whole one, each a process of its own; the
difference tells start-up apart. Each is measured by a process next to the broker, so what the broker takes does not count. A
result is checked against DuckDB's before its time counts. Turns go to ``benchmarks/results/kafka.jsonl``.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from attrs import evolve, frozen

from benchmarks import record
from benchmarks.data import KEYS, KeySet, Spec, make
from benchmarks.jobs import JOBS, Job
from benchmarks.kafka import latency, native, report, topics
from benchmarks.kafka.task import JOBS_HERE
from benchmarks.kafka.turns import MODULES, judge, measured
from benchmarks.measure import workplace
from benchmarks.record import Record
from benchmarks.sides import SIDES
from krishiv_py.testing.broker import running

BY_KEY = {"quix"}
"""Sides that keep state by the partition and key of a record."""
JOBS_OF = {"quix": ("J1",)}
"""The jobs of sides that do not run all; sessions of Quix Streams close a gap later than all others."""
SETS: dict[int, KeySet] = {KEYS[name]: name for name in ("K", "B")}


@frozen
class Input:
    """Generated events, and the topics they are in."""

    spec: Spec
    folder: Path
    address: str
    topics: tuple[str, str]
    """The whole one, and that of the short runs."""
    by_key: tuple[str, str] | None
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


def prepared(address: str, events: int, keys: int, batch_rows: int | None, seed: int, *, by_key: bool) -> Input:
    """Events in two topics, and in two by key where a side needs them."""
    spec = Spec(events, SETS[keys], seed=seed)
    folder = make(spec)
    (whole, sent), (short, few) = topics.fill(address, folder), topics.fill(address, folder, 1)
    rows = batch_rows or events // 4
    if sent != events or rows % few:
        raise SystemExit(f"{sent} of {events} events; a batch of {rows} is not a multiple of a part, {few}")
    keyed = (topics.fill(address, folder, by_key=True)[0], topics.fill(address, folder, 1, by_key=True)[0]) if by_key else None
    return Input(spec, folder, address, (whole, short), keyed, few, rows)


def turn(side: str, job: Job, given: Input, number: int, timeout_s: float) -> Record:
    """One turn of a side: the short run, the whole one, the check."""
    work = workplace(f"kafka-{job.name}-{side}")
    started, machine = record.now(), record.machine()
    batches = "--batch-rows", str(given.batch_rows)
    whole, first = (given.by_key if side in BY_KEY else None) or given.topics
    short = measured(side, job, given.address, first, work / "short", timeout_s, *batches)
    long = measured(side, job, given.address, whole, work / "long", timeout_s, *batches)
    rules = evolve(SIDES[side].rules, files=given.parts_a_batch)
    verdict = judge(side, job, given.folder, work / "long", rules) if long.ok else None
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
    if "native_rocksdb" in given.sides:
        native.JARS.fetch()
    if missing := [SIDES[side].env for side in given.sides if not SIDES[side].available]:
        raise SystemExit(f"not installed: python -m benchmarks.envs {' '.join(missing)}")
    well = True
    with running() as broker:
        for keys in given.keys:
            by_key = not BY_KEY.isdisjoint(given.sides)
            source = prepared(broker.address, given.events, keys, given.batch_rows, given.seed, by_key=by_key)
            for job in (JOBS[name] for name in given.jobs):
                for number in range(given.rounds):
                    shift = number % len(given.sides)
                    for side in (
                        s for s in given.sides[shift:] + given.sides[:shift] if job.name in JOBS_OF.get(s, given.jobs)
                    ):
                        kept = turn(side, job, source, number, given.timeout)
                        report.write(kept, given.results)
                        print(line(kept), flush=True)
                        well = well and kept.ok
    return well


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks kafka", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("run", "latency", "report"))
    parser.add_argument("--rate", type=int, default=5_000, help="events a second, for latency")
    parser.add_argument("--trigger", type=int, default=1_000, help="ms between batches, for latency; 0: at once, to a topic")
    parser.add_argument("--seconds", type=int, nargs=2, default=latency.DURATIONS_S, help="of the long and the short run")
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--keys", nargs="+", type=int, choices=sorted(SETS), default=sorted(SETS))
    parser.add_argument("--jobs", nargs="+", choices=JOBS_HERE, default=list(JOBS_HERE))
    parser.add_argument("--sides", nargs="+", choices=sorted(MODULES), default=["krishiv", "native_rocksdb"])
    parser.add_argument("--batch-rows", type=int, help="records of a micro-batch; a quarter of the events")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--timeout", type=float, default=1_800.0)
    parser.add_argument("--results", type=Path, default=report.RESULTS)
    given = parser.parse_args(argv)
    if given.what == "report":
        turns = report.read(given.results)
        print(report.table(turns), report.latencies(turns), sep="\n\n")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the broker ends
    if given.what == "latency" and ("quix" in given.sides or ("flink" in given.sides and given.trigger)):
        parser.error("latency is that of sides with micro-batches, with --trigger 0 of PyFlink too")
    if given.what == "latency":
        return 0 if latency.run(given) else 1
    return 0 if run(given) else 1


if __name__ == "__main__":
    sys.exit(main())
