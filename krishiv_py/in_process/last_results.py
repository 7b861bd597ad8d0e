"""The newest results of a query, by key: what has left its state for a sink, for those who look a key up.

Results of small batches are put together in pieces that double in size, and a piece gets its index when somebody looks. So a
batch costs no more than it did, and a lookup looks into a few pieces, the newest first.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import key_hashes
from krishiv_py.arrays.picking import pick
from krishiv_py.errors import PlanError, shown
from krishiv_py.in_process.stage import ProcessStage
from krishiv_py.runtime.keyed_rows import KeyedRows, holding

MOST_ROWS: Final = 1_000_000
MOST_BYTES: Final = 64 << 20
"""The number of results that are kept; of a single batch that has more, all of them."""
_TOGETHER: Final = 64
_MERGED_ROWS: Final = 1 << 16


@attrs.define(eq=False)
class LastResults:
    """The newest results of an output.

    Attributes
    ----------
    stage : ProcessStage
        The stage that gives them.
    schema : pyarrow.Schema
        Their columns.
    """

    stage: ProcessStage
    schema: pa.Schema
    _fresh: list[pa.Table] = attrs.field(factory=list)
    _fresh_rows: int = 0
    _pieces: list[KeyedRows] = attrs.field(factory=list)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def put(self, results: pa.Table) -> None:
        """Keep what a batch gave."""
        if not results.num_rows:
            return
        with self._lock:
            self._fresh.append(results)
            self._fresh_rows += results.num_rows
            if len(self._fresh) >= _TOGETHER or self._fresh_rows >= _MERGED_ROWS:
                self._merge()

    def of(self, keys: pa.Table, last: int, at_us: int | None) -> pa.Table:
        """Return the newest results of each of some keys, `last` at the most, in the order in which they left.

        Parameters
        ----------
        keys : pyarrow.Table
            The keys, in the order of the key columns.
        last : int
            How many of each key.
        at_us : int, optional
            Only windows that hold this time, µs since the epoch.

        Raises
        ------
        PlanError
            Where the output has no column for the key, or for the bounds of windows if they are needed.
        """
        names = list(self.stage.spec.keys)
        bounds = self.stage.stage.layout.result_schema.names[len(names) : len(names) + 2]
        missing = [name for name in (names if at_us is None else [*names, *bounds]) if name not in self.schema.names]
        if missing:
            raise PlanError(
                "results are looked up by their key, and by the bounds of their windows",
                got=f"an output without {shown(missing[0])}",
                then="no result can be found",
                hint="keep the column in the last .select(...) of the pipeline",
            )
        keys = keys.rename_columns(names)
        with self._lock:
            if self._fresh:
                self._merge()
            pieces = list(self._pieces)
        marks = key_hashes(list(keys.columns), keys.num_rows)
        found: list[pa.Table] = []
        for at, mark in enumerate(marks.tolist()):
            found += self._of_key(pieces, keys.slice(at, 1), mark, last, at_us)
        return pa.concat_tables([self.schema.empty_table(), *found])

    def _of_key(self, pieces: Sequence[KeyedRows], key: pa.Table, mark: int, last: int, at_us: int | None) -> list[pa.Table]:
        """The results of one key, the oldest first."""
        wanted, found = last, list[pa.Table]()
        for piece in reversed(pieces):
            rows = piece.rows_of(key, mark, self.stage.spec.keys, wanted if at_us is None else piece.table.num_rows)
            if rows is None:
                continue
            if at_us is not None:
                rows = self._holding(rows, at_us)
                rows = rows.slice(max(rows.num_rows - wanted, 0))
            found.append(rows)
            wanted -= rows.num_rows
            if wanted <= 0:
                break
        return found[::-1]

    def _holding(self, rows: pa.Table, at_us: int) -> pa.Table:
        """Return the results whose windows hold a time."""
        layout = self.stage.stage.layout.result_schema.names[: len(self.stage.spec.keys) + 2]
        within = holding(rows.select(layout).append_column("at", pa.array(np.arange(rows.num_rows))), at_us, self.stage.spec)
        return pick(rows, within["at"].to_numpy())

    def _merge(self) -> None:
        """Make a piece of what came last, and one of small ones before it; the oldest go."""
        fresh, self._fresh, self._fresh_rows = self._fresh, [], 0
        self._pieces.append(KeyedRows(pa.concat_tables(fresh).combine_chunks() if len(fresh) > 1 else fresh[0]))
        pieces = self._pieces
        while len(pieces) > 1 and pieces[-2].table.num_rows < min(2 * pieces[-1].table.num_rows, _MERGED_ROWS):
            newest = pieces.pop()
            pieces[-1] = KeyedRows(pa.concat_tables([pieces[-1].table, newest.table]).combine_chunks())
        rows, nbytes = sum(p.table.num_rows for p in pieces), sum(p.nbytes for p in pieces)
        while len(pieces) > 1 and (rows > MOST_ROWS or nbytes > MOST_BYTES):
            oldest = pieces.pop(0)
            rows, nbytes = rows - oldest.table.num_rows, nbytes - oldest.nbytes
