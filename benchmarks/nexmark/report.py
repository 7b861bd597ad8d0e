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
SIDES = ("streaming", "bounded", "driver", "flink")
TITLES = {"streaming": "streaming", "bounded": "bounded", "driver": "kernels alone", "flink": "PyFlink SQL"}


@frozen
class Turn:
    """One turn: CPU seconds, wall seconds and MB of the short and the whole run."""

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

    @property
    def work_s(self) -> float:
        """CPU seconds beyond those of the short run."""
        return self.cpu_s - self.short_cpu_s

    def line(self) -> str:
        """One turn for the eye."""
        took = f"{self.cpu_s:.1f} CPU s, {self.short_cpu_s:.1f} of one part, {self.peak_mb:.0f} MB"
        text = f"{self.query} {self.side} #{self.round}: {took}"
        if not self.ok:
            return f"{text}: FAILED, {self.note}"
        return f"{text}; {self.events / self.cpu_s / 1e3:,.0f} thousand events per CPU s, work alone {thousands(self)}"


def thousands(turn: Turn) -> str:
    """Thousand events per CPU second without the start."""
    if turn.work_s <= 0.2:
        return "below noise"
    return f"{(turn.events - turn.short_events) / turn.work_s / 1e3:,.0f}"


def turn_of(
    query: str, side: str, spec: Spec, number: int, short: Measurement, long: Measurement, verdict: Verdict | None
) -> Turn:
    """The turn that was measured."""
    return Turn(
        query,
        side,
        spec.events,
        spec.events // spec.parts,
        spec.rate,
        number,
        round(short.cpu_s, 3),
        round(long.cpu_s, 3),
        round(long.wall_s, 3),
        round(long.peak_pss_mb, 1),
        verdict is not None and verdict.ok,
        str(verdict) if verdict is not None else f"exit {short.exit_code}, {long.exit_code}",
        record.now(),
        record.commit(),
        str(record.machine().get("processor", "")),
    )


def write(turn: Turn, path: Path) -> None:
    """Add a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(turn)) + "\n")


def read(path: Path) -> list[Turn]:
    """All turns that went well."""
    found = [Turn(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    return [turn for turn in found if turn.ok]


def table(turns: Iterable[Turn]) -> str:
    """Medians as a Markdown table, one for each number of events."""
    by: dict[int, dict[str, dict[str, list[Turn]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for turn in turns:
        by[turn.events][turn.query][turn.side].append(turn)
    texts = []
    for events, queries in sorted(by.items()):
        sides = [side for side in SIDES if any(side in found for found in queries.values())]
        head = " | ".join(f"{TITLES[side]}: whole | work alone" for side in sides)
        lines = [f"{events:,} events, thousand events per CPU second", "", f"| | {head} |", "|---" * (2 * len(sides) + 1) + "|"]
        for query in sorted(queries, key=lambda name: int(name[1:])):
            cells = [cell for side in sides for cell in both(queries[query].get(side, []))]
            lines.append(f"| {query} | {' | '.join(cells)} |")
        texts.append("\n".join(lines))
    return "\n\n".join(texts)


def both(turns: list[Turn]) -> tuple[str, str]:
    """Thousand events per CPU second of whole runs, and of what they do beyond starting."""
    if not turns:
        return "", ""
    whole = median(turn.events / turn.cpu_s for turn in turns)
    work = median(turn.work_s for turn in turns)
    events = turns[0].events - turns[0].short_events
    return f"{whole / 1e3:,.0f}", "below noise" if work <= 0.2 else f"{events / work / 1e3:,.0f}"
