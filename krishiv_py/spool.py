"""A memory stream on disk: every send is one parquet file, so that a restarted query can replay it.

File names are the order. Control files carry a watermark instead of rows: an explicit advance, or the end of input.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.errors import SenderClosedError
from krishiv_py.kernels.rows import as_batch
from krishiv_py.plan.durations import END_OF_TIME, TimePoint, time_point_us

CONTROL: Final = "__krishiv_control_us"
_CONTROL_SCHEMA: Final = pa.schema(
    [pa.field(CONTROL, pa.int64()), pa.field("source", pa.string()), pa.field("now_us", pa.int64())]
)
_NOW: Final = b"krishiv_now_us"
_FIRST_MTIME: Final = 1_000_000_000


@attrs.frozen
class Control:
    """What a control file says.

    Attributes
    ----------
    watermark_us : int
        The watermark to reach; ``UNSET`` for a heartbeat, that only tells the time.
    source : str or None
        The source it is for; None means all.
    now_us : int
        Processing time at which it was written, µs.
    """

    watermark_us: int
    source: str | None
    now_us: int


def wall_clock_us() -> int:
    """Processing time, µs since the epoch."""
    return time.time_ns() // 1_000


@attrs.define
class Spool:
    """The folder of one memory stream."""

    folder: str
    _next: int = attrs.field(default=0, init=False, eq=False)

    def files(self) -> list[str]:
        """All files, in order of sending."""
        return sorted(str(p) for p in Path(self.folder).glob("*.parquet"))

    def size(self) -> int:
        """Bytes of all files."""
        return sum(os.path.getsize(f) for f in self.files())

    def append(self, table: pa.Table) -> int:
        """Write the next file, whole or not at all; returns its number."""
        while (final := Path(self.folder) / f"{self._next:012d}.parquet").exists():  # an earlier run's, or another sender's
            self._next += 1
        number = self._next
        hidden = final.with_name(f"_{final.name}.tmp")
        pq.write_table(table, hidden, compression="lz4")
        # Spark takes files by modification time: strictly increasing, and never in the future, keeps the order of sending
        stamp = _FIRST_MTIME + number
        os.utime(hidden, (stamp, stamp))
        os.replace(hidden, final)
        return number

    def control(self, control: Control) -> int:
        """Write a control file."""
        return self.append(control_table(control))

    def closed(self) -> bool:
        """Whether the last file says that no more will come."""
        files = self.files()
        last = control_of(pq.read_table(files[-1])) if files else None
        return last is not None and last.watermark_us == END_OF_TIME


def control_table(control: Control) -> pa.Table:
    """What a control file holds."""
    row = [[control.watermark_us], [control.source], [control.now_us]]
    return pa.Table.from_arrays(
        [pa.array(v, f.type) for v, f in zip(row, _CONTROL_SCHEMA, strict=True)], schema=_CONTROL_SCHEMA
    )


def control_of(table: pa.Table) -> Control | None:
    """What a control file says; None for rows."""
    if table.schema.names != _CONTROL_SCHEMA.names:
        return None
    row = table.to_pylist()[0]
    return Control(row[CONTROL], row["source"], row["now_us"])


def sent_at(schema: pa.Schema) -> int | None:
    """Processing time at which a file of rows was sent, µs; None for files of other origin."""
    found = (schema.metadata or {}).get(_NOW)
    return None if found is None else int(found)


class Sender:
    """Feeds a memory stream. Every call of :meth:`send` is one micro-batch; calls from several threads are put in order."""

    def __init__(self, spool: Spool, schema: pa.Schema, clock: Callable[[], int] = wall_clock_us) -> None:
        self._spool = spool
        self._clock = clock
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
        with self._lock:
            self._check("send()")
            return self._spool.append(table.replace_schema_metadata({_NOW: str(self._clock()).encode()}))

    def advance_watermark(self, to: TimePoint, source: str | None = None) -> int:
        """Move the watermark (of one `source`, or of all) to at least `to`: ms since the epoch, or a datetime."""
        return self._control(time_point_us(to, "to"), source, "advance_watermark()")

    def close(self) -> None:
        """End of input: the watermark moves to plus infinity and every open window fires. Closing twice is harmless."""
        if self._closed:
            return
        self._control(END_OF_TIME, None, "close()")
        self._closed = True

    def _control(self, watermark_us: int, source: str | None, what: str) -> int:
        with self._lock:
            self._check(what)
            return self._spool.control(Control(watermark_us, source, self._clock()))

    def _check(self, what: str) -> None:
        if self._closed:
            raise SenderClosedError(
                f"{what} on a closed sender: the end of input was declared and every window has fired. "
                "Hint: open another memory_stream"
            )

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
