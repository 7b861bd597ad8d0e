"""Which rows have passed: identity and event time, found by a hash of the identity, in runs that expire.

A run knows the middle and the latest of its times. When the middle one is over, more than half of its rows are, and it is
written anew without them; when the latest is, it goes unread. So expiry costs what expires, whatever is held.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.state.keyed_log import HASH, KeyedLog, middle_and_latest
from krishiv_py.kernels.state.store import Bucket

_MIDDLE, _LATEST = range(2)
NAME: Final = "dedup"


class PassedLog(KeyedLog):
    """Rows that passed. Those at or before `over_us` are over: no row that is not late is close to one of them."""

    def __init__(self, bucket: Bucket, layout: Layout, over_us: int) -> None:
        fields = [pa.field(HASH, pa.int64()), pa.field(TIME, pa.int64()), *layout.key_fields]
        super().__init__(bucket, NAME, pa.schema(fields), lambda rows, _: self.alive(rows))
        self.schema = self._schema
        self._over = over_us

    @property
    def next_us(self) -> int | None:
        """The event time at whose end :meth:`expire` has something to do."""
        return min((run[2][_MIDDLE] for run in self._runs), default=None)

    def expire(self) -> None:
        """Forget rows that are over: whole runs, and parts of a run once they are more than half of it."""
        for run in list(self._runs):
            times = run[2]
            if times[_MIDDLE] > self._over:
                continue
            at = self._runs.index(run)
            kept = self.alive(pa.concat_tables(self._load(run))) if times[_LATEST] > self._over else None
            self._delete(run)
            del self._runs[at]
            if kept is not None and kept.num_rows:
                self._write(run[0][0], kept)
                self._runs.insert(at, self._runs.pop())

    def alive(self, rows: pa.Table) -> pa.Table:
        """The rows that are not over."""
        alive = rows[TIME].to_numpy() > self._over
        return rows if alive.all() else rows.filter(pa.array(alive))

    def _write(self, number: int, rows: pa.Table) -> None:
        super()._write(number, rows)
        self._runs[-1].append(middle_and_latest(rows))
