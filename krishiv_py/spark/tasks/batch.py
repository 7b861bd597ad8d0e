"""A micro-batch on the driver: what its tasks hand over, who takes its late rows, and what ends it."""

from __future__ import annotations

import json
import threading
from typing import Any

import attrs
import pyarrow as pa

from krishiv_py.plan.options.late import LateEventHandler, LateRows, hand_over


def deliver(handler: LateEventHandler, tables: list[pa.Table], operator: str, batch_id: int) -> None:
    """Hand the late rows of a batch to the handler."""
    if tables:
        hand_over(handler, LateRows(pa.concat_tables(tables), operator, batch_id))


@attrs.define(eq=False)
class Halt:
    """Why no further batch runs: somebody stops the query, or something on the driver failed."""

    stopping: threading.Event = attrs.field(factory=threading.Event)
    problem: BaseException | None = None
    thread: int | None = None
    """The thread a micro-batch runs in on the driver, while it does."""


@attrs.frozen
class TaskRow:
    """What a task hands to the driver at the end of a micro-batch."""

    kind: str
    bucket: int
    blob: bytes


def metrics_of(rows: list[TaskRow]) -> dict[str, Any]:
    """Metrics rows by bucket; of several of one bucket the last counts."""
    return {str(r.bucket): json.loads(r.blob) for r in rows}
