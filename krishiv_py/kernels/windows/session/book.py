"""What is kept of sessions with triggers: a log by key of rows, results that stand, and one mark.

============  ==========  =========================================================================================
kind ``z``    ``__t, b``  meaning
============  ==========  =========================================================================================
ROW           t, reach    a row, until its session is closed; what it was part of (``f``, ``d``, ``o``, ``i``)
STANDING      bounds      a result that was written and not withdrawn: number ``i``, of ``o`` rows
MARK          q, q        the key is looked at again when the watermark reaches ``q``
============  ==========  =========================================================================================

A key that is looked at is written anew, so of its entries only those of the last step (``s``) count.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.kernels.arrays.grouping import group, key_hashes
from krishiv_py.kernels.arrays.sorting import stable_order
from krishiv_py.kernels.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import GAP, TIME, Layout
from krishiv_py.kernels.state.keyed_log import HASH
from krishiv_py.kernels.windows.session.rows import END, KIND, SEQ
from krishiv_py.plan.durations import END_OF_TIME

ROW, STANDING, MARK = 0, 1, 2
ORD: Final = "n"
WRITTEN: Final = "f"
DONE: Final = "d"
OFTEN: Final = "o"
UNDER: Final = "i"
_NUMBERS: Final = (HASH, SEQ, ORD, TIME, END, OFTEN, UNDER)


@attrs.frozen(eq=False)
class Page:
    """Living entries of some keys.

    Attributes
    ----------
    rows, standing : pyarrow.Table
        Entries of their kind; rows in order of arrival, results by number.
    marks : pyarrow.Table
        One per key.
    """

    rows: pa.Table
    standing: pa.Table
    marks: pa.Table


class Book:
    """Makes, sifts and merges entries."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.inputs = [n for n in layout.row_schema.names if n not in (TIME, GAP) and n[0] == "a"]
        self.partials = [f.name for f in layout.partial_fields]
        numbers = [pa.field(n, pa.int64()) for n in _NUMBERS]
        flags = [pa.field(KIND, pa.int8()), pa.field(WRITTEN, pa.bool_()), pa.field(DONE, pa.bool_())]
        inputs = [layout.row_schema.field(n) for n in self.inputs]
        self.schema = pa.schema([*numbers, *flags, *layout.key_fields, *inputs, *layout.partial_fields])

    def fresh(self, rows: pa.Table, reaches: Ints, seq: int, first: int) -> pa.Table:
        """Entries of working rows, numbered from `first` in order of arrival."""
        n = rows.num_rows
        columns = {name: rows[name] for name in (*self.layout.key_names, *self.inputs)}
        columns |= {HASH: pa.array(key_hashes([rows[k] for k in self.layout.key_names], n)), TIME: rows[TIME]}
        columns |= {ORD: pa.array(first + np.arange(n)), END: pa.array(reaches)}
        return self._entries(columns, n, ROW, seq)

    def standing(
        self, keys: pa.Table, starts: Ints, ends: Ints, rows: Ints, numbers: Ints, contents: pa.Table | None, seq: int
    ) -> pa.Table:
        """Entries of results; `keys` has hash and key of each, `contents` what it may take to withdraw it."""
        columns = {name: keys[name] for name in (HASH, *self.layout.key_names)}
        columns |= {TIME: pa.array(starts), END: pa.array(ends), OFTEN: pa.array(rows), UNDER: pa.array(numbers)}
        if contents is not None:
            columns |= {name: contents[name] for name in self.partials}
        return self._entries(columns, keys.num_rows, STANDING, seq)

    def marks(self, keys: pa.Table, moments: Ints, seq: int) -> pa.Table:
        """Marks; `keys` has hash and key of each."""
        columns = {name: keys[name] for name in (HASH, *self.layout.key_names)}
        return self._entries(columns | {TIME: pa.array(moments), END: pa.array(moments)}, keys.num_rows, MARK, seq)

    def rewritten(self, rows: pa.Table, seq: int, fired: Mask, done: Mask, often: Ints, under: Ints) -> pa.Table:
        """Rows with what has become of them."""
        n = rows.num_rows
        new = {
            SEQ: pa.repeat(pa.scalar(seq, pa.int64()), n),
            WRITTEN: pa.array(fired),
            DONE: pa.array(done),
            OFTEN: pa.array(often),
            UNDER: pa.array(under),
        }
        return pa.Table.from_arrays([new.get(f.name, rows[f.name]) for f in self.schema], schema=self.schema)

    def page(self, entries: pa.Table) -> Page:
        """Sift the entries of some keys."""
        alive = entries.filter(pa.array(newest(self.layout, entries)))
        kinds = alive[KIND].to_numpy()
        rows, standing = alive.filter(pa.array(kinds == ROW)), alive.filter(pa.array(kinds == STANDING))
        rows = rows.take(pa.array(stable_order(rows[ORD].to_numpy())))
        standing = standing.take(pa.array(stable_order(standing[UNDER].to_numpy())))
        return Page(rows, standing, alive.filter(pa.array(kinds == MARK)))

    def compact(self, entries: pa.Table, oldest: bool) -> pa.Table:
        """Entries of the last step of each key; a bare mark goes when nothing older remains for it to replace."""
        kept = newest(self.layout, entries)
        if oldest:
            kept &= (entries[KIND].to_numpy() != MARK) | (entries[TIME].to_numpy() != END_OF_TIME)
        return entries.filter(pa.array(kept))

    def _entries(self, columns: dict[str, pa.ChunkedArray | pa.Array], n: int, kind: int, seq: int) -> pa.Table:
        plain = {SEQ: seq, KIND: kind, ORD: 0, OFTEN: 0, UNDER: -1, WRITTEN: False, DONE: False}
        arrays = []
        for field in self.schema:
            if field.name in columns:
                arrays.append(columns[field.name])
            else:
                arrays.append(pa.repeat(pa.scalar(plain.get(field.name), field.type), n))
        return pa.Table.from_arrays(arrays, schema=self.schema)


def newest(layout: Layout, entries: pa.Table) -> Mask:
    """Entries of the last step of their key."""
    keys = group([entries[k] for k in layout.key_names], entries.num_rows)
    seqs = entries[SEQ].to_numpy()
    last = np.zeros(keys.n, np.int64)
    np.maximum.at(last, keys.ids, seqs)
    mask: Mask = seqs == last[keys.ids]
    return mask
