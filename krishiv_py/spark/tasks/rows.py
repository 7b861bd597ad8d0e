"""Streams without windows in the tasks of a micro-batch, and the operator as Spark carries it to its workers.

Without windows there are no shuffle, state or watermark. What the operator needs is loaded with the first rows, not with it.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark import TaskContext
from pyspark.serializers import CPickleSerializer
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from krishiv_py.connectors.source import in_columns
from krishiv_py.engine.stage import PREPARE, BatchPacker, Report, StageOperator, StageOutput, count
from krishiv_py.kernels.prepare import late_output
from krishiv_py.kernels.spec import Moment, OperatorSpec
from krishiv_py.kernels.state.store import Bucket, MemoryStore
from krishiv_py.plan.durations import UNSET
from krishiv_py.runtime.batch import METRICS, OF_LATE_ROWS, TASK, OutgoingResults, kind_of
from krishiv_py.runtime.outputs import TaskOutput
from krishiv_py.runtime.reading import ScannedRows
from krishiv_py.spark import internals
from krishiv_py.spark.scan import Reader
from krishiv_py.spark.setup.types import flat_type
from krishiv_py.spark.setup.workers import release_memory, settle_worker
from krishiv_py.spark.tasks.failures import in_task
from krishiv_py.spark.tasks.pack import Passing, batch_number
from krishiv_py.spark.tasks.processor import FILE, LATE_ROWS, BucketProcessor
from krishiv_py.storage.checksums import encode

_FLUSH_ROWS: Final = 1 << 20
_OUT: Final = pa.schema([pa.field("kind", pa.string()), pa.field("bucket", pa.int32()), pa.field("blob", pa.binary())])
_EARLIER: Final = "earlier"
"""The name of the metrics of all batches before the last one."""


@attrs.frozen(eq=False)
class GiveRows:
    """The mapInArrow function: source rows to what the driver publishes. One instance is pickled to every task.

    Attributes
    ----------
    outputs : tuple of RowsOut
        The outputs that rows go to, each after steps of its own.
    reader : Reader
        Reads what Spark hands over.
    """

    outputs: tuple[RowsOut, ...]
    reader: Reader

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_worker("pack")
        context = TaskContext.get()
        assert context is not None
        checkpoint = self.outputs[0].output.checkpoint
        with in_task(self.outputs[0].spec.label, PREPARE, batch_number(checkpoint), checkpoint):
            for kind, task, blob in self._rows(batches, context.partitionId()):
                yield _out(kind, task, blob)
        release_memory()

    def _rows(self, batches: Iterator[pa.RecordBatch], partition: int) -> Iterator[tuple[str, int, bytes]]:
        taking = [(output.begun(partition), output.task(partition)) for output in self.outputs]
        for batch in batches:
            for scanned in self.reader(batch):
                for one, task in taking:
                    yield from ((kind, task, blob) for kind, blob in one.take(scanned))
        for one, task in taking:
            yield from ((kind, task, blob) for kind, blob in one.finish())


@attrs.frozen(eq=False)
class RowsOut:
    """Rows that go to an output as they are.

    Attributes
    ----------
    spec : OperatorSpec
        Their steps.
    output : TaskOutput
        What tasks write to files themselves.
    number, last : int
        The number of their stage, and that of the one whose rows carry none.
    leaving : tuple of Leaving
        The outputs they go to, as they are.
    stream : int
        The number of the stream in a union: tells the reports of tasks apart.
    """

    spec: OperatorSpec
    output: TaskOutput
    number: int = 0
    last: int = 0
    stream: int = 0
    leaving: tuple[OutgoingResults, ...] = (OutgoingResults(),)

    def task(self, partition: int) -> int:
        """Return a number for what a task reports."""
        return self.stream << 20 | partition

    def begun(self, task: int) -> GivesRows:
        """See :class:`~krishiv_py.spark.tasks.pack.PassedOutput`."""
        return GivesRows(self, self.task(task))


class GivesRows:
    """The rows of one output in one task."""

    def __init__(self, out: RowsOut, task: int) -> None:
        self._out, self._task = out, task
        self._stage, self._counters = StageOperator(out.spec), dict[str, int]()
        self._left: dict[str, int] = {}
        self._packing = packing_of(self._stage)

    def take(self, scanned: ScannedRows) -> Iterator[Passing]:
        """See :class:`~krishiv_py.spark.tasks.pack.PassesRows`."""
        take(self._packing, scanned)
        if self._packing.full(_FLUSH_ROWS):
            yield from self._given()
            self._packing = packing_of(self._stage)

    def finish(self) -> Iterator[Passing]:
        """See :class:`~krishiv_py.spark.tasks.pack.PassesRows`."""
        yield from self._given()
        if self._counters.get("rows"):
            named = f"{self._kind(METRICS)}{TASK}{self._task}" if self._out.number != self._out.last else METRICS
            yield named, Report(self._counters, 0, 0, 0, given=self._left).to_bytes()

    def _kind(self, kind: str) -> str:
        return kind_of(kind, self._out.number, self._out.last)

    def _given(self) -> Iterator[Passing]:
        rows = done(self._stage, self._packing)
        count(self._counters, rows.counters)
        tables = [(out.name, out.kind, rows.results) for out in self._out.leaving]
        if rows.late:
            tables.append((OF_LATE_ROWS, self._kind(LATE_ROWS), late_output(self._stage.layout, rows.late)))
        for name, kind, table in tables:
            count(self._left, {name: table.num_rows})
            if not table.num_rows:
                continue
            written = self._out.output.write(kind, self._task, table, batch_number(self._out.output.checkpoint))
            yield (kind, encode(table)) if written is None else (FILE, json.dumps(written).encode())


def in_total(known: dict[str, Report], batch_id: int, reports: Iterable[Report], suffix: str = "") -> dict[str, Report]:
    """Metrics of a stage without state: of the batches before, and of this one, which is replaced when it is repeated.

    `suffix` is after the names they are kept under.
    """
    before = [report for name, report in known.items() if name != f"{batch_id}{suffix}"]
    return {f"{_EARLIER}{suffix}": _summed(before), f"{batch_id}{suffix}": _summed(reports)}


def _summed(reports: Iterable[Report]) -> Report:
    counters, given = dict[str, int](), dict[str, int]()
    for report in reports:
        count(counters, report.counters)
        count(given, report.given)
    return Report(counters, 0, 0, 0, given=given)


def _out(kind: str, task: int, blob: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([kind]), pa.array([task], pa.int32()), pa.array([blob], pa.binary())], schema=_OUT
    )


STATE: Final = "chunks"
"""The one state variable: what a bucket keeps, by name."""
ANSWER_S: Final = 60.0
"""The time for the first answer of Spark's server of the state, which needs milliseconds; a dead thread gives none."""
NO_ANSWER: Final = "Spark's server of the state gave no answer"
"""The error of a task that waited in vain begins so; the driver runs the batch again."""


def carried(processor: BucketProcessor) -> StatefulProcessor:
    """Return a processor that Spark's worker on the driver can open in no time.

    Spark starts a Python there for each operator of a query, only to ask which state it keeps; to load the kernels for that
    answer took a second of CPU an operator. A class made in a function travels as it is, so not even this package is loaded.
    """
    packed = CPickleSerializer().dumps(processor)  # type: ignore[no-untyped-call]
    # as types: of a text each task, in each batch, would ask the JVM what it means
    name, blob = flat_type("name string"), flat_type("blob binary")
    variable, answer_s, no_answer = STATE, ANSWER_S, NO_ANSWER
    clients, of_client = internals.STATE_CLIENTS, internals.STATE_SOCKET

    class Operator(StatefulProcessor):
        """Stands for the processor until there are rows."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            """Open the one state variable."""
            self.handle = handle
            self.loaded: Any = None
            client = next((getattr(handle, name) for name in clients if hasattr(handle, name)), None)
            socket = getattr(client, of_client, None)
            if socket is not None:
                socket.settimeout(answer_s)
            try:
                self.state = handle.getMapState(variable, name, blob)
            except TimeoutError:
                raise RuntimeError(
                    f"{no_answer} (got: none in {answer_s:g} s): the batch cannot go on. "
                    "Hint: start the query again, it goes on from its checkpoint."
                ) from None
            if socket is not None:
                socket.settimeout(None)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
            """Rows of a bucket."""
            yield from self.processor().handle_rows(key, rows, timerValues)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            """Yield a bucket's timer."""
            yield from self.processor().handle_timer(key, timerValues)

        def close(self) -> None:
            """The task is over."""
            if self.loaded is not None:
                self.loaded.close()

        def processor(self) -> Any:
            """Return the processor, loaded at its first use."""
            if self.loaded is None:
                self.loaded = pickle.loads(packed)
                self.loaded.open(self.handle, self.state)
            return self.loaded

    return Operator()


def packing_of(stage: StageOperator) -> BatchPacker:
    """Begin to take rows."""
    return stage.pack(Moment(UNSET))


def take(packing: BatchPacker, scanned: ScannedRows) -> None:
    """Take what a reader gave; controls tell nothing here."""
    if scanned.malformed:
        packing.refuse(in_columns(scanned.malformed))
    if scanned.batch is not None and scanned.control is None:
        packing.take(scanned.batch)


def done(stage: StageOperator, packing: BatchPacker) -> StageOutput:
    """Return what became of the rows that were taken."""
    return stage.step(Bucket(MemoryStore()), packing.packed(), Moment(UNSET))
