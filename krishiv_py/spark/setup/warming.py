"""What an embedded session does beside its user: Python workers begin."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession


def begin_workers(spark: SparkSession) -> None:
    """Let Spark start the process that workers are forked from, while its first query is being planned."""
    threading.Thread(target=_begin, args=(spark,), name="krishiv-workers", daemon=True).start()


def _begin(spark: SparkSession) -> None:
    with suppress(PySparkException, Py4JError, OSError, AttributeError):  # the session may be over by now
        spark.sparkContext.parallelize([0], 1).foreach(_nothing)


def _nothing(_: Any) -> None:
    """A task that only needs a worker."""
