"""Determine which spans of time the open sessions of a key cover: a compact side table of key hashes and bounds, no
keys or values.

Every stored row has an entry ``(h, a, b)``, and the entries of a session that end after the point up to which sessions
were closed cover all of it. So whether a row that is due belongs to a session that goes on is answered without reading
what is open: by looking its hash up here. Two keys with one 64-bit hash can only make a session fire later than its due
watermark, never with wrong contents, for rows are merged by key.
"""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.intervals import Components, components
from krishiv_py.arrays.sorting import sorted_unique
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.state.keyed_log import HASH, KeyedLog
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.windows.session.rows import END, START

_SCHEMA = pa.schema([pa.field(n, pa.int64()) for n in (HASH, START, END)])


@attrs.frozen(eq=False)
class KeySpans:
    """Bounds of intervals and the number of the key hash of each."""

    hashes: Ints
    starts: Ints
    ends: Ints


class Skeleton:
    """The side table of one bucket; `closed_at` is the point up to which sessions were closed."""

    def __init__(self, bucket: Bucket, closed_at: int, *, touching: bool) -> None:
        self._closed_at = closed_at
        self._touching = touching
        self._log = KeyedLog(bucket, "k", _SCHEMA, self._compact)

    def append(self, hashes: Ints, starts: Ints, ends: Ints) -> None:
        """Enter intervals."""
        self._log.append(pa.Table.from_arrays([pa.array(hashes), pa.array(starts), pa.array(ends)], schema=_SCHEMA))

    def clear(self) -> None:
        """Nothing is open any more."""
        self._log.clear()

    def remove(self, hashes: Ints) -> None:
        """Forget the entries of these hashes (sorted, each once)."""
        self._log.remove(hashes, lambda rows: np.ones(rows.num_rows, np.bool_))

    def of(self, hashes: Ints, after: int) -> KeySpans:
        """The entries of these keys that end after a point in time."""
        found = self._log.lookup(sorted_unique(hashes))
        ends = found[END].to_numpy()
        kept = ends > after
        return KeySpans(found[HASH].to_numpy()[kept], found[START].to_numpy()[kept], ends[kept])

    def joined(self, rows: KeySpans, after: int) -> tuple[Components, Ints]:
        """These rows and all entries of their keys that end after `after`, merged; and the component of every row."""
        entries = self.of(rows.hashes, after)
        parts = self.merged(
            KeySpans(
                *(
                    np.concatenate(pair)
                    for pair in ((rows.hashes, entries.hashes), (rows.starts, entries.starts), (rows.ends, entries.ends))
                )
            )
        )
        return parts, parts.ids[: len(rows.starts)]

    def merged(self, spans: KeySpans) -> Components:
        """Spans of each key merged."""
        numbers = np.unique(spans.hashes, return_inverse=True)[1].astype(np.int64)
        return components(numbers, spans.starts, spans.ends, touching=self._touching)

    def _compact(self, rows: pa.Table, oldest: bool) -> pa.Table:
        ends = rows[END].to_numpy()
        kept = ends > self._closed_at
        hashes = rows[HASH].to_numpy()[kept]
        if not len(hashes):
            return _SCHEMA.empty_table()
        parts = self.merged(KeySpans(hashes, rows[START].to_numpy()[kept], ends[kept]))
        of_part = np.empty(parts.n, np.int64)
        of_part[parts.ids] = hashes
        return pa.Table.from_arrays([pa.array(of_part), pa.array(parts.starts), pa.array(parts.ends)], schema=_SCHEMA)
