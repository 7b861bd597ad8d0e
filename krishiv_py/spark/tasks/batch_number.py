"""The number of the micro-batch that runs, as a task of Spark knows it."""

from __future__ import annotations

import hashlib

from pyspark import TaskContext


def batch_setting(checkpoint: str) -> str:
    """Where tasks find the number of the running micro-batch over Spark Connect, which does not tell it them."""
    return f"spark.krishiv.batch.{hashlib.sha256(checkpoint.encode()).hexdigest()[:16]}"


def batch_number(checkpoint: str) -> int:
    """The number of the running micro-batch of the query with this checkpoint, from the task."""
    context = TaskContext.get()
    assert context is not None
    number = context.getLocalProperty("streaming.sql.batchId") or context.getLocalProperty(batch_setting(checkpoint))
    assert number is not None
    return int(number)
