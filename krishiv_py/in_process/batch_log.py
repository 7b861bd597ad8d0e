"""Define what a micro-batch reads and when it began, on disk before it runs, so that a repeated batch is the same.

The plan of a batch is ``offsets/<batch>``, as Spark writes it for a query, so that everything that reads a checkpoint reads
both kinds. It also holds what each source gives, where that has no log of its own: the newest plan says it of all of them. The
file of the state commits the batch; ``commits/<batch>`` is written when the query ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from krishiv_py.runtime.checkpoint.sparklog import batches_of, logged_offsets, numbered, with_check
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
    ranges : dict
        The entry that each source has given last, the position after it and its ranges, for sources whose log is here.
    """

    number: int
    now_us: int
    taken: dict[int, int]
    ended: bool = False
    snapshot: bool = False
    ranges: Mapping[int, tuple[int, str, Sequence[str]]] = attrs.field(factory=dict)


@attrs.frozen
class BatchLog:
    """The log of planned and finished batches in a checkpoint."""

    checkpoint: str
    sources: int
    durable: bool = False
    kept: int = 0
    """How many of the last batches can be gone back to."""

    def begin(self) -> None:
        """Make the folders."""
        for name in ("offsets", "commits"):
            store, path = store_at(f"{self.checkpoint}/{name}")
            store.make_folder(path)

    def plan(self, batch: PlannedBatch) -> None:
        """Note a batch before it runs."""
        ours = {"now_us": batch.now_us, "ended": batch.ended, "snapshot": batch.snapshot, **with_check(batch.ranges)}
        head: dict[str, Any] = {"batchWatermarkMs": 0, "batchTimestampMs": batch.now_us // 1_000, "conf": {}, _OURS: ours}
        lines = ["v1", json.dumps(head, separators=(",", ":"))]
        given = (batch.taken.get(index) for index in range(self.sources))
        lines += ["-" if number is None else json.dumps({"logOffset": number}, separators=(",", ":")) for number in given]
        self._write("offsets", batch.number, "\n".join(lines))

    def done(self, number: int) -> None:
        """Let the plan of long ago go, when a batch is finished: its state is written."""
        kept = max(_KEPT, self.kept + 1)  # and the one before them, which says where their sources began
        if number >= kept:
            store, path = store_at(f"{self.checkpoint}/offsets/{number - kept}")
            store.delete(path)

    def commit(self, number: int) -> None:
        """Note that a batch is finished, when the query ends: then a file of its state that is lost is missed."""
        self._write("commits", number, 'v1\n{"nextBatchWatermarkMs":0}')
        store, root = store_at(f"{self.checkpoint}/commits")
        for earlier in numbered(store, root)[:-1]:
            store.delete(f"{root}/{earlier}")

    def last_planned(self) -> PlannedBatch | None:
        """Return the batch that was planned last.

        Raises
        ------
        CheckpointError
            When its entry is damaged.
        """
        numbers = batches_of(self.checkpoint)
        return self.planned(numbers[-1]) if numbers else None

    def planned(self, number: int) -> PlannedBatch:
        """Return a batch that was planned.

        Raises
        ------
        CheckpointError
            When its entry is damaged or missing.
        """
        store, path = store_at(f"{self.checkpoint}/offsets/{number}")
        lines = checked_lines(store, path)
        try:
            ours = json.loads(lines[1])[_OURS]
            return PlannedBatch(number, ours["now_us"], logged_offsets(lines, path), ours["ended"], ours["snapshot"])
        except (IndexError, KeyError, TypeError, ValueError) as problem:
            raise damaged(path, f"{len(lines)} lines", NEW_CHECKPOINT) from problem

    def is_committed(self, number: int) -> bool:
        """Return whether a batch is noted as finished."""
        store, path = store_at(f"{self.checkpoint}/commits/{number}")
        return store.is_file(path)

    def _write(self, name: str, number: int, text: str) -> None:
        write_at(f"{self.checkpoint}/{name}/{number}", text.encode(), durable=self.durable)
