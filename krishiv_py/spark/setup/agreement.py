"""Checks that the parts of a Spark fit together: PySpark here, Spark there, workers' Python, folders of every machine."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

from krishiv_py.errors import EnvironmentSetupError, PlanError, cut, users_line
from krishiv_py.plan.nodes import SourceNode
from krishiv_py.spark import internals
from krishiv_py.spark.setup.config import SHARED, folders_shared, is_connect, is_here
from krishiv_py.spark.setup.workers import WORKER, mapped
from krishiv_py.storage.files import is_local_path, store_at
from krishiv_py.storage.store import Stores
from krishiv_py.version import __version__

PACKAGES: Final = ("pyspark", "pyarrow", "numpy", "pandas", "attrs", "protobuf")
"""Packages whose versions tasks and the driver should agree on."""

TOKEN: Final = "_krishiv-probe-"
"""The beginning of names of files that are written to try a folder, and removed again."""

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
    """Return the reason why this process cannot use a folder; empty if it can."""
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
    return int(internals.java_context(spark.sparkContext).sc().getExecutorMemoryStatus().size()) - 1  # the driver is in it


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


_PROBE_S: Final = 60
_PROBE: Final = """
import importlib.util, json, sys
lacks = []
for name, module in {modules!r}:
    try:
        found = importlib.util.find_spec(module) is not None
    except ImportError:
        found = False
    if not found:
        lacks.append(name)
old = ""
if "protobuf" not in lacks:
    try:
        import pyspark.sql.streaming.proto.StateMessage_pb2
    except ImportError:
        pass
    except Exception as problem:
        import google.protobuf
        old = google.protobuf.__version__
print(json.dumps([list(sys.version_info[:2]), lacks, old]))
"""
_MODULES: Final = (
    ("krishiv_py", "krishiv_py"),
    ("attrs", "attr"),
    ("numpy", "numpy"),
    ("pandas", "pandas"),
    ("protobuf", "google.protobuf"),
    ("pyarrow", "pyarrow"),
    ("sqlglot", "sqlglot"),
)
"""Packages that tasks import, by the names that pip knows."""


def check_agreement(spark: SparkSession, *, given: bool) -> None:
    """Refuse a session of which the parts do not fit together; `given` says that somebody else made it.

    Raises
    ------
    EnvironmentSetupError
        When PySpark here and the Spark that runs are of different versions, or the workers' Python lacks packages.
    """
    check_versions(pyspark.__version__, str(spark.version), connect=is_connect(spark))
    if not is_connect(spark):
        check_worker_python(str(spark.sparkContext.pythonExec), given=given)


def check_versions(here: str, there: str, *, connect: bool) -> None:
    """Compare the version of PySpark `here` with that of the Spark `there`, which are one release where all is well.

    A Spark Connect server that is newer than its client may work, and is a warning.

    Raises
    ------
    EnvironmentSetupError
        When they differ, and cannot work together.
    """
    mine, theirs = _release(here), _release(there)
    if mine == theirs or None in (mine, theirs):
        return
    wanted = f'pip install "pyspark=={_text(theirs)}.*"'
    if connect and mine is not None and theirs is not None and theirs > mine:
        warnings.warn(
            f"the Spark Connect server is Spark {there}, and PySpark here is {here}: calls may fail. Hint: {wanted}",
            RuntimeWarning,
            stacklevel=users_line(),
        )
        return
    raise EnvironmentSetupError(
        "PySpark and the Spark that runs are of different versions",
        got=f"PySpark {here} in this Python ({Path(pyspark.__file__).parent}), and "
        f"{'the Spark Connect server' if connect else 'the Spark'} is {there}",
        then="calls between them would fail, some of them in the middle of a query",
        hint=f"use one version: {wanted}; where a platform brings its own PySpark, uninstall this one, and install the library "
        "without it (docs/deployment.md, Managed Spark)",
    )


def _release(version: str) -> tuple[int, int] | None:
    """Return the major and minor number of a version; None where it has none."""
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def _text(release: tuple[int, int] | None) -> str:
    return "" if release is None else f"{release[0]}.{release[1]}"


def check_worker_python(python: str, *, given: bool) -> None:
    """Look on this machine whether the Python of Spark's workers has what tasks import.

    The driver starts a worker too. The interpreter of this process is not looked at.

    Raises
    ------
    EnvironmentSetupError
        When it is not there, is another Python, or lacks packages.
    """
    if python in (str(WORKER), sys.executable):
        return
    path = shutil.which(python)
    if path is not None and os.path.abspath(path) == os.path.abspath(sys.executable):
        return
    problem = "there is no such program here" if path is None else _problem_of(path)
    if not problem:
        return
    late = "make the SparkSession after that" if given else "set it before the session is made"
    raise EnvironmentSetupError(
        "the Python that Spark starts its workers with cannot run the library",
        got=f"{python}{'' if path in (None, python) else f' ({path})'}: {problem}",
        then="every query would fail with a worker that ends without a word",
        hint=f'write os.environ["PYSPARK_PYTHON"] = sys.executable, and {late}: Spark keeps the Python that it began with. '
        f"This program runs in {sys.executable}",
    )


@functools.lru_cache(maxsize=8)
def _problem_of(path: str) -> str:
    """Return what another Python lacks; empty if nothing is missing."""
    zips = sorted(Path(pyspark.__file__).parent.glob("python/lib/*.zip"))
    home = os.environ.get("SPARK_HOME")
    if home:
        zips += sorted(Path(home).glob("python/lib/*.zip"))
    among = os.pathsep.join([*map(str, zips), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        answer = subprocess.run(
            [path, "-c", _PROBE.format(modules=_MODULES)],
            capture_output=True,
            timeout=_PROBE_S,
            env={**os.environ, "PYTHONPATH": among},
            check=False,
        )
        version, lacks, old = json.loads(answer.stdout.decode().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired) as problem:
        return cut(f"it cannot be run: {problem}", 200)
    except (ValueError, IndexError):
        said = answer.stderr.decode(errors="replace").strip().partition("\n")[0]
        return cut(f"it cannot be run: {said or 'it printed nothing'}", 200)
    if tuple(version) != sys.version_info[:2]:
        return f"it is Python {version[0]}.{version[1]}, and this is {sys.version_info[0]}.{sys.version_info[1]}"
    if lacks:
        return f"it lacks {', '.join(lacks)}"
    return f"its protobuf {old} is too old for this Spark" if old else ""


_HIDDEN_S: Final = 0.02
_PATTERN: Final = re.compile(r"[{}\[\]*?\\]")


def check_cluster(spark: SparkSession, checkpoint: str | None, written: Sequence[str], source: SourceNode) -> None:
    """Refuse folders on this machine's own disk where tasks run on others.

    Raises
    ------
    PlanError
        Naming the path.
    """
    if is_connect(spark):  # tasks are asked whether they find them
        return
    master = str(spark.sparkContext.master)
    if master.startswith("local") or folders_shared(spark):
        return
    for path in [checkpoint, *written, *(p for _, p in source.places)]:
        if path is None or is_local_path(path):
            raise PlanError(
                "tasks run on other machines, and a folder is on this one",
                got=f"{path or 'a temporary checkpoint'}, master {master}",
                then="they would write state and outputs where nobody finds them",
                hint="use hdfs://, s3a://, gs:// or another shared path; where this one is mounted on every machine, say so: "
                f'.config("{SHARED}", "true")',
            )


def check_reach(spark: SparkSession, written: Sequence[str], read: Sequence[str]) -> None:
    """Refuse folders that tasks on other machines do not find: each must read what the driver wrote there.

    `written` are folders that tasks write into, which are made if need be; `read` those they only read.

    Raises
    ------
    PlanError
        Naming the folder, the executor, its machine and what went wrong there.
    """
    if not is_connect(spark) and is_here(str(spark.sparkContext.master)):
        return
    with probed(written, read) as folders:
        # over Connect nobody knows how many executors there are, and when all of them were asked
        for machine in survey(spark, folders, _HIDDEN_S, *([1] if is_connect(spark) else [])):
            for path, problem in machine.problems.items():
                raise _unreached(path, problem, machine)


@contextlib.contextmanager
def probed(written: Sequence[str], read: Sequence[str] = ()) -> Iterator[list[Folder]]:
    """Folders to be tried, for the time of the body: with a token of the driver in each that is `written`."""
    tried: list[Folder] = []
    try:
        for path in dict.fromkeys(written):
            store, root = store_at(path)
            store.make_folder(root)
            tried.append(Folder(path, TOKEN + uuid.uuid4().hex))
            store.put(f"{root}/{tried[-1].token}", str(tried[-1].token).encode())
        yield [*tried, *(Folder(above, None) for above in dict.fromkeys(map(_plain, read)) if above)]
    finally:
        for folder in tried:
            store, root = store_at(folder.path)
            with contextlib.suppress(OSError, pa.ArrowException):
                store.delete(f"{root}/{folder.token}")


def _plain(path: str) -> str:
    """Return the part of a path before what may be a pattern."""
    match = _PATTERN.search(path)
    return path if match is None else path[: match.start()].rpartition("/")[0]


def _unreached(path: str, problem: str, machine: Machine) -> PlanError:
    return PlanError(
        "a task does not find a folder of the query",
        got=f"{path}, executor {machine.executor} on {machine.host}: {problem}",
        then="it would write state and outputs where nobody finds them",
        hint="use a path that every machine reaches; `krishiv doctor --master ... --checkpoint ...` shows which do",
    )
