"""Define what a user's source planned, on disk before it is read: one file a micro-batch, in
``<checkpoint>/krishiv/ranges/<source>``.

Spark's file source takes the files one by one, and writes in its log which batch has which: so a repeated batch reads the same
ranges. At most one file waits to be taken, and the modification times of files on this machine increase, so the order is never
in doubt. The newest file is kept, as it says where the source is.
"""

from __future__ import annotations

import attrs
import pyarrow as pa

from krishiv_py.connectors.ranges import NotedRanges
from krishiv_py.plan.running.control import Control
from krishiv_py.replay_index import RANGE, open_sent
from krishiv_py.replay_log import CONTROL, control_table
from krishiv_py.runtime.checkpoint.opened import writable_checkpoint
from krishiv_py.storage.checksums import as_parquet, sealed_parquet
from krishiv_py.storage.files import store_at

_POSITION = b"krishiv_position"
_FIRST_MTIME_S = 1_000_000_000
_KEPT = 2


@attrs.define(eq=False)
class RangeLog:
    """The log of one source of a query.

    Attributes
    ----------
    folder : str
        Where it is; on the file system of the checkpoint.
    durable : bool
        Whether what is noted must survive a loss of power.
    last : int
        The number of the newest file; -1 without one.
    position : str or None
        Where the source stands, as JSON.
    ended : bool
        Whether the end of input was noted.
    """

    folder: str
    durable: bool
    last: int = -1
    position: str | None = None
    ended: bool = False

    @classmethod
    def open(cls, folder: str, *, durable: bool) -> RangeLog:
        """Open a log, or begin one.

        Raises
        ------
        CheckpointError
            When its newest file is damaged; names it.
        """
        store, root = store_at(folder)
        store.make_folder(root)
        log = cls(folder, durable)
        numbers = log._numbers()
        if numbers:
            log.last = numbers[-1]
            log.position = log.position_of(log.last)
            log.ended = log.position is None
        return log

    def position_of(self, number: int) -> str | None:
        """Return where the source is after the batch of a file; None if it notes the end of input."""
        noted = open_sent(store_at(self.folder)[0], self._path(number)).schema_arrow
        return None if CONTROL in noted.names else (noted.metadata or {})[_POSITION].decode()

    def note(self, planned: NotedRanges) -> None:
        """Note a batch that was planned."""
        table = pa.table({RANGE: pa.array(planned.ranges, pa.string())})
        self._write(table.replace_schema_metadata({_POSITION: planned.position.encode()}))
        self.position = planned.position

    def end(self, control: Control) -> None:
        """Note the end of input."""
        self._write(control_table(control))
        self.ended = True

    def ranges_of(self, number: int) -> list[str]:
        """The ranges of a file; none if it notes the end of input."""
        noted = open_sent(store_at(self.folder)[0], self._path(number)).read()
        return list(noted.column(RANGE).to_pylist()) if RANGE in noted.column_names else []

    def numbers(self) -> list[int]:
        """The files that are there."""
        return self._numbers()

    def read_long_ago(self, taken: int) -> list[int]:
        """The files that no batch will read again, when the one numbered `taken` is being read."""
        return [number for number in self._numbers() if number < min(taken - _KEPT, self.last)]

    def drop_read(self, taken: int) -> None:
        """Remove files that no batch will read again, when the one numbered `taken` is being read."""
        self._drop(self.read_long_ago(taken))

    def forget_after(self, taken: int) -> None:
        """Remove what no batch has taken; an entry without ranges stays, which says how far a source was read elsewhere."""
        planned = [number for number in self._numbers() if number > taken]
        begun = planned[:1] if planned and not self.ranges_of(planned[0]) and self.position_of(planned[0]) else []
        self._drop([number for number in reversed(planned) if number not in begun])
        self.last = max([min(self.last, taken), *begun])
        self.position = None if self.last < 0 else self.position_of(self.last)

    def begin_at(self, number: int) -> None:
        """Let the next file have a number."""
        self.last = number - 1

    def _drop(self, numbers: list[int]) -> None:
        store, _ = store_at(self.folder)
        for number in numbers:
            store.delete(self._path(number))

    def _numbers(self) -> list[int]:
        store, root = store_at(self.folder)
        found = store.entries(root)
        return sorted(int(f.base_name[:20]) for f in found if f.base_name.endswith(".parquet") and f.base_name[:20].isdigit())

    def _path(self, number: int) -> str:
        return f"{store_at(self.folder)[1]}/{number:020d}.parquet"

    def _write(self, table: pa.Table) -> None:
        path, pieces = self._path(self.last + 1), sealed_parquet(as_parquet(table))
        store, _ = store_at(self.folder)
        with writable_checkpoint(self.folder, running=True):
            store.create(path, pieces, durable=self.durable, mtime_s=_FIRST_MTIME_S + self.last + 1)
        self.last += 1
