"""Files that are there, looked at without Spark: their path, and their columns."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.connectors.csv.records import CsvOptions
from krishiv_py.errors import SourceError
from krishiv_py.plan.schema import checked
from krishiv_py.runtime.reading.csv_files import header_columns
from krishiv_py.runtime.reading.located import with_partitions
from krishiv_py.storage.files import arrow_reads, store_at
from krishiv_py.storage.listing import files_at


def inferred(path: tuple[str, bool], kind: str, options: Mapping[str, str]) -> pa.Schema:
    """Return the columns of the files at a path, by the first one, and those that folders such as ``user=7`` add.

    The columns of CSV are texts, as on Spark.

    Raises
    ------
    SourceError
        When there is no file, or it says no columns.
    """
    where, literal = path
    if kind == "json" or not arrow_reads(where):
        raise SourceError(
            f"{where}: the columns of {kind} files are found out by Spark, and this session has none",
            got="no schema",
            hint='pass schema="user string, at timestamp"',
        )
    paths = [file.path for file in files_at(where, literal=literal)]
    if not paths:
        raise _unknown(where, "no file says which columns there are", "no file")
    if kind == "csv":
        return checked(pa.schema([(name, pa.string()) for name in _named(paths[0], options)]))
    store, root = store_at(paths[0])
    try:
        with store.open(root) as file:
            found = pq.read_schema(file)
    except (OSError, pa.ArrowException) as problem:
        raise _unknown(paths[0], "the file cannot be read", str(problem)[:300]) from problem
    return checked(with_partitions(found.remove_metadata(), paths))


def _named(path: str, options: Mapping[str, str]) -> list[str]:
    names = header_columns(path, CsvOptions.of(options.items()))
    if not names or not all(names) or len({name.lower() for name in names}) < len(names):
        raise _unknown(path, "the first line names no columns", ", ".join(names)[:300] or "no line")
    return names


def _unknown(path: str, what: str, got: str) -> SourceError:
    return SourceError(f"{path}: {what}", got=got, hint="pass schema=...")
