"""State in memory that knows what a micro-batch has changed, so that a commit writes that and nothing else."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pyarrow as pa

from krishiv_py.kernels.state.store import MemoryStore


@attrs.define(eq=False)
class ChangedStore(MemoryStore):
    """Tables in memory, and the names of those that were written or removed since the last commit."""

    changed: set[str] = attrs.field(factory=set, init=False)

    def put(self, name: str, table: pa.Table) -> None:
        """See :class:`~krishiv_py.kernels.state.store.ChunkStore`."""
        MemoryStore.put(self, name, table)
        self.changed.add(name)

    def delete(self, name: str) -> None:
        """See :class:`~krishiv_py.kernels.state.store.ChunkStore`."""
        MemoryStore.delete(self, name)
        self.changed.add(name)


@attrs.define(eq=False)
class ChangedPages:
    """Pages of large maps as bytes, and the names of those that were written or removed since the last commit."""

    notes: dict[str, bytes] = attrs.field(factory=dict)
    changed: set[str] = attrs.field(factory=set, init=False)

    def read(self, name: str) -> Any:
        """See :class:`~krishiv_py.kernels.state.sorted_map.Pages`."""
        return json.loads(self.notes[name])

    def write(self, name: str, note: Any) -> None:
        """See :class:`~krishiv_py.kernels.state.sorted_map.Pages`."""
        self.notes[name] = json.dumps(note, separators=(",", ":")).encode()
        self.changed.add(name)

    def remove(self, name: str) -> None:
        """See :class:`~krishiv_py.kernels.state.sorted_map.Pages`."""
        del self.notes[name]
        self.changed.add(name)
