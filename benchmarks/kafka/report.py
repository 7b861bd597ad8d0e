"""What was measured over Kafka, as a table: medians of the rounds, start-up subtracted."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from statistics import median

from attrs import asdict

from benchmarks.record import Record
from benchmarks.summary import processor

RESULTS = Path(__file__).resolve().parents[1] / "results" / "kafka.jsonl"
HEAD = (
    "processor",
    "events, keys",
    "job",
    "side",
    "rounds",
    "CPU s, whole run (of which the short one)",
    "thousand events per CPU s, marginal",
    "wall s",
    "MB",
    "ours over it, marginal (least and most)",
    "CPU of the whole run over that in process",
)


LATENCY_HEAD = (
    "processor",
    "events, keys",
    "side",
    "rounds",
    "CPU s of a second",
    "latency, median, s",
    "99th percentile",
    "MB",
)


def write(kept: Record, path: Path = RESULTS) -> None:
    """Add a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(kept), separators=(",", ":")) + "\n")


def read(path: Path = RESULTS) -> list[Record]:
    """All turns that went well."""
    result = [Record(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []
    return [turn for turn in result if turn.ok]


def rate(turn: Record) -> float:
    """Events per CPU second, start-up subtracted; infinite where the difference is below the noise."""
    each = turn.marginal("cpu_s")
    return 1 / each if each > 0 else float("inf")


def ratios(ours: Iterable[Record], other: Iterable[Record]) -> list[float]:
    """How many times the events per CPU second of the other side ours takes; each turn next to that of ours nearest in time."""
    mine = [(datetime.fromisoformat(turn.started), turn) for turn in ours]
    pairs = []
    for turn in other:
        moment = datetime.fromisoformat(turn.started)
        pairs.append((min(mine, key=lambda one: abs(one[0] - moment))[1], turn))
    return [rate(one) / rate(two) for one, two in pairs if rate(two) < float("inf")]


def table(turns: Iterable[Record]) -> str:
    """Medians as a Markdown table."""
    by: dict[tuple[str, str, str], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for turn in turns:
        if turn.mode == "kafka":
            by[processor(turn), turn.data, turn.job][turn.side].append(turn)
    lines = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    for (where, data, job), sides in sorted(by.items()):
        in_process = median(turn.long["cpu_s"] for turn in sides["in_process"]) if "in_process" in sides else None
        for side, result in sides.items():
            whole, short = (median(leg["cpu_s"] for leg in legs) for legs in legs_of(result))
            shares = ratios(sides["krishiv"], result) if side != "krishiv" and "krishiv" in sides else []
            lead = f"{median(shares):.2f} ({min(shares):.2f}, {max(shares):.2f})" if shares else ""
            cells = (
                where,
                data,
                job,
                side,
                str(len(result)),
                f"{whole:.1f} ({short:.1f})",
                f"{median(map(rate, result)) / 1e3:,.0f}",
                f"{median(turn.seconds for turn in result):.1f}",
                f"{median(turn.long['peak_pss_mb'] for turn in result):,.0f}",
                lead,
                f"{whole / in_process:.2f}" if in_process and side != "in_process" else "",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def latencies(turns: Iterable[Record]) -> str:
    """Medians of the runs that events flow into, as a Markdown table."""
    by: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for turn in turns:
        if turn.mode != "kafka":
            by[processor(turn), turn.data, turn.side].append(turn)
    lines = [f"| {' | '.join(LATENCY_HEAD)} |", f"|{'---|' * len(LATENCY_HEAD)}"]
    for (where, data, side), result in sorted(by.items()):
        seconds = [median(turn.extra[name] for turn in result) for name in ("latency_p50_s", "latency_p99_s")]
        cost = median(turn.marginal("cpu_s") for turn in result)
        memory = median(turn.long["peak_pss_mb"] for turn in result)
        given = [f"{value:.2f}" for value in (cost, *seconds)]
        lines.append(f"| {' | '.join((where, data, side, str(len(result)), *given, f'{memory:,.0f}'))} |")
    return "\n".join(lines)


def legs_of(turns: list[Record]) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
    """The whole runs and the short ones."""
    return [turn.long for turn in turns], [turn.short or {"cpu_s": 0.0} for turn in turns]
