"""Rows a CPU second of stages in settled order, in process, with a checkpoint: ``python -m benchmarks.ordered [name ...]``.

Each stage reads a million rows of 10 000 keys in sends of 100 000, with a lag of a second; rounds of all stages take turns, and
the median counts. CPU seconds are those of the whole process, from the first send to the last result.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py import Context, Events, MemorySink, RoundContext, Row, Session, coalesce, col, count, first, last, prev, step

ROWS, SEND, KEYS, ROUNDS = 1_000_000, 100_000, 10_000, 3


@attrs.define
class Seen:
    """The number of rows of a key, and when it had the last one."""

    rows: int = 0
    at: int = 0


class ByRow:
    """Counts rows, and reports a key that was silent for a minute, one call an event."""

    def on_row(self, row: Row, state: Seen, ctx: Context) -> None:
        """Count a row."""
        state.rows += 1
        ctx.timer("idle", after="1 minute")

    def on_timer(self, name: str, state: Seen, ctx: Context) -> Iterator[dict[str, Any]]:
        """Report the key."""
        yield {"rows": state.rows}


class ByRound:
    """The same, many keys a call."""

    def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
        """Count rows, and report keys."""
        state.rows = state.rows + events.is_row
        ctx.timer("idle", after="1 minute", where=events.is_row)
        ctx.emit(where=~events.is_row, rows=state.rows)


_A, _B, _C = (step(name, col("kind") == number) for number, name in enumerate("ABC"))
_FALLS: Final = step("down", col("value") < prev("value")).times(2, 9)
_FALLS_SO_FAR: Final = step("down", col("value") < coalesce(last("down.value", 1), last("top.value"))).times(2, 9)
_RISES: Final = step("up", col("value") > last("down.value"))
STAGES: Final[dict[str, Callable[[Any], Any]]] = {
    "process, a row a call": lambda s: s.process(ByRow(), returns="rows bigint", state=Seen),
    "process, rounds": lambda s: s.process(ByRound(), returns="rows bigint", state=Seen),
    "absence": lambda s: s.absent("1 minute"),
    "rows before": lambda s: s.with_previous(before=prev("value")),
    "pattern, three steps, rare": lambda s: s.match(_A.then(_B).then(_C), within="5 min", measures=first("A.value").alias("v")),
    "pattern, relaxed, rare": lambda s: s.match(
        _A.followed_by(_B).followed_by(_C), within="5 min", measures=last("value").alias("v")
    ),
    "pattern, absence at the end": lambda s: s.match(_A.without(_B, within="30 s")),
    "pattern, each row begins one": lambda s: s.match(step("top").then(_FALLS), within="5 min", measures=count().alias("n")),
    "pattern, rows of the match": lambda s: s.match(step("top").then(_FALLS_SO_FAR).then(_RISES), within="5 min"),
}


def _sends() -> list[pa.Table]:
    chance, sends = np.random.default_rng(1), []
    for number in range(ROWS // SEND):
        rare = chance.random(SEND) < 0.001
        sends.append(
            pa.table(
                {
                    "key": chance.integers(0, KEYS, SEND),
                    "at": np.sort(chance.integers(number * 60_000, (number + 1) * 60_000, SEND)),
                    "kind": np.where(rare, 0, chance.integers(1, 10, SEND)),
                    "value": chance.integers(0, 1_000, SEND),
                }
            )
        )
    return sends


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(stage: Callable[[Any], Any], sends: list[pa.Table]) -> float:
    """Return the rows a CPU second of a query."""
    with Session.in_process() as session, tempfile.TemporaryDirectory() as folder:
        stream, sender = session.memory_stream("key bigint, at bigint, kind bigint, value bigint")
        query = stage(stream.watermark("at", "1 s").key_by("key")).start(MemorySink(), checkpoint=folder)
        before = _cpu_s()
        for send in sends:
            sender.send(send)
            query.process_all_available()
        used = _cpu_s() - before
        query.stop()
    return ROWS / used


def main(names: list[str]) -> None:
    """Print the median of each stage."""
    wanted = {name: stage for name, stage in STAGES.items() if not names or any(part in name for part in names)}
    sends, figures = _sends(), {name: list[float]() for name in wanted}
    for _ in range(ROUNDS):
        for name, stage in wanted.items():
            figures[name].append(measured(stage, sends))
    for name, each in figures.items():
        print(f"{name:30} {statistics.median(each) / 1e6:6.2f} million rows a CPU second")


if __name__ == "__main__":
    main(sys.argv[1:])
