"""The schema of files that are there, for a source that was given none."""

from __future__ import annotations

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from krishiv_py.errors import SourceError
from krishiv_py.plan.schema import checked
from krishiv_py.runtime.reading.located import Located, with_partitions
from krishiv_py.spark.reading.listing import listed
from krishiv_py.spark.setup.types import arrow_schema
from krishiv_py.storage.files import arrow_reads


def inferred(spark: SparkSession, at: Located, kind: str, options: dict[str, str]) -> pa.Schema:
    """The schema of the files at a path; folders such as ``user=7`` add their columns where Arrow reads the files.

    Raises
    ------
    SourceError
        When there is no file, or none whose columns can be told.
    """
    reader = spark.read.format(kind).option("recursiveFileLookup", "true")
    if kind == "json":
        reader = reader.option("mode", "DROPMALFORMED")  # a broken line says nothing about columns
    for key, value in options.items():
        reader = reader.option(key, value)
    try:
        found = arrow_schema(reader.load(at.for_spark))
        by_folders = kind == "parquet" and arrow_reads(at.path)
        paths = listed(spark, at) if by_folders else []
    except AnalysisException as problem:
        raise _unknown(at, "no file says which columns there are", problem) from problem
    except (PySparkException, Py4JError) as problem:
        raise _unknown(at, "a file cannot be read", problem) from problem
    return checked(with_partitions(found, paths))


def _unknown(at: Located, what: str, problem: Exception) -> SourceError:
    said = next((line for line in str(problem).splitlines() if "[" in line), str(problem).splitlines()[0])
    return SourceError(f"{at.path}: {what}", got=said.strip()[:300], hint="pass schema=...")
