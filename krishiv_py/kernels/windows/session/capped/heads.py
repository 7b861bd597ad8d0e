"""Define what a step knows of keys without reading their rows: sessions with a longest duration, whose rows come mostly
in order.

========  ==================================================================================================
column    meaning
========  ==================================================================================================
``a, b``  bounds of the last session, if it has not fired
``t``     rows at this time or later join that session or come after all others: the key need not be walked
``o``     the watermark at which another session of the key is due or over
``q``     the key is looked at again when the watermark reaches ``q``: there is an entry in the queue of timers
``p``     by which watermark each row that waits ahead of it would have ended a session of its own
========  ==================================================================================================

A number that says nothing is the begin of time in ``a, b, t, p`` and its end in ``o, q``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group_rows
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.state.expired_keys import DeadKeys
from krishiv_py.kernels.state.keyed_log import HASH, KeyedLog
from krishiv_py.kernels.state.store import Bucket
from krishiv_py.kernels.windows.session.rows import END, START, SessionRows
from krishiv_py.plan.durations import END_OF_TIME, UNSET

_NOTHING: Final = {START: UNSET, END: UNSET, "t": UNSET, "o": END_OF_TIME, "q": END_OF_TIME, "p": UNSET}


@attrs.define(eq=False)
class Heads:
    """Heads of some keys: a row of `keys` and an element of each array are of one key."""

    keys: pa.Table
    starts: Ints
    ends: Ints
    ordered_from: Ints
    other: Ints
    armed: Ints
    waiting_until: Ints

    @property
    def hashes(self) -> Ints:
        """The hash of each key."""
        found: Ints = self.keys[HASH].to_numpy()
        return found

    def picked(self, mask: Mask) -> Heads:
        """Return some of them."""
        return Heads(self.keys.filter(pa.array(mask)), *(a[mask] for a in self.arrays))

    @property
    def arrays(self) -> tuple[Ints, ...]:
        """Return the numbers, in the order of their columns."""
        return self.starts, self.ends, self.ordered_from, self.other, self.armed, self.waiting_until


class HeadLog:
    """The heads of a bucket, by key."""

    def __init__(self, bucket: Bucket, rows: SessionRows) -> None:
        self._names = [HASH, *rows.layout.key_names]
        key_fields = [pa.field(HASH, pa.int64()), *rows.layout.key_fields]
        self._schema = pa.schema([*key_fields, *(pa.field(name, pa.int64()) for name in _NOTHING)])
        self._log = KeyedLog(bucket, "h", self._schema, self._compact)

    def of(self, hashes: Ints, *rows: pa.Table) -> tuple[Heads, Mask, list[Ints]]:
        """Return the heads of the keys of some rows and of these hashes (sorted, each once).

        Returns
        -------
        Heads
            Those that are held and, for keys of rows that have none, some that say nothing.
        ndarray of bool
            Which are held.
        list of ndarray of int64
            For each table of rows the number of the head of every row.
        """
        held = self._newest(self._log.lookup(hashes))
        keys = group_rows(self._names[1:], held, *rows)
        n = keys.n
        everything = pa.concat_tables([t.select(self._names) for t in (held, *rows)])
        place = np.empty(n, np.int64)
        place[keys.ids] = np.arange(len(keys.ids))
        cuts = np.cumsum([held.num_rows, *(t.num_rows for t in rows)])
        numbers = [np.asarray(part) for part in np.split(keys.ids, cuts[:-1])]
        arrays = []
        for name, nothing in _NOTHING.items():
            array = np.full(n, nothing, np.int64)
            array[numbers[0]] = held[name].to_numpy()
            arrays.append(array)
        known = np.zeros(n, np.bool_)
        known[numbers[0]] = True
        return Heads(pick(everything, place), *arrays), known, numbers[1:]

    def write(self, heads: Sequence[Heads]) -> None:
        """Note heads in place of those that are held of their keys."""
        noted = [pa.Table.from_arrays([*h.keys.columns, *map(pa.array, h.arrays)], schema=self._schema) for h in heads]
        self._log.append(pa.concat_tables([self._schema.empty_table(), *noted]))

    def drop(self, dead: DeadKeys) -> None:
        """Forget keys."""
        self._log.remove(dead.hashes, dead.rows)

    def clear(self) -> None:
        """Nothing is open any more."""
        self._log.clear()

    def _newest(self, heads: pa.Table) -> pa.Table:
        keys = group_rows(self._names[1:], heads)
        if keys.n == heads.num_rows:
            return heads
        last = np.empty(keys.n, np.int64)
        last[keys.ids] = np.arange(heads.num_rows)
        return pick(heads, np.sort(last))

    def _compact(self, heads: pa.Table, oldest: bool) -> pa.Table:
        """The newest of each key; those of keys that wait for nothing go when nothing older remains for them to replace."""
        kept = self._newest(heads)
        return kept.filter(pa.array(kept["q"].to_numpy() != END_OF_TIME)) if oldest else kept
