"""Streams without windows in the tasks of a micro-batch: read, steps, write. No shuffle, no state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

import attrs
import pyarrow as pa
from pyspark import TaskContext

from krishiv_py.engine.failures import PREPARE
from krishiv_py.engine.notes import FIRINGS, Notes, Report, count, none_counted
from krishiv_py.engine.stage import BatchDone, Packing, Stage
from krishiv_py.kernels.input.malformed import late_output
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket, MemoryStore
from krishiv_py.plan.durations import UNSET
from krishiv_py.spark.clock.clocks import batch_number
from krishiv_py.spark.reading.malformed import in_columns
from krishiv_py.spark.reading.scan import Reader
from krishiv_py.spark.reading.scanned import Scanned
from krishiv_py.spark.setup.workers import release_memory, settle_worker
from krishiv_py.spark.storage.codec import encode
from krishiv_py.spark.tasks.bounded import BoundedPack, Handing
from krishiv_py.spark.tasks.failures import in_task
from krishiv_py.spark.tasks.handing_on import METRICS
from krishiv_py.spark.tasks.outputs import TaskOutput
from krishiv_py.spark.tasks.pack import LATE, NOTES
from krishiv_py.spark.tasks.processor import FILE, LATE_ROWS, RESULT

_FLUSH_ROWS: Final = 1 << 20
_OUT: Final = pa.schema([pa.field("kind", pa.string()), pa.field("bucket", pa.int32()), pa.field("blob", pa.binary())])
_EARLIER: Final = "earlier"
"""What the metrics of all batches before the last one are kept under."""


@attrs.frozen(eq=False)
class GiveRows:
    """The mapInArrow function: source rows to what the driver publishes. One instance is pickled to every task."""

    spec: OperatorSpec
    reader: Reader
    output: TaskOutput
    number: int
    """Of the stream in a union: tells the reports of tasks apart."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker("pack")
        context = TaskContext.get()
        assert context is not None
        with in_task(self.spec.name, PREPARE, batch_number()):
            yield from self._rows(batches, self.number << 20 | context.partitionId())
        release_memory()

    def _rows(self, batches: Iterator[pa.RecordBatch], task: int) -> Iterator[pa.RecordBatch]:
        stage, counters = Stage(self.spec), dict[str, int]()
        packing = packing_of(stage)
        for batch in batches:
            for scanned in self.reader(batch):
                take(packing, scanned)
                if packing.waiting >= _FLUSH_ROWS:
                    yield from self._given(done(stage, packing), stage, task, counters)
                    packing = packing_of(stage)
        yield from self._given(done(stage, packing), stage, task, counters)
        if counters.get("rows"):
            yield _out(METRICS, task, Report(counters, 0, 0, 0).to_bytes())

    def _given(self, found: BatchDone, stage: Stage, task: int, counters: dict[str, int]) -> Iterator[pa.RecordBatch]:
        count(counters, found.counters)
        tables = [(RESULT, found.results)]
        if found.late:
            tables.append((LATE_ROWS, late_output(stage.layout, found.late)))
        for kind, table in tables:
            if not table.num_rows:
                continue
            written = self.output.write(kind, task, table)
            yield _out(kind, task, encode(table)) if written is None else _out(FILE, task, json.dumps(written).encode())


@attrs.frozen(eq=False)
class BoundedRows(BoundedPack):
    """The same of a bounded run."""

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stage, counters = Stage(self.spec), {**none_counted(), FIRINGS: 0}
        handing = Handing(0, None, self.shuffle_files)
        for _, scanned in self._batches(batches):
            packing = packing_of(stage)
            take(packing, scanned)
            found = done(stage, packing)
            count(counters, found.counters)
            if found.results.num_rows:
                yield handing.out(RESULT, self.shuffle_files.give(found.results))
            if found.late:
                yield handing.out(LATE, self.shuffle_files.give(late_output(stage.layout, found.late)))
        yield handing.out(NOTES, Notes(counters).to_bytes())


def packing_of(stage: Stage) -> Packing:
    """Begin to take rows."""
    return stage.pack(Moment(UNSET))


def take(packing: Packing, scanned: Scanned) -> None:
    """Take what a reader gave; controls tell nothing here."""
    if scanned.malformed:
        packing.refuse(in_columns(scanned.malformed))
    if scanned.batch is not None and scanned.control is None:
        packing.take(scanned.batch)


def done(stage: Stage, packing: Packing) -> BatchDone:
    """What came of the rows that were taken."""
    return stage.step(Bucket(MemoryStore()), packing.packed(), Moment(UNSET))


def in_total(known: dict[str, Report], batch_id: int, reports: Iterable[Report]) -> dict[str, Report]:
    """Metrics of a query without state: of the batches before, and of this one, which is replaced when it is repeated."""
    before = [report for name, report in known.items() if name != str(batch_id)]
    return {_EARLIER: _summed(before), str(batch_id): _summed(reports)}


def _summed(reports: Iterable[Report]) -> Report:
    counters: dict[str, int] = {}
    for report in reports:
        count(counters, report.counters)
    return Report(counters, 0, 0, 0)


def _out(kind: str, task: int, blob: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([kind]), pa.array([task], pa.int32()), pa.array([blob], pa.binary())], schema=_OUT
    )
