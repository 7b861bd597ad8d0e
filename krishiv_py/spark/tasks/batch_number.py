"""The number of the micro-batch that runs, as a task of Spark knows it, and whether it closes keys."""

from __future__ import annotations

import hashlib

import pyarrow as pa
from pyspark import TaskContext

from krishiv_py.runtime.closings import noted_keys


def batch_setting(checkpoint: str) -> str:
    """Return where tasks find the number of the running micro-batch over Spark Connect, which does not tell it them."""
    return f"spark.krishiv.batch.{_mark(checkpoint)}"


def closing_setting(checkpoint: str) -> str:
    """Return where tasks find the number of the last micro-batch that closes keys."""
    return f"spark.krishiv.closing.{_mark(checkpoint)}"


def batch_number(checkpoint: str) -> int:
    """Return the number of the running micro-batch of the query with this checkpoint, from the task."""
    context = TaskContext.get()
    assert context is not None
    number = context.getLocalProperty("streaming.sql.batchId") or context.getLocalProperty(batch_setting(checkpoint))
    assert number is not None
    return int(number)


def closing_keys(checkpoint: str, batch: int) -> dict[int, pa.Table]:
    """Return the keys that the running micro-batch closes, by the number of the stage, from the task."""
    context = TaskContext.get()
    assert context is not None
    return noted_keys(checkpoint, batch) if context.getLocalProperty(closing_setting(checkpoint)) == str(batch) else {}


def _mark(checkpoint: str) -> str:
    return hashlib.sha256(checkpoint.encode()).hexdigest()[:16]
