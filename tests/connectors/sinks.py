"""Sinks as a user would write them."""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa
import pyarrow.csv as pa_csv

from examples.sqlite_sink import SqliteSink as SqliteSink
from krishiv_py.connectors import FileSink, OutputBatch, SparkFileSink


class Crash(BaseException):
    """Stands for the death of the process."""


@attrs.frozen
class CsvSink(FileSink):
    """Files of comma-separated values, written by tasks."""

    path: str
    suffix = ".csv"

    def write_table(self, table: pa.Table, stream: Any) -> None:
        """Write `table` to `stream`."""
        pa_csv.write_csv(table, stream, pa_csv.WriteOptions(include_header=False))


@attrs.frozen
class SparkJsonSink(SparkFileSink):
    """Files of JSON lines as Spark writes them."""

    path: str

    def write_files(self, frame: Any, folder: str) -> None:
        """Write `frame` into `folder`."""
        frame.write.mode("overwrite").json(folder)


class DyingSink(SqliteSink):
    """Dies once, at a point of a batch."""

    def __init__(self, path: str, point: str, batch_id: int) -> None:
        super().__init__(path)
        self.point, self.batch_id = point, batch_id

    def _dies(self, point: str, batch: OutputBatch) -> None:
        if self.point == point and batch.batch_id == self.batch_id:
            self.point = "done"
            self.die()

    def die(self) -> None:
        """Leave, as a process that is killed."""
        raise Crash

    def begin(self, batch: OutputBatch) -> None:
        """Begin, unless it dies before."""
        self._dies("begin", batch)
        super().begin(batch)

    def commit(self, batch: OutputBatch) -> None:
        """Commit, unless it dies before; or die after."""
        self._dies("written", batch)
        super().commit(batch)
        self._dies("committed", batch)
