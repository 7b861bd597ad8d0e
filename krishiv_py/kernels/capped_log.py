"""What is kept of sessions with a longest duration: a log by key of rows, results that stand, and marks.

============  =========  ==========================================================================================
kind ``z``    ``a, b``   meaning
============  =========  ==========================================================================================
ROW           t, reach   partial aggregates of the rows of one key and time, until their session is closed
STANDING      bounds     a result that was written and not withdrawn
MARK          c, q       rows before ``c`` are gone; the key is looked at again when the watermark reaches ``q``
============  =========  ==========================================================================================

Every step that touches a key writes one mark for it and all results that stand, so the last mark (by step number ``s``)
says which entries are alive: rows that are newer than it or not before ``c``, and results as new as it.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.kernels.aggs.base import Mask
from krishiv_py.kernels.grouping import Ints, group
from krishiv_py.kernels.keyed_log import HASH
from krishiv_py.kernels.session_rows import END, KIND, SEQ, START, SessionRows
from krishiv_py.plan.durations import END_OF_TIME, UNSET

ROW: Final = 0
STANDING: Final = 1
MARK: Final = 2


@attrs.frozen(eq=False)
class Alive:
    """Entries of some keys, sifted.

    Attributes
    ----------
    groups : ndarray of int64
        Key number of every entry.
    rows, standing, marks : ndarray of bool
        Which entries are living rows, results that stand, and the last mark of their key.
    closed, armed : ndarray of int64
        By key: where rows begin that are not gone, and when it is looked at again.
    """

    groups: Ints
    rows: Mask
    standing: Mask
    marks: Mask
    closed: Ints
    armed: Ints


class CappedLog:
    """Layout and sifting of entries."""

    def __init__(self, rows: SessionRows) -> None:
        self.key_names = rows.layout.key_names
        self.partials = [f.name for f in rows.layout.partial_fields]
        self.schema = pa.schema([*rows.schema, pa.field(SEQ, pa.int64()), pa.field(KIND, pa.int8())])

    def entries(self, stored: pa.Table, seq: int, kind: int) -> pa.Table:
        """Stored rows as entries."""
        n = stored.num_rows
        extra = [pa.repeat(pa.scalar(seq, pa.int64()), n), pa.repeat(pa.scalar(kind, pa.int8()), n)]
        return pa.Table.from_arrays([*stored.select(self.schema.names[:-2]).columns, *extra], schema=self.schema)

    def marks(self, keys: pa.Table, closed: Ints, armed: Ints, seq: int) -> pa.Table:
        """Marks for keys; `keys` has the hash and the key columns."""
        n = keys.num_rows
        nothing = [pa.nulls(n, self.schema.field(p).type) for p in self.partials]
        columns = [keys[HASH], pa.array(closed), pa.array(armed), *(keys[k] for k in self.key_names), *nothing]
        extra = [pa.repeat(pa.scalar(seq, pa.int64()), n), pa.repeat(pa.scalar(MARK, pa.int8()), n)]
        return pa.Table.from_arrays([*columns, *extra], schema=self.schema)

    def sift(self, entries: pa.Table, groups: Ints, n: int) -> Alive:
        """Which entries are alive, given the key number of each."""
        kinds, seqs, starts = entries[KIND].to_numpy(), entries[SEQ].to_numpy(), entries[START].to_numpy()
        newest = np.full(n, -1, np.int64)
        marked = np.flatnonzero(kinds == MARK)
        np.maximum.at(newest, groups[marked], seqs[marked])
        marks = (kinds == MARK) & (seqs == newest[groups])
        closed, armed = np.full(n, UNSET), np.full(n, END_OF_TIME)
        closed[groups[marks]] = starts[marks]
        armed[groups[marks]] = entries[END].to_numpy()[marks]
        rows = (kinds == ROW) & ((seqs > newest[groups]) | (starts >= closed[groups]))
        return Alive(groups, rows, (kinds == STANDING) & (seqs == newest[groups]), marks, closed, armed)

    def compact(self, entries: pa.Table, oldest: bool) -> pa.Table:
        """Entries that still matter; a mark with nothing left under it goes when nothing older remains."""
        keys = group([entries[k] for k in self.key_names], entries.num_rows)
        alive = self.sift(entries, keys.ids, keys.n)
        kept = alive.rows | alive.standing
        if oldest:
            needed = np.zeros(keys.n, np.bool_)
            needed[keys.ids[kept]] = True
            kept |= alive.marks & needed[keys.ids]
        else:
            kept |= alive.marks
        return entries.filter(pa.array(kept))
