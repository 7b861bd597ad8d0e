"""The Python workers of Spark: their interpreter, the modules they need, how they are warmed and given functions.

PySpark warns that it does not fully support pandas 3 when a session begins, which is for the user to see, and again for each
function it wraps, though it passes Arrow to these and no pandas. The second warning is left out.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from krishiv_py.spark.setup.jvm import SWITCH, archive_path, java_found, tried_path


@functools.cache
def settle_worker(task: Literal["bounded", "pack", "operator"]) -> None:
    """Keep what is loaded by now out of garbage collection, once a process and kind of task.

    Spark's daemon runs a full collection whenever a worker is used again, which with Arrow, NumPy and PySpark loaded takes
    longer than all else Python does in a small micro-batch.
    """
    gc.collect()
    gc.freeze()


def release_memory() -> None:
    """Give back what a task needed at its height: workers wait for the next one, several to a core."""
    pa.default_memory_pool().release_unused()


WORKER: Final = Path(__file__).with_name("python-worker")


def choose_worker_python(*, here: bool = True) -> None:
    """Let workers see the packages this process sees, and PySpark as it is installed rather than Spark's archive of it.

    What the user has chosen, ``PYSPARK_PYTHON``, stays. The archive stays too where it may be another PySpark than the one
    installed, or the script next to this file cannot be run. Machines of a cluster (not `here`) may lack the script: there the
    path of this interpreter is asked for, as ``spark-submit`` would its own.
    """
    if "PYSPARK_PYTHON" in os.environ:
        return
    if here and _is_installed() and os.access(WORKER, os.X_OK):
        os.environ["KRISHIV_WORKER_PYTHON"] = sys.executable
        os.environ["PYSPARK_PYTHON"] = str(WORKER)
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable


def _is_installed() -> bool:
    """Return whether Spark is the one in the installed PySpark, which any process of this Python finds by itself."""
    package = Path(pyspark.__file__).parent
    home = os.environ.get("SPARK_HOME")
    return package.parent in {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")} and (
        home is None or Path(home).resolve() == package.resolve()
    )


def send_whole(module: ModuleType) -> None:
    """Send functions and classes of a module as they are: workers do not find the file of a job on their path."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


Clock: TypeAlias = Literal["None", "EventTime"]


def mapped(frame: DataFrame, function: Callable[..., Any], columns: Any) -> DataFrame:
    """Return ``frame.mapInArrow(function, columns)``."""
    with _quiet():
        return frame.mapInArrow(function, columns)


def with_state(frame: DataFrame, processor: Any, columns: Any, clock: Clock) -> DataFrame:
    """Return what a stateful processor makes of the rows of each bucket."""
    grouped = frame.groupBy("bucket")
    with _quiet():
        return grouped.transformWithState(processor, columns, "Append", clock)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning, r"pyspark\.sql\.")
        yield


_MAKER: Final = "krishiv_py.cli.machines"
_AGAIN_S: Final = 86_400
_ROOM: Final = 1 << 30


def begin_workers(spark: SparkSession) -> None:
    """Let Spark start the process that workers are forked from, while its first query is being planned."""
    threading.Thread(target=_begin, args=(spark,), name="krishiv-workers", daemon=True).start()


def _begin(spark: SparkSession) -> None:
    with suppress(PySparkException, Py4JError, OSError, AttributeError):  # the session may be over by now
        spark.sparkContext.parallelize([0], 1).foreach(_nothing)


def _nothing(_: Any) -> None:
    """A task that only needs a worker."""


def make_archive() -> None:
    """Begin to make a class archive for the sessions to come, if that is asked for and there is none.

    It is made in a process of its own, which goes on when this one has ended, and gives way to all others.
    Unasked it is not made: it takes as long as a small job, and where every container is new nobody would have the gain.
    """
    with suppress(OSError, RuntimeError):  # no home, no rights, no room: sessions start as before
        java = java_found()
        if os.environ.get(SWITCH, "").lower() != "auto" or java is None:
            return
        path = archive_path(java)
        tried = tried_path(path)
        if path.exists() or (tried.exists() and time.time() - tried.stat().st_mtime < _AGAIN_S):
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if shutil.disk_usage(path.parent).free < _ROOM:
            return
        tried.touch()
        quiet = subprocess.DEVNULL
        subprocess.Popen([sys.executable, "-m", _MAKER], stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        print(f"krishiv_py: makes {path} (180 MB) in the background, once, to start sessions faster", file=sys.stderr)
