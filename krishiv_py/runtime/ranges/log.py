"""What a user's source planned, on disk before it is read: one file a micro-batch, in ``<checkpoint>/krishiv/ranges/<source>``.

Spark's file source takes the files one by one, and writes in its log which batch has which: so a repeated batch reads the same
ranges. At most one file waits to be taken, and the modification times of files on this machine increase, so the order is never
in doubt. The newest file is kept, as it says where the source stands.
"""

from __future__ import annotations

import contextlib
import os

import attrs
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from krishiv_py.connectors.ranges import NotedRanges
from krishiv_py.disk.checksums import sealed_parquet
from krishiv_py.disk.files import file_system, make_folder, write_whole
from krishiv_py.disk.folders import create, sync
from krishiv_py.plan.running.control import Control
from krishiv_py.replay_index import open_sent
from krishiv_py.replay_log import CONTROL, control_table

RANGE: str = "__krishiv_range"
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
        system, root = file_system(folder)
        make_folder(system, root)
        log = cls(folder, durable)
        numbers = log._numbers()
        if numbers:
            log.last = numbers[-1]
            log.position = log.position_of(log.last)
            log.ended = log.position is None
        return log

    def position_of(self, number: int) -> str | None:
        """Where the source stands after the batch of a file; None if it notes the end of input."""
        noted = open_sent(file_system(self.folder)[0], self._path(number)).schema_arrow
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
        noted = open_sent(file_system(self.folder)[0], self._path(number)).read()
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
        """Remove what no batch has taken."""
        self._drop([number for number in reversed(self._numbers()) if number > taken])
        self.last = min(self.last, taken)
        self.position = None if self.last < 0 else self.position_of(self.last)

    def begin_at(self, number: int) -> None:
        """Let the next file have a number."""
        self.last = number - 1

    def _drop(self, numbers: list[int]) -> None:
        system, _ = file_system(self.folder)
        for number in numbers:
            with contextlib.suppress(FileNotFoundError):
                system.delete_file(self._path(number))

    def _numbers(self) -> list[int]:
        system, root = file_system(self.folder)
        found = system.get_file_info(pafs.FileSelector(root, allow_not_found=True))
        return sorted(int(f.base_name[:20]) for f in found if f.base_name.endswith(".parquet") and f.base_name[:20].isdigit())

    def _path(self, number: int) -> str:
        return f"{file_system(self.folder)[1]}/{number:020d}.parquet"

    def _write(self, table: pa.Table) -> None:
        held, path = pa.BufferOutputStream(), self._path(self.last + 1)
        pq.write_table(table, held)
        pieces = sealed_parquet(held.getvalue())
        system, root = file_system(self.folder)
        if isinstance(system, pafs.LocalFileSystem):
            hidden = f"{root}/_next.tmp"
            with contextlib.suppress(FileNotFoundError):  # of a process that died
                os.unlink(hidden)
            create(hidden, pieces, durable=self.durable, mtime_s=_FIRST_MTIME_S + self.last + 1)
            os.rename(hidden, path)
            if self.durable:
                sync(root)
        else:
            write_whole(system, path, b"".join(pieces), durable=self.durable)
        self.last += 1
