"""Python worker processes, as tasks find them."""

from __future__ import annotations

import functools
import gc
from typing import Literal

import pyarrow as pa


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
