"""Determine how many values the lists of one key may hold together in one step; what grows with the square of its rows
is refused.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.types import Ints
from krishiv_py.errors import OperatorError, shown
from krishiv_py.kernels.columns.layout import Layout


class Listing:
    """Refuses too many values listed, or rows met.

    Parameters
    ----------
    rows : pyarrow.Table
        Working rows.
    anchors : ndarray of int64
        A row of each range, of its key.
    ids : ndarray of int64
        The number of the key of each range.
    """

    def __init__(self, layout: Layout, rows: pa.Table, anchors: Ints, ids: Ints) -> None:
        self._layout = layout
        self._rows = rows
        self._anchors = anchors
        self._ids = ids

    def check(self, what: str, lengths: Ints, *, copies: int = 1) -> None:
        """Refuse lists of these lengths if those of a key hold too many values together; `what` makes them.

        What is not kept but only looked at may be `copies` times as much.

        Raises
        ------
        OperatorError
            With key, number of values and the way out.
        """
        most = self._layout.spec.options.max_listed * copies
        if not len(lengths) or int(lengths.sum()) <= most:
            return
        totals = np.zeros(int(self._ids.max()) + 1, np.int64)
        np.add.at(totals, self._ids, lengths)
        worst = int(totals.argmax())
        total = int(totals[worst])
        if total <= most:
            return
        mine = np.flatnonzero(self._ids == worst)
        row = self._rows.slice(int(self._anchors[mine[0]]), 1)
        key = {name: row[k][0].as_py() for name, k in zip(self._layout.spec.keys, self._layout.key_names, strict=True)}
        got = f"{total:,} for key {shown(key)}, in {len(mine):,} results of one step, up to {int(lengths[mine].max()):,} in one"
        if copies > 1:
            verb, then, hint = "look at", "take very long", "put fewer rows into a batch"
        else:
            verb, then, hint = "list", "fill the memory", "bound its rows with max_rows_per_key, count instead of listing"
        raise OperatorError(
            f"{what} would {verb} more than {most:,} values of one key",
            got=got,
            then=f"that grows with the square of the rows in a window, and would {then}",
            hint=f"make the window smaller, {hint}, or raise the limit: .max_listed({2 * total // copies})",
        )
