"""Many small batches of one query in process: memory, open files and files on disk over time, as figures and as a plot.

``python -m benchmarks soak --batches 20000 --minutes 120 --plot soak.svg`` runs until either is reached. Sends are trimmed now
and then, as a service would do. What grows without an end would show: the last quarter is compared with the second one.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from krishiv_py import ParquetSink, Session, count
from krishiv_py import sum as total

ARROW = pa.schema([("user", pa.int64()), ("at", pa.int64()), ("amount", pa.int64())])
ROWS, KEYS, SAMPLES = 1_000, 2_000, 200
MEASURED = ("memory_mb", "handles", "files")


def seen(home: str) -> tuple[float, int, int]:
    """Resident memory in MB, open file handles of this process, and files of checkpoint and stream."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = sum(len(names) for top in ("checkpoint", "sent") for _, _, names in os.walk(f"{home}/{top}"))
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, len(os.listdir("/proc/self/fd")), files


def soak(batches: int, minutes: float) -> list[tuple[float, int, float, int, int]]:
    """Run; gives seconds, batches and what was seen at about 200 moments."""
    result, dice = list[tuple[float, int, float, int, int]](), np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as home, Session.in_process() as session:
        stream, sender = session.memory_stream("user bigint, at bigint, amount bigint", spool=f"{home}/sent")
        plan = stream.watermark("at", 5_000).key_by("user").tumbling_window(10_000).agg(count(), total("amount"))
        query = plan.start(ParquetSink(f"{home}/out"), checkpoint=f"{home}/checkpoint")
        began = time.monotonic()
        for number in range(batches):
            i = np.arange(number * ROWS, (number + 1) * ROWS)
            columns = [dice.integers(0, KEYS, ROWS), i, dice.integers(0, 100, ROWS)]
            sender.send(pa.record_batch(columns, schema=ARROW))
            query.process_all_available()
            if number % 100 == 99:
                sender.trim()
            over = time.monotonic() - began
            if number % max(batches // SAMPLES, 1) == 0:
                result.append((over, number, *seen(home)))
            if over > minutes * 60:
                break
        query.stop()
    return result


def drawn(result: Sequence[tuple[float, int, float, int, int]]) -> str:
    """The plot as SVG: three lines, each with its own scale from 0 to its largest value."""
    width, height, left = 800, 130, 110
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{3 * height + 30}" font-family="sans-serif">']
    most_batches = max(one[1] for one in result) or 1
    for i, name in enumerate(MEASURED):
        values = [one[2 + i] for one in result]
        top, most = i * height + 10, max(values) or 1
        points = " ".join(
            f"{left + (width - left - 10) * one[1] / most_batches:.1f},{top + (height - 30) * (1 - value / most):.1f}"
            for one, value in zip(result, values, strict=True)
        )
        parts.append(f'<text x="5" y="{top + 14}" font-size="13">{name}</text>')
        parts.append(f'<text x="5" y="{top + 32}" font-size="12">0 to {most:.0f}</text>')
        parts.append(f'<polyline points="{points}" fill="none" stroke="#225588" stroke-width="1.5"/>')
    parts.append(f'<text x="{left}" y="{3 * height + 15}" font-size="12">batches 0 to {most_batches}</text></svg>')
    return "\n".join(parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--plot", help="where the SVG goes")
    given = parser.parse_args(argv)
    result = soak(given.batches, given.minutes)
    quarter = max(len(result) // 4, 1)
    settings: dict[str, float] = {"batches": result[-1][1], "seconds": result[-1][0]}
    for i, name in enumerate(MEASURED):
        values = [one[2 + i] for one in result]
        settings[f"{name}_second_quarter"] = float(np.median(values[quarter : 2 * quarter] or values))
        settings[f"{name}_last_quarter"] = float(np.median(values[-quarter:]))
    print(json.dumps(settings))
    if given.plot:
        Path(given.plot).write_text(drawn(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
