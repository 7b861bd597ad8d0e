"""Rows of a stage without windows, as they pass through a task: no watermark, no state."""

from __future__ import annotations

from krishiv_py.connectors.malformed import in_columns
from krishiv_py.engine.stage import BatchDone, Packing, StageOperator
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.state.store import Bucket, MemoryStore
from krishiv_py.plan.durations import UNSET
from krishiv_py.runtime.reading import Scanned


def packing_of(stage: StageOperator) -> Packing:
    """Begin to take rows."""
    return stage.pack(Moment(UNSET))


def take(packing: Packing, scanned: Scanned) -> None:
    """Take what a reader gave; controls tell nothing here."""
    if scanned.malformed:
        packing.refuse(in_columns(scanned.malformed))
    if scanned.batch is not None and scanned.control is None:
        packing.take(scanned.batch)


def done(stage: StageOperator, packing: Packing) -> BatchDone:
    """Return what came of the rows that were taken."""
    return stage.step(Bucket(MemoryStore()), packing.packed(), Moment(UNSET))
