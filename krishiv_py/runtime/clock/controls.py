"""Control files of one query, read next to its source: heartbeats and the end of input.

They lie in the checkpoint, on whatever file system that has. A query may run for years, so files no micro-batch will read again
are removed, and names come from the time, not from a count. A query that was begun with control files keeps them as a source.
"""

from __future__ import annotations

import threading
import time
from collections import deque

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.plan.running import Control
from krishiv_py.replay_log import control_table
from krishiv_py.runtime.checkpoint.sparklog import add_source, sources_of
from krishiv_py.storage.checksums import sealed_parquet
from krishiv_py.storage.files import store_at


@attrs.define(eq=False)
class ControlFolder:
    """The folder ``<checkpoint>/krishiv/controls``."""

    folder: str
    _named: int = 0
    _present: deque[set[str]] = attrs.field(factory=deque)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    @classmethod
    def of(cls, checkpoint: str, *, wanted: bool, sources: int | None = None) -> ControlFolder | None:
        """The folder of a checkpoint; None if it is neither there nor `wanted`.

        `sources` is how many sources the query has next to it: one that was begun with one more has lost the folder, and with
        it nothing but heartbeats, for the end of input is written again.
        """
        folder = f"{checkpoint}/krishiv/controls"
        store, path = store_at(folder)
        if not store.exists(path):
            begun = sources is not None and sources_of(checkpoint) == sources + 1
            if not wanted and not begun:
                return None
            if not begun:
                add_source(checkpoint)
            store.make_folder(path)
        return cls(folder)

    def write(self, control: Control) -> None:
        """Write a control file, whole or not at all."""
        store, root = store_at(self.folder)
        held = pa.BufferOutputStream()
        pq.write_table(control_table(control), held)
        with self._lock:
            self._named = max(self._named + 1, time.time_ns() // 1_000)
            store.write(f"{root}/{self._named:020d}.parquet", b"".join(sealed_parquet(held.getvalue())))

    def batch_done(self) -> None:
        """Remove what no micro-batch will read again. To be called once in every batch, before Spark marks it as done.

        Every file that is there now is read by the next batch at the latest, and that batch is marked as done when the one
        after it comes to this call: until then Spark could repeat it.
        """
        store, root = store_at(self.folder)
        entries = store.entries(root)  # S3 knows no empty folders
        there = {f.path for f in entries if f.base_name.endswith(".parquet")}
        self._present.append(there)
        if len(self._present) > 2:
            for path in self._present.popleft() & there:
                store.delete(path)  # another run of this query removed it
