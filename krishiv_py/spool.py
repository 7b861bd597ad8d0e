"""A memory stream on disk: every send is one parquet file, so that a restarted query can replay it.

File names are the order. Control files carry a watermark instead of rows: an explicit advance, or the end of input.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.errors import SenderClosedError
from krishiv_py.kernels.rows import as_batch
from krishiv_py.plan.durations import END_OF_TIME, TimePoint, time_point_us

CONTROL: Final = "__krishiv_control_us"
_CONTROL_SCHEMA: Final = pa.schema([pa.field(CONTROL, pa.int64())])
_FIRST_MTIME: Final = 1_000_000_000


@attrs.frozen
class Spool:
    """The folder of one memory stream."""

    folder: str

    def files(self) -> list[str]:
        """All files, in order of sending."""
        return sorted(str(p) for p in Path(self.folder).glob("*.parquet"))

    def size(self) -> int:
        """Bytes of all files."""
        return sum(os.path.getsize(f) for f in self.files())

    def append(self, table: pa.Table) -> int:
        """Write the next file, whole or not at all; returns its number."""
        number = len(self.files())
        final = Path(self.folder) / f"{number:012d}.parquet"
        hidden = final.with_name(f"_{final.name}.tmp")
        pq.write_table(table, hidden, compression="lz4")
        # Spark takes files by modification time: strictly increasing, and never in the future, keeps the order of sending
        stamp = _FIRST_MTIME + number
        os.utime(hidden, (stamp, stamp))
        os.replace(hidden, final)
        return number

    def closed(self) -> bool:
        """Whether the last file says that no more will come."""
        files = self.files()
        return bool(files) and control_of(pq.read_table(files[-1])) == END_OF_TIME

    def __iter__(self) -> Iterator[pa.Table]:
        return (pq.read_table(f) for f in self.files())


def control_of(table: pa.Table) -> int | None:
    """The watermark a control file carries; None for rows."""
    return int(table[CONTROL][0].as_py()) if table.schema.names == [CONTROL] else None


class Sender:
    """Feeds a memory stream. Every call of :meth:`send` is one micro-batch; calls from several threads are put in order."""

    def __init__(self, spool: Spool, schema: pa.Schema) -> None:
        self._spool = spool
        self._schema = schema
        self._lock = threading.Lock()
        self._closed = spool.closed()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def send(self, batch: Any) -> int:
        """Send one micro-batch.

        Parameters
        ----------
        batch : pyarrow.RecordBatch or pyarrow.Table or list of dict or pandas.DataFrame
            Rows of the stream's schema; an empty batch is legal.

        Returns
        -------
        int
            Number of the batch, from 0.

        Raises
        ------
        SchemaError
            Naming column, wrong type and (for dicts) row.
        SenderClosedError
            After :meth:`close`.
        """
        table = pa.Table.from_batches([as_batch(batch, self._schema)])
        return self._append(table, "send()")

    def advance_watermark(self, to: TimePoint) -> int:
        """Move the watermark to at least `to` (ms since the epoch, or a datetime): a heartbeat of a quiet source."""
        return self._append(pa.table([[time_point_us(to, "to")]], schema=_CONTROL_SCHEMA), "advance_watermark()")

    def close(self) -> None:
        """End of input: the watermark moves to plus infinity and every open window fires. Closing twice is harmless."""
        if self._closed:
            return
        self._append(pa.table([[END_OF_TIME]], schema=_CONTROL_SCHEMA), "close()")
        self._closed = True

    def _append(self, table: pa.Table, what: str) -> int:
        with self._lock:
            if self._closed:
                raise SenderClosedError(f"{what} on a closed sender: the end of input was declared and every window has fired. "
                                        "Hint: open another memory_stream")
            return self._spool.append(table)

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
