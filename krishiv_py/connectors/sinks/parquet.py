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
    """Parquet files in a folder: exactly once, replaceable by micro-batch (docs/outputs.md).

    Durations stay durations for readers that know Arrow's schema (pyarrow, pandas, Polars); Spark reads them as ``bigint``.
    """

    path: str = attrs.field(converter=a_folder, repr=shown_text)
    suffix: ClassVar[str] = ".parquet"

    def write_table(self, table: pa.Table, stream: Any) -> None:
        """Write the rows of `table` to the open file `stream`."""
        # parquet has no durations: only Arrow's own schema tells a reader that such numbers are some
        kept = any(map(_has_durations, table.schema.types))
        pq.write_table(table, stream, compression="snappy", store_schema=kept)


def _has_durations(kind: pa.DataType) -> bool:
    return bool(pa.types.is_duration(kind)) or any(_has_durations(kind.field(i).type) for i in range(kind.num_fields))
