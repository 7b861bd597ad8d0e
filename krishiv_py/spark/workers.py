"""Python worker processes, as tasks find them."""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle_worker() -> None:
    """Keep what is loaded by now out of garbage collection, once a process.

    Spark's daemon runs a full collection whenever a worker is used again, which with Arrow, NumPy and PySpark loaded takes
    longer than all else Python does in a small micro-batch.
    """
    gc.collect()
    gc.freeze()
