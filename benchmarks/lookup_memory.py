"""Memory that results take for ``lookup(last=...)``: ``python -m benchmarks.lookup_memory``.

Each number of results runs in a process of its own, over a million results of windows with a key, a text and two aggregates.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import Final

import numpy as np
import psutil
import pyarrow as pa

from krishiv_py import ParquetSink, Session, count
from krishiv_py import sum as total

BATCHES: Final = 50
KEYS: Final = 20_000


def grown(most: int) -> float:
    """Return by how many MB this process grows while a million results leave a query."""
    with tempfile.TemporaryDirectory() as folder, Session.in_process(lookup_results=most) as session:
        stream, sender = session.memory_stream("user string, at bigint, n bigint")
        keyed = stream.watermark("at", 0).key_by("user").tumbling_window(10)
        query = keyed.agg(rows=count(), total=total("n")).start(ParquetSink(folder))
        users = pa.array([f"user-{i:012d}" for i in range(KEYS)])
        begun = 0
        for batch in range(BATCHES + 3):
            times = pa.array(np.full(KEYS, batch * 10))
            sender.send(pa.table({"user": users, "at": times, "n": times}))
            query.process_all_available()
            if batch == 2:
                begun = psutil.Process().memory_info().rss
        return float(psutil.Process().memory_info().rss - begun) / 1e6


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(f"{grown(int(sys.argv[1])):.0f}")
    else:
        for results in (0, 10_000, 1_000_000):
            run = subprocess.run(
                [sys.executable, "-m", "benchmarks.lookup_memory", str(results)], capture_output=True, check=True
            )
            print(f"lookup_results={results:<9} {run.stdout.decode().strip()} MB")
