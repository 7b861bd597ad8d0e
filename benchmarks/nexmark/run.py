"""Nexmark: generate the events, check queries against DuckDB, measure them.

    python -m benchmarks nexmark generate --events 2000000
    python -m benchmarks nexmark check --engine driver --events 200000
    python -m benchmarks nexmark measure --events 2000000 --sides streaming driver --rounds 3
    python -m benchmarks nexmark report

A turn of a side is a short run, of one part, and the whole one, each a process of its own; the difference is reported as
well, in which starting does not count. A result is checked before its time counts. Turns go to
``benchmarks/results/nexmark.jsonl``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.data import ROOT, link_parts, parts_of
from benchmarks.envs import python_of
from benchmarks.jobs import BATCH_ROWS
from benchmarks.measure import Measurement, measure, workplace
from benchmarks.nexmark import engines, report
from benchmarks.nexmark.engines import ENGINES
from benchmarks.nexmark.generator import STREAMS, Spec, make, spec_of
from benchmarks.nexmark.prepare import joined
from benchmarks.nexmark.queries import QUERIES, Query
from benchmarks.nexmark.truth import TRUTH, check, views

SOURCE = Path(__file__).resolve().parents[2]
DUCKDB = "import duckdb, sys; duckdb.connect(config={'threads': 2}).execute(sys.argv[1])"
"""The program of the side ``duckdb``: its answer at once, which is what all others are compared with."""
NOT_IN_FLINK = ("q6", "q12", "q13")  # why: peers/nexmark_flink.py


def files_a_batch(spec: Spec) -> int:
    """How many parts are a micro-batch: a quarter of the input, a million events at the least."""
    return max(spec.parts // 4, -(-BATCH_ROWS * spec.parts // spec.events))


def first_part(data: Path) -> Path:
    """Folder with the first part of each stream."""
    target = data.with_name(f"{data.name}-first")
    for name in STREAMS:
        link_parts(data / name, target / name, 1)
    shutil.copy(data / "_spec.json", target / "_spec.json")
    return target


def process(query: Query, side: str, data: Path, out: Path, files: int, given: argparse.Namespace) -> Measurement:
    """Measure one run in a process of its own."""
    if side == "flink":
        command = [python_of("flink"), "-m", "benchmarks.peers.nexmark_flink", "--query", query.name]
        command += ["--data", str(joined(data)), "--out", str(out)]
    elif side == "duckdb":
        out.mkdir(parents=True, exist_ok=True)
        answer = f"COPY ({TRUTH[query.name]}) TO '{out}/result.parquet' (FORMAT parquet)"
        command = [sys.executable, "-c", DUCKDB, f"{views(data)};\n{answer}"]
    else:
        command = [sys.executable, "-m", "benchmarks", "nexmark", "one", "--query", query.name, "--engine", side]
        command += ["--data", str(data), "--out", str(out), "--files-per-batch", str(files)]
        command += ["--buckets", str(given.buckets)]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return measure(command, timeout_s=given.timeout, log=out.with_name(f"{out.name}.log"), env=env)


def turn(query: Query, side: str, data: Path, number: int, given: argparse.Namespace) -> report.Turn:
    """One turn of a side; with ``--whole`` without its short run."""
    spec, work = spec_of(data), workplace(f"nexmark-{query.name}-{side}")
    files = files_a_batch(spec)
    short = None if given.whole else process(query, side, first_part(data), work / "short", files, given)
    long = process(query, side, data, work / "long", files, given)
    verdict = check(query.name, data, work / "long") if long.ok and (short is None or short.ok) else None
    kept = report.turn_of(query.name, side, spec, number, short, long, verdict, given.buckets)
    if kept.ok:
        shutil.rmtree(work, ignore_errors=True)
    return kept


def measured(queries: Sequence[Query], data: Path, given: argparse.Namespace) -> bool:
    """All rounds of all queries, the sides in turn."""
    sides: list[str] = given.sides
    well = True
    for query in queries:
        for number in range(given.rounds):
            shift = number % len(sides)
            for side in [*sides[shift:], *sides[:shift]]:
                if side == "flink" and query.name in NOT_IN_FLINK:
                    continue
                kept = turn(query, side, data, number, given)
                report.write(kept, given.results)
                print(kept.line(), flush=True)
                well &= kept.ok
    return well


def checked(queries: Sequence[Query], engine: engines.Engine, data: Path, out: Path, files: int) -> bool:
    """Run queries in this process and compare them with the truth."""
    well = True
    opened = None if engine == "driver" else engines.session(engine)
    for query in queries:
        engines.run(query, data, out / query.name, engine, files, opened)
        verdict = check(query.name, data, out / query.name)
        print(f"{query.name} {engine}: {'as DuckDB' if verdict.ok else 'WRONG'}, {verdict}", flush=True)
        well &= verdict.ok
    if opened is not None:
        opened.stop()
    return well


def parser() -> argparse.ArgumentParser:
    """Command line."""
    result = argparse.ArgumentParser(prog="python -m benchmarks nexmark", description=(__doc__ or "").splitlines()[0])
    parts = result.add_subparsers(dest="part", required=True)
    of_data = argparse.ArgumentParser(add_help=False)
    of_data.add_argument("--events", type=int, default=2_000_000)
    of_data.add_argument("--rate", type=int, default=10_000, help="events a second of event time")
    of_data.add_argument("--parts", type=int, default=20)
    of_data.add_argument("--seed", type=int, default=42)
    of_data.add_argument("--root", type=Path, default=ROOT, help="where generated events are kept")
    chosen = argparse.ArgumentParser(add_help=False)
    chosen.add_argument("--queries", nargs="+", choices=list(QUERIES), default=list(QUERIES))
    parts.add_parser("generate", parents=[of_data])
    check_it = parts.add_parser("check", parents=[of_data, chosen])
    check_it.add_argument("--engine", choices=ENGINES, default="driver")
    measure_it = parts.add_parser("measure", parents=[of_data, chosen])
    measure_it.add_argument("--sides", nargs="+", choices=report.SIDES, default=["streaming", "driver"])
    measure_it.add_argument("--rounds", type=int, default=1)
    measure_it.add_argument(
        "--whole", action="store_true", help="no short runs: half the time, and what starting takes is unknown"
    )
    measure_it.add_argument("--buckets", type=int, default=0, help="spark.krishiv.buckets; 0: not set")
    measure_it.add_argument("--timeout", type=float, default=1_800.0)
    measure_it.add_argument("--results", type=Path, default=report.RESULTS)
    one = parts.add_parser("one")
    one.add_argument("--query", choices=list(QUERIES), required=True)
    one.add_argument("--engine", choices=ENGINES, required=True)
    one.add_argument("--data", type=Path, required=True)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--files-per-batch", type=int, default=1)
    one.add_argument("--buckets", type=int, default=0)
    show = parts.add_parser("report")
    show.add_argument("--results", type=Path, default=report.RESULTS)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    given = parser().parse_args(argv)
    if given.part == "report":
        print(report.table(report.read(given.results)))
        return 0
    if given.part == "one":
        engines.run(QUERIES[given.query], given.data, given.out, given.engine, given.files_per_batch, buckets=given.buckets)
        return 0
    data = make(Spec(given.events, given.rate, given.parts, given.seed), given.root)
    print(f"{data}: {', '.join(f'{len(parts_of(data / name))} parts of {name}' for name in STREAMS)}", flush=True)
    if given.part == "generate":
        return 0
    queries = sorted((QUERIES[name] for name in given.queries), key=lambda query: int(query.name[1:]))
    if given.part == "check":
        out = workplace("nexmark-check")
        well = checked(queries, given.engine, data, out, max(given.parts // 4, 1))
    else:
        well = measured(queries, data, given)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
