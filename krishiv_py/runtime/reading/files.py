"""Files that Arrow reads: which sources they are of, and what reads them."""

from __future__ import annotations

import pyarrow as pa

from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.plan.nodes import FileSource, MemorySource, Source
from krishiv_py.runtime.reading.csv_files import CsvReader
from krishiv_py.runtime.reading.filereader import FileReader
from krishiv_py.runtime.reading.json_files import JsonReader
from krishiv_py.runtime.reading.malformed import Rules
from krishiv_py.runtime.reading.parquet import ParquetReader
from krishiv_py.storage.files import arrow_reads


def arrow_scanned(source: Source) -> bool:
    """Return whether Arrow reads the rows of a source in the tasks, so that only names or ranges travel through the JVM."""
    return isinstance(source, (MemorySource, RangeSource)) or (
        isinstance(source, FileSource)
        and source.format in ("parquet", "json")
        and not source.options
        and arrow_reads(source.path)
    )


def planned_here(source: Source) -> bool:
    """Return whether the library plans the files of a source, whoever reads them."""
    return isinstance(source, FileSource) and arrow_reads(source.path)


def file_reader(source: FileSource, schema: pa.Schema) -> FileReader:
    """Return what reads the files of a source in the tasks."""
    rules = Rules(source.on_malformed == "side_output", source.missing_columns == "null", source.nanoseconds == "cut")
    if source.format == "csv":  # of a session without Spark
        return CsvReader.of(source, schema, rules)
    if source.format == "json":
        return JsonReader(schema, rules, tuple(source.schema.names))
    return ParquetReader(schema, rules)
