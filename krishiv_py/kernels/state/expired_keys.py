"""Keys that are to be taken out of state: found by hash first, then by value."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import among, key_hashes
from krishiv_py.arrays.sorting import sorted_unique
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.state.timer_queue import DueQueue
from krishiv_py.kernels.state.window_log import HASH, KeyedLog


@attrs.frozen(eq=False)
class DeadKeys:
    """Keys as columns, and their hashes (sorted, each once)."""

    keys: pa.Table
    names: list[str]
    hashes: Ints

    @classmethod
    def of(cls, keys: pa.Table, names: list[str]) -> DeadKeys:
        """Return the keys in the columns `names` of a table."""
        return cls(keys, names, sorted_unique(key_hashes([keys[k] for k in names], keys.num_rows)))

    def hashed(self, rows: pa.Table) -> Mask:
        """Rows whose key has the hash of one of these."""
        stored = HASH in rows.column_names
        hashes = rows[HASH].to_numpy() if stored else key_hashes([rows[k] for k in self.names], rows.num_rows)
        return np.isin(hashes, self.hashes)

    def rows(self, rows: pa.Table) -> Mask:
        """Rows of these keys."""
        hashed = self.hashed(rows)
        if hashed.any():
            hashed[hashed] = among(rows.filter(pa.array(hashed)), self.keys, self.names)
        return hashed


def removed(log: KeyedLog, timers: DueQueue, dead: DeadKeys) -> pa.Table:
    """Take keys out of a log, and the timers of theirs; gives what the log had of them.

    A timer knows the hash of its key: one that another key shares stays.
    """
    removed_rows = log.remove(dead.hashes, dead.rows)
    gone = np.setdiff1d(dead.hashes, log.lookup(dead.hashes)[HASH].to_numpy())
    timers.discard(lambda rows: np.isin(rows[HASH].to_numpy(), gone))
    return removed_rows
