"""Determine how many tasks of a bounded run are done, from Spark's status tracker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark.sql import SparkSession

from krishiv_py.spark.setup.config import is_connect

_GROUP: Final = "spark.jobGroup.id"


@contextmanager
def counted(spark: SparkSession) -> Iterator[Callable[[], tuple[int, int | None]]]:
    """Count the tasks of the jobs this thread starts in the body.

    Yields
    ------
    callable
        Tasks done and tasks known so far, at any time and from any thread; the second is None over Spark Connect, which has
        no status tracker.
    """
    if is_connect(spark):
        yield lambda: (0, None)
        return
    context = spark.sparkContext
    before, group = context.getLocalProperty(_GROUP), f"krishiv-{uuid.uuid4().hex}"
    context.setLocalProperty(_GROUP, group)
    try:
        yield lambda: _count(context.statusTracker(), group)
    finally:
        context.setLocalProperty(_GROUP, before)  # type: ignore[arg-type]  # null takes it away


def _count(tracker: Any, group: str) -> tuple[int, int | None]:
    jobs = [job for job in map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)) if job is not None]
    stages = [stage for job in jobs for stage in map(tracker.getStageInfo, job.stageIds) if stage is not None]
    return sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages) or None
