"""Many small batches of one query: memory, objects, open files and files on disk over time, as figures and as a plot.

``python -m nox -s soak -- --plot soak.svg`` runs 20 000 batches of 1 000 events, or two hours, in process; ``--engine spark``
is the same on Spark, where the memory and the handles are those of all its processes. Sends are trimmed now and then, as a
service would do. What grows without an end would show: the last quarter is compared with the second one, and the exit code
is 1 where it has more. The first quarter is not looked at, as the newest million results stay in memory for lookups.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import psutil
import pyarrow as pa
from attrs import frozen

from benchmarks import ordered
from krishiv_py import ParquetSink, Session, SideOutputLateEventHandler, count, own_process, step
from krishiv_py import sum as total
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream

DDL: Final = "user bigint, at bigint, amount bigint"
ARROW: Final = pa.schema([("user", pa.int64()), ("at", pa.int64()), ("amount", pa.int64())])
SAMPLES: Final = 200
ENGINES: Final = ("in-process", "spark")
SLACK: Final = {"memory_mb": 10.0, "arrow_mb": 1.0, "objects": 500.0, "handles": 4.0, "files": 10.0}
"""What is measured, and by how much the last quarter may have more than the second one, in addition to a twentieth."""
Plan: TypeAlias = Callable[[Stream], ResultStream]


def _joined(stream: Stream) -> ResultStream:
    """The input met with a part of itself."""
    other = (
        stream.filter("amount < 10").rename(**{"user": "customer", "at": "seen", "amount": "price"}).watermark("seen", 5_000)
    )
    return stream.watermark("at", 5_000).interval_join(other, on={"user": "customer"}, lower=-500, upper=500, how="left")


_ENDLESS: Final = step("began", "amount < 50").followed_by(step("never", "amount > 1000000"))
JOBS: Final[Mapping[str, Plan]] = {
    "tumbling": lambda s: s.watermark("at", 5_000).key_by("user").tumbling_window(10_000).agg(count(), total("amount")),
    "session": lambda s: s.watermark("at", 5_000).key_by("user").session_window(1_500).agg(count(), total("amount")),
    "lookback": lambda s: s.watermark("at", 5_000).key_by("user").lookback_window(3_000).agg(count(), total("amount")),
    "dedup": lambda s: s.watermark("at", 5_000).drop_duplicates("user", "amount", within=3_000),
    "join": _joined,
    "process": lambda s: (
        s.watermark("at", 5_000).key_by("user").process(ordered.ByRow(), returns="rows bigint", state=ordered.Seen)
    ),
    "absence": lambda s: s.watermark("at", 5_000).key_by("user").absent(8_000, repeat=5_000, forget_after=20_000),
    "pattern": lambda s: s.watermark("at", 5_000).key_by("user").match(_ENDLESS, max_rows_per_key=50),
}


@frozen
class Load:
    """What a query gets.

    Attributes
    ----------
    batches, rows, keys : int
        How many batches, rows of each, and users.
    minutes : float
        When to end at the latest.
    trimmed : int
        After how many batches the sends that were read go.
    """

    batches: int = 20_000
    rows: int = 1_000
    keys: int = 2_000
    minutes: float = 120
    trimmed: int = 100


@frozen
class Sample:
    """What was seen after so many batches."""

    batches: int
    seconds: float
    values: Mapping[str, float]


def seen(home: str) -> dict[str, float]:
    """What this process and those below it hold, and the files of checkpoint and stream."""
    gc.collect()
    mine, resident, handles = psutil.Process(), 0, 0
    for process in (mine, *mine.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            resident, handles = resident + process.memory_info().rss, handles + process.num_fds()
    files = sum(len(names) for top in ("checkpoint", "sent") for _, _, names in os.walk(f"{home}/{top}"))
    held = (resident / 1e6, pa.total_allocated_bytes() / 1e6, len(gc.get_objects()), handles, files)
    return dict(zip(SLACK, map(float, held), strict=True))


def session_of(engine: str) -> Session:
    """A session of an engine."""
    own_process()
    return Session.in_process() if engine == "in-process" else Session.builder().master("local[2]").get_or_create()


def soak(session: Session, plan: Plan, load: Load) -> list[Sample]:
    """Run one query, and look at about 200 moments right after sends were trimmed."""
    result, dice = list[Sample](), np.random.default_rng(1)
    every = max(load.batches // SAMPLES // load.trimmed, 1) * load.trimmed
    with tempfile.TemporaryDirectory() as home:
        stream, sender = session.memory_stream(DDL, spool=f"{home}/sent")
        results = plan(stream).with_late_event_handler(SideOutputLateEventHandler(ParquetSink(f"{home}/late")))
        query = results.start(ParquetSink(f"{home}/out"), checkpoint=f"{home}/checkpoint")
        began = time.monotonic()
        for number in range(1, load.batches + 1):
            times = number * 1_000 + np.arange(load.rows) * 1_000 // load.rows  # a batch is a second
            late = np.where(dice.random(load.rows) < 0.001, 60_000, 0)
            columns = [dice.integers(0, load.keys, load.rows), times - late, dice.integers(0, 100, load.rows)]
            sender.send(pa.record_batch(columns, schema=ARROW))
            query.process_all_available()
            if number % load.trimmed == 0:
                sender.trim()
            over = time.monotonic() - began
            if number % every == 0:
                result.append(Sample(number, over, seen(home)))
            if over > load.minutes * 60:
                break
        query.stop()
    return result


def quarters(result: Sequence[Sample], name: str) -> tuple[float, float]:
    """The medians of the second and of the last quarter of a run."""
    values, size = [sample.values[name] for sample in result], max(len(result) // 4, 1)
    return float(np.median(values[size : 2 * size] or values)), float(np.median(values[-size:]))


def growing(result: Sequence[Sample]) -> list[str]:
    """What is not flat."""
    medians = {name: quarters(result, name) for name in SLACK}
    return [name for name, (second, last) in medians.items() if last > 1.05 * second + SLACK[name]]


def drawn(result: Sequence[Sample]) -> str:
    """The plot as SVG: a line for each figure, each with its own scale from 0 to its largest value."""
    width, height, left = 800, 110, 110
    bottom = len(SLACK) * height
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 30}" font-family="sans-serif">']
    most_batches = result[-1].batches
    for i, name in enumerate(SLACK):
        values = [sample.values[name] for sample in result]
        top, most = i * height + 10, max(values) or 1
        points = " ".join(
            f"{left + (width - left - 10) * sample.batches / most_batches:.1f},{top + (height - 30) * (1 - value / most):.1f}"
            for sample, value in zip(result, values, strict=True)
        )
        parts.append(f'<text x="5" y="{top + 14}" font-size="13">{name}</text>')
        parts.append(f'<text x="5" y="{top + 32}" font-size="12">0 to {most:,.0f}</text>')
        parts.append(f'<polyline points="{points}" fill="none" stroke="#225588" stroke-width="1.5"/>')
    parts.append(f'<text x="{left}" y="{bottom + 15}" font-size="12">batches 0 to {most_batches}</text></svg>')
    return "\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    usual = Load()
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0])
    parser.add_argument("--job", choices=JOBS, default="tumbling")
    parser.add_argument("--batches", type=int, default=usual.batches)
    parser.add_argument("--rows", type=int, default=usual.rows, help="events of a batch")
    parser.add_argument("--minutes", type=float, default=usual.minutes)
    parser.add_argument("--plot", type=Path, help="where the SVG goes")
    given = parser.parse_args(argv)
    with session_of(given.engine) as session:
        result = soak(session, JOBS[given.job], Load(given.batches, given.rows, minutes=given.minutes))
    if len(result) < 4:
        parser.error(f"{given.batches} batches in {given.minutes} minutes are too few for a comparison of quarters")
    figures: dict[str, float | str] = {"engine": given.engine, "job": given.job, "batches": result[-1].batches}
    figures["seconds"] = round(result[-1].seconds, 1)
    for name in SLACK:
        figures[f"{name}_second_quarter"], figures[f"{name}_last_quarter"] = quarters(result, name)
    print(json.dumps(figures))
    if given.plot:
        given.plot.write_text(drawn(result))
    grown = growing(result)
    if grown:
        print(f"not flat: {', '.join(grown)}")
    return 1 if grown else 0


if __name__ == "__main__":
    raise SystemExit(main())
