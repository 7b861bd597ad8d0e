"""Cost of planning files: a folder of many small files, and a query that has read very many. No JVM is started.

``python -m benchmarks.names 10000 1000000`` prints a table: what a listing costs, what a start and a plan of one new file cost
in CPU seconds, and what the names take on disk and in memory.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow as pa

from krishiv_py.plan.nodes import FileSource
from krishiv_py.runtime.ranges.folders import FolderSource, PlannedNames
from krishiv_py.runtime.reading import file_reader
from krishiv_py.storage.files import files_at

_SCHEMA = pa.schema([("at", pa.int64())])
_A_PART = 10_000


def seconds(call: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def megabytes() -> float:
    """The memory that this process has now; its maximum would be that of the process it was made by."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def start(folder: str) -> tuple[float, float]:
    """CPU seconds and memory of reading the names; for a process of its own."""
    before, began = megabytes(), time.process_time()
    taken = PlannedNames.open(folder, durable=False)
    took = time.process_time() - began
    taken.loaded = []  # as when the source was looked at
    gc.collect()
    return took, megabytes() - before


def folder_of(files: int, home: str) -> FolderSource:
    """A source over so many files of one line."""
    (Path(home) / "in").mkdir()
    for n in range(files):
        Path(f"{home}/in/events-{n:09d}.json").write_text('{"at": 1}\n')
    source = FileSource(f"{home}/in", "json", _SCHEMA, False, literal=True)
    return FolderSource(source, file_reader(source, _SCHEMA), 2)


def measure(files: int, names: int) -> list[tuple[str, str]]:
    """Figures by what they are of."""
    with tempfile.TemporaryDirectory() as home:
        folder, taken = folder_of(files, home), PlannedNames(f"{home}/names", durable=False)
        folder.plans(taken)
        result = [
            (f"list {files} files, s", f"{seconds(lambda: files_at(f'{home}/in', literal=True)):.3f}"),
            (f"plan {files} files, s", f"{seconds(lambda: folder.plan(None)):.3f}"),
        ]
        Path(f"{home}/in/one.json").write_text('{"at": 1}\n')
        result.append((f"find and plan 1 new file next to {files}, s", f"{seconds(lambda: folder.plan(None)):.3f}"))
        dice = random.Random(1)
        many = PlannedNames(f"{home}/many", durable=False)
        paths = [(f"/data/events/{n // _A_PART:04d}/{uuid.UUID(int=dice.getrandbits(128))}.json", n) for n in range(names)]
        began, slowest = time.process_time(), 0.0
        for i in range(0, names, _A_PART):
            part = paths[i : i + _A_PART]
            slowest = max(slowest, seconds(lambda part=part, at=i: many.keep(part, at // _A_PART)))  # type: ignore[misc]
        result.append((f"write {names} names in parts of {_A_PART}, s", f"{time.process_time() - began:.2f}"))
        result.append(("the slowest part, s", f"{slowest:.2f}"))
        size = sum(os.path.getsize(f"{home}/many/{name}") for name in os.listdir(f"{home}/many"))
        result.append((f"{names} names on disk, MB", f"{size / 1e6:.1f}"))
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as another:
            took, more = another.submit(start, f"{home}/many").result()
        result.append((f"start with {names} names, s", f"{took:.2f}"))
        result.append(("memory for that, MB", f"{more:.0f}"))
        return result


if __name__ == "__main__":
    for what, figure in measure(*map(int, sys.argv[1:3] or ("10000", "1000000"))):
        print(f"| {what} | {figure} |")
