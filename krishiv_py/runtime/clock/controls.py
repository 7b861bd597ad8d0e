"""Control files of a query, read next to its source: heartbeats and the end of input.

They lie in the checkpoint, on whatever file system that has. A query may run for years, so files that no micro-batch will read
again are removed, and names come from the time, not from a count. A query that began with control files keeps them as a source.

Spark runs a batch without rows when its watermark has moved, and wakes operators by timers that follow it. Where the watermark
is that of a DataFrame on the way in, both follow other times than ours. So when ours has moved a control file is written, the
next batch reads it, and every bucket is asked to go on.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import Final

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from krishiv_py.connectors.ranges import RangeSource
from krishiv_py.errors import users_line
from krishiv_py.plan.durations import END_OF_TIME, UNSET
from krishiv_py.plan.nodes import MemorySource, SourceNode
from krishiv_py.plan.running import Control
from krishiv_py.redaction import shown_text
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
        """Return the folder of a checkpoint; None if it is neither there nor `wanted`.

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


@attrs.frozen(eq=False)
class ControlWriter:
    """Writes them.

    Attributes
    ----------
    controls : ControlFolder
        Where.
    tidies : bool
        Whether it removes what batches have read, as nobody else does.
    now : callable
        Processing time, µs.
    """

    controls: ControlFolder
    tidies: bool
    now: Callable[[], int]

    def batch_done(self, *, moved: bool) -> None:
        """To be called once in every batch, before Spark marks it as done: whether it has `moved` the watermark."""
        if self.tidies:
            self.controls.batch_done()
        if moved:
            self.controls.write(Control(UNSET, None, self.now()))


NOTE: Final = (
    "warning: flush=True declares the end of input: every row that comes later from this checkpoint is late. "
    "Leave flush out to go on later"
)


def warn_if_flushed(watermark_us: int, checkpoint: str, source: SourceNode) -> None:
    """Warn at the start of a query whose checkpoint saw the end of input; what is closed or finite gets no more rows anyway."""
    ends = isinstance(source, MemorySource) or (isinstance(source, RangeSource) and source.bounded)
    if watermark_us == END_OF_TIME and not ends:
        warnings.warn(
            f"the end of input was declared in the checkpoint {shown_text(checkpoint)}, by available_now(flush=True): every "
            "row that comes now is late. Hint: use a new checkpoint, and leave flush out if more input is to come",
            stacklevel=users_line(),
        )
