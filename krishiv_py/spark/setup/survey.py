"""A task on every executor, and what it finds there: Python, packages, clock, and the folders a query needs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.sql import SparkSession

from krishiv_py.errors import EnvironmentSetupError
from krishiv_py.spark.setup.config import is_connect, is_here
from krishiv_py.spark.setup.workers import mapped
from krishiv_py.storage.files import store_at
from krishiv_py.storage.settings import Stores
from krishiv_py.version import __version__

PACKAGES: Final = ("pyspark", "pyarrow", "numpy", "pandas", "attrs", "protobuf")
"""Packages whose versions tasks and the driver should agree on."""

TOKEN: Final = "_krishiv-probe-"
"""How the names of files begin that are written to try a folder, and removed again."""

_ROUNDS: Final = 5
_LINGER_S: Final = 0.2
_EXECUTOR: Final = "--executor-id"
_EXECUTOR_S: Final = 60


@attrs.frozen
class Machine:
    """Holds what a task found on its executor.

    Attributes
    ----------
    host : str
        Name of the machine.
    executor : str
        Spark's number of the executor, ``driver`` in local mode, ``?`` where it is not known.
    process : int
        Process id of the executor's JVM.
    python : str
        Version of the task's Python.
    interpreter : str
        Its path.
    versions : dict of str to str
        Versions of the library and of the packages it needs; empty text for one that is missing.
    clock_s : float
        The machine's clock, in seconds since the epoch.
    problems : dict of str to str
        By folder why the task cannot use it; without those it can.
    skew_s : float
        By how much its clock is at least ahead of the driver's, in seconds; a smaller skew than the tasks took is not seen.
    """

    host: str
    executor: str
    process: int
    python: str
    interpreter: str
    versions: dict[str, str]
    clock_s: float
    problems: dict[str, str]
    skew_s: float = 0.0


@attrs.frozen
class Folder:
    """A folder to be tried: tasks read the driver's `token` there and write one of their own; without, it must be there."""

    path: str
    token: str | None


def versions() -> dict[str, str]:
    """Return the versions of the library and of :data:`PACKAGES` in this process; empty text for one that is missing."""
    versions_of = {"krishiv_py": __version__}
    for name in PACKAGES:
        try:
            versions_of[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # a zip on PYTHONPATH, as Spark's own PySpark, has no metadata
            module = sys.modules.get(name)
            versions_of[name] = str(getattr(module, "__version__", ""))
    return versions_of


def survey(
    spark: SparkSession, folders: Sequence[Folder] = (), linger_s: float = _LINGER_S, rounds: int = _ROUNDS
) -> list[Machine]:
    """Run tasks until every executor has been seen; each executor once, in order of host and number.

    Executors that are busy with other work may be missed: tasks are sent a few times, not for ever.

    Raises
    ------
    EnvironmentSetupError
        When the cluster gives no executor within a minute: tasks would wait for ever.
    """
    _await_executor(spark)
    wanted, slots = _executors(spark), _slots(spark)
    seen: dict[tuple[str, int], Machine] = {}
    for _ in range(rounds):
        answers = _asking([attrs.astuple(folder) for folder in folders], linger_s)
        began = time.time()
        rows = mapped(spark.range(0, 2 * slots, 1, 2 * slots), answers, "found string").collect()
        ended = time.time()
        for row in rows:
            machine = Machine(**json.loads(row[0]))
            skew_s = min(0.0, machine.clock_s - began) + max(0.0, machine.clock_s - ended)
            machine = attrs.evolve(machine, skew_s=skew_s)
            seen.setdefault((machine.host, machine.process), machine)
        if wanted is None or len(seen) >= wanted:
            break
    return sorted(seen.values(), key=lambda machine: (machine.host, machine.executor, machine.process))


def _asking(folders: list[Any], linger_s: float) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    stores = Stores()  # goes with the function to the tasks

    def answered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        time.sleep(linger_s)  # so that one executor does not take all tasks before another has begun
        assert stores is not None
        answer = look(tuple(Folder(*folder) for folder in folders))
        yield pa.RecordBatch.from_pydict({"found": [json.dumps(attrs.asdict(answer))]})

    return answered


def look(folders: Sequence[Folder]) -> Machine:
    """Return what this process finds, in a task."""
    process, executor = _executor()
    return Machine(
        socket.gethostname(),
        executor,
        process,
        platform.python_version(),
        sys.executable,
        versions(),
        time.time(),
        {folder.path: problem for folder in folders if (problem := _problem(folder))},
    )


def _problem(folder: Folder) -> str:
    """Why this process cannot use a folder; empty if it can."""
    try:
        store, root = store_at(folder.path)
        if folder.token is None:
            return "it is not there" if not store.exists(root) else ""
        if store.read(f"{root}/{folder.token}") != folder.token.encode():
            return "what the driver wrote is not there"
        own = f"{root}/{folder.token}-{uuid.uuid4().hex[:8]}"
        store.put(own, b"")
        store.delete(own)
    except (OSError, pa.ArrowException) as problem:
        return f"{type(problem).__name__}: {problem}".splitlines()[0]
    return ""


def _executor() -> tuple[int, str]:
    """Return the process of the JVM above this worker, and the executor's number from its command line."""
    pid = os.getppid()
    for _ in range(3):  # worker, daemon, JVM
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            above = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return pid, "?"
        if os.path.basename(words[0]) == "java":
            return pid, words[words.index(_EXECUTOR) + 1] if _EXECUTOR in words[:-1] else "driver"
        pid = above
    return pid, "?"


def _executors(spark: SparkSession) -> int | None:
    """Return how many executors there are; None where the driver cannot be asked."""
    if is_connect(spark):
        return None
    if is_here(str(spark.sparkContext.master)):
        return 1
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver is in it


def _await_executor(spark: SparkSession) -> None:
    end = time.monotonic() + _EXECUTOR_S
    while _executors(spark) == 0:
        if time.monotonic() > end:
            raise EnvironmentSetupError(
                f"the cluster gave no executor within {_EXECUTOR_S} s",
                got=f"master {spark.sparkContext.master}",
                hint="look at the master's page whether its workers have the memory and cores that are requested, "
                "and at the executors' logs whether they reach the driver (spark.driver.host)",
            )
        time.sleep(0.05)


def _slots(spark: SparkSession) -> int:
    return 8 if is_connect(spark) else max(1, int(spark.sparkContext.defaultParallelism))
