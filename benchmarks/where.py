"""Where the CPU seconds of a Spark job go, by what each thread is for: ``python -m benchmarks.where -- python -m ... ``.

Threads are sampled by name while the command runs, so what lives shorter than the interval is missed; sums are of user and
system time. It explains a figure of ``measure.py``, and stands for none.
"""

from __future__ import annotations

import argparse
import collections
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

INTERVAL_S: Final = 0.1
TICKS: Final = os.sysconf("SC_CLK_TCK")
JVM: Final = (
    ("C1 Comp", "JVM: compilers"),
    ("C2 Comp", "JVM: compilers"),
    ("GC ", "JVM: garbage collection"),
    ("VM ", "JVM: garbage collection"),
    ("G1 ", "JVM: garbage collection"),
    ("Executor task", "JVM: tasks"),
    ("stdout writer", "JVM: tasks"),
    ("Writer for", "JVM: tasks"),
    ("stateConnection", "JVM: tasks"),
    ("state-store", "JVM: tasks"),
    ("rocksdb:", "JVM: tasks"),
    ("stream executio", "JVM: micro-batches planned"),
)
"""Beginnings of the names of threads, and what these are for; the kernel keeps 15 characters of a name."""
OTHER: Final = "JVM: start, all else"
PYTHON: Final = ("Python: program", "Python: operators on the driver", "Python: workers")
ORDER: Final = (*dict.fromkeys(part for _, part in JVM), OTHER, *PYTHON)


def part_of(process: psutil.Process, root: int, name: str) -> str:
    """What a thread is for."""
    command = " ".join(process.cmdline()[:6])
    if "java" in process.name():
        return next((part for start, part in JVM if name.startswith(start)), OTHER)
    if "transform_with_state_driver_worker" in command:
        return PYTHON[1]
    return PYTHON[0] if process.pid == root else PYTHON[2]


def threads(process: psutil.Process) -> Iterator[tuple[int, str, float]]:
    """Number, name and CPU seconds of each thread of a process."""
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        text = (task / "stat").read_text()
        name, _, rest = text.partition("(")[2].rpartition(")")
        fields = rest.split()
        yield int(task.name), name, (int(fields[11]) + int(fields[12])) / TICKS


def watched(command: Sequence[str]) -> Mapping[str, float]:
    """Run a command; CPU seconds by part."""
    result: dict[tuple[int, int], tuple[str, float]] = {}
    kinds: dict[tuple[int, int], str] = {}
    with subprocess.Popen(command) as begun:
        root = psutil.Process(begun.pid)
        while begun.poll() is None:
            try:
                every = [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                break
            for process in every:
                try:
                    for thread, name, used in threads(process):
                        moment = (process.pid, thread)
                        if moment not in kinds or not process.name().startswith("java"):
                            kinds[moment] = part_of(process, begun.pid, name)
                        result[moment] = (kinds[moment], used)
                except (OSError, psutil.Error, IndexError):
                    continue  # it has ended
            time.sleep(INTERVAL_S)
        if begun.returncode:
            raise SystemExit(begun.returncode)
    sums: dict[str, float] = collections.defaultdict(float)
    for part, used in result.values():
        sums[part] += used
    return sums


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.where", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", nargs="+", help="after --")
    sums = watched(parser.parse_args(argv).command)
    for part in ORDER:
        print(f"{sums.get(part, 0.0):8.1f}  {part}")
    print(f"{sum(sums.values()):8.1f}  all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
