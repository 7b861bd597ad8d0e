"""Define what is kept of sessions with a longest duration: a log by key of rows, results that stand, and marks.

============  =========  ==========================================================================================
kind ``z``    ``a, b``   meaning
============  =========  ==========================================================================================
ROW           t, reach   partial aggregates of the rows of one key and time, until their session is closed
STANDING      bounds     a result that was written and not withdrawn
MARK          q, q       the key is looked at again when the watermark reaches ``q``
CLOSED        c, c       rows before ``c`` that had come by then are gone
============  =========  ==========================================================================================

Every step that touches a key writes one mark for it and all results that stand, so results older than the last mark (by
step number ``s``) are withdrawn. Of the closings of a key only the last matters: each reaches beyond those before it.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.state.keyed_log import HASH
from krishiv_py.kernels.windows.session.rows import FIRED, KIND, SEQ, START, SessionRows
from krishiv_py.plan.durations import END_OF_TIME, UNSET

ROW: Final = 0
STANDING: Final = 1
MARK: Final = 2
CLOSED: Final = 3


@attrs.frozen(eq=False)
class Alive:
    """Entries of some keys, sifted.

    Attributes
    ----------
    groups : ndarray of int64
        Key number of every entry.
    rows, standing, marks : ndarray of bool
        Which entries are living rows, results that stand, and the last mark and closing of their key.
    armed : ndarray of int64
        By key: when it is looked at again.
    """

    groups: Ints
    rows: Mask
    standing: Mask
    marks: Mask
    armed: Ints


class CappedLog:
    """Layout and sifting of entries."""

    def __init__(self, rows: SessionRows) -> None:
        self.key_names = rows.layout.key_names
        self.partials = [f.name for f in rows.layout.partial_fields]
        extra = [pa.field(SEQ, pa.int64()), pa.field(FIRED, pa.int64()), pa.field(KIND, pa.int8())]
        self.schema = pa.schema([*rows.schema, *extra])

    def entries(self, stored: pa.Table, seq: int, kind: int, fired: Ints | None = None) -> pa.Table:
        """Stored rows as entries; results with how often their session has fired."""
        n = stored.num_rows
        return pa.Table.from_arrays(
            [*stored.select(self.schema.names[:-3]).columns, *_extra(n, seq, kind, fired)], schema=self.schema
        )

    def marks(self, keys: pa.Table, moments: Ints, seq: int, kind: int) -> pa.Table:
        """Marks or closings for keys; `keys` has the hash and the key columns."""
        n = keys.num_rows
        nothing = [pa.nulls(n, self.schema.field(p).type) for p in self.partials]
        columns = [keys[HASH], pa.array(moments), pa.array(moments), *(keys[k] for k in self.key_names), *nothing]
        return pa.Table.from_arrays([*columns, *_extra(n, seq, kind, None)], schema=self.schema)

    def sift(self, entries: pa.Table, groups: Ints, n: int) -> Alive:
        """Return which entries are alive, given the key number of each."""
        kinds, seqs, starts = entries[KIND].to_numpy(), entries[SEQ].to_numpy(), entries[START].to_numpy()
        marks, marked = _last(kinds == MARK, seqs, groups, n)
        closings, closed = _last(kinds == CLOSED, seqs, groups, n)
        armed, upto = np.full(n, END_OF_TIME), np.full(n, UNSET)
        armed[groups[marks]] = starts[marks]
        upto[groups[closings]] = starts[closings]
        rows = (kinds == ROW) & ((seqs > closed[groups]) | (starts >= upto[groups]))
        return Alive(groups, rows, (kinds == STANDING) & (seqs == marked[groups]), marks | closings, armed)

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


def _extra(n: int, seq: int, kind: int, fired: Ints | None) -> list[pa.Array]:
    often = pa.repeat(pa.scalar(0, pa.int64()), n) if fired is None else pa.array(fired)
    return [pa.repeat(pa.scalar(seq, pa.int64()), n), often, pa.repeat(pa.scalar(kind, pa.int8()), n)]


def _last(wanted: Mask, seqs: Ints, groups: Ints, n: int) -> tuple[Mask, Ints]:
    """The newest of the wanted entries of each key, and its step number by key (-1: none)."""
    newest = np.full(n, -1, np.int64)
    np.maximum.at(newest, groups[wanted], seqs[wanted])
    return wanted & (seqs == newest[groups]), newest
