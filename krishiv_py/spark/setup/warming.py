"""Define what an embedded session does next to its user: Python workers begin, and on request a class archive is made once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from krishiv_py.spark.setup.class_archive import SWITCH, archive_path, tried_path
from krishiv_py.spark.setup.java import java_found

_MAKER: Final = "krishiv_py.cli.warm"
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
