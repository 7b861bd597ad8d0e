"""Run a mode, the sides interleaved: ``python -m benchmarks.run backlog --jobs J1 --sets A B --sides krishiv duckdb``.

Each side runs `repeats` times; in every round each side has its turn, the order rotating. A turn is a short run and the
whole one; the difference tells start-up apart. A result is checked before its time counts. Every turn leaves one JSON file
in ``benchmarks/results/raw``; ``python -m benchmarks.report`` makes table and plots of them and of ``summary.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from attrs import evolve

from benchmarks import modes, record, steady
from benchmarks.check import Verdict, check
from benchmarks.data import KEYS, link_all
from benchmarks.jobs import JOBS
from benchmarks.measure import Measurement, measure, workplace
from benchmarks.modes import Case
from benchmarks.record import Record
from benchmarks.sides import BOUNDED, SIDES, Side

DEFAULT_SIDES = {
    "backlog": [name for name in SIDES if name != "in_process"],
    "whole": ["krishiv", "in_process", "duckdb", "polars", "flink", "bytewax", "pathway"],
    "micro": ["krishiv", "native_rocksdb"],
    "open_state": ["krishiv", "native_rocksdb"],
    "bounded": ["krishiv", "duckdb"],
    "steady": ["krishiv", "native_rocksdb"],
}
DEFAULT_JOBS = {
    "backlog": ["J1", "J2", "J3"],
    "whole": ["J1", "J2", "J3", "J4", "J5", "P1", "P2", "P3"],
    "micro": ["J1"],
    "bounded": ["J1"],
}


def start(side: Side, case: Case, data: Path, out: Path, timeout_s: float, *more: str) -> Measurement:
    """Measure one run."""
    arguments = case.arguments if side.name.startswith("krishiv") else ()
    command = side.command(case.job, data, out, "--files-per-batch", str(case.files_per_batch), *arguments, *more)
    return measure(command, timeout_s=timeout_s, log=out.with_name("log.txt"), env=side.variables())


def long_run(side: Side, case: Case, work: Path, timeout_s: float) -> tuple[Measurement, Verdict | None]:
    """The long run and the check of what it wrote; where it fired nothing, of what it had kept to fire."""
    out = work / "long"
    if case.closing is None:
        long = start(side, case, case.long, out, timeout_s)
        return long, judge(side, case, case.long, out) if long.ok else None
    grown = link_all(case.long, work / "input")
    long = start(side, case, grown, out, timeout_s)
    if not long.ok:
        return long, None
    closing = start(side, case, link_all(case.closing, grown), out, timeout_s, "--resume")
    if not closing.ok:
        return long, Verdict(False, 0, 0, 0, f"the run that closes the windows: exit {closing.exit_code}")
    return long, judge(side, case, case.closing, out)


def judge(side: Side, case: Case, data: Path, out: Path) -> Verdict:
    """Check what was written for `data`."""
    rules = BOUNDED if case.mode == "bounded" else side.rules
    return check(case.job, data, out, evolve(rules, files=case.files_per_batch))


def turn(side: Side, case: Case, round_number: int, seed: int, timeout_s: float) -> Record:
    """One turn of a side: a short run, the long run, the check."""
    work = workplace(f"{case.mode}-{case.job.name}-{case.data}-{side.name}")
    for folder in (case.long, case.short):
        if folder is not None:
            side.prepare(folder)
    started, machine = record.now(), record.machine()
    short = start(side, case, case.short, work / "short", timeout_s) if case.short is not None else None
    long, verdict = long_run(side, case, work, timeout_s)
    times = work / "long" / "times.json"
    extra: dict[str, float] = {}
    if times.exists():
        got = json.loads(times.read_text())
        extra = {"first_s": got["first_s"], "warm_s": sorted(got["warm_s"])[len(got["warm_s"]) // 2]}
    kept = Record(
        mode=case.mode,
        job=case.job.name,
        data=case.data,
        side=side.name,
        files_per_batch=case.files_per_batch,
        round=round_number,
        seed=seed,
        unit=case.unit,
        long_units=case.long_units,
        long=record.leg(long),
        short_units=case.short_units,
        short=record.leg(short) if short else None,
        verdict=record.verdict_of(verdict) if verdict else None,
        extra=extra,
        started=started,
        commit=record.commit(),
        machine=machine,
        versions=record.versions(side),
    )
    if kept.ok:
        shutil.rmtree(work, ignore_errors=True)
    return kept


def compare(case: Case, sides: list[Side], repeats: int, seed: int, timeout_s: float, results: Path) -> bool:
    """All rounds of one case; a side that failed has no other turn. Whether all went well."""
    able = [side for side in sides if side.runs(case.job) and side.available]
    for side in sides:
        if side.runs(case.job) and not side.available:
            print(f"{side.name}: not installed (python -m benchmarks.envs {side.env})", flush=True)
    well = True
    for round_number in range(repeats):
        shift = round_number % max(len(able), 1)
        for side in able[shift:] + able[:shift]:
            kept = turn(side, case, round_number, seed, timeout_s)
            record.write(kept, results)
            print(line(kept), flush=True)
            if not kept.ok:
                able, well = [other for other in able if other is not side], False
    return well


def line(kept: Record) -> str:
    """One turn for the eye."""
    name = f"{kept.mode} {kept.job} {kept.data} {kept.side} #{kept.round}"
    text = f"{name}: {kept.long['cpu_s']:.1f} CPU s, {kept.long['wall_s']:.1f} s"
    if not kept.ok:
        return f"{text}: FAILED, exit {kept.long['exit_code']}, {kept.verdict}"
    each = kept.marginal("cpu_s")
    rate = f"{1 / each:,.0f} events per CPU s" if kept.unit == "event" and each > 0 else f"{each:.3f} CPU s a {kept.unit}"
    return f"{text}, {kept.long['peak_pss_mb']:.0f} MB; marginal {rate} {kept.extra or ''}"


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("mode", choices=sorted(DEFAULT_SIDES))
    parser.add_argument("--jobs", nargs="+", choices=sorted(JOBS))
    parser.add_argument("--sets", nargs="+", choices=sorted(KEYS), default=["A", "B"])
    parser.add_argument("--sides", nargs="+", choices=sorted(SIDES))
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--batch-rows", type=int, help="about how many rows a micro-batch of the backlog mode takes")
    parser.add_argument("--keys", nargs="+", type=int, default=list(modes.OPEN_KEYS), help="open keys of the open-state mode")
    parser.add_argument("--rates", nargs="+", type=int, default=[5_000, 50_000], help="events per second of the steady mode")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--timeout", type=float, default=1_800.0)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    given = parser.parse_args(argv)
    sides = [SIDES[name] for name in given.sides or DEFAULT_SIDES[given.mode]]
    jobs = [JOBS[name] for name in given.jobs or DEFAULT_JOBS.get(given.mode, [])]
    if given.mode == "steady":
        return steady.run(sides, given.sets, given.rates, given.repeats, given.seed, given.results)
    cases = {
        "backlog": lambda: modes.backlog(jobs, given.sets, given.events, given.seed, given.batch_rows),
        "whole": lambda: modes.whole(jobs, given.sets, given.events, given.seed, given.batch_rows),
        "micro": lambda: modes.micro(jobs, given.seed),
        "open_state": lambda: modes.open_state(given.keys, given.seed),
        "bounded": lambda: modes.bounded(jobs, given.sets, given.seed),
    }[given.mode]()
    outcomes = [compare(case, sides, given.repeats, given.seed, given.timeout, given.results) for case in cases]
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
