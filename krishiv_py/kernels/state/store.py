"""The state a kernel works on: named Arrow tables, and one small dictionary that indexes them."""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.plan.durations import UNSET

Meta: TypeAlias = dict[str, Any]
"""Numbers, texts, lists and dictionaries only: adapters store it as JSON-like data."""


WRITTEN: Final = "__at"
"""Working column: when the chunk of a row was written (µs since the epoch, processing time); ``UNSET`` if it was not noted."""


def with_written(table: pa.Table, at_ms: int | None) -> pa.Table:
    """The rows of a chunk with the time it was written at."""
    at_us = UNSET if at_ms is None else at_ms * 1_000
    return table.append_column(WRITTEN, pa.repeat(pa.scalar(at_us, pa.int64()), table.num_rows))


class ChunkStore(Protocol):
    """Arrow tables by name. Adapters keep them as IPC blobs in Spark's state store, the driver in a dictionary."""

    def get(self, name: str) -> pa.Table:
        """The table of that name; it must exist."""
        ...

    def put(self, name: str, table: pa.Table) -> None:
        """Write, or replace, a table."""
        ...

    def delete(self, name: str) -> None:
        """Remove a table."""
        ...


@attrs.frozen(eq=False)
class Bucket:
    """The state of one bucket, changed in place.

    Attributes
    ----------
    store : ChunkStore
        Its tables.
    meta : dict
        What its owners keep beside tables.
    now_ms : int or None
        Processing time, ms since the epoch, that logs note with what they write; None: nothing is noted.
    """

    store: ChunkStore
    meta: Meta = attrs.field(factory=dict)
    now_ms: int | None = None


@attrs.define
class MemoryStore:
    """Tables in a dictionary, for the JVM-free driver and the bounded route."""

    tables: dict[str, pa.Table] = attrs.field(factory=dict)

    def get(self, name: str) -> pa.Table:
        """See :class:`ChunkStore`."""
        return self.tables[name]

    def put(self, name: str, table: pa.Table) -> None:
        """See :class:`ChunkStore`."""
        self.tables[name] = table

    def delete(self, name: str) -> None:
        """See :class:`ChunkStore`."""
        del self.tables[name]
