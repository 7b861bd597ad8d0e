"""The kept runs in short: medians and spread over the rounds of a side."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from statistics import median
from typing import Final

from attrs import frozen

from benchmarks.record import Record
from benchmarks.sides import SIDES

MODES: Final = ("backlog", "whole", "steady", "micro", "open_state", "bounded")
NEAR_S: Final = 900.0
"""Turns with no more than this between them are of one round; other sides may have theirs meanwhile."""


@frozen
class Summary:
    """The rounds of one side in one case on one processor; what ran on different ones is never compared."""

    mode: str
    job: str
    data: str
    side: str
    processor: str
    unit: str
    rounds: int
    failed: int
    cpu: float
    """CPU seconds per unit, marginal, median."""
    low: float
    high: float
    wall: float
    whole_s: float
    """CPU of the whole run, start-up included."""
    start_s: float
    """CPU of the short run less what its units cost: start-up."""
    memory_mb: float
    seconds: float
    """See :attr:`~benchmarks.record.Record.seconds`."""
    extra: dict[str, float]
    turns: tuple[tuple[float, float], ...]
    """Begin and end of each round that counts, in seconds of the clock, in order."""

    @property
    def clear(self) -> bool:
        """Whether the CPU of its work stands out from that of starting in every round."""
        return self.low > 0

    @property
    def title(self) -> str:
        """The side, for people."""
        return SIDES[self.side].title if self.side in SIDES else self.side


def summarize(records: Iterable[Record]) -> list[Summary]:
    """Medians over the rounds that count, by case, side and processor."""
    groups: dict[tuple[str, str, str, str, str], list[Record]] = defaultdict(list)
    for kept in records:
        groups[kept.mode, kept.job, kept.data, kept.side, processor(kept)].append(kept)
    order = {name: number for number, name in enumerate(SIDES)}
    result = [summary(rounds) for rounds in groups.values() if any(kept.ok for kept in rounds)]
    return sorted(result, key=lambda s: (MODES.index(s.mode), s.job, data_key(s.data), s.processor, order.get(s.side, 99)))


def processor(kept: Record) -> str:
    """The processor a round ran on, without marks and clock."""
    bare = re.sub(r"\(R\)|\(TM\)|\b(Processor|CPU)\b|@[^,]*", " ", kept.machine.get("processor", ""))
    return " ".join(bare.split()).replace(" ,", ",")


def data_key(name: str) -> tuple[str, int]:
    """Sort data by set, then by size."""
    head, _, size = name.rpartition("-")
    return (head, int(size)) if size.isdigit() else (name, 0)


def summary(rounds: Sequence[Record]) -> Summary:
    """Summary of the rounds of one side."""
    good = [kept for kept in rounds if kept.ok]
    costs = sorted(kept.marginal("cpu_s") for kept in good)
    starts = [kept.short["cpu_s"] - kept.marginal("cpu_s") * kept.short_units for kept in good if kept.short]
    names = {name for kept in good for name in kept.extra}
    first = good[0]
    return Summary(
        mode=first.mode,
        job=first.job,
        data=first.data,
        side=first.side,
        processor=processor(first),
        unit=first.unit,
        rounds=len(good),
        failed=len(rounds) - len(good),
        cpu=median(costs),
        low=costs[0],
        high=costs[-1],
        wall=median(kept.marginal("wall_s") for kept in good),
        whole_s=median(kept.long["cpu_s"] for kept in good),
        start_s=median(starts) if starts else 0.0,
        memory_mb=median(kept.long["peak_pss_mb"] for kept in good),
        seconds=median(kept.seconds for kept in good),
        turns=tuple(sorted(map(span, good))),
        extra={name: median(kept.extra[name] for kept in good if name in kept.extra) for name in sorted(names)},
    )


def span(kept: Record) -> tuple[float, float]:
    """Begin and end of a turn."""
    begin = datetime.fromisoformat(kept.started).timestamp()
    return begin, begin + sum(leg["wall_s"] for leg in (kept.short, kept.long) if leg)


def interleaved(one: Summary, other: Summary) -> int:
    """How many rounds of two sides were interleaved: pairs of turns near each other, each turn in one pair at most."""
    pairs = i = j = 0
    while i < len(one.turns) and j < len(other.turns):
        (begin, end), (other_begin, other_end) = one.turns[i], other.turns[j]
        if max(begin - other_end, other_begin - end) <= NEAR_S:
            pairs, i, j = pairs + 1, i + 1, j + 1
        elif begin < other_begin:
            i += 1
        else:
            j += 1
    return pairs
