"""A streaming DataFrame of results that is a part of the Spark query that reads it."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.errors import PlanError
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
from krishiv_py.spark.setup.wrapping import mapped
from krishiv_py.spark.storage.tables import keep_with_driver
from krishiv_py.spark.streaming import operator
from krishiv_py.spark.tasks.pack import PACKED_TYPE, RawPack
from krishiv_py.spark.tasks.processor import BucketProcessor


def rows_frame(spark: SparkSession, plan: PhysicalPlan) -> DataFrame:
    """A streaming DataFrame of result rows, to go on with in plain Spark."""
    if plan.late.wants != "count":
        raise PlanError(
            "to_dataframe() has one output",
            got=type(plan.late).__name__,
            then="late rows would be lost",
            hint="pass checkpoint=..., a folder, use start(sink), or a CountingLateEventHandler",
        )
    spec = plan.spec
    if len(plan.stages) > 1:
        raise PlanError(
            "to_dataframe() of a stream that does not end has one stage",
            got=f"{len(plan.stages)} stages",
            hint="pass checkpoint=..., a folder, or use start(sink)",
        )
    if uses_ledger(spec) or (spec.options.future_action != "warn" and spec.options.future_reference == "clock"):
        raise PlanError(
            "to_dataframe() knows no clock but the watermark of one source",
            got=spec.watermark._describe(),
            then="idle sources and intervals would never take their turn",
            hint="pass checkpoint=..., a folder, or use start(sink)",
        )
    keep_with_driver(tables := lookup_tables(plan))
    if alone := [f"{table.name}()" for table in tables if table.driver_only]:
        raise PlanError(
            "to_dataframe() loads no table through Spark",
            got=f"{', '.join(alone)}, which uses Spark, or what else cannot be sent to tasks",
            then="it is loaded in the tasks, where there is no Spark session",
            hint="pass checkpoint=..., a folder, use start(sink), or let the function load a pyarrow.Table by itself",
        )
    if plan.watermarked:
        raise PlanError(
            "to_dataframe() of a DataFrame with a watermark of its own",
            got=plan.source.detail(),
            then="with two in one query no window would ever end",
            hint="pass checkpoint=..., a folder, or use start(sink)",
        )
    source = plan.source
    if isinstance(source, UnionSource):
        raise PlanError(
            "to_dataframe() knows one source only",
            got=source.detail(),
            hint="pass checkpoint=..., a folder, or use start(sink)",
        )
    if isinstance(source, RangeSource):
        raise PlanError(
            "to_dataframe() needs a log of what a source planned",
            got=source.detail(),
            then="a restart would read other rows",
            hint="pass checkpoint=..., a folder, or use start(sink)",
        )
    if source.puts_aside:
        raise PlanError(
            "to_dataframe() has one output",
            got=f'{source.detail()} with on_malformed="side_output"',
            then="malformed input would be lost",
            hint='pass checkpoint=..., a folder, read with on_malformed="fail", or use start(sink)',
        )
    if plan.stateless:
        return plain_frame(spark, plan)
    found = scan(spark, source, spec.needs_columns, streaming=True)
    ids = bucket_ids(setting(spark, "spark.sql.shuffle.partitions"))
    packed = mapped(found.frame, RawPack(spec, found.reader, ids).__call__, PACKED_TYPE)
    chunks = operator(packed, BucketProcessor(spec))
    return explode(chunks.filter(chunks["kind"] == RESULT), plan.stage.layout.result_schema)
