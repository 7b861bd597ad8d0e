"""The clock as a column, for windows of processing time."""

from __future__ import annotations

import time

import pyarrow as pa


def stamped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with the time at which they are worked on, ``p_time``."""
    now = pa.scalar(time.time_ns() // 1_000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return batch.append_column("p_time", pa.repeat(now, batch.num_rows))
