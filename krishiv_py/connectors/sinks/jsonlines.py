"""Files of JSON lines, written by tasks straight from Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs
import pyarrow as pa

from krishiv_py.connectors.sink import FileSink, OutputName
from krishiv_py.connectors.sinks.folder import a_folder, partition_by
from krishiv_py.lazy import lazy
from krishiv_py.redaction import shown_text

if TYPE_CHECKING:
    from krishiv_py.connectors import hive
    from krishiv_py.connectors.json import texts
else:
    hive = lazy("krishiv_py.connectors.hive")
    texts = lazy("krishiv_py.connectors.json.texts")

_AT_ONCE: Final = 65_536


@attrs.frozen
class JsonSink(FileSink):
    """Files of JSON lines in a folder, or in folders by `partition_by`; exactly once like :class:`ParquetSink`.

    Each line is an object with all columns in their order. Nulls are ``null``; times are ISO 8601 with microseconds, in UTC and
    with a ``Z`` where they are instants; bytes are base64; NaN and infinity are the texts ``"NaN"``, ``"Infinity"`` and
    ``"-Infinity"``; decimals keep all their digits; durations have Spark's text, ``INTERVAL '0 00:00:01.5' DAY TO SECOND``.

    A time before year 1 or after 9999, and a map that has a key twice, stop the query with an
    :class:`~krishiv_py.OperatorError`.
    """

    path: str = attrs.field(converter=a_folder, repr=shown_text)
    partition_by: tuple[str, ...] = attrs.field(default=(), converter=partition_by, kw_only=True)
    suffix: ClassVar[str] = ".json"

    def check(self, output: OutputName, schema: pa.Schema) -> None:
        """Refuse columns of a `schema` of an `output` that cannot be folders."""
        if self.partition_by:
            hive.check_partitions(self.title, self.partition_by, schema)

    def write_table(self, table: pa.Table, stream: Any) -> None:
        """Write the rows of `table` to the open file `stream`."""
        for start in range(0, table.num_rows, _AT_ONCE):
            lines = texts.objects(table.slice(start, _AT_ONCE), table.schema.names).to_pylist()
            stream.write(("\n".join(lines) + "\n").encode())
