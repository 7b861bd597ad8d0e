"""Streams without windows on Spark: ``scan → steps → publish``, without a shuffle and without a stateful operator."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from krishiv_py.engine.stage import PREPARE, StageOperator
from krishiv_py.errors import PlanError
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.nodes import MemorySource
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.replay_log import ReplayLog
from krishiv_py.runtime.batch import leaving
from krishiv_py.runtime.outputs import TaskOutput
from krishiv_py.runtime.ranges.planning import logged
from krishiv_py.spark.reading.scan import Reader, scan
from krishiv_py.spark.setup.types import spark_ddl
from krishiv_py.spark.setup.workers import mapped
from krishiv_py.spark.tasks.failures import in_task
from krishiv_py.spark.tasks.processor import OUT_TYPE
from krishiv_py.spark.tasks.rows import GiveRows, RowsOut, done, packing_of, take


def rows_given(spark: SparkSession, plan: PhysicalPlan, checkpoint: str, output: TaskOutput) -> DataFrame:
    """Return the streaming DataFrame of a plan: rows ``(kind, bucket, blob)``, as of one with windows."""
    frames = []
    for number, read in enumerate(plan.reads):
        frame = scan(spark, logged(read.source, checkpoint, number, waits=False), read.needs_columns, streaming=True)
        outputs = tuple(RowsOut(b.spec, output, n, plan.last, number, leaving(plan, n)) for n, b in read.takers)
        frames.append(mapped(frame.frame, GiveRows(outputs, frame.reader).__call__, OUT_TYPE))
    return functools.reduce(DataFrame.union, frames)


@attrs.frozen(eq=False)
class RowsFrame:
    """The mapInArrow function of a DataFrame that goes on in plain Spark."""

    spec: OperatorSpec
    reader: Reader

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        stage = StageOperator(self.spec)
        with in_task(self.spec.name, PREPARE):
            for batch in batches:
                for scanned in self.reader(batch):
                    if scanned.malformed:
                        raise scanned.malformed[0].error()  # nobody would see it: such a frame has one output
                    packing = packing_of(stage)
                    take(packing, scanned)
                    yield from done(stage, packing).results.to_batches()


def plain_frame(spark: SparkSession, plan: PhysicalPlan) -> DataFrame:
    """Return a streaming DataFrame of the rows of a plan with one source.

    Raises
    ------
    PlanError
        For a memory stream in segments, which Spark cannot read.
    """
    source = plan.source
    if isinstance(source, MemorySource) and ReplayLog(source.spool).in_segments:
        raise PlanError(
            "a DataFrame of sends needs a memory stream that a session on Spark began",
            got=f"{source.spool}, which a session in process began",
            hint="pass another `spool`, or start the query with start(sink)",
        )
    frame = scan(spark, plan.source, plan.spec.needs_columns, streaming=True)
    return mapped(frame.frame, RowsFrame(plan.spec, frame.reader).__call__, spark_ddl(plan.stage.layout.result_schema))
