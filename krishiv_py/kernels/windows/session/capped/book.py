"""What is kept of sessions with triggers and a longest duration: rows, until their session is closed (:mod:`..book`).

A row spans its time and its reach. It keeps whether it was part of a firing (``f``) or of a session that had its watermark
firing or a late one (``d``), how often its session fired (``o``), and the result it stands under (``i``). A result keeps how
many rows it is made of (``o``), and what it may take to withdraw it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.grouping import key_hashes
from krishiv_py.arrays.types import Ints, Mask
from krishiv_py.kernels.columns.layout import GAP, TIME, Layout
from krishiv_py.kernels.state.keyed_log import HASH
from krishiv_py.kernels.windows.session.keyed_state import DONE, HELD, NUMBER, OFTEN, STANDING, UNDER, Book
from krishiv_py.kernels.windows.session.rows import END, KIND, SEQ

WRITTEN: Final = "f"
_PLAIN: Final = {HASH: 0, SEQ: 0, NUMBER: 0, TIME: 0, END: 0, OFTEN: 0, UNDER: -1, KIND: 0, WRITTEN: False, DONE: False}


class RowBook(Book):
    """Entries of rows and of results with their partials."""

    def __init__(self, layout: Layout) -> None:
        self.inputs = [n for n in layout.row_schema.names if n not in (TIME, GAP) and n[0] == "a"]
        self.partials = [f.name for f in layout.partial_fields]
        super().__init__(layout, _PLAIN, [*(layout.row_schema.field(n) for n in self.inputs), *layout.partial_fields])

    def fresh(self, rows: pa.Table, reaches: Ints, seq: int, first: int) -> pa.Table:
        """Entries of working rows, numbered from `first` in order of arrival."""
        n, names = rows.num_rows, self.layout.key_names
        keys = rows.select(names).add_column(0, HASH, pa.array(key_hashes([rows[k] for k in names], n)))
        columns = {TIME: rows[TIME], NUMBER: first + np.arange(n), END: reaches, **{name: rows[name] for name in self.inputs}}
        return self.entries(keys, columns, HELD, seq)

    def standing(
        self, keys: pa.Table, starts: Ints, ends: Ints, rows: Ints, numbers: Ints, contents: pa.Table | None, seq: int
    ) -> pa.Table:
        """Entries of results; `keys` has hash and key of each, `contents` what it may take to withdraw it."""
        columns = {TIME: starts, END: ends, OFTEN: rows, UNDER: numbers}
        content = {} if contents is None else {name: contents[name] for name in self.partials}
        return self.entries(keys, {**columns, **content}, STANDING, seq)

    def rewritten(self, rows: pa.Table, seq: int, fired: Mask, done: Mask, often: Ints, under: Ints) -> pa.Table:
        """Rows with what has become of them."""
        told = {WRITTEN: fired, DONE: done, OFTEN: often, UNDER: under}
        kept = {name: rows[name] for name in (NUMBER, TIME, END, *self.inputs, *self.partials)}
        return self.entries(rows, {**kept, **told}, HELD, seq)
