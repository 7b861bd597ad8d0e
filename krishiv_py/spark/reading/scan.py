"""Sources as Spark DataFrames whose tasks hand Arrow batches on.

Parquet and JSON are read by Arrow itself: what travels through the JVM are file names, or the names of ranges that the library
planned. Everything else is read by Spark and handed over as Arrow batches of the needed columns.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import attrs
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from krishiv_py.connectors.fit import SENT, fitted
from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.plan.nodes import FileSource, FrameSource, MemorySource, SourceNode
from krishiv_py.runtime.ranges.folders import MAX_FILE_AGE, FolderSource
from krishiv_py.runtime.ranges.log import RangeReader
from krishiv_py.runtime.ranges.spark_files import spark_folder
from krishiv_py.runtime.reading import (
    FileReader,
    Located,
    ParquetReader,
    Rules,
    Scanned,
    arrow_scanned,
    file_reader,
    literal_path,
    planned_here,
)
from krishiv_py.spark.reading.listing import every_file, listed, listing, own_files
from krishiv_py.spark.reading.sparkread import RecordReader, empty_frame, nothing_read, range_frame, spark_read
from krishiv_py.spark.setup.types import quoted, spark_ddl


@attrs.frozen(eq=False)
class RowReader:
    """Batches that Spark read."""

    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Scanned]:
        yield Scanned(
            pa.RecordBatch.from_arrays(
                [fitted(c, f, SENT, "the rows cannot be read") for c, f in zip(batch.columns, self.schema, strict=True)],
                schema=self.schema,
            )
        )


@attrs.frozen(eq=False)
class NumberedFiles:
    """Batches of numbers of files, which the tasks know: a frame of names would take the JVM long to make."""

    reader: FileReader
    paths: list[str]

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Scanned]:
        for number in batch.column(0).to_pylist():
            yield from self.reader.read_file(self.paths[number])


Reader = RowReader | RecordReader | FileReader | NumberedFiles | RangeReader


@attrs.frozen(eq=False)
class Scan:
    """A DataFrame and how its Arrow batches become rows; `how` and `why` are shown by ``explain()``."""

    frame: DataFrame
    reader: Reader


def scan(spark: SparkSession, source: SourceNode, needs: tuple[str, ...], *, streaming: bool) -> Scan:
    """Return the scan of a source, reading only the columns in `needs`."""
    schema = pa.schema([source.schema.field(n) for n in needs])
    if isinstance(source, MemorySource):
        return Scan(own_files(spark, source.spool, streaming=streaming, max_files=1), ParquetReader(schema, sent=True))
    if isinstance(source, FileSource):
        return _files(spark, source, schema, streaming=streaming)
    if streaming and isinstance(source, RangeSource) and isinstance(source.source, FolderSource) and not source.source.reader:
        files = source.source.files
        reader = every_file(spark.readStream, files.max_files_per_batch, MAX_FILE_AGE)
        return Scan(spark_read(reader, files, schema, spark_folder(source.log or "")), _record_reader(files, schema))
    if isinstance(source, RangeSource):  # of a bounded run, which plans ranges itself, only one without any comes here
        return Scan(*(range_frame if streaming else empty_frame)(spark, source, schema))
    assert isinstance(source, FrameSource)
    return Scan(_numbered(source.frame, needs), RowReader(schema))


def _numbered(frame: DataFrame, names: Iterable[str]) -> DataFrame:
    """Some columns under plain names, for mapInArrow looks columns up without quoting dots and backticks."""
    return frame.selectExpr(*(f"{quoted(name)} AS c{i}" for i, name in enumerate(names)))


def located_source(source: FileSource) -> Located:
    """Return where the files of a source are."""
    return Located(source.path, source.literal)


def _files(spark: SparkSession, source: FileSource, schema: pa.Schema, *, streaming: bool) -> Scan:
    if arrow_scanned(source):
        located = located_source(source)
        if streaming:  # of a frame that a query of the user's reads: there is no checkpoint that could note what was planned
            files_frame = listing(spark, located, streaming=True, max_files=source.max_files_per_batch)
        else:
            paths = listed(spark, located)
            parts = len(paths) if 0 < len(paths) <= (os.cpu_count() or 1) else None
            return Scan(spark.range(0, len(paths), 1, parts), NumberedFiles(file_reader(source, schema), paths))
        return Scan(files_frame, file_reader(source, schema))
    located = located_source(source)
    if streaming:  # as above, or on a file system that Arrow does not know
        frame = spark_read(every_file(spark.readStream, source.max_files_per_batch), source, schema, located.for_spark)
    elif planned_here(source):
        paths = [literal_path(path) for path in listed(spark, located)]
        frame = spark_read(spark.read, source, schema, paths) if paths else nothing_read(spark, schema)
    else:
        frame = spark_read(spark.read, source, schema, located.for_spark)
    return Scan(frame, _record_reader(source, schema))


def _record_reader(source: FileSource, schema: pa.Schema) -> RecordReader:
    return RecordReader(schema, Rules(aside=source.on_malformed == "side_output"), spark_ddl(source.schema))
