"""The path of a source: checked where it is given, and listed by :mod:`krishiv_py.storage.listing`.

Spark lists files itself only where it reads them (CSV, options of Spark's), and for streaming frames without a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from krishiv_py.errors import SourceError
from krishiv_py.runtime.reading import Located, literal_path
from krishiv_py.runtime.reading import located as located_here
from krishiv_py.spark.setup.config import folders_shared, is_connect
from krishiv_py.spark.setup.types import flat_type
from krishiv_py.spark.setup.workers import mapped
from krishiv_py.storage.listing import files_at

_LISTING: Final = flat_type("path string, modificationTime timestamp, length bigint, content binary")
_NO_AGE: Final = "36500d"
"""Spark leaves files out that are so much older than the newest one it has seen: 7 days if it is not set otherwise."""


def located(spark: SparkSession, path: str, *, streaming: bool) -> Located:
    """Look at a path where it is given; raises as :func:`krishiv_py.runtime.reading.located`."""
    return located_here(path, streaming=streaming, here=_here(spark, path))


def _here(spark: SparkSession, path: str) -> bool:
    """Return whether a path is one of this machine."""
    if is_connect(spark) or ("://" in path and not path.startswith("file:")):
        return False
    return path.startswith("file:") or str(spark.sparkContext.master).startswith("local") or folders_shared(spark)


def listing(spark: SparkSession, located: Located, *, streaming: bool, max_files: int | None) -> DataFrame:
    """Return the files at a path, by name."""
    reader = (spark.readStream if streaming else spark.read).format("binaryFile").schema(_LISTING)
    reader = reader.option("recursiveFileLookup", "true")
    if streaming:
        reader = every_file(reader, max_files)
    return loaded(reader, located.for_spark, located.path).select("path")


def listed(spark: SparkSession, located: Located) -> list[str]:
    """Return the files that are there now, as a streaming query takes them; over Spark Connect those that the server sees.

    Raises
    ------
    SourceError
        For a folder that cannot be listed or entered; names it.
    """
    if not is_connect(spark):
        return [file.path for file in files_at(located.path, literal=located.literal)]
    listing = _Listing(located)
    paths = mapped(spark.range(0, 1, 1, 1), listing.__call__, "path string").toArrow()
    return list(paths.column(0).to_pylist())


@attrs.frozen
class _Listing:
    """The mapInArrow function that lists where a task runs."""

    located: Located

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            paths = [file.path for file in files_at(self.located.path, literal=self.located.literal)]
            yield pa.record_batch([pa.array(paths, pa.string())], names=["path"])


def own_files(spark: SparkSession, folder: str, *, streaming: bool, max_files: int | None) -> DataFrame:
    """Files the library wrote itself: of a memory stream, or controls."""
    reader = (spark.readStream if streaming else spark.read).format("binaryFile").schema(_LISTING)
    reader = reader.option("pathGlobFilter", "*.parquet")
    if streaming and max_files is not None:
        reader = reader.option("maxFilesPerTrigger", max_files)
    return reader.load(literal_path(folder)).select("path")


def every_file(reader: Any, max_files: int | None, max_age: str = _NO_AGE) -> Any:
    """Return a streaming reader that leaves no file out because it is old."""
    reader = reader.option("maxFileAge", max_age)
    return reader if max_files is None else reader.option("maxFilesPerTrigger", max_files)


def loaded(reader: Any, paths: str | list[str], shown: str) -> DataFrame:
    """Return the frame of a reader; `shown` is what people call the paths.

    Raises
    ------
    SourceError
        When there is nothing at the path.
    """
    try:
        frame: DataFrame = reader.load(paths)
        frame.schema  # noqa: B018  # over Spark Connect the path is looked at only now
    except AnalysisException as problem:
        raise SourceError(
            "Spark cannot read from the path", got=shown, then=str(problem).splitlines()[0], hint="correct the path"
        ) from problem
    return frame
