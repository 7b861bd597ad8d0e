"""Parquet files, written by tasks straight from Arrow."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.connectors.sink import FileSink
from krishiv_py.connectors.sinks.folder import a_folder
from krishiv_py.redaction import shown_text


@attrs.frozen
class ParquetSink(FileSink):
    """Parquet files in a folder: exactly once, replaceable by micro-batch (docs/outputs.md)."""

    path: str = attrs.field(converter=a_folder, repr=shown_text)
    suffix: ClassVar[str] = ".parquet"

    def write_table(self, table: pa.Table, stream: Any) -> None:
        """Write the rows of `table` to the open file `stream`."""
        pq.write_table(table, stream, compression="snappy", store_schema=False)
