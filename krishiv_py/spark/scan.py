"""Sources as Spark DataFrames whose tasks hand Arrow batches on.

Spark lists files itself only where it reads them (CSV, options of Spark's), and for streaming frames without a checkpoint.

Parquet and JSON are read by Arrow itself: what travels through the JVM are file names, or the names of ranges that the library
planned. Everything else is read by Spark and handed over as Arrow batches of the needed columns.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib.parse import unquote

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from krishiv_py.connectors.fit import SENT, MisfitError, fitted
from krishiv_py.connectors.json_lines import blocks
from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.connectors.source import Malformed
from krishiv_py.errors import SourceError, cut
from krishiv_py.plan.nodes import FileSource, FrameSource, MemorySource, SourceNode
from krishiv_py.plan.schema import checked
from krishiv_py.runtime.ranges.folders import MAX_FILE_AGE, FolderSource
from krishiv_py.runtime.ranges.log import RangeReader
from krishiv_py.runtime.ranges.spark_files import spark_folder
from krishiv_py.runtime.reading import (
    HEADER,
    UNKNOWN_COLUMNS,
    UNREAD_FILE,
    FileReader,
    ParquetReader,
    PathLocation,
    Rules,
    ScannedRows,
    arrow_scanned,
    by_folders,
    file_reader,
    is_utf_8,
    literal_path,
    opened,
    planned_here,
    shown_path,
    with_partitions,
)
from krishiv_py.runtime.reading import located as located_here
from krishiv_py.spark.setup.config import folders_shared, is_connect
from krishiv_py.spark.setup.types import arrow_schema, flat_type, quoted, spark_ddl
from krishiv_py.spark.setup.workers import mapped
from krishiv_py.storage.files import UNFINISHED, arrow_reads, files_at, store_at
from krishiv_py.storage.store import Stores

_LISTING: Final = flat_type("path string, modificationTime timestamp, length bigint, content binary")
_NO_AGE: Final = "36500d"
"""Spark leaves files out that are so much older than the newest one it has seen: 7 days if it is not set otherwise."""


def located(spark: SparkSession, path: str, *, streaming: bool) -> PathLocation:
    """Look at a path where it is given; raises as :func:`krishiv_py.runtime.reading.located`."""
    return located_here(path, streaming=streaming, here=_here(spark, path))


def _here(spark: SparkSession, path: str) -> bool:
    """Return whether a path is one of this machine."""
    if is_connect(spark) or ("://" in path and not path.startswith("file:")):
        return False
    return path.startswith("file:") or str(spark.sparkContext.master).startswith("local") or folders_shared(spark)


def listing(spark: SparkSession, located: PathLocation, *, streaming: bool, max_files: int | None) -> DataFrame:
    """Return the files at a path, by name."""
    reader = (spark.readStream if streaming else spark.read).format("binaryFile").schema(_LISTING)
    reader = reader.option("recursiveFileLookup", "true")
    if streaming:
        reader = every_file(reader, max_files)
    return loaded(reader, located.for_spark, located.path).select("path")


def listed(spark: SparkSession, located: PathLocation) -> list[str]:
    """Return the files that are there now, as a streaming query takes them; over Spark Connect those that the server sees.

    Raises
    ------
    SourceError
        For a folder that cannot be listed or entered; names it.
    """
    if not is_connect(spark):
        return [file.path for file in files_at(located.path, literal=located.literal)]
    listing = _PathListing(located)
    paths = mapped(spark.range(0, 1, 1, 1), listing.__call__, "path string").toArrow()
    return list(paths.column(0).to_pylist())


@attrs.frozen
class _PathListing:
    """The mapInArrow function that lists where a task runs."""

    located: PathLocation

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
        what = "Spark cannot read from the path"
        raise SourceError(what, got=shown, then=str(problem).splitlines()[0], hint="correct the path") from problem
    return frame


_RECORD: Final = "__krishiv_record"
_FILE: Final = "__krishiv_file"
_REPLACED: Final = "__krishiv_replaced"
_ZONE: Final = "timeZone"
_CHARSETS: Final = ("encoding", "charset")
_UNFINISHED: Final = "(?i)(" + "|".join(end.replace(".", r"\.") for end in UNFINISHED) + ")$"


def spark_read(reader: Any, source: FileSource, schema: pa.Schema, paths: str | list[str]) -> DataFrame:
    """Return the wanted columns, then the record and its file where it is malformed.

    Parameters
    ----------
    reader : pyspark.sql.DataFrameReader or pyspark.sql.streaming.DataStreamReader
        Reads them.
    source : FileSource
        The files, and how they are read.
    schema : pyarrow.Schema
        The wanted columns.
    paths : str or list of str
        Where they are, as Spark reads it.
    """
    reader = reader.format(source.format).schema(f"{spark_ddl(source.schema)}, {_RECORD} string")
    reader = reader.option("recursiveFileLookup", "true")
    if source.format == "csv":
        # the header is held to the schema, and a record to the number of columns, though not all of them are read
        reader = reader.option("enforceSchema", "false").option("columnPruning", "false")
    elif source.format == "parquet":
        rows = loaded(reader.schema(spark_ddl(source.schema)), paths, source.path)
        record, path = f.lit(None).cast("string").alias(_RECORD), _path(f.lit(False), folders=True)
        return rows.select(*_plain_columns(schema), record, path, f.lit(None).cast("string").alias(_REPLACED))
    if not any(key.lower() == _ZONE.lower() for key, _ in source.options):
        reader = reader.option(_ZONE, "UTC")  # of texts without one; Spark takes that of its session
    for key, value in source.options:
        reader = reader.option(key, value)
    reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", _RECORD)
    frame = loaded(reader, paths, source.path)
    frame = frame.where(~f.col("_metadata.file_name").rlike(_UNFINISHED))
    path = _path(f.col(_RECORD).isNotNull(), folders=source.format != "csv")
    return frame.select(*_plain_columns(schema), _RECORD, path, _replaced(source, schema))


def nothing_read(spark: SparkSession, schema: pa.Schema) -> DataFrame:
    """Return a frame as :func:`spark_read` makes it, of no files."""
    texts = ", ".join(f"{name} string" for name in (_RECORD, _FILE, _REPLACED))
    return spark.createDataFrame([], f"{spark_ddl(schema)}, {texts}").toDF(*_names(schema), _RECORD, _FILE, _REPLACED)


def _path(malformed: Column, *, folders: bool) -> Column:
    """Return the file of a row where it is asked for: of malformed records, and where folders may have values for its
    columns.
    """
    path = f.col("_metadata.file_path")
    return f.when(malformed | path.contains("=") if folders else malformed, path).alias(_FILE)


def _replaced(source: FileSource, schema: pa.Schema) -> Column:
    """Return the file of a row with U+FFFD in a text; not asked for where the user says how the bytes are to be read."""
    replaced = f.lit(False)
    if not any(key.lower() in _CHARSETS for key, _ in source.options):
        for field in schema:
            if _is_text(field.type):
                replaced = replaced | f.col(quoted(field.name)).contains("\ufffd")
    return f.when(replaced, f.col("_metadata.file_path")).alias(_REPLACED)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _plain_columns(schema: pa.Schema) -> list[Column]:
    """Columns under plain names, for mapInArrow looks columns up without quoting dots and backticks."""
    return [f.col(quoted(name)).alias(plain) for name, plain in zip(schema.names, _names(schema), strict=True)]


def _names(schema: pa.Schema) -> list[str]:
    return [f"c{i}" for i in range(len(schema))]


@attrs.frozen(eq=False)
class RecordReader:
    """Batches that Spark read, malformed records among them; `columns` are what a record should hold.

    Spark fills the columns of a broken record with null and goes on. So it is asked for the record itself and the file, which
    stand in two more columns, null for all other rows; a record that has the first is malformed. The file also comes with rows
    whose folders may name the value of a column, ``user=7``: Spark is set to look at files alone, and would leave such a column
    null.

    Spark also replaces bytes that are not UTF-8 by U+FFFD and says nothing. The file of rows with that character is in a third
    column: the reader looks into the file, and where it is not UTF-8 such rows are malformed.
    """

    schema: pa.Schema
    rules: Rules
    columns: str
    of_first: str = ""
    """The end of the text for a first line that is malformed."""
    stores: Stores = attrs.field(factory=Stores, eq=False, repr=False)

    def __call__(self, batch: pa.RecordBatch) -> Iterator[ScannedRows]:
        record, file, replaced = batch.columns[-3:]
        good = batch
        if record.null_count < batch.num_rows:
            broken = record.is_valid()
            good = batch.filter(record.is_null())
            malformed = self._malformed(record.filter(broken).to_pylist(), file.filter(broken).to_pylist())
            yield FileReader(self.schema, self.rules).put_aside(malformed)
        if replaced.null_count < batch.num_rows and good.num_rows:
            malformed, kept = self._not_utf8(good)
            if malformed:
                yield FileReader(self.schema, self.rules).put_aside(malformed)
                good = good.filter(kept)
        if good.num_rows:
            arrays = [fitted(c, fl, SENT, "the rows cannot be read") for c, fl in zip(good.columns, self.schema, strict=False)]
            yield from self._with_folders(pa.RecordBatch.from_arrays(arrays, schema=self.schema), good.columns[-2])

    def _not_utf8(self, rows: pa.RecordBatch) -> tuple[list[Malformed], pa.Array]:
        """Rows whose text holds replaced bytes, as malformed, and which rows are good."""
        malformed: list[Malformed] = []
        good, odd_lines = [True] * rows.num_rows, dict[str, list[tuple[int, bytes, str]]]()
        texts = [c for c, field in zip(rows.columns, self.schema, strict=False) if _is_text(field.type)]
        for row, file in enumerate(rows.columns[-1].to_pylist()):
            if file is None:
                continue
            if file not in odd_lines:
                odd_lines[file] = [(n, raw, text) for n, raw in _raw_lines(file) if "\ufffd" in (text := _as_spark_reads(raw))]
            odd = [value for text in texts if "\ufffd" in (value := text[row].as_py() or "")]
            lines = [(n, raw) for n, raw, text in odd_lines[file] if all(value in text for value in odd)]
            bad = [(n, raw) for n, raw in lines if not is_utf_8(raw)]
            if (lines and not bad) or all(is_utf_8(raw) for _, raw, _ in odd_lines[file]):
                continue  # the character itself was written
            number, shown = (bad[0][0], bad[0][1].decode("utf-8", "backslashreplace")) if bad else (None, None)
            malformed.append(Malformed(shown_path(unquote(file)), number, shown, "bytes that are not UTF-8"))
            good[row] = False
        return malformed, pa.array(good)

    def _with_folders(self, rows: pa.RecordBatch, file: pa.Array) -> Iterator[ScannedRows]:
        """Rows, in which the folders of their files may have the value of a column; a folder that does not fit goes aside."""
        if file.null_count < rows.num_rows:
            files = file.dictionary_encode()
            for i, path in enumerate(files.dictionary.to_pylist()):
                of_file = pc.fill_null(pc.equal(files.indices, i), False)
                try:
                    rows = by_folders(rows, unquote(path), of_file)
                except MisfitError as problem:
                    aside = [Malformed(shown_path(unquote(path)), None, None, str(problem))]
                    yield FileReader(self.schema, self.rules).put_aside(aside)
                    others = pc.invert(of_file)
                    rows, file = rows.filter(others), file.filter(others)
                    yield from self._with_folders(rows, file)
                    return
        yield ScannedRows(rows)

    def _malformed(self, records: list[str], files: list[str]) -> list[Malformed]:
        by_file: dict[str, set[str]] = {}
        for text, file in zip(records, files, strict=True):
            by_file.setdefault(file, set()).add(text)
        lines = {file: _lines(file, texts) for file, texts in by_file.items()}
        why = f"no record of {self.columns}"
        malformed = []
        for text, file in zip(records, files, strict=True):
            number, shown = lines[file].get(text, (None, text))
            malformed.append(Malformed(shown_path(unquote(file)), number, shown, why + (self.of_first if number == 1 else "")))
        return malformed


def _lines(uri: str, texts: set[str]) -> dict[str, tuple[int, str]]:
    """In which lines of a file records stand, of equal ones the first, and what is written there."""
    lines: dict[str, tuple[int, str]] = {}
    for number, raw in _raw_lines(uri):
        text = _as_spark_reads(raw)
        if text in texts:
            lines.setdefault(text, (number, raw.decode("utf-8", "backslashreplace")))
    return lines


def _raw_lines(uri: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file, numbered from 1."""
    store, path = store_at(unquote(uri))
    with opened(store, path, shown_path(uri), as_lines=True) as stream:
        before = 0
        for block in blocks(stream, 1 << 20):
            lines = block.splitlines()
            yield from enumerate(lines, before + 1)
            before += len(lines)


def _as_spark_reads(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def range_frame(spark: SparkSession, source: RangeSource, schema: pa.Schema) -> tuple[DataFrame, RangeReader]:
    """Return the files of a log as a query reads them: one a batch, for each of the tasks that share its ranges.

    A product with the numbers of the tasks gives each task its row without a shuffle, and the source is in the plan once:
    checkpoints count how often it is.
    """
    assert source.log is not None
    tasks = source.source.parallelism
    frame = own_files(spark, source.log, streaming=True, max_files=1)
    if tasks > 1:
        numbers = spark.range(0, tasks, 1, tasks).withColumnRenamed("id", "task")
        frame = frame.hint("shuffle_replicate_nl").crossJoin(numbers)  # a cartesian product; a broadcast would be a job
    return frame, RangeReader(schema, source.source, source.name, tasks, source.in_lanes)


def empty_frame(spark: SparkSession, source: RangeSource, schema: pa.Schema) -> tuple[DataFrame, RangeReader]:
    """Return a finite source without any range."""
    return spark.createDataFrame([], "path string"), RangeReader(schema, source.source, source.name)


def inferred(spark: SparkSession, located: PathLocation, kind: str, options: dict[str, str]) -> pa.Schema:
    """Return the schema of the files at a path; folders such as ``user=7`` add their columns where Arrow reads the files.

    Raises
    ------
    SourceError
        When there is no file, or none whose columns are known.
    """
    reader = spark.read.format(kind).option("recursiveFileLookup", "true")
    if kind == "json":
        reader = reader.option("mode", "DROPMALFORMED")  # a broken line says nothing about columns
    for key, value in options.items():
        reader = reader.option(key, value)
    try:
        schema = arrow_schema(reader.load(located.for_spark))
        by_folders = kind == "parquet" and arrow_reads(located.path)
        paths = listed(spark, located) if by_folders else []
    except AnalysisException as problem:
        raise _unknown(located, "no file says which columns there are", problem, UNKNOWN_COLUMNS) from problem
    except (PySparkException, Py4JError) as problem:
        raise _unknown(located, "a file cannot be read", problem, UNREAD_FILE) from problem
    return checked(with_partitions(schema, paths))


def _unknown(located: PathLocation, what: str, problem: Exception, hint: str) -> SourceError:
    said = next((line for line in str(problem).splitlines() if "[" in line), str(problem).splitlines()[0])
    return SourceError(f"{located.path}: {what}", got=cut(said.strip(), 300), hint=hint)


def catalog_frame(spark: SparkSession, name: str, *, streaming: bool) -> DataFrame:
    """Return the frame of a table.

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


@attrs.frozen(eq=False)
class RowReader:
    """Batches that Spark read."""

    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> Iterator[ScannedRows]:
        yield ScannedRows(
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

    def __call__(self, batch: pa.RecordBatch) -> Iterator[ScannedRows]:
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


def located_source(source: FileSource) -> PathLocation:
    """Return where the files of a source are."""
    return PathLocation(source.path, source.literal)


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
    headed = any(name.lower() == "header" and value.lower() == "true" for name, value in source.options)
    of_first = HEADER if source.format == "csv" and not headed else ""
    return RecordReader(schema, Rules(aside=source.on_malformed == "side_output"), spark_ddl(source.schema), of_first)
