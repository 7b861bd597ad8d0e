"""The process that the Python workers of an embedded session are forked from: what every task needs is loaded before.

PySpark's own daemon loads nothing, for a process with threads must not fork, and Arrow may begin one. The script that starts
this one, ``python-worker``, keeps Arrow from it; where there is a thread all the same, PySpark's daemon takes over and each
worker loads for itself.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from typing import Final

import numpy
import pyarrow.compute
import pyarrow.parquet
from pyspark import daemon, worker

from krishiv_py.spark.tasks import bounded, pack, processor, rows

LOADED: Final = (pyarrow.compute, pyarrow.parquet, worker, bounded, pack, processor, rows)
"""Modules that tasks begin with. More is loaded by those who use it."""

ALLOCATOR: Final = "JE_ARROW_MALLOC_CONF"
"""The variable by which the script keeps Arrow's allocator from threads; programs that tasks start need not know."""

_THREADS: Final = "/proc/self/task"
_WORKER: Final = daemon.worker


def _chance() -> None:
    """Give each worker random numbers of its own, as if it had loaded NumPy itself."""
    if "numpy.random" in sys.modules:
        numpy.random.seed()


def _one(sock: socket.socket, authenticated: bool) -> int:
    """Be a worker until its task is over; PySpark shows a traceback where Spark, at its end, wants no answer any more."""
    try:
        return _WORKER(sock, authenticated)
    except BrokenPipeError:
        os._exit(0)


def serve() -> None:
    """Be PySpark's daemon for the rest of this process."""
    daemon.worker = _one
    os.environ.pop(ALLOCATOR, None)
    if len(os.listdir(_THREADS)) != 1:
        os.execv(sys.executable, [sys.executable, "-m", daemon.__name__, *sys.argv[1:]])
    os.register_at_fork(after_in_child=_chance)
    gc.collect()
    gc.freeze()  # a collection in a worker would copy all pages that are shared with this process
    daemon.manager()
