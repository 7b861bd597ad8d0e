"""The state a kernel works on: named Arrow tables, and one small dictionary that indexes them."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import attrs
import pyarrow as pa

Meta: TypeAlias = dict[str, Any]
"""Numbers, texts, lists and dictionaries only: adapters store it as JSON-like data."""


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
