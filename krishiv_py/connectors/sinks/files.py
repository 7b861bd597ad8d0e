"""Sinks that write files into a folder: Parquet and JSON lines."""

from __future__ import annotations

import os
from typing import Any, ClassVar, Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.connectors import hive, json_texts
from krishiv_py.connectors.sink import FileSink, FolderSink, OutputName, Sink
from krishiv_py.connectors.tables.keys import columns
from krishiv_py.failures.redaction import shown_text
from krishiv_py.plan.checks import PathLike, a_path
from krishiv_py.storage.local import absolute, of_this_machine


def a_folder(value: PathLike) -> str:
    """Return a folder as text; converts the `path` of a sink."""
    text = a_path(value, "path", 'pass a folder: "out/results"')
    return text if "://" in text else of_this_machine(text)


def partition_by(value: object) -> tuple[str, ...]:
    """Return the columns whose values become folders."""
    return columns(value, "partition_by")


def folder_of(sink: Sink | None) -> str | None:
    """Return the folder a sink writes into, the same for every task wherever its process was started; None if it has none."""
    return absolute(os.fspath(sink.path)) if isinstance(sink, FolderSink) else None


@attrs.frozen
class _FilesByColumns(FileSink):
    """Files in a folder, or in folders by the values of columns."""

    in_threads: ClassVar[bool] = True
    path: str = attrs.field(converter=a_folder, repr=shown_text)
    partition_by: tuple[str, ...] = attrs.field(default=(), converter=partition_by, kw_only=True)

    def check(self, output: OutputName, schema: pa.Schema) -> None:
        """Refuse columns of a `schema` of an `output` that cannot be folders."""
        if self.partition_by:
            hive.check_partitions(self.title, self.partition_by, schema)


@attrs.frozen
class ParquetSink(_FilesByColumns):
    """Parquet files in a folder: exactly once, replaceable by micro-batch (docs/outputs.md).

    The values of the columns in `partition_by` become folders, as Hive and Spark have them: ``day=2026-11-26/user=7/``.
    Durations stay durations for readers that know Arrow's schema (pyarrow, pandas, Polars); Spark reads them as ``bigint``.

    Examples
    --------
    >>> import pyarrow.parquet as pq
    >>> from krishiv_py import ParquetSink, Session, count
    >>> with Session.in_process() as session:
    ...     folder = session.temporary_folder()
    ...     stream, sender = session.memory_stream("user string, at bigint")
    ...     per_user = stream.watermark("at", 0).key_by("user").tumbling_window(10).agg(count())
    ...     query = per_user.start(ParquetSink(folder, partition_by="user"))
    ...     _ = sender.send([{"user": "ann", "at": 1}, {"user": "bob", "at": 12}])
    ...     query.process_all_available()
    ...     pq.read_table(folder).to_pylist()
    [{'window_start': 0, 'window_end': 10, 'count': 1, 'user': 'ann'}]
    """

    suffix: ClassVar[str] = ".parquet"

    def write_table(self, table: pa.Table, stream: Any) -> None:
        """Write the rows of `table` to the open file `stream`."""
        write_parquet(table, stream)


def write_parquet(table: pa.Table, stream: Any) -> None:
    """Write the rows of `table` as a file of Parquet."""
    # parquet has no durations: only Arrow's own schema tells a reader that such numbers are some
    kept = any(map(_has_durations, table.schema.types))
    pq.write_table(table, stream, compression="snappy", store_schema=kept)


def _has_durations(kind: pa.DataType) -> bool:
    return bool(pa.types.is_duration(kind)) or any(_has_durations(kind.field(i).type) for i in range(kind.num_fields))


_AT_ONCE: Final = 65_536


@attrs.frozen
class JsonSink(_FilesByColumns):
    """Files of JSON lines in a folder, or in folders by `partition_by`; exactly once like :class:`ParquetSink`.

    Each line is an object with all columns in their order. Nulls are ``null``; times are ISO 8601 with microseconds, in UTC and
    with a ``Z`` where they are instants; bytes are base64; NaN and infinity are the texts ``"NaN"``, ``"Infinity"`` and
    ``"-Infinity"``; decimals keep all their digits; durations have Spark's text, ``INTERVAL '0 00:00:01.5' DAY TO SECOND``.

    A time before year 1 or after 9999, and a map that has a key twice, stop the query with an
    :class:`~krishiv_py.OperatorError`.

    Examples
    --------
    >>> import pathlib
    >>> from krishiv_py import JsonSink, Session, count
    >>> with Session.in_process() as session:
    ...     folder = pathlib.Path(session.temporary_folder())
    ...     stream, sender = session.memory_stream("at bigint")
    ...     query = stream.watermark("at", 0).tumbling_window(10).agg(count()).start(JsonSink(folder))
    ...     _ = sender.send([{"at": 1}, {"at": 12}])
    ...     query.process_all_available()
    ...     print(next(folder.glob("*.json")).read_text().strip())
    {"window_start":0,"window_end":10,"count":1}
    """

    suffix: ClassVar[str] = ".json"

    def write_table(self, table: pa.Table, stream: Any) -> None:
        """Write the rows of `table` to the open file `stream`."""
        for start in range(0, table.num_rows, _AT_ONCE):
            lines = json_texts.objects(table.slice(start, _AT_ONCE), table.schema.names).to_pylist()
            stream.write(("\n".join(lines) + "\n").encode())
