"""Parquet files, written by tasks straight from Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.connectors.sink import FileSink, OutputName
from krishiv_py.connectors.sinks.folder import a_folder, partition_by
from krishiv_py.lazy import lazy
from krishiv_py.redaction import shown_text

if TYPE_CHECKING:
    from krishiv_py.connectors import hive
else:
    hive = lazy("krishiv_py.connectors.hive")


@attrs.frozen
class ParquetSink(FileSink):
    """Parquet files in a folder: exactly once, replaceable by micro-batch (docs/outputs.md).

    The values of the columns in `partition_by` become folders, as Hive and Spark have them: ``day=2026-11-26/user=7/``.
    Durations stay durations for readers that know Arrow's schema (pyarrow, pandas, Polars); Spark reads them as ``bigint``.
    """

    path: str = attrs.field(converter=a_folder, repr=shown_text)
    partition_by: tuple[str, ...] = attrs.field(default=(), converter=partition_by, kw_only=True)
    suffix: ClassVar[str] = ".parquet"

    def check(self, output: OutputName, schema: pa.Schema) -> None:
        """Refuse columns of a `schema` of an `output` that cannot be folders."""
        if self.partition_by:
            hive.check_partitions(self.title, self.partition_by, schema)

    def write_table(self, table: pa.Table, stream: Any) -> None:
        """Write the rows of `table` to the open file `stream`."""
        # parquet has no durations: only Arrow's own schema tells a reader that such numbers are some
        kept = any(map(_has_durations, table.schema.types))
        pq.write_table(table, stream, compression="snappy", store_schema=kept)


def _has_durations(kind: pa.DataType) -> bool:
    return bool(pa.types.is_duration(kind)) or any(_has_durations(kind.field(i).type) for i in range(kind.num_fields))
