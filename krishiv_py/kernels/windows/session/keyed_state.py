"""Entries of a log by key, for sessions with triggers: what is held of a window, results that stand, and one mark a key.

============  ==========  =========================================================================================
kind ``z``    ``__t, b``  meaning
============  ==========  =========================================================================================
HELD          bounds      a row, or a session with its totals, numbered ``n``
STANDING      bounds      a result that was written and not withdrawn: number ``i``, in the order in which they were written
MARK          q, q        the key is looked at again when the watermark reaches ``q``
============  ==========  =========================================================================================

A key that is looked at is written again, so of its entries only those of the last step (``s``) count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import group_rows
from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.sorting import stable_order
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.state.keyed_log import HASH
from krishiv_py.kernels.windows.session.rows import END, KIND, SEQ
from krishiv_py.plan.durations import END_OF_TIME

HELD, STANDING, MARK = 0, 1, 2
NUMBER: Final = "n"
OFTEN: Final = "o"
UNDER: Final = "i"
DONE: Final = "d"


@attrs.frozen(eq=False)
class KeyEntries:
    """Living entries of some keys: what is held and results that stand, both by number, and a mark a key."""

    held: pa.Table
    standing: pa.Table
    marks: pa.Table


class EntryLog:
    """Makes, sifts and merges entries.

    Parameters
    ----------
    layout : Layout
        Names the keys.
    plain : dict
        The columns of numbers and flags, in the order in which they are stored, with what is in entries that say nothing.
    content : sequence of pyarrow.Field
        The columns behind the keys; null in entries that say nothing.
    """

    def __init__(self, layout: Layout, plain: Mapping[str, int | bool], content: list[pa.Field]) -> None:
        self.layout = layout
        self._plain = plain
        types = {name: pa.bool_() if isinstance(value, bool) else pa.int64() for name, value in plain.items()}
        types[KIND] = pa.int8()
        self.schema = pa.schema([*(pa.field(n, t) for n, t in types.items()), *layout.key_fields, *content])

    def entries(self, keys: pa.Table, columns: Mapping[str, Ints | pa.ChunkedArray], kind: int, seq: int) -> pa.Table:
        """Entries of a kind; `keys` has hash and key of each."""
        n = keys.num_rows
        filled = {name: keys[name] for name in (HASH, *self.layout.key_names)}
        filled |= {name: pa.array(given) if isinstance(given, np.ndarray) else given for name, given in columns.items()}
        plain = {**self._plain, SEQ: seq, KIND: kind}
        arrays = [
            filled[f.name] if f.name in filled else pa.repeat(pa.scalar(plain.get(f.name), f.type), n) for f in self.schema
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def marks(self, keys: pa.Table, moments: Ints, seq: int) -> pa.Table:
        """Marks; `keys` has hash and key of each."""
        return self.entries(keys, {TIME: moments, END: moments}, MARK, seq)

    def page(self, entries: pa.Table) -> KeyEntries:
        """Sift the entries of some keys."""
        alive = entries.filter(pa.array(self._newest(entries)))
        kinds = alive[KIND].to_numpy()
        held, standing, marks = (alive.filter(pa.array(kinds == kind)) for kind in (HELD, STANDING, MARK))
        held = pick(held, stable_order(held[NUMBER].to_numpy()))
        return KeyEntries(held, pick(standing, stable_order(standing[UNDER].to_numpy())), marks)

    def compact(self, entries: pa.Table, oldest: bool) -> pa.Table:
        """Entries of the last step of each key; a bare mark goes when nothing older remains for it to replace."""
        kept = self._newest(entries)
        if oldest:
            kept &= (entries[KIND].to_numpy() != MARK) | (entries[TIME].to_numpy() != END_OF_TIME)
        return entries.filter(pa.array(kept))

    def _newest(self, entries: pa.Table) -> Mask:
        """Entries of the last step of their key."""
        keys = group_rows(self.layout.key_names, entries)
        seqs = entries[SEQ].to_numpy()
        last = np.zeros(keys.n, np.int64)
        np.maximum.at(last, keys.ids, seqs)
        mask: Mask = seqs == last[keys.ids]
        return mask
