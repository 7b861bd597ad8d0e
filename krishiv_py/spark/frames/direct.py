"""A streaming DataFrame of results that is a part of the Spark query that reads it."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.errors import PlanError, message
from krishiv_py.plan.nodes import UnionSource
from krishiv_py.planner.fingerprint import uses_ledger
from krishiv_py.planner.physical import PhysicalPlan
from krishiv_py.planner.tables import lookup_tables
from krishiv_py.runtime.handing_on import RESULT
from krishiv_py.spark.publishing import explode
from krishiv_py.spark.reading.scan import scan
from krishiv_py.spark.rows import plain_frame
from krishiv_py.spark.setup.config import setting
from krishiv_py.spark.setup.partitioning import bucket_ids
from krishiv_py.spark.storage.tables import keep_with_driver
from krishiv_py.spark.streaming import operator
from krishiv_py.spark.tasks.pack import PACKED_TYPE, RawPack
from krishiv_py.spark.tasks.processor import BucketProcessor


def rows_frame(spark: SparkSession, plan: PhysicalPlan) -> DataFrame:
    """A streaming DataFrame of result rows, to go on with in plain Spark."""
    if plan.late.wants != "count":
        raise PlanError(
            message(
                "to_dataframe() has one output",
                type(plan.late).__name__,
                "late rows would be lost",
                "pass checkpoint=..., a folder, use start(sink), or a CountingLateEventHandler",
            )
        )
    spec = plan.spec
    if len(plan.stages) > 1:
        raise PlanError(
            message(
                "to_dataframe() of a stream that does not end has one stage",
                f"{len(plan.stages)} stages",
                "nobody knows the checkpoint that the next stage takes its watermark from",
                "pass checkpoint=..., a folder, or use start(sink)",
            )
        )
    if uses_ledger(spec) or (spec.options.future_action != "warn" and spec.options.future_reference == "clock"):
        raise PlanError(
            message(
                "to_dataframe() knows no clock but the watermark of one source",
                spec.watermark.describe(),
                "idle sources and intervals would never take their turn",
                "pass checkpoint=..., a folder, or use start(sink)",
            )
        )
    keep_with_driver(tables := lookup_tables(plan))
    if alone := [f"{table.name}()" for table in tables if table.driver_only]:
        raise PlanError(
            message(
                "to_dataframe() loads no table through Spark",
                f"{', '.join(alone)}, which uses Spark, or what else cannot be sent to tasks",
                "it is loaded in the tasks, where there is no Spark session",
                "pass checkpoint=..., a folder, use start(sink), or let the function load a pyarrow.Table by itself",
            )
        )
    if plan.watermarked:
        raise PlanError(
            message(
                "to_dataframe() of a DataFrame with a watermark of its own",
                plan.source.detail(),
                "with two in one query no window would ever end",
                "pass checkpoint=..., a folder, or use start(sink)",
            )
        )
    source = plan.source
    if isinstance(source, UnionSource):
        raise PlanError(
            message(
                "to_dataframe() knows one source only",
                source.detail(),
                "their watermarks cannot be told apart",
                "pass checkpoint=..., a folder, or use start(sink)",
            )
        )
    if isinstance(source, RangeSource):
        raise PlanError(
            message(
                "to_dataframe() needs a log of what a source planned",
                source.detail(),
                "a restart would read other rows",
                "pass checkpoint=..., a folder, or use start(sink)",
            )
        )
    if source.puts_aside:
        raise PlanError(
            message(
                "to_dataframe() has one output",
                f'{source.detail()} with on_malformed="side_output"',
                "malformed input would be lost",
                'pass checkpoint=..., a folder, read with on_malformed="fail", or use start(sink)',
            )
        )
    if plan.keeps_nothing:
        return plain_frame(spark, plan)
    found = scan(spark, source, spec.needs_columns, streaming=True)
    ids = bucket_ids(setting(spark, "spark.sql.shuffle.partitions"))
    packed = found.frame.mapInArrow(RawPack(spec, found.reader, ids).__call__, PACKED_TYPE)
    chunks = operator(packed, BucketProcessor(spec))
    return explode(chunks.filter(chunks["kind"] == RESULT), plan.stage.layout.result_schema)
