"""Tables and views of Spark's catalog."""

from __future__ import annotations

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession

from krishiv_py.errors import SourceError


def catalog_frame(spark: SparkSession, name: str, *, streaming: bool) -> DataFrame:
    """The frame of a table.

    Raises
    ------
    SourceError
        When there is no such table, or it cannot be read so.
    """
    try:
        frame = spark.readStream.table(name) if streaming else spark.table(name)
        frame.schema  # noqa: B018  # over Spark Connect the catalog is asked only now
    except (AnalysisException, ParseException) as problem:
        hint = (
            "correct the name, or leave streaming=True out"
            if streaming
            else "correct the name; spark.catalog.listTables() knows them"
        )
        what = f"the table {name!r} cannot be read{' as a stream' if streaming else ''}"
        raise SourceError(what, got=str(problem).splitlines()[0], hint=hint) from problem
    return frame
