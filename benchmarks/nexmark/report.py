"""What a turn of Nexmark took, on file and as a table."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from attrs import asdict, frozen

from benchmarks import record
from benchmarks.check import Verdict
from benchmarks.measure import Measurement
from benchmarks.nexmark.generator import Spec

RESULTS = Path(__file__).resolve().parents[1] / "results" / "nexmark.jsonl"
SIDES = ("streaming", "bounded", "in-process", "driver", "flink", "duckdb")
TITLES = {
    "streaming": "streaming",
    "bounded": "bounded",
    "in-process": "in process",
    "driver": "kernels alone",
    "flink": "PyFlink SQL",
    "duckdb": "DuckDB",
}
COMPARED = (("flink", "streaming"), ("flink", "in-process"), ("in-process", "duckdb"))
RATE = "in process, million events a CPU second"


@frozen
class Turn:
    """One turn: CPU seconds, wall seconds and MB of the short and the whole run; a short one of 0 events was left out.

    `buckets` is what ``spark.krishiv.buckets`` was set to, 0 if it was left as it is.
    """

    query: str
    side: str
    events: int
    short_events: int
    rate: int
    round: int
    short_cpu_s: float
    cpu_s: float
    wall_s: float
    peak_mb: float
    ok: bool
    note: str
    started: str
    commit: str
    processor: str
    buckets: int = 0

    def line(self) -> str:
        """One turn for the eye."""
        took = f"{self.cpu_s:.1f} CPU s, {self.short_cpu_s:.1f} of one part, {self.peak_mb:.0f} MB"
        text = f"{self.query} {self.side} #{self.round}: {took}"
        return (
            f"{text}; {self.events / self.cpu_s / 1e3:,.0f} thousand events per CPU s"
            if self.ok
            else f"{text}: FAILED, {self.note}"
        )


def turn_of(
    query: str,
    side: str,
    spec: Spec,
    number: int,
    short: Measurement | None,
    long: Measurement,
    verdict: Verdict | None,
    buckets: int = 0,
) -> Turn:
    """The turn that was measured."""
    return Turn(
        query,
        side,
        spec.events,
        spec.events // spec.parts if short else 0,
        spec.rate,
        number,
        round(short.cpu_s, 3) if short else 0.0,
        round(long.cpu_s, 3),
        round(long.wall_s, 3),
        round(long.peak_pss_mb, 1),
        verdict is not None and verdict.ok,
        str(verdict) if verdict is not None else f"exit {[run.exit_code for run in (short, long) if run]}",
        record.now(),
        record.commit(),
        str(record.machine().get("processor", "")),
        buckets,
    )


Queries = dict[str, dict[str, list[Turn]]]
"""Turns by query and side."""


def write(turn: Turn, path: Path) -> None:
    """Add a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(turn)) + "\n")


def read(path: Path) -> list[Turn]:
    """All turns that went well."""
    result = [Turn(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    return [turn for turn in result if turn.ok]


def table(turns: Iterable[Turn]) -> str:
    """Medians as a Markdown table, one for each processor and number of events; turns with buckets set by hand are left out."""
    by: dict[tuple[str, int], Queries] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for turn in (turn for turn in turns if not turn.buckets):
        by[turn.processor, turn.events][turn.query][turn.side].append(turn)
    texts = []
    for (processor, events), queries in sorted(by.items()):
        sides = [side for side in SIDES if any(side in result for result in queries.values())]
        compared = [pair for pair in COMPARED if set(pair) <= set(sides)]
        head = ["CPU seconds", *(TITLES[side] for side in sides), *(f"{TITLES[a]} over {TITLES[b]}" for a, b in compared)]
        rate = "in-process" in sides
        lines = [f"{processor}, {events:,} events", "", *titled([*head, RATE] if rate else head)]
        for query in sorted(queries, key=lambda name: int(name[1:])):
            took = {side: median(turn.cpu_s for turn in result) for side, result in queries[query].items()}
            cells = [f"{took[side]:.1f}{of_start(queries[query][side])}" if side in took else "" for side in sides]
            cells += [f"{took[a] / took[b]:.2f}" if {a, b} <= set(took) else "" for a, b in compared]
            if rate:
                cells.append(f"{events / took['in-process'] / 1e6:.2f}" if "in-process" in took else "")
            lines.append(f"| {query} | {' | '.join(cells)} |")
        texts.append("\n".join(lines))
    return "\n\n".join(texts)


def titled(head: list[str]) -> list[str]:
    """The first two lines of a table."""
    return [f"| {' | '.join(head)} |", f"{'|---' * len(head)}|"]


def of_start(turns: list[Turn]) -> str:
    """What runs of one part took, where there were some."""
    short = [turn.short_cpu_s for turn in turns if turn.short_events]
    return f" ({median(short):.1f})" if short else ""
