"""Define what a micro-batch reads and when it began, on disk before it runs, so that a repeated batch is the same.

The files are those that Spark writes for a query, ``offsets/<batch>`` and ``commits/<batch>``, with the same lines, so that
everything that reads a checkpoint reads both kinds.
"""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

from krishiv_py.runtime.checkpoint.sparklog import batches_of, logged_offsets
from krishiv_py.runtime.storage.chunk_files import NEW_CHECKPOINT, checked_lines
from krishiv_py.storage.checksums import damaged
from krishiv_py.storage.files import store_at, write_at

_KEPT: Final = 20
_OURS: Final = "krishiv"


@attrs.frozen
class PlannedBatch:
    """A micro-batch that was planned.

    Attributes
    ----------
    number : int
        Its number, from 0.
    now_us : int
        The clock when it began, µs since the epoch.
    taken : dict
        The last entry of the range log that each source has given so far, by the place of the source.
    ended, snapshot : bool
        Whether the input counts as ended after it, and whether it shows what is open.
    """

    number: int
    now_us: int
    taken: dict[int, int]
    ended: bool = False
    snapshot: bool = False


@attrs.frozen
class BatchLog:
    """The log of planned and finished batches in a checkpoint."""

    checkpoint: str
    sources: int
    durable: bool = False

    def begin(self) -> None:
        """Make the folders."""
        for name in ("offsets", "commits"):
            store, path = store_at(f"{self.checkpoint}/{name}")
            store.make_folder(path)

    def plan(self, batch: PlannedBatch) -> None:
        """Note a batch before it runs."""
        ours = {"now_us": batch.now_us, "ended": batch.ended, "snapshot": batch.snapshot}
        head: dict[str, Any] = {"batchWatermarkMs": 0, "batchTimestampMs": batch.now_us // 1_000, "conf": {}, _OURS: ours}
        lines = ["v1", json.dumps(head, separators=(",", ":"))]
        given = (batch.taken.get(index) for index in range(self.sources))
        lines += ["-" if number is None else json.dumps({"logOffset": number}, separators=(",", ":")) for number in given]
        self._write("offsets", batch.number, "\n".join(lines))

    def commit(self, number: int) -> None:
        """Note that a batch is finished; entries of long ago go."""
        self._write("commits", number, 'v1\n{"nextBatchWatermarkMs":0}')
        for name in ("offsets", "commits") if number >= _KEPT else ():
            store, path = store_at(f"{self.checkpoint}/{name}/{number - _KEPT}")
            store.delete(path)

    def last_planned(self) -> PlannedBatch | None:
        """Return the batch that was planned last.

        Raises
        ------
        CheckpointError
            When its entry is damaged.
        """
        numbers = batches_of(self.checkpoint)
        if not numbers:
            return None
        store, path = store_at(f"{self.checkpoint}/offsets/{numbers[-1]}")
        lines = checked_lines(store, path)
        try:
            ours = json.loads(lines[1])[_OURS]
            return PlannedBatch(numbers[-1], ours["now_us"], logged_offsets(lines, path), ours["ended"], ours["snapshot"])
        except (IndexError, KeyError, TypeError, ValueError) as problem:
            raise damaged(path, f"{len(lines)} lines", NEW_CHECKPOINT) from problem

    def is_committed(self, number: int) -> bool:
        """Return whether a batch is noted as finished."""
        store, path = store_at(f"{self.checkpoint}/commits/{number}")
        return store.is_file(path)

    def _write(self, name: str, number: int, text: str) -> None:
        write_at(f"{self.checkpoint}/{name}/{number}", text.encode(), durable=self.durable)
