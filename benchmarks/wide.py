"""CPU time of a batch by its sums, and of a start by its columns: ``python -m benchmarks.wide [rounds]``.

A batch has 1 000 rows of 1 000 keys. Numbers of sums take turns within a round, and the least of each is compared with one sum.
A start is a plan that is made, started in process and given one row.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

import krishiv_py as kv
from krishiv_py import MemorySink, ResultStream, Session, Stream
from krishiv_py.testing import Driver, stream_of

ROWS: Final = 1_000
KEYS: Final = 1_000
BATCHES: Final = 40
"""So many batches of a second each are in a turn."""
SUMS: Final = (1, 10, 100, 300)
STARTS: Final = ((10, 20), (100, 200), (1_500, 3_000))
"""Sums and columns."""


def schema(columns: int) -> str:
    """Return the schema of rows with so many numbers."""
    return ", ".join(["user bigint", "at bigint", *(f"c{i} bigint" for i in range(columns))])


def plan(rows: Stream, sums: int) -> ResultStream:
    """Return so many sums of a minute."""
    windows = rows.watermark("at", 0).key_by("user").tumbling_window("1 min")
    return windows.agg(*(kv.sum(f"c{i}") for i in range(sums)))


def batch(number: int, columns: int) -> pa.Table:
    """Return the rows of a second."""
    dice = np.random.default_rng(number)
    times = np.sort(dice.integers(number * 1_000, number * 1_000 + 1_000, ROWS))
    numbers = {f"c{i}": dice.integers(0, 100, ROWS) for i in range(columns)}
    return pa.table({"user": dice.integers(0, KEYS, ROWS), "at": times, **numbers})


def batches(rounds: int) -> dict[int, float]:
    """Return the milliseconds of a batch by the number of sums."""
    drivers = {sums: Driver(plan(stream_of(schema(sums)), sums)) for sums in SUMS}
    least = dict.fromkeys(SUMS, float("inf"))
    gc.disable()
    for turn in range(rounds + 1):  # the first one opens what is opened once
        for sums, driver in drivers.items():
            rows = [batch(turn * BATCHES + number, sums) for number in range(BATCHES)]
            begin = time.process_time()
            for each in rows:
                driver.send(each)
            took = (time.process_time() - begin) / BATCHES * 1e3
            if turn:
                least[sums] = min(least[sums], took)
        gc.collect()
    gc.enable()
    return least


def start(sums: int, columns: int) -> float:
    """Return the seconds of a start."""
    begin = time.process_time()
    with Session.in_process() as session:
        stream, sender = session.memory_stream(schema(columns))
        with plan(stream, sums).start(MemorySink()) as query:
            sender.send(batch(0, columns).slice(0, 1))
            query.process_all_available()
    return time.process_time() - begin


def main(words: Sequence[str]) -> None:
    """Print a line for each number of sums, and for each start."""
    took = batches(int(words[0]) if words else 3)
    for sums, each in took.items():
        print(f"{sums:5} sums     {each:8.2f} ms a batch, {each / took[SUMS[0]]:6.2f} of one", flush=True)
    start(*STARTS[0])  # loads what is loaded once
    for sums, columns in STARTS:
        print(f"{sums:5} sums of {columns:5} columns: {start(sums, columns):6.2f} s to start and take a row", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
