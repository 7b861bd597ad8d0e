"""Batches sent through the JVM-free driver, with what came of them."""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa

from krishiv_py import MemorySink, ResultStream, SideOutputLateEventHandler, Stream
from krishiv_py.testing import Driver, stream_of

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.int64())])
LAG_MS = 2_000


def users() -> Stream:
    """A stream of users and times, in ms."""
    return stream_of(SCHEMA)


def batch(*rows: tuple[str | None, int | None]) -> pa.Table:
    """A micro-batch."""
    return pa.table({"user": [u for u, _ in rows], "at": [t for _, t in rows]}, schema=SCHEMA)


@attrs.frozen(eq=False)
class Run:
    """What a run brought: all results and late rows, the reasons and the watermark by batch."""

    results: pa.Table
    late: pa.Table
    late_by_batch: list[list[dict[str, Any]]]
    watermarks_us: list[int]


def run(stream: ResultStream, batches: list[pa.Table]) -> Run:
    """Send the batches, then the end of input."""
    driver = Driver(stream.with_late_event_handler(SideOutputLateEventHandler(MemorySink())))
    outputs, watermarks = [], []
    for sent in batches:
        watermarks.append(driver.watermark_us)
        outputs.append(driver.send(sent))
    last = driver.close()
    return Run(
        pa.concat_tables([*(o.results for o in outputs), last.results]),
        pa.concat_tables([*(o.late for o in outputs), last.late]),
        [o.late.to_pylist() for o in outputs],
        watermarks,
    )
