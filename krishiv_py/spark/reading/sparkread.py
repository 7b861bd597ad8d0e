"""CSV, and files read with options of Spark's: Spark reads them and keeps the text of records it cannot read.

Spark fills the columns of a broken record with null and goes on. So it is asked for the record itself and the file, which stand
in two more columns, null for all other rows; a record that has the first is malformed. The file also comes with rows whose
folders may name the value of a column, ``user=7``: Spark is set to look at files alone, and would leave such a column null.

Spark also replaces bytes that are not UTF-8 by U+FFFD and says nothing. The file of rows with that character is in a third
column: the reader looks into the file, and where it is not UTF-8 such rows are malformed.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from krishiv_py.connectors.json_texts import blocks
from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.connectors.source import Malformed
from krishiv_py.errors import SourceError
from krishiv_py.plan.nodes import FileSource
from krishiv_py.plan.schema import checked
from krishiv_py.runtime.ranges.log import RangeReader
from krishiv_py.runtime.reading import FileReader, Located, Rules, Scanned, by_folders, opened, shown_path, with_partitions
from krishiv_py.spark.reading.listing import listed, loaded, own_files
from krishiv_py.spark.setup.types import arrow_schema, quoted, spark_ddl
from krishiv_py.storage.files import arrow_reads, store_at
from krishiv_py.storage.listing import UNFINISHED
from krishiv_py.storage.settings import Stores

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
        return rows.select(*_numbered(schema), record, path, f.lit(None).cast("string").alias(_REPLACED))
    if not any(key.lower() == _ZONE.lower() for key, _ in source.options):
        reader = reader.option(_ZONE, "UTC")  # of texts without one; Spark takes that of its session
    for key, value in source.options:
        reader = reader.option(key, value)
    reader = reader.option("mode", "PERMISSIVE").option("columnNameOfCorruptRecord", _RECORD)
    frame = loaded(reader, paths, source.path)
    frame = frame.where(~f.col("_metadata.file_name").rlike(_UNFINISHED))
    path = _path(f.col(_RECORD).isNotNull(), folders=source.format != "csv")
    return frame.select(*_numbered(schema), _RECORD, path, _replaced(source, schema))


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


def _numbered(schema: pa.Schema) -> list[Column]:
    """Columns under plain names, for mapInArrow looks columns up without quoting dots and backticks."""
    return [f.col(quoted(name)).alias(plain) for name, plain in zip(schema.names, _names(schema), strict=True)]


def _names(schema: pa.Schema) -> list[str]:
    return [f"c{i}" for i in range(len(schema))]


@attrs.frozen(eq=False)
class RecordReader:
    """Batches that Spark read, malformed records among them; `columns` are what a record should hold."""

    schema: pa.Schema
    rules: Rules
    columns: str
    stores: Stores = attrs.field(factory=Stores, eq=False, repr=False)

    def __call__(self, batch: pa.RecordBatch) -> Iterator[Scanned]:
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
            bad = [(n, raw) for n, raw in lines if not _is_utf8(raw)]
            if (lines and not bad) or all(_is_utf8(raw) for _, raw, _ in odd_lines[file]):
                continue  # the character itself was written
            number, shown = (bad[0][0], bad[0][1].decode("utf-8", "backslashreplace")) if bad else (None, None)
            malformed.append(Malformed(shown_path(unquote(file)), number, shown, "bytes that are not UTF-8"))
            good[row] = False
        return malformed, pa.array(good)

    def _with_folders(self, rows: pa.RecordBatch, file: pa.Array) -> Iterator[Scanned]:
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
        yield Scanned(rows)

    def _malformed(self, records: list[str], files: list[str]) -> list[Malformed]:
        by_file: dict[str, set[str]] = {}
        for text, file in zip(records, files, strict=True):
            by_file.setdefault(file, set()).add(text)
        lines = {file: _lines(file, texts) for file, texts in by_file.items()}
        why = f"no record of {self.columns}"
        malformed = []
        for text, file in zip(records, files, strict=True):
            number, shown = lines[file].get(text, (None, text))
            malformed.append(Malformed(shown_path(unquote(file)), number, shown, why))
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


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


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
    return frame, RangeReader(schema, source.source, source.name, tasks)


def empty_frame(spark: SparkSession, source: RangeSource, schema: pa.Schema) -> tuple[DataFrame, RangeReader]:
    """Return a finite source without any range."""
    return spark.createDataFrame([], "path string"), RangeReader(schema, source.source, source.name)


def inferred(spark: SparkSession, located: Located, kind: str, options: dict[str, str]) -> pa.Schema:
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
        raise _unknown(located, "no file says which columns there are", problem) from problem
    except (PySparkException, Py4JError) as problem:
        raise _unknown(located, "a file cannot be read", problem) from problem
    return checked(with_partitions(schema, paths))


def _unknown(located: Located, what: str, problem: Exception) -> SourceError:
    said = next((line for line in str(problem).splitlines() if "[" in line), str(problem).splitlines()[0])
    return SourceError(f"{located.path}: {what}", got=said.strip()[:300], hint="pass schema=...")


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
