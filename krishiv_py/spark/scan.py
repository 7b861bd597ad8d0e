"""Sources as Spark DataFrames whose tasks hand Arrow batches on.

Parquet is read by Arrow itself: Spark lists the files, keeps the offsets and cuts micro-batches, but what travels through
the JVM are file names. Everything else is read by Spark and handed over as Arrow batches of the needed columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from krishiv_py.errors import SchemaError
from krishiv_py.kernels.rows import as_batch
from krishiv_py.plan.nodes import FileSource, FrameSource, MemorySource, Source
from krishiv_py.spark.files import arrow_reads, file_system
from krishiv_py.spark.types import plain, spark_ddl
from krishiv_py.spool import CONTROL, Control, control_of, sent_at

_LISTING = "path string, modificationTime timestamp, length bigint, content binary"
_READ_ROWS = 1 << 18


@attrs.frozen(eq=False)
class Scanned:
    """Rows of a source, or a control; `now_us` is when they were sent, where that is known."""

    batch: pa.RecordBatch | None
    control: Control | None = None
    now_us: int | None = None


@attrs.frozen(eq=False)
class RowReader:
    """Batches that Spark read."""

    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Scanned]:
        yield Scanned(
            pa.RecordBatch.from_arrays(
                [plain(c, f.type) for c, f in zip(batch.columns, self.schema, strict=True)], schema=self.schema
            )
        )


@attrs.frozen(eq=False)
class ParquetReader:
    """Batches of file names; Arrow reads the files."""

    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Scanned]:
        for path in batch.column(0).to_pylist():
            yield from self._file(path)

    def _file(self, uri: str) -> Iterator[Scanned]:
        system, path = file_system(uri)
        with system.open_input_file(path) as opened:
            parquet = pq.ParquetFile(opened)
            names = parquet.schema_arrow.names
            control = control_of(parquet.read()) if names and names[0] == CONTROL else None
            if control is not None:
                yield Scanned(None, control, control.now_us)
                return
            now_us = sent_at(parquet.schema_arrow)
            present = [n for n in self.schema.names if n in names]
            for part in parquet.iter_batches(_READ_ROWS, columns=present, use_threads=False):
                yield Scanned(self._fitted(part, uri), None, now_us)

    def _fitted(self, part: pa.RecordBatch, uri: str) -> pa.RecordBatch:
        """A file may lack a nullable column, or hold a narrower type."""
        arrays = []
        for field in self.schema:
            if field.name not in part.schema.names:
                arrays.append(pa.nulls(part.num_rows, field.type))
                continue
            try:
                arrays.append(as_batch(part.select([field.name]), pa.schema([field])).column(0))
            except SchemaError as problem:
                raise SchemaError(f"{uri}: {problem}") from problem
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


Reader = RowReader | ParquetReader


@attrs.frozen(eq=False)
class Scan:
    """A DataFrame and how its Arrow batches become rows; `how` and `why` are shown by ``explain()``."""

    frame: DataFrame
    reader: Reader


def listing(spark: SparkSession, path: str, *, streaming: bool, max_files: int | None) -> DataFrame:
    """The parquet files below a path, by name."""
    if streaming:
        reader = spark.readStream.format("binaryFile").schema(_LISTING).option("pathGlobFilter", "*.parquet")
        if max_files is not None:
            reader = reader.option("maxFilesPerTrigger", max_files)
        return reader.load(path).select("path")
    return spark.read.format("binaryFile").schema(_LISTING).option("pathGlobFilter", "*.parquet").load(path).select("path")


def arrow_scanned(source: Source) -> bool:
    """Whether Arrow reads the files of a source, so that only their names travel through the JVM."""
    return isinstance(source, MemorySource) or (
        isinstance(source, FileSource) and source.format == "parquet" and arrow_reads(source.path)
    )


def scan(spark: SparkSession, source: Source, needs: tuple[str, ...], *, streaming: bool) -> Scan:
    """The scan of a source, reading only the columns in `needs`."""
    schema = pa.schema([source.schema.field(n) for n in needs])
    if isinstance(source, MemorySource):
        return Scan(listing(spark, source.spool, streaming=streaming, max_files=1), ParquetReader(schema))
    if isinstance(source, FileSource):
        return _files(spark, source, schema, streaming=streaming)
    assert isinstance(source, FrameSource)
    return Scan(source.frame.select(*[f"`{n}`" for n in needs]), RowReader(schema))


def _files(spark: SparkSession, source: FileSource, schema: pa.Schema, *, streaming: bool) -> Scan:
    if arrow_scanned(source):
        found = listing(spark, source.path, streaming=streaming, max_files=source.max_files_per_batch)
        return Scan(found, ParquetReader(schema))
    ddl = spark_ddl(source.schema)
    reader: Any = (spark.readStream if streaming else spark.read).format(source.format).schema(ddl)
    for key, value in source.options:
        reader = reader.option(key, value)
    if streaming and source.max_files_per_batch is not None:
        reader = reader.option("maxFilesPerTrigger", source.max_files_per_batch)
    return Scan(reader.load(source.path).select(*[f"`{n}`" for n in schema.names]), RowReader(schema))
