"""A micro-batch on the driver: what its tasks hand over, who takes its late rows, and what ends it."""

from __future__ import annotations

import threading

import attrs
import pyarrow as pa

from krishiv_py.engine.notes import Report
from krishiv_py.plan.options.late import LateEventHandler, LateRows, hand_over
from krishiv_py.runtime.handing_on import METRICS, STAGE, TASK


def deliver(handler: LateEventHandler, tables: list[pa.Table], operator: str, batch_id: int) -> None:
    """Hand the late rows of a batch to the handler."""
    if tables:
        hand_over(handler, LateRows(pa.concat_tables(tables), operator, batch_id))


@attrs.define(eq=False)
class Halt:
    """Why no other batch runs: somebody stops the query, or something on the driver failed."""

    stopping: threading.Event = attrs.field(factory=threading.Event)
    problem: BaseException | None = None
    thread: int | None = None
    """The thread a micro-batch runs in on the driver, while it does."""


class BatchStoppedError(Exception):
    """Holds what Spark hears of a batch that ``stop()`` broke off.

    It looks in the text for an interruption, by a regular expression that overflows the JVM's stack on texts as long as those
    of Spark's own errors: the query would die with pages of noise instead of stopping.
    """

    def __init__(self) -> None:
        super().__init__("py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException")


@attrs.frozen
class TaskRow:
    """Holds what a task hands to the driver at the end of a micro-batch."""

    kind: str
    bucket: int
    blob: bytes


def reports_of(rows: list[TaskRow]) -> dict[str, Report]:
    """Reports by bucket, and stage where there are several before; of several of one bucket the last counts."""
    found = {}
    for row in rows:
        kind, _, where = row.kind.partition(STAGE)
        if kind == METRICS:
            stage, _, task = where.partition(TASK)
            who = task or str(row.bucket)
            found[f"{who}{STAGE}{stage}" if stage else who] = Report.from_bytes(row.blob)
    return found


def stage_of(bucket: str, last: int) -> int:
    """The number of the stage whose report :func:`reports_of` keeps under this name; `last` is that of the last stage."""
    _, _, stage = bucket.partition(STAGE)
    return int(stage) if stage else last
